"""What this process has taken of the machine."""

from __future__ import annotations

import os
import resource
import sys


def cpu_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def peak_bytes() -> int:
    """Largest resident size of this process, or of any of its children that ended."""
    unit = 1 if sys.platform == "darwin" else 1024
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(each).ru_maxrss for each in who) * unit

"""How fast `verify` reads a pair, against a plain read of its .bin, both from memory and taken in turn.

    python tests/bench/reading.py PREFIX [ROUNDS]

Ratios, not speeds: a busy machine slows both. Memory is the most this process took.
"""

from __future__ import annotations

import re
import statistics
import sys
import time
from pathlib import Path

from dataprep.indexed import bin_path
from dataprep.prefixes import find_prefix
from dataprep.stages.verify import verify
from dataprep.storage import COPY_BYTES


def plain(path: Path) -> float:
    """Seconds for a loop of readinto."""
    view = memoryview(bytearray(COPY_BYTES))
    start = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(view):
            pass
    return time.perf_counter() - start


def main() -> None:
    prefix = find_prefix(sys.argv[1])
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 9
    plain(bin_path(prefix))
    ratios, speeds = [], []
    for _ in range(rounds):
        reading = plain(bin_path(prefix))
        start = time.perf_counter()
        report = verify(prefix)
        verifying = time.perf_counter() - start
        ratios.append(reading / verifying)
        speeds.append((reading, verifying))
    size = bin_path(prefix).stat().st_size / 1e9
    best = [size / min(seconds) for seconds in zip(*speeds, strict=True)]
    start = time.perf_counter()
    verify(prefix, "index")
    index = time.perf_counter() - start
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    print(f"{report.dtype}, {size:.2f} GB, {report.num_documents:,} documents, {len(report.problems)} problems")
    print(f"verify reads at {statistics.median(ratios):.2f} of a plain read (median of {rounds} rounds in turn)")
    print(f"best of all rounds: plain {best[0]:.1f} GB/s, verify {best[1]:.1f} GB/s; level index {index:.2f} s")
    print(f"memory: {int(peak[1]) // 1024 if peak else 0} MB at most")


if __name__ == "__main__":
    main()

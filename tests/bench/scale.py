"""What a unit costs beside its text: plan, submit, merge, verify, resume; of the real command, on units of one line.

    python tests/bench/scale.py 1000 10000 100000

Each number of units is run twice: to the end, and, killed once all are merged, again. Prints JSON lines: milliseconds
a unit of the whole command and of the resumed one, and the driver's largest resident size in MB.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def _command(corpus: Path, output: Path) -> list[str]:
    settings = [f"runtime.unit_bytes={LINE_BYTES}", "runtime.audit_rate=0"]
    more = [word for setting in settings for word in ("--set", setting)]
    return [sys.executable, "-m", "dataprep", "-q", "run", str(corpus), "-t", "sample", "-o", str(output), *more]


LINE_BYTES = 60


def _run(command: list[str]) -> tuple[float, int]:
    """Seconds, and the largest resident size in KiB."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return time.monotonic() - start, usage.ru_maxrss


def _kill_behind_the_merge(command: list[str], output: Path) -> None:
    """Run it until all units are merged, and then no further."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not list(output.glob("work/*/merged-*/dataset/*.idx*")):
        assert process.poll() is None, "too fast: it has ended"
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not list(output.glob("*/manifest.json")), "too late: it is published"


def main() -> None:
    for number in map(int, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            corpus, output = Path(folder, "corpus.jsonl"), Path(folder, "out")
            with corpus.open("w") as file:
                for i in range(number):
                    line = json.dumps({"text": f"document {i}"})
                    file.write(f"{line:<{LINE_BYTES - 1}}\n")
            command = _command(corpus, output)
            result: dict[str, Any] = {"units": number}
            seconds, rss = _run(command)
            result["run_ms"], result["run_mb"] = 1e3 * seconds / number, rss / 1e3
            result["again_seconds"] = _run(command)[0]
            shutil.rmtree(output)
            _kill_behind_the_merge(command, output)
            seconds, rss = _run(command)
            result["resume_seconds"], result["resume_mb"] = seconds, rss / 1e3
        print(json.dumps({key: round(value, 3) for key, value in result.items()}), flush=True)


if __name__ == "__main__":
    main()

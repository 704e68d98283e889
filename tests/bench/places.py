r"""The same run in several places, taken in turn: seconds from the command to the prefix, and the memory it took.

    python tests/bench/places.py corpus.jsonl gpt2 3 'one=--workers 1' 'two=--workers 2' \
        'processes=--workers 2 --set runtime.processes=true' 'dask=--cluster scheduler.json' \
        'slurm=--cluster slurm --set cluster.nodes=2 --set cluster.workers_per_node=1'

Corpus, tokenizer, rounds, and for each place a name and options of `dataprep run`. Fails where the bytes differ. Prints
a JSON line for each place: medians, the ratio to the first place within a round, and the largest resident size in MB of
the driver and of any one process below it; of workers on other machines nothing is known here.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median


def _below(pid: int) -> list[int]:
    """A process and all below it, as far as they are still there."""
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except OSError:
            continue
        found += [each for child in children for each in _below(int(child))]
    return found


def _watch(process: subprocess.Popen[str], peaks: dict[int, float]) -> None:
    """Note the largest resident size of each process in MB, until the first one ends."""
    while process.poll() is None:
        for pid in _below(process.pid):
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            if match := re.search(r"VmHWM:\s+(\d+) kB", status):
                peaks[pid] = int(match[1]) * 1024 / 1e6
        time.sleep(0.05)


def _run(corpus: str, tokenizer: str, options: str) -> tuple[float, float, float, list[str]]:
    """Seconds, MB of the driver and of the largest process below it, and digests of what was made."""
    with tempfile.TemporaryDirectory() as folder:  # in TMPDIR, which all machines have to see
        command = [sys.executable, "-m", "dataprep", "--quiet", "run", corpus, "-t", tokenizer, "-o", folder]
        start = time.monotonic()
        process = subprocess.Popen([*command, *shlex.split(options)], stdout=subprocess.PIPE, text=True)
        peaks: dict[int, float] = {process.pid: 0}
        watcher = threading.Thread(target=_watch, args=(process, peaks))
        watcher.start()
        printed, _ = process.communicate()
        seconds = time.monotonic() - start
        watcher.join()
        if process.returncode:
            raise SystemExit(f"{options}: exit code {process.returncode}")
        driver = peaks.pop(process.pid)
        digests = []
        for suffix in (".bin", ".idx"):
            with open(printed.strip() + suffix, "rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        return seconds, driver, max(peaks.values(), default=0), digests


def main() -> None:
    corpus, tokenizer, rounds, *places = sys.argv[1:]
    options = dict(place.split("=", 1) for place in places)
    runs: dict[str, list[tuple[float, float, float, list[str]]]] = {name: [] for name in options}
    for _ in range(int(rounds)):
        for name, words in options.items():
            runs[name].append(_run(corpus, tokenizer, words))
            if runs[name][-1][3] != next(iter(runs.values()))[0][3]:
                raise SystemExit(f"{name}: other bytes than {next(iter(runs))}")
    first = next(iter(runs.values()))
    for name, found in runs.items():
        result = {
            "seconds": median(run[0] for run in found),
            "speedup": median(one[0] / run[0] for one, run in zip(first, found, strict=True)),
            "driver_mb": max(run[1] for run in found),
            "process_mb": max(run[2] for run in found),
        }
        print(json.dumps({"place": name, **{key: round(value, 2) for key, value in result.items()}}), flush=True)


if __name__ == "__main__":
    main()

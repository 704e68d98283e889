"""Very many runs and versions: what was read is not read again, and a page reads what it shows."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from dataprep.service.records import RunRecord, write_record
from dataprep.service.state import output_id
from dataprep.versions import Versions

RUNS, VERSIONS = 300, 1500


@pytest.fixture
def many(shelf, tmp_path):
    """The output of `shelf` with many runs and versions more, none of which is young."""
    output = shelf.copy(tmp_path / "out").output
    versions = Versions(output / "nightly")
    manifest = json.loads((versions.version(1) / "manifest.json").read_text())
    for number in range(3, VERSIONS + 1):
        versions.version(number).mkdir()
        new = manifest | {"number": number, "previous": number - 1}
        (versions.version(number) / "manifest.json").write_text(json.dumps(new))
    said = {"job": "nightly", "trigger": "schedule", "host": "node", "pid": 1, "started": "2026-01-01T00:00:00+00:00"}
    for number in range(1, RUNS + 1):
        write_record(versions, RunRecord(run=number, state="failed", error="disk full", **said))
    work = next((output / "work").iterdir())
    for number in range(RUNS):
        shutil.copytree(work, output / "work" / f"{number:016x}")
    for path in [output, *output.rglob("*")]:
        os.utime(path, (0, 0), follow_symlinks=False)
    return output


def reads(pid: int) -> int:
    """Calls of read() of a process so far; what comes through sockets is not among them."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("syscr:")).split()[1])


@pytest.mark.slow
def test_what_was_read_is_not_read_again(many):
    command = [sys.executable, "-m", "dataprep", "-q", "serve", "--output", str(many), "--port", "0"]
    paths = ["", "runs", "runs?page=3", "datasets", f"datasets/{output_id(many)}~nightly", "metrics", "api/v1/runs"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().strip()

            def ask(path: str) -> bytes:
                with urllib.request.urlopen(f"{address}{path}", timeout=20) as answer:
                    return answer.read()

            def total() -> int:
                return json.loads(ask("api/v1/runs"))["total"]

            before = reads(process.pid)
            for path in paths:
                ask(path)
            first, known = reads(process.pid) - before, total()
            shutil.copytree(work := many / "work" / f"{0:016x}", work.with_name("f" * 16))
            until = time.monotonic() + 30
            while total() == known and time.monotonic() < until:
                time.sleep(0.1)
            for path in paths:
                ask(path)
            again = reads(process.pid) - before - first
            assert total() == known + 1
        finally:
            process.terminate()

    assert 2 * RUNS < first < 20 * RUNS  # each run and each record once, and of the versions no more than a page
    assert again < 100  # the new run

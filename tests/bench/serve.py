"""What `dataprep serve` answers, and how fast: under 200 clients beside a run, and over very many runs and versions.

    python tests/bench/serve.py scale --runs 1000 --versions 10000 --jobs 50
    python tests/bench/serve.py load --clients 200 --seconds 60 --corpus CORPUS.jsonl

``scale`` makes an output with so much in it, starts a server, and times each page: the first look after the start, one
a while later, and another at once. ``load`` runs a corpus with two workers and, in turns, lets the clients ask or be
silent; what the run tokenizes in those slices is compared. Clients think for a second between two pages, as people do,
and then once more for no time at all. One in ten listens to events besides. The clients are processes of their own,
whose CPU is told apart: they would be on other machines. Prints JSON lines.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SLICE_SECONDS = 8.0
"""Of the alternating slices of ``load``."""

EVENTS = "/api/v1/events"


def run(corpus: Path | str, output: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dataprep", "-q", "run", str(corpus), "-t", "sample", "-o", str(output), *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def make(folder: Path, runs: int, versions: int, jobs: int) -> tuple[Path, Path]:
    """An output with so many runs of command lines, as many of jobs, and versions; and the folder of the jobs."""
    from dataprep.claims import Claim
    from dataprep.service.ingesting import dataset_of, ingest
    from dataprep.service.jobs import load_job
    from dataprep.watcher import Silent

    output, home = folder / "out", folder / "jobs"
    home.mkdir(parents=True)
    (home / "inbox").mkdir()
    texts = (f"document {number} of the inbox, <b>{number}</b>" for number in range(200))
    text = "".join(json.dumps({"text": each}) + "\n" for each in texts)
    for name in "ab":
        (home / "inbox" / f"{name}.jsonl").write_text(text)
    assert run(home / "inbox" / "a.jsonl", output).wait() == 0
    yaml = f"corpus: inbox/*.jsonl\ntokenizer: sample\noutput: {output}\nsettle_seconds: 0\nschedule: '30 2 * * *'\n"
    for number in range(jobs):
        (home / f"job{number:03d}.yaml").write_text(yaml)
    job = load_job(home / "job000.yaml")
    with Claim(dataset_of(job).claim) as claim:
        assert ingest(job, claim, Silent(), lambda request: None).version is not None
    first = output / "job000"
    for number in range(1, jobs):
        shutil.copytree(first, output / f"job{number:03d}", symlinks=True)
    _more_runs(output, runs)
    for number in range(jobs):
        _more_records(output / f"job{number:03d}", runs // jobs)
        _more_versions(output / f"job{number:03d}", versions // 2 if number == 0 else versions // 2 // max(1, jobs - 1))
    return output, home


def _more_runs(output: Path, count: int) -> None:
    """Copies of a run and its dataset under other digests."""
    work = next(path for path in (output / "work").iterdir() if "job" not in (path / "recipe.json").read_text()[:40])
    old = json.loads((work / "plan.jsonl").read_text().splitlines()[0])["digest"]
    dataset = next(path for path in output.glob(f"*-{old[:8]}") if not path.is_symlink())
    for number in range(count - 1):
        new = hashlib.sha256(str(number).encode()).hexdigest()
        copies = ((work, work.with_name(new[:16])), (dataset, Path(str(dataset).replace(old[:8], new[:8]))))
        for source, target in copies:
            target.mkdir()
            for path in source.rglob("*"):
                copy = target / path.relative_to(source)
                if path.is_dir():
                    copy.mkdir()
                elif path.suffix in (".bin", ".idx"):
                    os.link(path, copy)
                else:
                    copy.write_text(path.read_text().replace(old, new).replace(old[:8], new[:8]))


def _more_records(dataset: Path, count: int) -> None:
    from dataprep.service.records import RunRecord, write_record
    from dataprep.versions import Versions

    said: dict[str, Any] = {"job": dataset.name, "trigger": "schedule", "host": "node", "pid": 1}
    for number in range(1, count + 1):
        when = f"2026-{1 + number // 28 % 12:02d}-{1 + number % 28:02d}T02:30:00+00:00"
        ended: dict[str, Any] = {"state": "published"} if number % 10 else {"state": "failed", "error": "disk full"}
        record = RunRecord(run=number, started=when, ended=when, **ended, **said)
        write_record(Versions(dataset), record)


def _more_versions(dataset: Path, count: int) -> None:
    value = json.loads((dataset / "v000001" / "manifest.json").read_text())
    for number in range(2, count + 1):
        folder = dataset / f"v{number:06d}"
        folder.mkdir()
        new = value | {"number": number, "previous": number - 1, "run": number}
        (folder / "manifest.json").write_text(json.dumps(new))


# --- a server


@contextlib.contextmanager
def serving(output: Path, jobs: Path | None = None, nice: int = 0) -> Iterator[tuple[str, int, int]]:
    """A server in a process of its own: host, port and process id."""
    more = [] if jobs is None else ["--jobs", str(jobs), "--allow", str(output), "--read-only"]
    command = ["nice", "-n", str(nice), sys.executable, "-m", "dataprep", "-q", "serve", "--port", "0"]
    command += ["--output", str(output), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = urllib.parse.urlsplit(process.stdout.readline().strip())
        try:
            yield str(address.hostname), int(address.port or 0), process.pid
        finally:
            process.send_signal(signal.SIGTERM)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tree_cpu_seconds(pid: int) -> float:
    """Of a process and all that it started."""
    parents: dict[int, list[int]] = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.read_text().rpartition(")")[2].split()[1])].append(int(path.parent.name))
    found, stack = 0.0, [pid]
    while stack:
        each = stack.pop()
        with contextlib.suppress(OSError):
            found += cpu_seconds(each)
        stack += parents[each]
    return found


def resident_mb(pid: int) -> int:
    return int(next(line for line in Path(f"/proc/{pid}/status").open() if line.startswith("VmRSS")).split()[1]) // 1000


def get(host: str, port: int, path: str) -> tuple[float, bytes]:
    start = time.monotonic()
    with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=60) as answer:
        data = answer.read()
    return time.monotonic() - start, data


def pages(host: str, port: int) -> list[str]:
    """The addresses that clients ask for: lists, and one of each kind behind them."""
    runs = json.loads(get(host, port, "/api/v1/runs")[1])["runs"]
    datasets = json.loads(get(host, port, "/api/v1/datasets")[1])["datasets"]
    jobs = json.loads(get(host, port, "/api/v1/jobs")[1])
    found = ["/", "/runs", "/datasets", "/jobs", "/api/v1/runs", "/api/v1/datasets", "/api/v1/jobs", "/metrics"]
    found += [runs[0]["page"], "/runs?state=bad", "/runs?page=2"]
    for row in {row["kind"]: row for row in datasets}.values():
        name = urllib.parse.quote(row["id"], safe="~")
        found += [f"/datasets/{name}", f"/datasets/{name}/documents/1", f"/api/v1/datasets/{name}"]
        found += [f"/datasets/{name}~v{row['version']:06d}"] if row["version"] else []
    return found + [f"/jobs/{job['name']}" for job in jobs[:1]]


# --- scale


def scale(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        output, jobs = make(Path(scratch), arguments.runs, arguments.versions, arguments.jobs)
        start = time.monotonic()
        with serving(output, jobs) as (host, port, pid):
            print(json.dumps({"seconds to start": round(time.monotonic() - start, 2), "MB": resident_mb(pid)}))
            paths: dict[str, None] = dict.fromkeys(["/", "/runs", "/datasets", "/jobs"])
            first = {path: get(host, port, path)[0] for path in paths}
            first |= {path: get(host, port, path)[0] for path in pages(host, port) if path not in first}
            for path, seconds in first.items():
                time.sleep(1.2)
                later = get(host, port, path)[0]
                again = get(host, port, path)[0]
                found = {"first": seconds, "later": later, "again": again}
                print(json.dumps({"path": path} | {f"{key} ms": round(1e3 * value, 1) for key, value in found.items()}))
            before = cpu_seconds(pid)
            time.sleep(10)
            spent = (cpu_seconds(pid) - before) / 10
            print(json.dumps({"MB": resident_mb(pid), "CPU share with nobody there": round(spent, 4)}), flush=True)


# --- load


class Slice(NamedTuple):
    """Some seconds: whether the clients asked, bytes a second that the run read, and cores that both used."""

    is_asked: bool
    rate: float
    server_cores: float
    run_cores: float


class Crowd:
    """Clients in one process.

    Args:
        address: of the server.
        paths: that they ask for.
        asking: whether they are to ask now.
    """

    def __init__(self, address: tuple[str, int], paths: list[str], asking: Any) -> None:
        self._address, self._paths, self._asking = address, paths, asking
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.errors: list[str] = []
        self.events = 0

    async def ask(self, number: int, think_seconds: float, until: float) -> None:
        """One client; every second it asks for a page, over a connection that it keeps."""
        choose, stream = random.Random(number), None
        await asyncio.sleep(choose.random() * think_seconds)
        listener = asyncio.create_task(self._listen(until)) if number % 10 == 0 else None
        while time.monotonic() < until:
            if not self._asking.value:
                await asyncio.sleep(0.05)
                continue
            path, start = choose.choice(self._paths), time.monotonic()
            try:
                stream = stream or await asyncio.open_connection(*self._address)
                await self._get(stream, path)
                self.seconds[path].append(time.monotonic() - start)
            except (OSError, EOFError, ValueError, asyncio.IncompleteReadError) as error:
                self.errors.append(f"{path}: {error!r}")
                stream = None
            await asyncio.sleep(max(0.0, think_seconds * (0.5 + choose.random()) - (time.monotonic() - start)))
        if listener is not None:
            listener.cancel()

    async def _get(self, stream: tuple[asyncio.StreamReader, asyncio.StreamWriter], path: str) -> None:
        reader, writer = stream
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {self._address[0]}\r\n\r\n".encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        if not head.startswith(b"HTTP/1.1 200 "):
            raise ValueError(head.partition(b"\r\n")[0])
        await reader.readexactly(int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]))

    async def _listen(self, until: float) -> None:
        while time.monotonic() < until:
            try:
                reader, writer = await asyncio.open_connection(*self._address)
                writer.write(f"GET {EVENTS} HTTP/1.1\r\nHost: {self._address[0]}\r\n\r\n".encode())
                while line := await reader.readline():
                    self.events += line.startswith(b"data:")
                writer.close()
            except OSError as error:
                self.errors.append(f"events: {error!r}")


def _clients(address: tuple[str, int], paths: list[str], numbers: range, asking: Any, options: Any) -> dict[str, Any]:
    crowd = Crowd(address, paths, asking)

    async def all_of_them() -> None:
        until = time.monotonic() + options.seconds
        await asyncio.gather(*(crowd.ask(number, options.think, until) for number in numbers))

    asyncio.run(all_of_them())
    spent = os.times()
    return {"seconds": crowd.seconds, "errors": crowd.errors, "cpu": spent.user + spent.system, "events": crowd.events}


def _process(queue: Any, *arguments: Any) -> None:
    os.nice(19)  # they would be elsewhere, and must not take from the run
    queue.put(_clients(*arguments))


def _slices(asking: Any, options: argparse.Namespace, progress: Any, pids: tuple[int, int]) -> list[Slice]:
    """Let the clients ask, and be silent, in turns."""
    found = []
    until = time.monotonic() + options.seconds
    while time.monotonic() + SLICE_SECONDS <= until:
        asking.value = not asking.value
        time.sleep(1.0)  # until the last ones are answered
        start, done, spent = time.monotonic(), progress(), (cpu_seconds(pids[0]), tree_cpu_seconds(pids[1]))
        time.sleep(SLICE_SECONDS - 1.0)
        seconds, now = time.monotonic() - start, (cpu_seconds(pids[0]), tree_cpu_seconds(pids[1]))
        cores = [(after - before) / seconds for after, before in zip(now, spent, strict=True)]
        found.append(Slice(bool(asking.value), (progress() - done) / seconds, *cores))
    asking.value = True
    return found


def load(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        output, jobs = make(Path(scratch), 50, 200, 5)
        with serving(output, jobs, arguments.nice) as (host, port, pid):
            running = run(arguments.corpus, output, "--workers", "2") if arguments.corpus else None
            while running is not None and not _state(output):
                if running.poll() is not None:
                    sys.exit(f"the run ended before it began: is {arguments.corpus} a corpus?")
                time.sleep(0.1)
            _load(arguments, (host, port), (pid, running.pid if running else pid), output)
            if running is not None:
                assert running.poll() is None, "the corpus is too small: the run ended first"
                running.terminate()
                running.wait()


def _state(output: Path) -> int:
    """Source bytes that the run going on has done; nobody else writes to progress.json."""
    newest = max(output.glob("work/*/progress.json"), key=lambda path: path.stat().st_mtime_ns)
    value = json.loads(newest.read_bytes())
    return int(value["source_bytes_done"]) if value["state"] == "running" else 0


def _load(arguments: argparse.Namespace, address: tuple[str, int], pids: tuple[int, int], output: Path) -> None:
    paths = pages(*address)
    asking, queue = multiprocessing.Value("b", False), multiprocessing.Queue()
    share = arguments.clients // arguments.processes
    crowds = [
        multiprocessing.Process(
            target=_process,
            args=(queue, address, paths, range(share * number, share * (number + 1)), asking, arguments),
        )
        for number in range(arguments.processes)
    ]
    for crowd in crowds:
        crowd.start()
    slices = _slices(asking, arguments, (lambda: _state(output)) if arguments.corpus else (lambda: 0), pids)
    results = [queue.get() for _ in crowds]
    for crowd in crowds:
        crowd.join()
    _print(results, slices, arguments, resident_mb(pids[0]))


def _print(results: list[dict[str, Any]], slices: list[Slice], options: Any, mb: int) -> None:
    seconds: dict[str, list[float]] = defaultdict(list)
    for result in results:
        for path, times in result["seconds"].items():
            seconds[path] += times
    seconds["all"] = [each for times in list(seconds.values()) for each in times]
    for path, times in seconds.items():
        marks = statistics.quantiles(times, n=100) if len(times) > 1 else [0.0] * 99
        quantiles = {f"p{q} ms": round(1e3 * marks[q - 1], 1) for q in (50, 95, 99)}
        print(json.dumps({"path": path, "requests": len(times), **quantiles}))
    errors = [error for result in results for error in result["errors"]]
    asked, silent = ([each for each in slices if each.is_asked is on] for on in (True, False))
    found = {
        "errors": len(errors),
        "requests/s": round(len(seconds["all"]) / (len(asked) * SLICE_SECONDS), 1),
        "events": sum(result["events"] for result in results),
        "slices MB/s": [(each.is_asked, round(each.rate / 1e6, 1)) for each in slices],
        "run MB/s": [round(statistics.mean(each.rate for each in some) / 1e6, 1) for some in (asked, silent)],
        "run cores": [round(statistics.mean(each.run_cores for each in some), 3) for some in (asked, silent)],
        "server cores": [round(statistics.mean(each.server_cores for each in some), 3) for some in (asked, silent)],
        "clients cores": round(sum(result["cpu"] for result in results) / (len(asked) * SLICE_SECONDS), 3),
        "server MB": mb,
    }
    print(json.dumps(found))
    print("\n".join(errors[:10]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=Path)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("scale")
    command.set_defaults(call=scale)
    for name, number in (("runs", 1000), ("versions", 10_000), ("jobs", 50)):
        command.add_argument(f"--{name}", type=int, default=number)
    command = commands.add_parser("load")
    command.set_defaults(call=load)
    command.add_argument("--clients", type=int, default=200)
    command.add_argument("--processes", type=int, default=2)
    command.add_argument("--seconds", type=float, default=66)
    command.add_argument("--think", type=float, default=1.0)
    command.add_argument("--nice", type=int, default=0, help="of the server")
    command.add_argument("--corpus", help="what is run meanwhile, for longer than --seconds")
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    main()

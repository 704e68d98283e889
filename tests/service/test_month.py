"""Nights of four nodes and three jobs on one shared folder, with everything that goes wrong at night.

Nodes are processes that believe to be machines of their own: other host names, so that none knows of another's
processes but by files, and clocks up to ten minutes apart, of a time that goes some thousand times as fast.
They are killed, stopped for longer than a claim outlives its holder, and the disk is full now and then, while files
land, change and vanish. The one fake is the time of day, and how long a claim outlives its holder (2 s, not 180).

DATAPREP_TEST_DAYS=30 makes it a month.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

import dataprep
from dataprep.claims import look
from dataprep.prefixes import find_prefixes
from dataprep.service.ingesting import dataset_of
from dataprep.service.jobs import load_jobs
from dataprep.service.records import read_records
from dataprep.service.running import run_job
from dataprep.versions import Versions, leases_of, release_lease, take_lease

DAYS = int(os.environ.get("DATAPREP_TEST_DAYS", "1"))

TICK = timedelta(minutes=10)
"""What passes between two looks of the world at itself."""

SKEWS = (0, 600, -600, 287)
"""Of the nodes' clocks, seconds."""

BEGIN = datetime(2026, 10, 20, tzinfo=UTC)  # Europe puts its clocks back on the 25th

NODE = """
import os, signal, socket, sys, time
from datetime import datetime, timedelta
from pathlib import Path
name, jobs, clock, skew = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
socket.gethostname = lambda: name
from dataprep import claims
claims.BEAT_SECONDS, claims.TTL_SECONDS = 0.2, 2.0
from dataprep.errors import DataprepError
from dataprep.service import schedule
from dataprep.service.ingesting import dataset_of
from dataprep.service.jobs import load_jobs
from dataprep.service.records import read_records
from dataprep.service.running import run_job

def now():
    return datetime.fromisoformat(clock.read_text()) + timedelta(seconds=skew)

parent = os.getppid()
while os.getppid() == parent:
    for job in load_jobs(jobs)[0]:
        try:
            due = schedule.due(job, read_records(dataset_of(job)), now(), job.created)
            if due is not None:
                record = run_job(job, due, clock=now)
                print(record.state, flush=True)
        except (DataprepError, OSError) as error:
            print(type(error).__name__, flush=True)
            print(f"{now()} {job.name}: {error}", file=sys.stderr, flush=True)
    time.sleep(0.02)
"""

JOBS = {
    "daily": {"schedule": "30 2 * * *", "time_zone": "Europe/Berlin", "changes": "mirror", "done_marker": ".done"},
    "often": {"schedule": "0 */6 * * *", "changes": "append_only", "settle_seconds": 0.3},
    "mirror": {"schedule": "15 */4 * * *", "changes": "mirror", "settle_seconds": 0.3},
}


class World:
    """The shared folder, the nodes, and what happened."""

    def __init__(self, root: Path, shared: Path, tokenizer: Path) -> None:
        self.root, self.shared, self.random = root, shared, random.Random(7)
        self.clock, self.jobs_folder = root / "clock", root / "jobs"
        self.decoder = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
        self.jobs_folder.mkdir()
        self.now, self.events = BEGIN, Counter[str]()
        self.tell_time()
        for name, keys in JOBS.items():
            given = {
                "corpus": f"../inbox/{name}/**/*.jsonl",
                "tokenizer": str(tokenizer),
                "output": str(shared / "data"),
                "retention": {"versions": 3},
                "retries": {"attempts": 5, "wait_seconds": 600},
                "set": ["runtime.engine=reference", "runtime.workers=1"],
                **keys,
            }
            path = self.jobs_folder / f"{name}.yaml"
            path.write_text(json.dumps(given))
            os.utime(path, (BEGIN.timestamp() - 86400 * 2,) * 2)
            (root / "inbox" / name).mkdir(parents=True)
        self.jobs = load_jobs(self.jobs_folder)[0]
        self.files = {name: dict[str, list[str]]() for name in JOBS}
        self.nodes: list[subprocess.Popen[str] | None] = [None] * len(SKEWS)
        self.stopped: dict[int, float] = {}
        self.seen: dict[tuple[str, int], str] = {}
        self.last = dict.fromkeys(JOBS, 0)
        self.number, self.full_until, self.outputs = 0, 0.0, list[Path]()

    def tell_time(self) -> None:
        self.clock.with_suffix(".new").write_text(self.now.isoformat())
        self.clock.with_suffix(".new").rename(self.clock)

    def start(self, i: int) -> None:
        out = self.root / f"node{i}-{len(self.outputs)}.out"
        self.outputs.append(out)
        words = [f"node{i}", str(self.jobs_folder), str(self.clock), str(SKEWS[i])]
        with out.open("w") as file, (self.root / "said").open("a") as said:
            self.nodes[i] = subprocess.Popen([sys.executable, "-c", NODE, *words], stdout=file, stderr=said, text=True)

    def land(self) -> None:
        """Something happens to an inbox."""
        name = self.random.choice(list(JOBS))
        files, inbox = self.files[name], self.root / "inbox" / name
        kind = self.random.random()
        if kind < 0.75 or not files or name == "often":
            target = f"{self.random.choice('ab')}/{self.number:06d}.jsonl"
            self.number += 1
            self.events["files landed"] += 1
        else:
            target = self.random.choice(sorted(files))
            if kind < 0.85 and len(files) > 1:
                (inbox / target).unlink()
                (inbox / f"{target}.done").unlink(missing_ok=True)
                del files[target]
                self.events["files removed"] += 1
                return
            self.events["files changed"] += 1
        texts = [f"{name} {target} {self.random.random()}" for _ in range(self.random.randrange(1, 5))]
        self.events["documents landed"] += len(texts)
        path = inbox / target
        path.parent.mkdir(exist_ok=True)
        lines = [json.dumps({"text": text}) + "\n" for text in texts]
        if name == "mirror" and self.random.random() < 0.5:  # written in place, and slowly
            with path.open("w") as file:
                for line in lines:
                    file.write(line)
                    file.flush()
                    time.sleep(0.005)
        else:
            temporary = path.with_name(f".{path.name}")
            temporary.write_text("".join(lines))
            temporary.replace(path)
        if name == "daily":
            (inbox / f"{target}.done").touch()
        files[target] = texts

    def harm(self) -> None:
        """Something goes wrong."""
        now, i = time.monotonic(), self.random.randrange(len(SKEWS))
        for node, until in list(self.stopped.items()):
            if now > until:
                self.nodes[node].send_signal(signal.SIGCONT)
                del self.stopped[node]
        kind = self.random.random()
        if kind < 0.03 and i not in self.stopped:
            self.events["kills"] += 1
            self.nodes[i].kill()
            self.nodes[i].wait()
            self.start(i)
        elif kind < 0.06 and i not in self.stopped and len(self.stopped) < 3:
            self.events["pauses"] += 1
            self.nodes[i].send_signal(signal.SIGSTOP)
            self.stopped[i] = now + self.random.choice([0.2, 1, 3, 4])
        elif kind < 0.07 and not self.full_until and self.shared.is_mount():
            self.events["times the disk was full"] += 1
            with contextlib.suppress(OSError), (self.shared / "ballast").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))
            self.full_until = now + self.random.random()
        if self.full_until and now > self.full_until:
            (self.shared / "ballast").unlink()
            self.full_until = 0

    def check(self) -> None:
        """What everybody sees is whole, and only grows."""
        for job in self.jobs:
            versions = dataset_of(job)
            numbers = versions.numbers()
            for number in numbers:
                try:
                    data = (versions.version(number) / "manifest.json").read_bytes()
                    version = versions.load(number)
                except (OSError, dataprep.DataprepError):
                    assert number not in versions.numbers()  # retention took it just now
                    continue
                digest = hashlib.sha256(data).hexdigest()
                assert self.seen.setdefault((job.name, number), digest) == digest, "a version changed"
                assert version.number == number
                for part in version.parts:
                    for prefix in part.prefixes:
                        for end, size in (("bin", prefix.files.bin_bytes), ("idx", prefix.files.idx_bytes)):
                            path = versions.part(part.folder) / f"{prefix.name}.{end}"
                            whole = path.exists() and path.stat().st_size == size
                            assert whole or number not in versions.numbers(), path
            if numbers:
                assert numbers[-1] >= self.last[job.name], "a version was lost"
                self.last[job.name] = numbers[-1]

    def finish(self) -> None:
        """Nothing goes wrong any more, and every job runs once more."""
        for node in self.nodes:
            node.kill()
            node.wait()
        (self.shared / "ballast").unlink(missing_ok=True)
        for job in self.jobs:
            for lease in leases_of(dataset_of(job)):
                release_lease(dataset_of(job), lease.id)
            record = run_job(job)
            assert record.state in ("published", "unchanged")
            self.events["runs: by hand, in the end"] += 1

    def documents(self, versions: Versions) -> list[str]:
        found = []
        for prefix in find_prefixes(versions.folder):
            assert dataprep.verify(prefix, level="tokens").ok
            dataset = dataprep.open_dataset(prefix)
            found += [self.decoder.decode([int(token) for token in row[:-1]]) for row in dataset]
        return found


@pytest.fixture
def world(
    tmp_path: Path,
    make_tokenizer: Callable[..., Path],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    monkeypatch.setattr("dataprep.claims.BEAT_SECONDS", 0.2)
    monkeypatch.setattr("dataprep.claims.TTL_SECONDS", 2.0)
    shared = tmp_path / "shared"
    if os.geteuid() == 0 and shutil.which("mount"):
        shared = request.getfixturevalue("mounted")(shared, "size=64m")
    world = World(tmp_path, shared, make_tokenizer())
    yield world
    for node in world.nodes:
        if node is not None:
            node.kill()
            node.wait()


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_no_version_is_lost_doubled_or_torn(world: World) -> None:
    for i in range(len(SKEWS)):
        world.start(i)
    leased: dict[str, Any] = {}
    for tick in range(DAYS * 144):
        world.now += TICK
        world.tell_time()
        if world.random.random() < 0.3:
            world.land()
        world.harm()
        if tick % 5 == 0:
            world.check()
        if tick % 100 == 50 and world.last["often"]:  # somebody trains on it
            if "often" in leased:
                release_lease(dataset_of(world.jobs[-1]), leased.pop("often").id)
            with contextlib.suppress(dataprep.DataprepError):  # the disk is full
                versions = Versions(world.shared / "data" / "often")
                leased["often"] = take_lease(versions, "current", "a training")
                world.events["leases"] += 1
        time.sleep(0.05)
    world.finish()
    world.check()

    for job in world.jobs:
        versions = dataset_of(job)
        texts = [text for each in world.files[job.name].values() for text in each]
        assert sorted(world.documents(versions)) == sorted(texts), job.name
        newest = versions.newest()
        assert os.readlink(versions.link) == versions.version(newest.number).name
        assert newest.number == len({number for name, number in world.seen if name == job.name}) or DAYS > 1
        assert versions.numbers() == list(range(1, newest.number + 1))[-3:], "retention keeps three"
        records = read_records(versions)
        published = [record.version for record in records if record.state == "published"]
        assert len(published) == len(set(published)), "two runs say that they made the same version"
        slots = Counter(r.slot for r in records if r.state in ("published", "unchanged") and r.slot)
        assert set(slots.values()) <= {1}, "a slot was run twice"
        for record in records:
            world.events[f"runs: {record.state}"] += 1
        world.events["claims"] += look(versions.claim).epoch
        world.events["versions"] += newest.number
        named = {p.folder for number in versions.numbers() for p in versions.load(number).parts}
        assert {f"../parts/{path.name}" for path in versions.parts.iterdir()} == named
    world.events["runs: given up, by a node's own word"] = sum(
        line.endswith("Error") for out in world.outputs for line in out.read_text().splitlines()
    )
    print(json.dumps({"days": DAYS, **dict(sorted(world.events.items()))}))
    assert world.events["versions"] >= 3 * DAYS
    assert world.events["kills"] + world.events["pauses"] >= 3 * DAYS

"""Fetching one file under every fault: the right bytes, or an error that names the file and the reason."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from loopback_probe import until

from dataprep import parts, transfer
from dataprep.connections import Connections
from dataprep.errors import Cancelled, OutputError, SourceError
from dataprep.layout import RawFolder
from dataprep.parts import Wanted
from dataprep.receipts import Receipts
from dataprep.transfer import Fetcher
from dataprep.web import Patience, Pause, asked_wait

SIZE = 3_000_017
DATA = random.Random(5).randbytes(SIZE)
SMALL = b'{"a": 1}' * 500
QUICK = Patience(attempts=5, first_seconds=0.002, most_seconds=0.01)
NAME = "data/one file.bin"

LOSSLESS = ("close", "stall", "status", "expired")
"""Faults after which everything that came is kept."""

RECOVERABLE = (*LOSSLESS, "reset", "short", "corrupt", "ignore_range", "wrong_range", "lying_range", "html")
STATUSES = (408, 425, 429, 500, 502, 503, 504)


@pytest.fixture
def repo(here):
    return here.add("datasets", "org/name", {NAME: DATA, "small.json": SMALL, "empty.bin": b""})


def wanted(repo, name=NAME):
    content = repo.commits[repo.branches["main"]][name]
    checksum = f"sha256:{content.sha256}" if name in repo.lfs else f"git-sha1:{content.oid}"
    url = f"hf://datasets/org/name@{repo.branches['main']}/{name.replace(' ', '%20')}"
    return Wanted(name, url, content.size, checksum)


@pytest.fixture(params=["one piece", "many pieces"])
def pieces(request, monkeypatch):
    """A file in one request, or in many side by side."""
    if request.param == "many pieces":
        monkeypatch.setattr(transfer, "PIECE_BYTES", 300_000)
    return request.param


@pytest.fixture
def folder(tmp_path):
    return RawFolder(tmp_path / "raw")


def fetch(folder, want, patience=QUICK, report=lambda n: None, pause=None):
    with Connections(4) as connections:
        return Fetcher(folder, connections, pause or Pause(), report, patience).fetch(want)


def held(folder, want):
    path = folder.files / want.name
    return path.read_bytes() if path.exists() else None


def test_a_file_is_fetched_checked_and_has_a_receipt(here, repo, folder, pieces):
    counted = []
    for name, data in ((NAME, DATA), ("small.json", SMALL)):
        receipt = fetch(folder, wanted(repo, name), report=counted.append)
        assert held(folder, wanted(repo, name)) == data
        assert receipt.sha256 == hashlib.sha256(data).hexdigest()
        assert Receipts(folder).get(name) == receipt
    assert sum(counted) == here.served() == len(DATA) + len(SMALL)
    assert not list(folder.parts.iterdir())


def test_an_empty_file_is_a_file(repo, folder):
    want = wanted(repo, "empty.bin")
    fetch(folder, want)
    assert held(folder, want) == b""


def inject(hub, draw, kind):
    most = min(SIZE, transfer.PIECE_BYTES) - 100
    options = {"at": draw.randrange(1, most)} if kind in ("close", "reset", "corrupt", "short") else {}
    if kind == "stall":
        options = {"at": draw.randrange(1, most), "seconds": 30}
    if kind == "expired":
        return hub.fault("status", "*one file.bin", side="cdn", status=403)
    if kind == "status":
        headers = draw.choice([{}, {"Retry-After": "0"}, {"RateLimit": '"resolvers";r=0;t=-1'}])
        options = {"status": draw.choice(STATUSES), "headers": headers}
    side = draw.choice(["resolve", "cdn"]) if kind in ("status", "html", "close") and "at" not in options else "cdn"
    if kind in ("status", "html"):
        side = draw.choice(["resolve", "cdn"])
    return hub.fault(kind, "*one file.bin", side=side, **options)


def check(hub, folder, want, faults, seed):
    """One fetch under faults: right bytes, nothing left, or the reason; returns whether it went through."""
    problem = None
    try:
        fetch(folder, want)
    except SourceError as error:
        problem = str(error)
    hub.faults.clear()
    if problem is not None:
        assert "one%20file.bin" in problem, seed
        assert held(folder, want) is None, seed
        return False
    assert held(folder, want) == DATA, seed
    assert not list(folder.parts.iterdir()), seed
    return True


@pytest.mark.parametrize("number", [36, pytest.param(100, marks=pytest.mark.slow)])
def test_one_fault_and_two_at_random_places(here, repo, tmp_path, number, pieces, monkeypatch):
    """Range faults wait for a request that resumes, so they are paired with what breaks off."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    want, through, fired = wanted(repo), 0, dict.fromkeys(RECOVERABLE, 0)
    for seed in range(number):
        draw = random.Random(seed)
        kinds = [RECOVERABLE[seed % len(RECOVERABLE)]]
        if seed % 2 or "range" in kinds[0]:
            kinds.insert(0, "close" if "range" in kinds[0] else draw.choice(RECOVERABLE))
        faults = [inject(here, draw, kind) for kind in kinds]
        folder, before = RawFolder(tmp_path / str(seed)), here.served()
        through += check(here, folder, want, faults, (seed, kinds))
        for fault, kind in zip(faults, kinds, strict=True):
            fired[kind] += fault.fired
        # its own answer, and what had come of the others: all of it where a checksum is wrong
        lossy = sum(fault.fired for fault, kind in zip(faults, kinds, strict=True) if kind not in LOSSLESS)
        assert 0 <= here.served() - before - SIZE <= 2 * SIZE * lossy, (seed, kinds)
        (folder.files / want.name).unlink(missing_ok=True)
    assert through == number, "all of them pass, once or twice"
    assert all(fired.values()), fired


@pytest.mark.parametrize("kind", ["close", "reset", "short", "corrupt", "html", "status", "redirect_loop"])
def test_a_fault_that_stays_is_an_error_with_file_and_reason(here, repo, folder, kind, pieces):
    options = {"at": 0} if kind in ("close", "reset") else {"at": 5} if kind in ("short", "corrupt") else {}
    fault = here.fault(kind, "*one file.bin", side=None if kind == "redirect_loop" else "cdn", times=-1, **options)

    with pytest.raises(SourceError, match=r"one%20file.bin: .*(in a row|moved)") as error:
        fetch(folder, wanted(repo))

    assert fault.fired >= 3
    assert held(folder, wanted(repo)) is None
    assert "Traceback" not in str(error.value)


def test_a_stalled_connection_is_given_up_and_resumed(here, repo, folder, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    fault = here.fault("stall", "*one file.bin", side="cdn", at=1_234_567, seconds=60)

    fetch(folder, wanted(repo))

    assert fault.fired == 1
    assert held(folder, wanted(repo)) == DATA
    assert here.served() == SIZE, "nothing twice"


@pytest.mark.parametrize("kind", ["close", "stall"])
def test_every_byte_that_came_is_kept(here, repo, folder, kind, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    for at in (1, 65_536, 1_000_000, 1_900_000):
        here.fault(kind, "*one file.bin", side="cdn", at=at, seconds=60)

    fetch(folder, wanted(repo))

    assert not here.faults
    assert here.served() == SIZE
    starts = [int(r.range[6:-1]) for r in here.requests if r.cdn and r.range]
    assert starts == [1, 65_537, 1_065_537, 2_965_537]


def test_an_expired_address_is_asked_for_again(here, repo, folder, pieces):
    here.fault("close", "*one file.bin", side="cdn", at=1000)
    expired = here.fault("status", "*one file.bin", side="cdn", status=403)

    fetch(folder, wanted(repo))

    assert expired.fired == 1
    assert held(folder, wanted(repo)) == DATA


def test_a_refusal_is_not_asked_again(here, repo, folder):
    repo.gated = True
    with pytest.raises(SourceError, match="org/name is gated: accept its conditions at"):
        fetch(folder, wanted(repo))
    assert len([r for r in here.requests if r.side == "resolve"]) == 1
    gone = Wanted("x", wanted(repo).url.replace("one%20file", "none"), 5, None)
    repo.gated = False
    with pytest.raises(SourceError, match="has no such file"):
        fetch(folder, gone)


def test_the_token_stays_with_the_hub(here, repo, folder, monkeypatch, pieces):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    here.tokens.add("hf_secret")
    repo.gated = True

    fetch(folder, wanted(repo))

    assert {r.authorization for r in here.requests if r.side == "resolve"} == {"Bearer hf_secret"}
    assert {r.authorization for r in here.requests if r.cdn} == {None}
    led = [r for r in here.requests if r.side == "resolve"]
    assert len(led) <= 4, "no more than there are connections: the other pieces go where the first was led"


def test_a_server_that_asks_to_wait_is_obeyed_by_all_threads(here, repo, folder):
    here.fault("status", "*one file.bin", side="resolve", status=429, headers={"Retry-After": "1"})
    pause = Pause()
    start = time.monotonic()

    fetch(folder, wanted(repo), pause=pause)

    assert time.monotonic() - start >= 1
    start = time.monotonic()
    pause.ask(0.3)
    pause.wait()
    assert time.monotonic() - start >= 0.3


def test_a_server_that_asks_to_wait_for_an_hour_is_an_error(here, repo, folder):
    here.fault("status", "*one file.bin", side="resolve", status=429, headers={"Retry-After": "3600"})
    with pytest.raises(SourceError, match=r"429.*asks to wait 3600 s"):
        fetch(folder, wanted(repo))


@pytest.mark.parametrize(
    ("headers", "low", "high"),
    [
        ({"retry-after": "7"}, 7, 7),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0, 0),
        ({"retry-after": "Wed, 21 Oct 2215 07:28:00 GMT"}, 1e9, 1e11),
        ({"ratelimit": '"resolvers";r=0;t=55'}, 55, 57),
        ({"ratelimit": '"resolvers";r=3;t=55'}, None, None),
        ({"retry-after": "soon"}, None, None),
        ({}, None, None),
    ],
)
def test_what_a_server_asks_for(headers, low, high):
    asked = asked_wait(headers)
    assert asked is None if low is None else low <= asked <= high


# --- partials, other processes


SCRIPT = """
import sys
from pathlib import Path
from dataprep.layout import RawFolder
from dataprep.connections import Connections
from dataprep.parts import Wanted
from dataprep.transfer import Fetcher
from dataprep.web import Pause

folder, name, url, size, checksum = sys.argv[1:]
with Connections(4) as connections:
    fetcher = Fetcher(RawFolder(Path(folder)), connections, Pause(), lambda n: None)
    fetcher.fetch(Wanted(name, url, int(size), checksum))
"""


def _start(environment, folder, want):
    arguments = [str(folder.path), want.name, want.url, str(want.num_bytes), want.checksum]
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], env=environment)


def test_what_a_killed_process_had_is_gone_on_with(here, hub_environment, repo, folder):
    want = wanted(repo)
    here.fault("stall", "*one file.bin", side="cdn", at=2_000_000, seconds=60)
    process = _start(hub_environment, folder, want)
    until(lambda: folder.parts.exists() and any(p.stat().st_size == 2_000_000 for p in folder.parts.iterdir()))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()

    fetch(folder, want)

    assert held(folder, want) == DATA
    assert here.served() == SIZE
    assert not list(folder.parts.iterdir())


def test_a_part_of_another_machine_is_taken_over_once_it_is_idle(here, repo, folder):
    want = wanted(repo)
    folder.parts.mkdir(parents=True)
    left = folder.parts / f"{folder.part(want.name, want.identity)}elsewhere-17-0a1b2c3d"
    left.write_bytes(DATA[:2_000_000])
    assert parts._state(left, {}) == "alive", "its lock may mean nothing here, and it was written to lately"
    os.utime(left, (time.time() - 100, time.time() - 100))

    fetch(folder, want)

    assert held(folder, want) == DATA
    assert here.served() == SIZE - 2_000_000
    assert not left.exists()


def test_a_part_that_a_machine_which_is_gone_still_locks_is_taken_over(here, repo, folder, monkeypatch):
    """An NFSv3 server keeps the locks of a client that died, for ever if it does not come back."""
    want, results, pause = wanted(repo), [], Pause()
    folder.parts.mkdir(parents=True)
    left = folder.parts / f"{folder.part(want.name, want.identity)}elsewhere-17-0a1b2c3d"
    left.write_bytes(DATA[:2_000_000])
    os.utime(left, (time.time() + 1000, time.time() + 1000))  # its clock is nobody's business
    monkeypatch.setattr(parts, "IDLE_SECONDS", 0.3)
    with left.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: results.append(fetch(folder, want, pause=pause)), daemon=True)
        thread.start()
        thread.join(30)
        pause.stop.set()
        assert results, "it waits for ever"

    assert held(folder, want) == DATA
    assert here.served() == SIZE - 2_000_000
    assert not left.exists()


def test_a_locked_part_of_another_machine_is_alive_while_it_is_touched(tmp_path, monkeypatch):
    """Only time of looking on counts, and only without a touch in it."""
    now, watched = [0.0], {}
    monkeypatch.setattr(parts, "time", SimpleNamespace(monotonic=lambda: now[0]))
    theirs, mine = tmp_path / "x.elsewhere-17-0a1b2c3d", tmp_path / f"x{parts.MARK}{parts._owner()}"
    with theirs.open("wb") as one, mine.open("wb") as other:
        fcntl.flock(one, fcntl.LOCK_EX)
        fcntl.flock(other, fcntl.LOCK_EX)

        def states(seconds, step):
            found = set()
            for _ in range(round(seconds / step)):
                now[0] += step
                found.add(parts._state(theirs, watched))
                assert parts._state(mine, watched) == "alive", "a lock of this machine is the truth"
            return found

        for i in range(5):
            assert states(59, 1) == {"alive"}
            os.utime(theirs, (i, i))
        assert states(10_000, 1000) == {"alive"}, "it stood still itself"
        assert states(100, 0.25) == {"alive", "silent"}


@pytest.mark.parametrize(
    ("waits_for", "piece_bytes"), [("its turn", 300_000), ("a connection", 300_000), ("a connection", 8 << 20)]
)
def test_who_waits_shows_that_it_is_alive(here, repo, folder, monkeypatch, waits_for, piece_bytes):
    monkeypatch.setattr(transfer, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(transfer, "BEAT_SECONDS", 0.02)
    free = threading.Event()
    with Connections(1) as connections:
        fetcher = Fetcher(folder, connections, Pause(), lambda n: None, QUICK)
        fetcher._large = threading.Semaphore(waits_for == "a connection")
        if waits_for == "a connection":
            connections.submit((-1, 0), free.wait)
        thread = threading.Thread(target=fetcher.fetch, args=(wanted(repo),), daemon=True)
        thread.start()
        try:
            until(lambda: folder.parts.exists() and any(folder.parts.iterdir()))
            (part,) = folder.parts.iterdir()
            for _ in range(3):  # the first may be that of who begins
                os.utime(part, (1, 1))
                until(lambda: part.stat().st_mtime > 1)
        finally:
            free.set()
            fetcher._large.release()
            thread.join()
    assert held(folder, wanted(repo)) == DATA


def test_who_finds_a_live_download_waits_for_it(here, hub_environment, repo, folder):
    want = wanted(repo)
    here.fault("stall", "*one file.bin", side="cdn", at=1_000_000, seconds=1)
    process = _start(hub_environment, folder, want)
    until(lambda: folder.parts.exists() and any(p.stat().st_size >= 1_000_000 for p in folder.parts.iterdir()))

    fetch(folder, want)
    assert process.wait() == 0

    assert held(folder, want) == DATA
    assert here.served() == SIZE, "one of the two fetched it, once"


def test_two_threads_that_begin_together_fetch_once(here, repo, folder):
    want, errors = wanted(repo), []

    def work():
        try:
            fetch(folder, want)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert held(folder, want) == DATA
    assert here.served() == SIZE


def test_a_part_whose_bytes_were_damaged_is_noticed(here, repo, folder):
    want = wanted(repo)
    here.fault("close", "*one file.bin", side="cdn", at=1_000_000, times=1)
    with pytest.raises(SourceError):
        fetch(folder, want, Patience(attempts=1))
    (part,) = folder.parts.iterdir()
    assert part.stat().st_size == 1_000_000
    part.write_bytes(bytes(1_000_000))

    fetch(folder, want)

    assert held(folder, want) == DATA


def test_a_file_without_a_receipt_is_proven_before_it_is_used(here, repo, folder):
    want = wanted(repo)
    receipt = fetch(folder, want)
    folder.receipts.unlink()
    assert fetch(folder, want).sha256 == receipt.sha256
    assert here.served() == SIZE
    folder.receipts.unlink()
    (folder.files / want.name).write_bytes(bytes(SIZE))
    fetch(folder, want)
    assert held(folder, want) == DATA


def test_a_stopped_fetch_keeps_what_came(here, repo, folder, pieces):
    want, pause = wanted(repo), Pause()
    here.rate_bytes_per_second = 5_000_000

    def stop(count):
        pause.stop.set()

    with pytest.raises(Cancelled):
        fetch(folder, want, report=stop, pause=pause)
    here.rate_bytes_per_second = None
    (part,) = folder.parts.iterdir()
    assert part.stat().st_size > 0
    fetch(folder, want)
    assert held(folder, want) == DATA


@pytest.mark.parametrize("taken", ["raw", "raw/files", "raw/parts"])
def test_a_folder_that_cannot_be_made_is_an_error(here, repo, folder, taken):
    path = folder.path.parent / taken
    path.parent.mkdir(exist_ok=True)
    path.write_text("precious")
    with pytest.raises(OutputError, match=re.escape(str(path))):
        fetch(folder, wanted(repo))
    assert path.read_text() == "precious"
    assert here.served() == 0


def test_receipts_survive_a_line_that_a_crash_cut_off(here, repo, folder):
    receipt = fetch(folder, wanted(repo))
    with folder.receipts.open("a") as file:
        file.write('{"name": "da')
    assert Receipts(folder).get(NAME) == receipt
    assert Receipts(folder).get("da") is None


# --- plain HTTP


def test_a_plain_file_has_no_token_and_is_resumed(here, folder, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    url = here.plain("/corpora/one file.bin", DATA)
    here.fault("close", "*one file.bin", side="plain", at=100_000)

    receipt = fetch(folder, Wanted(NAME, url.replace(" ", "%20"), SIZE, None))

    assert receipt.sha256 == hashlib.sha256(DATA).hexdigest()
    assert held(folder, Wanted(NAME, url, SIZE, None)) == DATA
    assert {request.authorization for request in here.requests} == {None}
    assert here.served() == SIZE

"""`dataprep.cluster`: bounded, loopback only, lost workers replaced, and nothing left running."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dataprep.cluster import WINDOW, Cluster, Here, mapping
from dataprep.cluster.existing import Joined
from dataprep.cluster.hosted import Hosted, config_path, scheduler_path
from dataprep.errors import ClusterError, DataprepError, EncodeError
from dataprep.specs import Existing

if TYPE_CHECKING:
    from collections.abc import Callable

# Functions for worker processes are defined inside the tests: cloudpickle sends them by value, as this module is none
# that a worker could import. Functions for threads have to be this very object, so they go by a name of this module.
_here: dict[str, Callable[[Any, Any], object]] = {}


def _do(item: Any, reporter: Any) -> None:
    _here["work"](item, reporter)


def _threads(work: Callable[[Any, Any], object]) -> Callable[[Any, Any], None]:
    _here["work"] = work
    return _do


def _nothing(item: int, reporter: object) -> None:
    pass


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- what map does


@pytest.mark.parametrize(("workers", "number"), [(1, 0), (1, 1), (2, 3), (3, 100)])
def test_every_item_once(workers, number):
    seen: list[int] = []
    with Cluster(Here(workers)) as cluster:
        yielded = list(cluster.map(_threads(lambda item, reporter: seen.append(item)), range(number)))
    assert sorted(yielded) == sorted(seen) == list(range(number))


def test_two_maps_on_one_cluster():
    with Cluster(Here(2)) as cluster:
        assert sorted(cluster.map(_nothing, [1, 2])) == [1, 2]
        assert sorted(cluster.map(_nothing, [1, 2])) == [1, 2], "equal tasks are done again, not remembered"


def test_equal_items_are_all_done():
    with Cluster(Here(2)) as cluster:
        assert list(cluster.map(_nothing, [7, 7, 7])) == [7, 7, 7]


def test_items_are_taken_as_they_are_needed():
    """A window of them is on its way; a plan of 100,000 units is never with the scheduler."""
    taken = 0
    largest = 0

    def items():
        nonlocal taken
        for i in range(200):
            taken += 1
            yield i

    with Cluster(Here(3)) as cluster:
        for done, _ in enumerate(cluster.map(_nothing, items())):
            largest = max(largest, taken - done)
    assert taken == 200
    assert largest <= WINDOW + 1


def test_workers_work_at_the_same_time():
    together = threading.Barrier(3, timeout=120)
    with Cluster(Here(3)) as cluster:
        assert len(list(cluster.map(_threads(lambda item, reporter: together.wait()), range(3)))) == 3


def test_progress_reaches_the_sink():
    got: list[object] = []
    with Cluster(Here(2), sink=got.append) as cluster:
        list(cluster.map(_threads(lambda item, reporter: reporter(item * 10)), range(5)))
    assert sorted(got) == [0, 10, 20, 30, 40]


@pytest.mark.parametrize("number", [1, 3, 40])
def test_items_added_between_others_are_done_as_well(number):
    did: list[int] = []
    with Cluster(Here(2)) as cluster:
        yielded = []
        for item in cluster.map(_threads(lambda item, reporter: did.append(item)), range(number)):
            yielded.append(item)
            if item < 110:
                cluster.add(_do, item + 100)
    expected = [*range(number), *range(100, 100 + number), *range(200, 200 + min(10, number))]
    assert sorted(yielded) == sorted(did) == expected


def test_added_items_that_are_slow_hold_the_others_back():
    """What they wait for is a disk; if the others went on, they would fill it."""
    gate, done = threading.Event(), 0
    begun: list[int] = []

    def work(item: int, reporter) -> None:
        if item >= 1000:
            assert gate.wait(120)

    def items():
        for i in range(100):
            begun.append(i)
            yield i

    with Cluster(Here(2)) as cluster:
        for item in cluster.map(_threads(work), items()):
            done += item < 1000
            if item < 1000 and not gate.is_set():
                cluster.add(_do, item + 1000)
            if done == WINDOW + mapping.MAX_BESIDE and not gate.is_set():
                assert len(begun) <= done + 1
                gate.set()
    assert done == 100


def test_an_error_of_an_added_item_is_raised():
    def work(item: int, reporter) -> None:
        if item == 7:
            raise EncodeError("seven")

    def run() -> None:
        with Cluster(Here(2)) as cluster:
            for item in cluster.map(_threads(work), range(3)):
                if item == 0:
                    cluster.add(_do, 7)

    with pytest.raises(EncodeError, match="seven"):
        run()


# --- errors


def test_an_error_of_ours_stops_the_others():
    started: list[int] = []
    stopped = threading.Event()

    def work(item: int, reporter) -> None:
        started.append(item)
        if item == 0:
            raise EncodeError("document 7 differs")
        try:
            while True:
                reporter(None)
                time.sleep(0.001)
        except DataprepError:
            stopped.set()
            raise

    with pytest.raises(EncodeError, match=r"^document 7 differs$"), Cluster(Here(2)) as cluster:
        list(cluster.map(_threads(work), range(100)))
    assert len(started) < 10
    if len(started) > 1:
        assert stopped.wait(60)


def test_an_error_of_the_sink_is_an_error_of_the_unit():
    def sink(progress: object) -> None:
        raise EncodeError("no")

    with pytest.raises(EncodeError, match=r"^no$"), Cluster(Here(1), sink=sink) as cluster:
        list(cluster.map(_threads(lambda item, reporter: reporter(1)), range(3)))


@pytest.mark.parametrize("processes", [False, True])
def test_an_error_of_ours_arrives_from_a_process_too(processes):
    def work(item: int, reporter: object) -> None:
        from dataprep.errors import SourceError

        raise SourceError(f"item {item} is corrupt")

    with pytest.raises(DataprepError, match="item 5 is corrupt"), Cluster(Here(1, processes=processes)) as cluster:
        list(cluster.map(work, [5]))


@pytest.mark.parametrize("leave", ["break", "raise", "interrupt"])
def test_leaving_early_leaves_no_thread_inside_a_unit(leave):
    inside = 0
    lock = threading.Lock()
    busy = threading.Barrier(3, timeout=120)

    def work(item: int, reporter) -> None:
        nonlocal inside
        if item == 0:
            busy.wait()
            return
        with lock:
            inside += 1
        try:
            if item in (1, 2):
                busy.wait()
            while True:
                time.sleep(0.001)
                reporter(None)
        finally:
            with lock:
                inside -= 1

    def run() -> None:
        with Cluster(Here(3)) as cluster:
            for item in cluster.map(_threads(work), range(50)):
                assert item == 0
                if leave == "raise":
                    raise EncodeError("enough")
                if leave == "interrupt":
                    raise KeyboardInterrupt
                break

    if leave == "break":
        run()
    else:
        with pytest.raises(EncodeError if leave == "raise" else KeyboardInterrupt):
            run()
    assert inside == 0


def test_a_ctrl_c_is_not_lost_while_a_future_ends(monkeypatch):
    """Its end tells the scheduler; left to Python's finalizer, a KeyboardInterrupt there would be dropped."""
    with Cluster(Here(2)) as cluster:
        loop = cluster._client.loop
        add = loop.add_callback

        def interrupted(function: Any, *arguments: Any, **others: Any) -> None:
            here = threading.current_thread() is threading.main_thread()
            if here and getattr(function, "__name__", "") == "_dec_ref":
                raise KeyboardInterrupt
            add(function, *arguments, **others)

        with monkeypatch.context() as patch:
            patch.setattr(loop, "add_callback", interrupted)
            with pytest.raises(KeyboardInterrupt):
                list(cluster.map(_plain(), range(4)))


def test_a_closed_cluster_leaves_no_thread_and_no_process():
    before = {thread.name for thread in threading.enumerate()}
    for processes in (False, True):
        with Cluster(Here(2, processes=processes)) as cluster:
            list(cluster.map(_plain(), range(4)))
    left = {thread.name for thread in threading.enumerate() if thread.is_alive() and not thread.daemon} - before
    assert not left
    assert not _children()


def _plain():
    def work(item: int, reporter: object) -> None:
        pass

    return work


def _children() -> list[str]:
    """But not the resource tracker of multiprocessing, which is one per process and lives as long."""
    found = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
    return [
        pid for pids in found for pid in pids if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


# --- lost workers


def test_an_item_whose_worker_is_killed_is_done_by_another(tmp_path):
    folder = str(tmp_path)

    def work(item: int, reporter: object) -> None:
        from pathlib import Path as AnyPath

        place = AnyPath(folder, f"{item}-{os.getpid()}")
        place.touch()
        if item == 3 and len(list(AnyPath(folder).glob("3-*"))) == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    with Cluster(Here(2, processes=True)) as cluster:
        assert sorted(cluster.map(work, range(8))) == list(range(8))
    assert len(list(tmp_path.glob("3-*"))) == 2, "killed once, done once"


def test_an_item_that_kills_every_worker_is_named(tmp_path, capfd, monkeypatch):
    """Alone, because Dask blames every task that a dead worker held, so that a neighbour may be named instead."""
    folder, attempts = str(tmp_path), 3
    monkeypatch.setattr(mapping, "ATTEMPTS", attempts)

    def work(item: str, reporter: object) -> None:
        from pathlib import Path as AnyPath

        AnyPath(folder, f"{item}-{os.getpid()}").touch()
        if item == "poison":
            os.kill(os.getpid(), signal.SIGKILL)

    message = rf"poison.* died {attempts} times.*run the same command again"
    with pytest.raises(ClusterError, match=message), Cluster(Here(1, processes=True)) as cluster:
        list(cluster.map(work, ["poison"]))
    assert len(list(tmp_path.glob("poison-*"))) == attempts
    assert "Traceback" not in capfd.readouterr().err, "the worker that Dask starts anew is closed once it is there"


@pytest.mark.slow
def test_a_process_that_was_stopped_for_long_goes_on(tmp_path):
    """By Ctrl-Z, say. Dask gives up workers that it has not heard of for five minutes, or what its settings say."""
    script = tmp_path / "sleeper.py"
    script.write_text(
        "import sys, time\n"
        "from dataprep.cluster import Cluster, Here\n"
        "def work(item, report):\n"
        "    time.sleep(0.05)\n"
        "with Cluster(Here(1)) as cluster:\n"
        "    for item in cluster.map(work, range(60)):\n"
        "        print(item, flush=True)\n"
    )
    environment = {**os.environ, "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "500ms"}
    with subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGSTOP)
            time.sleep(8)  # longer than what Dask makes of the setting: ten heartbeats
            process.send_signal(signal.SIGCONT)
            assert len(process.communicate(timeout=100)[0].split()) == 59
        finally:
            process.kill()


class _OneWorker(Hosted):
    """A scheduler here, and one worker, a process that nobody else starts anew."""

    def open(self) -> Any:
        self.client = super().open()
        self.start()
        return self.client

    def start(self) -> None:
        command = [sys.executable, "-m", "distributed.cli.dask_worker", "--no-nanny", "--nthreads=1", "--no-dashboard"]
        environment = {**os.environ, "DASK_CONFIG": str(config_path(self.folder))}
        command += [f"--scheduler-file={scheduler_path(self.folder)}", f"--local-directory={self.folder}"]
        self.worker = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    def trouble(self) -> str | None:
        return None if self.worker.poll() is None else "the worker ended"

    def close(self, error: object) -> None:
        self.worker.kill()
        self.worker.wait()
        super().close(error)


@pytest.mark.parametrize("comes", [True, False])
def test_results_that_are_lost_with_their_worker(tmp_path, comes):
    """The items are done, and the driver has not asked yet for what they returned: with no other worker it ends."""
    place = _OneWorker(tmp_path, "127.0.0.1")
    with Cluster(place) as cluster:
        done = cluster.map(_plain(), range(4))
        first = next(done)
        while any(place.client.processing().values()):
            time.sleep(0.01)
        place.worker.kill()
        place.worker.wait()
        if comes:
            place.start()
            assert sorted([first, *done]) == [0, 1, 2, 3]
        else:
            with pytest.raises(ClusterError, match="the worker ended; run the same command again"):
                list(done)


@pytest.mark.slow
def test_a_scheduler_that_does_not_answer_is_given_up(tmp_path, monkeypatch, said):
    """Its machine still takes what is sent to it, as one that is out of memory or stopped does."""
    monkeypatch.setattr(mapping, "LOOK_SECONDS", 0.3)
    monkeypatch.setattr(mapping, "SILENT_SECONDS", 0.5)
    file = tmp_path / "scheduler.json"
    kinds = ("scheduler", "--host=127.0.0.1", "--port=0"), ("worker", "--nthreads=1", "--no-nanny")
    with contextlib.ExitStack() as stack:
        processes = []
        for kind, *options in kinds:
            command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *options, f"--scheduler-file={file}"]
            process = stack.enter_context(subprocess.Popen([*command, "--no-dashboard"], stderr=subprocess.DEVNULL))
            stack.callback(process.kill)
            processes.append(process)
            while not file.exists():
                assert process.poll() is None
                time.sleep(0.05)

        def run() -> None:
            with Cluster(Joined(Existing(address=str(file))), patience_seconds=2) as cluster:
                done = cluster.map(_plain(), range(100))
                next(done)
                processes[0].send_signal(signal.SIGSTOP)
                list(done)

        with pytest.raises(ClusterError, match=r"no worker has been at work for .* \(no answer\)"):
            run()
    assert "the scheduler does not answer" in said()


def test_a_place_without_workers_is_closed_again():
    """Also where that is found before anything is mapped: no settings of Dask's and no thread stay behind."""
    import dask

    class Gone(Here):
        def trouble(self) -> str:
            return "all gone"

    before = dask.config.config.copy()
    with pytest.raises(ClusterError, match="all gone"), Cluster(Gone(1)):
        pass
    assert dask.config.config == before
    assert "beside" not in " ".join(thread.name for thread in threading.enumerate())


def test_without_workers_it_says_so_and_then_gives_up(tmp_path, monkeypatch, said):
    """A scheduler of our own, with TLS, for workers that never come; nothing of it stays on disk."""
    monkeypatch.setattr(mapping, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(mapping, "SILENT_SECONDS", 0.1)

    def run() -> None:
        with Cluster(Hosted(tmp_path, "127.0.0.1"), patience_seconds=0.5) as cluster:
            (folder,) = tmp_path.iterdir()
            assert folder.stat().st_mode & 0o777 == 0o700
            assert json.loads((folder / "scheduler.json").read_text())["address"].startswith("tls://127.0.0.1:")
            list(cluster.map(_plain(), [1]))

    with pytest.raises(ClusterError, match=r"no worker has been at work for \d+ s \(none at all\)"):
        run()
    assert said().startswith("waiting for a worker: ")
    assert not list(tmp_path.iterdir())


# --- ports


def _listening() -> list[str]:
    """Addresses that this process and its children listen at; hexadecimal, as /proc says them."""
    sockets = set()
    for pid in [str(os.getpid()), *_children()]:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(link)
            except OSError:
                continue
            if target.startswith("socket:["):
                sockets.add(target[8:-1])
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        path = Path("/proc/net", table)
        if not path.exists():
            continue
        for line in path.read_text().splitlines()[1:]:
            fields = line.split()
            listening = fields[3] == ("0A" if table.startswith("tcp") else "07")
            if listening and fields[9] in sockets:
                found.append(fields[1].split(":")[0])
    return found


@pytest.mark.parametrize("processes", [False, True])
def test_no_port_is_open_beyond_loopback(processes):
    loopback = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
    with Cluster(Here(2, processes=processes)) as cluster:
        list(cluster.map(_plain(), [1, 2]))
        addresses = _listening()
    assert set(addresses) <= loopback


# --- at scale


@dataclass(frozen=True)
class Item:
    number: int


@pytest.mark.slow
def test_items_cost_little_more_than_bare_tasks_and_no_memory(monkeypatch):
    """Against a client of Dask alone that keeps as many tasks under way, in turns, each by its fastest turn.

    The ratio is 0.8 to 1.3, as one window is always ahead; 2 MB come for a thousand items, 11 more where futures stay.
    """
    from dataprep.cluster.settings import SETTINGS

    monkeypatch.setitem(SETTINGS, "distributed.admin.low-level-log-length", 100)  # 1,000 are full after 3,000 items
    number, turns = 250, 8
    ours, bare = [], []
    with Cluster(Here(2)) as cluster, Cluster(Here(2)) as other:
        done = cluster.map(_nothing, (Item(i) for i in range(number * turns)))
        before = 0
        for _ in range(turns):
            start = time.monotonic()
            for _ in range(number):
                next(done)
            ours.append(time.monotonic() - start)
            start = time.monotonic()
            _bare(other._client, number)
            bare.append(time.monotonic() - start)
            before = before or _resident_bytes()  # what is paid once is paid by now
        growth = (_resident_bytes() - before) / 1e6
        assert next(done, None) is None
    ratio = min(ours) / min(bare)
    print(json.dumps({"ours": min(ours), "bare": min(bare), "ratio": ratio, "growth_mb": growth}))
    assert growth < 8
    assert ratio < 2.5


def _bare(client: Any, number: int) -> None:
    """As many tasks that do nothing, a window of them under way."""
    from distributed import as_completed

    left = iter(range(number))
    flow = as_completed(
        (client.submit(_nothing, Item(i), None, pure=False) for i in islice(left, WINDOW)), loop=client.loop
    )
    for future in flow:
        future.release()
        for i in islice(left, 1):
            flow.add(client.submit(_nothing, Item(i), None, pure=False))

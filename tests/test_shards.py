"""Long units in pieces: whoever dies where, the dataset, its rejects and its provenance are those of a quiet run."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import json
import lzma
import random
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep import planning, runner, shards, verify
from dataprep.errors import ClusterError, OutputError, SourceError
from dataprep.inspection import excerpts
from dataprep.manifest import Unit, UnitManifest
from dataprep.readers import ranges, streams
from dataprep.stages import tokenize
from dataprep.storage import MARK
from dataprep.supply import Supply
from dataprep.watcher import Progress, Silent

PIECE_BYTES = 20_000
SETTINGS = ("runtime.workers=1", "runtime.max_rejects=1", "runtime.batch_bytes=4096", "runtime.audit_rate=50")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """As with a large file, there are many."""
    monkeypatch.setattr(ranges, "PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(streams, "CHUNK_BYTES", 3000)


def _texts(number: int) -> list[str]:
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(1, 9))) for _ in range(500)]
    texts = [" ".join(draw.choices(words, k=draw.randint(0, 120))) for _ in range(number)]
    texts[number // 2] *= 300  # longer than a piece
    return texts


def _jsonl(number: int, end: str = "\n") -> bytes:
    draw = random.Random(1)
    lines = []
    for text in _texts(number):
        lines.append(json.dumps({"text": text}) + end)
        lines += draw.choices(["", "no json" + end, end, "{}" + end], weights=(90, 4, 3, 3))
    return "".join(lines).encode()


def _members(pack, data: bytes, size: int) -> bytes:
    return b"".join(pack(data[at : at + size]) for at in range(0, len(data), size))


zstd = zstandard.ZstdCompressor().compress
LINES = _jsonl(500)
CORPORA: dict[str, tuple[str, bytes, tuple[str, ...]]] = {
    "gzip": ("c.jsonl.gz", gzip.compress(LINES), ()),
    "gzip members": ("c.jsonl.gz", _members(gzip.compress, LINES, 7000), ()),
    "zstd": ("c.jsonl.zst", zstd(LINES), ()),
    "zstd frames": ("c.jsonl.zst", _members(zstd, LINES, 7000), ()),
    "xz": ("c.jsonl.xz", lzma.compress(LINES), ()),
    "bz2": ("c.jsonl.bz2", bz2.compress(LINES), ()),
    "bz2 streams": ("c.jsonl.bz2", _members(bz2.compress, LINES, 7000), ()),
    "bom, crlf": ("c.jsonl.zst", zstd(b"\xef\xbb\xbf" + _jsonl(500, "\r\n")), ()),
    "plain": ("c.jsonl", LINES, ("runtime.unit_bytes=1GB",)),
    "groups": ("c.jsonl.gz", gzip.compress(LINES), ("reader.group_rows=3",)),
    "text": (
        "c.txt.gz",
        gzip.compress("<|sep|>".join(_texts(500)).encode()),
        ("reader.format=text", "reader.separator=<|sep|>"),
    ),
    "long records": ("c.jsonl.zst", zstd(LINES), ("reader.max_document_bytes=600",)),
    "empty tail": ("c.jsonl.zst", zstd(b'{"text": "%s"}\n' % (b"word " * 4000) * 3), ()),
}
LATER = [name for name in CORPORA if name not in ("gzip members", "bom, crlf", "groups")]


class Case:
    """A corpus, and what an undisturbed run makes of it, in one piece."""

    _expected: ClassVar[dict[str, tuple[Any, ...]]] = {}

    def __init__(self, folder: Path, name: str) -> None:
        file, content, self.settings = CORPORA[name]
        self.path, self.output = folder / file, folder / "out"
        self.path.write_bytes(content)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ranges, "PIECE_BYTES", 1 << 40)
            if name not in self._expected:
                self._expected[name] = self.made(runner.execute(self.request(output=folder / "quiet"), Silent()))
        self.expected = self._expected[name]

    def request(self, *more: str, limit: int | None = None, output: Path | None = None) -> planning.Request:
        return planning.resolve(
            [str(self.path)], "sample", output or self.output, limit=limit, settings=[*SETTINGS, *self.settings, *more]
        )

    def run(self, *more: str, limit: int | None = None, watcher: Any = None) -> runner.Result:
        return runner.execute(self.request(*more, limit=limit), watcher or Silent())

    def begin(self, *more: str) -> tuple[tokenize.Job, Unit]:
        """The job of a run that has begun, and its unit."""
        request = self.request(*more)
        request.layout.shards.mkdir(parents=True, exist_ok=True)
        job = tokenize.Job(request.layout, request.digest, request.runtime)
        (unit,) = Supply(request, job, print, lambda: None).known()
        return job, unit

    def made(self, result: runner.Result) -> tuple[Any, ...]:
        """All that must not depend on pieces."""
        manifest = result.manifest
        files = [Path(f"{result.prefix}.{suffix}").read_bytes() for suffix in ("bin", "idx")]
        lines = [line for path in Path(result.rejects).iterdir() for line in path.read_text().split("\n")[:-1]]
        rejects = sorted((json.loads(line) for line in lines), key=lambda reject: reject["record"])
        digests = [hashlib.sha256(file).hexdigest() for file in files]
        return digests, rejects, manifest.provenance, manifest.counts, manifest.lengths

    def pieces(self) -> list[Path]:
        return sorted(self.output.glob("work/*/shards/*.p*.json"))


@pytest.fixture
def case(tmp_path, request) -> Case:
    return Case(tmp_path, getattr(request, "param", "zstd"))


class Killer(Silent):
    """Stops a unit, or a run, at the k-th report of progress."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.source_bytes = self.documents = 0
        self.earlier = Progress(earlier=True)

    def __call__(self, progress: Progress) -> None:
        self.source_bytes += progress.source_bytes
        self.documents += progress.documents
        self.earlier += progress if progress.earlier else Progress()
        self.left -= 1
        if self.left == 0:
            raise OutputError("killed")


def _deaths(case: Case, steps: list[int], *more: str) -> int:
    """Work the unit until it dies after so many batches, again and again; returns how often it did, before its end."""
    job, unit = case.begin(*more)
    for number, step in enumerate(steps):
        before = case.pieces()
        with contextlib.suppress(OutputError):
            tokenize.run(job, unit, Killer(step))
            return number
        assert case.pieces()[: len(before)] == before
        for path in case.pieces():
            assert shards.is_whole(job.layout, UnitManifest.model_validate_json(path.read_bytes()))
    return len(steps)


def _check_everywhere(case: Case) -> None:
    assert _deaths(case, [20] * 50) > 1
    assert case.made(case.run()) == case.expected
    assert not list(case.output.glob("work/*/shards/*"))


@pytest.mark.parametrize("case", [name for name in CORPORA if name not in LATER], indirect=True)
def test_dead_in_every_piece(case):
    _check_everywhere(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [name for name in LATER if name != "empty tail"], indirect=True)
def test_dead_in_every_piece_of_other_containers(case):
    _check_everywhere(case)


@pytest.mark.parametrize("case", ["empty tail"], indirect=True)
def test_a_piece_that_ends_where_the_file_does(case):
    job, unit = case.begin()
    tokenize.run(job, unit, lambda progress: None)
    done = shards.load_done(job.layout, unit.key, job.digest)
    assert done is not None
    assert [shard.counts.num_documents for shard in done] == [1, 1, 1, 0]
    assert case.made(case.run()) == case.expected


@pytest.mark.slow
@settings(max_examples=8)
@given(st.data())
def test_dead_anywhere(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("anywhere")
    case = Case(folder, data.draw(st.sampled_from(sorted(CORPORA))))
    steps = data.draw(st.lists(st.integers(1, 60), max_size=4))
    sizes = data.draw(st.sampled_from([1, 900, 20_000, 100_000]))
    more = f"runtime.batch_bytes={data.draw(st.sampled_from([1024, 5000, 1 << 20]))}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "PIECE_BYTES", sizes)
        _deaths(case, steps, more)
        assert case.made(case.run()) == case.expected
    shutil.rmtree(folder)


def test_in_a_hostile_folder(workspace):
    case = Case(workspace, "zstd frames")
    with pytest.raises(OutputError, match="killed"):
        case.run(watcher=Killer(40))
    assert len(case.pieces()) > 3
    assert case.made(case.run()) == case.expected


def test_source_and_place_of_documents_in_later_pieces(case):
    _deaths(case, [40, 40])
    result = case.run()
    assert len(result.manifest.provenance) == 1
    report = verify(result.prefix, level="source")
    assert report.ok
    assert not report.warnings
    (found,) = excerpts.where(result.prefix, document=result.manifest.counts.num_documents - 1)["documents"]
    assert found["source"]["file"] == str(case.path)


def _die_with_pieces(case: Case, *more: str) -> list[Path]:
    _deaths(case, [40], *more)
    assert len(case.pieces()) > 4
    return case.pieces()


def _done_again(case: Case, pieces: list[Path]) -> int:
    """How many of these pieces are written again where the unit is gone on with, to its end."""
    before = {path: path.stat().st_mtime_ns for path in pieces}
    tokenize.run(*case.begin(), lambda progress: None)
    return sum(path.stat().st_mtime_ns != before[path] for path in pieces)


@pytest.mark.parametrize("suffix", [".bin", ".idx", ".rejects.jsonl", ".json"])
@pytest.mark.parametrize(
    "damage", ["flipped", *(pytest.param(damage, marks=pytest.mark.slow) for damage in ("gone", "hollow"))]
)
def test_what_is_behind_a_damaged_piece_is_done_again(case, suffix, damage):
    """As a power failure leaves it: shards are not synced."""
    pieces = _die_with_pieces(case)
    number = next(i for i, path in enumerate(pieces) if i > 2 and json.loads(path.read_text())["counts"]["rejects"])
    path = pieces[number].with_suffix(suffix)
    data = path.read_bytes()
    changed = {"gone": None, "hollow": bytes(len(data)), "flipped": bytes([data[0] ^ 1]) + data[1:]}[damage]
    path.unlink() if changed is None else path.write_bytes(changed)
    left = [piece for piece in pieces if piece.exists()]
    assert _done_again(case, left) == len(left) - number
    assert case.made(case.run()) == case.expected


def test_nothing_is_done_again_before_the_piece_that_was_written(case):
    pieces = _die_with_pieces(case)
    assert _done_again(case, pieces) == 0
    job, unit = case.begin()
    done = shards.load_done(job.layout, unit.key, job.digest)
    assert done is not None
    assert [shard.unit for shard in done] == [f"{unit.key}.p{i:04d}" for i in range(len(done) - 1)] + [unit.key]
    assert case.made(case.run()) == case.expected


def test_a_damaged_piece_of_a_finished_unit(case):
    pieces = _die_with_pieces(case)
    _done_again(case, pieces)
    pieces[3].with_suffix(".bin").write_bytes(b"")
    assert case.made(case.run()) == case.expected


def test_a_power_failure_behind_a_merge_of_pieces(case, monkeypatch):
    """The shards are gone, the merged file is hollow in the middle: the unit is done again from its first byte."""
    monkeypatch.setattr("dataprep.stages.merge.FLUSH_BYTES", 512)
    with monkeypatch.context() as patch:
        patch.setattr(runner, "prove", _stop)
        for damage in (False, True):
            with pytest.raises(OutputError, match="stopped"):
                case.run()
            if damage:
                (merged,) = case.output.glob("work/*/merged-*/dataset/*.bin")
                with merged.open("r+b") as file:
                    file.seek(merged.stat().st_size // 2)
                    file.write(bytes(1000))
    assert case.made(case.run()) == case.expected
    texts = [path.read_text() for path in sorted(case.output.glob("work/*/events-*.jsonl"))]
    events = [json.loads(line) for text in texts for line in text.splitlines()]
    assert [event["done"] for event in events if event["event"] == "resume"] == [0, 1, 0]


def _stop(*_: object, **__: object) -> None:
    raise OutputError("stopped")


def test_another_engine_takes_pieces_of_the_reference_only(case):
    _die_with_pieces(case)
    _deaths(case, [30], "runtime.engine=reference")
    engines = [json.loads(path.read_text())["engine"].split()[0] for path in case.pieces()]
    assert engines[0] != engines[-1]
    result = case.run("runtime.engine=reference")
    assert case.made(result)[:3] == case.expected[:3]
    assert result.manifest.counts.num_audited == 0


def test_skipped_bytes_count_as_progress(case):
    names = [path.name for path in _die_with_pieces(case)]
    watcher = Killer(-1)
    job, unit = case.begin()
    tokenize.run(job, unit, watcher)
    assert watcher.source_bytes == case.path.stat().st_size
    assert 0 < watcher.earlier.source_bytes < watcher.source_bytes
    done = shards.load_done(job.layout, unit.key, job.digest)
    assert done is not None
    assert watcher.documents == sum(shard.counts.num_documents for shard in done)
    pieces = [shard for shard in done if f"{shard.unit}.json" in names]
    assert watcher.earlier.documents == sum(shard.counts.num_documents for shard in pieces)


def test_a_file_that_changed_under_its_pieces_begins_anew(case):
    _die_with_pieces(case)
    case.path.write_bytes(zstd(b'{"text": "new"}\n' * 5))
    assert case.run().manifest.counts.num_documents == 5


def test_a_file_that_changes_between_two_pieces_is_told(case):
    job, unit = case.begin()
    case.path.write_bytes(case.path.read_bytes() + zstd(b'{"text": "more"}\n'))
    with pytest.raises(SourceError, match="changed"):
        tokenize.run(job, unit, lambda progress: None)
    assert not case.pieces()


def test_no_pieces_with_a_limit(case):
    with pytest.raises(OutputError, match="killed"):
        case.run(limit=450, watcher=Killer(40))
    assert not case.pieces()


def test_forgetting_a_unit_forgets_its_pieces(case):
    pieces = _die_with_pieces(case)
    pieces[2].unlink()
    job, unit = case.begin()
    job.layout.forget(unit.key)
    assert not case.pieces()


def test_manifests_from_before_there_were_pieces():
    value = {
        "unit": "u",
        "recipe_digest": "d",
        "dtype": "uint16",
        "counts": {},
        "slices": [],
        "files": {"bin_bytes": 0, "bin_checksum": "", "idx_bytes": 0, "idx_checksum": ""},
        "engine": "e",
        "wall_seconds": 0.0,
        "cpu_seconds": 0.0,
    }
    manifest = UnitManifest.model_validate_json(json.dumps(value))
    assert (manifest.pieces, manifest.begin, manifest.end) == (0, None, None)


# --- attempts


class Killed(BaseException):
    """A death without a word."""


def _attempt(job: tokenize.Job, unit: Any, num_batches: int) -> None:
    """An attempt whose worker is killed after some batches, and so runs no `__exit__`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards.Attempt, "__exit__", lambda *_: None)

        def report(progress: Progress) -> None:
            nonlocal num_batches
            num_batches -= 1
            if num_batches == 0:
                raise Killed

        with pytest.raises(Killed):
            tokenize.run(job, unit, report)


def test_a_unit_that_always_kills_its_worker_is_given_up(case):
    job, unit = case.begin()
    for _ in range(shards.ATTEMPTS):
        _attempt(job, unit, 1)
    with pytest.raises(ClusterError, match=rf"its worker died {shards.ATTEMPTS} times without a word") as error:
        tokenize.run(job, unit, lambda progress: None)
    assert f"{case.path}, bytes 0 to {case.path.stat().st_size}: " in str(error.value)
    assert not job.layout.attempts(unit.key).exists()


def test_a_unit_that_gets_on_is_not_given_up(case):
    job, unit = case.begin()
    few = shards.ATTEMPTS - 1
    for number in range(3 * few):
        _attempt(job, unit, 12 if number % few == few - 1 else 1)
    tokenize.run(job, unit, lambda progress: None)
    assert shards.load_done(job.layout, unit.key, job.digest)
    assert not job.layout.attempts(unit.key).exists()


def test_an_error_is_no_death(case):
    job, unit = case.begin()

    def fail(progress: Progress) -> None:
        raise OutputError("full")

    for _ in range(2 * shards.ATTEMPTS):
        with pytest.raises(OutputError, match="full"):
            tokenize.run(job, unit, fail)
    assert [path.name for path in job.layout.shards.iterdir()] == []


def test_two_that_do_a_unit_at_once(case):
    """One is cut off in the middle, the other goes on from there, the first wakes up: the same files."""
    job, unit = case.begin()
    found = {}

    def other(progress: Progress) -> None:
        if progress.documents and len(case.pieces()) == 4 and not found:
            found["before"] = True
            tokenize.run(job, unit, lambda progress: None)
            found.update(_contents(job.layout.shards))

    tokenize.run(job, unit, other)
    assert found.pop("before")
    assert _contents(job.layout.shards) == found


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.suffix != ".json" and MARK not in path.name
    }

"""Promise 1: same recipe, same bytes, whatever the runtime; for every kind of source file."""

from __future__ import annotations

import hashlib
import json
import random
import tempfile
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep import planning, runner

MIB = 1 << 20
UNIT_BYTES, BATCH_BYTES, ENGINES = (50_000, MIB, 256 * MIB), (64 << 10, 32 * MIB), ("gigatoken", "reference")

BAD_LINES = [
    b"not json",
    b"[1, 2]",
    b'{"other": 1}',
    b'{"text": null}',
    b'{"text": 7}',
    b'{"text": "\xff"}',
    b'{"text": "\\ud800"}',
]


def _texts(num_bytes: int, seed: int) -> list[str]:
    """Pseudo-text: words over a small alphabet, runs of spaces, other scripts, empty documents, one long one."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(1, 9))) for _ in range(2000)]
    words += [
        "\u00e4\u00f6\u00fc",
        "\u65e5\u672c\u8a9e",
        "  ",
        "\n\n",
        "<|endoftext|>",
        "\U0001f44d\U0001f3fd",
        "e\u0301",
        "1234567",
    ]
    texts, size = [], 0
    while size < num_bytes:
        text = " ".join(draw.choices(words, k=draw.choice([0, 1, 5, 50, 300, 300])))
        texts.append(text)
        size += len(text.encode()) + 12
    texts[len(texts) // 2] = " ".join(draw.choices(words, k=40_000))
    return texts


def _lines(texts: list[str], seed: int, bad_share: float) -> bytes:
    draw = random.Random(seed)
    lines = []
    for text in texts:
        lines.append(json.dumps({"text": text}, ensure_ascii=False).encode())
        if draw.random() < bad_share:
            lines.append(draw.choice(BAD_LINES))
    return b"".join(line + b"\n" for line in lines)


def _make(folder: Path, kind: str) -> list[str]:
    """Source files of one kind; returns the arguments that name them."""
    if kind == "jsonl":
        path = folder / "corpus.jsonl"
        path.write_bytes(_lines(_texts(2 * MIB, 1), 1, 0.05))
        return [str(path)]
    if kind == "zstd":
        packer = zstandard.ZstdCompressor(level=1)
        for i in range(3):  # several frames each
            parts = [packer.compress(_lines(_texts(MIB // 4, 10 * i + j), j, 0.05)) for j in range(3)]
            (folder / f"part{i}.jsonl.zst").write_bytes(b"".join(parts))
        return [str(folder / "*.zst")]
    values = [text.encode() for text in _texts(2 * MIB, 2)]
    draw = random.Random(3)
    for i in range(0, len(values), 23):
        values[i] = draw.choice([None, b"caf\xe9", b"\xed\xa0\x80"])
    column = pa.array(values, pa.binary())
    bits = column.buffers()
    column = pa.StringArray.from_buffers(len(column), bits[1], bits[2], bits[0])  # as string, not validated
    pq.write_table(pa.table({"text": column}), folder / "corpus.parquet", row_group_size=len(values) // 12)
    return [str(folder / "corpus.parquet")]


def _run(corpus: list[str], output: Path, **runtime: object) -> tuple[str, str]:
    settings = [f"runtime.{key}={json.dumps(value)}" for key, value in {"max_rejects": 1, **runtime}.items()]
    return _digests(runner.run(corpus, "sample", output=output, settings=settings))


def _digests(result: runner.Result) -> tuple[str, str]:
    assert result.fresh, "nothing was made: the test proves nothing"
    return tuple(
        hashlib.sha256(Path(f"{result.prefix}.{suffix}").read_bytes()).hexdigest() for suffix in ("bin", "idx")
    )


@pytest.fixture(scope="module", params=["jsonl", "zstd", "parquet"])
def reference(request, tmp_path_factory) -> tuple[list[str], tuple[str, str], dict]:
    """A corpus; what one worker, one unit, the reference engine make of it; and what the manifest says."""
    folder = tmp_path_factory.mktemp(request.param)
    corpus = _make(folder, request.param)
    settings = [
        "runtime.unit_bytes=256MB",
        "runtime.batch_bytes=32MiB",
        "runtime.engine=reference",
        "runtime.max_rejects=1",
    ]
    result = runner.run(corpus, "sample", output=folder / "reference", workers=1, settings=settings)
    counts = result.manifest.counts.to_json()
    assert counts["num_documents"] > 1000
    assert counts["num_empty"] > 10
    assert sum(counts["rejects"].values()) > 20
    assert counts["specials"]
    return corpus, _digests(result), counts


RUNTIMES = [
    pytest.param(
        {"workers": w, "unit_bytes": u, "batch_bytes": b, "engine": e},
        id=f"{w}w-{u}u-{b}b-{e}",
        marks=pytest.mark.slow if slow else (),
    )
    for w, u, b, e, slow in [
        (1, 1 * MIB, 64 << 10, "gigatoken", True),
        (2, 100_000, 8 * MIB, "gigatoken", True),
        (4, 30_000, 64 << 10, "gigatoken", False),
        (4, 256 * MIB, 32 * MIB, "gigatoken", True),
        (2, 1 * MIB, 1 << 10, "reference", True),
    ]
]


@pytest.mark.parametrize("reference", ["jsonl"], indirect=True)
def test_processes_do_not_change_the_bytes(reference, tmp_path):
    """What the slow tests try with the other corpora too."""
    corpus, expected, _ = reference
    assert _run(corpus, tmp_path / "out", workers=2, unit_bytes=200_000, engine="auto", processes=True) == expected


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_runtime_does_not_change_the_bytes(reference, tmp_path, runtime):
    corpus, expected, counts = reference
    assert _run(corpus, tmp_path / "out", **runtime) == expected
    found = runner.run(corpus, "sample", output=tmp_path / "out").manifest.counts.to_json()
    assert found | {"num_audited": 0} == counts | {"num_audited": 0}


# Worker processes take a second each to start: a mixture with them per engine, all six with threads.
MIXTURES = [
    *((engine, False, mixture) for engine in ENGINES for mixture in product(UNIT_BYTES, BATCH_BYTES)),
    ("gigatoken", True, (UNIT_BYTES[0], BATCH_BYTES[0])),
    ("reference", True, (UNIT_BYTES[2], BATCH_BYTES[1])),
]


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "processes", "sizes"), MIXTURES)
def test_every_mixture_of_runtimes(reference, tmp_path, engine, processes, sizes):
    corpus, expected, _ = reference
    unit_bytes, batch_bytes = sizes
    runtime = {"unit_bytes": unit_bytes, "batch_bytes": batch_bytes, "engine": engine, "processes": processes}
    assert _run(corpus, tmp_path / "out", workers=4, **runtime) == expected


def test_units_are_as_many_as_asked_for(tmp_path):
    """Guards the test above: had the setting no effect, equal bytes would prove nothing."""
    corpus = _make(tmp_path, "jsonl")
    numbers = [
        planning.plan(corpus, "sample", tmp_path, settings=[f"runtime.unit_bytes={n}"])["num_units"]
        for n in ("30000", "1MB", "256MB")
    ]
    assert numbers[0] > 60
    assert 2 <= numbers[1] <= 4
    assert numbers[2] == 1


def test_the_limit_takes_the_same_documents(tmp_path):
    corpus = _make(tmp_path, "jsonl")
    made = [
        _digests(runner.run(corpus, "sample", tmp_path / str(i), limit=333, settings=["runtime.max_rejects=1", *extra]))
        for i, extra in enumerate(
            [
                ["runtime.unit_bytes=256MB", "runtime.workers=1"],
                ["runtime.unit_bytes=20000", "runtime.batch_bytes=1024", "runtime.workers=4"],
                ["runtime.unit_bytes=1MB", "runtime.engine=reference", "runtime.workers=2"],
            ]
        )
    ]
    assert made[0] == made[1] == made[2]


@pytest.mark.slow
def test_rejects_are_numbered_alike(tmp_path):
    corpus = _make(tmp_path, "jsonl")
    found = []
    for unit_bytes, batch_bytes in ((256 * MIB, 32 * MIB), (50_000, 1024)):
        output = tmp_path / str(unit_bytes)
        _run(corpus, output, unit_bytes=unit_bytes, batch_bytes=batch_bytes, workers=2)
        lines = [
            line for path in sorted(output.glob("work/*/rejects/*.jsonl")) for line in path.read_text().splitlines()
        ]
        found.append([json.loads(line) for line in lines])
    assert len(found[0]) > 20
    assert found[0] == found[1]


RECORDS = st.one_of(
    st.text(max_size=30)
    .filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text))
    .map(lambda text: json.dumps({"text": text}, ensure_ascii=False).encode()),
    st.sampled_from(
        [*BAD_LINES, b"", b"  ", b'{"text": ""}', b'{"text": "<|endoftext|>"}', b'{"text": "a\xe2\x80\xa8b"}']
    ),
)


@pytest.mark.slow
@given(
    records=st.lists(RECORDS, min_size=1, max_size=25),
    ending=st.sampled_from([b"\n", b"\r\n"]),
    closed=st.booleans(),
    unit_bytes=st.integers(1, 300),
    engine=st.sampled_from(["gigatoken", "reference"]),
    workers=st.sampled_from([1, 2, 4]),
)
@settings(max_examples=12)
def test_any_mix_of_lines_in_any_units(records, ending, closed, unit_bytes, engine, workers):
    content = b'{"text": "one document at least"}' + ending + ending.join(records) + (ending if closed else b"")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "c.jsonl").write_bytes(content)
        corpus = [str(folder / "c.jsonl")]
        whole = _run(corpus, folder / "whole", workers=1, unit_bytes=MIB, engine="gigatoken")
        assert (
            _run(corpus, folder / "cut", workers=workers, unit_bytes=unit_bytes, engine=engine, batch_bytes=1024)
            == whole
        )

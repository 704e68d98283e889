"""The index caches that dataprep builds, held to those of Megatron: every file, byte for byte, and found by it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dataprep.caching import CacheSpec, cache
from dataprep.caching.identifiers import derive_identifiers
from dataprep.indexed import CODES, Header, bin_path, idx_path, write_index
from dataprep.mixing import BlendOrder
from dataprep.samples import PARTS
from dataprep.storage import AtomicFile

pytestmark = pytest.mark.megatron

IDENTIFIERS = {"class": "sample", "tokenizer_path": ["a/path"], "vocab_extra_ids": "0"}


def _write(prefix: Path, lengths: np.ndarray, per_document: int = 1) -> None:
    ends = np.append(np.arange(0, len(lengths), per_document), len(lengths))
    bin_path(prefix).write_bytes(np.arange(lengths.sum()).astype(np.uint16).tobytes())
    with AtomicFile(idx_path(prefix), durable=False) as file:
        write_index(file, Header(CODES["uint16"], len(lengths), len(ends)), lambda: [lengths], [ends])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Pairs a to e of other sizes; `zero` has sequences without tokens, `cut` documents of three sequences."""
    folder, state = tmp_path_factory.mktemp("pairs"), np.random.RandomState(3)
    for number, name in enumerate("abcde"):
        _write(folder / name, state.randint(1, 40 + 30 * number, 100 + 37 * number).astype(np.int32))
    _write(folder / "many", state.randint(1, 9, 1200).astype(np.int32))
    zero = state.randint(0, 30, 400).astype(np.int32)
    zero[::3] = 0
    _write(folder / "zero", zero)
    _write(folder / "cut", state.randint(1, 20, 300).astype(np.int32), per_document=3)
    return folder


def theirs(megatron, training: CacheSpec, path_to_cache: str | None) -> list:
    """What Megatron builds, or loads, for the same."""
    blend = (list(training.prefixes), None if training.weights is None else list(training.weights))
    data: dict = {"blend": blend, "split": training.split}
    if training.split is None:
        data = {"blend_per_split": [blend if part in training.num_samples else None for part in PARTS]}
    tokenizer = SimpleNamespace(vocab_size=8192, eod=0, pad=-1, unique_identifiers=IDENTIFIERS)
    config = megatron.GPTDatasetConfig(
        random_seed=training.seed,
        sequence_length=training.seq_length,
        tokenizer=tokenizer,
        path_to_cache=path_to_cache,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        **data,
    )
    sizes = [training.num_samples.get(part, 0) for part in PARTS]
    return megatron.BlendedMegatronDatasetBuilder(megatron.GPTDataset, sizes, lambda: True, config).build()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-dataprep.json")}


A = (("a",), None)
TWO = (("a", "b"), (0.3, 0.7))
FIVE = (tuple("abcde"), (0.123, 3.0, 1 / 3, 2.718281828, 0.05))
GRID = [
    *((A, seq, 1234, "90,5,5", (100, 3, 3)) for seq in (1, 2, 7, 64, 65, 300)),
    *(((("many",), None), 64, seed, "969, 30, 1", (100, 3, 0)) for seed in (0, 1, 42, 2**32 - 1)),
    *((A, 32, 1234, split, (70, 2, 2)) for split in ("1,1,1", "8,1,1", ".5,.25,.25", "98,1,1", "50, 25,25")),
    *((A, 32, 1234, split, (70, 2, 0)) for split in ("90,10", "90,10,0", "0.9,0.1")),
    (A, 32, 1234, "1", (70, 0, 0)),
    (A, 32, 1234, "0,1,1", (0, 5, 5)),
    *((A, 50, 1234, "100,0,0", (count, 0, 0)) for count in (0, 1, 39, 40, 41, 44, 60, 75, 79, 80, 81, 100, 200, 1000)),
    *((((name,), None), seq, 7, "80,10,10", (150, 9, 4)) for name in ("zero", "cut") for seq in (5, 33)),
    *((((name,), None), 16, 7, "1", (count, 0, 0)) for name in ("zero", "cut") for count in (200, 333, 500)),
    (A, 32, 1, "90,5,5", (None, None, None)),
    (A, 5000, 1, "1", (3, 0, 0)),
    (A, 5000, 1, "1", (0, 0, 0)),
    *((TWO, 32, 1234, "90,5,5", counts) for counts in ((10, 1, 1), (100, 10, 0), (1001, 3, 3), (5000, 0, 7))),
    *((FIVE, 32, 1234, "90,5,5", counts) for counts in ((10, 1, 1), (999, 10, 10), (12345, 50, 50))),
    *(((("a", "b", "cut"), w), 20, 5, "1", (777, 0, 0)) for w in ((1.0, 1.0, 1.0), (1.0, 2.0, 7.0), (0.1, 0.2, 0.7))),
    *(((("a", "b", "c", "d"), (1.0, 1e-3, 30.0, 0.5)), 20, seed, "9,1", (2000, 20, 0)) for seed in (1, 2)),
    ((("a",), (2.0,)), 32, 1234, "90,5,5", (100, 3, 3)),
    *(((("a", "b", "c"), None), 32, 1234, "90,5,5", counts) for counts in ((None,) * 3, (50, 2, 2), (9999, 99, 99))),
    ((("a", "a"), (1.0, 2.0)), 32, 1234, "1", (300, 0, 0)),
]


def training_of(folder: Path, setting: tuple, cache_path: Path | None, only: str | None = None) -> CacheSpec:
    (names, weights), seq_length, seed, split, counts = setting
    samples = dict(zip(PARTS, counts, strict=True))
    return CacheSpec(
        prefixes=tuple(str(folder / name) for name in names),
        weights=weights,
        seq_length=seq_length,
        num_samples={only: samples["train"]} if only else samples,
        tokenizer=IDENTIFIERS,
        seed=seed,
        split=None if only else split,
        data_cache_path=None if cache_path is None else str(cache_path),
    )


def check(megatron, folder: Path, tmp_path: Path, setting: tuple, only: str | None = None) -> None:
    ours = training_of(folder, setting, tmp_path / "ours", only)
    assert {result.state for result in cache(ours)} == {"built"}
    (tmp_path / "theirs").mkdir()
    theirs(megatron, ours, str(tmp_path / "theirs"))
    expected, found = files(tmp_path / "theirs"), files(tmp_path / "ours")
    assert sorted(found) == sorted(expected)
    assert found == expected
    before = {path: path.stat() for path in (tmp_path / "ours").iterdir()}
    theirs(megatron, ours, str(tmp_path / "ours"))
    after = {path: path.stat() for path in (tmp_path / "ours").iterdir()}
    assert {path: (s.st_mtime_ns, s.st_ino) for path, s in before.items()} == {
        path: (s.st_mtime_ns, s.st_ino) for path, s in after.items()
    }, "Megatron found all that it looked for"
    assert {result.state for result in cache(ours)} == {"kept"}


def test_the_grid_is_as_large_as_it_should_be():
    assert len(GRID) >= 50


@pytest.mark.parametrize("setting", GRID, ids=[f"{number}" for number in range(len(GRID))])
def test_files_are_those_of_megatron(megatron, process_group, folder, tmp_path, setting):
    check(megatron, folder, tmp_path, setting)


@pytest.mark.parametrize("only", PARTS)
@pytest.mark.parametrize("blend", [A, TWO, (("a",), (2.0,)), (("a", "b", "c"), None)])
def test_files_of_prefixes_of_one_part_alone(megatron, process_group, folder, tmp_path, blend, only):
    check(megatron, folder, tmp_path, (blend, 32, 1234, None, (150, 0, 0)), only)


def test_without_a_cache_path_they_lie_where_megatron_looks(megatron, process_group, tmp_path):
    state = np.random.RandomState(3)
    for name in "ab":
        _write(tmp_path / name, state.randint(1, 40, 300).astype(np.int32))
    ours = training_of(tmp_path, (TWO, 32, 1234, "90,5,5", (100, 3, 3)), None)
    results = cache(ours)
    assert len(results) == 6, "a blend has no cache then"
    own = [tmp_path / name / "cache" / "GPTDataset_indices" for name in "ab"]
    found = [files(path) for path in own]
    train, valid, test = theirs(megatron, ours, None)
    assert [files(path) for path in own] == found
    assert [len(split) for split in (train, valid, test)] == [100, 4, 4]
    for path in own:
        for file in path.iterdir():
            file.unlink()
    theirs(megatron, ours, None)
    assert [files(path) for path in own] == found


def test_a_cache_of_megatron_is_proven_and_kept(megatron, process_group, folder, tmp_path):
    ours = training_of(folder, (FIVE, 32, 1234, "90,5,5", (999, 10, 10)), tmp_path)
    theirs(megatron, ours, str(tmp_path))
    before = files(tmp_path)
    assert {result.state for result in cache(ours)} == {"kept"}
    assert files(tmp_path) == before
    assert len(list(tmp_path.glob("*-dataprep.json"))) == 18


# As megatron/training/arguments.py of core_v0.16.1 leaves them.
DEFAULTS = {
    "vocab_file": None,
    "merge_file": None,
    "vocab_size": None,
    "tokenizer_metadata": None,
    "tokenizer_special_tokens": None,
    "tokenizer_sentencepiece_legacy": False,
    "tokenizer_hf_use_fast": False,
    "tokenizer_hf_include_special_tokens": False,
    "trust_remote_code": False,
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bpe", "HuggingFaceTokenizer"),
        ("spm", "Llama2Tokenizer"),
        ("spm", "GPTSentencePieceTokenizer"),
        ("pair", "GPT2BPETokenizer"),
    ],
)
def test_identifiers_are_those_of_its_tokenizers(request, megatron, name, kind, monkeypatch):
    pytest.importorskip("transformers")
    from megatron.core.tokenizers.text import text_tokenizer
    from megatron.core.tokenizers.text.utils.build_tokenizer import build_tokenizer

    path = request.getfixturevalue(name).path
    arguments, files = {**DEFAULTS, "tokenizer_type": kind}, None
    if kind == "GPT2BPETokenizer":
        files = (str(path / "vocab.json"), str(path / "merges.txt"))
        arguments |= {"vocab_file": files[0], "merge_file": files[1]}
        # it asks the hub for GPT-2's settings, whatever its files are
        monkeypatch.setattr(text_tokenizer.MegatronTokenizerText, "_restore_model", lambda *_, **__: None)
    model = str(path / "tokenizer.model") if name == "spm" else str(path)
    found = build_tokenizer(SimpleNamespace(**arguments, tokenizer_model=model)).unique_identifiers
    assert list(derive_identifiers("core-0.16", kind, model, files).items()) == list(found.items())


@pytest.mark.parametrize("seed", range(30))
def test_draws_of_any_weights_are_those_of_its_helpers(megatron, seed):
    from megatron.core.datasets import helpers
    from megatron.core.datasets.utils import normalize

    state = np.random.RandomState(seed)
    weights = (state.rand(state.randint(1, 60)) ** state.randint(1, 12) + 1e-12).tolist()
    size = int(state.randint(1, 300_000))
    prefixes, samples = np.zeros(size, np.int16), np.zeros(size, np.int64)
    helpers.build_blending_indices(prefixes, samples, normalize(normalize(weights)), len(weights), size, False)
    order = BlendOrder(weights, size)
    assert np.array_equal(order.dataset_index, prefixes)
    assert np.array_equal(order.dataset_sample_index, samples)

    lengths = [1 + int(weight * 3000) for weight in weights]
    prefixes, samples = np.zeros(sum(lengths), np.int16), np.zeros(sum(lengths), np.int64)
    helpers.build_exhaustive_blending_indices(prefixes, samples, lengths, len(lengths))
    order = BlendOrder.of_lengths(lengths, None)
    assert np.array_equal(order.dataset_index, prefixes)
    assert np.array_equal(order.dataset_sample_index, samples)

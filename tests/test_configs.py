"""What stands beside a ``tokenizer.json`` is followed, or `preprocess` says why not.

The expected answers are those of Megatron-LM's wrapper (d98e8a64) with transformers 4.57.6 and 5.23, run on the same
changes of GPT-2's and Llama 2's files: refused is what gave other ids on one of them, taken what gave the same on both.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dataprep.catalog import find_tokenizer
from dataprep.compat.configs import check
from dataprep.compat.flags import Asked, parse
from dataprep.compat.preprocess import preprocess
from dataprep.definitions import identify
from dataprep.errors import SpecError
from dataprep.indexed import IndexedDataset
from dataprep.watcher import Silent

SAMPLE = Path(__file__).parent.parent / "tokenizers" / "sample" / "tokenizer.json"
EOD = "<|endoftext|>"
FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
GPT2 = {"tokenizer_class": "GPT2Tokenizer"}
LLAMA = {"tokenizer_class": "LlamaTokenizer"}
PREPEND = {"type": "Prepend", "prepend": "\u2581"}
NONE = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": True, "special": False}


def tell(tokenizer: Path, *more: str) -> None:
    """What `preprocess` says of a tokenizer before it begins."""
    check(asked(tokenizer, *more), identify(*find_tokenizer(str(tokenizer), {"type": "HuggingFaceTokenizer"})))


def asked(tokenizer: Path, *more: str) -> Asked:
    chosen = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(tokenizer)]
    return parse(["--input", "in.jsonl", "--output-prefix", "my", *chosen, "--workers", "1", *more])


@pytest.fixture
def tokenizer(tmp_path):
    """Makes the sample tokenizer with other files beside it, and an added token."""

    def make(config=None, *, space=False, split=False, normalizer=None, vocab=(), beside=(), **flags) -> Path:
        content = json.loads(SAMPLE.read_text())
        vocabulary = content["model"]["vocab"]
        vocabulary |= dict(vocab)
        content["added_tokens"] += [{"id": len(vocabulary), "content": "<own>", **NONE}]
        content["added_tokens"][0] |= flags
        content["normalizer"] = normalizer
        content["pre_tokenizer"]["add_prefix_space"] = space
        if split:
            parts = [{"type": "Digits", "individual_digits": True}, content["pre_tokenizer"]]
            content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": parts}
        files = {
            "tokenizer.json": content,
            "tokenizer_config.json": {"eos_token": EOD, "bos_token": EOD, **(config or {})},
            **dict(beside),
        }
        for name, value in files.items():
            (tmp_path / name).write_text(json.dumps(value))
        return tmp_path

    return make


@pytest.mark.parametrize("name", ["gpt2", "llama2", "llama3"])
def test_nothing_is_said_of_the_usual_tokenizers(assets, said, name):
    tell(assets / "tokenizers" / name)
    assert said() == ""


@pytest.mark.parametrize("given", [GPT2, FAST])
@pytest.mark.parametrize(
    ("space", "config"), [(False, {"add_prefix_space": True}), (True, {}), (True, {"add_prefix_space": False})]
)
def test_a_space_in_front_of_a_text_on_which_the_files_disagree(tokenizer, given, space, config):
    with pytest.raises(SpecError, match=r"tokenizer_config\.json: add_prefix_space is (true|false)") as error:
        tell(tokenizer({**given, **config}, space=space))
    assert f"puts {'a' if space else 'no'} space" in str(error.value)
    tell(tokenizer({**given, **config}, space=space), "--policy", "datatrove")


def test_a_space_that_a_class_of_its_own_would_build(tokenizer):
    with pytest.raises(SpecError, match="add_prefix_space"):
        tell(tokenizer({**GPT2, "add_prefix_space": True}, split=True))
    with pytest.raises(SpecError, match="puts a space"):
        tell(tokenizer({**LLAMA, "add_prefix_space": False}, split=True, normalizer=PREPEND))


def test_a_space_that_the_config_of_the_model_leaves_out(tokenizer):
    tell(folder := tokenizer(space=True))  # transformers 4 does not open it, and 5 follows tokenizer.json
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(SpecError, match="false, since it is not there"):
        tell(folder)


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ({**GPT2, "add_prefix_space": True}, {"space": True}),
        ({**GPT2, "add_prefix_space": False}, {}),
        ({**GPT2, "add_prefix_space": None}, {"space": True}),
        ({**FAST, "add_prefix_space": True}, {"split": True}),
        ({**FAST, "add_prefix_space": None}, {}),
        (FAST, {"split": True, "space": True}),
        ({**LLAMA, "add_prefix_space": True}, {"normalizer": PREPEND, "split": True}),
        ({**FAST, "split_special_tokens": False, "legacy": False, "add_bos_token": False}, {}),
    ],
)
def test_settings_that_change_nothing(tokenizer, said, config, settings):
    tell(tokenizer(config, **settings))
    assert said() == ""


def test_special_tokens_that_megatron_would_encode_as_text(tokenizer, inline_cluster, workspace, monkeypatch):
    folder = tokenizer({**FAST, "split_special_tokens": True})
    with pytest.raises(SpecError, match=r"split_special_tokens is set.* give --set policy\.special_text=plain"):
        tell(folder)

    monkeypatch.chdir(workspace)
    (workspace / "in.jsonl").write_text(json.dumps({"text": f"a{EOD}b"}))
    (made,) = preprocess(asked(folder, "--set", "policy.special_text=plain"), Silent())
    assert 0 not in IndexedDataset(made.prefix).document(0)


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_added_tokens_of_which_the_config_says_other_things(tokenizer, flag):
    stated = {"content": "<own>", **NONE, flag: True}
    message = rf"tokenizer\.json: the added token <own> has {flag} false; Megatron, by tokenizer_config\.json, has true"
    with pytest.raises(SpecError, match=message):
        tell(tokenizer({**FAST, "added_tokens_decoder": {"9000": stated}}))
    old = {"special_tokens_map.json": {"additional_special_tokens": [stated]}}
    with pytest.raises(SpecError, match=f"<own> has {flag} false"):
        tell(tokenizer(FAST, beside=old))
    tell(tokenizer({**FAST, "added_tokens_decoder": {}}, beside=old))  # which stands for that file


def test_added_tokens_of_which_the_config_says_the_same(tokenizer, said):
    decoder = {"0": {"content": EOD, "special": True, "lstrip": True}, "9000": {"content": "<own>"}}
    tell(tokenizer({**FAST, "added_tokens_decoder": decoder}))  # Megatron adds the EOD again, without
    assert said() == ""


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_an_eod_that_megatron_adds_again_without_its_flags(tokenizer, flag):
    with pytest.raises(SpecError, match=f"has {flag} true; Megatron, which adds it again, has false"):
        tell(tokenizer(FAST, **{flag: True}))
    tell(tokenizer(FAST, **{flag: True}), "--policy", "megatron-0.14")
    tell(tokenizer({**FAST, "sep_token": EOD, "cls_token": EOD}, **{flag: True}))
    with pytest.raises(SpecError, match=f"has {flag} true"):
        tell(tokenizer({**FAST, "sep_token": EOD}, **{flag: True}))  # as cls_token


def test_normalized_is_told(tokenizer, caplog, said):
    tell(tokenizer(FAST, normalized=True))
    assert said() == ""
    tell(tokenizer(FAST, normalized=True, normalizer={"type": "Sequence", "normalizers": []}))
    assert said() == ""
    tell(tokenizer(FAST, normalized=True, normalizer={"type": "NFC"}))
    assert f"{EOD}: the files beside it" in caplog.text


@pytest.mark.parametrize(
    ("config", "beside"),
    [
        ({"additional_special_tokens": ["test"]}, {}),
        ({"extra_special_tokens": ["test"]}, {}),
        ({"extra_special_tokens": {"image_token": "test"}}, {}),
        ({"pad_token": "test"}, {}),
        ({"added_tokens_decoder": {"303": {"content": "test"}}}, {}),
        ({}, {"added_tokens.json": {"test": 303}}),
        ({}, {"special_tokens_map.json": {"pad_token": "test"}}),
    ],
)
def test_an_ordinary_entry_that_becomes_a_special_token(tokenizer, config, beside):
    with pytest.raises(SpecError, match=r"test of its config are ordinary entries .*save_pretrained"):
        tell(tokenizer({**FAST, **config}, beside=beside))
    tell(tokenizer({**FAST, **config}, beside=beside), "--policy", "nemotron")


def test_holes_in_the_vocabulary(tokenizer, caplog):
    tell(tokenizer(FAST, vocab={"zqx": 65600}))
    assert "ids up to 65600. Megatron goes by the former and takes uint16" in caplog.text


@pytest.mark.parametrize("value", [[], [5], {"0": 5}, "x", 7, None, {"0": {"content": 5}}])
@pytest.mark.parametrize("key", ["added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"])
def test_a_config_of_another_shape(tokenizer, said, key, value):
    tell(tokenizer({**FAST, key: value}))
    assert said() == ""

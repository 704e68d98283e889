"""Tokenizers by the name of their hub repository: pinned, checked, cached, and refused in words."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dataprep import definitions, web
from dataprep.errors import OutputError, SourceError, SpecError
from dataprep.planning import resolve

SAMPLE = Path(__file__).parents[2] / "tokenizers" / "sample" / "tokenizer.json"
CONFIG = json.dumps({"eos_token": "<|endoftext|>"}).encode()
FILES = {"tokenizer.json": SAMPLE, "tokenizer_config.json": CONFIG, "model.safetensors": b"w" * 1000}


@pytest.fixture
def text(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "x"}\n')
    return "in.jsonl"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No waiting between attempts."""
    monkeypatch.setattr(web, "BRIEF", web.Patience(attempts=4, first_seconds=0.001))


@pytest.fixture
def identity(here, text, tmp_path):
    """What a tokenizer is resolved to: `identity("org/name")`."""
    return lambda name: resolve(str(tmp_path / text), name, tmp_path / "out").recipe.tokenizer


def planned(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["recipe"]["tokenizer"]


def test_only_the_tokenizers_files_are_fetched_at_a_commit_and_identified_by_content(hub, dataprep_cli, text):
    repo = hub.add("models", "org/name", FILES)

    found = planned(dataprep_cli("plan", text, "-t", "org/name", "--json"))

    assert found["origin"] == f"hf://org/name@{repo.branches['main']}"
    assert set(found["files"]) == {"tokenizer.json"}
    assert (found["name"], found["eod_id"], found["vocab_size"]) == ("name", 0, 8192)
    assert hub.served("model.safetensors") == 0
    assert hub.served("tokenizer.json") == SAMPLE.stat().st_size


def test_a_second_use_fetches_nothing_and_offline_needs_no_hub(hub, dataprep_cli, text):
    hub.add("models", "org/name", FILES)
    first = planned(dataprep_cli("plan", text, "-t", "org/name", "--json"))
    served = hub.served()

    assert planned(dataprep_cli("plan", text, "-t", "org/name", "--json")) == first
    assert hub.served() == served
    asked = len(hub.requests)
    assert planned(dataprep_cli("plan", text, "-t", "org/name", "--offline", "--json")) == first
    assert planned(dataprep_cli("plan", text, "-t", "org/name", "--json", HF_HUB_OFFLINE="1")) == first
    assert len(hub.requests) == asked


def test_offline_says_what_is_missing(hub, dataprep_cli, text):
    done = dataprep_cli("plan", text, "-t", "org/name", "--offline")

    assert done.returncode == 1
    assert "offline, and the tokenizer org/name at main is not here" in done.stderr
    assert not hub.requests


def test_a_revision_may_be_named(here, identity):
    repo = here.add("models", "org/name", FILES)
    old = repo.branches["main"]
    repo.commit({**FILES, "tokenizer_config.json": b'{"eos_token": "the"}'})

    assert identity(f"org/name@{old}").eod_text == "<|endoftext|>"
    assert identity("org/name").eod_text == "the"
    with pytest.raises(SourceError, match="org/name has no revision 'nope'"):
        identity("org/name@nope")


def test_the_type_follows_from_the_files_there_are(here, identity, pair, spm):
    here.add("models", "org/pair", {p.name: p for p in pair.path.iterdir()})
    here.add("models", "org/spm", {p.name: p for p in spm.path.iterdir()})
    here.add("models", "org/none", {"README.md": b"# nothing", "config.json": b"{}"})

    assert identity("org/pair").type == "GPT2BPETokenizer"
    assert identity("org/spm").type == "Llama2Tokenizer"
    with pytest.raises(SpecError, match="org/none holds no tokenizer"):
        identity("org/none")


def test_a_gated_repository_says_which_page_to_accept_and_where_a_token_goes(hub, dataprep_cli, text, tmp_path):
    hub.add("models", "meta-llama/Llama-3.1-8B", FILES, gated=True)
    hub.tokens.add("hf_good")

    done = dataprep_cli("plan", text, "-t", "meta-llama/Llama-3.1-8B")

    assert done.returncode == 1
    message = done.stderr.strip()
    assert message.count("\n") == 0
    assert f"accept its conditions at {hub.url}/meta-llama/Llama-3.1-8B" in message
    assert "HF_TOKEN" in message
    assert str(tmp_path / "hf-home" / "token") in message
    wrong = dataprep_cli("plan", text, "-t", "meta-llama/Llama-3.1-8B", HF_TOKEN="hf_bad")
    assert wrong.returncode == 1
    assert "hf_bad" not in wrong.stderr
    right = dataprep_cli("plan", text, "-t", "meta-llama/Llama-3.1-8B", "--json", HF_TOKEN="hf_good")
    assert planned(right)["vocab_size"] == 8192
    assert "hf_good" not in right.stdout + right.stderr
    written = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert not [p for p in written if b"hf_good" in p.read_bytes()]
    assert not [request for request in hub.requests if request.cdn and request.authorization]


def test_an_unknown_repository_and_an_unreachable_hub_are_one_message(here, identity, monkeypatch):
    from huggingface_hub import constants

    with pytest.raises(SourceError, match="the hub has no model org/unknown, or it is private"):
        identity("org/unknown")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(SourceError, match=r"cannot fetch hf://org/name@main: ConnectError .*--offline"):
        identity("org/name")


@pytest.mark.parametrize("fault", ["corrupt", "reset", "status"])
def test_what_came_is_checked_and_tried_again(here, identity, fault):
    here.add("models", "org/name", FILES)
    injected = here.fault(fault, "*tokenizer.json", at=None if fault == "status" else 100_000)

    assert identity("org/name").vocab_size == 8192
    assert injected.fired == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_an_answer_that_passes_is_waited_for(here, identity, method, status):
    """Faults of what huggingface_hub asks when it fetches a file: first the head, then the body."""
    here.add("models", "org/name", FILES)
    faults = [here.fault("status", f"*{name}", method=method, status=status) for name in FILES if "tokenizer" in name]

    assert identity("org/name").vocab_size == 8192
    assert [fault.fired for fault in faults] == [1, 1]


def test_a_private_repository_needs_its_owners_token(hub, dataprep_cli, text):
    hub.add("models", "org/mine", FILES, private=True)
    hub.tokens.add("hf_good")

    stranger = dataprep_cli("plan", text, "-t", "org/mine")
    assert stranger.returncode == 1
    assert "the hub has no model org/mine, or it is private" in stranger.stderr
    assert "HF_TOKEN" in stranger.stderr
    owner = dataprep_cli("plan", text, "-t", "org/mine", "--json", HF_TOKEN="hf_good")
    assert planned(owner)["vocab_size"] == 8192


def test_a_tokenizer_that_stays_damaged_is_never_used(here, identity, tmp_path):
    here.add("models", "org/name", FILES)
    here.fault("corrupt", "*tokenizer.json", at=100_000, times=-1)

    with pytest.raises(SourceError, match="what came is not what the listing says"):
        identity("org/name")
    kept = [Path(root, name) for root, _, names in os.walk(tmp_path / "hf-cache") for name in names]
    assert not [path for path in kept if path.stat().st_size == SAMPLE.stat().st_size]


def test_a_cache_that_was_cleared_is_filled_again_by_what_the_error_says(here, identity, tmp_path):
    import shutil

    here.add("models", "org/name", FILES)
    found = identity("org/name")
    shutil.rmtree(Path(found.path).parents[1])
    definitions._define.cache_clear()
    with pytest.raises(
        SpecError, match=r"dataprep plan sample --tokenizer org/name@[0-9a-f]{40}` brings it back"
    ) as said:
        definitions.load(found)
    resolve("sample", str(said.value).split("`")[1].split()[-1], tmp_path)
    assert definitions.load(found).type == "HuggingFaceTokenizer"
    with pytest.raises(SpecError, match="--tokenizer is empty"):
        resolve("sample", "", tmp_path)


def test_slow_files_of_another_tokenizer_are_not_taken_for_gpt2s(here, identity, pair):
    files = {name: pair.path / name for name in ("vocab.json", "merges.txt")}
    config = json.dumps({"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"}).encode()
    here.add("models", "org/other", {**files, "tokenizer_config.json": config})
    here.add("models", "org/gpt", {**files, "tokenizer_config.json": b'{"tokenizer_class": "GPT2Tokenizer"}'})

    with pytest.raises(SpecError, match=r"org/other holds vocab.json and merges.txt of a Qwen2Tokenizer, and no tok"):
        identity("org/other")
    assert identity("org/gpt").type == "GPT2BPETokenizer"


def test_names_of_bos_that_are_left_over_or_doubtful(here, identity):
    left_over = json.dumps({"bos_token": "<s>", "eos_token": "<|endoftext|>", "add_bos_token": False}).encode()
    here.add("models", "org/left", {"tokenizer.json": SAMPLE, "tokenizer_config.json": left_over})
    assert (identity("org/left").bos_id, identity("org/left").eod_text) == (None, "<|endoftext|>")
    flag = json.dumps({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "add_bos_token": True}).encode()
    here.add("models", "org/flag", {"tokenizer.json": SAMPLE, "tokenizer_config.json": flag})
    found = identity("org/flag")
    assert found.adds_bos is False
    assert "policy.bos=always the latter" in definitions.bos_disagreement(found)
    assert definitions.bos_disagreement(identity("org/left")) is None


def test_a_cache_that_cannot_be_written_is_named(here, identity, mounted, tmp_path, monkeypatch):
    from huggingface_hub import constants

    here.add("models", "org/name", FILES)
    cache = mounted(tmp_path / "mounted", "size=1m,ro")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache / "hub"))
    with pytest.raises(OutputError, match=r"cannot write to the hub's cache .*Read-only file system; set HF_HOME"):
        identity("org/name")

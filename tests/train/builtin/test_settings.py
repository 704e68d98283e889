"""What a training may be told, and what is found wrong before anything is started."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dataprep.errors import FormatError, SpecError
from dataprep.train.builtin import data, require_torch
from dataprep.train.builtin.__main__ import load_settings
from dataprep.train.builtin.figures import Figures, flops_per_token, learning_rate, peak_flops


def test_what_the_launcher_needs_imports_no_torch():
    code = "import dataprep.train.builtin.data, dataprep.train.builtin.__main__, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("dataprep.train.builtin.find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"needs torch and transformers: pip install 'dataprep-llm\[train\]'"):
        require_torch()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seq_length": 65}, "seq_length 65 is more than max_position_embeddings 64"),
        ({"global_batch_size": 7}, "global_batch_size 7 is no multiple of micro_batch_size 2"),
        ({"num_attention_heads": 5}, "hidden_size 32 is no multiple of num_attention_heads 5"),
        ({"num_query_groups": 3}, "num_attention_heads 4 is no multiple of num_query_groups 3"),
        ({"family": "gpt"}, "the family gpt has neither grouped queries nor rope_scaling"),
        ({"family": "gpt", "num_query_groups": 4}, "add_bias_linear has to be true"),
        ({"hidden_dropout": 0.1}, "there is no dropout here"),
        ({"family": "bert"}, "shape.family: Input should be 'llama' or 'gpt'"),
        ({"min_lr": 1.0}, "min_lr 1.0 is above lr 0.01"),
        ({"lr_warmup_iters": 8}, "lr_warmup_iters 8 leaves no iteration of 8"),
        ({"split": "all"}, "a split of 'all'"),
        ({"data": []}, "data: Tuple should have at least 1 item"),
        ({"lr": "0.1"}, "lr: Input should be a valid number"),
        ({"dropout": 0.1}, "dropout: unknown key"),
    ],
)
def test_settings_that_do_not_go_together(settings, changes, message):
    with pytest.raises(SpecError, match=r"settings\.json: ") as error:
        load_settings(settings(**changes))
    assert message in str(error.value)


def test_settings_that_are_none(tmp_path):
    with pytest.raises(SpecError, match="cannot read the settings"):
        load_settings(tmp_path / "none.json")


def test_a_batch_that_cannot_be_dealt_out(settings):
    with pytest.raises(SpecError, match="a global batch of 8 cannot be dealt out to 3 ranks in micro batches of 2"):
        data.checked(load_settings(settings()), 3)


def test_a_model_without_room_for_the_tokenizer(settings):
    with pytest.raises(SpecError, match="its tokenizer sample has 8192 tokens, and the model 8191"):
        data.checked(load_settings(settings(vocab_size=8191)), 1)


def test_tokens_that_are_none_of_the_model(settings, make_pair):
    prefix = make_pair([[1, 2, 70], [3] * 200])
    chosen = load_settings(settings(data=[[str(prefix), 1.0]], vocab_size=70, split="1,0,0", eval_iters=0))
    with pytest.raises(FormatError, match="holds the token 70, and the model has tokens 0 to 69"):
        data.checked(chosen, 1)
    assert data.checked(chosen, 1, scans=False) == [None]
    samples = data.parts_of(chosen)["train"]
    with pytest.raises(FormatError, match="holds the token 70"):
        [samples[k] for k in range(len(samples))]


def test_a_pair_that_is_not_that_of_its_manifest(settings, prefix, tmp_path):
    for path in Path(prefix).parent.iterdir():
        shutil.copy(path, tmp_path)
    other = tmp_path / Path(prefix).name
    with other.with_suffix(".bin").open("ab") as file:
        file.write(b"\0\0")
    with pytest.raises(FormatError, match="its manifest speaks of other files"):
        data.checked(load_settings(settings(data=[[str(other), 1.0]])), 1)


def test_the_fingerprint_is_of_the_data_and_not_of_its_place(settings, prefix, make_pair):
    chosen = load_settings(settings(data=[[prefix, 1.0], [str(make_pair([[1, 2], [3]])), 2.0]]))
    known, other = data.fingerprint(chosen, data.checked(chosen, 1))
    manifest = json.loads((Path(prefix).parent / "manifest.json").read_text())
    files = manifest["prefixes"][0]["files"]
    assert known == {"weight": 1.0, "bin": files["bin_checksum"], "idx": files["idx_checksum"]}
    assert other["weight"] == 2.0
    assert other["bin"].endswith(" bytes")
    assert other["idx"].startswith("xxh3_128:")


def test_the_rate_of_learning_is_megatrons(settings):
    chosen = load_settings(settings(lr=1.0, min_lr=0.2, lr_warmup_iters=2, lr_decay_iters=6))
    rates = [learning_rate(chosen, iteration) for iteration in range(8)]
    assert rates == pytest.approx([0, 0.5, 1, 0.8828427, 0.6, 0.3171573, 0.2, 0.2])


def test_flops_of_a_token(settings):
    shape = load_settings(settings()).shape
    embedding = 8192 * 32
    assert flops_per_token(2 * embedding + 1000, shape, 64) == 6 * (embedding + 1000) + 12 * 2 * 32 * 64
    tied = shape.model_copy(update={"tie_embeddings": True})
    assert flops_per_token(embedding + 1000, tied, 64) == 6 * (embedding + 1000) + 12 * 2 * 32 * 64


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.5e12),
        ("NVIDIA H100 PCIe", 756.5e12),
        ("NVIDIA GH200 480GB", 989.5e12),
        ("AMD Instinct MI300X", 1307.4e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("Tesla T4", None),
    ],
)
def test_peaks_of_devices(name, peak):
    assert peak_flops(name) == peak


def test_metrics_of_what_comes_again_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr("dataprep.train.builtin.figures.find_spec", lambda name: None)
    lines = [json.dumps({"iteration": number}) + "\n" for number in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines) + '{"iterat')
    figures = Figures(tmp_path, 2, 9)
    figures.add({"iteration": 3, "loss": 1.5})
    figures.close()
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(lines[:2]) + '{"iteration": 3, "loss": 1.5}\n'

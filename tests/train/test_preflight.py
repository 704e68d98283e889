"""What would go wrong with a training, told before it is submitted."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from dataprep.train import preflight
from dataprep.train.job import Data


@pytest.fixture
def look(make_job):
    """The findings of a job that are not fine: check -> text, by severity."""

    def looked(*words, strict=False, change=None, **changes):
        job = make_job(*words, **{"settings": ["train.save=null"], **changes})
        findings = preflight.check(change(job) if change else job, strict)
        said = {severity: {} for severity in ("error", "warning", "ok")}
        for finding in findings:
            before = said[finding.severity].get(finding.check)
            said[finding.severity][finding.check] = f"{before}; {finding.text}" if before else finding.text
        return said

    return looked


def test_a_job_that_is_fine(look):
    found = look(iterations=4, settings=["train.save=null", "train.split=1,0,0", "train.eval_iters=0"])
    assert not found["error"]
    assert set(found["ok"]) >= {"world", "batch", "pair", "vocabulary", "tokens", "epochs", "data_cache_path"}
    assert found["ok"]["tokens"] == "asked for: 4 steps x 128 x 2,048 = 1,048,576 tokens"
    assert "ceil(8192 / (128 x 1)) x 128 = 8192" in found["ok"]["vocabulary"]


@pytest.mark.parametrize(
    ("parallel", "check", "text"),
    [
        ({"tensor_model_parallel_size": 3}, "world", "no multiple of TP 3 x PP 1 x CP 1 = 3"),
        ({"tensor_model_parallel_size": 16}, "world", "1 nodes x 8 = 8 ranks are no multiple of TP 16"),
        ({"pipeline_model_parallel_size": 8}, "sizes", "layers 12 is no multiple of PP 8"),
        ({"tensor_model_parallel_size": 8}, "sizes", "heads 12 is no multiple of TP 8"),
    ],
)
def test_what_does_not_divide(look, parallel, check, text):
    assert text in look(options={"parallel": parallel})["error"][check]


def test_a_batch_that_the_ranks_cannot_share(look):
    found = look(options={"train": {"global_batch_size": 100}})["error"]["batch"]
    assert found == "global batch 100 / (1 x 8) is not whole: the trainer stops at its start; 104 is"


def test_positions(look):
    found = look(options={"train": {"seq_length": 4096}})["error"]["sizes"]
    assert "--set model.max_position_embeddings=4096" in found


def test_a_split_that_hangs_megatron(look, make_pair, bpe):
    prefix = make_pair([[1, 2, 3]] * 40)
    found = look(str(prefix), tokenizer=str(bpe.path), iterations=2)
    assert "leaves" in found["error"]["split-empty"] or "expected tokens" in found["error"]["split-empty"]
    assert "hang" in found["error"]["split-empty"].lower()


def test_validation_without_a_share(look):
    found = look(settings=["train.split=100,0,0", "train.save=null"], iterations=2)["error"]["split"]
    assert "samples of valid are asked for by train.eval_iters=10, and it has no share" in found
    fine = look(settings=["train.split=100,0,0", "train.eval_iters=0", "train.save=null"], iterations=2)
    assert not fine["error"]


def test_older_megatron_never_validates_without_a_share(look):
    found = look(settings=["train.split=100,0,0", "train.save=null"], iterations=2, profile="core-0.12")
    assert not found["error"]
    assert "the trainer never validates, without a word" in found["warning"]["split"]


def test_newer_megatron_lets_ranks_share_query_groups(look):
    values = {"model": "llama3-8b", "options": {"parallel": {"tensor_model_parallel_size": 16, "nodes": 2}}}
    assert "query groups 8 is no multiple of TP 16" in look(profile="core-0.14", **values)["error"]["sizes"]
    assert "sizes" not in look(profile="core-0.16", **values)["error"]


def test_room_of_index_caches(make_job, dataset):
    """Whole epochs, also where less is drawn: what Megatron writes for 5 steps is as large as for a thousand."""
    job = make_job(iterations=1, options={"train": {"global_batch_size": 8}}, settings=["train.eval_iters=0"])
    part = job.data.parts[0]
    assert preflight._cache_bytes(job) == 4 * part.num_sequences + 12 * part.num_tokens // 2048


def test_old_megatron_asserts_that_a_share_has_samples(look):
    found = look(settings=["train.eval_iters=0", "train.save=null"], iterations=2, profile="core-0.8")
    assert "--set train.split=100,0,0" in found["error"]["split"]


def test_another_tokenizer_than_that_of_the_data(look, bpe):
    found = look(tokenizer=str(bpe.path), iterations=2)["error"]
    assert "made with sample, not with" in found["tokenizer-other"]


def test_ids_beyond_the_vocabulary(look):
    def smaller(job):
        return job.model_copy(update={"vocab_size": 4000})

    found = look(iterations=2, change=smaller)["error"]
    assert "holds ids of a vocabulary of 8192, and the model has 4000" in found["ids"]
    assert "id-range" in look(iterations=2, change=smaller, strict=True)["error"]


def test_without_a_manifest_ids_are_hoped_for_or_read(look, make_pair, bpe):
    prefix = make_pair([[1, 2, 60000]] * 600)
    given = {"tokenizer": str(bpe.path), "iterations": 2}
    assert "hoped for" in look(str(prefix), **given)["warning"]["ids"]
    assert "id-range" in look(str(prefix), strict=True, **given)["error"]


def test_a_broken_pair(look, dataset, tmp_path):
    for end in (".bin", ".idx"):
        (tmp_path / f"broken{end}").write_bytes(Path(f"{dataset}{end}").read_bytes())
    with (tmp_path / "broken.bin").open("r+b") as file:
        file.truncate(os.path.getsize(tmp_path / "broken.bin") - 2)
    found = look(str(tmp_path / "broken"), tokenizer="sample", iterations=2)["error"]
    assert "bin-size" in found


def test_many_epochs(look, dataset):
    found = look(tokens=1e9)["warning"]["epochs"]
    assert "epochs; from about 4 on" in found


def test_a_stale_cache_is_found_in_the_folder_of_the_job(look, make_pair, bpe, tmp_path, make_job):
    cache = tmp_path / "cache"
    cache.mkdir()
    prefix = make_pair([[1, 2, 3]] * 600)
    (cache / "0-GPTDataset-train-description.txt").write_text(
        f'{{"class": "GPTDataset", "dataset_path": "{prefix}", "num_samples": 5, "index_split": "train", '
        '"random_seed": 1, "sequence_length": 8, "split": "1", "split_matrix": [[0, 1.0]]}'
    )
    for name, array in (("document", np.arange(99)), ("sample", np.zeros((3, 2), np.int32)), ("shuffle", np.arange(2))):
        np.save(cache / f"0-GPTDataset-train-{name}_index.npy", array.astype(np.int32))
    found = look(
        str(prefix),
        tokenizer=str(bpe.path),
        iterations=2,
        settings=[f"train.data_cache_path={cache}", "train.save=null"],
    )
    assert "cache-stale" in found["error"]


def test_folders_that_cannot_be_written(look, tmp_path):
    found = look(settings=["train.save=/proc/nothing/here"], iterations=2)["error"]
    assert "/proc" in found["save"]


def test_a_checkpoint_that_is_not_there(look, tmp_path):
    missing = tmp_path / "earlier"
    found = look(settings=[f"train.load={missing}", "train.save=null"], iterations=2)["error"]
    assert found["load"] == f"{missing} is no folder: the trainer finds no checkpoint there, and ends"
    own = [f"train.load={missing}", f"train.save={missing}"]
    assert "load" not in look(settings=own, iterations=2)["error"]
    missing.mkdir()
    assert not look(settings=[f"train.load={missing}", "train.save=null"], iterations=2)["error"]


def test_room(look, monkeypatch):
    found = look(settings=[], iterations=2, model="llama3.1-405b", options={"parallel": {"nodes": 64}})["error"]
    assert "5,626.9 GB are needed" in found["save"]  # 14 bytes for each of 401.9 billion parameters
    assert "the training ends when it first writes there" in found["save"]


def test_folders_that_only_one_machine_sees(look, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "LOCAL", (preflight.file_system(tmp_path),))
    found = look(iterations=2, options={"parallel": {"nodes": 2}})["warning"]
    assert "the other nodes would not find them" in found["data_cache_path"]
    assert "sample_text_document lies on" in found["shared"]


def test_a_tokenizer_of_the_hub(look):
    def named(job):
        return job.model_copy(update={"tokenizer_path": "meta-llama/Llama-3.1-8B"})

    assert "every rank asks the hub" in look(iterations=2, change=named)["warning"]["tokenizer"]


def test_folders_of_a_container_are_not_looked_at(look):
    settings = [
        "launch.container=docker",
        "launch.mounts=[/shared]",
        "train.data_cache_path=/proc/x",
        "train.save=null",
    ]
    found = look(settings=settings, iterations=2)
    assert "a path of the container" in found["ok"]["data_cache_path"]


@pytest.mark.parametrize(
    ("settings", "options", "text"),
    [
        (["train.precision=fp16"], {}, "fp16"),
        (["train.ckpt_format=torch"], {}, "checkpoints of format torch"),
        ([], {"pipeline_model_parallel_size": 2}, "pipeline size 2"),
    ],
)
def test_what_fsdp_does_not_go_with(look, settings, options, text):
    found = look(
        settings=[*settings, "train.save=null"], options={"parallel": {"fsdp": True, **options}}, model="llama3-8b"
    )
    assert f"--fsdp does not go with {text}" in found["error"]["fsdp"]


def test_checkpoints_of_format_torch_dcp_are_for_fsdp(look):
    settings, values = ["train.ckpt_format=torch_dcp", "train.save=null"], {"model": "llama3-8b"}
    assert "torch_dcp is for --fsdp" in look(settings=settings, **values)["error"]["checkpoints"]
    found = look(settings=settings, options={"parallel": {"fsdp": True}}, **values)["error"]
    assert not {"checkpoints", "fsdp"} & set(found)


def test_amds_scripts_shard_without_tensor_parallelism(look):
    values = {"model": "llama3-8b", "options": {"parallel": {"fsdp": True, "tensor_model_parallel_size": 2}}}
    assert "AMD's scripts make that 1, and try no other; --tp 1" in look(profile="rocm-25", **values)["error"]["fsdp"]
    assert "fsdp" not in look(profile="core-0.12", **values)["error"]


def test_nothing_of_data_is_checked_without_any(look):
    found = look("MODEL_SIZE=8", model="llama3")
    assert not found["error"]
    assert "pair" not in found["ok"]


def test_a_vocabulary_of_another_model(look):
    assert "published with 50257" in look(iterations=2)["warning"]["vocabulary"]


def test_own_splits_have_no_shares(look, dataset):
    found = look(valid=[dataset], iterations=2)
    assert not found["error"]
    assert found["warning"]["split"] == f"{dataset} is trained on and evaluated on: the loss says little"


def test_a_job_with_no_data_in_a_split(make_job, dataset):
    job = make_job(valid=[dataset], iterations=2, settings=["train.save=null"])
    job = job.model_copy(update={"data": Data(own={"train": job.data.own["train"]})})
    found = [finding for finding in preflight.check(job) if finding.severity == "error"]
    assert [finding.check for finding in found] == ["split"]


def test_the_built_in_trainer_needs_its_extra_here(look, monkeypatch):
    found = {"torch": None, "transformers": None}
    monkeypatch.setattr("dataprep.train.builtin.find_spec", lambda name: found.get(name))
    asked = {"backend": "torch", "model": "gpt3-125m", "iterations": 2}
    error = look(launcher="local", **asked)["error"]["torch"]
    assert error == "the built-in trainer needs torch and transformers: pip install 'dataprep-llm[train]'"
    assert "torch" not in look(launcher="slurm", **asked)["error"]


def test_a_tokenizer_that_went_away(look):
    def moved(job):
        return job.model_copy(update={"tokenizer_path": "/gone/tokenizer"})

    found = look(iterations=2, change=moved)["error"]["tokenizer"]
    assert found.startswith("/gone/tokenizer is not here, and the trainer reads it at its start; say where")
    settings = ["launch.container=docker", "launch.image=i", "launch.mounts=[/shared]", "train.save=null"]
    assert "tokenizer" not in look(iterations=2, change=moved, settings=settings)["error"]

"""What was asked for, and the job that becomes of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dataprep.errors import SourceError, SpecError
from dataprep.indexed import IndexedDataset
from dataprep.train import request
from dataprep.train.datasets import parse_data_path, read_parts


def test_everything_that_is_not_given_follows_from_the_model_and_the_data(make_job, dataset, tmp_path):
    job = make_job()
    tokens = int(IndexedDataset(dataset).lengths.sum())
    train = job.train
    assert (train.seq_length, train.micro_batch_size, train.global_batch_size) == (2048, 1, 128)
    assert train.train_iters == int(tokens * 0.969 // (128 * 2048))
    assert (train.lr, train.min_lr, train.lr_decay_iters) == (6e-4, 6e-5, train.train_iters)
    assert (job.vocab_size, job.tokenizer_type) == (8192, "HuggingFaceTokenizer")
    assert (job.backend, job.profile) == ("megatron", "core-0.16")
    assert train.save == os.path.join(job.output, "checkpoints")
    assert train.data_cache_path == str(tmp_path / "runs" / "index-cache")
    assert job.name.startswith("gpt3-125m-sample-")


def test_order_of_precedence(make_job):
    environment = {"MBS": "2", "SEQ_LENGTH": "512", "BS": "256"}
    job = make_job(
        environment=environment,
        compat="deepspeed",
        options={"train": {"seq_length": 256}},
        settings=["train.global_batch_size=64"],
    )
    assert job.train.micro_batch_size == 2  # the script's is 2 as well
    assert job.train.seq_length == 256
    assert job.train.global_batch_size == 64
    assert job.train.split == "949,50,1"


@pytest.mark.parametrize(
    ("changes", "iterations"),
    [({"tokens": 1e9}, 3815), ({"samples": 1280}, 10), ({"samples": 1281}, 11), ({"iterations": 7}, 7)],
)
def test_how_long(make_job, changes, iterations):
    assert make_job(**changes).train.train_iters == iterations


def test_one_length_only(make_job):
    with pytest.raises(SpecError, match="give one of --tokens, --samples and --iterations"):
        make_job(tokens=1e9, iterations=3)


def test_a_global_batch_that_all_ranks_can_share_is_chosen(make_job):
    job = make_job(options={"parallel": {"nodes": 3, "gpus_per_node": 8}})
    assert job.train.global_batch_size == 144  # 128, rounded up to a multiple of 24


def test_batch_size_per_node(make_job, dataset):
    job = make_job(dataset, "BATCH_SIZE_PER_NODE=16", "NNODES=4")
    assert job.train.global_batch_size == 64


def test_amds_word_for_no_evaluation(make_job, dataset):
    assert make_job(dataset, "EVAL_ITERS=-1").train.eval_iters == 0


def test_mock_data_where_no_prefix_is_given(make_job):
    job = make_job("MODEL_SIZE=8", model="llama3")
    assert job.data.is_mock
    assert (job.tokenizer_type, job.vocab_size, job.train.train_iters, job.train.save) == (
        "NullTokenizer",
        128256,
        10,
        None,
    )


def test_data_path_of_the_environment(make_job, dataset):
    job = make_job("MBS=1", environment={"DATA_PATH": dataset})
    assert [part.prefix for part in job.data.parts] == [dataset]
    assert make_job("MOCK_DATA=1", environment={"DATA_PATH": dataset}).data.is_mock
    with pytest.raises(SpecError, match="give one of them"):
        make_job(dataset, "MOCK_DATA=1")


def test_weights(make_pair):
    one, two = make_pair([[1, 2, 3]]), make_pair([[1], [2], [3], [4], [5], [6], [7], [8], [9]])
    assert [part.weight for part in read_parts([str(one), str(two)])] == [0.25, 0.75]
    assert [part.weight for part in read_parts([f"{one}=3", f"{two}=1"])] == [0.75, 0.25]
    with pytest.raises(SpecError, match="give all of them a weight"):
        read_parts([f"{one}=3", str(two)])
    with pytest.raises(SpecError, match="named twice"):
        read_parts([f"{one}=3", f"{one}=1"])
    with pytest.raises(SpecError, match="expected PREFIX, PREFIX=WEIGHT"):
        read_parts([f"{one}=-1"])


def test_a_file_of_weights_and_prefixes(make_pair, tmp_path):
    one, two = make_pair([[1, 2, 3]]), make_pair([[1, 2, 3, 4]])
    path = tmp_path / "data_args.txt"
    path.write_text(f"0.3 {one}\n0.7 {two}\n")
    assert [(part.prefix, part.weight) for part in read_parts([str(path)])] == [
        (str(one), pytest.approx(0.3)),
        (str(two), pytest.approx(0.7)),
    ]


def test_data_path_as_megatron_takes_it():
    assert parse_data_path("a") == ["a"]
    assert parse_data_path("0.7 a 0.3 'b c'") == ["a=0.7", "b c=0.3"]
    assert parse_data_path("a b") == ["a", "b"]
    with pytest.raises(SpecError, match="expected a prefix, prefixes, or WEIGHT PREFIX"):
        parse_data_path("0.7 a 0.3")


def test_the_link_to_the_newest_dataset_is_not_handed_to_a_trainer(make_job, dataset, tmp_path):
    folder, name = os.path.split(dataset)
    link = tmp_path / "newest"
    link.symlink_to(folder)
    assert make_job(str(link / name)).data.parts[0].prefix == dataset


def test_two_tokenizers_are_refused(make_job, dataset, bpe, tmp_path):
    import dataprep

    other = dataprep.run("sample", tokenizer=str(bpe.path), output=tmp_path, limit=20).prefix
    with pytest.raises(SpecError, match="the same id means two things"):
        make_job(dataset, other)


def test_without_a_manifest_the_tokenizer_has_to_be_named(make_job, make_pair):
    with pytest.raises(SpecError, match="has no manifest that says which tokenizer"):
        make_job(str(make_pair([[1, 2, 3]])))


def test_splits_with_prefixes_of_their_own(make_job, dataset):
    job = make_job(valid=[dataset])
    assert not job.data.parts
    assert {part: len(parts) for part, parts in job.data.own.items()} == {"train": 1, "valid": 1}
    with pytest.raises(SpecError, match="go with prefixes to train on"):
        make_job("MBS=1", valid=[dataset])


def test_a_shape_can_be_changed(make_job):
    job = make_job(settings=["model.hidden_size=256", "model.num_layers=4", "model.num_attention_heads=4"])
    shape = job.shape
    assert (shape.ffn_hidden_size, shape.num_query_groups, job.model) == (1024, 4, "gpt3-125m-changed")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"settings": ["train.lrr=1"]}, "train: lrr: unknown key; known here: seq_length"),
        ({"settings": ["trains.lr=1"]}, "expected NAMESPACE.KEY=VALUE with a namespace of model, train"),
        ({"settings": ["model.num_layers=0"]}, "num_layers"),
        ({"settings": ["train.seq_length=x"]}, "expected a whole number above 0, found 'x'"),
        ({"settings": ["train.global_batch_size=abc"]}, "expected a whole number above 0, found 'abc'"),
        ({"settings": ["train.lr=abc"]}, r"train\.lr: expected a number, found 'abc'"),
        ({"settings": ["train.min_lr=1"]}, "--set train: min_lr 1.0 is above lr 0.0006"),
        ({"settings": ["train.lr_warmup_iters=9"], "iterations": 9}, "lr_warmup_iters 9 leaves no step of"),
        ({"settings": ["train.split=0,0"]}, "a split of '0,0': expected the shares"),
        ({"settings": ["train.seed=0"]}, "seed: Input should be greater than or equal to 1"),
        ({"settings": ["train.adam_beta2=1"]}, "adam_beta2: Input should be less than 1"),
        ({"settings": ["model.hidden_size=abc"]}, "hidden_size: Input should be a valid integer, found 'abc'$"),
        ({"settings": ["model.hidden_size=770"]}, "model: hidden_size 770 is no multiple of num_attention_heads 12$"),
        ({"tokens": float("inf")}, "--tokens inf: expected a number"),
        ({"settings": ["train.load="]}, "load: String should have at least 1 character"),
        ({"model": None}, "give a --model"),
        ({"backend": "jax"}, "--backend jax: expected one of megatron"),
        ({"profile": "core-1"}, "--profile core-1: expected one of core-0.16"),
        ({"profile": "rocm-25", "backend": "megatron"}, "--profile rocm-25 is of rocm; --backend megatron has core"),
    ],
)
def test_requests_that_are_wrong(make_job, changes, text):
    with pytest.raises(SpecError, match=text):
        make_job(**changes)


def test_words_that_are_no_prefix_are_named(make_job, dataset, tmp_path):
    for word, text in {
        "mbs=2": "no such prefix: neither mbs.bin",
        "SAVE_CKPT_PATH=": "SAVE_CKPT_PATH= has no value",
    }.items():
        with pytest.raises(SpecError, match=text):
            make_job(dataset, word)
    with pytest.raises(SpecError, match="DATA_PATH='a: No closing quotation"):
        make_job("DATA_PATH='a")
    with pytest.raises(SpecError, match="give all of them a weight"):
        make_job(dataset, f"{dataset}=2")
    corpus = tmp_path / "corpus.jsonl"
    with corpus.open("wb") as file:
        file.truncate(1 << 27)
    with pytest.raises(SpecError, match=r"corpus\.jsonl is too large for a list of prefixes"):
        make_job(str(corpus))


def test_what_is_given_twice_is_said(ask, dataset):
    assert "DATA_PATH does nothing: prefixes are given" in ask(dataset, "DATA_PATH=/other").warnings
    found = ask(dataset, "TOKENIZER_TYPE=Llama2Tokenizer").warnings
    assert any("TOKENIZER_TYPE=Llama2Tokenizer does nothing: the data were made with a Hugg" in text for text in found)


def test_numbers_are_written_as_people_write_them(make_job):
    train = make_job(settings=["train.lr=3e-4", "train.min_lr=1E-7", "train.adam_eps=1.5e-9"]).train
    assert (train.lr, train.min_lr, train.adam_eps) == (3e-4, 1e-7, 1.5e-9)


def test_arguments_for_the_trainer_as_they_are(make_job):
    job = make_job(settings=["argument.fp8-param-gather=", "argument.log-params-norm=", "argument.num-workers=8"])
    assert job.arguments == {"fp8-param-gather": None, "log-params-norm": None, "num-workers": "8"}


def test_the_same_request_has_the_same_name_and_another_one_another(make_job):
    assert make_job().name == make_job().name
    assert make_job().name != make_job(iterations=3).name


def test_padding_of_the_vocabulary(make_job):
    """The table of Megatron's padded vocabularies for GPT-2 and Llama."""
    expected = {50257: [50304, 50432, 50688, 51200], 32000: [32000, 32000, 32256, 32768]}
    expected |= {32001: [32128, 32256, 32256, 32768], 128256: [128256, 128256, 128512, 129024]}
    for size, padded in expected.items():
        for tensor, rows in zip((1, 2, 4, 8), padded, strict=True):
            job = make_job(options={"parallel": {"tensor_model_parallel_size": tensor}})
            assert job.model_copy(update={"vocab_size": size}).padded_vocab_size == rows


def test_paths_are_absolute(make_job, monkeypatch, dataset, tmp_path):
    monkeypatch.chdir(Path(dataset).parent)
    job = make_job(os.path.basename(dataset), "SAVE_CKPT_PATH=ckpt")
    assert job.data.parts[0].prefix == dataset
    assert job.train.save == os.path.join(os.path.dirname(dataset), "ckpt")


def test_accelerators_are_counted_for_a_start_here(make_job, monkeypatch):
    monkeypatch.setattr(request, "count_accelerators", lambda: 3)  # this machine's number is not known
    assert make_job(launcher="local").parallel.gpus_per_node == 3
    assert make_job(launcher="local", options={"parallel": {"gpus_per_node": 2}}).parallel.gpus_per_node == 2
    assert make_job().parallel.gpus_per_node == 8


def test_a_tokenizer_that_cannot_be_had_is_not_compared(ask, monkeypatch):
    def missing(*_):
        raise SourceError("the hub does not answer")

    monkeypatch.setattr("dataprep.catalog.find_tokenizer", missing)
    found = ask(tokenizer="org/private")
    assert (found.job.tokenizer, found.job.tokenizer_path, found.job.vocab_size) == (None, "org/private", 8192)
    assert "nothing of it was compared" in found.warnings[0]


def test_a_trainer_that_accumulates_nothing_has_the_batch_of_its_ranks(make_job):
    job = make_job(
        profile="torchtitan-frontier",
        model="llama3-8b",
        options={"train": {"micro_batch_size": 3}, "parallel": {"nodes": 2}},
    )
    assert job.train.global_batch_size == 48

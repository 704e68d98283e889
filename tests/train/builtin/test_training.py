"""Trainings: on one rank and on several, in one go and in two, they are the same one."""

from __future__ import annotations

import json
import shutil
import signal
import time

import numpy as np
import pytest

pytestmark = [
    pytest.mark.train,
    # of torch's own parts among themselves, and of TensorBoard's
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

CLOSE = {"abs": 1.0001e-4}
"""Agreement to 4 decimals."""


@pytest.fixture(scope="module")
def straight(settings, train):
    """A training on one rank, without a stop."""
    path = settings()
    assert train(path) == 0
    return path


@pytest.fixture(scope="module")
def copied(output):
    """Puts checkpoints of one training into the output of another, which goes on from there."""

    def copy(source, target, *iterations):
        for iteration in iterations:
            name = f"checkpoints/iteration-{iteration:08d}"
            shutil.copytree(output(source) / name, output(target) / name)
        return target

    return copy


@pytest.fixture(scope="module")
def on_two_ranks(settings, start, ended, straight, copied):
    """Trainings on two ranks: DDP, FSDP2, and FSDP2 with other micro batches that goes on from one rank."""
    gpt = {"family": "gpt", "num_query_groups": 4, "tie_embeddings": True, "add_bias_linear": True}
    paths = {
        "ddp": settings(),
        "fsdp2": settings(parallel="fsdp2"),
        "resumed": copied(straight, settings(parallel="fsdp2", micro_batch_size=4), 4),
        "gpt2": settings(**gpt, parallel="fsdp2", train_iters=4),
    }
    running = start(*paths.values())
    said = ended(running)
    assert running.returncode == 0, said
    return paths


def test_the_loss_falls(straight, losses, output):
    found = losses(straight)
    assert len(found) == 8 + 2 + 1, "each iteration, two evaluations, and the last one of test"
    assert found[0] == pytest.approx(np.log(8192), abs=0.1), "it knows nothing yet"
    assert found[-3] < found[0] - 0.5
    assert [each < found[0] - 0.5 for each in found[-2:]] == [True, True], "what it was not shown either"
    lines = [json.loads(line) for line in (output(straight) / "metrics.jsonl").read_text().splitlines()]
    assert lines[1]["consumed_samples"] == 16
    assert lines[1]["consumed_tokens"] == 16 * 32
    assert [line["lr"] for line in lines[:3]] == [0, 0.005, 0.01]
    assert lines[0]["mfu"] is None
    assert lines[0]["tokens_per_second"] > 0
    assert list((output(straight) / "tensorboard").iterdir())


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_ranks_train_as_one(straight, on_two_ranks, losses, kind):
    assert losses(on_two_ranks[kind]) == pytest.approx(losses(straight), **CLOSE)


def test_two_ranks_go_on_where_one_stopped(straight, on_two_ranks, losses):
    found = losses(straight)
    assert losses(on_two_ranks["resumed"]) == pytest.approx(found[5:], **CLOSE)


def test_one_rank_goes_on_where_two_stopped(settings, train, straight, on_two_ranks, copied, losses, output):
    path = copied(on_two_ranks["fsdp2"], settings(keep_checkpoints=1), 4, 8)
    (output(path) / "checkpoints" / "iteration-00000008" / ".metadata").unlink()  # as if it had died there
    assert train(path) == 0
    assert losses(path) == pytest.approx(losses(straight)[5:], **CLOSE)
    assert [each.name for each in (output(path) / "checkpoints").iterdir()] == ["iteration-00000008"]


def test_a_training_that_is_done_is_done(straight, train, losses, capsys):
    before = losses(straight)
    assert train(straight) == 0
    assert losses(straight) == before
    assert "done: iteration 8 is saved" in capsys.readouterr().err


def test_what_saves_memory_or_time_changes_nothing(settings, train, straight, losses):
    path = settings(activation_checkpointing=True, micro_batch_size=8, eval_iters=0, save_interval=None)
    assert train(path) == 0
    expected = [each for i, each in enumerate(losses(straight)) if i not in (4, 9, 10)]
    assert losses(path) == pytest.approx(expected, **CLOSE)


def test_bf16_is_near(settings, train, straight, losses):
    path = settings(precision="bf16", eval_iters=0)
    assert train(path) == 0
    expected = [each for i, each in enumerate(losses(straight)) if i not in (4, 9, 10)]
    assert losses(path) == pytest.approx(expected, abs=0.05)


def test_first_weights_depend_on_the_seed_alone_and_halves_of_them_are_no_copies(settings, on_two_ranks, output):
    import torch

    from dataprep.train.builtin.__main__ import load_settings
    from dataprep.train.builtin.conversion import load_model
    from dataprep.train.builtin.model import build

    shape = load_settings(settings()).shape
    one, same, other = (build(shape, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])
    trained, _ = load_model(output(on_two_ranks["fsdp2"]) / "checkpoints" / "iteration-00000004")
    for weights in (one, trained.state_dict()):
        for name in ("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"):
            upper, lower = (half.flatten().numpy() for half in weights[name].chunk(2))
            assert abs(np.corrcoef(upper, lower)[0, 1]) < 0.1, name


def test_gpt2_with_one_matrix_for_input_and_output(on_two_ranks, losses, output):
    from dataprep.train.builtin.conversion import load_model

    found = losses(on_two_ranks["gpt2"])
    assert found[3] < found[0] - 0.2
    model, training = load_model(output(on_two_ranks["gpt2"]))
    assert training["iteration"] == 4
    assert model.lm_head.weight.data_ptr() == model.transformer.wte.weight.data_ptr()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lr": 0.02, "seed": 7}, "another seed, lr"),
        ({"data": "heavier"}, "another data"),
        ({"num_layers": 1}, "another shape"),
    ],
)
def test_other_settings_or_data_do_not_go_on(settings, train, straight, copied, capsys, prefix, changes, named):
    if changes.get("data"):
        changes = {"data": [[prefix, 2.0]]}
    path = copied(straight, settings(**changes), 8)
    assert train(path) == 2
    said = capsys.readouterr().err
    assert f"{named}: it cannot go on with this; choose another output" in said


def test_a_loss_that_is_no_number_ends_it_and_is_not_saved(settings, train, output, capsys):
    path = settings(lr=1e30, lr_warmup_iters=0, clip_grad=0.0, eval_iters=0)
    assert train(path) == 1
    assert "error: the loss is nan at iteration" in capsys.readouterr().err
    assert not list(output(path).glob("checkpoints/*"))


@pytest.mark.parametrize(("ranks", "number", "code"), [(1, signal.SIGUSR1, 143), (2, signal.SIGTERM, 1)])
def test_told_to_end_it_saves(settings, start, ended, output, monkeypatch, ranks, number, code):
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    path = settings(train_iters=100_000, eval_iters=0, save_interval=None)
    running = start(path, ranks=ranks)
    metrics = output(path) / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text()):
        assert running.poll() is None, running.stderr.read()
        time.sleep(0.05)
    running.send_signal(number)
    said = ended(running)
    assert running.returncode == code, said  # torchrun makes 1 of whatever its ranks end with
    last = json.loads(metrics.read_text().splitlines()[-1])["iteration"]
    assert f"told to end: iteration {last} is saved" in said
    assert (output(path) / "checkpoints" / f"iteration-{last:08d}" / ".metadata").exists()

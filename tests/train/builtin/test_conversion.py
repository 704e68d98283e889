"""Models in their three forms: what one holds, the others hold."""

from __future__ import annotations

import json

import pytest

from dataprep.errors import FormatError, SpecError

pytestmark = [
    pytest.mark.train,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def trained(settings, train):
    """The settings of a training of 4 iterations."""
    path = settings(train_iters=4, lr_warmup_iters=1, save_interval=2)
    assert train(path) == 0
    return path


@pytest.fixture(scope="module")
def forms(trained, output, tmp_path_factory):
    """One model in all forms."""
    from dataprep.train.builtin.conversion import convert

    folder = tmp_path_factory.mktemp("forms")
    source = output(trained)
    assert convert(source, folder / "hf", "hf") == []
    assert convert(source, folder / "file.pt", "torch") == []
    return {"dcp": source, "hf": folder / "hf", "torch": folder / "file.pt"}


def test_transformers_takes_it_and_finds_the_same_loss(trained, forms, losses):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from dataprep.train.builtin.__main__ import load_settings
    from dataprep.train.builtin.data import parts_of

    model = AutoModelForCausalLM.from_pretrained(forms["hf"])
    chosen = load_settings(trained)
    batches = parts_of(chosen)["valid"].micro_batches(0, chosen, 0, 1)
    with torch.no_grad():
        found = [float(model(input_ids=ids, labels=ids).loss) for ids in map(torch.from_numpy, batches)]
    assert sum(found) / len(found) == pytest.approx(losses(trained)[-2], abs=1.0001e-4)
    tokenizer = AutoTokenizer.from_pretrained(forms["hf"])
    assert tokenizer.decode(tokenizer("def name(self):").input_ids) == "def name(self):"
    assert tokenizer.eos_token_id == model.config.eos_token_id is not None


@pytest.mark.parametrize(("source", "to"), [("hf", "dcp"), ("hf", "torch"), ("torch", "dcp"), ("torch", "hf")])
def test_all_weights_come_through(forms, tmp_path, source, to):
    import torch

    from dataprep.train.builtin.conversion import convert, load_model

    assert convert(forms[source], tmp_path / "new", to) == []
    expected, found = (load_model(path)[0].state_dict() for path in (forms["dcp"], tmp_path / "new"))
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_training_goes_on_from_what_was_one_file(settings, train, trained, output, losses, tmp_path):
    from dataprep.train.builtin.conversion import convert

    path = settings(train_iters=4, lr_warmup_iters=1, save_interval=2)
    convert(output(trained) / "checkpoints" / "iteration-00000002", tmp_path / "file.pt", "torch")
    convert(tmp_path / "file.pt", output(path) / "checkpoints" / "iteration-00000002", "dcp")
    assert train(path) == 0
    assert losses(path) == losses(trained)[2:]


def test_a_training_begins_with_weights_of_hf(settings, train, trained, forms, output, losses, capsys):
    from dataprep.train.builtin.conversion import convert

    path = settings(train_iters=1, lr_warmup_iters=0, lr=1e-30)
    convert(forms["hf"], output(path) / "checkpoints" / "iteration-00000000", "dcp")
    assert train(path) == 0
    assert losses(path)[1:] == losses(trained)[-2:], "nothing was learned since"
    other = settings(num_layers=1)
    convert(forms["hf"], output(other) / "checkpoints" / "iteration-00000000", "dcp")
    capsys.readouterr()
    assert train(other) == 2
    assert "is of a training with another shape" in capsys.readouterr().err


def test_text_from_each_form_is_the_same(forms, monkeypatch, capsys):
    from dataprep.cli import app

    found = []
    for path in forms.values():
        app(["generate", str(path), "--prompt", "def ", "--tokens", "6", "--seed", "3"], standalone_mode=False)
        found.append(capsys.readouterr().out)
    assert len(set(found)) == 1
    assert found[0].startswith("def ")
    assert len(found[0]) > len("def \n")
    app(["generate", str(forms["hf"]), "--tokens", "3", "--temperature", "0"], standalone_mode=False)


def test_what_cannot_be_converted(forms, tmp_path):
    from dataprep.train.builtin.conversion import convert, generate

    with pytest.raises(SpecError, match="no model; expected the output of a training"):
        convert(tmp_path, tmp_path / "new", "hf")
    with pytest.raises(SpecError, match="is of the form hf: it can be converted to dcp or torch"):
        convert(forms["hf"], tmp_path / "new", "hf")
    with pytest.raises(SpecError, match="exists; remove it"):
        convert(forms["torch"], forms["hf"], "hf")
    (tmp_path / "a.pt").write_bytes(b"nothing of the kind")
    with pytest.raises(FormatError, match="not a checkpoint of the built-in trainer in one file"):
        convert(tmp_path / "a.pt", tmp_path / "new", "hf")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps({"model_type": "gpt_neox"}))
    with pytest.raises(SpecError, match="a model of type gpt_neox: expected llama or gpt2"):
        convert(tmp_path / "other", tmp_path / "new", "torch")
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / ".metadata").write_bytes(b"")
    with pytest.raises(FormatError, match="not a whole checkpoint"):
        convert(tmp_path / "cut", tmp_path / "new", "torch")
    with pytest.raises(SpecError, match=r"\d tokens and 70 more: the model takes 64 in all"):
        generate(forms["hf"], "a b c", None, 70, 0.0, 0)
    assert not (tmp_path / "new").exists()

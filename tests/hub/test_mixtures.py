"""Mixtures: each corpus a dataset, and weights that mean what the trainer means by them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import dataprep
from dataprep.blending import run_mixture
from dataprep.catalog import find_mixture
from dataprep.errors import SpecError
from dataprep.specs import Mixture


@pytest.fixture
def corpora(tmp_path):
    """Two corpora: many short documents, few long ones."""
    for name, number, words in (("short", 400, 5), ("long", 40, 100)):
        text = " ".join(["word"] * words)
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for _ in range(number)))
        (tmp_path / f"{name}.yaml").write_text(f"name: {name}\nsource: {{kind: files, paths: [{name}.jsonl]}}\n")
    return tmp_path


def mixture(folder, unit, tokens=None, weights=(0.5, 0.5)):
    names = zip(("short", "long"), weights, strict=True)
    parts = [{"corpus": str(folder / f"{name}.yaml"), "weight": weight} for name, weight in names]
    return Mixture.from_json({"name": "mix", "mixture": {"unit": unit, "tokens": tokens, "corpora": parts}}, "test")


def test_rows_become_shares_of_tokens(corpora):
    blend = run_mixture(mixture(corpora, "rows", tokens=100_000), "sample", corpora / "out")

    short, long = blend.shares
    lengths = [share.num_tokens / share.num_documents for share in blend.shares]
    assert short.token_share + long.token_share == pytest.approx(1)
    assert long.token_share / short.token_share == pytest.approx(lengths[1] / lengths[0])
    assert long.epochs == pytest.approx(100_000 * long.token_share / long.num_tokens)


def test_tokens_are_shares_as_they_are(corpora):
    blend = run_mixture(mixture(corpora, "tokens", weights=(1, 3)), "sample", corpora / "out")

    assert [share.token_share for share in blend.shares] == [0.25, 0.75]
    assert [share.epochs for share in blend.shares] == [None, None]


def test_the_weight_of_a_dataset_is_shared_by_its_prefixes(corpora):
    limit = ["output.max_prefix_bytes=2000"]
    blend = run_mixture(mixture(corpora, "tokens", weights=(1, 3)), "sample", corpora / "out", settings=limit)
    lines = [line.split() for line in Path(blend.data_args).read_text().splitlines()]
    pairs = [dataprep.open_dataset(prefix) for _, prefix in lines]
    for name, weight, number in (("short", 0.25, 400), ("long", 0.75, 40)):
        mine = [i for i, (_, prefix) in enumerate(lines) if Path(prefix).name.startswith(name)]
        total = sum(pairs[i].num_tokens for i in mine)
        assert len(mine) > 1
        assert sum(len(pairs[i]) for i in mine) == number
        expected = [weight * pairs[i].num_tokens / total for i in mine]
        assert [float(lines[i][0]) for i in mine] == pytest.approx(expected, abs=1e-9)


def test_the_trainers_file_names_datasets_that_exist(corpora):
    blend = run_mixture(mixture(corpora, "tokens", weights=(1, 3)), "sample", corpora / "out")

    words = Path(blend.data_args).read_text().split()
    assert [float(word) for word in words[::2]] == [0.25, 0.75]
    assert [len(dataprep.open_dataset(prefix)) for prefix in words[1::2]] == [400, 40]
    assert (corpora / "out" / "mix-sample").resolve() == Path(blend.data_args).parent
    assert json.loads((Path(blend.data_args).parent / "blend.json").read_text())["shares"][1]["weight"] == 3


def test_the_frontier_mix_is_the_published_rows():
    frontier = find_mixture(["frontier-mix"])
    assert frontier.mixture.unit == "rows"
    assert sum(part.weight for part in frontier.mixture.corpora) == pytest.approx(1)
    assert find_mixture(["sample"]) is None


def test_row_weights_of_zyda2_come_to_the_shares_that_its_counts_give():
    """Documents and tokens of the four parts, as Zyda-2's card states them, and the row weights of the mixture."""
    from types import SimpleNamespace

    from dataprep.blending import token_shares

    counts = {"dclm": (2590.5, 3348.9), "fwe3": (1279.1, 1319.2), "dolma": (445.6, 238.4), "zyda": (247.7, 163.6)}
    manifests = [SimpleNamespace(counts=SimpleNamespace(num_documents=d, num_tokens=t)) for d, t in counts.values()]
    parts = [{"corpus": name, "weight": w} for name, w in zip(counts, (0.47, 0.47, 0.034, 0.024), strict=True)]
    mix = Mixture.from_json({"name": "z", "mixture": {"unit": "rows", "corpora": parts}}, "test")

    shares = token_shares(mix, manifests)

    assert [round(share, 2) for share in shares] == [0.54, 0.43, 0.02, 0.01]


def test_what_cannot_hold_for_all_corpora_is_refused(corpora):
    with pytest.raises(SpecError, match=r"--set reader.\*: .*differ in that; write YAMLs"):
        run_mixture(mixture(corpora, "rows"), "sample", corpora / "out", settings=["reader.text=body"])
    with pytest.raises(SpecError, match="frontier-mix is a mixture"):
        dataprep.run("frontier-mix", "sample", corpora / "out")


def test_the_plan_of_a_mixture_is_that_of_each_corpus(corpora, dataprep_cli):
    parts = [{"corpus": f"{name}.yaml", "weight": 1} for name in ("short", "long")]
    (corpora / "mix.yaml").write_text(json.dumps({"name": "mix", "mixture": {"unit": "rows", "corpora": parts}}))
    done = dataprep_cli("plan", "mix.yaml", "-t", "sample", "--limit", "7", "--workers", "1", "--json")

    assert done.returncode == 0, done.stderr
    plans = json.loads(done.stdout)
    assert [plan["recipe"]["corpus"] for plan in plans] == ["short", "long"]
    assert [(plan["recipe"]["limit"], plan["runtime"]["workers"]) for plan in plans] == [(7, 1)] * 2
    assert not (corpora / "data").exists()


@pytest.mark.slow
def test_the_command_prints_the_file_last(corpora, dataprep_cli):
    parts = [{"corpus": f"{name}.yaml", "weight": 1} for name in ("short", "long")]
    (corpora / "mix.yaml").write_text(
        json.dumps({"name": "mix", "license": "x", "mixture": {"unit": "rows", "tokens": 1000, "corpora": parts}})
    )
    done = dataprep_cli("run", "mix.yaml", "-t", "sample")

    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).name == "data_args.txt"
    assert re.search(r"of the tokens: \S*short.yaml \(weight 1 in rows", done.stderr)
    assert "epochs for the budget" in done.stderr


def test_relative_paths_start_at_the_mixture_and_small_mistakes_are_said(corpora, monkeypatch, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "short.jsonl").write_text('{"text": "the wrong one"}\n')
    monkeypatch.chdir(elsewhere)
    spec = {"name": "mix", "mixture": {"unit": "rows", "corpora": [{"corpus": "short.jsonl", "weight": 1, "limit": 3}]}}
    (corpora / "mix.yaml").write_text(json.dumps(spec))
    found = find_mixture([str(corpora / "mix.yaml")])

    blend = run_mixture(found, "sample", corpora / "out", limit=5, settings=["runtime.keep_raw=false"])
    assert [share.num_documents for share in blend.shares] == [3], "the smaller limit, of the file beside the YAML"
    with pytest.raises(SpecError, match="splits --data-args-path at spaces"):
        run_mixture(found, "sample", corpora / "an out")
    assert not (corpora / "an out").exists()
    with pytest.raises(SpecError, match="is the name of a mixture and of its corpus"):
        run_mixture(found.model_copy(update={"name": "short"}), "sample", corpora / "out")
    for weight in (".inf", ".nan", "0"):
        (corpora / "mix.yaml").write_text(
            f"name: m\nmixture: {{unit: rows, corpora: [{{corpus: a, weight: {weight}}}]}}"
        )
        with pytest.raises(SpecError, match=r"mixture.corpora.0.weight"):
            find_mixture([str(corpora / "mix.yaml")])
    with pytest.raises(SpecError, match="a mixture has no subsets"):
        find_mixture(["frontier-mix:x"])

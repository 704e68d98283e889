"""A small dataset to train on, and jobs on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import dataprep
from dataprep.train.job import Job
from dataprep.train.request import Asked, Resolved, resolve


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The prefix of 800 documents with a manifest."""
    return dataprep.run("sample", tokenizer="sample", output=tmp_path_factory.mktemp("dataset"), limit=800).prefix


@pytest.fixture
def ask(dataset: str, tmp_path: Path) -> Callable[..., Resolved]:
    """Resolve a request, of `dataset` and gpt3-125m if nothing else is said; `environment` is empty."""

    def asked(*words: str, environment: dict[str, str] | None = None, **changes) -> Resolved:
        values = {"words": words or (dataset,), "model": "gpt3-125m", "output": tmp_path / "runs", **changes}
        return resolve(Asked(**values), environment or {})

    return asked


@pytest.fixture
def make_job(ask: Callable[..., Resolved]) -> Callable[..., Job]:
    """The job of such a request."""

    def make(*words: str, **changes) -> Job:
        return ask(*words, **changes).job

    return make

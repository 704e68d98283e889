"""Jobs to render."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from dataprep.specs import TokenizerIdentity
from dataprep.train.job import Data, Job, Launch, Parallel, Part, Training
from dataprep.train.presets import LEARNING_RATE, LEARNING_RATES, Shape, find_preset


def _part(prefix: str, weight: float = 1.0, tokens: int = 1_000_000, documents: int = 1000) -> Part:
    return Part(
        prefix=prefix,
        weight=weight,
        num_documents=documents,
        num_sequences=documents,
        num_tokens=tokens,
        dtype="uint16",
    )


@pytest.fixture(scope="session")
def make_part() -> Callable[..., Part]:
    """Makes one prefix of a split: `make_part("/data/a", 0.5, tokens=10, documents=2)`."""
    return _part


@pytest.fixture(scope="session")
def make_job() -> Callable[..., Job]:
    """Makes a job: `make_job("llama3-8b", train={"recompute": "full"}, tokenizer_type="Llama2Tokenizer")`."""

    def make(model: str = "gpt3-125m", backend: str = "megatron-deepspeed", **changes: Any) -> Job:
        name, shape = find_preset(model)
        shape = shape.model_copy(update=changes.pop("shape", {}))
        given: Mapping[str, Any] = {
            "name": f"{name}-corpus",
            "backend": backend,
            "profile": "megatron-deepspeed",
            "model": name,
            "shape": shape,
            "vocab_size": shape.vocab_size,
            "tokenizer": _identity(str(changes.get("tokenizer_type", "HuggingFaceTokenizer")), shape),
            "tokenizer_type": "HuggingFaceTokenizer",
            "tokenizer_path": "/shared/tokenizers/t",
            "data": Data(parts=(_part("/shared/data/corpus_text_document"),)),
            "train": _training(name, changes.pop("train", {})),
            "parallel": Parallel(**changes.pop("parallel", {})),
            "launch": Launch(**changes.pop("launch", {})),
            "output": f"/shared/runs/{name}-corpus",
        }
        return Job(**{**given, **changes})

    return make


def _training(name: str, changes: dict[str, Any]) -> Training:
    given = {
        "seq_length": 2048,
        "micro_batch_size": 2,
        "global_batch_size": 256,
        "train_iters": 1000,
        "lr": LEARNING_RATES.get(name, LEARNING_RATE),
        "min_lr": LEARNING_RATES.get(name, LEARNING_RATE) / 10,
        "lr_warmup_iters": 10,
        "lr_decay_iters": 1000,
        "save": "/shared/runs/job/checkpoints",
        "log_dir": "/shared/runs/job/logs",
    }
    return Training(**{**given, **changes})


def _identity(type_: str, shape: Shape) -> TokenizerIdentity | None:
    if type_ == "NullTokenizer":
        return None
    return TokenizerIdentity(
        name="t",
        type=type_,  # type: ignore[arg-type]
        path="/shared/tokenizers/t",
        files={},
        vocab_size=shape.vocab_size,
        bos_id=None,
        bos_text=None,
        eod_id=0,
        eod_text="<eod>",
        adds_bos=False,
    )

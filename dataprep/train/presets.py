"""The shapes of models that are trained, each with the numbers of its paper or its published configuration.

A shape says what decides the parameters and what the layers compute, and nothing about how it is trained. Where the
scripts that people copy have other numbers, the ones here are the model's; `compat.py` has the scripts'.

Sources: Llama 2: arXiv:2307.09288, and the config.json of its hub repositories; Llama 3, 3.1, 3.2: arXiv:2407.21783,
and the same; GPT-3: arXiv:2005.14165, table 2.1, with the heads of Megatron-DeepSpeed's
``examples_deepspeed/rebase/ds_pretrain_gpt_125M.sh`` (f4157bea); the ``gpt-*`` sizes: arXiv:2104.04473, table 1.
"""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, model_validator

from dataprep.errors import SpecError
from dataprep.specs import Model


class RopeScaling(Model):
    """Llama 3.1's stretching of the rotary frequencies; the names are those of its config.json."""

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


class Shape(Model):
    """A model.

    Attributes:
        family: ``llama``: RMSNorm, SwiGLU, rotary positions, no biases. ``gpt``: LayerNorm, GELU, learned positions,
            biases, embeddings and output of one weight.
        num_query_groups: heads of keys and values; as many as `num_attention_heads` without grouped queries.
        vocab_size: of the published model, without padding; a job has its tokenizer's.
        rotary_base: theta of the rotary positions, of llama only, as `rope_scaling`.
        tie_embeddings: whether the output layer is the embedding.
        hidden_dropout, attention_dropout: probabilities.
        add_bias_linear: whether linear layers have biases.
        init_method_std: of the normal distribution that weights are drawn from.
    """

    family: Literal["llama", "gpt"]
    num_layers: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    ffn_hidden_size: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_query_groups: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    max_position_embeddings: int = Field(ge=1)
    rotary_base: float = Field(default=10000.0, gt=0)
    rope_scaling: RopeScaling | None = None
    norm_epsilon: float = 1e-5
    tie_embeddings: bool = False
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    add_bias_linear: bool = False
    init_method_std: float = 0.02

    @model_validator(mode="after")
    def _divides(self) -> Self:
        heads, groups = self.num_attention_heads, self.num_query_groups
        if self.hidden_size % heads:
            raise ValueError(f"hidden_size {self.hidden_size} is no multiple of num_attention_heads {heads}")
        if heads % groups:
            raise ValueError(f"num_attention_heads {heads} is no multiple of num_query_groups {groups}")
        return self

    @property
    def head_size(self) -> int:
        """Elements of each head."""
        return self.hidden_size // self.num_attention_heads

    def num_parameters(self, vocab_size: int | None = None) -> int:
        """Parameters of the whole model.

        Args:
            vocab_size: rows of the embedding; None: the published ones.
        """
        h, f, v = self.hidden_size, self.ffn_hidden_size, vocab_size or self.vocab_size
        keys = self.num_query_groups * self.head_size
        attention = 2 * h * h + 2 * h * keys
        mlp, norm = (3 * h * f, h) if self.family == "llama" else (2 * h * f, 2 * h)
        biases = (2 * h + 2 * keys) + (f * (2 if self.family == "llama" else 1) + h) if self.add_bias_linear else 0
        layers = self.num_layers * (attention + mlp + 2 * norm + biases)
        positions = self.max_position_embeddings * h if self.family == "gpt" else 0
        return v * h * (1 if self.tie_embeddings else 2) + positions + layers + norm


def _llama(sizes: tuple[int, int, int, int, int], vocab: int, positions: int, base: float) -> Shape:
    layers, hidden, ffn, heads, groups = sizes
    return Shape(
        family="llama",
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_attention_heads=heads,
        num_query_groups=groups,
        vocab_size=vocab,
        max_position_embeddings=positions,
        rotary_base=base,
    )


def _llama31(shape: Shape, factor: float = 8.0, tied: bool = False) -> Shape:
    changed = {
        "max_position_embeddings": 131072,
        "rope_scaling": RopeScaling(factor=factor),
        "tie_embeddings": tied,
    }
    return shape.model_copy(update=changed)


def _gpt(layers: int, hidden: int, heads: int, std: float = 0.02) -> Shape:
    return Shape(
        family="gpt",
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=4 * hidden,
        num_attention_heads=heads,
        num_query_groups=heads,
        vocab_size=50257,
        max_position_embeddings=2048,
        tie_embeddings=True,
        add_bias_linear=True,
        init_method_std=std,
    )


_LLAMA3_8B = _llama((32, 4096, 14336, 32, 8), 128256, 8192, 500000.0)
_LLAMA3_70B = _llama((80, 8192, 28672, 64, 8), 128256, 8192, 500000.0)

PRESETS: dict[str, Shape] = {
    "llama2-7b": _llama((32, 4096, 11008, 32, 32), 32000, 4096, 10000.0),
    "llama2-13b": _llama((40, 5120, 13824, 40, 40), 32000, 4096, 10000.0),
    "llama2-70b": _llama((80, 8192, 28672, 64, 8), 32000, 4096, 10000.0),
    "llama3-8b": _LLAMA3_8B,
    "llama3-70b": _LLAMA3_70B,
    "llama3.1-8b": _llama31(_LLAMA3_8B),
    "llama3.1-70b": _llama31(_LLAMA3_70B),
    "llama3.1-405b": _llama31(_llama((126, 16384, 53248, 128, 8), 128256, 8192, 500000.0)),
    "llama3.2-1b": _llama31(_llama((16, 2048, 8192, 32, 8), 128256, 8192, 500000.0), 32.0, tied=True),
    "llama3.2-3b": _llama31(_llama((28, 3072, 8192, 24, 8), 128256, 8192, 500000.0), 32.0, tied=True),
    "gpt3-125m": _gpt(12, 768, 12),
    "gpt3-350m": _gpt(24, 1024, 16),
    "gpt3-760m": _gpt(24, 1536, 16),
    "gpt3-1.3b": _gpt(24, 2048, 16),
    "gpt3-2.7b": _gpt(32, 2560, 32),
    "gpt3-6.7b": _gpt(32, 4096, 32),
    "gpt3-13b": _gpt(40, 5120, 40),
    "gpt3-175b": _gpt(96, 12288, 96),
    "gpt-1.7b": _gpt(24, 2304, 24, 0.006),
    "gpt-3.6b": _gpt(30, 3072, 32, 0.006),
    "gpt-7.5b": _gpt(36, 4096, 32, 0.006),
    "gpt-18.4b": _gpt(40, 6144, 48, 0.006),
    "gpt-39.1b": _gpt(48, 8192, 64, 0.006),
    "gpt-76.1b": _gpt(60, 10240, 80, 0.006),
    "gpt-145.6b": _gpt(80, 12288, 96, 0.006),
    "gpt-310.1b": _gpt(96, 16384, 128, 0.006),
}
"""Name -> shape. A family and a size, parted by a dash."""

LEARNING_RATES: dict[str, float] = {
    "llama2-70b": 1.5e-4,
    "llama3-70b": 1.5e-4,
    "llama3.1-70b": 1.5e-4,
    "llama3.1-405b": 8e-5,
    "gpt3-125m": 6e-4,
    "gpt3-350m": 3e-4,
    "gpt3-760m": 2.5e-4,
    "gpt3-1.3b": 2e-4,
    "gpt3-2.7b": 1.6e-4,
    "gpt3-6.7b": 1.2e-4,
    "gpt3-13b": 1e-4,
    "gpt3-175b": 0.6e-4,
    "gpt-1.7b": 2e-4,
    "gpt-3.6b": 1.6e-4,
    "gpt-7.5b": 1.2e-4,
    "gpt-18.4b": 1e-4,
    "gpt-39.1b": 6e-5,
    "gpt-76.1b": 6e-5,
    "gpt-145.6b": 6e-5,
    "gpt-310.1b": 6e-5,
}
"""Peak learning rates of the published trainings, from the papers above; of the others it is `LEARNING_RATE`."""

LEARNING_RATE = 3e-4
"""Of Llama 2 7B and 13B, and Llama 3 8B."""

ALIASES = {
    "llama3-1b": "llama3.2-1b",
    "llama3-3b": "llama3.2-3b",
    "llama3.1-1b": "llama3.2-1b",
    "llama3.1-3b": "llama3.2-3b",
    "llama3-405b": "llama3.1-405b",
    "gpt-39b": "gpt-39.1b",
    "gpt-76b": "gpt-76.1b",
    "gpt-310b": "gpt-310.1b",
    "gpt3-310b": "gpt-310.1b",
    "gpt2-125m": "gpt3-125m",
}
"""Sizes that a family has under another name."""


def find_preset(name: str, size: str | None = None) -> tuple[str, Shape]:
    """The shape of a name such as ``llama3.1-8b``, ``meta-llama/Llama-3.1-8B``, or ``llama3`` and a size apart.

    Args:
        name: as the user wrote it.
        size: as MODEL_SIZE of the public scripts: ``8``, ``8B``, ``125M``; must not contradict `name`.

    Returns:
        The name in `PRESETS`, and the shape.

    Raises:
        SpecError: there is none, or a family without its size.
    """
    plain = re.sub(r"^(meta-)?(llama|gpt)-(?=[23](\.\d)?-)", r"\2", name.lower().rpartition("/")[2])
    plain = re.sub(r"-(hf|base)$", "", plain)
    if size is not None:
        wanted = size.lower() if size.lower().endswith(("b", "m")) else f"{size.lower()}b"
        family, dash, own = plain.partition("-")
        if dash and own != wanted:
            raise SpecError(f"--model {name} and MODEL_SIZE={size} are two sizes; give one of them")
        plain = f"{family}-{wanted}"
    plain = ALIASES.get(plain, plain)
    if plain in PRESETS:
        return plain, PRESETS[plain]
    family = plain.partition("-")[0]
    sizes = [known.partition("-")[2] for known in PRESETS if known.partition("-")[0] == family]
    if sizes:
        raise SpecError(f"--model {name}: of which size? {family} has {', '.join(sizes)}: --model {family}-{sizes[0]}")
    known = ", ".join(PRESETS)
    raise SpecError(f"unknown model {name!r}; known are {known}; --set model.KEY=VALUE changes one of them")

"""A tokenizer: as the user wrote it (one YAML of ``tokenizers/``), and resolved."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from dataprep.specs.models import Model, Name

TokenizerType = Literal["GPT2BPETokenizer", "Llama2Tokenizer", "HuggingFaceTokenizer"]


class TokenizerSpec(Model):
    """One YAML of ``tokenizers/``, or what ``--tokenizer`` was resolved to.

    Attributes:
        type: Megatron's name.
        path: the file or folder that holds it; relative ones start at the YAML's folder. None: `repo` names it.
        merges: of a GPT2BPETokenizer: the file that holds the merges, where `path` is that of the vocabulary and they
            are not called ``vocab.json`` and ``merges.txt``. Starts where `path` does.
        repo: the hub repository it comes from.
        revision: of that repository: branch, tag or commit.
        gated: whether that repository's page asks to accept conditions first.
        eod: the EOD token's text, where the tokenizer's own files do not say or say it wrong.
    """

    name: Name
    description: str = ""
    license: str = ""
    type: TokenizerType
    path: str | None = None
    merges: str | None = None
    repo: str | None = Field(default=None, pattern=r"^[\w.-]+/[\w.-]+$")
    revision: str = "main"
    gated: bool = False
    eod: str | None = None

    @model_validator(mode="after")
    def _has_a_place(self) -> Self:
        if self.path is None and self.repo is None:
            raise ValueError("give path: or repo:")
        if self.merges is not None and (self.type != "GPT2BPETokenizer" or self.path is None):
            raise ValueError("merges: goes with the path: of a GPT2BPETokenizer's vocabulary")
        return self


class TokenizerIdentity(Model):
    """A tokenizer, resolved: what it is, not what it is called.

    Attributes:
        files: file name -> sha256 of its content.
        path: the file or folder the encoder is opened from.
        merges: the file of merges, where it is named apart.
        origin: the hub repository and commit it comes from, if it does.
        vocab_size: one more than the largest id.
        bos_id, eod_id: None where the tokenizer has none.
        bos_text, eod_text: the same as text.
        adds_bos: whether the tokenizer itself puts a BOS first.
        adds_eod: whether it puts the EOD last; one is written all the same, or none, as the policy says.
    """

    name: str
    type: TokenizerType
    path: str
    merges: str | None = None
    origin: str = ""
    files: dict[str, str]
    vocab_size: int
    bos_id: int | None
    bos_text: str | None
    eod_id: int | None
    eod_text: str | None
    adds_bos: bool
    adds_eod: bool = False

    @property
    def identity(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"name", "path", "merges", "origin", "adds_eod"})

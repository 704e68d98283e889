"""What was found out about one pair, and what a training with it expects; both are plain values."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dataprep.checks.rules import RULES
from dataprep.manifest import PairFiles, Prefix

if TYPE_CHECKING:
    from pathlib import Path

    from dataprep.checks.rules import Severity
    from dataprep.specs import TokenizerIdentity

Level = Literal["index", "tokens", "source"]
LEVELS: tuple[Level, ...] = ("index", "tokens", "source")

SCHEMA = 1
"""Of the report as JSON: ``report.schema.json`` beside this file."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a training brings, and the pair has to fit. All of it may be left out; the manifest fills the gaps.

    Attributes:
        tokenizer: that the training uses.
        special_ids: its special tokens, EOD and BOS among them or not; they are looked for inside documents.
        vocab_size: one more than the largest id; wins over the tokenizer's and the manifest's.
        eod_id: the id that ends every document; wins over theirs.
        split: Megatron's ``--split``, such as ``969,30,1``.
        seq_length: Megatron's ``--seq-length``; without a `split`, Megatron's default split is checked.
        cache: folder of Megatron's index caches, beside the one next to the pair.
    """

    tokenizer: TokenizerIdentity | None = None
    special_ids: tuple[int, ...] = ()
    vocab_size: int | None = None
    eod_id: int | None = None
    split: str | None = None
    seq_length: int | None = None
    cache: str | Path | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a problem is: a file, and as far as they are known a byte of it, a sequence, a document."""

    file: str
    byte: int | None = None
    sequence: int | None = None
    document: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        return ", ".join([self.file, *(f"{key} {value}" for key, value in self.to_json().items() if key != "file")])


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        code: stable word, a key of `rules.RULES`.
        severity: ``error``: training on it is wrong or fails; ``warning``: it may be meant.
        place: where; of many, the first.
        message: what was expected and what was found, and the likely cause where it shows.
        symptom: what Megatron does with it.
        fix: what to do; empty where there is nothing to do.
    """

    code: str
    severity: Severity
    place: Place
    message: str
    symptom: str
    fix: str

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": self.severity,
            "place": self.place.to_json(),
            "message": self.message,
            "symptom": self.symptom,
            "fix": self.fix,
        }

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass
class Report:
    """What was found out about one prefix. What could not be found out is None.

    Attributes:
        prefix: path without ``.bin``.
        level: how deep it was looked.
        problems: empty for a sound pair.
        num_sequences, num_documents, num_tokens, dtype: as the pair itself says.
        min_length, max_length, mean_length: of the sequences, in tokens.
        vocab_size: that the ids were held to.
        bin_checksum: ``xxh3_128:<hex>`` of the ``.bin``; from level ``tokens`` on, if its tokens could be read.
        max_id: largest id found.
        eod_id: the id that ends documents: the one that should, or the one that ends more than half of them.
        num_with_eod: documents that end with it.
        num_eod_inside: how often it stands elsewhere.
        bos_id: the id that documents begin with: the one that should, or the one that begins more than half of them.
        num_with_bos: documents that begin with it.
        num_specials_inside: other special tokens inside documents, where they are known.
        num_sampled: documents encoded again.
    """

    prefix: str
    level: Level
    problems: list[Problem] = field(default_factory=list)
    num_sequences: int = 0
    num_documents: int = 0
    num_tokens: int = 0
    dtype: str = ""
    min_length: int | None = None
    max_length: int | None = None
    mean_length: float | None = None
    vocab_size: int | None = None
    bin_checksum: str | None = None
    max_id: int | None = None
    eod_id: int | None = None
    num_with_eod: int | None = None
    num_eod_inside: int | None = None
    bos_id: int | None = None
    num_with_bos: int | None = None
    num_specials_inside: int | None = None
    num_sampled: int = 0

    @property
    def errors(self) -> list[Problem]:
        """The problems without warnings."""
        return [problem for problem in self.problems if problem.severity == "error"]

    @property
    def warnings(self) -> tuple[str, ...]:
        """The other problems for which there is something to do, each as one sentence with it."""
        found = (problem for problem in self.problems if problem.severity == "warning" and problem.fix)
        return tuple(f"{each.code}: {each.message}; {each.fix}" for each in found)

    @property
    def ok(self) -> bool:
        """No error; warnings do not count."""
        return not self.errors

    @property
    def codes(self) -> set[str]:
        """The codes of all problems."""
        return {problem.code for problem in self.problems}

    def add(self, code: str, place: Place, message: str, fix: str | None = None) -> None:
        """Note a problem; how bad it is, its symptom, and without a fix of its own the fix, are the rule's."""
        rule = RULES[code]
        fix = (rule.fix if fix is None else fix).replace("{prefix}", shlex.quote(self.prefix))
        self.problems.append(Problem(code, rule.severity, place, message, rule.symptom, fix))

    def to_json(self) -> dict[str, Any]:
        values = {key: value for key, value in vars(self).items() if key != "problems"}
        problems = [problem.to_json() for problem in self.problems]
        return {**values, "schema_version": SCHEMA, "ok": self.ok, "problems": problems}

    def entry(self, name: str, dtype: Literal["uint16", "int32"], idx_bytes: int, idx_checksum: str) -> Prefix:
        """What a manifest says of a pair that was just written and read back.

        Args:
            name: of the prefix, without its folder.
            dtype: of the tokens.
            idx_bytes, idx_checksum: of the index as it was written.
        """
        assert self.bin_checksum is not None
        return Prefix(
            name=name,
            num_documents=self.num_documents,
            num_sequences=self.num_sequences,
            num_tokens=self.num_tokens,
            dtype=dtype,
            files=PairFiles(
                bin_bytes=self.num_tokens * np.dtype(dtype).itemsize,
                bin_checksum=self.bin_checksum,
                idx_bytes=idx_bytes,
                idx_checksum=idx_checksum,
            ),
        )

    def named(self, name: str) -> Report:
        """The same report of a pair that will have another name: what a manifest keeps."""

        def renamed(text: str) -> str:
            return text.replace(self.prefix, name)

        problems = [
            replace(
                problem,
                place=replace(problem.place, file=renamed(problem.place.file)),
                message=renamed(problem.message),
                fix=renamed(problem.fix),
            )
            for problem in self.problems
        ]
        return replace(self, prefix=name, problems=problems)

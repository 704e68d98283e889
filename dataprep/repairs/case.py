"""One pair while it is looked at: what is known of it, and what was found so far."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dataprep.checks.header import is_index
from dataprep.checks.rules import RULES
from dataprep.errors import FormatError
from dataprep.indexed import bin_path, idx_path
from dataprep.repairs.arrays import read_raw
from dataprep.repairs.evidence import examine

if TYPE_CHECKING:
    from pathlib import Path

    from dataprep.manifest import Prefix
    from dataprep.repairs.evidence import Evidence
    from dataprep.repairs.findings import Finding
    from dataprep.repairs.readings import Reading
    from dataprep.watcher import Watcher

Dtype = Literal["uint16", "int32"]

NAME_EOD = "name the EOD with --eod ID or --tokenizer T"
"""What helps where the sizes leave something open."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that a repair does.

    Attributes:
        code: of the problem it mends, as `verify` calls it; or ``dtype``, ``byte-order``.
        text: what was found, and what was made of it.
    """

    code: str
    text: str

    def to_json(self) -> dict[str, str]:
        return {"code": self.code, "text": self.text}


@dataclass(frozen=True, slots=True)
class Known:
    """What the user and the manifest say of a pair.

    Attributes:
        eod: the id that ends documents.
        vocab_size: one more than the largest id.
        dtype: wanted; and what the ``.bin`` holds, where nothing else says it.
        documents: sentences are to be joined to documents.
        published: what the manifest says of the pair.
    """

    eod: int | None = None
    vocab_size: int | None = None
    dtype: Dtype | None = None
    documents: bool = False
    published: Prefix | None = None


class Unusable(Exception):  # noqa: N818 - no error: it is caught, and the EODs are asked
    """No index can be believed.

    Attributes:
        finding: why.
    """

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding)
        self.finding = finding


@dataclass
class Case:
    """One pair, while it is looked at.

    Attributes:
        prefix: of the pair.
        known: what is known from elsewhere.
        scratch: folder for scratch files without names.
        watcher: told of the bytes read.
        changes, warnings: so far.
        bin, bin_bytes: the ``.bin``, and its size.
        header: of the ``.idx``; None without one.
        proven_eod: the EOD that was known, if every document ends with it by what was found.
    """

    prefix: Path
    known: Known
    scratch: Path
    watcher: Watcher
    changes: list[Change] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    proven_eod: int | None = None

    def __post_init__(self) -> None:
        self.bin = bin_path(self.prefix)
        if not self.bin.exists():
            raise self.refusal(("missing-bin", f"{self.bin} does not exist, and nothing else holds the tokens"))
        if not self.bin.is_file():
            raise FormatError(f"{self.bin} is no file")
        self.bin_bytes = self.bin.stat().st_size
        if not self.bin_bytes:
            raise self.refusal(("no-tokens", f"{self.bin} is empty"))
        if is_index(self.bin) and not is_index(idx_path(self.prefix)):
            raise self.refusal(("swapped", f"{self.bin} begins as an index does, and the .idx does not"))
        self.header = read_raw(idx_path(self.prefix))

    def change(self, code: str, text: str) -> None:
        """Note what is done."""
        self.changes.append(Change(code, text))

    def note_order(self, reading: Reading) -> None:
        """Note whether bytes are turned around."""
        if not reading.dtype.isnative:
            self.change("byte-order", f"{self.bin}: the tokens were big-endian; every one was turned around")

    def examine(self, reading: Reading) -> Evidence:
        """Read the ``.bin`` once."""
        self.watcher.stage("examine", self.bin_bytes)
        return examine(self.bin, reading, self.known.eod, self.watcher)

    def refusal(self, finding: Finding, advice: str | None = None) -> FormatError:
        """The error for what cannot be mended; without advice of its own, with what mends it by `RULES`."""
        code, text = finding
        fix = RULES[code].fix.format(prefix=shlex.quote(str(self.prefix))) if advice is None else advice
        return FormatError(f"{self.prefix} cannot be repaired: {code}: {text}{'; ' if fix else ''}{fix}")

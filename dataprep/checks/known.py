"""What ids a pair may hold and which end its documents: as the training, the tokenizer and the manifest say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataprep.checks.report import Place
from dataprep.errors import SpecError
from dataprep.indexed import idx_path
from dataprep.manifest import eod_of

if TYPE_CHECKING:
    from pathlib import Path

    from dataprep.checks.report import Expected, Report
    from dataprep.manifest import Manifest
    from dataprep.specs import TokenizerIdentity

MAX_VOCABULARY = 1 << 22
"""No tokenizer has so many tokens (XLM-V's, a large one, has 901,629): where none is named, larger ids are wrong."""

BAND = (65500, 65536)
"""Vocabulary sizes for which Megatron's writer says int32 (indexed_dataset.py, `DType.optimal_dtype`: uint16 is below
65500) and its reader by --per-dataset-sequences-path uint16 (gpt_dataset.py, `token_dtype_code`: int32 from 65537)."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known before the tokens are read.

    Attributes:
        vocab_size: one more than the largest id.
        eod: the id that ends documents, or that the tokenizer would end them with.
        is_certain: documents have to end with it: it was said so, not only that the tokenizer has such a token.
        has_none: the manifest says that documents end with no EOD.
        keeps_empty: the manifest says that empty documents were kept.
        bos: the id that begins documents, if they begin with one.
        specials: the special ids that are known.
        has_tokenizer: all that may begin a document is among them.
    """

    vocab_size: int | None = None
    eod: int | None = None
    is_certain: bool = False
    has_none: bool = False
    keeps_empty: bool = False
    bos: int | None = None
    specials: frozenset[int] = frozenset()
    has_tokenizer: bool = False


def learn(expect: Expected, manifest: Manifest | None) -> Known:
    """Put together what is known.

    Raises:
        SpecError: the request contradicts itself.
    """
    tokenizer = expect.tokenizer or (manifest.tokenizer if manifest else None)
    vocab_size = expect.vocab_size or (tokenizer.vocab_size if tokenizer else None)
    policy = manifest.policy if manifest else None
    eod, is_certain = expect.eod_id, expect.eod_id is not None
    if eod is None:
        eod = eod_of(manifest)
        is_certain = eod is not None
    if eod is None and tokenizer is not None:
        eod = tokenizer.eod_id
    if vocab_size is not None and expect.eod_id is not None and expect.eod_id >= vocab_size:
        raise SpecError(
            f"the EOD {eod} is no id of a vocabulary of {vocab_size}; give --eod and --vocab-size of one kind"
        )
    bos = tokenizer.bos_id if tokenizer else None
    return Known(
        vocab_size=vocab_size,
        eod=eod,
        is_certain=is_certain,
        has_none=expect.eod_id is None and policy is not None and policy.eod == "none",
        keeps_empty=policy is not None and policy.empty != "drop",
        bos=bos if bos != eod else None,
        specials=frozenset([*expect.special_ids, *(id_ for id_ in (bos, eod) if id_ is not None)]),
        has_tokenizer=tokenizer is not None,
    )


def check_tokenizer(prefix: Path, expect: Expected, manifest: Manifest | None, report: Report) -> None:
    """Hold the training's tokenizer to the one that the manifest names."""
    mine, theirs = manifest.tokenizer if manifest else None, expect.tokenizer
    if mine is None or theirs is None:
        return
    facts = [("vocabulary", mine.vocab_size, theirs.vocab_size), ("EOD", mine.eod_id, theirs.eod_id)]
    facts.append(("BOS", mine.bos_id, theirs.bos_id))
    other = [f"{name} {a}, not {b}" for name, a, b in facts if a != b and a is not None and b is not None]
    changed = sorted(name for name, sha in theirs.files.items() if mine.files.get(name, sha) != sha)
    place = Place(str(prefix))
    if other:
        report.add("tokenizer-other", place, f"made with {mine.name}, not with {theirs.name}: {'; '.join(other)}")
    elif changed:
        files = " and ".join(changed)
        report.add("tokenizer-files", place, f"made with another {files}: {_short(mine)}, not {_short(theirs)}")


def _short(tokenizer: TokenizerIdentity) -> str:
    return f"{tokenizer.name} ({', '.join(sha[:8] for sha in tokenizer.files.values())})"


def check_dtype(prefix: Path, vocab_size: int | None, report: Report) -> None:
    """Hold the dtype to the size of the vocabulary."""
    if vocab_size is None or report.dtype not in ("uint16", "int32", "int16", "uint8", "int8"):
        return
    place = Place(str(idx_path(prefix)), 17)
    room = {"uint8": 2**8, "int8": 2**7, "int16": 2**15, "uint16": 2**16, "int32": 2**31}[report.dtype]
    if vocab_size > room:
        report.add("dtype-vocab", place, f"a vocabulary of {vocab_size} does not fit {report.dtype}")
    elif report.dtype == "int32" and vocab_size <= BAND[1]:
        band = f", which lies between {BAND[0]} and {BAND[1]}," if vocab_size >= BAND[0] else ""
        text = f"int32 for a vocabulary of {vocab_size}{band} where --per-dataset-sequences-path takes uint16"
        report.add("dtype-band", place, text)

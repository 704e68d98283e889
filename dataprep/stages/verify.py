"""Prove a pair: what is wrong with a ``.bin``/``.idx``, by whomever written, and what it would do to a training.

    index   the ``.idx`` and the sizes: structure, pointers, boundaries            milliseconds
    tokens  one pass over the ``.bin`` as well: ids, EODs, checksums                  the speed of a read
    source  and a sample of documents encoded again from the source, by the reference

With a manifest beside the pair, sizes, checksums, counts, vocabulary and EOD are held to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xxhash

from dataprep import parity
from dataprep.errors import DataprepError, EncodeError, FormatError, SourceError, SpecError
from dataprep.indexed import CHUNK, IndexedDataset, bin_path, idx_path, read_header
from dataprep.layout import find_prefix
from dataprep.manifest import DatasetManifest, eod_of, manifest_of
from dataprep.storage import COPY_BYTES, checksum

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from dataprep.manifest import Manifest

Level = Literal["index", "tokens", "source"]
LEVELS: tuple[Level, ...] = ("index", "tokens", "source")

SAMPLE = 100
"""Documents that level ``source`` encodes again."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        code: stable word.
        severity: ``error``: training on it is wrong or fails; ``warning``: it may be meant.
        message: where, expected and found, and what it would do.
    """

    code: str
    severity: Literal["error", "warning"]
    message: str


@dataclass
class Report:
    """What was found out about one prefix.

    Attributes:
        prefix: path without ``.bin``.
        level: how deep it was looked.
        problems: empty for a sound pair.
        num_sequences, num_documents, num_tokens, dtype: as the pair itself says.
        bin_checksum: ``xxh3_128:<hex>`` of the ``.bin``, from level ``tokens`` on.
        max_id: largest id found, from level ``tokens`` on.
        eod_id: the id that ends documents: the manifest's, or the one that ends more than half of them.
        num_with_eod: documents that end with it.
        num_eod_inside: how often it stands elsewhere.
        num_sampled: documents encoded again.
    """

    prefix: str
    level: Level
    problems: list[Problem] = field(default_factory=list)
    num_sequences: int = 0
    num_documents: int = 0
    num_tokens: int = 0
    dtype: str = ""
    bin_checksum: str | None = None
    max_id: int | None = None
    eod_id: int | None = None
    num_with_eod: int | None = None
    num_eod_inside: int | None = None
    num_sampled: int = 0

    @property
    def ok(self) -> bool:
        """No error; warnings do not count."""
        return not any(problem.severity == "error" for problem in self.problems)

    def error(self, code: str, message: str) -> None:
        self.problems.append(Problem(code, "error", message))

    def warn(self, code: str, message: str) -> None:
        self.problems.append(Problem(code, "warning", message))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "problems"}
        problems = [{"code": p.code, "severity": p.severity, "message": p.message} for p in self.problems]
        return {**values, "ok": self.ok, "problems": problems}


def verify(
    prefix: str | Path,
    level: Level = "tokens",
    parts: Sequence[tuple[int, str]] = (),
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Check one pair.

    Args:
        prefix: path without ``.bin``; a path with ``.bin`` or ``.idx`` means the same.
        level: how deep to look.
        parts: for each stretch of the ``.bin``, its end in bytes and the checksum it must have.
        progress: called with the bytes of ``.bin`` just read.

    Returns:
        The report; problems are in it, not raised.

    Raises:
        SpecError: unknown level, no such prefix, or ``source`` for a pair without a manifest.
    """
    if level not in LEVELS:
        raise SpecError(f"unknown level {level!r}; expected one of {', '.join(LEVELS)}")
    path = find_prefix(prefix)
    report = Report(str(path), level)
    manifest = _manifest(path, report)
    if level == "source" and not isinstance(manifest, DatasetManifest):
        raise SpecError(f"--level source needs the manifest.json that dataprep writes beside {path}")
    try:
        pair = _check_index(path, report)
        if pair is not None and report.ok:
            if level != "index":
                _check_tokens(pair, report, manifest, parts, progress)
            if manifest is not None:
                _check_manifest(path, report, manifest)
            if level == "source" and isinstance(manifest, DatasetManifest) and report.ok:
                report.num_sampled = parity.recheck(pair, manifest, SAMPLE)
    except FormatError as error:
        report.error("format", str(error))
    except (EncodeError, SourceError) as error:
        report.error("source", str(error))
    return report


def _manifest(path: Path, report: Report) -> Manifest | None:
    try:
        return manifest_of(path)
    except DataprepError as error:
        report.warn("manifest", str(error))
        return None


def _check_index(path: Path, report: Report) -> IndexedDataset | None:
    header = read_header(idx_path(path))
    report.num_sequences, report.num_documents = header.num_sequences, max(0, header.num_boundaries - 1)
    report.dtype = header.dtype.name
    if header.dtype.kind == "f":
        report.error("dtype", f"{idx_path(path)}: dtype code {header.code} is {report.dtype}; token ids are integers")
        return None
    if header.code not in (4, 8):
        report.warn("dtype", f"{idx_path(path)}: dtype {report.dtype} is unusual; Megatron writes uint16 or int32")
    if header.num_bytes != idx_path(path).stat().st_size:
        report.warn(
            "modes",
            f"{idx_path(path)}: {header.num_sequences} bytes more than text needs: multimodal modes, or stray bytes",
        )
    if not header.num_sequences:
        report.error("empty", f"{path}: no sequences; Megatron hangs while it builds its sample index")
        return None
    size = bin_path(path).stat().st_size if bin_path(path).exists() else -1
    if size < 0:
        report.error("missing-bin", f"{bin_path(path)} does not exist")
        return None
    if size % header.dtype.itemsize:
        report.error("bin-size", f"{bin_path(path)}: {size} bytes are not a whole number of {report.dtype}")
        return None
    pair = IndexedDataset(path)
    total = _check_lengths(pair, report)
    report.num_tokens = total
    if total * header.dtype.itemsize != size:
        report.error(
            "bin-size",
            f"{bin_path(path)}: the index counts {total} tokens of {header.dtype.itemsize} bytes, "
            f"expected {total * header.dtype.itemsize} bytes, found {size}; "
            "Megatron would train on wrong tokens, or fail late",
        )
    if total == 0:
        report.error("no-tokens", f"{path}: all sequences are empty; Megatron hangs while it builds its sample index")
    _check_boundaries(pair, report)
    if header.num_sequences >= 2**31:
        report.error("too-many", f"{path}: {header.num_sequences} sequences; Megatron's sample index holds 2**31 - 1")
    return pair


def _check_lengths(pair: IndexedDataset, report: Report) -> int:
    total, item_size, zero = 0, pair.dtype.itemsize, 0
    for start in range(0, len(pair), CHUNK):
        lengths = pair.sequence_lengths[start : start + CHUNK]
        if len(lengths) and int(lengths.min()) < 0:
            bad = start + int(np.flatnonzero(lengths < 0)[0])
            report.error(
                "length-negative",
                f"{pair.prefix}.idx: sequence {bad} has {pair.sequence_lengths[bad]} tokens; "
                "Megatron reads the rest of the file, or hangs",
            )
            return total
        ends = np.cumsum(lengths, dtype=np.int64)
        expected = (np.concatenate([[0], ends[:-1]]) + total) * item_size
        found = pair.sequence_pointers[start : start + CHUNK]
        if not np.array_equal(expected, found):
            bad = int(np.flatnonzero(expected != found)[0])
            report.error(
                "pointers",
                f"{pair.prefix}.idx: sequence {start + bad} starts at byte {expected[bad]} by the lengths, "
                f"at {found[bad]} by the pointers; Megatron would train on wrong tokens",
            )
            return total + int(ends[-1])
        zero += int(np.count_nonzero(lengths == 0))
        total += int(ends[-1])
    if zero:
        report.warn("empty-sequences", f"{pair.prefix}: {zero} sequences without tokens")
    return total


def _check_boundaries(pair: IndexedDataset, report: Report) -> None:
    bounds = pair.document_indices
    name = idx_path(pair.prefix)
    if not len(bounds) or int(bounds[0]) != 0 or int(bounds[-1]) != len(pair):
        shown = [int(bounds[0]), int(bounds[-1])] if len(bounds) else []
        report.error("boundaries", f"{name}: document boundaries must run from 0 to {len(pair)}, found {shown}")
        return
    decreasing = False
    empty = 0
    for start in range(0, len(bounds) - 1, CHUNK):
        steps = np.diff(bounds[start : start + CHUNK + 1])
        decreasing = decreasing or bool((steps < 0).any())
        empty += int(np.count_nonzero(steps == 0))
    if decreasing:
        report.error("boundaries", f"{name}: document boundaries decrease")
    elif report.num_documents < len(pair):
        report.warn(
            "sentence-level",
            f"{name}: {len(pair)} sequences in {report.num_documents} documents; "
            "GPT training ignores documents and shuffles sequences",
        )
    if empty:
        report.warn("empty-documents", f"{name}: {empty} documents without a sequence")


def _check_tokens(
    pair: IndexedDataset,
    report: Report,
    manifest: Manifest | None,
    parts: Sequence[tuple[int, str]],
    progress: Callable[[int], None] | None,
) -> None:
    tokenizer = manifest.tokenizer if manifest else None
    eod = _likely_eod(pair) if tokenizer is None else eod_of(manifest)
    scan = _scan(pair, eod, parts, report, progress)
    report.bin_checksum, report.max_id = scan.checksum, scan.largest
    if scan.smallest < 0:
        report.error(
            "id-negative",
            f"{bin_path(pair.prefix)}: holds the id {scan.smallest}; Megatron fails, or masks it as padding",
        )
    if tokenizer and scan.largest >= tokenizer.vocab_size:
        report.error(
            "id-range",
            f"{bin_path(pair.prefix)}: holds the id {scan.largest}, the vocabulary has {tokenizer.vocab_size}; "
            "silent with tensor parallelism",
        )
    if eod is None:
        return
    report.eod_id, report.num_with_eod = eod, scan.num_ends
    report.num_eod_inside = scan.num_eod - scan.num_ends
    missing = int(np.count_nonzero(pair.sequence_lengths)) - report.num_with_eod
    if missing and manifest is not None:
        report.error("eod", f"{pair.prefix}: {missing} documents do not end with the EOD {eod}")
    elif missing:
        report.warn("eod", f"{pair.prefix}: {missing} sequences do not end with {eod}, which ends the others")


@dataclass(frozen=True, slots=True)
class _Scan:
    """What one pass over the tokens found; `num_ends` counts sequences that end with the EOD."""

    checksum: str
    smallest: int
    largest: int
    num_eod: int
    num_ends: int


class _Ends:
    """The token numbers at which sequences end, in order, without holding all of them."""

    def __init__(self, pair: IndexedDataset) -> None:
        self._pair = pair
        self._next = self._total = 0
        self._ends = np.empty(0, np.int64)

    def take(self, stop: int) -> npt.NDArray[np.int64]:
        """All that are left and smaller than `stop`."""
        found = []
        while True:
            cut = int(np.searchsorted(self._ends, stop))
            found.append(self._ends[:cut])
            self._ends = self._ends[cut:]
            if len(self._ends) or self._next >= len(self._pair):
                return np.concatenate(found)
            lengths = self._pair.sequence_lengths[self._next : self._next + CHUNK]
            sums = np.cumsum(lengths, dtype=np.int64) + self._total
            self._ends = sums[lengths > 0] - 1
            self._next, self._total = self._next + CHUNK, int(sums[-1])


def _scan(
    pair: IndexedDataset,
    eod: int | None,
    parts: Sequence[tuple[int, str]],
    report: Report,
    progress: Callable[[int], None] | None,
) -> _Scan:
    """One pass over the ``.bin`` through a reused buffer: the fastest way through the page cache."""
    whole, part = xxhash.xxh3_128(), xxhash.xxh3_128()
    buffer = bytearray(COPY_BYTES)
    view = memoryview(buffer)
    dtype = pair.dtype
    smallest, largest, num_eod, num_ends, position = 0, -1, 0, 0, 0
    ends = _Ends(pair)
    number = 0
    with bin_path(pair.prefix).open("rb", buffering=0) as file:
        while True:
            room = min(COPY_BYTES, parts[number][0] - position) if number < len(parts) else COPY_BYTES
            count = file.readinto(view[:room]) if room else 0
            if count:
                whole.update(view[:count])
                part.update(view[:count])
                ids = np.frombuffer(buffer, dtype, count // dtype.itemsize)
                largest = max(largest, int(ids.max()))
                if dtype.kind == "i":
                    smallest = min(smallest, int(ids.min()))
                if eod is not None:
                    first = position // dtype.itemsize
                    num_eod += int(np.count_nonzero(ids == eod))
                    num_ends += int(np.count_nonzero(ids[ends.take(first + len(ids)) - first] == eod))
                position += count
                if progress is not None:
                    progress(count)
            while number < len(parts) and position == parts[number][0]:
                if f"xxh3_128:{part.hexdigest()}" != parts[number][1]:
                    place = f"{bin_path(pair.prefix)}: bytes up to {position}"
                    report.error("merge", f"{place} are not those of shard {number}")
                part.reset()
                number += 1
            if not count and room:
                break
    return _Scan(f"xxh3_128:{whole.hexdigest()}", smallest, largest, num_eod, num_ends)


def _likely_eod(pair: IndexedDataset) -> int | None:
    """The id that ends more than half of the first 10,000 sequences, if there is one."""
    lengths = pair.sequence_lengths[:10_000]
    ends = np.cumsum(lengths, dtype=np.int64)[lengths > 0] - 1
    values, counts = np.unique(pair.tokens[ends], return_counts=True)
    best = int(counts.argmax()) if len(counts) else 0
    return int(values[best]) if len(counts) and counts[best] * 2 > len(ends) else None


def _check_manifest(path: Path, report: Report, manifest: Manifest) -> None:
    prefix = next(prefix for prefix in manifest.prefixes if prefix.name == path.name)
    claims: list[tuple[str, Any, Any]] = [
        ("bytes of .bin", prefix.files.bin_bytes, bin_path(path).stat().st_size),
        ("bytes of .idx", prefix.files.idx_bytes, idx_path(path).stat().st_size),
        ("documents", prefix.num_documents, report.num_documents),
        ("sequences", prefix.num_sequences, report.num_sequences),
        ("tokens", prefix.num_tokens, report.num_tokens),
        ("dtype", prefix.dtype, report.dtype),
    ]
    if report.bin_checksum is not None:
        claims.append(("checksum of .bin", prefix.files.bin_checksum, report.bin_checksum))
        claims.append(("checksum of .idx", prefix.files.idx_checksum, checksum(idx_path(path))))
    for what, expected, found in claims:
        if expected != found:
            problem = f"{path}: {what}: the manifest says {expected}, found {found}"
            report.error("manifest", f"{problem}; the files are not those that were published")

"""Level ``tokens``: what one pass over the ``.bin`` tells: ids, EOD and BOS, zeros, checksums."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from dataprep.checks.causes import PEEKS, read_tokens
from dataprep.checks.documents import PIECE, Documents
from dataprep.checks.ends import Likely, check_begins, check_ends, check_specials, place_of
from dataprep.checks.known import BAND, MAX_VOCABULARY
from dataprep.checks.report import Place
from dataprep.checks.scan import Proof, Scan
from dataprep.checks.tally import ZERO_BYTES, Looked
from dataprep.indexed import bin_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from dataprep.checks.index import Sound
    from dataprep.checks.known import Known
    from dataprep.checks.report import Report
    from dataprep.checks.tally import Tally

PAD = 128
"""What Megatron pads the vocabulary to a multiple of, times the ranks of tensor parallelism
(--make-vocab-size-divisible-by, megatron/training/arguments.py)."""


def check_tokens(
    sound: Sound,
    known: Known,
    proof: Proof,
    report: Report,
    progress: Callable[[int], None],
) -> None:
    """Read all tokens and note what is wrong with them.

    Args:
        sound: the index, which fits the ``.bin``.
        known: about the ids.
        proof: of the parts that the ``.bin`` was made of.
        report: where to.
        progress: called with the bytes just read.

    Raises:
        FormatError: a file became shorter meanwhile.
    """
    path, index = bin_path(sound.prefix), sound.index
    likely = _sample(path, sound, report.num_tokens)
    eod = known.eod if known.eod is not None else None if known.has_none else likely.eod
    bos = known.bos
    if bos is None and (not known.has_tokenizer or likely.bos in known.specials):
        bos = likely.bos
    limit = known.vocab_size or MAX_VOCABULARY
    marks = _ranges(known.specials | {id_ for id_ in (eod, likely.eod) if id_ is not None})
    looked = Looked(index.dtype, eod, bos, marks, limit, bool(marks) and likely.largest <= marks[-1][1] < limit)
    size = report.num_tokens * index.dtype.itemsize
    scan = Scan(path, size, Documents(index, sound.by_sequence), looked, progress)
    first, known_wrong = proof.position, len(proof.wrong)
    tally = scan.run(proof)
    if not proof.continues:
        proof.finish()
    report.bin_checksum, report.max_id = scan.checksum, tally.largest
    for number, stop in proof.wrong[known_wrong:]:
        end = stop - first
        report.add("shard", Place(str(path), byte=end), f"bytes up to {end} are not those of shard {number}")
    _check_ids(sound, tally, known, report)
    check_ends(sound, tally, (known, likely, eod), report)
    check_begins(sound, tally, (known, bos), report)
    check_specials(sound, tally, (known, eod), report)
    if tally.num_zero_bytes:
        message = f"{tally.num_zero_bytes} zero bytes in runs of {ZERO_BYTES} and more"
        report.add("zero-block", place_of(sound, tally.first_zero // index.dtype.itemsize), message)


def _sample(path: Path, sound: Sound, num_tokens: int) -> Likely:
    """Look at some documents, spread over the first 131,072 of them, and at the first tokens of the file."""
    index = sound.index
    some = index.read("sequence_lengths", 0, PIECE)
    starts = Documents(index, sound.by_sequence).take(int(some.sum(dtype=np.int64)))
    chosen = starts[np.linspace(0, len(starts) - 1, min(len(starts), PEEKS)).astype(np.int64)].tolist()
    with path.open("rb") as file:
        fd = file.fileno()
        begins = [int(read_tokens(fd, start, 1, index.dtype)[0]) for start in chosen]
        ends = [int(read_tokens(fd, start - 1, 1, index.dtype)[0]) for start in chosen if start]
        if len(some) == len(index.sequence_lengths):
            ends.append(int(read_tokens(fd, num_tokens - 1, 1, index.dtype)[0]))
        first = read_tokens(fd, 0, min(num_tokens, 1 << 16), index.dtype)
    eod, eod_share = _most(ends)
    return Likely(eod, _most(begins)[0], eod_share, int(first.max()))


def _most(ids: list[int]) -> tuple[int | None, float]:
    """The id that is more than half of them, and its share; of one, nothing can be said."""
    found, number = Counter(ids).most_common(1)[0] if ids else (-1, 0)
    return (found, number / len(ids)) if len(ids) > 1 and number * 2 > len(ids) and found >= 0 else (None, 0.0)


def _ranges(ids: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Ids as ranges [lowest, highest]."""
    found: list[tuple[int, int]] = []
    for id_ in sorted(ids):
        if found and found[-1][1] == id_ - 1:
            found[-1] = (found[-1][0], id_)
        else:
            found.append((id_, id_))
    return tuple(found)


def _check_ids(sound: Sound, tally: Tally, known: Known, report: Report) -> None:
    if tally.num_negative:
        message = f"{tally.num_negative} negative ids, down to {tally.smallest}"
        report.add("id-negative", place_of(sound, tally.first_negative), message)
    report.max_id = tally.largest
    if not tally.num_over:
        if report.dtype == "uint16" and known.vocab_size is None and tally.largest >= BAND[0]:
            report.add(
                "dtype-band",
                Place(str(sound.index.path), 17),
                f"uint16 with ids up to {tally.largest}: for vocabularies of {BAND[0]} and more Megatron writes int32, "
                "so another tool wrote this, or dtype code or byte order are wrong",
                "dataprep verify {prefix} --vocab-size N; it tells whether the ids fit",
            )
        return
    place, size = place_of(sound, tally.first_over), known.vocab_size
    if size is None:
        report.add(
            "id-range",
            place,
            f"{tally.num_over} ids up to {tally.largest}: no vocabulary is so large; the dtype code or the byte order "
            "is wrong, or the .bin is none",
        )
        return
    message = f"expected ids below {size}, found {tally.num_over} others up to {tally.largest}"
    ranks = next((ranks for ranks in (1, 2, 4, 8, 16) if tally.largest < -(-size // (PAD * ranks)) * PAD * ranks), None)
    if ranks is None:
        report.add("id-range", place, message)
        return
    padded = -(-size // (PAD * ranks)) * PAD * ranks
    with_ranks = f" with {ranks} ranks of tensor parallelism" if ranks > 1 else ""
    padding = f"{message}, in the padding of the vocabulary to {padded}{with_ranks}"
    report.add("id-padding" if ranks == 1 else "id-range", place, padding)

"""Prove a pair: what is wrong with a ``.bin``/``.idx``, by whomever written, and what it would do to a training.

    index   the ``.idx`` and the sizes: structure, pointers, boundaries; splits and caches where asked    milliseconds
    tokens  one pass over the ``.bin`` as well: ids, EODs, checksums                       about the speed of a disk
    source  and a sample of documents encoded again from the source, by the reference

With a manifest beside the pair, sizes, checksums, counts, vocabulary and EOD are held to it. All that can be wrong has
a name (`checks.rules`); this file only puts together who looks for what.
"""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from dataprep.checks.caches import cache_folders, check_caches
from dataprep.checks.claims import check_claims
from dataprep.checks.index import check_index
from dataprep.checks.known import check_dtype, check_tokenizer, learn
from dataprep.checks.report import LEVELS, Expected, Place, Report
from dataprep.checks.scan import THREADS, Proof
from dataprep.checks.splits import check_split
from dataprep.checks.tokens import check_tokens
from dataprep.errors import Cancelled, EncodeError, FormatError, SourceError, SpecError
from dataprep.indexed import IndexedDataset, bin_path, idx_path
from dataprep.manifest import readable_manifest
from dataprep.prefixes import find_prefix
from dataprep.samples import parse_split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from dataprep.checks.index import Sound
    from dataprep.checks.report import Level
    from dataprep.manifest import Manifest

SAMPLE = 100
"""Documents that level ``source`` encodes again."""


def verify(
    prefix: str | Path,
    level: Level = "tokens",
    expect: Expected | None = None,
    parts: Sequence[tuple[int, str]] | Proof = (),
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Check one pair.

    Args:
        prefix: path without ``.bin``; a path with ``.bin`` or ``.idx`` means the same.
        level: how deep to look.
        expect: what the training brings that is to use the pair.
        parts: for each stretch of the ``.bin``, its end in bytes and the checksum it must have; of several prefixes,
            given to each call in turn, a `Proof` of all of them.
        progress: called with the bytes just read, of either file; by several threads, one at a time.

    Returns:
        The report; problems are in it, not raised.

    Raises:
        SpecError: unknown level, no such prefix, split or cache folder.
    """
    if level not in LEVELS:
        raise SpecError(f"unknown level {level!r}; expected one of {', '.join(LEVELS)}")
    path, expect = find_prefix(prefix), expect or Expected()
    report = Report(str(path), level)
    manifest = _manifest(path, report)
    known = learn(expect, manifest)
    cache_folders(path, expect.cache)
    if expect.split is not None:
        parse_split(expect.split)
    report.vocab_size = known.vocab_size
    check_tokenizer(path, expect, manifest, report)
    with _noting(path, report):
        sound = check_index(path, report, progress or _silent, known.keeps_empty)
        check_dtype(path, known.vocab_size, report)
        if sound is not None:
            _check_training(sound, expect, report)
            if level != "index":
                proof = parts if isinstance(parts, Proof) else Proof(parts)
                check_tokens(sound, known, proof, report, progress or _silent)
    if manifest is not None:
        with _noting(path, report):
            check_claims(path, manifest, report)
    if level == "source" and report.ok:
        _recheck(path, report, manifest, expect)
    return report


def verify_all(
    prefixes: Sequence[str | Path],
    level: Level = "tokens",
    expect: Expected | None = None,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Report]:
    """Check several pairs side by side.

    Args:
        prefixes: as in `verify`, like `level` and `expect`.
        workers: pairs at once; each is read by up to `scan.THREADS` threads, in 6 MiB of memory each. None: as many as
            keep all processors busy, and no more than 8.
        progress: as in `verify`, but called by several threads at the same time.

    Returns:
        The reports, in the order of the prefixes.

    Raises:
        SpecError: as in `verify`; what was not begun is not done then.
    """
    stopped = threading.Event()

    def told(count: int) -> None:
        if stopped.is_set():
            raise Cancelled("stopped")
        (progress or _silent)(count)

    pool = ThreadPoolExecutor(workers or min(8, max(1, len(os.sched_getaffinity(0)) // THREADS)))
    try:
        futures = [pool.submit(verify, prefix, level, expect, (), told) for prefix in prefixes]
        return [future.result() for future in futures]
    finally:
        stopped.set()  # after an error or Ctrl-C nobody waits for a terabyte to be read
        pool.shutdown(cancel_futures=True)


def with_tokenizer(expect: Expected, tokenizer: str) -> Expected:
    """The same, with what ``--tokenizer`` stands for.

    Raises:
        SpecError: there is no such tokenizer.
    """
    from dataprep.catalog import find_tokenizer
    from dataprep.definitions import define, identify

    spec, path = find_tokenizer(tokenizer, {})
    specials = define(spec.type, path).specials.values()
    return replace(expect, tokenizer=identify(spec, path), special_ids=tuple(sorted(specials)))


def num_bytes(prefix: Path, level: Level) -> int:
    """How much `verify` will read of a pair, for its progress."""
    paths = [idx_path(prefix)] if level == "index" else [idx_path(prefix), bin_path(prefix)]
    return sum(path.stat().st_size for path in paths if path.is_file())


def _check_training(sound: Sound, expect: Expected, report: Report) -> None:
    """What depends on the training: splits and caches."""
    if expect.split is not None or expect.seq_length is not None:
        check_split(sound, expect.split, expect.seq_length, report)
    check_caches(sound.prefix, sound.index, expect.cache, report)


@contextlib.contextmanager
def _noting(path: Path, report: Report) -> Iterator[None]:
    """Note it as a problem that a file cannot be read, or became shorter meanwhile."""
    try:
        yield
    except FormatError as error:
        report.add("unreadable", Place(str(path)), str(error))
    except OSError as error:
        report.add("unreadable", Place(str(error.filename or path)), error.strerror or str(error))


def _silent(_: int) -> None:
    """Nobody asks how it gets on."""


def _manifest(path: Path, report: Report) -> Manifest | None:
    manifest, why = readable_manifest(path)
    if why:
        report.add("manifest-unreadable", Place(str(path)), why)
    return manifest


def _recheck(path: Path, report: Report, manifest: Manifest | None, expect: Expected) -> None:
    from dataprep import parity  # brings the readers and encoders, which no other level needs

    place = Place(str(path))
    if manifest is None:
        report.add("source-unknown", place, "it has no manifest, which leads back to the source: nothing was compared")
        return
    try:
        report.num_sampled = parity.recheck(IndexedDataset(path), manifest, SAMPLE, expect.tokenizer)
    except parity.NotComparedError as error:
        report.add(error.code, place, str(error))
    except (EncodeError, SourceError, FormatError) as error:
        report.add("source", place, str(error))

"""Merge, split, sample: a pair that holds documents of others, copied, proven, and said where they are from.

    merge    all documents of several pairs, one pair after the other    -> NEW
    split    consecutive documents of a pair, in equal or other shares   -> NEW-00000, NEW-00001, ...
    sample   documents of a pair, drawn at random, in its order          -> NEW

No id is changed and no document is cut. What was copied is held to the checksum that the input's manifest states, or
else to the input itself, read once more; documents that were drawn, to what was read of them.
"""

from __future__ import annotations

import glob
import logging
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import dataprep
from dataprep.errors import FormatError, SpecError
from dataprep.indexed import HEADER, MAX_SEQUENCES, bin_path
from dataprep.inspection import length_summary
from dataprep.manifest import PairManifest
from dataprep.prefixes import find_prefix
from dataprep.reshaping.draws import Draw
from dataprep.reshaping.inputs import check_sequences, find_inputs, named, open_inputs
from dataprep.reshaping.lineage import Holdings, Lineage
from dataprep.reshaping.making import Copied, Outputs, check_free, output_prefix
from dataprep.reshaping.parting import Places, by_documents, by_fractions, by_tokens, shares_of
from dataprep.reshaping.selections import Drawn, Run, document_lengths, steps, stretches, told, write_pair
from dataprep.watcher import Progress, Silent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from fractions import Fraction

    from dataprep.reshaping.inputs import Input
    from dataprep.reshaping.selections import Selection
    from dataprep.watcher import Watcher

log = logging.getLogger(__name__)

MAX_NAMED_RUNS = 10_000
"""Runs of drawn documents that a manifest names one by one, with where they are from."""


@dataclass(frozen=True, slots=True)
class Made:
    """A new pair: its prefix, absolute, and its manifest."""

    prefix: str
    manifest: PairManifest

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"prefix": self.prefix, "manifest": self.manifest.to_json()}


@dataclass(frozen=True, slots=True)
class _Plan:
    """A pair to make: its prefix, of what, and what its manifest says of that."""

    prefix: Path
    dtype: Literal["uint16", "int32"]
    selections: tuple[Selection, ...]
    options: dict[str, Any]
    lineage: Lineage = field(default_factory=Lineage)

    @property
    def num_bytes(self) -> int:
        """Of the two files."""
        return HEADER.size + 8 + sum(s.num_bytes + 12 * s.num_sequences + 8 * s.num_documents for s in self.selections)

    def check(self) -> None:
        """See that Megatron can train on it.

        Raises:
            SpecError: it cannot: there is nothing in it, or too much.
        """
        num_documents = sum(selection.num_documents for selection in self.selections)
        if not any(selection.num_bytes for selection in self.selections):
            raise SpecError(f"{self.prefix} would be empty: {num_documents:,} documents, 0 tokens")
        num_sequences = sum(selection.num_sequences for selection in self.selections)
        if num_sequences > MAX_SEQUENCES:
            raise SpecError(
                f"{self.prefix} would have {num_sequences:,} sequences, and Megatron's sample index holds "
                f"{MAX_SEQUENCES:,}; ask for smaller parts"
            )


def merge(prefixes: str | Path | Sequence[str | Path], output: str | Path, watcher: Watcher | None = None) -> Made:
    """Make one pair of several, in the order given.

    Args:
        prefixes: see `inputs.find_inputs`.
        output: the new prefix.
        watcher: is told how it gets on.

    Raises:
        SpecError: the inputs do not go together, are too many for one pair, or the output is there already.
        FormatError: inputs are broken.
        OutputError: no room, or what was written is not what was read. In all cases nothing has the new name.
    """
    watcher = watcher or Silent()
    new = output_prefix(output)
    paths = find_inputs([prefixes] if isinstance(prefixes, str | Path) else prefixes)
    _check_name(new, paths)
    inputs = open_inputs(paths, watcher)
    check_sequences((each.run for each in inputs), MAX_SEQUENCES)
    options = {"inputs": [os.path.abspath(path) for path in paths]}
    plan = _Plan(new, inputs[0].dtype, tuple(each.run for each in inputs), options)
    holdings = Holdings()
    for each in inputs:
        origin, ranges = Path(os.path.abspath(each.prefix)), [(0, each.run.num_documents)]
        plan.lineage.add(origin, each.manifest, ranges)
        holdings.add(each.prefix, Lineage.of(origin, each.manifest, ranges))
    _warn_of_repeats(holdings)

    def expected(_: list[str | None]) -> list[str]:
        unstated = [each for each in inputs if each.bin_checksum is None]
        if unstated:
            watcher.stage("read again", sum(each.run.num_bytes for each in unstated))
        return [each.bin_checksum or stretches(each.prefix, [each.run.num_bytes], watcher)[1] for each in inputs]

    (made,) = _make("merge", new, [plan], expected, watcher)
    return made


def split(
    prefix: str | Path,
    output: str | Path,
    documents: int | None = None,
    tokens: int | None = None,
    fractions: str | Sequence[float | str | Fraction] | None = None,
    watcher: Watcher | None = None,
) -> list[Made]:
    """Make several pairs of one: consecutive documents each, all of them together.

    Args:
        prefix: of the pair.
        output: what the new prefixes begin with; they end with ``-00000``, ``-00001`` and so on.
        documents: so many in each, in the last what is left.
        tokens: in each as many documents as hold at most so many; one that holds more is alone.
        fractions: of the tokens, in this order; numbers or ``"0.9,0.1"``, which add up to 1. Each part ends with the
            document whose end is nearest.
        watcher: is told how it gets on.

    Raises:
        SpecError: not one of the three ways, a part without tokens or of too many sequences, or the output is there.
        FormatError: the input is broken, or is not what its manifest says.
        OutputError: no room, or what was written is not what was read. In all cases nothing has a new name.
    """
    watcher = watcher or Silent()
    new = output_prefix(output)
    path = find_prefix(prefix)
    if [documents, tokens, fractions].count(None) != 2:
        raise SpecError("a pair is split by one of --documents, --tokens and --fractions")
    shares = shares_of(fractions) if fractions is not None else ()
    _check_numbered(new)
    (source,) = open_inputs([path], watcher)
    if not source.run.num_bytes:
        raise SpecError(f"{path} holds no token; there is nothing to split")
    if documents is not None:
        cuts = by_documents(Places(path), documents)
    elif tokens is not None:
        cuts = by_tokens(Places(path), tokens)
    else:
        cuts = by_fractions(Places(path), shares)
    parts = [Run.of(path, start, stop) for start, stop in pairwise(cuts)]
    asked = {"documents": documents, "tokens": tokens, "fractions": [str(share) for share in shares] or None}
    plans = []
    for number, run in enumerate(parts):
        options = {"input": os.path.abspath(path), "part": number, "parts": len(parts), **asked}
        plan = _Plan(new.with_name(f"{new.name}-{number:05d}"), source.dtype, (run,), options)
        plan.lineage.add(Path(os.path.abspath(path)), source.manifest, [(run.start, run.stop)])
        check_free(plan.prefix)
        plans.append(plan)

    def expected(_: list[str | None]) -> list[str]:
        watcher.stage("read again", source.run.num_bytes)
        found, whole = stretches(path, [run.last_byte for run in parts], watcher)
        _check_whole(source, whole)
        return found

    return _make("split", new, plans, expected, watcher)


def sample(
    prefix: str | Path, output: str | Path, documents: int, seed: int = 0, watcher: Watcher | None = None
) -> Made:
    """Make a pair of documents of another, drawn at random, in its order.

    The same seed draws the same documents, and for a smaller number some of them.

    Args:
        prefix: of the pair to draw from.
        output: the new prefix.
        documents: how many.
        seed: which draw.
        watcher: is told how it gets on.

    Raises:
        SpecError: there are not so many, none that was drawn holds a token, or the output is there already.
        FormatError: the input is broken, or is not what its manifest says.
        OutputError: no room, or what was written is not what was read. In all cases nothing has the new name.
    """
    watcher = watcher or Silent()
    new = output_prefix(output)
    path = find_prefix(prefix)
    _check_name(new, [path])
    (source,) = open_inputs([path], watcher)
    total = source.run.num_documents
    if not 0 < documents <= total:
        raise SpecError(f"--documents {documents}: {path} holds {total:,}; draw 1 to {total:,}")
    watcher.stage("draw", 24 * total)
    draw = Draw.of(seed, total, documents, lambda count: watcher(Progress(source_bytes=8 * count)))
    drawn = Drawn.of(path, draw, watcher)
    options = {"input": os.path.abspath(path), "documents": documents, "seed": seed}
    plan = _Plan(new, source.dtype, (drawn,), options)
    runs = list(islice(drawn.runs(), MAX_NAMED_RUNS + 1))
    if len(runs) <= MAX_NAMED_RUNS:
        plan.lineage.add(Path(os.path.abspath(path)), source.manifest, runs)
    else:
        plan.lineage.add_drawn(Path(os.path.abspath(path)), source.manifest, documents, total)

    def expected(copied: list[str | None]) -> list[str]:
        if source.bin_checksum is not None:  # it says where the documents are from, so it has to be of these
            watcher.stage("read again", source.run.num_bytes)
            _check_whole(source, stretches(path, [source.run.num_bytes], watcher)[1])
        return [checksum for checksum in copied if checksum is not None]

    (made,) = _make("sample", new, [plan], expected, watcher)
    return made


def _warn_of_repeats(holdings: Holdings) -> None:
    count, prefixes = holdings.repeats()
    if count:
        log.warning(
            "warning: %s %s, by what the manifests say, from the same records: in %s. Leave some of them out, unless "
            "this is meant; a glob may have matched what an earlier merge made",
            *(f"{count:,}", "document comes twice" if count == 1 else "documents come twice", named(prefixes)),
        )


def _check_whole(source: Input, found: str) -> None:
    if source.bin_checksum not in (None, found):
        raise FormatError(
            f"{bin_path(source.prefix)} is not what its manifest says; run: dataprep verify {source.prefix}"
        )


def _check_name(new: Path, inputs: Sequence[Path]) -> None:
    for path in inputs:
        if os.path.realpath(bin_path(path)) == os.path.realpath(bin_path(new)):
            raise SpecError(f"--output {new} is one of the inputs; choose another")
    check_free(new)


def _check_numbered(new: Path) -> None:
    """No part of an earlier split may lie beside the new ones, where a glob would find both."""
    for suffix in (".bin", ".idx", ".manifest.json"):
        for path in sorted(new.parent.glob(f"{glob.escape(new.name)}-[0-9][0-9][0-9][0-9][0-9]{suffix}")):
            raise SpecError(f"{path} exists; choose another --output, or remove what is left of an earlier split")


def _make(
    command: str,
    new: Path,
    plans: Sequence[_Plan],
    expected: Callable[[list[str | None]], list[str]],
    watcher: Watcher,
) -> list[Made]:
    """Write all pairs, prove all of them, and give all of them their names.

    Args:
        command: the word for what is done.
        new: what the user calls them.
        plans: the pairs.
        expected: gives the checksums that all selections must have, from what their `copy` returned.
        watcher: is told how it gets on.
    """
    for plan in plans:
        plan.check()
    with Outputs(new, sum(plan.num_bytes for plan in plans)) as outputs:
        selections = [selection for plan in plans for selection in plan.selections]
        watcher.stage(command, steps(selections))
        written = [write_pair(outputs.private(plan.prefix), plan.dtype, plan.selections, watcher) for plan in plans]
        checksums = expected([checksum for _, copied in written for checksum in copied])
        copied = iter([Copied(s.prefix, s.num_bytes, sum_) for s, sum_ in zip(selections, checksums, strict=True)])
        num_bytes = sum(plan.num_bytes for plan in plans)
        watcher.stage("verify", num_bytes + 8 * sum(selection.num_documents for selection in selections))
        made = []
        for plan, (idx, _) in zip(plans, written, strict=True):
            parts = list(islice(copied, len(plan.selections)))
            report = outputs.prove(plan.prefix, parts, watcher)
            lengths = length_summary(told(document_lengths(outputs.private(plan.prefix)), watcher))
            manifest = PairManifest(
                dataprep_version=dataprep.__version__,
                command=command,
                options=plan.options,
                recipes=tuple(plan.lineage.recipes),
                parts=tuple(plan.lineage.parts),
                prefixes=(report.entry(plan.prefix.name, plan.dtype, idx.num_bytes, idx.checksum),),
                lengths=lengths,
                verification=outputs.verification(plan.prefix, report),
                created=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            outputs.describe(plan.prefix, manifest)
            made.append(Made(os.path.abspath(plan.prefix), manifest))
        outputs.publish([plan.prefix for plan in plans])
    return made

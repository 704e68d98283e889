"""Where documents come from: the source file and the record, by what manifests say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dataprep.errors import FormatError, SpecError
from dataprep.manifest import DatasetManifest, is_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dataprep.manifest import Manifest


def source_of(manifest: Manifest, number: int) -> dict[str, Any] | None:
    """The file a document came from, and the records of it that it may be, as plain JSON values.

    Args:
        manifest: of the pair.
        number: of the document, from 0.

    Returns:
        ``file``, ``first_row`` and ``last_row`` (from 0), ``corpus``, and where the file was fetched, ``url`` and
        ``origin``. The two rows are the same where every record around it became a document, and otherwise all there
        is to know: records without text and rejects are counted, not listed. None: nobody knows.
    """
    found = manifest.locate(number)
    if found is None:
        return None
    recipe, span, place = found
    group = recipe.reader.group_rows
    first, last = span.first_row, span.first_row + span.num_records - 1
    if span.num_documents == -(-span.num_records // group):  # every group became a document
        first += place * group
        last = min(last, first + group - 1)
    file = recipe.files[span.file]
    fetched = {"url": file.url, "origin": recipe.origin} if file.url is not None else {}
    return {"file": file.path, "first_row": first, "last_row": last, "corpus": recipe.corpus, **fetched}


def trace(prefix: Path, manifest: Manifest | None, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Where some documents of a pair come from, as plain JSON values.

    Returns:
        For each: ``document``; ``source``, see `source_of`; ``input``, if the pair was made from others: the prefix it
        was taken from, as it was named then, and its number there, or None where it was drawn and nobody knows.

    Raises:
        SpecError: no manifest.
        FormatError: one of other files, or a damaged one.
    """
    if manifest is None:
        raise SpecError(
            f"{prefix} has no manifest, so nothing says where its documents come from. dataprep writes one beside all "
            f"it makes: manifest.json in a dataset's folder, {prefix.name}.manifest.json beside a merged or repaired "
            f"pair; copy it along with the .bin and .idx. What document N says: dataprep inspect {prefix} --document N"
        )
    if not is_of(manifest, prefix):
        raise FormatError(f"{prefix}: the manifest beside it is of other files; run: dataprep verify {prefix}")
    try:
        return [
            {"document": number, "source": source_of(manifest, number), **_input(manifest, number)}
            for number in numbers
        ]
    except IndexError as error:
        raise FormatError(f"the manifest of {prefix} speaks of files that it does not name: it is damaged") from error


def _input(manifest: Manifest, number: int) -> dict[str, Any]:
    if isinstance(manifest, DatasetManifest):
        return {}
    for part in manifest.parts:
        if number < part.num_documents:
            place = part.start + number if part.drawn_from is None else None
            return {"input": {"prefix": part.prefix, "document": place}}
        number -= part.num_documents
    return {}

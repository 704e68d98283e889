"""What a dataset's ``manifest.json`` says, in short: it is as long as its corpus has files, and a list shows many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import ValidationError

from dataprep.errors import FormatError
from dataprep.manifest import SCHEMA, Counts, Prefix
from dataprep.service.viewing.answers import Check, Finding
from dataprep.storage import read_whole

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a dataset.

    Attributes:
        num_files: source files; `source_bytes` of them.
        checks: what `verify` said of each pair.
    """

    corpus: str
    tokenizer: str
    recipe_digest: str
    created: str
    counts: Counts
    prefixes: tuple[Prefix, ...]
    num_files: int
    source_bytes: int
    checks: tuple[Check, ...]

    @property
    def num_bytes(self) -> int:
        """Of all its pairs."""
        return sum(entry.files.bin_bytes + entry.files.idx_bytes for entry in self.prefixes)

    @property
    def is_verified(self) -> bool:
        return bool(self.checks) and all(check.ok for check in self.checks)


def summarize(path: Path) -> Summary:
    """Read a manifest for its figures; ten times as fast as reading all of it.

    Raises:
        FormatError: it is not a dataset's, or damaged.
    """
    try:
        value = orjson.loads(read_whole(path))
        if value["schema_version"] != SCHEMA:
            raise FormatError(f"{path}: expected schema_version {SCHEMA}, found {value['schema_version']!r}")
        recipe = value["recipe"]
        return Summary(
            corpus=_text(recipe["corpus"]),
            tokenizer=_text(recipe["tokenizer"]["name"]),
            recipe_digest=_text(value["recipe_digest"]),
            created=_text(value["created"]),
            counts=Counts.model_validate(value["counts"]),
            prefixes=tuple(_prefix(entry) for entry in value["prefixes"]),
            num_files=len(recipe["files"]),
            source_bytes=sum(file["num_bytes"] for file in recipe["files"]),
            checks=checks_of(value["verification"]),
        )
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, FormatError):
            raise
        what = "is damaged" if not isinstance(error, ValidationError) else "states what no manifest does"
        raise FormatError(f"{path} {what}, or is another tool's; it is no manifest of a dataset") from error


@dataclass(frozen=True, slots=True)
class VersionSummary:
    """The figures of a version; see `VersionManifest` for what they mean."""

    corpus: str
    tokenizer: str
    created: str
    run: int
    num_parts: int
    num_files: int
    num_documents: int
    num_tokens: int
    num_bytes: int
    num_changed: int
    num_vanished: int


def summarize_version(path: Path) -> VersionSummary:
    """Read the manifest of a version for its figures: it may have a part for every day of years.

    Raises:
        FormatError: it is none, or damaged.
    """
    try:
        value = orjson.loads(read_whole(path))
        if (value["schema_version"], value["kind"]) != (SCHEMA, "version"):
            raise ValueError("another kind of manifest")
        parts = value["parts"]
        files = [prefix["files"] for part in parts for prefix in part["prefixes"]]
        return VersionSummary(
            corpus=_text(value["corpus"]),
            tokenizer=_text(value["tokenizer"]),
            created=_text(value["created"]),
            run=int(value["run"]),
            num_parts=len(parts),
            num_files=sum(part["num_files"] for part in parts),
            num_documents=sum(part["num_documents"] for part in parts),
            num_tokens=sum(part["num_tokens"] for part in parts),
            num_bytes=sum(each["bin_bytes"] + each["idx_bytes"] for each in files),
            num_changed=len(value["changed"]),
            num_vanished=len(value["vanished"]),
        )
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{path} is damaged, or another tool's; it is no manifest of a version") from error


def checks_of(verification: dict[str, Any]) -> tuple[Check, ...]:
    """What `verify` said, one report for each pair."""
    reports = verification.get("reports", [verification])
    return tuple(
        Check(
            prefix=report["prefix"],
            level=report["level"],
            ok=report["ok"],
            num_sampled=report["num_sampled"],
            num_with_eod=report.get("num_with_eod"),
            max_id=report.get("max_id"),
            problems=tuple(
                Finding(code=each["code"], severity=each["severity"], message=each["message"], fix=each["fix"])
                for each in report["problems"]
            ),
        )
        for report in reports
    )


def _prefix(value: dict[str, Any]) -> Prefix:
    """One pair, whose name is one of a file beside the manifest: no way leads out through it."""
    entry = Prefix.model_validate(value)
    if not is_name(entry.name):
        raise ValueError(f"a prefix called {entry.name!r}")
    return entry


def is_name(text: str) -> bool:
    """Whether this can name something in a folder, and nothing elsewhere."""
    return text not in ("", ".", "..") and "/" not in text and "\0" not in text


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r}")
    return value

"""One job, as its YAML has it, with its paths where they are; what the keys mean is in `jobs`."""

from __future__ import annotations

import difflib
import zoneinfo
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr, field_validator, model_validator

from dataprep.errors import SpecError
from dataprep.service.places import absolute, is_named, is_path
from dataprep.service.schedule import check_cron
from dataprep.specs import Model, cluster_settings

Word = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")]


class Retention(Model):
    """Which versions are kept: at least `versions` of them, and all younger than `days`. Default: all."""

    versions: int | None = Field(default=None, ge=1)
    days: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class Retries(Model):
    """How often a run that failed is tried: `attempts` in all; before the second `wait_seconds`, then twice as long."""

    attempts: int = Field(default=3, ge=1, le=100)
    wait_seconds: int = Field(default=300, ge=1, le=86_400)


class Notify(Model):
    """Who is told how runs ended.

    Attributes:
        webhook: an address that gets a POST of JSON; what it hides is shown nowhere.
        command: a program and its arguments, without a shell, that gets the same on stdin. Of a job that was loaded,
            the program's path is absolute, unless it is a bare name.
        on: the ends of runs that are told.
    """

    webhook: Annotated[str, Field(pattern=r"^https?://[^\s/]+\S*$", max_length=4096)] | None = None
    command: tuple[Annotated[str, Field(pattern=r"^[^\x00]*$", max_length=16_384)], ...] = ()
    on: tuple[Literal["published", "unchanged", "failed", "interrupted", "lost", "skipped"], ...] = (
        "published",
        "failed",
    )

    @field_validator("webhook")
    @classmethod
    def _can_be_called(cls, value: str | None) -> str | None:
        try:
            parts = urlsplit(value or "http://x")
            if not parts.hostname or parts.port == 0:
                raise ValueError
        except ValueError as error:
            raise ValueError("expected https://HOST/... or http://HOST/...") from error
        return value


class Job(Model):
    """One scheduled ingestion, as its YAML has it. Made by `load_job`, which knows where the YAML lies.

    Attributes:
        corpus, tokenizer, output, cluster: as written; see `corpus_arguments` and its like for what to use.
        changes: ``append_only``: a changed or vanished source file is an error; ``mirror``: its documents are made
            anew, or left out.
        schedule: cron, five fields; None: only by hand.
        time_zone: that the schedule is of, by its name in the IANA database.
        settle_seconds: a new file must not have changed for so long, by our own monotonic clock.
        done_marker: the end of the name of a file that says that the one without it is whole; None: `settle_seconds`.
    """

    corpus: tuple[Word, ...] = Field(min_length=1)
    tokenizer: Word
    output: Word
    set: tuple[Word, ...] = ()
    cluster: Word | None = None
    changes: Literal["append_only", "mirror"] = "append_only"
    schedule: Word | None = None
    time_zone: Word = "UTC"
    settle_seconds: float = Field(default=60, ge=0, le=86_400)
    done_marker: Annotated[str, Field(pattern=r"^[^/\x00-\x1f]+$", max_length=100)] | None = None
    retention: Retention = Retention()
    retries: Retries = Retries()
    notify: Notify = Notify()

    _path: Path = PrivateAttr(default=Path())

    @field_validator("time_zone")
    @classmethod
    def _is_a_zone(cls, value: str) -> str:
        try:
            zoneinfo.ZoneInfo(value)
        except (OSError, ValueError, zoneinfo.ZoneInfoNotFoundError) as error:
            near = difflib.get_close_matches(value, zoneinfo.available_timezones(), 1)
            hint = (
                f"did you mean {near[0]}?"
                if near
                else "expected a name like Europe/Berlin; without tzdata, none is known"
            )
            raise ValueError(f"no time zone {value!r}; {hint}") from error
        return value

    @model_validator(mode="after")
    def _comes_due(self) -> Self:
        if self.schedule is not None:
            check_cron(self.schedule)
        return self

    @property
    def name(self) -> str:
        """The stem of the file, and the name of the dataset."""
        return self._path.stem

    @property
    def path(self) -> Path:
        return self._path

    @property
    def folder(self) -> Path:
        """The jobs folder, absolute."""
        return self._path.parent

    @property
    def zone(self) -> zoneinfo.ZoneInfo:
        return zoneinfo.ZoneInfo(self.time_zone)

    @property
    def created(self) -> datetime:
        """When the YAML was last written, by the clock of its file system.

        Raises:
            SpecError: it is gone.
        """
        try:
            return datetime.fromtimestamp(self._path.stat().st_mtime, UTC)
        except OSError as error:
            raise SpecError(f"cannot read {self._path}: {error.strerror}") from error

    @property
    def corpus_arguments(self) -> list[str]:
        """What stands for CORPUS, as the catalog takes it; paths absolute."""
        return [each if is_named(each, self.folder) else absolute(each, self.folder) for each in self.corpus]

    @property
    def tokenizer_argument(self) -> str:
        """What stands for ``--tokenizer``; a path absolute."""
        return absolute(self.tokenizer, self.folder) if is_path(self.tokenizer) else self.tokenizer

    @property
    def output_folder(self) -> Path:
        return Path(absolute(self.output, self.folder))

    @property
    def settings(self) -> list[str]:
        """Those of ``cluster:`` and ``set:``.

        Raises:
            SpecError: ``cluster:`` is a file that cannot be read, or none.
        """
        return [*cluster_settings(self.cluster_argument), *self.set]

    @property
    def cluster_argument(self) -> str | None:
        """What stands for ``--cluster``; a path absolute."""
        is_path = (
            self.cluster is not None and ("/" in self.cluster or "." in self.cluster) and "://" not in self.cluster
        )
        return absolute(self.cluster, self.folder) if self.cluster is not None and is_path else self.cluster

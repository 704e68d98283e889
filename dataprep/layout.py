"""Every file name below an output folder; nobody else formats one.

    <output>/
      raw/<place>-<digest 8>/                   what was downloaded from one commit, or one list of addresses
        files/<name>                            whole and checked, or not there
        parts/<digest>.tmp-<owner>              being fetched, or left by a run that died
        receipts.jsonl                          what each file is; stays when the file goes
        listing-<digest>.json                   what there is to fetch; for runs without network
        contents/<name>/<first row>.parquet     texts whose ids a file holds; <name>.json once all are there
        in-use                                  locked by every run that uses the folder
      work/job-<number>.log                     what a job of Slurm said
      work/<recipe digest>/                     one run in progress
        recipe.json  plan.jsonl
        progress.json                           how the run stands, or stood when its driver last wrote
        claim/                                  who may write here, see `claims`; each has a number, its epoch
        events-<epoch>.jsonl                    what happened under that claim
        shards/<unit>.bin .idx .json            the .json, written last, says that the unit is done
        shards/<unit>.p0000.bin .idx .json      pieces of a long unit, which come before that
        shards/<unit>.tmp-attempts              a byte for each attempt at a unit that did not come to an end
        merged-<epoch>/                         what is safe here is in no shard any more
          receipts.jsonl                        the units that it is, see `journal`
          lengths                               of their documents in tokens, int32 each
          dataset/                              their .bin; then .idx and manifest.json
        rejects/rejects.jsonl                   source records that are no documents, once merged
      <corpus>-<tokenizer>-<recipe digest 8>/   the dataset: appears whole, by one rename
        <corpus>_text_document.bin .idx  manifest.json
        <corpus>_00000_text_document.bin .idx   the same in several prefixes, see `cuts`, with data_args.txt
      <corpus>-<tokenizer>                      symlink to the newest of them
      <name>/                                   a versioned dataset, see `versions`; its datasets lie in its parts/

    <prefix>.bin .idx .manifest.json            a pair that was made from others, wherever its user wants it
    <prefix>.tmp-<owner>/                       the same while it is made and proven, see `reshaping.making`

A name that holds ``.tmp-`` is private to one run and means nothing to any other.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.storage import MARK, explain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


SUFFIX = "_text_document"
"""What the name of a prefix ends with, as preprocess_data's do."""


DATA_ARGS = "data_args.txt"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything lies below one output folder.

    Attributes:
        output: the folder the user named.
        work: the folder of this recipe's run.
        dataset: the folder the dataset is published as.
        link: the name that points to the newest dataset of this corpus and tokenizer; None for a part of a version.
        stem: file name of the prefix, e.g. ``sample_text_document``.
        epoch: of the claim that whoever uses this holds; 0: none.
    """

    output: Path
    work: Path
    dataset: Path
    link: Path | None
    stem: str
    epoch: int = 0

    @classmethod
    def of(cls, output: Path, corpus: str, tokenizer: str, digest: str, home: str = "") -> Layout:
        """The layout of a recipe; `home` is where the dataset goes below the output, if not into it."""
        name = f"{corpus}-{tokenizer}"
        return cls(
            output=output,
            work=output / "work" / digest[:16],
            dataset=output / home / f"{name}-{digest[:8]}",
            link=None if home else output / name,
            stem=f"{corpus}{SUFFIX}",
        )

    @property
    def home(self) -> str:
        """See `of`."""
        return "" if self.dataset.parent == self.output else self.dataset.parent.relative_to(self.output).as_posix()

    @property
    def recipe(self) -> Path:
        return self.work / "recipe.json"

    @property
    def plan(self) -> Path:
        return self.work / "plan.jsonl"

    def at(self, epoch: int) -> Layout:
        """The same, for who holds this claim."""
        return replace(self, epoch=epoch)

    @property
    def claim(self) -> Path:
        return self.work / "claim"

    @property
    def events(self) -> Path:
        """One file for each claim: two machines that append to one would damage it."""
        return self.work / f"events-{self.epoch}.jsonl"

    def all_events(self) -> list[Path]:
        """The events of all claims, in their order."""
        return _by_epoch(self.work.glob("events-*.jsonl"))

    @property
    def progress(self) -> Path:
        return self.work / "progress.json"

    @property
    def shards(self) -> Path:
        return self.work / "shards"

    @property
    def rejects(self) -> Path:
        return self.work / "rejects"

    @property
    def all_rejects(self) -> Path:
        """Those of all units, in the order of the source."""
        return self.rejects / "rejects.jsonl"

    @property
    def merged(self) -> Path:
        """What grows while units are worked. A run that died leaves it to the next.

        Who was overtaken finds it gone: `adopt` gave it the name of a later claim.
        """
        return self.work / f"merged-{self.epoch}"

    @property
    def receipts(self) -> Path:
        return self.merged / "receipts.jsonl"

    @property
    def lengths(self) -> Path:
        return self.merged / "lengths"

    @property
    def staged(self) -> Path:
        """The folder that becomes `dataset` by a rename."""
        return self.merged / "dataset"

    def name(self, number: int) -> str:
        """File name of one of several prefixes."""
        return f"{self.stem.removesuffix(SUFFIX)}_{number:05d}{SUFFIX}"

    def growing(self, number: int) -> Path:
        """A prefix while units are merged, when nobody knows yet whether the first is the only one."""
        return self.staged / (self.name(number) if number else self.stem)

    def all_merged(self) -> list[Path]:
        """What earlier claims left merged, the newest last."""
        return _by_epoch(self.work.glob("merged-*"))

    def shard(self, unit: str) -> Path:
        """The prefix of a unit's indexed pair."""
        return self.shards / unit

    def unit_manifest(self, unit: str) -> Path:
        return self.shards / f"{unit}.json"

    def unit_rejects(self, unit: str) -> Path:
        return self.shards / f"{unit}.rejects.jsonl"

    def attempts(self, unit: str) -> Path:
        return self.shards / f"{unit}{MARK}attempts"

    @staticmethod
    def piece(unit: str, number: int) -> str:
        """What stands for a unit in the names of the files of one of its pieces."""
        return f"{unit}.p{number:04d}"

    def forget(self, unit: str) -> None:
        """Remove the manifests of a unit and of all its pieces, so that nothing of it is done."""
        with explain(self.unit_manifest(unit), "clear"):
            self.unit_manifest(unit).unlink(missing_ok=True)
            for path in self.shards.glob(f"{glob.escape(unit)}.p*.json"):
                path.unlink(missing_ok=True)

    @property
    def prefix(self) -> Path:
        return self.dataset / self.stem

    @property
    def first_prefix(self) -> Path:
        """The same, or of several that were published, the first."""
        first = self.dataset / self.name(0)
        return first if lies_at(first) else self.prefix

    @property
    def manifest(self) -> Path:
        return self.dataset / "manifest.json"

    @property
    def data_args(self) -> Path:
        """For Megatron's ``--data-args-path``: several prefixes, or datasets, with their weights."""
        return self.dataset / DATA_ARGS


@dataclass(frozen=True, slots=True)
class RawFolder:
    """Where what was downloaded lies; shared by all recipes that read it.

    Attributes:
        path: the folder.
    """

    path: Path

    @classmethod
    def of(cls, output: Path, place: str, identity: str) -> RawFolder:
        """The folder for a place.

        Args:
            output: the folder the user named.
            place: what people call it: a repository, a host.
            identity: what tells it from others of that name: a commit, a list of addresses.
        """
        name = re.sub(r"[^A-Za-z0-9._+-]+", "-", place).strip("-.")[:80] or "files"
        digest = hashlib.sha256(f"{place}\n{identity}".encode()).hexdigest()[:8]
        return cls(Path(os.path.abspath(output)) / "raw" / f"{name}-{digest}")

    @property
    def files(self) -> Path:
        return self.path / "files"

    @property
    def parts(self) -> Path:
        return self.path / "parts"

    @property
    def receipts(self) -> Path:
        return self.path / "receipts.jsonl"

    @property
    def in_use(self) -> Path:
        """What all who use the folder lock, see `locks.Users`."""
        return self.path / "in-use"

    def listing(self, asked: dict[str, Any]) -> Path:
        """What there is to fetch, as an answer to what was asked for."""
        return self.path / _listing(asked)

    @staticmethod
    def listings(output: Path, asked: dict[str, Any]) -> Iterator[Path]:
        """The answers to the same question in all raw folders of an output."""
        return (Path(os.path.abspath(output)) / "raw").glob(f"*/{_listing(asked)}")

    @property
    def contents(self) -> Path:
        return self.path / "contents"

    @property
    def contents_lock(self) -> Path:
        return self.contents / "lock"

    def contents_record(self, ids: str) -> Path:
        """Says that all texts of a file of ids are here, and in which pieces."""
        return self.contents / f"{ids}.json"

    def contents_piece(self, ids: str, first_row: int) -> Path:
        """Texts of a file of ids, from this row on."""
        return self.contents / ids / f"{first_row:012d}.parquet"

    def siblings(self) -> list[RawFolder]:
        """Folders of the same place at other commits, or of another list of addresses there."""
        begin = self.path.name.rpartition("-")[0]
        found = sorted(self.path.parent.glob(f"{begin}-????????"))
        return [RawFolder(path) for path in found if path != self.path]

    def parts_left(self) -> dict[str, int]:
        """What of files is there in parts: what the names of a file's parts begin with -> bytes of the longest."""
        found: dict[str, int] = {}
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.parts):
                begin = entry.name.partition(MARK)[0] + MARK
                with contextlib.suppress(FileNotFoundError):
                    found[begin] = max(found.get(begin, 0), entry.stat().st_size)
        return found

    def part(self, name: str, identity: str) -> str:
        """What the names of a file's parts begin with."""
        return hashlib.sha256(f"{name}\n{identity}".encode()).hexdigest()[:24] + MARK


def job_log(output: Path) -> Path:
    """Where the job of a run says how it gets on; ``%j`` stands for its number."""
    return Path(os.path.abspath(output)) / "work" / "job-%j.log"


def _listing(asked: dict[str, Any]) -> str:
    return f"listing-{hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]}.json"


def _by_epoch(paths: Iterable[Path]) -> list[Path]:
    numbered = [(int(match[1]), path) for path in paths if (match := re.search(r"-(\d+)(\.jsonl)?$", path.name))]
    return [path for _, path in sorted(numbered)]


def pair_manifest(prefix: Path) -> Path:
    """The manifest of one pair that lies where its user wants it, beside it."""
    return prefix.with_name(f"{prefix.name}.manifest.json")


def lies_at(prefix: Path) -> bool:
    """Whether one of the two files of a pair is there."""
    return bool(prefix.name) and any(prefix.with_name(prefix.name + suffix).exists() for suffix in (".bin", ".idx"))

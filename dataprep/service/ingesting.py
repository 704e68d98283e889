"""From what is new in a job's corpus to a new version of its dataset.

look       which files are there, and finished                              `inbox`
compare    what is new, changed or gone since the newest version            `versions.compare`
pending    the files of the next part, written down before it is begun
part       a dataset of those files alone, by a run like any other
publish    a version: the parts that stay, and that one
"""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dataprep
from dataprep import planning, runner, submission
from dataprep.errors import ClusterError, NoTextError, SourceError, SpecError
from dataprep.manifest import load_manifest
from dataprep.service.inbox import check_gone, look
from dataprep.service.records import Ingested
from dataprep.specs import FilesSource
from dataprep.storage import checksum, explain, make_folder, write_json
from dataprep.versions import (
    Changes,
    Pending,
    VersionManifest,
    VersionPart,
    Versions,
    compare,
    drop,
    part_request,
    recipes_of,
    renamed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from dataprep.claims import Claim
    from dataprep.planning import Request
    from dataprep.service.jobs import Job
    from dataprep.specs import Recipe, SourceFile
    from dataprep.watcher import Watcher

log = logging.getLogger(__name__)

SHOWN = 5
"""Names of files in a message."""


def dataset_of(job: Job) -> Versions:
    """The versioned dataset of a job."""
    return Versions(job.output_folder / job.name)


def ingest(job: Job, claim: Claim, watcher: Watcher, started: Callable[[Request], None]) -> Ingested:
    """Make a new version of a job's dataset, if there is anything new.

    Args:
        job: what is to be ingested.
        claim: to the dataset, held.
        watcher: is told how the run of the part gets on.
        started: called before a part is begun.

    Raises:
        SourceError: the source changed in a way that `changes` of the job does not allow; it cannot be read.
        LostClaimError: the claim was overtaken.
        DataprepError: the work failed; what is finished is kept.
    """
    versions, done = dataset_of(job), Ingested()
    while True:
        version = versions.newest()
        request, changes, waiting = _find(job, versions, version)
        done = _plus(done, files_waiting=len(waiting) - done.files_waiting)
        resumed = _resumed(versions, changes)
        todo = resumed or changes.todo
        if request is None or not (todo or changes.vanished):
            drop(versions, claim)
            return done
        added = len(set(todo) & set(changes.new))
        found = {"files_changed": len(changes.changed), "files_vanished": len(changes.vanished), "files_added": added}
        _check_allowed(job, versions, changes)
        part = _make(job, request, todo, versions, (claim, watcher, started)) if todo else None
        if part is None and resumed:
            _forget(versions)
            continue  # no document in any of them; they are looked at again, with what came since
        if part is None and len(changes.kept) == (len(version.parts) if version is not None else 0):
            _forget(versions)
            return done  # nor in these; they are looked at again with the next ones
        made = _version(versions, version, changes, part, request.recipe)
        made = made.model_copy(update={"run": claim.epoch})
        if not made.parts:
            raise SourceError(
                f"the files of version {made.previous} are gone, or hold no documents any more, so that nothing would "
                f"be left of {versions.name}; is the source mounted?"
            )
        versions.publish(made, claim)
        _forget(versions)
        documents, tokens = (part.num_documents, part.num_tokens) if part is not None else (0, 0)
        where = versions.version(made.number)
        log.info("%s is there: %d new files, %d documents, %d tokens", where, added, documents, tokens)
        done = _plus(done, made.number, num_documents=documents, num_tokens=tokens, **found)
        if not resumed:
            return done


def make_part(job: Job, watcher: Watcher) -> runner.Result:
    """Make the part that the run of a job has set out to make; inside the job of Slurm that it has submitted.

    Raises:
        SpecError: there is nothing to do.
        DataprepError: the work failed; what is finished is kept.
    """
    versions = dataset_of(job)
    request, changes, _ = _find(job, versions, versions.newest())
    todo = _resumed(versions, changes)
    if request is None or not todo:
        raise SpecError(f"{versions.pending} asks for nothing that is there; this is for `dataprep jobs run` to call")
    part = part_request(request, todo, versions)
    try:
        return runner.execute(part, watcher, wait=True)
    except NoTextError:  # who submitted the job sees only that it failed
        write_json(versions.pending, Pending.of(part, todo).model_copy(update={"no_text": True}).to_json())
        raise


def _plus(done: Ingested, version: int | None = None, **more: int) -> Ingested:
    values = {name: getattr(done, name) + count for name, count in more.items()}
    return Ingested(**{**done.__dict__, **values, "version": done.version if version is None else version})


def _find(
    job: Job, versions: Versions, version: VersionManifest | None
) -> tuple[Request | None, Changes, tuple[str, ...]]:
    """The request for the whole corpus, what is different in it, and what is not finished; None: nothing is there."""
    recipes = recipes_of(versions, version)
    known = [file for recipe in recipes.values() for file in recipe.files]
    pending = Pending.read(versions.pending)
    before = {file.name: (file.num_bytes, file.mtime_ns or 0) for file in known}
    found = look(job, before | (pending.stamps if pending is not None else {}))
    if found.waiting:
        what = "files are empty, or may still be written to, and wait for the next run"
        log.info("%d %s: %s", len(found.waiting), what, _some(found.waiting))
    if found.only is not None and not found.only:
        gone = tuple(sorted({file.name for file in known} - set(found.waiting)))
        if gone:
            raise SourceError(
                f"none of the {len(known):,} files of version {versions.numbers()[-1]} of {versions.name} is there any "
                f"more; is the source mounted? They were, for instance, {_some(gone)}"
            )
        if not found.waiting:
            log.info("there is nothing yet in %s", ", ".join(job.corpus_arguments))
        return None, Changes((), (), (), (), ()), found.waiting
    request = planning.resolve(
        job.corpus_arguments, job.tokenizer_argument, job.output_folder, None, None, job.settings, only=found.only
    )
    request = renamed(request, found.folder)
    changes = compare(request, recipes, found.waiting)
    if changes.vanished and isinstance(request.corpus.source, FilesSource):
        check_gone(request.corpus.source, found.folder, changes.vanished)
    return request, changes, found.waiting


def _resumed(versions: Versions, changes: Changes) -> tuple[SourceFile, ...]:
    """The files of the part that an earlier run has begun, if they are still what is to be done."""
    pending = Pending.read(versions.pending)
    found = pending.among(changes.todo) if pending is not None else ()
    return found if {file.name for file in (*changes.changed, *changes.again)} <= {f.name for f in found} else ()


def _check_allowed(job: Job, versions: Versions, changes: Changes) -> None:
    """See that the source changed only in ways that the job allows.

    Raises:
        SourceError: it did not.
    """
    if job.changes == "mirror":
        return
    what = []
    if changes.is_other:
        what.append("the tokenizer, the policy, the reader or the output is another than that of the parts")
    if changes.changed:
        what.append(f"{len(changes.changed):,} files have other contents ({_some([f.name for f in changes.changed])})")
    if changes.vanished:
        what.append(f"{len(changes.vanished):,} files are gone ({_some(changes.vanished)})")
    if what:
        raise SourceError(
            f"{versions.name} is append_only, and since its newest version {' and '.join(what)}. Put back what was "
            "there, and let what is new come in files of its own; or let versions follow the source, with `changes: "
            "mirror` in the job; or begin another dataset, with a job of another name"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _make(
    job: Job,
    request: Request,
    files: Sequence[SourceFile],
    versions: Versions,
    run: tuple[Claim, Watcher, Callable[[Request], None]],
) -> VersionPart | None:
    """Make a part of these files; None: there is no document in them."""
    claim, watcher, started = run
    part = part_request(request, files, versions)
    drop(versions, claim, keep=part.digest)
    claim.check()
    make_folder(versions.parts)
    write_json(versions.pending, Pending.of(part, files).to_json())
    started(part)
    try:
        if submission.is_handed_over(part.cluster):
            _hand_over(job, part, versions)
        else:
            runner.execute(part, watcher, wait=True)
    except NoTextError as error:
        log.warning("%s", error)
        return None
    except SourceError as error:
        if len(files) == 1:
            raise
        raise SourceError(
            f"{error}. To go on without one of the {len(files):,} files, let the job say, for instance, "
            "set: ['source.exclude=[\"*bad.jsonl\"]']"
        ) from error
    return _part_of(versions, part.layout.dataset)


def _hand_over(job: Job, part: Request, versions: Versions) -> None:
    """Have a job of the cluster make a part, and wait for it.

    Raises:
        NoTextError: there is no document in its files.
        ClusterError: the job failed.
    """
    arguments = ["jobs", "part", job.name, "--jobs", str(job.folder)]
    try:
        submission.hand_over(part, arguments, f"dataprep-{job.name}-{part.digest[:8]}")
    except ClusterError as error:
        pending = Pending.read(versions.pending)
        if pending is not None and pending.digest == part.digest and pending.no_text:
            raise NoTextError(f"there is no document in the {len(part.recipe.files):,} new files") from error
        raise


def _part_of(versions: Versions, folder: Path) -> VersionPart:
    """What a version says of a dataset."""
    manifest = load_manifest(folder / "manifest.json")
    return VersionPart(
        folder=os.path.relpath(folder, versions.version(0)),
        recipe_digest=manifest.recipe_digest,
        manifest_checksum=checksum(folder / "manifest.json"),
        num_files=len(manifest.recipe.files),
        num_documents=manifest.counts.num_documents,
        num_sequences=manifest.counts.num_sequences,
        num_tokens=manifest.counts.num_tokens,
        num_text_bytes=manifest.counts.num_text_bytes,
        prefixes=manifest.prefixes,
    )


def _version(
    versions: Versions, before: VersionManifest | None, changes: Changes, part: VersionPart | None, whole: Recipe
) -> VersionManifest:
    """The version that comes after another one."""
    kept = [each for each in before.parts if each.folder in changes.kept] if before is not None else []
    return VersionManifest(
        dataprep_version=dataprep.__version__,
        dataset=versions.name,
        number=versions.next_number(),
        previous=before.number if before is not None else None,
        run=0,
        corpus=whole.corpus,
        tokenizer=whole.tokenizer.name,
        parts=tuple(kept) if part is None else (*kept, part),
        changed=tuple(file.name for file in changes.changed),
        vanished=changes.vanished,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _forget(versions: Versions) -> None:
    with explain(versions.pending, "remove"):
        versions.pending.unlink(missing_ok=True)

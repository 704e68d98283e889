"""Make what another tool's command line asks for, with our own pipeline.

    flags.parse -> Asked -> for each key: a run in ``<final>.work/`` -> <final>.bin .idx .manifest.json

``<final>`` is ``{output-prefix}_{key}_{document|sentence}``. The work folder is an ordinary output folder: a run that
died goes on in it. The three files appear last, whole and proven, and the folder goes.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep import planning, runner
from dataprep.catalog import find_tokenizer
from dataprep.compat import dealing, sentences
from dataprep.compat.configs import check
from dataprep.compat.flags import Asked, parse
from dataprep.compat.policies import CONVENTIONS
from dataprep.compat.punkt import Cut, splitter
from dataprep.definitions import identify
from dataprep.errors import BusyError, DataprepError, FormatError, OutputError, SpecError
from dataprep.indexed import bin_path, idx_path
from dataprep.layout import pair_manifest
from dataprep.locks import hold
from dataprep.manifest import DatasetManifest, Preprocess, manifest_of
from dataprep.storage import AtomicFile, checksum, copy_range, explain, make_folder, sync_folder, write_json
from dataprep.watcher import Silent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataprep.planning import Request
    from dataprep.watcher import Watcher

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Made:
    """One pair.

    Attributes:
        prefix: path without ``.bin``, absolute.
        fresh: False where it was there already and nothing was done.
    """

    prefix: Path
    manifest: DatasetManifest
    fresh: bool


def preprocess(asked: Asked | Sequence[str], watcher: Watcher | None = None) -> list[Made]:
    """Make a pair for each key.

    Args:
        asked: the flags of Megatron's tools/preprocess_data.py, or what `flags.parse` made of them.

    Raises:
        SpecError: the request is wrong, or the files exist and are of something else.
        DataprepError: the work failed; the same call goes on from there.
    """
    asked = asked if isinstance(asked, Asked) else parse(asked)
    for key in asked.keys:
        if "/" in key or not key:
            raise SpecError(f"--json-keys {key!r}: it becomes part of a file name and cannot be empty or hold a slash")
    try:
        return [_make(asked, key, watcher or Silent()) for key in asked.keys]
    except DataprepError as error:
        raise type(error)(_in_these_flags(str(error))) from error


def _in_these_flags(text: str) -> str:
    """A message of the pipeline, which advises its own options, with those of this command."""
    text = re.sub(r"--output(?![-\w])", "--output-prefix", text).replace(" (--wait)", "")
    text = text.replace(
        "found an array",
        "found an array; lists of sentences are taken if a file has one in its first MiB: put such a line there",
    )
    return text.replace("another field with --set reader.text=NAME", "another with --json-keys")


def _make(asked: Asked, key: str, watcher: Watcher) -> Made:
    level = "sentence" if asked.lang is not None else "document"
    final = Path(os.path.abspath(f"{asked.prefix}_{key}_{level}"))
    work = final.with_name(f"{final.name}.work")
    request = _request(asked, key, work)
    cut = _cut(asked, key, request)
    beside = _beside(asked, cut)
    digest = _digest(request, beside)
    if (made := _existing(final, digest)) is not None:
        _clear(work)  # what a run left that died behind its manifest
        return made
    whole = request.layout.prefix if cut is None else _place_of(work, request, _beside(asked, cut, dealt=False), final)
    source = _place_of(work, request, beside, final) if asked.partitions > 1 else whole
    _check_free(final, source)
    _check_ours(work)
    make_folder(work)
    with hold(work / LOCK):
        made = _existing(final, digest)  # by who held the lock before
        if made is None:
            manifest = _whole(request, cut, whole, watcher)
            if asked.partitions > 1:
                manifest = _dealt(manifest, asked.partitions, whole, source, watcher)
            manifest = manifest.model_copy(update={"preprocess": beside})
            made = Made(final, _publish(final, source, manifest, digest), fresh=True)
        shutil.rmtree(work, ignore_errors=True)  # another one may hold it next, and remove it as well
    return made


LOCK = "lock"


def _clear(work: Path) -> None:
    if (work / LOCK).exists():
        with contextlib.suppress(BusyError), hold(work / LOCK):
            shutil.rmtree(work, ignore_errors=True)


def _check_ours(work: Path) -> None:
    """Make sure that the work folder, which goes in the end, holds nothing of anybody else's.

    Raises:
        SpecError: it does.
    """
    if work.exists() and not (work / LOCK).exists() and any(work.iterdir()):
        raise SpecError(f"{work} exists and is not this command's: move it away, or choose another --output-prefix")


def _place_of(work: Path, request: Request, beside: Preprocess | None, final: Path) -> Path:
    """The prefix of a pair in the work folder; another one for each way to make it."""
    return work / _digest(request, beside)[:16] / final.name


def _request(asked: Asked, key: str, work: Path) -> Request:
    """The run behind one key."""
    overrides = {"type": asked.type, **({"merges": asked.merge_file} if asked.merge_file else {})}
    place = asked.vocab_file or asked.model
    assert place is not None
    if os.path.exists(place):
        place = os.path.abspath(place)  # a folder here comes before what is shipped under the same name
    identity = identify(*find_tokenizer(place, overrides))
    check(asked, identity)
    bos = asked.include_specials and asked.named_type != "GPTSentencePieceTokenizer"
    policy = CONVENTIONS[asked.policy].settings(asked.type, identity.vocab_size, asked.append_eod, bos)
    settings = [
        "reader.format=jsonl",
        f"reader.text={json.dumps(key)}",
        *(f"tokenizer.{name}={json.dumps(value)}" for name, value in overrides.items()),
        *policy,
        "runtime.max_rejects=0",
        *asked.settings,
    ]
    inputs = [path for text in asked.inputs for path in _found(text)]
    processors = len(os.sched_getaffinity(0))
    workers = min(asked.workers or processors, processors)
    return planning.resolve(inputs, place, work, workers, None, settings)


def _found(text: str) -> list[str]:
    """What an input stands for; of a glob's files, those that are empty hold no line."""
    if "://" in text:
        return [text]
    path = os.path.abspath(text)
    names = sorted(glob.glob(path)) if glob.has_magic(path) and not os.path.exists(path) else []
    return [name for name in names if not os.path.isfile(name) or os.path.getsize(name)] or [path]


def _beside(asked: Asked, cut: Cut | None, dealt: bool = True) -> Preprocess | None:
    """What is done beside the recipe; without `dealt`, before the documents are dealt out."""
    partitions = asked.partitions if dealt else 1
    if cut is None and partitions == 1:
        return None
    keep = asked.lang is not None and asked.keep_newlines
    return Preprocess(partitions=partitions, lang=asked.lang, keep_newlines=keep)


def _digest(request: Request, beside: Preprocess | None) -> str:
    """Of all that decides the bytes."""
    if beside is None:
        return request.digest
    return hashlib.sha256(json.dumps([request.digest, beside.to_json()]).encode()).hexdigest()


def _cut(asked: Asked, key: str, request: Request) -> Cut | None:
    """How the texts are cut into sentences, if they are.

    Raises:
        SpecError: with settings that sentences do not follow; nltk or its model is not here.
    """
    if asked.lang is None and not sentences.are_lists(request.recipe.files, key):
        return None
    other = [key for key in (setting.partition("=")[0] for setting in asked.settings) if key not in SENTENCE_SETTINGS]
    given = [f"--policy {asked.policy}"] if request.recipe.policy.empty != "keep" and not other else []
    if given or other:
        raise SpecError(
            f"{', '.join([*given, *(f'--set {key}' for key in other)])}: texts of sentences do not follow it"
        )
    cut = Cut(key, asked.lang, asked.keep_newlines)
    if asked.lang is not None:
        splitter(cut)  # what is missing is said before anything is begun
    return cut


SENTENCE_SETTINGS = ("policy.bos", "policy.dtype", "runtime.audit_rate", "runtime.engine", "runtime.memory")


def _whole(request: Request, cut: Cut | None, prefix: Path, watcher: Watcher) -> DatasetManifest:
    """Make the pair with its documents in the order of the source, or find it made."""
    if cut is None:
        manifest = runner.execute(request, watcher).manifest
        if len(manifest.prefixes) > 1:
            raise SpecError(
                f"{manifest.counts.num_documents:,} documents: Megatron takes fewer than 2**31 in one pair; "
                "dataprep run makes several"
            )
        return manifest
    if isinstance(made := manifest_of(prefix), DatasetManifest) and made.recipe_digest == request.digest:
        return made
    manifest = sentences.build(request, cut, prefix, watcher)
    write_json(pair_manifest(prefix), manifest.to_json())
    return manifest


def _dealt(manifest: DatasetManifest, number: int, whole: Path, prefix: Path, watcher: Watcher) -> DatasetManifest:
    """Make the pair with its documents in the order of Megatron's partitions, or find it made."""
    if isinstance(made := manifest_of(prefix), DatasetManifest) and made.recipe_digest == manifest.recipe_digest:
        return made
    manifest = dealing.deal(whole, manifest, number, prefix, watcher)
    write_json(pair_manifest(prefix), manifest.to_json())
    return manifest


def _publish(final: Path, source: Path, manifest: DatasetManifest, digest: str) -> DatasetManifest:
    """Give the pair its final names, and then its manifest."""
    entry = manifest.prefixes[0].model_copy(update={"name": final.name})
    report = {**manifest.verification, "prefix": final.name}
    manifest = manifest.model_copy(update={"recipe_digest": digest, "prefixes": (entry,), "verification": report})
    _check_free(final, source)
    for path in (bin_path, idx_path):
        _place(path(source), path(final))
    write_json(pair_manifest(final), manifest.to_json())
    return manifest


def _existing(final: Path, digest: str) -> Made | None:
    """The pair, if it is there whole."""
    try:
        manifest = manifest_of(final)
    except FormatError:
        return None
    if not isinstance(manifest, DatasetManifest) or manifest.recipe_digest != digest:
        return None
    files = manifest.prefixes[0].files
    for path, size in ((bin_path(final), files.bin_bytes), (idx_path(final), files.idx_bytes)):
        if not path.exists() or path.stat().st_size != size:
            raise OutputError(f"{path} is not what its manifest says; remove {final}.* and run the same command again")
    return Made(final, manifest, fresh=False)


def _check_free(final: Path, source: Path) -> None:
    """Make sure that nothing is lost under the final names; what a run that died put there is ours.

    Raises:
        SpecError: something else has them.
    """
    for path, made in ((bin_path(final), bin_path(source)), (idx_path(final), idx_path(source))):
        if path.exists() and not (made.exists() and _is_same(path, made)):
            raise SpecError(
                f"{path} exists, and is of other input, tokenizer or flags, or of another tool. A new dataset needs a "
                "new path, because Megatron keeps its index caches by the path: choose another --output-prefix, or "
                f"remove {final}.* and the caches"
            )


def _is_same(path: Path, made: Path) -> bool:
    """Whether one is the other, or its copy."""
    return path.samefile(made) or (path.stat().st_size == made.stat().st_size and checksum(path) == checksum(made))


def _place(source: Path, target: Path) -> None:
    """Give a finished file its second name; where the file system has no links, its copy."""
    with explain(target, "write"):
        if target.exists():
            return
        try:
            os.link(source, target)
        except OSError:
            with AtomicFile(target) as file, source.open("rb") as data:
                copy_range(data.fileno(), file.fd, 0, source.stat().st_size)
        sync_folder(target.parent)

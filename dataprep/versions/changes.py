"""What of a source is new, changed or gone since a version was made, and the run that makes a part of what is new.

A source file is known by its name below the folder, or the address, that the corpus names, and not, as within one run,
below the folder that all its files share: that one becomes another when files land elsewhere.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dataprep.errors import FormatError, SpecError, public
from dataprep.manifest import load_manifest
from dataprep.planning import Request, of_recipe, unchanged_or_new
from dataprep.sources import anchor, with_checksum
from dataprep.specs import FilesSource, Model, SourceFile, UrlsSource
from dataprep.storage import checksum, read_whole

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from dataprep.specs import Recipe
    from dataprep.versions.folder import Versions
    from dataprep.versions.manifest import VersionManifest


@dataclass(frozen=True)
class Changes:
    """How a source differs from a version.

    Attributes:
        new: files that the version has not.
        changed: files that had other contents.
        vanished: names of files that are gone.
        again: files that did not change, and whose documents have to be tokenized again, because they are in a part
            with others that did, or went.
        kept: folders of the parts that stay as they are.
        is_other: a part does not stay, since the tokenizer, the policy or the reader is another.
    """

    new: tuple[SourceFile, ...]
    changed: tuple[SourceFile, ...]
    vanished: tuple[str, ...]
    again: tuple[SourceFile, ...]
    kept: tuple[str, ...]
    is_other: bool = False

    @property
    def todo(self) -> tuple[SourceFile, ...]:
        """The files that the next part is made of."""
        return (*self.new, *self.changed, *self.again)


class Pending(Model):
    """What a run has set out to do, so that the next one goes on with the very same part if it is killed.

    Attributes:
        digest: of the part's recipe.
        files: name, bytes, mtime and checksum of each of its files, as they were listed.
        no_text: no document was found in them, says the job of a cluster that looked.
    """

    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    files: tuple[tuple[str, int, int | None, str | None], ...]
    no_text: bool = False

    @classmethod
    def of(cls, request: Request, files: Sequence[SourceFile]) -> Pending:
        """What a request for a part of these files sets out to do."""
        return cls(digest=request.digest, files=tuple(map(_seal, files)))

    @classmethod
    def read(cls, path: Path) -> Pending | None:
        """What an earlier run has set out to do; None: nothing, or it is damaged, and begun anew."""
        try:
            return cls.model_validate_json(read_whole(path))
        except (OSError, ValueError):
            return None

    @property
    def ending(self) -> str:
        """What the name of the part's folder ends with."""
        return f"-{self.digest[:8]}"

    @property
    def stamps(self) -> dict[str, tuple[int, int]]:
        """Bytes and mtime of each file by its name."""
        return {name: (num_bytes, mtime_ns or 0) for name, num_bytes, mtime_ns, _ in self.files}

    def among(self, files: Sequence[SourceFile]) -> tuple[SourceFile, ...]:
        """Those files, if they are still all there as they were listed; none otherwise."""
        wanted = set(self.files)
        found = tuple(file for file in files if _seal(file) in wanted)
        return found if len(found) == len(wanted) else ()


def _seal(file: SourceFile) -> tuple[str, int, int | None, str | None]:
    return file.name, file.num_bytes, file.mtime_ns, file.checksum


def renamed(request: Request, folder: Path) -> Request:
    """The same request with names of the user's own files that stay when others come.

    Args:
        request: for the whole corpus.
        folder: what its relative paths start at.
    """
    source = request.corpus.source
    if not isinstance(source, FilesSource):
        return request
    root = anchor(source, folder)
    files = (
        f.model_copy(update={"name": Path(os.path.relpath(f.path, root)).as_posix()}) for f in request.recipe.files
    )
    ordered = tuple(sorted(files, key=lambda file: file.name))
    return of_recipe(request, request.recipe.model_copy(update={"files": ordered}))


def key_of(file: SourceFile, request: Request) -> str:
    """What tells a file from the others of its source, for as long as there are versions of it."""
    if isinstance(request.corpus.source, UrlsSource) and file.url is not None:
        return public(file.url)
    return file.name


def recipes_of(versions: Versions, version: VersionManifest | None) -> dict[str, Recipe]:
    """The recipes of a version's parts, of which its source files are known, by the folders as it names them.

    Raises:
        FormatError: the manifest of a part is gone, or is not what it was when the version was made.
    """
    parts = version.parts if version is not None else ()
    return {part.folder: _recipe_of(versions.part(part.folder), part.manifest_checksum) for part in parts}


def compare(request: Request, recipes: Mapping[str, Recipe], waiting: Collection[str] = ()) -> Changes:
    """How the source of a request differs from a version; reads files of the user whose mtime changed.

    Args:
        request: for the whole corpus, `renamed`.
        recipes: `recipes_of` the version; none: everything is new.
        waiting: names of files that are there, and not looked at: they are as they were.

    Raises:
        SourceError: a file cannot be read.
    """
    here = {key_of(file, request): file for file in request.recipe.files}
    known, changed, again, vanished = set[str](), dict[str, SourceFile](), list[SourceFile](), set[str]()
    kept, is_other = list[str](), False
    for part, recipe in recipes.items():
        before = {key_of(file, request): file for file in recipe.files}
        other = {key: now for key in before if key in here and (now := _changed(before[key], here[key])) is not None}
        gone = before.keys() - here.keys() - set(waiting)
        if other or gone or _decides(recipe) != _decides(request.recipe):
            again += [here[key] for key in before if key in here and key not in other]
        else:
            kept.append(part)
        is_other = is_other or _decides(recipe) != _decides(request.recipe)
        known.update(before)
        vanished |= gone
        changed.update(other)
    return Changes(
        new=tuple(file for name, file in here.items() if name not in known),
        changed=tuple(changed.values()),
        vanished=tuple(sorted(vanished)),
        again=tuple(again),
        kept=tuple(kept),
        is_other=is_other,
    )


def _recipe_of(folder: Path, expected: str) -> Recipe:
    path = folder / "manifest.json"
    mend = "put back what was there, or begin another dataset, with a job of another name"
    try:
        found = checksum(path)
    except OSError as error:
        raise FormatError(f"cannot read {path}, which a version needs: {error.strerror}; {mend}") from error
    if found != expected:
        raise FormatError(f"{path} is not what it was when the version was made: {found}, expected {expected}; {mend}")
    return load_manifest(path).recipe


def _decides(recipe: Recipe) -> object:
    """What parts of one version have in common."""
    return recipe.conventions, recipe.reader.identity, recipe.dtype, recipe.output


def _changed(old: SourceFile, new: SourceFile) -> SourceFile | None:
    """The file as it is now, with a checksum, if its contents are not what they were; None: they are."""
    if old.num_bytes != new.num_bytes:
        return new
    if new.url is None:
        if old.mtime_ns == new.mtime_ns:
            return None
        hashed = with_checksum(new)
        return None if hashed.checksum == old.checksum else hashed
    stated = (old.stated or old.checksum or "", new.checksum or "")
    kinds = {text.partition(":")[0] for text in stated}
    return new if len(kinds) == 1 and stated[0] != stated[1] else None


def part_request(request: Request, files: Sequence[SourceFile], versions: Versions) -> Request:
    """The run that makes a part of some files of a corpus.

    Args:
        request: for the whole corpus, `renamed`.
        files: some of its files.
        versions: what the part is for; its name is that of the part's corpus, so that no two of them share a part.

    Raises:
        SpecError: of this corpus none can be made.
        SourceError: a file cannot be read.
    """
    if request.listing.ids or any((file.checksum or "").startswith("texts:") for file in files):
        raise SpecError(
            f"{request.recipe.corpus}: its files hold ids of texts, and of such a corpus no versions are made; "
            "use `dataprep run`"
        )
    chosen = tuple(sorted(files, key=lambda file: file.name))
    recipe = request.recipe.model_copy(update={"corpus": versions.name, "files": chosen})
    home = versions.parts.relative_to(request.layout.output).as_posix()
    corpus = request.corpus.model_copy(update={"name": versions.name})
    part = unchanged_or_new(of_recipe(replace(request, corpus=corpus), recipe, home))
    if not versions.gone(part.layout.dataset).exists():
        return part
    hashed = tuple(file if file.url or file.checksum else with_checksum(file) for file in part.recipe.files)
    return of_recipe(part, part.recipe.model_copy(update={"files": hashed}))  # other contents get another path

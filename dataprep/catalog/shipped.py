"""The YAMLs that come along, and those of ``$DATAPREP_PATH``."""

from __future__ import annotations

import os
import re
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeVar

from dataprep.specs import Corpus, HubSource, Mixture, Model, TokenizerSpec, load_yaml

M = TypeVar("M", bound=Model)

Kind = Literal["pipelines", "tokenizers"]


def folders(kind: Kind) -> list[Path]:
    """The folders to look in for ``pipelines`` or ``tokenizers``, the user's first."""
    package = Path(str(files("dataprep")))
    checkout = package.parent / kind
    shipped = (
        checkout
        if (checkout / "README.md").is_file() and (package.parent / "pyproject.toml").is_file()
        else package / "_catalog" / kind
    )
    extra = [Path(part) / kind for part in os.environ.get("DATAPREP_PATH", "").split(os.pathsep) if part]
    return [*extra, shipped]


def names(kind: Kind) -> dict[str, Path]:
    """Every name that has a YAML, with its path: ``pipelines`` or ``tokenizers``."""
    found: dict[str, Path] = {}
    for folder in folders(kind):
        for path in sorted([*folder.glob("*.yaml"), *folder.glob("*/*.yaml")]):
            found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def find(kind: Kind, name: str) -> Path | None:
    """The YAML of a name or an alias, if there is one."""
    there = names(kind)
    if name in there:
        return there[name]
    if kind == "tokenizers" or not re.fullmatch(r"[\w.+-]+", name):  # no alias: a path, an address
        return None
    for path in there.values():
        aliases = load_yaml(path).get("aliases", ())
        if isinstance(aliases, list) and name in aliases:
            return path
    return None


def describe(what: str) -> list[dict[str, Any]]:
    """What is shipped (and what ``$DATAPREP_PATH`` adds): ``corpora`` or ``tokenizers``, as plain JSON values."""
    if what == "tokenizers":
        return [
            {**validate(TokenizerSpec, load_yaml(path), {}, str(path)).to_json(), "path": str(path)}
            for path in names("tokenizers").values()
        ]
    return [{**_corpus(path), "path": str(path)} for path in names("pipelines").values()]


def _corpus(path: Path) -> dict[str, Any]:
    value = load_yaml(path)
    if "mixture" in value:
        mixture = Mixture.from_json(value, str(path))
        parts = [part.corpus for part in mixture.mixture.corpora]
        return {**mixture.to_json(), "size": None, "text": None, "gated": False, "subsets": parts}
    corpus = Corpus.from_json(value, str(path))
    source = corpus.source
    contents = isinstance(source, HubSource) and source.contents is not None
    return {
        **corpus.to_json(),
        "text": None if contents or corpus.reader.format == "text" else corpus.reader.text,
        "gated": source.gated if isinstance(source, HubSource) else False,
        "subsets": list(source.subsets) if isinstance(source, HubSource) else [],
    }


def slug(text: str, otherwise: str) -> str:
    """A text as a name that files can have; another name where nothing of it is left."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-._+")[:100] or otherwise


def validate(model: type[M], value: dict[str, Any], overrides: dict[str, dict[str, Any]], where: str) -> M:
    """A model of plain values, with what ``--set`` says of `source` and `reader` on top.

    Raises:
        SpecError: it does not validate; the message names `where`.
    """
    merged = dict(value)
    for key in ("source", "reader"):
        if overrides.get(key):
            base = merged.get(key)
            merged[key] = {**(base if isinstance(base, dict) else {}), **overrides[key]}
            where = f"{where} with --set"
    return model.from_json(merged, where)

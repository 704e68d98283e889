"""What stands for CORPUS on the command line."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.catalog import shipped
from dataprep.errors import SpecError
from dataprep.specs import Corpus, HubSource, Mixture, load_yaml

if TYPE_CHECKING:
    from collections.abc import Sequence

HUB = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[^:]+))?(:(?P<subset>.+))?")


def find_corpus(arguments: Sequence[str], overrides: dict[str, dict[str, Any]]) -> tuple[Corpus, Path]:
    """Resolve what stands for CORPUS.

    Args:
        arguments: ``name[:subset]``, one YAML, ``hf:org/name[@revision][:subset]``, or any number of paths and
            globs, or of addresses.
        overrides: ``--set`` by namespace; ``source`` and ``reader`` are used here.

    Returns:
        The corpus, and the folder its relative paths start at.

    Raises:
        SpecError: no such name, subset or file, or a YAML that does not validate.
    """
    first = arguments[0]
    if len(arguments) > 1 and any(argument.startswith("hf:") for argument in arguments):
        raise SpecError("several corpora, and one of the hub: give one, or a YAML with `mixture:` that names them")
    if len(arguments) == 1 and first.startswith("hf:"):
        return shipped.validate(Corpus, _of_hub(first), overrides, first), Path()
    if any("://" in argument for argument in arguments):
        return shipped.validate(Corpus, _of_urls(arguments), overrides, "the corpus"), Path()
    found = _find_yaml(first) if len(arguments) == 1 else None
    if found is not None:
        path, subset = found
        value = load_yaml(path)
        if "mixture" in value:
            raise SpecError(
                f"{first} is a mixture of corpora: the command `dataprep run` builds it, and in Python "
                "dataprep.blending.run_mixture; give one of its corpora here"
            )
        return _of_yaml(value, subset, overrides, path), path.parent
    if len(arguments) == 1 and not _looks_like_path(first) and not os.path.exists(first):
        raise SpecError(
            f"unknown corpus {first!r}; shipped are {', '.join(shipped.names('pipelines'))}; "
            "or give hf:org/name, paths of files, addresses, or a YAML"
        )
    if len(arguments) == 1 and HUB.fullmatch(f"hf:{first}") and not os.path.exists(first) and not Path(first).suffix:
        raise SpecError(f"no such file or folder: {os.path.abspath(first)}; a data set of the hub is hf:{first}")
    value = {"name": _name_of_paths(arguments), "source": {"kind": "files", "paths": list(arguments)}}
    return shipped.validate(Corpus, value, overrides, "the corpus"), Path()


def find_mixture(arguments: Sequence[str]) -> Mixture | None:
    """The mixture that stands for CORPUS, or None: it is something else.

    Raises:
        SpecError: a mixture that does not validate.
    """
    found = _find_yaml(arguments[0]) if len(arguments) == 1 else None
    if found is None:
        return None
    value = load_yaml(found[0])
    if "mixture" not in value:
        return None
    if found[1] is not None:
        raise SpecError(f"{arguments[0]}: a mixture has no subsets; give one of its corpora, or leave {found[1]!r} out")
    mixture = Mixture.from_json(value, str(found[0]))
    parts = [p.model_copy(update={"corpus": _placed(p.corpus, found[0].parent)}) for p in mixture.mixture.corpora]
    return mixture.model_copy(update={"mixture": mixture.mixture.model_copy(update={"corpora": tuple(parts)})})


def _placed(corpus: str, folder: Path) -> str:
    """What a mixture calls a corpus; a path that is relative starts at the mixture's folder."""
    is_path = "/" in corpus or corpus.endswith((".yaml", ".yml")) or (folder / corpus).is_file()
    return str(folder / corpus) if is_path and "://" not in corpus and not corpus.startswith("hf:") else corpus


def _find_yaml(text: str) -> tuple[Path, str | None] | None:
    """The YAML that a text names, and the subset behind a colon."""
    if text.endswith((".yaml", ".yml")):
        return Path(text), None
    if os.path.isfile(text):
        return None
    name, colon, subset = text.partition(":")
    path = shipped.find("pipelines", name)
    if path is None:
        return None
    return path, subset if colon else None


def _of_yaml(value: dict[str, Any], subset: str | None, overrides: dict[str, dict[str, Any]], path: Path) -> Corpus:
    default = shipped.validate(Corpus, value, {}, str(path))
    if subset is not None:
        if not isinstance(default.source, HubSource) or not default.source.subsets:
            raise SpecError(f"{default.name} has no subsets, so no {subset!r}")
        overrides = {**overrides, "source": {**overrides.get("source", {}), "subset": subset}}
    corpus = shipped.validate(Corpus, value, overrides, str(path))
    if not isinstance(corpus.source, HubSource) or not isinstance(default.source, HubSource):
        return corpus
    assert corpus.source.globs or not corpus.source.subsets  # an unknown subset is a SpecError before anything is asked
    if corpus.source.subset == default.source.subset:
        return corpus
    return corpus.model_copy(update={"name": f"{corpus.name}-{shipped.slug(corpus.source.subset or '', 'corpus')}"})


def _of_hub(text: str) -> dict[str, Any]:
    match = HUB.fullmatch(text)
    if match is None:
        raise SpecError(f"{text}: expected hf:org/name, hf:org/name@revision, or either with :subset")
    source = {"kind": "hub"} | {key: part for key, part in match.groupdict().items() if part}
    name = "-".join(filter(None, [match["repo"].split("/")[1], match["subset"]]))
    return {"name": shipped.slug(name, "corpus"), "source": source}


def _of_urls(urls: Sequence[str]) -> dict[str, Any]:
    urls = [f"{scheme.lower()}{marks}{rest}" for scheme, marks, rest in (url.partition("://") for url in urls)]
    for url in urls:
        scheme, marks, _ = url.partition("://")
        if not marks:
            raise SpecError(f"{url} is a path, and others are addresses; give either")
        if scheme == "hf":
            raise SpecError(f"{url}: for the hub say hf:org/name, without slashes before it")
    return {"name": _name_of_paths([url.partition("?")[0] for url in urls]), "source": {"kind": "urls", "urls": urls}}


def _looks_like_path(text: str) -> bool:
    return any(mark in text for mark in "/*?[") or "." in text


def _name_of_paths(arguments: Sequence[str]) -> str:
    """``dump/*.jsonl.zst`` -> ``dump``; ``books.jsonl`` -> ``books``."""
    first = Path(
        arguments[0].split("*")[0].split("?")[0].split("[")[0] + ("x" if set(arguments[0]) & set("*?[") else "")
    )
    single = len(arguments) == 1 and not set(arguments[0]) & set("*?[")
    name = first.name.split(".")[0] if single else first.resolve().parent.name
    return shipped.slug(name, "corpus")

"""Name or path -> YAML -> model.

    corpus     a shipped name, a YAML, or paths and globs of files
    tokenizer  a shipped name, a YAML, a folder, a file, or a hub repository

Shipped YAMLs lie in ``pipelines/`` and ``tokenizers/`` of a checkout and in ``dataprep/_catalog`` of a wheel.
``$DATAPREP_PATH`` (folders, ``:`` between them) adds folders that are laid out the same way and win.
"""

from __future__ import annotations

import logging
import os
import re
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dataprep.definitions import FILES
from dataprep.errors import SourceError, SpecError
from dataprep.specs import Corpus, Model, TokenizerSpec, load_yaml

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataprep.specs import TokenizerType

M = TypeVar("M", bound=Model)

log = logging.getLogger(__name__)


def folders(kind: str) -> list[Path]:
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


def names(kind: str) -> dict[str, Path]:
    """Every name that has a YAML, with its path: ``pipelines`` or ``tokenizers``."""
    found: dict[str, Path] = {}
    for folder in folders(kind):
        for path in sorted([*folder.glob("*.yaml"), *folder.glob("*/*.yaml")]):
            found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def describe(what: str) -> list[dict[str, Any]]:
    """What is shipped (and what ``$DATAPREP_PATH`` adds): ``corpora`` or ``tokenizers``, as plain JSON values."""
    kind, model = ("pipelines", Corpus) if what == "corpora" else ("tokenizers", TokenizerSpec)
    return [
        {**_with(model, load_yaml(path), {}, str(path)).to_json(), "path": str(path)} for path in names(kind).values()
    ]


def find_corpus(arguments: Sequence[str], overrides: dict[str, dict[str, Any]]) -> tuple[Corpus, Path]:
    """Resolve what stands for CORPUS on the command line.

    Args:
        arguments: one shipped name, one YAML, or any number of paths and globs.
        overrides: ``--set`` by namespace; ``source`` and ``reader`` are used here.

    Returns:
        The corpus, and the folder its relative paths start at.

    Raises:
        SpecError: no such name or file, or a YAML that does not validate.
    """
    first = arguments[0]
    if len(arguments) == 1 and first.endswith((".yaml", ".yml")):
        path = Path(first)
    elif len(arguments) == 1 and first in names("pipelines") and not os.path.isfile(first):
        path = names("pipelines")[first]
    else:
        if len(arguments) == 1 and not _looks_like_path(first) and not os.path.exists(first):
            raise SpecError(
                f"unknown corpus {first!r}; shipped are {', '.join(names('pipelines'))}; "
                "or give paths of files, or a YAML"
            )
        value: dict[str, Any] = {"name": _corpus_name(arguments), "source": {"kind": "files", "paths": list(arguments)}}
        return _with(Corpus, value, overrides, "the corpus"), Path()
    return _with(Corpus, load_yaml(path), overrides, str(path)), path.parent


def _with(model: type[M], value: dict[str, Any], overrides: dict[str, dict[str, Any]], where: str) -> M:
    merged = dict(value)
    for key in ("source", "reader"):
        if overrides.get(key):
            base = merged.get(key)
            merged[key] = {**(base if isinstance(base, dict) else {}), **overrides[key]}
            where = f"{where} with --set"
    return model.from_json(merged, where)


def _looks_like_path(text: str) -> bool:
    return any(mark in text for mark in "/*?[") or "." in text


def _corpus_name(arguments: Sequence[str]) -> str:
    """``dump/*.jsonl.zst`` -> ``dump``; ``books.jsonl`` -> ``books``."""
    first = Path(
        arguments[0].split("*")[0].split("?")[0].split("[")[0] + ("x" if set(arguments[0]) & set("*?[") else "")
    )
    single = len(arguments) == 1 and not set(arguments[0]) & set("*?[")
    name = first.name.split(".")[0] if single else first.resolve().parent.name
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip("-._+")[:100] or "corpus"


def find_tokenizer(argument: str, overrides: dict[str, Any]) -> tuple[TokenizerSpec, Path]:
    """Resolve what stands for ``--tokenizer``.

    Args:
        argument: a shipped name, a YAML, a folder, a file, or ``org/name`` on the hub.
        overrides: ``--set tokenizer.KEY=VALUE``.

    Returns:
        The spec, and the file or folder that holds the tokenizer.

    Raises:
        SpecError: nothing of that name, or no tokenizer in it.
        SourceError: the hub does not give it.
    """
    path = Path(argument).expanduser()
    shipped = names("tokenizers")
    if argument.endswith((".yaml", ".yml")):
        spec, folder = TokenizerSpec.from_json({**load_yaml(path), **overrides}, argument), path.parent
    elif argument in shipped:
        folder = shipped[argument].parent
        spec = TokenizerSpec.from_json({**load_yaml(shipped[argument]), **overrides}, str(shipped[argument]))
    elif path.exists():
        folder = Path()
        value = {"name": _tokenizer_name(path), "type": guess_type(path), "path": str(path), **overrides}
        spec = TokenizerSpec.from_json(value, f"--tokenizer {argument}")
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", argument) and not argument.startswith("."):
        folder = Path()
        value = {"name": _slug(argument.split("/")[1]), "type": "HuggingFaceTokenizer", "repo": argument, **overrides}
        spec = TokenizerSpec.from_json(value, f"--tokenizer {argument}")
    else:
        raise SpecError(
            f"unknown tokenizer {argument!r}; shipped are {', '.join(shipped)}; "
            "or give a folder, a file, a YAML, or org/name on the hub"
        )
    if spec.path is not None:
        return spec, folder / Path(spec.path).expanduser()
    return spec, fetch_tokenizer(spec)


def _tokenizer_name(path: Path) -> str:
    resolved = Path(os.path.abspath(path))
    known = {name for group in FILES.values() for name in group}
    return _slug(
        resolved.parent.name
        if resolved.is_file() and resolved.name in known
        else resolved.stem
        if resolved.is_file()
        else resolved.name
    )


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-._+")[:100] or "tokenizer"


def guess_type(path: Path) -> TokenizerType:
    """The type of a tokenizer by the files there are; ``tokenizer.json`` wins over ``tokenizer.model``.

    Raises:
        SpecError: none of the known files.
    """
    if path.is_file():
        if path.suffix == ".model":
            return "Llama2Tokenizer"
        if path.name in ("vocab.json", "merges.txt"):
            return "GPT2BPETokenizer"
        if path.suffix == ".json":
            return "HuggingFaceTokenizer"
        raise SpecError(f"{path}: expected a tokenizer.json, a tokenizer.model, or vocab.json beside merges.txt")
    there = [kind for kind, needed in FILES.items() if all((path / name).is_file() for name in needed)]
    if len(there) > 1:
        log.info("%s holds more than one tokenizer: using %s; name a file to choose", path, FILES[there[0]][0])
    if there:
        return there[0]
    expected = "; ".join(" + ".join(needed) for needed in FILES.values())
    present = ", ".join(sorted(p.name for p in path.iterdir())[:10]) or "nothing"
    raise SpecError(f"{path} holds no tokenizer: expected {expected}; found {present}")


def fetch_tokenizer(spec: TokenizerSpec) -> Path:
    """Bring the files of a hub tokenizer into the hub's own cache; returns their folder.

    Raises:
        SourceError: no network, no such repository, or no permission.
    """
    from huggingface_hub import snapshot_download

    assert spec.repo is not None
    wanted = [*FILES[spec.type], "tokenizer_config.json", "special_tokens_map.json"]
    try:
        return Path(snapshot_download(spec.repo, allow_patterns=wanted))
    except Exception as error:  # the client's error tree spans three packages
        reason = " ".join(str(error).split())[:200]
        raise SourceError(
            f"cannot fetch the tokenizer {spec.repo} from the hub: {reason}; log in with `hf auth login` if it is "
            f"gated, or give a folder that holds {' and '.join(FILES[spec.type])}: --tokenizer /path/to/folder"
        ) from error

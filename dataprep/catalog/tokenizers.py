"""What stands for ``--tokenizer``, and where its files are."""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep import hub
from dataprep.catalog import shipped
from dataprep.definitions import FILES, HINTS
from dataprep.errors import SpecError
from dataprep.hub import Repo
from dataprep.specs import TokenizerSpec, load_yaml

if TYPE_CHECKING:
    from collections.abc import Collection

    from dataprep.specs import TokenizerType

log = logging.getLogger(__name__)

HUB = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>.+))?")


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
    if not argument.strip():
        raise SpecError("--tokenizer is empty; give a name, a folder, a file, a YAML, or org/name on the hub")
    path = Path(argument).expanduser()
    known = shipped.find("tokenizers", argument)
    named = HUB.fullmatch(argument)
    if argument.endswith((".yaml", ".yml")):
        spec, folder = TokenizerSpec.from_json({**load_yaml(path), **overrides}, argument), path.parent
    elif known is not None:
        spec, folder = TokenizerSpec.from_json({**load_yaml(known), **overrides}, str(known)), known.parent
    elif path.exists():
        kind = overrides.get("type") or guess_type(path)
        value = {"name": _tokenizer_name(path), "path": str(path), **overrides, "type": kind}
        spec, folder = TokenizerSpec.from_json(value, f"--tokenizer {argument}"), Path()
    elif named is not None and not argument.startswith("."):
        repo, value = named["repo"], {key: part for key, part in named.groupdict().items() if part}
        value = {
            "name": shipped.slug(repo.split("/")[1], "tokenizer"),
            "type": "HuggingFaceTokenizer",
            **value,
            **overrides,
        }
        spec = TokenizerSpec.from_json(value, f"--tokenizer {argument}")
        return fetch_tokenizer(spec, guess="type" not in overrides)
    else:
        raise SpecError(
            f"unknown tokenizer {argument!r}; shipped are {', '.join(shipped.names('tokenizers'))}; "
            "or give a folder, a file, a YAML, or org/name on the hub"
        )
    if spec.path is None:
        return fetch_tokenizer(spec)
    place = folder / Path(spec.path).expanduser()
    if spec.merges is not None:
        spec = spec.model_copy(update={"merges": str(folder / Path(spec.merges).expanduser())})
    return spec, place


def fetch_tokenizer(spec: TokenizerSpec, guess: bool = False) -> tuple[TokenizerSpec, Path]:
    """Bring the files of a hub tokenizer into the hub's own cache.

    Args:
        spec: with a repository.
        guess: choose the type by the files there are, not by the spec.

    Returns:
        The spec with the commit as its revision, and the folder that holds the files.

    Raises:
        SourceError: no network, no such repository, no permission, or damaged on the way.
        SpecError: the repository holds no such tokenizer.
    """
    assert spec.repo is not None
    wanted = [*(name for group in FILES.values() for name in group), *HINTS]
    repo, folder, present = hub.cache(Repo(spec.repo, "model", spec.revision), wanted)
    if guess:
        spec = spec.model_copy(update={"type": _choose(present, folder, spec.repo)})
    missing = [name for name in FILES[spec.type] if name not in present]
    if missing:
        raise SpecError(
            f"{spec.repo} holds no {' and no '.join(missing)}, which a {spec.type} needs; it holds "
            f"{', '.join(sorted(present)) or 'no file of a tokenizer'}; name another with --tokenizer"
        )
    return spec.model_copy(update={"revision": repo.revision}), folder


def _tokenizer_name(path: Path) -> str:
    resolved = Path(os.path.abspath(path))
    known = {name for group in FILES.values() for name in group}
    is_known = resolved.is_file() and resolved.name in known
    name = resolved.parent.name if is_known else resolved.stem if resolved.is_file() else resolved.name
    return shipped.slug(name, "tokenizer")


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
    return _choose([p.name for p in path.iterdir() if p.is_file()], path, str(path))


def _choose(present: Collection[str], folder: Path, where: str) -> TokenizerType:
    there = [kind for kind, needed in FILES.items() if all(name in present for name in needed)]
    if len(there) > 1:
        log.info("%s holds more than one tokenizer: using %s; name a file to choose", where, FILES[there[0]][0])
    if there[:1] == ["GPT2BPETokenizer"]:
        _check_gpt2(folder, where)
    if there:
        return there[0]
    expected = "; ".join(" + ".join(needed) for needed in FILES.values())
    found = ", ".join(sorted(present)[:10]) or "nothing"
    raise SpecError(f"{where} holds no tokenizer: expected {expected}; found {found}")


def _check_gpt2(folder: Path, where: str) -> None:
    """Make sure that ``vocab.json`` and ``merges.txt`` are GPT-2's kind: others split texts otherwise.

    Raises:
        SpecError: ``tokenizer_config.json`` says that they are of another tokenizer.
    """
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    name = config.get("tokenizer_class") if isinstance(config, dict) else None
    if isinstance(name, str) and not name.startswith("GPT2"):
        raise SpecError(
            f"{where} holds vocab.json and merges.txt of a {name}, and no tokenizer.json, which alone says how it "
            "splits texts: make one with transformers (AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER)) and "
            "give the folder; if it splits as GPT-2 does, say --set tokenizer.type=GPT2BPETokenizer"
        )

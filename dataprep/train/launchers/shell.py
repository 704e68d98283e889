"""Text for bash: exports, files, here-documents, command lines. All of it runs with bash 4.2 and later.

A launcher's script is one text that needs nothing beside it: it exports the variables, writes the files that the
arguments name, and starts the trainer. It runs under ``set -eo pipefail``; not ``-u``, which the scripts that activate
environments and load modules do not stand.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING

from dataprep.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

HEAD = ("#!/bin/bash", "set -eo pipefail")

MAX_WORD_BYTES = (128 << 10) - 2
"""Of one argument of a program, without a line break that `variable` adds and the zero byte: MAX_ARG_STRLEN,
execve(2)."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN = re.compile(r"[A-Za-z0-9_./:,=+@^%-]*")


def exports(defaults: Mapping[str, str], fixed: Mapping[str, str]) -> list[str]:
    """Lines that export variables.

    Args:
        defaults: values for those that the environment does not have.
        fixed: values that hold whatever the environment says.

    Raises:
        SpecError: a name that is none.
    """
    for name in (*defaults, *fixed):
        if not _NAME.fullmatch(name):
            raise SpecError(f"{name!r} is no name of an environment variable: letters, digits and _ only")
    lines = [_export(name, value) for name, value in defaults.items() if name not in fixed]
    return lines + [f"export {name}={shlex.quote(value)}" for name, value in fixed.items()]


def _export(name: str, value: str) -> str:
    if _PLAIN.fullmatch(value):
        return f'export {name}="${{{name}:-{value}}}"'
    # Within ${NAME:-...} quotes mean one thing to bash and another to its builtins.
    return f"if [[ -z ${name} ]]; then {name}={shlex.quote(value)}; fi; export {name}"


def write_files(folder: str, files: Mapping[str, str]) -> list[str]:
    """Lines that write files into a folder that is there; each appears whole or not at all."""
    lines = []
    for name, text in sorted(files.items()):
        path = shlex.quote(os.path.join(folder, name))
        lines += [
            f"printf %s {shlex.quote(text)} > {path}.tmp-$$",
            f"mv -f -- {path}.tmp-$$ {path}",
        ]
    return lines


def make_folders(paths: Iterable[str]) -> list[str]:
    """A line that makes folders."""
    return [f"mkdir -p -- {shlex.join(sorted(paths))}"]


def variable(name: str, text: str) -> list[str]:
    """Lines that make a script the value of a variable, to be passed on as one word, and show it as it is.

    Raises:
        SpecError: no program can be given a word of this length.
    """
    size = len(text.encode("utf-8", "surrogateescape"))
    if size > MAX_WORD_BYTES:
        raise SpecError(
            f"the trainer's command is a script of {size} bytes, and Linux passes on {MAX_WORD_BYTES}: blend fewer "
            "prefixes; `dataprep merge` makes one of several"
        )
    end = f"END_OF_{name.upper()}"
    while end in text.splitlines():
        end += "_"
    return [f"IFS= read -r -d '' {name} <<'{end}' || true", *text.removesuffix("\n").split("\n"), end]


def command(*groups: Sequence[str]) -> str:
    """A command line, an option with its values on each line.

    Args:
        groups: words as bash is to read them, quoted where they have to be; each group begins a line.
    """
    lines: list[list[str]] = []
    for group in groups:
        for i, word in enumerate(group):
            if i == 0 or word.startswith("--"):
                lines.append([word])
            else:
                lines[-1].append(word)
    return " \\\n  ".join(" ".join(line) for line in lines)


def script(lines: Sequence[str]) -> str:
    """The text of a script, from its lines without the first ones."""
    return "\n".join((*HEAD, *lines, ""))

"""Text for bash: what was put in comes out, whatever it holds."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.errors import SpecError
from dataprep.train.launchers import shell

TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
NASTY = [
    "",
    " ",
    "a b",
    "it's",
    'say "hi"',
    "$HOME `id` $(id) ${X:-y}",
    "back\\slash\\",
    "}",
    "${",
    "\n\n",
    "~",
    "*",
    "!x",
]
SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"


def _run(lines: list[str], **environment: str) -> list:
    done = subprocess.run(
        ["bash", "-c", shell.script(lines)],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        check=True,
    )
    assert done.stderr == b""
    return json.loads(done.stdout)


def _show(*words: str) -> list[str]:
    quoted = [shlex.quote(word) for word in (sys.executable, "-c", SHOW, *words)]
    return [f"exec {shell.command(quoted)}"]


@settings(max_examples=20)
@given(st.lists(TEXTS, min_size=1, max_size=8))
def test_values_arrive_as_they_are(values):
    values = [*values, *NASTY]
    defaults = {f"D{i}": value for i, value in enumerate(values)}
    fixed = {f"F{i}": value for i, value in enumerate(values)}
    words, found = _run([*shell.exports(defaults, fixed), *_show("--", *values)])

    assert words == ["--", *values]
    assert [found[f"D{i}"] for i in range(len(values))] == values
    assert [found[f"F{i}"] for i in range(len(values))] == values


def test_environment_overrides_defaults_and_nothing_else():
    _, found = _run([*shell.exports({"A": "1", "B": "2", "C": "3"}, {"B": "4"}), *_show("x")], A="$x}", B="6", C="")

    assert (found["A"], found["B"], found["C"]) == ("$x}", "4", "3")


@pytest.mark.parametrize("name", ["A B", "1A", "", "A=1", "A;id"])
def test_names_that_are_none(name):
    with pytest.raises(SpecError, match="is no name of an environment variable"):
        shell.exports({}, {name: "1"})


@settings(max_examples=20)
@given(TEXTS)
def test_files_hold_the_bytes(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("it's $HOME")
    lines = [*shell.make_folders([f"{folder}/deep er"]), *shell.write_files(f"{folder}/deep er", {"a b.json": text})]
    subprocess.run(["bash", "-c", shell.script(lines)], check=True)

    assert (folder / "deep er" / "a b.json").read_bytes() == text.encode()
    assert [path.name for path in (folder / "deep er").iterdir()] == ["a b.json"]


@pytest.mark.parametrize("text", ["a", "a\nb\n", "END_OF_X\nEND_OF_X_", "$HOME `id` \\ '\"", "cat <<'END'\nEND\n"])
def test_texts_in_variables(text):
    lines = [*shell.variable("x", text), "export x", *_show("y")]
    _, found = _run(lines)

    assert found["x"] == text.removesuffix("\n") + "\n"


def test_the_longest_text_that_can_be_passed_on():
    text = "#" * shell.MAX_WORD_BYTES
    lines = shell.script([*shell.variable("x", text), '/bin/echo "${#x}" "$x" | cut -c 1-9'])
    done = subprocess.run(["bash"], input=lines.encode(), capture_output=True, check=True)

    assert (done.stdout, done.stderr) == (b"131071 ##\n\n", b"")
    with pytest.raises(SpecError, match="and Linux passes on 131070: blend fewer"):
        shell.variable("x", text + "#")


def test_lines_of_a_command():
    assert shell.command(["a", "--b", "1", "-2", "--c"], ["d", "--e=f", "g"]) == "\\\n  ".join(
        ["a ", "--b 1 -2 ", "--c ", "d ", "--e=f g"]
    )

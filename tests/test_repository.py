"""Guards of the repository itself: where things lie, what importing costs, what the documents promise."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# The top level is fixed. A new name here is a decision, not an accident.
TOP_LEVEL = {
    ".ci",
    ".github",
    ".gitignore",
    "README.md",
    "dataprep",
    "notebooks",
    "pipelines",
    "pyproject.toml",
    "tests",
    "tokenizers",
}
MAX_LINES = 400
VAGUE_NAMES = {"utils.py", "util.py", "common.py", "helpers.py", "base.py", "core.py", "misc.py"}
SLOW_TO_IMPORT = {
    "awkward",
    "datasets",
    "distributed",
    "gigatoken",
    "pyarrow",
    "sentencepiece",
    "tokenizers",
    "torch",
    "transformers",
}

CORPORA = sorted((ROOT / "pipelines").glob("*.yaml"))
TOKENIZERS = sorted((ROOT / "tokenizers").glob("*.yaml"))
TEST_COMMAND = "pip install -e '.[dev]' && pytest"


def repository_files() -> list[Path]:
    """Every file that is, or would be, committed."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    # safe.directory: a checkout that belongs to another user is only listed here
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [ROOT / name for name in sorted(set(names)) if name and (ROOT / name).is_file()]


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


# --- where things lie


def test_top_level_holds_only_what_was_agreed():
    assert {path.relative_to(ROOT).parts[0] for path in repository_files()} <= TOP_LEVEL


@pytest.mark.parametrize("folder", ["pipelines", "tokenizers"])
def test_data_folders_hold_no_python(folder):
    assert not [str(path) for path in (ROOT / folder).rglob("*.py*")]


def test_tests_are_no_package():
    assert not (ROOT / "tests" / "__init__.py").exists(), "pytest runs with --import-mode=importlib"


def test_every_file_has_a_telling_name():
    assert not [str(path) for path in repository_files() if path.name in VAGUE_NAMES]


@pytest.mark.parametrize("path", sorted((ROOT / "dataprep").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_are_short_and_described(path):
    text = path.read_text(encoding="utf-8")

    assert len(text.splitlines()) <= MAX_LINES
    assert text.lstrip().startswith(('"""', 'r"""')), "a module opens with what it is for"


def test_tests_reach_no_network():
    # 192.0.2.1 is reserved for documents: nothing is there, should the guard be gone
    with socket.socket() as client:
        client.settimeout(1)
        with pytest.raises(RuntimeError, match="connect"):
            client.connect(("192.0.2.1", 80))
    with pytest.raises(RuntimeError, match="look-up"):
        socket.create_connection(("example.invalid", 80), timeout=1)
    with socket.socket() as server, pytest.raises(RuntimeError, match="bind"):
        server.bind(("", 0))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getpeername() == server.getsockname()


# --- the folder ./tokenizers and the package of that name


def test_tokenizers_is_the_installed_package_also_in_the_checkout():
    code = "import tokenizers; print(tokenizers.__file__); tokenizers.Tokenizer"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    assert found.strip() != "None"
    assert not Path(found.strip()).is_relative_to(ROOT / "tokenizers")


def test_settings_that_keep_the_two_apart():
    settings = project()

    assert settings["build-system"]["build-backend"] == "hatchling.build"
    assert "tokenizers" in settings["tool"]["ruff"]["lint"]["isort"]["known-third-party"]
    assert "--import-mode=importlib" in settings["tool"]["pytest"]["ini_options"]["addopts"]
    assert any(re.match(r"tokenizers\b", name) for name in settings["project"]["dependencies"])
    assert settings["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"] == {
        "pipelines": "dataprep/_catalog/pipelines",
        "tokenizers": "dataprep/_catalog/tokenizers",
    }


# --- what is shipped


def test_something_is_shipped():
    assert "sample" in {path.stem for path in CORPORA}
    assert "sample" in {path.stem for path in TOKENIZERS}


@pytest.mark.parametrize("path", CORPORA, ids=lambda path: path.stem)
def test_shipped_corpus_is_valid(path):
    from dataprep.specs import Corpus, HubSource, Mixture, load_yaml

    value = load_yaml(path)
    corpus = (Mixture if "mixture" in value else Corpus).from_json(value, str(path))

    if isinstance(corpus, Corpus) and isinstance(corpus.source, HubSource):
        assert corpus.source.globs, "the default subset is one of the subsets"
        assert "revision" in value["source"], "which revision is meant is written down, and resolved when a run begins"
    assert corpus.name == path.stem
    assert corpus.description
    assert corpus.license


@pytest.mark.parametrize("path", TOKENIZERS, ids=lambda path: path.stem)
def test_shipped_tokenizer_is_valid(path):
    from dataprep.specs import TokenizerSpec, load_yaml

    spec = TokenizerSpec.from_json(load_yaml(path), str(path))

    assert spec.name == path.stem
    assert spec.description
    assert spec.license
    assert spec.path is None or (path.parent / spec.path).exists()


# --- what importing costs


def imported_by(code: str) -> set[str]:
    """Top-level names in sys.modules after a fresh Python has run the code; SystemExit is fine."""
    report = (
        "import atexit, json, os, sys\n"
        "def report():\n"
        "    names = sorted({name.partition('.')[0] for name in sys.modules})\n"
        "    with open(os.environ['REPORT'], 'w') as file: json.dump(names, file)\n"
        "atexit.register(report)\n"
    )
    read, write = os.pipe()
    with open(read, encoding="utf-8") as answer:
        try:
            environment = {**os.environ, "REPORT": f"/dev/fd/{write}"}
            command = [sys.executable, "-c", report + code]
            subprocess.run(command, check=True, capture_output=True, env=environment, pass_fds=[write], cwd=ROOT)
        finally:
            os.close(write)
        return set(json.load(answer))


def test_importing_is_cheap():
    assert not imported_by("import dataprep, dataprep.cli") & SLOW_TO_IMPORT


def test_help_is_cheap():
    # main ends the process without Python's own end, where the report would be written
    code = "os._exit = sys.exit\nsys.argv = ['dataprep', '--help']\nfrom dataprep.cli import main\nmain()"

    # rich alone takes longer to import than the rest of the start
    assert not imported_by(code) & (SLOW_TO_IMPORT | {"dask", "numpy", "rich"})


# --- what the documents promise


def links(text: str) -> list[str]:
    """Targets of Markdown links and pictures, without those in code."""
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    inline = re.findall(r"\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'][^)]*)?\)", text)
    return inline + re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, flags=re.MULTILINE)


def test_links_are_found():
    text = "[a](b.md) ![c](<d.png> 'e') `[x](y)`\n```\n[x](y)\n```\n[f]: g.md\n"

    assert links(text) == ["b.md", "d.png", "g.md"]


def test_relative_links_resolve():
    broken = []
    for path in repository_files():
        if path.suffix != ".md":
            continue
        for link in links(path.read_text(encoding="utf-8")):
            target = link.partition("#")[0]
            if target and not re.match(r"[a-z][a-z0-9+.-]*:", link) and not (path.parent / target).exists():
                broken.append(f"{path.relative_to(ROOT)}: {link}")

    assert not broken


def commands() -> dict[str, str]:
    """Name of every command of the CLI -> its help, as written."""
    import typer

    from dataprep import cli

    group = typer.main.get_command(cli.app)
    return {name: command.help or "" for name, command in group.commands.items() if not command.hidden}


def test_every_command_is_explained_with_an_example():
    assert not [name for name, text in commands().items() if f"dataprep {name} " not in f"{text} "]


def test_every_command_is_in_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert not [name for name in commands() if f"dataprep {name}" not in readme]


def test_ci_runs_the_command_of_the_readme():
    assert TEST_COMMAND in (ROOT / "README.md").read_text(encoding="utf-8")

    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

    for part in TEST_COMMAND.split(" && "):
        assert re.search(rf" {re.escape(part)}$", script, flags=re.MULTILINE)

"""What people install: a wheel from the tree, a wheel from the sdist, an editable install.

Each is put into a fresh virtual environment with `pip install --no-deps`, and that environment sees the packages
of the one that runs the tests through a .pth file. So nothing is downloaded, and still `dataprep` can only come
from what was installed: the .pth files of the outer environment, its own editable `dataprep` among them, are not
read for a folder that is itself added by a .pth. Building is done without isolation for the same reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DATA = {
    str(path.relative_to(ROOT))
    for folder in ("pipelines", "tokenizers")
    for path in (ROOT / folder).rglob("*")
    if path.is_file()
}

pytestmark = pytest.mark.slow


def build(source: Path, destination: Path, kind: str) -> Path:
    """Build one distribution of a source tree: `sdist` or `wheel`."""
    run(sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", str(destination), str(source))
    (result,) = destination.iterdir()
    return result


def run(*command: str, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DATAPREP"))}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from the tree."""
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="session")
def sdist(tmp_path_factory) -> Path:
    """The sdist, built from the tree."""
    return build(ROOT, tmp_path_factory.mktemp("sdist"), "sdist")


@pytest.fixture(scope="session")
def unpacked_sdist(sdist, tmp_path_factory) -> Path:
    """The folder that the sdist unpacks to."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # since 3.11.4
    (root,) = folder.iterdir()
    return root


@pytest.fixture(scope="session")
def wheel_from_sdist(unpacked_sdist, tmp_path_factory) -> Path:
    """The wheel, built from the unpacked sdist."""
    return build(unpacked_sdist, tmp_path_factory.mktemp("wheel-from-sdist"), "wheel")


@dataclass(frozen=True)
class Installed:
    """A virtual environment that holds dataprep."""

    folder: Path
    editable: bool

    def python(self, code: str) -> str:
        return run(str(self.folder / "bin" / "python"), "-c", code, cwd=self.folder).strip()

    def dataprep(self, *arguments: str) -> str:
        return run(str(self.folder / "bin" / "dataprep"), *arguments, cwd=self.folder)


@pytest.fixture(scope="module", params=["wheel", "wheel_from_sdist", "editable"])
def installed(request, tmp_path_factory) -> Installed:
    """Each way to install, in an environment of its own."""
    folder = tmp_path_factory.mktemp(request.param) / "venv"
    venv.create(folder, symlinks=True)
    paths = {"base": str(folder), "platbase": str(folder)}
    site_packages = Path(sysconfig.get_path("purelib", scheme="venv", vars=paths))
    outer = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    (site_packages / "outer.pth").write_text("".join(f"{path}\n" for path in outer), encoding="utf-8")

    editable = request.param == "editable"
    if editable:
        what = ["--no-build-isolation", "--editable", str(ROOT)]
    else:
        what = [str(request.getfixturevalue(request.param))]
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    # --ignore-installed: the outer environment's dataprep is in sight, and would count as installed already
    run(*pip, "install", "--no-deps", "--no-index", "--ignore-installed", *what)
    return Installed(folder, editable)


def members(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def test_wheel_holds_the_package_and_the_data_inside_it(wheel):
    names = members(wheel)

    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"dataprep"}
    assert {name.removeprefix("dataprep/_catalog/") for name in names if "/_catalog/" in name} == DATA
    assert {"dataprep/py.typed", "dataprep/checks/report.schema.json"} <= names
    assert not [name for name in names if name.startswith("dataprep/_catalog/") and name.endswith(".py")]


def test_wheel_names_itself(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    import dataprep

    assert metadata["Name"] == "dataprep-llm"
    assert metadata["Version"] == dataprep.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra")) == {
        "bench",
        "s3",
        "gcs",
        "train",
        "serve",
        "slurm",
        "dev",
        "plot",
        "sentences",
    }


def test_sdist_gives_the_same_wheel(wheel, wheel_from_sdist):
    assert wheel.name == wheel_from_sdist.name
    assert members(wheel) == members(wheel_from_sdist)


def test_sdist_holds_what_the_tests_need(unpacked_sdist):
    top = {path.name for path in unpacked_sdist.iterdir()}

    assert {"README.md", "dataprep", "notebooks", "pipelines", "pyproject.toml", "tests", "tokenizers"} <= top
    assert ".git" not in top


def test_dataprep_comes_from_what_was_installed(installed):
    place = Path(installed.python("import dataprep; print(dataprep.__file__)"))

    assert place.is_relative_to(ROOT if installed.editable else installed.folder)


def test_real_tokenizers_package_is_untouched(installed):
    place = Path(installed.python("import tokenizers; tokenizers.Tokenizer; print(tokenizers.__file__)"))

    assert place.is_relative_to(sysconfig.get_path("platlib"))


def test_data_is_found_by_importlib_resources(installed):
    code = (
        "import json; from importlib.resources import files; catalog = files('dataprep') / '_catalog'\n"
        "folders = list(catalog.iterdir()) if catalog.is_dir() else []\n"
        "print(json.dumps(sorted(f'{folder.name}/{entry.name}' for folder in folders for entry in folder.iterdir())))"
    )
    found = json.loads(installed.python(code))

    # an editable install has no such folder: the catalog falls back to the checkout
    assert found == ([] if installed.editable else sorted({"/".join(name.split("/")[:2]) for name in DATA}))


@pytest.mark.parametrize(("kind", "folder"), [("corpora", "pipelines"), ("tokenizers", "tokenizers")])
def test_list_shows_what_is_shipped(installed, kind, folder):
    text = installed.dataprep("list", kind, "--json")

    json.loads(text)
    for path in (ROOT / folder).glob("*.yaml"):
        assert f'"{path.stem}"' in text


def test_main_job_runs(installed, workspace):
    lines = installed.dataprep(
        "run", "sample", "--tokenizer", "sample", "--limit", "20", "--output", str(workspace)
    ).splitlines()

    assert Path(f"{lines[-1]}.bin").stat().st_size > 0
    assert Path(f"{lines[-1]}.idx").stat().st_size > 0

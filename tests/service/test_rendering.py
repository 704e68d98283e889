"""Entries for other schedulers: what they start, when, and that folders of any name arrive there as they are."""

from __future__ import annotations

import copy
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.errors import SpecError
from dataprep.service.rendering import CRON, render

HOSTILE = [
    "jobs",
    "with space",
    "it's",
    'a "quoted" one',
    "100%",
    "%",
    "a%%b%",
    "back\\slash",
    "back\\%slash",
    "'%'",
    "$HOME ${HOME} $(touch x) `touch y` $$",
    "semi;colon & amp | pipe > out < in",
    "# no comment",
    "~",
    "-rf",
    "*",
    "näme ☃",
    "a\\045b",
    "!history",
]
PODS = ["cluster.image=registry.example/dataprep:1", "cluster.claim=corpora"]


def as_cron_does(line):
    """What cron gives to the shell of a line (cron 3.0pl1, do_command.c): up to a %, unless a backslash precedes it."""
    command, escaped = "", False
    for mark in line.split(None, 5)[5]:
        if escaped:
            command = command[:-1] + mark if mark == "%" else command + mark
            escaped = False
            continue
        if mark == "%":
            break
        escaped = mark == "\\"
        command += mark
    return command


def run(command, folder):
    """The arguments that a shell gives to what stands in for Python."""
    done = subprocess.run(["/bin/sh", "-c", command], cwd=folder, capture_output=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """What is started says what it was given; it lies where nothing is easy either."""
    folder = tmp_path / "it's 5% \\$HOME"
    folder.mkdir()
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))
    return path


def expected(folder):
    return ["-m", "dataprep", "--quiet", "jobs", "due", "--jobs", str(folder)]


def entry(text):
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return lines[:-1], lines[-1]


@pytest.mark.parametrize("name", HOSTILE)
def test_cron_starts_it_with_the_folder_as_it_is(name, tmp_path, stand_in):
    folder = tmp_path / name

    variables, line = entry(render("cron", folder))

    assert run(as_cron_does(line), tmp_path) == expected(folder)
    assert "%" not in line
    assert variables[0] == "SHELL=/bin/sh"
    assert re.fullmatch(r"PATH=(/[^:%]*)(:/[^:%]*)*", variables[1])
    assert len(variables) == 2


@pytest.mark.parametrize("name", HOSTILE)
def test_slurm_starts_it_with_the_folder_as_it_is(name, tmp_path, stand_in):
    variables, line = entry(render("slurm", tmp_path / name))

    assert run(line.split(None, 5)[5], tmp_path) == expected(tmp_path / name)
    assert run(as_cron_does(line), tmp_path) == expected(tmp_path / name)
    assert variables == []


def of_systemd(text):
    """The words of a line as systemd takes them (systemd.syntax(7), systemd.service(5)), without variables."""
    words = re.findall(r'"((?:[^"\\]|\\.)*)"', text)
    return [re.sub(r"\\(.)", r"\1", word).replace("%%", "%").replace("$$", "$") for word in words]


def units(text):
    found = re.split(r"^# (/etc/systemd/system/\S+)\n", text, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


@pytest.mark.parametrize("name", HOSTILE)
def test_systemd_starts_it_with_the_folder_as_it_is(name, tmp_path, stand_in):
    files = units(render("systemd", tmp_path / name))

    service = files["/etc/systemd/system/dataprep-jobs.service"]
    (start,) = re.findall(r"^ExecStart=(.*)$", service, re.MULTILINE)
    assert of_systemd(start) == [str(stand_in), *expected(tmp_path / name)]
    assert "Persistent=true" in files["/etc/systemd/system/dataprep-jobs.timer"]
    assert len(files) == 2


@pytest.mark.parametrize("name", ["jobs", 'it\'s "100%" $HOME back\\slash'])
def test_systemd_takes_the_units(name, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here: apt-get install systemd")
    paths = []
    for place, text in units(render("systemd", tmp_path / name)).items():
        paths.append(tmp_path / Path(place).name)
        paths[-1].write_text(text)

    done = subprocess.run(["systemd-analyze", "verify", *map(str, paths)], capture_output=True, text=True, check=False)

    ours = [line for line in done.stderr.splitlines() if "dataprep" in line]
    assert ours == []
    calendar = subprocess.run(["systemd-analyze", "calendar", "*:0/10"], capture_output=True, text=True, check=False)
    assert (calendar.returncode, "*-*-* *:00/10:00" in calendar.stdout) == (0, True)


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" %'\\\"$`"), min_size=1, max_size=20))
def test_lines_of_shell_mean_the_folder(name):
    folder = Path("/jobs") / name.replace("/", "")

    line = entry(render("cron", folder))[1]

    words = shlex.split(as_cron_does(line).replace("$(printf '\\045')", "%"))
    assert words[-1] == str(folder)


@pytest.mark.parametrize("kind", ["cron", "slurm", "systemd"])
@pytest.mark.parametrize("name", ["line\nbreak", "tab\t", "nul\x01", "bad\udce9", "\u2028"])
def test_what_no_line_can_hold_is_refused(kind, name):
    with pytest.raises(SpecError, match="rename the folder"):
        render(kind, Path("/jobs") / name)


@pytest.mark.parametrize("kind", ["cron", "slurm", "systemd"])
def test_paths_are_absolute_and_no_user_is_asked_for_a_shell(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    text = render(kind, Path("jobs"))

    assert str(tmp_path / "jobs") in text
    assert sys.executable in text


def test_it_looks_every_ten_minutes():
    assert render("cron", Path("/jobs")).splitlines()[-1].startswith(f"{CRON} ")
    times = CronSim(CRON, datetime(2026, 11, 21, 23, 45, tzinfo=UTC))
    assert [f"{next(times):%H:%M}" for _ in range(3)] == ["23:50", "00:00", "00:10"]


def test_slurm_is_asked_for_what_is_wanted():
    wanted = ["partition=cpu", "account=team", "memory=64G", "nodes=2", "directives=[--reservation=x y]"]

    text = render("slurm", Path("/jobs"), [f"cluster.{each}" for each in wanted])

    lines = [line.removeprefix("#SCRON ") for line in text.splitlines() if line.startswith("#SCRON ")]
    assert lines == [
        "--job-name=dataprep-jobs",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--mem=64G",
        "--time=1-00:00:00",
        "--partition=cpu",
        "--account=team",
        "--open-mode=append",
        "--output=dataprep-jobs.log",
        "--reservation=x y",
    ]
    after = text.partition("--reservation=x y\n")[2]
    assert after.startswith(CRON), "options are of the next entry, and of that alone"
    assert "#SCRON" not in after


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("launchd", [], "expected one of systemd, cron, slurm, kubernetes"),
        ("cron", ["cluster.nodes=2"], "cluster.nodes: an entry for cron has no use for it; it has for none"),
        (
            "slurm",
            ["cluster.prologue=[x]"],
            "cluster.prologue: an entry for slurm has no use for it; it has for cluster",
        ),
        ("slurm", ["cluster.time=never"], "time"),
        ("slurm", ["runtime.workers=2"], "a namespace of cluster"),
        ("kubernetes", [], "image: Field required"),
        ("kubernetes", [*PODS, "cluster.workers=9"], "cluster.workers: an entry for kubernetes has no use for it"),
        ("kubernetes", [*PODS, "cluster.user=root"], "user"),
    ],
)
def test_what_cannot_be_rendered(kind, given, message):
    with pytest.raises(SpecError, match=message):
        render(kind, Path("/jobs"), given)


# --- Kubernetes


def cron_job(folder="jobs", *more) -> dict[str, Any]:
    (made,) = yaml.safe_load_all(render("kubernetes", Path(folder), [*PODS, *more]))
    return made


def pod_of(made):
    return made["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def test_kubernetes_starts_one_pod_at_a_time_with_the_claim():
    made = cron_job(
        "jobs", "cluster.namespace=team", "cluster.user=1000:1000", "cluster.secret=hub", "cluster.cpus='4'"
    )

    spec, pod = made["spec"], pod_of(made)
    (container,) = pod["containers"]
    assert (made["kind"], made["metadata"]["name"], made["metadata"]["namespace"]) == (
        "CronJob",
        "dataprep-jobs",
        "team",
    )
    assert (spec["schedule"], spec["timeZone"], spec["concurrencyPolicy"]) == (CRON, "Etc/UTC", "Forbid")
    assert spec["startingDeadlineSeconds"] == 300
    assert container["command"] == ["dataprep", "--quiet", "jobs", "due", "--jobs", "jobs"]
    assert (container["workingDir"], container["image"]) == ("/data", "registry.example/dataprep:1")
    assert pod["volumes"] == [{"name": "data", "persistentVolumeClaim": {"claimName": "corpora"}}]
    assert container["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert container["resources"]["limits"]["cpu"] == "4"
    assert pod["securityContext"]["runAsUser"] == 1000
    assert pod["restartPolicy"] == "Never"
    # a pod that found an address would look for workers
    assert container["env"] == [{"name": "HF_HOME", "value": "/data/.cache/huggingface"}]


def test_kubernetes_puts_no_variable_into_the_folder():
    command = pod_of(cron_job("/data/$(HOME) $$ 5%"))["containers"][0]["command"]

    assert re.sub(r"\$\$", "$", command[-1]) == "/data/$(HOME) $$ 5%"
    assert "$$(HOME)" in command[-1]
    with pytest.raises(SpecError, match="not UTF-8"):
        render("kubernetes", Path("/data/\udce9"), PODS)


def keys_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, list):
        for i, each in enumerate(value):
            yield from keys_of(each, (*path, i))
    elif isinstance(value, dict) and not (path and path[-1] in ("labels", "nodeSelector", "limits", "requests")):
        for key, each in value.items():
            yield (*path, key)
            yield from keys_of(each, (*path, key))


@pytest.mark.kubernetes
def test_kubernetes_takes_it_and_would_notice_every_misspelt_key():
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    more = [
        "cluster.namespace=team",
        "cluster.node_selector={pool: cpu}",
        "cluster.secret=hub",
        "cluster.user=1000:1000",
    ]
    made = cron_job("jobs", *more)

    validate.validate(made, validate.latest_version(), strict=True)
    tried = 0
    for path in keys_of(made):
        if path[0] in ("apiVersion", "kind"):
            continue
        wrong = copy.deepcopy(made)
        inner: Any = wrong
        for key in path[:-1]:
            inner = inner[key]
        inner[f"{path[-1]}x"] = inner.pop(path[-1])
        with pytest.raises(Exception, match=f"{path[-1]}x"):
            validate.validate(wrong, validate.latest_version(), strict=True)
        tried += 1
    assert tried > 40

"""The command line: results on stdout, messages on stderr, exit codes, and no traceback for a user's mistake."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest


def dataprep(*arguments, cwd, **environment):
    """The real command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "dataprep", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An input, and a dataset made of it."""
    folder = tmp_path_factory.mktemp("cli it's")
    lines = [json.dumps({"text": f"text number {i}", "other": i}) for i in range(50)]
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def made(folder):
    done = dataprep("run", "in.jsonl", "-t", "sample", "-o", "out", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done


def test_run_prints_the_prefix_alone_on_stdout(folder, made):
    (prefix,) = made.stdout.splitlines()

    assert os.path.isabs(prefix)
    assert os.path.exists(prefix + ".bin")
    assert os.path.realpath(folder / "out" / "in-sample") == os.path.dirname(prefix)
    assert "50 documents" in made.stderr


def test_run_again_says_that_there_is_nothing_to_do(folder, made):
    again = dataprep("run", "in.jsonl", "-t", "sample", "-o", "out", cwd=folder)

    assert (again.returncode, again.stdout) == (0, made.stdout)
    assert "nothing to do" in again.stderr


def test_run_json_is_one_document_with_the_manifest(folder, made):
    again = dataprep("run", "in.jsonl", "-t", "sample", "-o", "out", "--json", cwd=folder)
    value = json.loads(again.stdout)

    assert value["fresh"] is False
    assert value["prefix"] == made.stdout.strip()
    assert value["manifest"]["counts"]["num_documents"] == 50


def test_quiet_says_nothing_on_stderr(folder, made):
    done = dataprep("-q", "verify", made.stdout.strip(), cwd=folder)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("level", ["index", "tokens", "source"])
def test_verify_at_every_level(folder, made, level):
    done = dataprep("verify", made.stdout.strip(), "--level", level, "--json", cwd=folder)

    assert done.returncode == 0
    assert [report["ok"] for report in json.loads(done.stdout)] == [True]


def test_verify_exits_1_for_a_bad_pair_and_names_the_problem(folder, made, tmp_path):
    prefix = tmp_path / "bad"
    for suffix in (".bin", ".idx"):
        data = Path(made.stdout.strip() + suffix).read_bytes()
        prefix.with_suffix(suffix).write_bytes(data[:-2] if suffix == ".bin" else data)

    done = dataprep("verify", prefix, cwd=folder)

    assert done.returncode == 1
    assert "BAD" in done.stdout
    assert "error bin-size" in done.stdout


def test_verify_for_a_training(folder, made):
    prefix = made.stdout.strip()
    bad = dataprep("verify", prefix, "-t", "sample", "--split", "998,1,1", "--seq-length", 4096, "--json", cwd=folder)
    good = dataprep("verify", os.path.dirname(prefix), "--split", "1", "--vocab-size", 8192, "--eod", 0, cwd=folder)
    schema = json.loads(dataprep("verify", "--schema", cwd=folder).stdout)

    (report,) = json.loads(bad.stdout)
    assert (bad.returncode, report["ok"]) == (1, False)
    assert {problem["code"] for problem in report["problems"]} == {"split-empty", "split-short"}
    jsonschema.Draft202012Validator(schema).validate([report])
    assert (good.returncode, good.stdout[:3], len(good.stdout.splitlines())) == (0, "ok ", 1)
    assert "50 end with 0" in good.stdout


def test_inspect_counts_and_decodes(folder, made):
    prefix = made.stdout.strip()
    value = json.loads(dataprep("inspect", prefix, "--json", cwd=folder).stdout)
    document = json.loads(dataprep("inspect", prefix, "--document", 3, "--json", cwd=folder).stdout)

    assert (value["num_documents"], value["dtype"], value["corpus"]) == (50, "uint16", "in")
    assert value["lengths"]["quantiles"]["p50"] in (value["lengths"]["min"], value["lengths"]["max"])
    assert document["text"] == "text number 3<|endoftext|>"
    assert document["source"]["first_row"] == 3
    assert dataprep("inspect", prefix, "-d", 3, cwd=folder).stdout == "text number 3<|endoftext|>\n"


def test_plan_touches_nothing(folder, made):
    before = sorted(path.name for path in folder.rglob("*"))
    value = json.loads(dataprep("plan", "in.jsonl", "-t", "sample", "-o", "new", "--json", cwd=folder).stdout)

    assert value["num_units"] == 1
    assert (value["dtype"], value["eod"], value["bos"], value["exists"]) == ("uint16", "<|endoftext|>", None, False)
    assert sorted(path.name for path in folder.rglob("*")) == before


def test_list_and_status(folder, made):
    corpora = json.loads(dataprep("list", "corpora", "--json", cwd=folder).stdout)
    tokenizers = json.loads(dataprep("list", "tokenizers", "--json", cwd=folder).stdout)
    datasets = json.loads(dataprep("list", "datasets", "-o", "out", "--json", cwd=folder).stdout)
    status = json.loads(dataprep("status", "out", "--json", cwd=folder).stdout)

    oscar = next(entry for entry in corpora if entry["name"] == "oscar")
    table = dataprep("list", "corpora", cwd=folder).stdout
    assert "sample" in {entry["name"] for entry in corpora}
    assert (oscar["text"], oscar["license"], oscar["gated"]) == ("content", "cc0-1.0", True)
    assert [line.split()[:5] for line in table.splitlines() if line.startswith("oscar ")] == [
        ["oscar", "?", "content", "gated", "cc0-1.0"]
    ]
    assert {"gpt2", "llama2", "llama3.1-8b", "sample"} <= {entry["name"] for entry in tokenizers}
    assert [entry["prefix"] for entry in datasets] == [made.stdout.strip()]
    assert [(entry["state"], entry["units"], entry["units_done"]) for entry in status] == [("published", 1, 1)]


MISTAKES = [
    (["run", "nothere.jsonl", "-t", "sample"], 2, "no such file"),
    (["run", "nosuchcorpus", "-t", "sample"], 2, "unknown corpus"),
    (["run", "in.jsonl", "-t", "nosuchtokenizer"], 2, "unknown tokenizer"),
    (["run", "in.jsonl"], 2, "--tokenizer"),
    (["run", "fineweb:sample-1BT", "-t", "gpt2"], 2, "no subset 'sample-1BT'; there are sample-10BT"),
    (["plan", "fineweb", "-t", "sample", "--offline"], 1, "offline, and"),
    (["download", "frontier-mix"], 2, "is a mixture of corpora"),
    (
        ["run", "in.jsonl", "-t", "sample", "--set", "reader.txt=x"],
        2,
        "reader.txt: unknown key; known here: format, text",
    ),
    (["run", "in.jsonl", "-t", "sample", "--set", "nonsense"], 2, "NAMESPACE.KEY=VALUE"),
    (["run", "in.jsonl", "-t", "sample", "--set", "runtime.workers=two"], 2, "workers"),
    (["run", "in.jsonl", "-t", "sample", "--set", "policy.bos=always"], 2, "no BOS"),
    (["run", "in.jsonl", "-t", "sample", "--set", "reader.separator=x"], 2, "separator"),
    (["run", "in.jsonl", "-t", "sample", "--limit", "0"], 2, "--limit 0"),
    (["run", "in.jsonl", "-t", "sample", "--set", "reader.text=body"], 1, "missing-text 50"),
    (
        ["run", "in.jsonl", "-t", "sample", "-o", "o", "--set", "reader.separator=---"],
        2,
        "YAML reads '---' as nothing",
    ),
    (["run", "x" * 300, "-t", "sample"], 2, "unknown corpus"),
    (["verify", "nothing"], 2, "no such prefix"),
    (["verify", "."], 2, "without indexed pairs"),
    (["verify", "x", "--level", "deep"], 2, "--level deep"),
    (["verify", "out/in-sample", "--split", "x"], 2, "a split of 'x'"),
    (["verify", "out/in-sample", "--cache", "nowhere"], 2, "no such folder"),
    (["verify", "out/in-sample", "--eod", "8192", "--vocab-size", "8192"], 2, "the EOD 8192"),
    (["inspect", "nothing"], 2, "no such prefix"),
    (["status", "nothing"], 2, "no such folder"),
    (["unlock", "nothing"], 2, "no such folder"),
    (["run", "in.jsonl", "-t", "sample", "--wait", "--if-free"], 2, "the opposite of each other"),
    (["doctor", ".", "--peers", "1"], 2, "--peers"),
    (["list", "things"], 2, "list things"),
    (["frobnicate"], 2, "frobnicate"),
    (["run", "in.jsonl", "-t", "sample", "-q"], 2, "come before the command"),
]

FORKS = """
import json, os, sys
from dataprep import cli, planning, submission
for number, arguments in enumerate(json.load(sys.stdin)):
    child = os.fork()
    if not child:
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{sys.argv[1]}/{number}.{name}", os.O_WRONLY | os.O_CREAT), stream)
        sys.argv[1:] = arguments
        cli.main()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture(scope="module")
def mistaken(folder, made, tmp_path_factory):
    """What came of each mistake: exit code, stdout, stderr. A process each, of one that has imported all before."""
    said = tmp_path_factory.mktemp("said")
    command = [sys.executable, "-c", FORKS, str(said)]
    given = json.dumps([arguments for arguments, *_ in MISTAKES])
    done = subprocess.run(command, input=given, cwd=folder, capture_output=True, text=True, timeout=250, check=True)
    codes = map(int, done.stdout.split())
    return [(code, *((said / f"{i}.{name}").read_text() for name in ("out", "err"))) for i, code in enumerate(codes)]


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=[says for *_, says in MISTAKES])
def test_a_mistake_gets_one_message_and_its_exit_code(mistaken, number):
    (_, code, says), (found, printed, told) = MISTAKES[number], mistaken[number]

    assert found == code, told
    assert says in told
    assert "Traceback" not in told
    assert printed == ""


def test_debug_shows_the_traceback(folder):
    done = dataprep("--debug", "run", "nothere.jsonl", "-t", "sample", cwd=folder)

    assert done.returncode != 0
    assert "Traceback" in done.stderr


def test_version_is_printed_alone(folder):
    done = dataprep("--version", cwd=folder)

    assert (done.returncode, done.stdout) == (0, importlib.metadata.version("dataprep-llm") + "\n")


def test_a_foreign_manifest_beside_a_pair_is_no_obstacle(folder, made, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for suffix in (".bin", ".idx"):
        shutil.copy(made.stdout.strip() + suffix, foreign / f"x{suffix}")
    for content in ("[]", '{"schema_version": 1}', "{"):
        (foreign / "manifest.json").write_text(content)
        done = dataprep("verify", foreign, cwd=folder)
        assert (done.returncode, done.stderr) == (0, ""), content
        assert "warning manifest" in done.stdout
    assert dataprep("list", "datasets", "-o", tmp_path, "--json", cwd=folder).stdout == "[]\n"


def test_a_full_device_is_an_error_and_no_traceback(folder, made):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "dataprep", "list", "corpora"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)

    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_no_arguments_show_the_help(folder):
    done = dataprep(cwd=folder)

    assert "Usage" in done.stdout + done.stderr


def test_limit_takes_the_first_documents(folder):
    done = dataprep("run", "in.jsonl", "-t", "sample", "-o", "few", "--limit", 7, "--json", cwd=folder)
    value = json.loads(done.stdout)["manifest"]

    assert value["counts"]["num_documents"] == 7
    assert value["counts"]["num_records"] == 7


def test_the_output_names_no_dask(folder, made):
    assert "scheduler" not in made.stderr.lower()
    assert "distributed" not in made.stderr.lower()


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_stream_that_is_closed_takes_nothing_away(folder, made, closed):
    command = [sys.executable, "-m", "dataprep", "verify", made.stdout.strip()]
    redirect = ">&-" if closed == "stdout" else "2>&-"
    done = subprocess.run(
        ["bash", "-c", f'"$@" {redirect}', "-", *command], capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_a_terminal_that_cannot_show_a_character_shows_its_number(folder):
    (folder / "umlaut.jsonl").write_text('{"text": "\\u2603"}\n')
    prefix = dataprep("run", "umlaut.jsonl", "-t", "sample", "-o", "out", cwd=folder).stdout.strip()
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-m", "dataprep", "inspect", prefix, "--document", "0"]
    shown = subprocess.run(command, capture_output=True, timeout=120, env=environment)

    assert (shown.returncode, shown.stdout) == (0, b"\\u2603<|endoftext|>\n")


def test_an_empty_prefix_is_not_the_folder_one_is_in(folder, made):
    done = dataprep("verify", "", cwd=folder)

    assert done.returncode == 2
    assert "the prefix is empty" in done.stderr


@pytest.mark.parametrize("failure", ["RuntimeError('release unlocked lock')", "KeyboardInterrupt"])
def test_what_breaks_because_of_a_ctrl_c_is_a_ctrl_c(failure):
    """Python's own locks raise RuntimeError when it arrives while they are taken; another error stays one."""
    code = f"""
import os, signal
from dataprep import cli, differences

def diff(*_):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            pass
    except KeyboardInterrupt:
        raise {failure}

differences.diff = diff
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code, "diff", "a", "b"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")

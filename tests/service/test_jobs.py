"""Jobs: what their YAMLs say, what is refused, which files of the folder are jobs, and where a job may reach."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep import catalog
from dataprep.errors import OutputError, SpecError
from dataprep.service.jobs import Job, Problem, add_job, find_job, load_job, load_jobs, parse_job
from dataprep.service.places import absolute, outside

LEAST = {"corpus": "./in", "tokenizer": "sample", "output": "../data"}
WHOLE = """\
corpus: [./inbox/*.jsonl, ../more.jsonl.gz, /srv/texts]
tokenizer: ./tokenizers/mine
output: ../data
set: [reader.text=content, runtime.workers=2]
cluster: slurm
changes: mirror
schedule: "30 2 * * *"
time_zone: Europe/Berlin
settle_seconds: 5
done_marker: .done
retention: {versions: 10, days: 30}
retries: {attempts: 5, wait_seconds: 60}
notify: {webhook: "https://hooks.example/T0", command: [./tell, now], on: [failed]}
"""


@pytest.fixture
def folder(workspace):
    (workspace / "jobs").mkdir()
    return workspace / "jobs"


def write(folder, name="books", **keys):
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in {**LEAST, **keys}.items() if value is not None}))
    return path


def test_every_key_is_read_and_paths_start_at_the_yaml(folder):
    (folder / "books.yaml").write_text(WHOLE)

    job = load_job(folder / "books.yaml")

    assert job.name == "books"
    assert (job.path, job.folder) == (folder / "books.yaml", folder)
    beside = folder.parent
    assert job.corpus_arguments == [f"{folder}/inbox/*.jsonl", f"{beside}/more.jsonl.gz", "/srv/texts"]
    assert job.tokenizer_argument == f"{folder}/tokenizers/mine"
    assert job.output_folder == beside / "data"
    assert job.settings == ["cluster.kind=slurm", "reader.text=content", "runtime.workers=2"]
    assert (job.changes, job.schedule, str(job.zone)) == ("mirror", "30 2 * * *", "Europe/Berlin")
    assert (job.settle_seconds, job.done_marker) == (5, ".done")
    assert (job.retention.versions, job.retention.days) == (10, 30)
    assert (job.retries.attempts, job.retries.wait_seconds) == (5, 60)
    assert (job.notify.webhook, job.notify.on) == ("https://hooks.example/T0", ("failed",))
    assert job.notify.command == (f"{folder}/tell", "now")


def test_what_a_job_has_without_saying(folder):
    job = load_job(write(folder))

    assert (job.corpus, job.changes, job.schedule, job.time_zone, job.settle_seconds) == (
        ("./in",),
        "append_only",
        None,
        "UTC",
        60,
    )
    assert (job.retention.versions, job.retention.days, job.retries.attempts) == (None, None, 3)
    assert (job.notify.webhook, job.notify.command, job.notify.on) == (None, (), ("published", "failed"))


def test_a_job_came_to_be_when_its_file_was_written(folder):
    path = write(folder)
    os.utime(path, (1_800_000_000, 1_800_000_000))

    assert load_job(path).created == datetime(2027, 1, 15, 8, tzinfo=UTC)
    job = load_job(path)
    path.unlink()
    with pytest.raises(SpecError, match="cannot read"):
        _ = job.created


@pytest.mark.parametrize(
    ("corpus", "arguments"),
    [
        ("sample", ["sample"]),
        ("fineweb:sample-10BT", ["fineweb:sample-10BT"]),
        ("hf:org/name@main:en", ["hf:org/name@main:en"]),
        ("https://host/a.jsonl", ["https://host/a.jsonl"]),
        (["s3://b/a.jsonl", "s3://b/b.jsonl"], ["s3://b/a.jsonl", "s3://b/b.jsonl"]),
        ("books", ["FOLDER/books"]),  # nothing of that name is shipped
        ("a.jsonl", ["FOLDER/a.jsonl"]),
        ("in/sample", ["FOLDER/in/sample"]),
        ("*", ["FOLDER/*"]),
    ],
)
def test_what_is_a_name_and_what_a_path(folder, corpus, arguments):
    job = load_job(write(folder, corpus=corpus))

    assert job.corpus_arguments == [each.replace("FOLDER", str(folder)) for each in arguments]


def test_a_file_beside_the_yaml_wins_over_what_is_shipped(folder):
    (folder / "sample").mkdir()

    assert load_job(write(folder, corpus="sample")).corpus_arguments == [f"{folder}/sample"]


def test_globs_in_the_name_of_the_folder_are_none(tmp_path):
    folder = tmp_path / "[jobs]*"
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "a.txt").write_text("text")

    job = load_job(write(folder, corpus="in/*.txt"))
    found = catalog.find_corpus(job.corpus_arguments, {})[0]

    from dataprep.sources import list_files

    assert [each.path for each in list_files(found.source, found.reader, Path(), tmp_path).files] == [
        f"{folder}/in/a.txt"
    ]
    assert load_job(write(folder, corpus="in")).corpus_arguments == [f"{folder}/in"]


@settings(max_examples=200)
@given(
    folder=st.lists(st.sampled_from(["a", "[b]", "c*", "?"]), min_size=1, max_size=3),
    text=st.lists(st.sampled_from(["a", "[bc]", "x*", "..", ".", "?"]), min_size=1, max_size=4),
)
def test_a_glob_is_literal_up_to_its_own_first_mark(folder, text):
    import glob

    place = Path("/", *folder)
    pattern = absolute("/".join(text), place)

    assert os.path.isabs(pattern)
    plain = os.path.normpath(os.path.join(place, *text))
    assert pattern.replace("[[]", "[").replace("[*]", "*").replace("[?]", "?") == plain
    if not set("".join(text)) & set("*?["):
        assert pattern == plain
    elif ".." not in text:
        assert pattern.startswith(glob.escape(str(place)))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"corpus": None}, "corpus: Field required"),
        ({"corpus": []}, "corpus: .*at least 1 item"),
        ({"corpus": 3}, r"corpus: expected a list, found 3"),
        ({"corpus": "a\nb"}, "corpus"),
        ({"corpus": "in/{stdlib}/x"}, "braces are not taken"),
        ({"corpus": "frontier-mix"}, "is a mixture; make a job of each of its corpora: "),
        ({"corpus": "none.yaml"}, r"cannot read .*none\.yaml"),
        ({"tokenizer": "gtp2"}, "'gtp2' is none of those shipped: .*gpt2"),
        ({"tokenizer": "tok.json"}, "none of those shipped"),
        ({"output": "s3://bucket/x"}, "is an address; datasets are made in folders"),
        ({"output": None}, "output: Field required"),
        ({"outptu": "x"}, "outptu: unknown key; known here: corpus, tokenizer, output"),
        ({"_path": "x"}, "_path: unknown key"),
        ({"schedule": "30 2 * *"}, "schedule '30 2 [*] [*]': expected five fields, minute hour"),
        ({"schedule": "0 30 2 * * *"}, "expected five fields"),
        ({"schedule": "@daily"}, "expected five fields"),
        ({"schedule": "61 2 * * *"}, "bad minute; expected five fields"),
        ({"schedule": "0 0 30 2 *"}, "bad day-of-month"),
        ({"schedule": 5}, "schedule: expected text, found 5; quote it"),
        ({"time_zone": "Europe/Berln"}, "no time zone 'Europe/Berln'; did you mean Europe/Berlin"),
        ({"time_zone": "/etc/passwd"}, "no time zone"),
        ({"time_zone": "../../etc/passwd"}, "no time zone"),
        ({"changes": "ignore"}, "changes: .*'append_only' or 'mirror'"),
        ({"settle_seconds": -1}, "settle_seconds"),
        ({"settle_seconds": "5"}, "settle_seconds"),
        ({"done_marker": "../x"}, "done_marker"),
        ({"retention": {"version": 3}}, "retention.version: unknown key; known here: versions, days"),
        ({"retention": {"versions": 0}}, "retention.versions"),
        ({"retries": {"attempts": 0}}, "retries.attempts"),
        ({"notify": {"webhook": "file:///etc/passwd"}}, "notify.webhook"),
        ({"notify": {"webhook": "https:///x"}}, "notify.webhook"),
        ({"notify": {"webhook": "http://[::1"}}, "notify.webhook: expected https://HOST"),
        ({"notify": {"webhook": "http://host:99999/x"}}, "notify.webhook: expected https://HOST"),
        ({"notify": {"on": ["done"]}}, "notify.on"),
        ({"notify": {"command": "rm -rf /"}}, "notify.command: expected a list"),
        ({"set": ["reader.text"]}, "expected NAMESPACE.KEY=VALUE"),
        ({"set": ["runtime.worker=3"]}, "set: runtime: worker: unknown key"),
        ({"set": ["policy.bos=no"]}, "set: policy: bos"),
        ({"set": ["output.merg=true"]}, "set: output: merg"),
        ({"set": ["runtime.metrics=here"]}, "give an absolute path"),
        ({"set": ["source.paths=[/etc/passwd]"]}, "source.paths is said by corpus:"),
        ({"set": ["tokenizer.path=/x"]}, "tokenizer.path is said by tokenizer:"),
        (
            {"cluster": "slurm", "set": ["cluster.prologue=[rm -rf /]"]},
            "cluster.prologue is said by a YAML that cluster:",
        ),
        ({"cluster": "slrm"}, "--cluster slrm: expected one of"),
        ({"cluster": "slurm", "set": ["cluster.node=3"]}, "node: unknown key"),
        ({"cluster": "kubernetes", "set": ["cluster.image=x", "cluster.claim=y"]}, "dataprep jobs render kubernetes"),
    ],
)
def test_what_is_wrong_is_said_with_the_file_and_the_key(folder, keys, message):
    path = write(folder, **keys)

    with pytest.raises(SpecError, match=message) as raised:
        load_job(path)
    assert str(path) in str(raised.value)


def test_a_yaml_with_kubernetes_is_refused_too(folder):
    (folder.parent / "pods.yaml").write_text("cluster: {kind: kubernetes, image: x, claim: y}")

    with pytest.raises(SpecError, match="dataprep jobs render kubernetes"):
        load_job(write(folder, cluster="../pods.yaml"))


def test_a_scheduler_file_starts_at_the_yaml(folder):
    (folder.parent / "scheduler.json").write_text("{}")

    job = load_job(write(folder, cluster="../scheduler.json"))

    assert job.settings == ["cluster.kind=existing", f'cluster.address="{folder.parent}/scheduler.json"'] or (
        yaml.safe_load(job.settings[1].partition("=")[2]) == f"{folder.parent}/scheduler.json"
    )


@pytest.mark.parametrize("name", ["a b", ".hidden", "-x", "a/b", "é", "", "x" * 101, "raw", "work", "a.tmp-1"])
def test_names_that_no_dataset_can_have(folder, name):
    with pytest.raises(SpecError, match="name"):
        parse_job("corpus: x", folder / f"{name}.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "- a\n",
        "corpus: [\n",
        "\t",
        "",
        "3",
        "a: 2024-13-45",
        "a: \xff\x00",
        "[" * 60_000,
        "- " * 30_000,
        "? " * 30_000,
        "a: &x [1]\nb: *x\n",
        "x: " + "1" * 70_000,
    ],
)
def test_texts_that_are_no_job(folder, text):
    (folder / "a.yaml").write_text(text, encoding="latin-1")

    with pytest.raises(SpecError, match=r"a\.yaml"):
        load_job(folder / "a.yaml")


def test_a_bomb_of_anchors_is_refused_before_it_is_read(folder):
    text = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )

    with pytest.raises(SpecError, match="anchors and aliases"):
        parse_job(text, folder / "a.yaml")


def test_one_that_is_wrong_leaves_the_others_alone(folder):
    write(folder, "good")
    write(folder, "bad", schedule="never")
    write(folder, "two words")

    jobs, problems = load_jobs(folder)

    assert [job.name for job in jobs] == ["good"]
    assert [problem.name for problem in problems] == ["bad", "two words"]
    assert "expected five fields" in problems[0].text
    assert all(isinstance(problem, Problem) for problem in problems)


def test_what_is_in_the_folder_and_no_job(folder, tmp_path):
    write(folder, "good")
    other = write(tmp_path, "elsewhere")
    (folder / "inside").mkdir()
    kept = write(folder / "inside", "kept")
    for name in ("books.yaml~", ".books.yaml.swp", "#books.yaml#", ".#books.yaml", "books.yaml.bak", "notes.txt"):
        (folder / name).write_text("corpus: x")
    (folder / ".hidden.yaml").write_text("corpus: x")
    (folder / "folder.yaml").mkdir()
    os.mkfifo(folder / "pipe.yaml")
    (folder / "linked.yaml").symlink_to(kept)  # as Kubernetes mounts a ConfigMap
    (folder / "out.yaml").symlink_to(other)
    (folder / "dangling.yaml").symlink_to(tmp_path / "none.yaml")

    jobs, problems = load_jobs(folder)

    assert ([job.name for job in jobs], problems) == (["good", "linked"], [])
    with pytest.raises(SpecError, match="no job 'out'"):
        find_job(folder, "out")


def test_a_job_is_found_by_its_name_alone(folder):
    write(folder, "books")
    write(folder.parent, "secret")

    assert find_job(folder, "books").name == "books"
    with pytest.raises(SpecError, match="did you mean books"):
        find_job(folder, "boks")
    for name in ("../secret", "../jobs/books", "books.yaml", "/etc/passwd", "", "x\0"):
        with pytest.raises(SpecError, match="no job"):
            find_job(folder, name)


def test_no_folder_is_said(tmp_path):
    with pytest.raises(SpecError, match=r"jobs folder .*none: No such file or directory; name it with --jobs"):
        load_jobs(tmp_path / "none")


# --- adding


def test_add_writes_what_it_was_given_and_makes_the_folder(tmp_path):
    folder = tmp_path / "new" / "jobs"
    made = add_job(folder, "books", {**LEAST, "schedule": "30 2 * * *", "notify": {"on": ["failed"]}})
    text = add_job(folder, "texts", "# mine\ncorpus: ./in\ntokenizer: sample\noutput: x\n")

    assert made == find_job(folder, "books")
    assert made.notify.on == ("failed",)
    assert text.path.read_text() == "# mine\ncorpus: ./in\ntokenizer: sample\noutput: x\n"
    assert sorted(os.listdir(folder)) == ["books.yaml", "texts.yaml"]


def test_add_replaces_nothing_and_leaves_nothing_of_what_is_wrong(folder):
    before = write(folder, "books").read_bytes()

    with pytest.raises(SpecError, match="is there already; edit it"):
        add_job(folder, "books", LEAST)
    with pytest.raises(SpecError, match="unknown key"):
        add_job(folder, "new", {**LEAST, "shedule": "x"})
    for name in ("../books", "a/b", ".x", "raw"):
        with pytest.raises(SpecError, match="name"):
            add_job(folder, name, LEAST)
    (folder / "link.yaml").symlink_to(folder.parent / "target")
    with pytest.raises(SpecError, match="is there already"):
        add_job(folder, "link", LEAST)

    assert (folder / "books.yaml").read_bytes() == before
    assert sorted(os.listdir(folder)) == ["books.yaml", "link.yaml"]
    assert not (folder.parent / "target").exists()


def test_of_many_who_add_the_same_job_one_succeeds(folder):
    ends: list[str] = []
    start = threading.Barrier(8)

    def add(number):
        start.wait()
        try:
            ends.append(f"made {add_job(folder, 'books', {**LEAST, 'settle_seconds': number}).settle_seconds}")
        except SpecError:
            ends.append("refused")

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    (made,) = (end for end in ends if end != "refused")
    assert ends.count("refused") == 7
    assert made == f"made {find_job(folder, 'books').settle_seconds}"
    assert os.listdir(folder) == ["books.yaml"]


def test_add_to_what_is_no_folder(tmp_path):
    (tmp_path / "jobs").write_text("")

    with pytest.raises(OutputError, match="cannot create the folder"):
        add_job(tmp_path / "jobs", "books", LEAST)


# --- where a job may reach


def test_a_job_that_stays_where_it_may(folder):
    (folder / "in").mkdir()
    (folder / "in" / "a.txt").write_text("")
    (folder / "in" / "again").symlink_to(folder / "in")
    allowed = [folder.parent / "data", folder.parent / "tokenizers"]
    keys = {"tokenizer": "../tokenizers/mine", "notify": {"command": ["./tell"]}}

    assert outside(load_job(write(folder, corpus=["./in", "in/*.txt", "in/**"], **keys)), allowed) == []
    for corpus in ("sample", "hf:org/name", "https://host/x.jsonl", "s3://b/x"):
        assert outside(load_job(write(folder, corpus=corpus, **keys)), allowed) == []


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({"corpus": "/etc/passwd"}, "/etc/passwd"),
        ({"corpus": "/etc/*.conf"}, "/etc/*.conf"),
        ({"corpus": "/*/passwd"}, "/*/passwd"),
        ({"corpus": "../../x"}, "UP/x"),
        ({"corpus": "in/../../../x/*.txt"}, "UP/x/*.txt"),
        ({"corpus": "out"}, "FOLDER/out"),
        ({"corpus": "out/*"}, "FOLDER/out/*"),
        ({"corpus": "in/*"}, "FOLDER/in/leak"),
        ({"corpus": "in"}, "FOLDER/in/leak"),
        ({"corpus": "i*/*/deep.txt"}, "FOLDER/in/leak/deep.txt"),
        ({"corpus": "deep"}, "FOLDER/deep/links/leak"),
        ({"corpus": "corpus/books.yaml"}, "/etc/hosts"),
        ({"corpus": "corpus/stdlib.yaml"}, "{stdlib}/../../etc"),
        ({"corpus": "corpus/urls.yaml"}, "file:/etc/passwd"),
        ({"corpus": "file:///etc/passwd"}, "file:/etc/passwd"),
        ({"corpus": "local:///etc/passwd"}, "local:/etc/passwd"),
        ({"corpus": "FILE:///etc/passwd"}, "FILE:/etc/passwd"),
        ({"corpus": "simplecache::https://host/x"}, "simplecache::https:/host/x"),
        ({"corpus": "../../elsewhere/books.yaml"}, "UP/elsewhere/books.yaml"),
        ({"tokenizer": "/models/x"}, "/models/x"),
        ({"tokenizer": "./tok.yaml"}, "/models/y"),
        ({"output": "/data"}, "/data"),
        ({"output": "out/x"}, "FOLDER/out/x"),
        ({"cluster": "/etc/cluster.json"}, "/etc/cluster.json"),
        ({"notify": {"command": ["/bin/sh", "-c", "x"]}}, "/bin/sh"),
        ({"notify": {"command": ["./out/tell"]}}, "FOLDER/out/tell"),
        ({"set": ["runtime.metrics=/var/metrics"]}, "/var/metrics"),
        ({"cluster": "slurm", "set": ["cluster.scratch=/scratch"]}, "/scratch"),
    ],
)
def test_where_a_job_may_not_reach(folder, tmp_path, monkeypatch, keys, found):
    away = tmp_path / "away"
    away.mkdir()
    (away / "deep.txt").write_text("")
    (folder / "out").symlink_to(away)
    for name in ("in", "corpus", "deep", "other"):
        (folder / name).mkdir()
    (folder / "in" / "a.txt").write_text("")
    (folder / "in" / "leak").symlink_to(away)
    (folder / "other" / "leak").symlink_to(away)
    (folder / "deep" / "links").symlink_to(folder / "other")
    elsewhere = folder.parents[1] / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    for path, source in (
        (folder / "corpus" / "books.yaml", {"kind": "files", "paths": ["/etc/hosts", "../in/a.txt"]}),
        (folder / "corpus" / "stdlib.yaml", {"kind": "files", "paths": ["{stdlib}/../../etc"]}),
        (folder / "corpus" / "urls.yaml", {"kind": "urls", "urls": ["file:///etc/passwd"]}),
        (elsewhere / "books.yaml", {"kind": "files", "paths": [f"{folder}/in/a.txt"]}),
    ):
        path.write_text(yaml.safe_dump({"name": "books", "source": source}))
    (folder / "tok.yaml").write_text(yaml.safe_dump({"name": "x", "type": "HuggingFaceTokenizer", "path": "/models/y"}))
    monkeypatch.setattr("dataprep.service.jobs.find_cluster", lambda _: None)
    monkeypatch.setattr("dataprep.service.job.cluster_settings", lambda _: [])

    job = load_job(write(folder, "x", **{"corpus": "in/a.txt", "output": "data", **keys}))

    up = str(folder.parents[1])
    assert outside(job) == [Path(found.replace("FOLDER", str(folder)).replace("UP", up))]
    assert outside(job, [Path("/")]) == [] or "://" in str(keys) or "::" in str(keys) or "urls" in str(keys)


def test_a_program_of_the_path_is_found_first(folder):
    (found,) = outside(load_job(write(folder, corpus="in", output="data", notify={"command": ["sh"]})))

    assert found.name == "sh"
    assert found.is_absolute()


def test_a_job_as_json_is_what_was_written(folder):
    job = load_job(write(folder, corpus=["a", "b"]))

    assert Job.from_json(job.to_json(), "again").to_json() == job.to_json()

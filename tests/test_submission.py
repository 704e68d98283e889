"""What is handed to Slurm, and what is said of jobs and clusters that come to nothing; no Slurm is needed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import dataprep
from dataprep.cluster import elastic, existing, mapping, slurm
from dataprep.errors import ClusterError, SpecError
from dataprep.specs import SlurmElastic, find_cluster
from dataprep.submission import Order, render


def _order(output: Path, tokenizer: str = "sample", corpus: str = "in/c.jsonl") -> Order:
    return Order([corpus], tokenizer, output, None, ["cluster.kind=slurm"], False)


def _option(script: str, name: str) -> str:
    (line,) = [line for line in script.splitlines() if line.startswith(f"#SBATCH --{name}=")]
    return shlex.split(line)[1].partition("=")[2]


def test_a_percent_sign_in_the_output_is_none_of_slurms(tmp_path):
    script = render(_order(tmp_path / "50%j off"))
    assert _option(script, "output") == f"{tmp_path}/50%%j off/work/job-%j.log"
    assert slurm.Job("7", tmp_path / "50%j" / "job-%j.log").log == tmp_path / "50%j" / "job-7.log"


@pytest.mark.parametrize("name", ["back\\slash", "new\nline"])
def test_a_path_that_slurm_cannot_write_to_is_refused(tmp_path, name):
    with pytest.raises(SpecError, match="Slurm can write no log"):
        render(_order(tmp_path / name))


def test_jobs_of_one_request_wait_for_each_other_and_others_do_not(tmp_path):
    orders = [
        _order(tmp_path / "a"),
        _order(tmp_path / "b"),
        _order(tmp_path / "a", "gpt2"),
        _order(tmp_path / "a", corpus="other/c.jsonl"),
    ]
    names = [_option(render(order), "job-name") for order in orders]
    assert len(set(names)) == 4
    assert names[0] == _option(render(orders[0]), "job-name")
    assert names[2].startswith("dataprep-c.jsonl-gpt2-")


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"ExitCode": "1:0", "Reason": "NonZeroExitCode"}, "exit code 1; it never"),
        ({"ExitCode": "0:53", "Reason": "JobLaunchFailure"}, "signal 53, JobLaunchFailure; it never wrote"),
        ({"ExitCode": "0:9"}, "signal 9; it never"),
    ],
)
def test_how_a_job_ended(tmp_path, monkeypatch, state, says):
    job = slurm.Job("7", tmp_path / "job-%j.log")
    monkeypatch.setattr(job, "state", lambda: {"JobState": "FAILED", **state})
    with pytest.raises(ClusterError, match=f"job 7 ended: failed, {says}"):
        job.follow(lambda text: None)


def test_a_job_that_waits_says_why_each_time_that_changes(tmp_path, monkeypatch):
    states = [("PENDING", "None"), ("PENDING", "None"), ("PENDING", "PartitionConfig"), ("COMPLETED", "None")]
    found, said = iter(states), []
    job = slurm.Job("7", tmp_path / "job-%j.log")
    monkeypatch.setattr(job, "state", lambda: dict(zip(("JobState", "Reason"), next(found), strict=True)))
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0)
    job.follow(said.append)
    assert said[0] == "job 7: pending\n"
    assert "PartitionConfig" in said[1]
    assert "may wait for ever" in said[1]
    assert len(said) == 2


def test_settings_of_no_cluster_ask_for_one():
    with pytest.raises(SpecError, match=r"cluster\.nodes: of which cluster\? Name it: --cluster slurm"):
        find_cluster({"nodes": 2})


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"text": "a"}\n{"text": "b"}\n'])
def test_a_file_that_is_no_scheduler_file(tmp_path, text):
    path = tmp_path / "scheduler.json"
    path.write_text(text)
    with pytest.raises(ClusterError, match="is no scheduler file"):
        existing.Joined(find_cluster({"kind": "existing", "address": str(path)})).open()


@pytest.mark.parametrize("settings", [[], ["cluster.image=x", "cluster.claim=y"]])
def test_from_python_a_run_is_not_handed_over(write_texts, tmp_path, monkeypatch, settings):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    kind = "kubernetes" if settings else "slurm"
    with pytest.raises(SpecError, match=f"cluster.kind={kind}: a run is handed over by the command line"):
        dataprep.run(write_texts(["a"]), "sample", tmp_path / "out", settings=[f"cluster.kind={kind}", *settings])


@pytest.fixture
def silent(tmp_path, monkeypatch):
    """Commands of Slurm that say nothing and do not end, as where the folder they lie in is gone."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "scontrol", "scancel"):
        (folder / name).write_text('#!/bin/sh\n[ "$1" = --test-only ] || exec sleep 30\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr(slurm, "ANSWER_SECONDS", 0.2)


def test_commands_of_slurm_that_do_not_end(tmp_path, monkeypatch, silent):
    with pytest.raises(ClusterError, match="sbatch has not answered for 0 s; see with sinfo"):
        slurm.submit("#!/bin/sh\n")
    monkeypatch.setattr(slurm, "UNKNOWN_SECONDS", 0.1)
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.05)
    job = slurm.Job("7", tmp_path / "job-%j.log")
    job.log.write_text("what the job says")
    shown = []
    with pytest.raises(ClusterError, match="Slurm says nothing about job 7 any more"):
        job.follow(shown.append)
    assert shown == ["what the job says"]


@pytest.mark.slurm
def test_workers_as_jobs_that_cannot_be_submitted_are_not_waited_for(tmp_path, monkeypatch, silent, said):
    pytest.importorskip("dask_jobqueue", reason="pip install 'dataprep-llm[slurm]'")
    monkeypatch.setattr(elastic, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(mapping, "LOOK_SECONDS", 0.1)
    place = elastic.Elastic(SlurmElastic(nodes=1, workers_per_node=1, interface="lo"), tmp_path)

    def run() -> None:
        with mapping.Cluster(place, patience_seconds=4) as cluster:
            list(cluster.map(print, [1]))

    with pytest.raises(ClusterError, match="no worker has been at work"):
        run()
    assert "Slurm does not answer" in said()

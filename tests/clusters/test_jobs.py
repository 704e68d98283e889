"""A job of the service with `cluster: slurm` on a real Slurm: its parts are made in the allocation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dataprep
from dataprep.prefixes import find_prefixes
from dataprep.service.jobs import load_job
from dataprep.service.records import read_records
from dataprep.versions import Versions

pytestmark = pytest.mark.slurm


def test_the_parts_of_versions_are_made_by_jobs(slurm, write_nonsense, workspace):
    job = {
        "corpus": "../inbox/*.jsonl",
        "tokenizer": "sample",
        "output": "../out put",
        "settle_seconds": 0,
        "cluster": "slurm",
        "set": ["cluster.nodes=2", "cluster.workers_per_node=1"],
    }
    for name in ("jobs", "inbox"):
        (workspace / name).mkdir()
    (workspace / "jobs" / "news.yaml").write_text(json.dumps(job))
    versions = Versions(load_job(workspace / "jobs" / "news.yaml").output_folder / "news")
    expected = 0
    for i in (1, 2):
        write_nonsense(workspace / "inbox" / f"{i}.jsonl", 1_000_000, i)
        printed = slurm.dataprep("jobs", "run", "news", "--jobs", workspace / "jobs")
        assert Path(printed.strip()) == versions.version(i)
        alone = dataprep.run(str(workspace / "inbox" / f"{i}.jsonl"), "sample", workspace / "alone")
        made = find_prefixes(versions.version(i))[-1]
        for end in ("bin", "idx"):
            assert made.with_suffix(f".{end}").read_bytes() == Path(f"{alone.prefix}.{end}").read_bytes()
        expected += alone.manifest.counts.num_documents
    assert versions.newest().num_documents == expected
    slurm.dataprep("jobs", "run", "news", "--jobs", workspace / "jobs")
    assert [record.state for record in read_records(versions)] == ["published", "published", "unchanged"]
    logs = list((workspace / "out put" / "work").glob("job-*.log"))
    assert len(logs) == 2
    said = (versions.folder / "runs" / "000001.log").read_text()
    assert "is submitted, its output goes to" in said

"""/metrics: how runs and jobs are, in the text format of Prometheus.

Of a run that goes on, what `metrics` says of it; of jobs, what alarms are made of: when one ended well last, how the
newest ended, when the next is.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from dataprep import metrics
from dataprep.meters import Tally
from dataprep.service.web.pages import state_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dataprep.meters import RunState
    from dataprep.service.board import JobView
    from dataprep.service.state import Output, Seen

router = APIRouter(include_in_schema=False)

CONTENT_TYPE = "text/plain; version=0.0.4"

Sample = tuple[dict[str, str], float]


@router.get("/metrics")
def serve_metrics(request: Request) -> PlainTextResponse:
    """All there is to measure, now."""
    return PlainTextResponse(text(state_of(request).seen()), media_type=CONTENT_TYPE)


def text(seen: Seen) -> str:
    """The metrics of all that was seen."""
    own = "".join(_family(*family) for family in (*_of_outputs(seen.outputs.values()), *_of_jobs(seen.jobs)))
    progress = [line.progress for line in seen.lines if line.is_going and line.progress is not None]
    return own + _merged(metrics.text(state, _done(state)) for state in _newest(progress))


def _of_outputs(outputs: Iterable[Output]) -> Iterator[tuple[str, str, list[Sample]]]:
    found = list(outputs)
    free = [({"output": each.path}, float(each.free_bytes)) for each in found if each.free_bytes is not None]
    total = [({"output": each.path}, float(each.total_bytes)) for each in found if each.total_bytes is not None]
    yield "output_free_bytes", "Free on the file system of an output.", free
    yield "output_size_bytes", "Size of the file system of an output.", total
    yield "output_runs", "Runs in an output.", [({"output": each.path}, each.num_runs) for each in found]


def _of_jobs(jobs: Iterable[JobView]) -> Iterator[tuple[str, str, list[Sample]]]:
    found = [(({"job": job.name}), job) for job in jobs]
    good = [(own, job) for own, job in found if not job.problem]
    yield "job_broken", "1 for a job that cannot be run.", [(own, int(bool(job.problem))) for own, job in found]
    yield "job_paused", "1 for a job that is paused.", [(own, int(job.paused is not None)) for own, job in good]
    yield "job_versions", "Versions of a job's dataset.", [(own, job.versions) for own, job in good]
    yield "job_dataset_tokens", "Tokens of the newest version.", [(own, job.num_tokens) for own, job in good]
    yield "job_dataset_bytes", "Bytes of the newest version.", [(own, job.num_bytes) for own, job in good]
    yield (
        "job_last_success_timestamp_seconds",
        "When a run of a job ended well last.",
        [(own, _seconds(job.succeeded)) for own, job in good if job.succeeded is not None],
    )
    yield (
        "job_next_timestamp_seconds",
        "When a job runs next by its schedule.",
        [(own, _seconds(job.next[0])) for own, job in good if job.next and job.paused is None],
    )
    yield (
        "job_last_state",
        "1 for how the newest run of a job stands or ended.",
        [({**own, "state": job.last.state}, 1.0) for own, job in good if job.last is not None],
    )


def _family(name: str, what: str, samples: list[Sample]) -> str:
    if not samples:
        return ""
    lines = [f"# HELP dataprep_{name} {what}", f"# TYPE dataprep_{name} gauge"]
    for labels, value in samples:
        own = ",".join(f'{label}="{metrics.escape(each)}"' for label, each in labels.items())
        lines.append(f"dataprep_{name}{{{own}}} {float(value)!r}")
    return "".join(f"{line}\n" for line in lines)


def _newest(states: Iterable[RunState]) -> list[RunState]:
    """Of states of one recipe, which two outputs may hold, the newest: labels have to differ."""
    found: dict[tuple[str, str, str], RunState] = {}
    for state in sorted(states, key=lambda each: each.updated):
        found[state.corpus, state.tokenizer, state.recipe_digest[: metrics.DIGEST]] = state
    return list(found.values())


def _done(state: RunState) -> Tally:
    """What the driver itself did, without what was done when it began."""
    now = state.model_dump() | {"source_bytes": state.source_bytes_done}
    return Tally(**{name: max(0, now[name] - before) for name, before in state.earlier.model_dump().items()})


def _merged(texts: Iterable[str]) -> str:
    """One text of several: a metric's samples have to stand together."""
    heads: dict[str, list[str]] = {}
    samples = defaultdict[str, list[str]](list)
    name = ""
    for line in "".join(texts).splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ")[2]
            heads.setdefault(name, []).append(line)
        elif line.startswith("# "):
            heads[name].append(line)
        else:
            samples[name].append(line)
    return "".join(f"{line}\n" for name, head in heads.items() for line in (*head[:2], *samples[name]))


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()

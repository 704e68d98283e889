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
Key = tuple[str, str, str]

NOTHING = Tally(units_done=0, source_bytes=0, num_documents=0, num_tokens=0, num_text_bytes=0)


@router.get("/metrics")
def serve_metrics(request: Request) -> PlainTextResponse:
    """All there is to measure, now."""
    return PlainTextResponse(text(state_of(request).seen(), request.app.state.counters), media_type=CONTENT_TYPE)


def text(seen: Seen, counters: Counters) -> str:
    """The metrics of all that was seen.

    Args:
        seen: all of it.
        counters: of this server.
    """
    own = "".join(_family(*family) for family in (*_of_outputs(seen.outputs.values()), *_of_jobs(seen.jobs)))
    going = counters.of(line.progress for line in seen.going if line.progress is not None)
    return own + _merged(metrics.text(state, done) for state, done in going)


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


class Counters:
    """What drivers did, as counters that never fall, though a driver may take a little back."""

    def __init__(self) -> None:
        self._most: dict[Key, tuple[str, Tally]] = {}

    def of(self, states: Iterable[RunState]) -> list[tuple[RunState, Tally]]:
        """Each run that goes on, and what its driver did; of runs of one recipe in two outputs, the newest."""
        found = {_key(state): state for state in sorted(states, key=lambda each: each.updated)}
        most = {}
        for key, state in found.items():
            started, before = self._most.get(key, ("", NOTHING))
            most[key] = (state.started, _done(state, before if started == state.started else NOTHING))
        self._most = most
        return [(state, most[key][1]) for key, state in found.items()]


def _key(state: RunState) -> Key:
    return state.corpus, state.tokenizer, state.recipe_digest[: metrics.DIGEST]


def _done(state: RunState, before: Tally) -> Tally:
    """What the driver itself did, without what was done when it began."""
    now, earlier = state.model_dump() | {"source_bytes": state.source_bytes_done}, state.earlier.model_dump()
    return Tally(**{name: max(least, now[name] - earlier[name]) for name, least in before.model_dump().items()})


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

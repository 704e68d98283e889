"""A run's state as metrics in the text format of Prometheus, for the textfile collector of its node exporter.

The format: https://prometheus.io/docs/instrumenting/exposition_formats, version 0.0.4. Counters are what this driver
did, from 0, as Prometheus expects of a process that starts anew; what the dataset has come to is gauges.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, get_args

from dataprep.meters import RunState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataprep.meters import Tally

DIGEST = 16
"""Letters of the recipe digest, as in the name of the work folder."""


def text(state: RunState, done: Tally) -> str:
    """The metrics file.

    Args:
        state: of the run.
        done: by this driver; must not fall from one file to the next.
    """
    labels = {"corpus": state.corpus, "tokenizer": state.tokenizer, "recipe": state.recipe_digest[:DIGEST]}
    own = ",".join(f'{name}="{escape(value)}"' for name, value in labels.items())
    lines = []
    for name, kind, what, values in _metrics(state, done):
        if not values:
            continue
        lines += [f"# HELP dataprep_{name} {what}", f"# TYPE dataprep_{name} {kind}"]
        lines += [f"dataprep_{name}{{{own}{extra}}} {value!r}" for extra, value in values]
    return "".join(f"{line}\n" for line in lines)


def _metrics(state: RunState, done: Tally) -> Iterator[tuple[str, str, str, list[tuple[str, float]]]]:
    """Name, type, help, and samples: further labels with a value; of what nobody knows there is none.

    No gauge has the name of a counter without its ``_total``: OpenMetrics takes the two for one.
    """
    for name, what, value in (
        ("units_total", "Units done by this driver.", done.units_done),
        ("documents_total", "Documents written by this driver.", done.num_documents),
        ("tokens_total", "Tokens written by this driver.", done.num_tokens),
        ("text_bytes_total", "Bytes of text tokenized by this driver.", done.num_text_bytes),
        ("source_bytes_total", "Bytes of source files worked by this driver.", done.source_bytes),
        ("fetched_bytes_total", "Bytes fetched by this driver.", state.fetched_bytes),
        ("retries_total", "Units given out again by this driver, because their worker was lost.", state.retries),
        ("units_planned", "Units known so far.", state.units),
        ("units_done", "Units done, by earlier drivers too.", state.units_done),
        ("dataset_documents", "Documents so far, by earlier drivers too.", state.num_documents),
        ("dataset_tokens", "Tokens so far, by earlier drivers too.", state.num_tokens),
        ("corpus_bytes", "Bytes of the source files.", state.source_bytes),
        ("corpus_bytes_done", "Bytes of the source files worked, by earlier drivers too.", state.source_bytes_done),
        ("fetch_bytes", "Bytes that this driver has to fetch.", state.fetch_bytes),
        ("stage_bytes", "Bytes that the stage has to read.", state.stage_bytes),
        ("stage_bytes_done", "Bytes that the stage has read.", state.stage_bytes_done),
        ("seconds_left", "About how long the stage will still take.", state.seconds_left),
        ("workers", "Units worked on at the same time.", state.workers),
        ("start_timestamp_seconds", "When this driver began.", _timestamp(state.started)),
        ("progress_timestamp_seconds", "When this file was written.", _timestamp(state.updated)),
    ):
        kind = "counter" if name.endswith("_total") else "gauge"
        yield name, kind, what, [] if value is None else [("", value)]
    states = get_args(RunState.model_fields["state"].annotation)
    yield (
        "run_state",
        "gauge",
        "1 for the state that the run is in.",
        [(f',state="{name}"', int(name == state.state)) for name in states],
    )
    yield "stage_info", "gauge", "1 for the stage that the run is in.", [(f',stage="{escape(state.stage)}"', 1)]


def _timestamp(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def escape(value: str) -> str:
    """The value of a label as it is written."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

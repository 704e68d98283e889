"""The runtime: all that must not change the bytes; and the settings of ``--set``."""

from __future__ import annotations

import os
import re
from typing import Any, Literal, Self

import yaml
from pydantic import ByteSize, Field

from dataprep.errors import SpecError
from dataprep.specs.models import MIB, Model


class Runtime(Model):
    """All that must not change the bytes.

    Attributes:
        processes: give each worker a process of its own instead of a thread.
        workers: units worked on at the same time.
        memory: what the run aims to stay within: batches and the engine's cache are cut to it. A single document takes
            what it takes (about eight times its size), and so does a tokenizer for every process. None: 400 MiB for a
            process and 176 MiB for each of its workers. More is faster on large corpora: the cache lives longer. Of
            workers on other machines, what each of them aims for.
        engine: ``auto`` = the fast one where it supports the tokenizer.
        unit_bytes: source per unit: what is redone after a crash, and the grain of parallelism. None: a sixteenth
            of a worker's share, between 4 and 64 MiB; with more than 32 workers up to 2 MiB for each, so that the
            driver, who has 3 ms of work with every unit, keeps up.
        batch_bytes: text handed to the engine at once. 8 MiB stays in cache; 32 MiB measured slower and twice the
            memory.
        audit_rate: one document in this many is encoded by the reference as well; 0: none.
        max_rejects: share of the records that may be rejected before the run is called failed.
        connections: requests at the same time.
        keep_raw: keep what was downloaded. Otherwise a file goes once its shards are done.
        metrics: folder that gets a file of metrics for Prometheus: that of its node exporter's textfile collector.
    """

    processes: bool = False
    workers: int = Field(default_factory=lambda: len(os.sched_getaffinity(0)), ge=1, le=1024)
    memory: ByteSize | None = Field(default=None, ge=256 * MIB)
    engine: Literal["auto", "gigatoken", "reference"] = "auto"
    unit_bytes: ByteSize | None = Field(default=None, ge=1)
    batch_bytes: ByteSize = Field(default=ByteSize(8 * MIB), ge=1024, le=256 * MIB)
    audit_rate: int = Field(default=2000, ge=0)
    max_rejects: float = Field(default=0.01, ge=0, le=1)
    connections: int = Field(default=8, ge=1, le=64)
    keep_raw: bool = True
    metrics: str | None = Field(default=None, min_length=1)

    @property
    def process_memory(self) -> int:
        """What one process of the run aims to stay within, in bytes."""
        workers, processes = (1, self.workers) if self.processes else (self.workers, 1)
        if self.memory is not None:
            return self.memory // processes
        return (400 + 176 * workers) * MIB

    def ahead_bytes(self, largest: int) -> int:
        """Bytes of raw files at the same time where they are not kept.

        Args:
            largest: bytes of the largest; each connection fetches one, each worker has two.
        """
        return largest * (self.connections + 2 * self.workers)

    def unit_size(self, total_bytes: int) -> int:
        """Source bytes per unit for a corpus of this size."""
        if self.unit_bytes is not None:
            return self.unit_bytes
        return min(max(total_bytes // (16 * self.workers), 4 * MIB), max(64, 2 * self.workers) * MIB)

    def elsewhere(self, workers: int) -> Self:
        """The same for workers that are processes on other machines."""
        memory = None if self.memory is None else ByteSize(self.memory * workers)
        return self.model_copy(update={"workers": workers, "processes": True, "memory": memory})


TIME = re.compile(r"\d+(:\d+)+")
"""12:00:00, which YAML 1.1 takes for the number 43200."""


def parse_settings(settings: list[str], namespaces: tuple[str, ...] | None = None) -> dict[str, dict[str, Any]]:
    """``["reader.text=content", ...]`` -> ``{"reader": {"text": "content"}, ...}``; values are YAML.

    Args:
        settings: as given.
        namespaces: that there are; None: those of a run.

    Raises:
        SpecError: no ``=``, no namespace, or a value that is not YAML.
    """
    result: dict[str, dict[str, Any]] = {}
    known = namespaces or NAMESPACES
    for setting in settings:
        key, equals, text = setting.partition("=")
        namespace, dot, name = key.partition(".")
        if not (equals and dot and name) or namespace not in known:
            raise SpecError(f"--set {setting}: expected NAMESPACE.KEY=VALUE with a namespace of {', '.join(known)}")
        try:
            value = yaml.safe_load(text) if text.strip() and not TIME.fullmatch(text) else text
        except yaml.YAMLError as error:
            raise SpecError(f"--set {setting}: the value is not YAML; put it in quotes") from error
        if value is None and text.strip() not in ("null", "~"):
            raise SpecError(f"--set {setting}: YAML reads {text!r} as nothing; put it in quotes: '{key}=\"{text}\"'")
        result.setdefault(namespace, {})[name] = value
    return result


NAMESPACES = ("source", "reader", "tokenizer", "policy", "output", "runtime", "cluster")
"""What ``--set`` can reach: all but `runtime` and `cluster` are recipe."""

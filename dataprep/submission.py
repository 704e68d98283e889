"""A run that is handed to a scheduler of jobs, instead of being done by this process.

check     what is wrong with it is said here, before anything waits in a queue
render    what is handed over
submit    hand it over: to Slurm, as a job that runs the same command inside its allocation
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.blending import resolve_mixture
from dataprep.cluster import slurm
from dataprep.cluster.allocation import is_inside
from dataprep.errors import ClusterError, SpecError
from dataprep.layout import job_log
from dataprep.planning import resolve
from dataprep.runner import SEEN_SECONDS, find_existing
from dataprep.specs import Kubernetes, Slurm, find_cluster, parse_settings
from dataprep.storage import make_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataprep.planning import Request
    from dataprep.specs import ClusterSpec, Mixture

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Order:
    """What is asked for, as given.

    Attributes:
        settings: where it runs among them (``cluster.*``).
        wait, if_free: what to do about another run of the same dataset.
    """

    corpus: Sequence[str]
    tokenizer: str
    output: Path
    limit: int | None
    settings: Sequence[str]
    offline: bool
    wait: bool = False
    if_free: bool = False

    @property
    def cluster(self) -> ClusterSpec:
        """Where it is to run.

        Raises:
            SpecError: a setting is wrong.
        """
        return find_cluster(parse_settings(list(self.settings)).get("cluster", {}))

    @property
    def here(self) -> Order:
        """The same for this machine."""
        return replace(self, settings=[each for each in self.settings if not each.startswith("cluster.")])

    @property
    def arguments(self) -> list[str]:
        """Of ``dataprep``, to do it; paths as they were given."""
        words = ["run", *self.corpus, "--tokenizer", self.tokenizer, "--output", str(self.output)]
        words += [] if self.limit is None else ["--limit", str(self.limit)]
        words += [word for setting in self.settings for word in ("--set", setting)]
        flags = {"--offline": self.offline, "--wait": self.wait, "--if-free": self.if_free}
        return words + [flag for flag, given in flags.items() if given]


def is_handed_over(spec: ClusterSpec) -> bool:
    """Whether this process has to hand the run over; inside the job it does not."""
    return isinstance(spec, Slurm) and not is_inside()


def is_printed(spec: ClusterSpec) -> bool:
    """Whether its user hands the run over; the sources are to be found there, not here."""
    return isinstance(spec, Kubernetes)


def check(order: Order, mixture: Mixture | None) -> bool:
    """Whether it is done already.

    Raises:
        SpecError: the request is wrong.
        SourceError: a source cannot be had or read.
    """
    return all(find_existing(request) is not None for request in _requests(order, mixture))


def _requests(order: Order, mixture: Mixture | None) -> list[Request]:
    if mixture is not None:
        return resolve_mixture(mixture, order.tokenizer, order.output, order.limit, order.settings)
    return [resolve(order.corpus, order.tokenizer, order.output, None, order.limit, order.settings)]


def render(order: Order) -> str:
    """What is handed over, as text.

    Raises:
        SpecError: this is not handed to anybody.
    """
    spec = order.cluster
    if isinstance(spec, Kubernetes):
        from dataprep.cluster import kubernetes

        return kubernetes.render_text(spec, order.here.arguments)
    if isinstance(spec, Slurm):
        order = replace(order, output=Path(os.path.abspath(order.output)))
        return slurm.render(spec, order.arguments, _job_name(order), job_log(order.output))
    raise SpecError(f"--cluster {spec.kind}: the work is done from here; `dataprep plan` shows what it would be")


def _job_name(order: Order) -> str:
    """Of the corpus and the tokenizer, and another one for each request, since jobs of one name wait for each other."""
    names = (os.path.basename(text.rstrip("/")).partition("*")[0] for text in (order.corpus[0], order.tokenizer))
    words = [re.sub(r"[^\w.-]+", "-", name).strip(".-") or "run" for name in names]
    request = [order.corpus, order.tokenizer, str(order.output), order.limit, os.getcwd(), order.here.settings]
    return "-".join(["dataprep", *words, hashlib.sha256(json.dumps(request).encode()).hexdigest()[:8]])


def submit(order: Order) -> slurm.Job:
    """Submit the job.

    Raises:
        SpecError: Slurm is not here, or refuses.
        OutputError: the file system refuses.
    """
    log = job_log(order.output)
    make_folder(log.parent)
    return slurm.Job(slurm.submit(render(order)), log)


def hand_over(request: Request, arguments: Sequence[str], name: str) -> None:
    """Have a job of Slurm make a dataset, and wait until it is there; what the job says is logged.

    Args:
        request: what is made; its cluster is Slurm.
        arguments: of ``dataprep``, to do it inside of the job.
        name: of the job.

    Raises:
        SpecError: Slurm is not here, or refuses.
        ClusterError: the job failed, or what it made is not to be seen.
    """
    assert isinstance(request.cluster, Slurm)
    path = job_log(request.layout.output)
    make_folder(path.parent)
    job = slurm.Job(slurm.submit(slurm.render(request.cluster, arguments, name, path)), path)
    log.info("job %s is submitted, its output goes to %s", job.number, job.log)
    job.follow(lambda text: log.info("%s", text.rstrip()))
    deadline = time.monotonic() + SEEN_SECONDS
    while find_existing(request) is None:
        if time.monotonic() > deadline:
            raise _unseen(request.layout.output)
        time.sleep(1)


def _unseen(output: Path) -> ClusterError:
    return ClusterError(
        f"the job ended well, but what it made is not to be seen here: is {output} on a file system that this machine "
        "and the nodes share?"
    )


def wait_until_seen(order: Order, mixture: Mixture | None) -> None:
    """Return once what the job made can be seen from here.

    Raises:
        ClusterError: it cannot.
    """
    deadline = time.monotonic() + SEEN_SECONDS
    while not check(order, mixture):
        if time.monotonic() > deadline:
            raise _unseen(order.output)
        time.sleep(1)


def queue_again(spec: ClusterSpec) -> bool:
    """Have the job that this process is in run again later; False: it is none, or one that may not.

    Raises:
        ClusterError: Slurm refuses.
    """
    if not (isinstance(spec, Slurm) and is_inside() and spec.requeue):
        return False
    slurm.requeue()
    return True

"""Which tokens a training sample is made of, found in a process beside the server where that takes long.

To shuffle ten million sequences takes a second, in which numpy lets no other thread of the process work: no page would
be answered. So larger orders are made, and the last one of them is kept, by a child. It reads questions from its
standard input, a line of JSON each, and answers on its standard output; it ends with the server, whose pipe then
closes, or when nobody asked for `IDLE_SECONDS`.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dataprep.errors import BusyError, DataprepError, FormatError, SpecError
from dataprep.inspection.windows import open_index
from dataprep.samples import SampleOrder, Sampling, part_range, plan_samples, read_lengths
from dataprep.service.viewing.chosen import AbsentError
from dataprep.service.viewing.kept import Kept, stamp

if TYPE_CHECKING:
    from dataprep.indexed import Index

SMALL_BYTES = 1 << 22
"""Of memory for an order that the server makes itself: half a million sequences, 0.05 s."""

MOST_BYTES = 1 << 29
"""Of memory for one that the child makes: 64 million sequences, 7 s."""

IDLE_SECONDS = 300.0
"""The child ends when nobody asked for so long, and gives its memory back."""

WAIT_SECONDS = 60.0
"""For the child to answer, and for others' questions before."""


@dataclass(frozen=True)
class Drawn:
    """What a sample is made of, as far as it is to be shown.

    Attributes:
        num_samples, num_epochs: that there are.
        num_pieces: of this sample.
        pieces: those that are shown: sequence, its first token in the sample, how many, and where in the sample.
    """

    num_samples: int
    num_epochs: int
    num_pieces: int
    pieces: list[list[int]]


@dataclass(frozen=True)
class Question:
    """Some tokens of one sample.

    Attributes:
        prefix: of the pair.
        sampling: what of the training decides its samples.
        number: of the sample, in the order of the training.
        first, count: tokens of it.
    """

    prefix: str
    sampling: Sampling
    number: int
    first: int
    count: int


class Orders:
    """Answers questions, one large one at a time."""

    def __init__(self) -> None:
        self._kept: Kept[SampleOrder] = Kept(2)
        self._one = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def draw(self, question: Question) -> Drawn:
        """What a sample is made of.

        Raises:
            AbsentError: there is no such sample.
            SpecError: Megatron would not begin the training, or the order takes more memory than there is for it.
            FormatError: the index is broken.
            BusyError: it takes too long.
        """
        index = open_index(Path(question.prefix))
        size = order_bytes(index, question.sampling)
        if size <= SMALL_BYTES:
            return answer(question, index, self._kept)
        if size > MOST_BYTES:
            raise SpecError(f"the order of these samples takes too much memory for a page; {_elsewhere(question)}")
        if not self._one.acquire(timeout=WAIT_SECONDS):
            raise BusyError("others look at samples of large datasets; try again in a minute")
        try:
            return self._ask(question)
        finally:
            self._one.release()

    def close(self) -> None:
        """End the child."""
        with self._one:
            self._end()

    def _ask(self, question: Question) -> Drawn:
        line = json.dumps({**asdict(question), "sampling": asdict(question.sampling)}).encode() + b"\n"
        for _ in range(2):  # it may have ended just now
            try:
                said = self._exchange(self._started(), line)
            except BaseException:
                self._end()  # or its answer to this question would pass for that to the next one
                raise
            if said is None:
                self._end()
                raise BusyError(f"the order of these samples takes too long for a page; {_elsewhere(question)}")
            if said.endswith(b"\n"):
                return _told(json.loads(said))
            self._end()
        raise FormatError(f"the order of these samples could not be made; {_elsewhere(question)}")

    def _exchange(self, child: subprocess.Popen[bytes], line: bytes) -> bytes | None:
        """What a child answers: a line; less than one where it has ended; None where it takes too long."""
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(line)
            child.stdin.flush()
        except OSError:
            return b""
        return child.stdout.readline() if _is_ready(child.stdout.fileno(), WAIT_SECONDS) else None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._end()
            command = [sys.executable, "-P", "-m", __name__]  # -P: not what lies in the folder that we are in
            pipe = subprocess.PIPE
            self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
        return self._child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()


def order_bytes(index: Index, sampling: Sampling) -> int:
    """Of memory that the order of a training's samples takes.

    Raises:
        SpecError: there is no such part.
    """
    if 8 * len(index.sequence_lengths) > MOST_BYTES:
        return MOST_BYTES + 1
    start, stop = part_range(index, sampling.split, sampling.part)
    tokens = int(read_lengths(index, start, stop).sum(dtype=np.int64))
    return plan_samples((start, stop), tokens, sampling.seq_length, sampling.num_samples).num_bytes


def answer(question: Question, index: Index, kept: Kept[SampleOrder]) -> Drawn:
    """What a sample is made of.

    Args:
        question: which.
        index: of its pair.
        kept: orders that were made before.
    """
    sampling, first, count = question.sampling, question.first, question.count
    order = kept.get((stamp(index.path), sampling), lambda: SampleOrder(index, sampling))
    if not 0 <= question.number < len(order):
        raise AbsentError(f"There is no such sample: {sampling.part} has samples 0 to {len(order) - 1}.")
    if not 0 <= first <= sampling.seq_length:
        raise AbsentError(f"There is no such token: a sample has tokens 0 to {sampling.seq_length}.")
    found = order.pieces(question.number)
    ends = np.cumsum(found[:, 2])
    starts = ends - found[:, 2]
    shown = (ends > first) & (starts < first + count)
    pieces = np.column_stack([found[shown], starts[shown]]).tolist()
    return Drawn(len(order), order.num_epochs, len(found), pieces)


def main() -> None:
    """The child: answers questions until its standard input closes, or nobody asks."""
    kept: Kept[SampleOrder] = Kept(1)
    while _is_ready(0, IDLE_SECONDS) and (line := _line()):
        try:
            value = json.loads(line)
            question = Question(**{**value, "sampling": Sampling(**value["sampling"])})
            said: dict[str, Any] = asdict(answer(question, open_index(Path(question.prefix)), kept))
        except DataprepError as error:
            kind = next(kind for kind, each in _KINDS.items() if isinstance(error, each))
            said = {"error": str(error), "kind": kind}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


_KINDS: dict[str, type[DataprepError]] = {
    "absent": AbsentError,
    "spec": SpecError,
    "format": FormatError,
    "other": DataprepError,
}


def _is_ready(fd: int, seconds: float) -> bool:
    """Whether there is something to read, or the end, within a time; `select` would refuse descriptors above 1023."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _line() -> bytes:
    """The next line of the standard input, read without a buffer, so that `_is_ready` sees what is left."""
    found = b""
    while not found.endswith(b"\n") and (more := os.read(0, 1 << 16)):
        found += more
    return found


def _told(said: dict[str, Any]) -> Drawn:
    if "error" in said:
        raise _KINDS[said["kind"]](said["error"])
    return Drawn(**said)


def _elsewhere(question: Question) -> str:
    sampling = question.sampling
    return (
        f"ask for one with: dataprep inspect {question.prefix} --sample {question.number} "
        f"--seq-length {sampling.seq_length} --seed {sampling.seed}"
    )


if __name__ == "__main__":
    main()

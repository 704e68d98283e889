"""Every error that dataprep raises on purpose.

    DataprepError           a message a person can act on: what, where, what to do next
    |-- SpecError           a bad request: unknown name, bad YAML, bad option     exit code 2
    |-- SourceError         an input that cannot be listed or read, or that changed
    |   `-- NoTextError     an input in which there is no text
    |-- EncodeError         ids that are not the reference's, or that do not fit
    |-- FormatError         a .bin/.idx that does not parse: expected, found
    |-- OutputError         the output folder refuses: full, read-only, damaged
    |-- BusyError           another run holds the output
    |-- LostClaimError      another run took the output over from this one
    |-- ClusterError        work that was lost too often
    |-- TrainingError       a trainer that failed
    `-- Cancelled           the run was told to stop; finished work stays

All but SpecError are failed work: exit code 1. The command line is the only place that turns an
exception into text. ``assert`` is for invariants; a user never has to read one.
"""

from __future__ import annotations

import re


def public(text: str) -> str:
    """A text without what addresses in it may hide: user and password, and HTTP's query, which may be a signature."""
    text = re.sub(r"(\w+://)[^\s/@]+@", r"\1", text)
    return re.sub(r"(https?://[^\s?]*)\?\S*?(?=[:;,.)]*(\s|$))", r"\1", text)


class DataprepError(Exception):
    """The root: its text says what went wrong, where, and what to do next, and is `public`."""

    exit_code = 1

    def __init__(self, text: str) -> None:
        super().__init__(public(text))


class SpecError(DataprepError, ValueError):
    """The request itself is wrong: nothing was started."""

    exit_code = 2


class SourceError(DataprepError):
    """An input cannot be listed, opened or decoded, or it changed during the run."""


class NoTextError(SourceError):
    """An input was read to its end, and there is no document in it."""


class EncodeError(DataprepError):
    """Engine and reference disagree, or an id does not fit the vocabulary or the dtype."""


class FormatError(DataprepError, ValueError):
    """A file is not the indexed pair it claims to be."""


class OutputError(DataprepError):
    """The output folder cannot take the result, or holds a damaged one."""


class BusyError(DataprepError):
    """Another run holds this output."""


class LostClaimError(DataprepError):
    """Another run took this output over: this one was silent for too long, or somebody unlocked it."""


class ClusterError(DataprepError):
    """A unit was lost with its worker more often than is reasonable."""


class TrainingError(DataprepError):
    """A trainer that was started did not end well."""


class Terminated(KeyboardInterrupt):
    """The process was told to end by SIGTERM, as schedulers of jobs do; what Ctrl-C does, for another exit code."""


class TimeIsUp(Terminated):
    """The job that the process is in was told by SIGUSR1 that its time is about to end."""


class Cancelled(DataprepError):
    """The run was asked to stop before it was done."""

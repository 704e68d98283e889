"""How flags become words of a command line; what the dialects of Megatron have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dataprep.train.job import Part

Flag = tuple[str, Any]
"""Name without dashes, and value: None for a flag without one, a list for one with several."""


def words(flags: Iterable[Flag], arguments: Mapping[str, str | None]) -> tuple[str, ...]:
    """The command line of flags.

    Args:
        flags: as a backend has them, each once.
        arguments: the user's own, name -> value; one of the same name takes the flag's place.
    """
    merged = {**dict(flags), **arguments}
    return tuple(word for flag in merged.items() for word in _words(flag))


def _words(flag: Flag) -> list[str]:
    name, value = flag
    values = [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
    return [f"--{name}", *(repr(each) if isinstance(each, float) else str(each) for each in values)]


def weighted(parts: Sequence[Part]) -> list[str]:
    """``[p]``, or ``[w1, p1, w2, p2]``: some versions take no list of prefixes without weights."""
    if len(parts) == 1:
        return [parts[0].prefix]
    return [word for part in parts for word in (f"{part.weight:.9g}", part.prefix)]

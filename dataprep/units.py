"""The plan of a run: which units there are, on disk in ``plan.jsonl`` so that a later run cuts the same ones.

    files   f0 f1 f2 | f3 | f4 ...      groups: consecutive files, by their listed sizes alone
    units   u u | u u u | ...           of one group each, cut once its files are here; then a line is appended

How units are cut never changes the bytes of the dataset, unless the recipe says how (``output.merge=false``); that they
are cut once is what lets finished shards be used again, also when what they were made of is gone
(``runtime.keep_raw=false``).
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from typing import TYPE_CHECKING, Any

from dataprep.manifest import Slice, Unit
from dataprep.readers import cut
from dataprep.remains import clear_shards
from dataprep.storage import AtomicFile, append_line, explain, mend_lines, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dataprep.layout import Layout
    from dataprep.specs import Recipe, Runtime

log = logging.getLogger(__name__)

MAX_SLICES = 500
"""Files in a unit at the most: thousands of tiny ones are work for several workers, too."""


def group_files(recipe: Recipe, unit_bytes: int) -> list[range]:
    """Consecutive files that are fetched and cut together: a large one alone, small neighbours with each other."""
    groups: list[range] = []
    start = size = 0
    for index, file in enumerate(recipe.files):
        if index > start and (size + file.num_bytes > unit_bytes or index - start == MAX_SLICES):
            groups.append(range(start, index))
            start, size = index, 0
        size += file.num_bytes
    return [*groups, range(start, len(recipe.files))]


def cut_group(recipe: Recipe, number: int, files: range, unit_bytes: int) -> list[Unit]:
    """The units of one group: a large file in pieces, small files together.

    Raises:
        SourceError: a file cannot be read, or has no column of text under the name asked for.
    """
    parts = [part for index in files for part in cut(index, recipe.files[index], recipe.reader, unit_bytes)]
    if len(files) > 1 and parts:
        return [Unit(group=number, index=0, slices=tuple(parts))]
    return [Unit(group=number, index=i, slices=(part,)) for i, part in enumerate(parts)]


def unit_size(recipe: Recipe, runtime: Runtime) -> int:
    """Source bytes per unit."""
    return recipe.output.unit_bytes or runtime.unit_size(recipe.num_bytes)


def cut_units(recipe: Recipe, runtime: Runtime) -> list[Unit]:
    """The units of a corpus whose files are all here."""
    unit_bytes = unit_size(recipe, runtime)
    groups = enumerate(group_files(recipe, unit_bytes))
    return [unit for number, files in groups for unit in cut_group(recipe, number, files, unit_bytes)]


class Plan:
    """The groups of a run, and of those that were cut, the units.

    Attributes:
        groups: indices into the recipe's files.
    """

    def __init__(self, layout: Layout, recipe: Recipe, unit_bytes: int, fence: Callable[[], None]) -> None:
        self._layout, self._recipe, self._unit_bytes, self._fence = layout, recipe, unit_bytes, fence
        self.groups = group_files(recipe, unit_bytes)
        self._units: dict[int, list[Unit]] = {}
        self._noted: dict[int, list[str | None]] = {}

    @classmethod
    def load(cls, layout: Layout, recipe: Recipe, runtime: Runtime, fence: Callable[[], None]) -> Plan:
        """The plan on disk if it is of these very files, else a new one, written before it is used.

        A plan of other files (an input changed while its run was interrupted) is dropped, and its shards with it.
        Files that are here are cut at once: what is wrong with one of them is said before any work is done.

        Args:
            layout, recipe, runtime: of the run.
            fence: raises if the run does not hold its output any more; asked before anything is written or removed.

        Raises:
            SourceError: a file that is here cannot be read.
            OutputError: the file system refuses.
        """
        head, *lines = _read(layout) or [{}]
        fence()
        seal = [[file.name, file.num_bytes, file.mtime_ns] for file in recipe.files]
        if head.get("seal") == seal and head.get("digest") == recipe.digest and "unit_bytes" in head:
            write_json(layout.recipe, recipe.public().to_json())  # a power failure may have left it hollow
            mend_lines(layout.plan)
            plan = cls(layout, recipe, head["unit_bytes"], fence)
            plan._take(lines)
            return plan
        if head:
            log.warning("the input changed since this run was interrupted: starting it anew")
            clear_shards(layout, fence)
            with explain(layout.merged, "clear"), contextlib.suppress(FileNotFoundError):
                shutil.rmtree(layout.merged)  # not emptied: who was overtaken may have its files open
        with explain(layout.rejects, "clear"), contextlib.suppress(FileNotFoundError):
            for path in layout.rejects.iterdir():  # of other units: nothing would overwrite them
                path.unlink()
        plan = cls(layout, recipe, unit_size(recipe, runtime), fence)
        for number, files in enumerate(plan.groups):
            if all(recipe.files[index].url is None for index in files):
                plan._units[number] = cut_group(recipe, number, files, plan._unit_bytes)
        write_json(layout.recipe, recipe.public().to_json())
        with AtomicFile(layout.plan) as file:
            home = {"home": layout.home} if layout.home else {}
            head = {"digest": recipe.digest, "seal": seal, "unit_bytes": plan._unit_bytes, **home}
            for line in (head, *(_line(number, units) for number, units in plan._units.items())):
                file.write(json.dumps(line).encode() + b"\n")
        return plan

    def _take(self, lines: Iterable[dict[str, Any]]) -> None:
        for line in lines:
            with contextlib.suppress(KeyError, TypeError, ValueError):
                number = line["group"]
                units = (
                    tuple(Slice(file=a, start=b, stop=c, num_bytes=d) for a, b, c, d in slices)
                    for slices in line["units"]
                )
                self._units[number] = [Unit(group=number, index=i, slices=part) for i, part in enumerate(units)]
                self._noted[number] = line.get("noted", [])

    def units(self, number: int) -> list[Unit] | None:
        """The units of a group, or None if it was not cut yet."""
        return self._units.get(number)

    def keep(self, number: int, noted: list[str | None]) -> None:
        """Forget how a group was cut, and what was made of it, if it was cut of other contents; see `cut`."""
        units = self._units.get(number)
        if units is None or self._noted.get(number, []) == noted:
            return
        log.info("files of group %d are not, or not known to be, what they were: it is done again", number)
        self._fence()
        for unit in units:
            self._layout.forget(unit.key)
        del self._units[number]

    def cut(self, number: int, noted: list[str | None]) -> list[Unit]:
        """Cut a group whose files are here.

        Args:
            number: of the group.
            noted: sha256 of those of its files that the digest of the recipe does not prove.

        Raises:
            SourceError: a file cannot be read.
            OutputError: the file system refuses.
        """
        units = cut_group(self._recipe, number, self.groups[number], self._unit_bytes)
        self._fence()
        append_line(self._layout.plan, _line(number, units) | ({"noted": noted} if noted else {}), durable=True)
        self._units[number], self._noted[number] = units, noted
        return units


def _line(number: int, units: list[Unit]) -> dict[str, Any]:
    return {"group": number, "units": [[[s.file, s.start, s.stop, s.num_bytes] for s in u.slices] for u in units]}


def _read(layout: Layout) -> list[dict[str, Any]]:
    """The lines of ``plan.jsonl``; one that a crash cut off is left out."""
    found: list[dict[str, Any]] = []
    with contextlib.suppress(OSError), layout.plan.open("rb") as lines:
        for line in lines:
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    found.append(value)
    return found

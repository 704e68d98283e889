"""All that is shown of datasets, in one object: what is known is shared by pages and API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataprep.service.viewing.chosen import AbsentError
from dataprep.service.viewing.details import Details
from dataprep.service.viewing.documents import Documents
from dataprep.service.viewing.listing import Datasets
from dataprep.service.viewing.rejects import read_rejects, rejects_of, rejects_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from dataprep.service.viewing.chosen import Dataset
    from dataprep.service.viewing.readings import RejectPage


class Viewer:
    """What there is to see of datasets. For several threads at once.

    Args:
        outputs: gives short id -> folder, as it is now.

    Attributes:
        datasets, details, documents: see their modules.
    """

    def __init__(self, outputs: Callable[[], Mapping[str, Path]]) -> None:
        self.datasets = Datasets(outputs)
        self.details = Details(self.datasets)
        self.documents = Documents(self.datasets, self.details)

    def rejects(self, dataset: Dataset, part: int = 0, position: int = 0, reason: str | None = None) -> RejectPage:
        """Some records that became no documents of a dataset.

        Args:
            dataset: which.
            part: of a version: one of its parts, from 0.
            position, reason: see `rejects.read_rejects`.

        Raises:
            AbsentError: there is no such part or reject.
            FormatError: a file cannot be read.
        """
        manifests = list(dict.fromkeys(dataset.manifests))
        if not 0 <= part < len(manifests):
            raise AbsentError(f"There is no such part: {dataset.folder.name} has parts 0 to {len(manifests) - 1}.")
        manifest = self.details.manifest(manifests[part], dataset.output_id)
        return self._read(rejects_path(dataset.output, manifest), dataset.output_id, position, reason)

    def run_rejects(self, output: str, work: str, position: int = 0, reason: str | None = None) -> RejectPage:
        """The same of a run, by the name of its work folder; while it goes on, of what is merged.

        Raises:
            AbsentError, FormatError: see `rejects`; there is no such run.
        """
        return self._read(rejects_of(self.datasets.work(output, work)), output, position, reason)

    def _read(self, path: Path, output: str, position: int, reason: str | None) -> RejectPage:
        self.datasets.check_inside(path, output)
        return read_rejects(path, position, reason, lambda path: self.datasets.opened(path, output))

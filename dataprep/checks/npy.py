"""A ``.npy`` file read in pieces, without trusting it and without mapping it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class NpyArray:
    """An array in a file: all but its elements."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows [start, stop), cut at the end: a copy."""
        stop = min(stop, len(self))
        width = int(np.prod(self.shape[1:], dtype=np.int64))
        offset = self.offset + start * width * self.dtype.itemsize
        flat = np.fromfile(self.path, self.dtype, (stop - start) * width, offset=offset)
        return flat.reshape(-1, *self.shape[1:])


def open_npy(path: Path, columns: int) -> NpyArray:
    """Read the header of an array of whole numbers.

    Args:
        path: the file.
        columns: 1 for int[n], else for int[n, columns].

    Raises:
        ValueError: it is none, or ends before its elements do; the text says what.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"version {version} of the .npy format")
        shape, by_column, dtype = readers[version](file)
        offset = file.tell()
    found = NpyArray(path, shape, dtype, offset)
    if dtype.kind not in "iu" or by_column or shape[1:] != (columns,)[: columns > 1] or shape[0] < 0:
        raise ValueError(f"an array of {dtype} and shape {shape}")
    expected = offset + int(np.prod(shape, dtype=object)) * dtype.itemsize
    size = path.stat().st_size
    if size < expected:
        raise ValueError(f"expected {expected} bytes, found {size}")
    return found

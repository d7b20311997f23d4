"""Matrices in files as plain elements at an offset: each rank maps the file, and touches only what it owns."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.errors import FileFormatError
from pblas.matrices.scatter_gather import holds_first_copy, part_of, put_part

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.layouts.descriptor import MatrixDescriptor


@dataclass(frozen=True, slots=True)
class Header:
    """The shape, dtype and position of a matrix in a file.

    Args:
        shape: rows and columns (global).
        dtype: dtype of the stored elements (global).
        order: storage order, "F" or "C" (global).
        offset: bytes before the first element; None if the elements are not one contiguous piece (global).
        dataset: name of the matrix in the file; "" in a format of one matrix (global).
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    order: str
    offset: int | None
    dataset: str = ""

    @property
    def is_raw(self) -> bool:
        """Whether the elements are bytes whose dtype the file does not tell."""
        return self.dtype.kind == "V" and self.dtype.names is None and self.dtype.name != "bfloat16"


def read_part(path: str | os.PathLike[str], header: Header, desc: MatrixDescriptor, rank: int, local: Array) -> None:
    """Copy the elements that `rank` owns from a file into `local`, converted to its dtype."""
    if not local.size:
        return
    try:
        stored = np.memmap(path, header.dtype, "r", header.offset, header.shape, order=header.order)  # type: ignore[call-overload]
        part = part_of(stored, desc, rank)
        if header.is_raw:
            part = part.view(local.dtype)
        with np.errstate(all="ignore"):  # as in `Runtime.collective_section`
            local[...] = part
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # the file was truncated after its header was read
        raise FileFormatError(f"{path}: cannot be read: {error}") from None


def write_part(path: str | os.PathLike[str], header: Header, desc: MatrixDescriptor, rank: int, local: Array) -> None:
    """Write the elements of `rank` into a file; of replicated elements the first copy only."""
    if not local.size or not holds_first_copy(desc, rank):
        return
    try:
        stored = np.memmap(path, header.dtype, "r+", header.offset, header.shape, order=header.order)  # type: ignore[call-overload]
        put_part(stored, desc, rank, local.view(header.dtype) if header.is_raw else local)
        stored.flush()
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be written: {error.strerror or error}") from None

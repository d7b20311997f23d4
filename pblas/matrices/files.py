"""Matrices in files: .npy and .h5, by the suffix of the path. Each rank reads and writes its own elements only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pblas.errors import ArgumentError, FileFormatError
from pblas.matrices import hdf5, mapped_files, npy
from pblas.matrices.complete_files import begin, discard
from pblas.matrices.mapped_files import Header

if TYPE_CHECKING:
    import numpy as np

    from pblas.backends.dtypes import Array
    from pblas.layouts.descriptor import MatrixDescriptor

_HDF5 = (".h5", ".hdf5")


def format_of(verb: str, path: str) -> Literal["npy", "hdf5"]:
    """The format of a new file, by the suffix of its path.

    >>> format_of("save", "a/b.h5")
    'hdf5'
    >>> format_of("save", "b.txt")
    Traceback (most recent call last):
    pblas.errors.ArgumentError: save: b.txt ends in '.txt'; a matrix is saved as .npy or .h5: pass 'b.npy'
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".npy":
        return "npy"
    if suffix in _HDF5:
        return "hdf5"
    name, ends = Path(path).name, f"ends in {suffix!r}" if suffix else "has no ending"
    raise ArgumentError(f"{verb}: {path} {ends}; a matrix is saved as .npy or .h5: pass {Path(name).stem + '.npy'!r}")


def checked_dataset(verb: str, path: str, dataset: Any) -> str | None:
    """The name of a dataset in an HDF5 file, or None."""
    if dataset is None:
        return None
    if Path(path).suffix.lower() not in _HDF5:
        raise ArgumentError(f"{verb}: dataset={dataset!r} is for .h5 files; leave it out for {path}")
    pieces = dataset.strip("/").split("/") if isinstance(dataset, str) else [""]
    if any(piece in ("", ".", "..") for piece in pieces) or "\0" in dataset:
        raise ArgumentError(f"{verb}: dataset must be a name, as 'data' or 'group/data', got {dataset!r}")
    return str(dataset)


def read_header(path: str | os.PathLike[str], dataset: str | None = None) -> Header:
    """Shape, dtype and place of the matrix in a file: HDF5 if the path ends in .h5 or .hdf5, else .npy."""
    return hdf5.read_header(path, dataset) if Path(path).suffix.lower() in _HDF5 else npy.read_header(path)


def read_part(path: str | os.PathLike[str], header: Header, desc: MatrixDescriptor, rank: int, local: Array) -> None:
    """Copy the elements that `rank` owns from a file into `local`, converted to its dtype."""
    read = hdf5.read_part if header.dataset and header.offset is None else mapped_files.read_part
    read(path, header, desc, rank, local)


def create(
    path: str, dataset: str | None, shape: tuple[int, int], dtype: np.dtype[Any], order: str
) -> tuple[str, Header]:
    """Create a file of the right size under a temporary name in the folder of `path`."""
    temporary = ""
    try:
        temporary, file = begin(path)
        with file:
            if format_of("save", path) == "npy":
                header = npy.write_header(file, shape, dtype, order)
            else:
                header = hdf5.write_header(temporary, dataset or "data", shape, dtype)
            offset, nbytes = header.offset, shape[0] * shape[1] * dtype.itemsize
            if nbytes and offset is not None:
                if hasattr(os, "posix_fallocate"):  # a full disk raises here; a memory map would get a SIGBUS later
                    os.posix_fallocate(file.fileno(), offset, nbytes)
                elif os.fstat(file.fileno()).st_size < offset + nbytes:
                    os.ftruncate(file.fileno(), offset + nbytes)
    except OSError as error:
        discard(temporary)
        raise FileFormatError(f"{path}: cannot be written: {error.strerror or error}") from None
    except BaseException:
        discard(temporary)
        raise
    return temporary, header


write_part = mapped_files.write_part

"""Matrices in files: .npy and .h5, by the suffix of the path. Each rank reads and writes its own elements only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
from numpy.lib import format as npy

from pblas.backends.dtypes import BFLOAT16, FLOAT8, Array
from pblas.errors import ArgumentError, FileFormatError
from pblas.matrices import hdf5
from pblas.matrices.complete_files import Header, begin, discard, reading
from pblas.matrices.scatter_gather import holds_first_copy, part_of, put_part

if TYPE_CHECKING:
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
    return hdf5.read_header(path, dataset) if Path(path).suffix.lower() in _HDF5 else _read_npy_header(path)


def read_part(path: str | os.PathLike[str], header: Header, desc: MatrixDescriptor, rank: int, local: Array) -> None:
    """Copy the elements that `rank` owns from a file into `local`, converted to its dtype."""
    read = hdf5.read_part if header.dataset and header.offset is None else _read_mapped
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
                header = _write_npy_header(file, shape, dtype, order)
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


_MOST = (1 << 63) - 1


def _read_npy_header(path: str | os.PathLike[str]) -> Header:
    """Read the header of a .npy file that holds a matrix."""
    with reading(path) as file:
        try:
            version = npy.read_magic(file)
            if version == (3, 0):
                raise FileFormatError(
                    f"{path}: .npy format 3.0 is that of records whose fields have names beyond Latin letters; save "
                    f"the matrix of one field, as numpy.save(path, records['name'])"
                )
            if version not in ((1, 0), (2, 0)):
                raise FileFormatError(f"{path}: .npy format version {version} is unknown; save it with numpy.save")
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(file)
            offset, size = file.tell(), os.fstat(file.fileno()).st_size
        except (FileFormatError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - Python's parser raises many kinds for a header that is not NumPy's
            raise FileFormatError(f"{path}: not a .npy file: {type(error).__name__}: {error}") from None
    if not all(type(extent) is int and 0 <= extent <= _MOST for extent in shape):
        raise FileFormatError(f"{path}: not a .npy file: its shape is not of integers in 0..2**63 - 1")
    if len(shape) != 2 or dtype.hasobject or dtype.subdtype is not None:
        raise FileFormatError(f"{path}: expected a matrix of numbers, got shape {shape}, dtype {dtype}")
    needed = offset + shape[0] * shape[1] * dtype.itemsize
    if size < needed:
        raise FileFormatError(f"{path}: truncated: expected {needed} bytes, got {size}; write the file again")
    return Header(shape, dtype, "F" if fortran else "C", offset)


def _write_npy_header(file: BinaryIO, shape: tuple[int, int], dtype: np.dtype[Any], order: str) -> Header:
    """Write the header of a new .npy file."""
    stored = np.dtype(f"V{dtype.itemsize}") if dtype in (BFLOAT16, *FLOAT8) else dtype
    header = {"descr": npy.dtype_to_descr(stored), "fortran_order": order == "F", "shape": shape}
    npy.write_array_header_1_0(file, header)
    file.flush()
    return Header(shape, stored, order, file.tell())


def _read_mapped(path: str | os.PathLike[str], header: Header, desc: MatrixDescriptor, rank: int, local: Array) -> None:
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

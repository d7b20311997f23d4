"""Matrices in HDF5 files, through h5py, which is imported when it is needed.

A saved matrix is one contiguous dataset, whose place in the file is known before its elements are written. So ranks
write their parts as into a .npy file, at the same time and without an HDF5 library that knows MPI. Datasets of other
programs may be compressed, in chunks, or of another type: HDF5 itself reads them, a few rows at a time.

Source: HDF5 reference manual, H5Pset_alloc_time, H5Dget_offset; h5py, "Low-Level API".
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from pblas.backends.dtypes import BFLOAT16, Dtype
from pblas.errors import FileFormatError
from pblas.matrices.complete_files import Header, Part, library, reading
from pblas.matrices.scatter_gather import global_indices

DEFAULT = "data"  # the name of a saved dataset, unless the caller gives one
_PANEL_NBYTES = 16 << 20  # memory for the rows that are read at a time, unless one chunk is larger
_SHOWN = 5  # names of datasets in a message


def read_header(path: str | os.PathLike[str], dataset: str | None) -> Header:
    """The shape, dtype and place of a matrix in an HDF5 file."""
    h5py = library("h5py", ".h5 files")
    with reading(path) as raw:
        try:
            with h5py.File(path, "r", locking="best-effort") as file:
                name, found = _dataset(h5py, path, file, dataset)
                shape, dtype = found.shape, _dtype(h5py, found)
                is_plain = _memory_type(h5py, dtype).equal(found.id.get_type()) and not found.external
                offset = found.id.get_offset() if is_plain and found.chunks is None else None
            size = os.fstat(raw.fileno()).st_size
        except FileFormatError:
            raise
        except Exception as error:  # noqa: BLE001 - h5py raises many kinds for a damaged file
            raise FileFormatError(f"{path}: not an HDF5 file: {type(error).__name__}: {error}") from None
    if shape is not None and len(shape) == 1:
        shape = (*shape, 1)
    if shape is None or len(shape) != 2 or dtype.hasobject or dtype.subdtype is not None:
        raise FileFormatError(f"{path}: expected a matrix of numbers, got {name!r} of shape {shape}, dtype {dtype}")
    m, n = shape
    if offset is not None and size < offset + m * n * dtype.itemsize:
        needed = offset + m * n * dtype.itemsize
        raise FileFormatError(f"{path}: truncated: expected {needed} bytes, got {size}; write the file again")
    return Header((m, n), dtype, "C", offset, name)


def read_part(part: Part) -> None:
    """Copy the elements that the rank owns of a dataset in chunks, or of another type: its header has no offset."""
    if not part.local.size:
        return
    h5py = library("h5py", ".h5 files")
    try:
        with h5py.File(part.path, "r", locking="best-effort") as file:
            read_panels(file[part.header.dataset], part)
    except Exception as error:  # noqa: BLE001 - h5py raises many kinds for a damaged file
        raise FileFormatError(f"{part.path}: cannot be read: {type(error).__name__}: {error}") from None


def read_panels(dataset: Any, part: Part) -> None:
    """Copy the elements that the rank owns, some rows of chunks at a time."""
    _, header, desc, rank, local, report = part
    rows, columns = (x + first for x, first in zip(global_indices(desc, rank), header.first, strict=True))
    first, stop = int(columns[0]), int(columns[-1]) + 1
    height = dataset.chunks[0] if dataset.chunks else 1
    step = height * max(1, _PANEL_NBYTES // (height * (stop - first) * header.dtype.itemsize))
    for start in range(int(rows[0]) // step * step, int(rows[-1]) + 1, step):
        i0, i1 = np.searchsorted(rows, (start, start + step))
        if i0 < i1:
            inside = slice(int(rows[i0]), int(rows[i1 - 1]) + 1)
            panel = dataset[inside, first:stop] if dataset.ndim == 2 else dataset[inside][:, None]
            local[i0:i1] = panel[np.ix_(rows[i0:i1] - rows[i0], columns - first)]
            if report is not None:
                report(int(i1) / len(rows))


def write_header(
    path: str, temporary: str, dataset: str, shape: tuple[int, int], dtype: Dtype, *, overwrite: bool
) -> Header:
    """Add a dataset, whose elements are not written, to a copy of the file at `path`, or to an empty file."""
    h5py = library("h5py", ".h5 files")
    is_new = Path(temporary).stat().st_size == 0
    if not is_new:
        _check_format(h5py, path, temporary)
    try:
        with h5py.File(temporary, "w" if is_new else "r+", locking="best-effort") as file:
            if dataset in file:
                _check_place(h5py, path, file, dataset, overwrite=overwrite)
                del file[dataset]
            links, options = (h5py.h5p.create(kind) for kind in (h5py.h5p.LINK_CREATE, h5py.h5p.DATASET_CREATE))
            links.set_create_intermediate_group(True)
            options.set_layout(h5py.h5d.CONTIGUOUS)
            options.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)  # so that the offset is known now
            options.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            space, stored = h5py.h5s.create_simple(shape), _memory_type(h5py, dtype)
            made = h5py.h5d.create(file.id, dataset.encode(), stored, space, dcpl=options, lcpl=links)
            return Header(shape, dtype, "C", made.get_offset(), dataset)
    except FileFormatError:
        raise
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise FileFormatError(f"{path}: dataset {dataset!r} cannot be made: {error}") from None


def check_is_new(path: str, dataset: str | None) -> None:
    """Refuse an existing file to which a dataset of this name cannot be added."""
    h5py = library("h5py", ".h5 files")
    with reading(path):
        _check_format(h5py, path, path)
        with h5py.File(path, "r", locking="best-effort") as file:
            if (dataset or DEFAULT) in file:
                _check_place(h5py, path, file, dataset or DEFAULT, overwrite=False)


def _check_format(h5py: Any, path: str, copy: str) -> None:
    """Refuse a file of another format, of which there may be a copy."""
    if not h5py.is_hdf5(copy):
        raise FileFormatError(f"{path}: cannot be written: it exists, and is not an HDF5 file; choose another name")


def _check_place(h5py: Any, path: str, file: Any, dataset: str, *, overwrite: bool) -> None:
    """Refuse to replace a group, or a dataset that the caller does not want to lose."""
    if not isinstance(file[dataset], h5py.Dataset):
        raise FileFormatError(f"{path}: {dataset!r} is a group of datasets; pass another dataset=")
    if not overwrite:
        raise FileFormatError(
            f"{path}: there is a dataset {dataset!r} already; pass overwrite=True to replace it, or another dataset="
        )


def _dataset(h5py: Any, path: str | os.PathLike[str], file: Any, name: str | None) -> tuple[str, Any]:
    """The name of a dataset of an open file, and the dataset."""
    names: list[str] = []
    file.visititems(lambda key, item: names.append(key) if isinstance(item, h5py.Dataset) else None)
    shown = ", ".join(map(repr, names[:_SHOWN])) + ", ..." * (len(names) > _SHOWN) if names else "no dataset"
    if name is None:
        if len(names) != 1:
            remedy = f"; pass dataset={names[0]!r}, for example" if names else ""
            raise FileFormatError(f"{path}: expected one dataset, the file holds {shown}{remedy}")
        name = names[0]
    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        raise FileFormatError(f"{path}: there is no dataset {name!r}; the file holds {shown}")
    return name, found


def _dtype(h5py: Any, dataset: Any) -> Dtype:
    """The dtype of a dataset, which h5py reads as float32 if it is bfloat16."""
    is_bfloat16 = _memory_type(h5py, BFLOAT16).equal(dataset.id.get_type())
    return BFLOAT16 if is_bfloat16 else dataset.dtype


def _memory_type(h5py: Any, dtype: Dtype) -> Any:
    """The HDF5 type of elements as they are in memory: h5py's; bfloat16 as a number of sign, 8 and 7 bits."""
    if dtype != BFLOAT16:
        return h5py.h5t.py_create(dtype, logical=True)
    stored = h5py.h5t.NATIVE_FLOAT.copy()
    stored.set_fields(15, 7, 8, 0, 7)
    stored.set_size(2)
    stored.set_ebias(127)
    return stored

"""Matrices in folders of zarr, through the package zarr, which is imported when it is needed.

An array is a folder of chunks, each in a compressed file. A matrix is written from a layout in which each chunk belongs
to one rank, so the ranks write their chunks at the same time. Of chunks of other programs each rank reads those that
have elements of its own.

Source: Zarr core specification 3.0, "Chunk grids"; zarr-python, "User guide".
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pblas.backends.dtypes import BFLOAT16, FLOAT8, Dtype
from pblas.errors import DTypeError, FileFormatError
from pblas.layouts import Grid, MatrixDescriptor
from pblas.matrices.complete_files import Header, Part, library
from pblas.matrices.hdf5 import read_panels

if TYPE_CHECKING:
    from pblas.layouts.split import Split

_MOST, _FEWEST = 1024, 64  # rows and columns of a chunk that are cut out of a longer block
_SHOWN = 5  # names of arrays in a message


def check_dtype(dtype: Dtype) -> None:
    """Refuse elements that zarr has no type for."""
    if dtype in (BFLOAT16, *FLOAT8):
        raise DTypeError(
            f"save: zarr has no {dtype.name}; A.astype('float32').save(path) converts, .npy keeps the bits"
        )


def read_header(path: str | os.PathLike[str], name: str | None) -> Header:
    """The shape and dtype of an array in a folder."""
    zarr = library("zarr", ".zarr folders")
    if not Path(path).exists():
        raise FileFormatError(f"{path}: cannot be read: there is no such folder")
    with _translated(path, "not a folder of zarr"):
        found = zarr.open(os.fspath(path), mode="r")
        if isinstance(found, zarr.Group):
            name, found = _member(zarr, path, found, name)
        elif name is not None:
            raise FileFormatError(f"{path}: this is one array, not a group with {name!r}; leave dataset= out")
        shape, dtype = found.shape, found.dtype
    if len(shape) == 1:
        shape = (*shape, 1)
    if len(shape) != 2 or dtype.kind not in "biufc":
        raise FileFormatError(f"{path}: expected a matrix of numbers, got shape {shape}, dtype {dtype}")
    return Header(shape, dtype, "C", None, name or "/")


def read_part(part: Part) -> None:
    """Copy the elements that the rank owns."""
    zarr = library("zarr", ".zarr folders")
    if part.local.size:
        with _translated(part.path, "cannot be read"):
            array = zarr.open_array(os.fspath(part.path), mode="r", path=part.header.dataset.strip("/"))
            read_panels(array, part)


def layout(desc: MatrixDescriptor) -> MatrixDescriptor:
    """The layout from which a matrix is written: its own, or one by rows, in which each chunk belongs to one rank.

    >>> layout(MatrixDescriptor.row_wise(10, 4, 2)) == MatrixDescriptor.row_wise(10, 4, 2)
    True
    >>> layout(MatrixDescriptor(5000, 4, 3, 4, Grid.column(2))).mb
    3072
    """
    if None not in (_side(desc.rows), _side(desc.columns)):
        return desc
    m, n = desc.shape
    share = -(-m // desc.nprocs)
    rows = max(1, share if share <= _MOST else -(-share // _MOST) * _MOST)
    return MatrixDescriptor(m, n, rows, max(1, n), Grid.column(desc.nprocs), order=desc.order)


def _side(split: Split) -> int | None:
    """The rows or columns of a chunk; None if the blocks of several ranks are no multiples of such a number."""
    if split.nprocs == 1 or split.is_replicated:
        return max(1, min(split.n, _MOST))
    if split.inb is not None or split.nblocks > split.nprocs:
        return None
    if split.nb <= _MOST:
        return split.nb
    return next((size for size in range(_MOST, _FEWEST - 1, -1) if split.nb % size == 0), None)


def create(path: str, name: str | None, desc: MatrixDescriptor, dtype: Dtype, *, overwrite: bool) -> tuple[str, Header]:
    """Create an array without elements under a temporary name beside `path`."""
    zarr = library("zarr", ".zarr folders")
    check_is_new(path, name, overwrite=overwrite)
    root = Path(os.path.realpath(path))
    temporary = str(root.with_name(f".{root.name[:48]}.{secrets.token_hex(8)}.part"))
    try:
        with _translated(path, "cannot be written"):
            group = zarr.open_group(root, mode="r") if name is not None and root.exists() else None
            version = 3 if group is None else group.metadata.zarr_format
            sides = _side(desc.rows), _side(desc.columns)
            zarr.create_array(temporary, shape=desc.shape, chunks=sides, dtype=dtype, zarr_format=version)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return temporary, Header(desc.shape, dtype, "C", None, name or "/", is_folder=True)


def check_is_new(path: str, name: str | None, *, overwrite: bool = False) -> None:
    """Refuse a place where there is something else than an array of this name that may be replaced."""
    zarr = library("zarr", ".zarr folders")
    root = Path(os.path.realpath(path))
    target = root / (name or "").strip("/")
    if not root.parent.is_dir():
        raise FileFormatError(f"{path}: cannot be written: there is no folder {root.parent}; make it first")
    if root.exists() and name is not None and not _opens(zarr.open_group, root):
        raise FileFormatError(f"{path}: cannot be written: it exists, and is no group of zarr; choose another name")
    for folder in (target, *target.parents[: len(target.relative_to(root).parts)]):
        is_array = _opens(zarr.open_array, folder)
        if folder != target and is_array:
            raise FileFormatError(f"{path}: cannot be written: {folder} is an array; pass another dataset=")
        if folder == target and folder.exists() and not (is_array and overwrite):
            if is_array:
                raise FileFormatError(
                    f"{folder}: there is an array already; pass overwrite=True to replace it, or another name"
                )
            remedy = "pass dataset= to add one to it, or another name"
            raise FileFormatError(f"{folder}: cannot be written: it is no array of zarr; {remedy}")


@contextmanager
def _translated(path: str | os.PathLike[str], text: str) -> Iterator[None]:
    """A with block whose exceptions, of which zarr raises many kinds, become one kind."""
    try:
        yield
    except FileFormatError:
        raise
    except Exception as error:  # noqa: BLE001 - see above
        what = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        cause: BaseException | None = error
        while cause is not None:  # frames of zarr refer to their exception: matrices of the caller would stay
            cause.__traceback__ = None
            cause = cause.__context__
        raise FileFormatError(f"{path}: {text}: {what}") from None


def _opens(kind: Callable[..., object], folder: Path) -> bool:
    """Whether there is an array, or a group, in a folder."""
    with suppress(FileFormatError), _translated(folder, "no such thing"):
        kind(folder, mode="r")
        return True
    return False


def write_part(part: Part) -> None:
    """Write the chunks of a rank."""
    path, header, desc, rank, local, report = part
    assert header.is_folder, "made by `create`"
    with _translated(path, "cannot be written"):
        array = library("zarr", ".zarr folders").open_array(path, mode="r+")
        (rows, columns), done = desc.global_ranges(rank), 0
        for first, last in rows:
            step = _side(desc.rows) or 1
            for start in range(first, last, step):
                stop, at = min(last, start + step), 0
                for left, right in columns:  # a copy: tasks of zarr keep the array for a while
                    panel = local[done : done + stop - start, at : at + right - left]
                    array[start:stop, left:right] = panel.copy(order="C")
                    at += right - left
                done += stop - start
                if report is not None:
                    report(done / len(local))


def finish(temporary: str, path: str, header: Header) -> None:
    """Give the complete array its name; an old one is removed then."""
    zarr, root = library("zarr", ".zarr folders"), Path(os.path.realpath(path))
    name = header.dataset.strip("/")
    target, old = root / name, Path(f"{temporary}.old")
    with _translated(path, "cannot be written"):
        group = None
        if name:
            group = zarr.open_group(root, mode="a")
            if "/" in name:
                group.require_group(name.rpartition("/")[0])
        if target.exists():
            target.rename(old)
        try:
            Path(temporary).rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
        shutil.rmtree(old, ignore_errors=True)
        if group is not None and group.metadata.consolidated_metadata is not None:  # a list of all arrays
            zarr.consolidate_metadata(root)


def discard(temporary: str) -> None:
    """Remove a folder that could not be completed, if that is possible."""
    with suppress(OSError):
        shutil.rmtree(temporary)


def _member(zarr: Any, path: str | os.PathLike[str], group: Any, name: str | None) -> tuple[str, Any]:
    """The name of an array of a group, and the array."""
    names = sorted(key for key, item in group.members(max_depth=None) if isinstance(item, zarr.Array))
    shown = ", ".join(map(repr, names[:_SHOWN])) + ", ..." * (len(names) > _SHOWN) if names else "no array"
    if name is None:
        if len(names) != 1:
            remedy = f"; pass dataset={names[0]!r}, for example" if names else ""
            raise FileFormatError(f"{path}: expected one array, the folder holds {shown}{remedy}")
        name = names[0]
    if (name := name.strip("/")) not in names:
        raise FileFormatError(f"{path}: there is no array {name!r}; the folder holds {shown}")
    return name, group[name]

"""Matrices in .npy files, of which every rank reads and writes its own part only.

Source: NumPy, the .npy format (numpy.lib.format).
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from pblas.errors import ArgumentError, FileFormatError
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.scatter_gather import holds_first_copy, part_of, put_part

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array


@dataclass(frozen=True, slots=True)
class Header:
    """What stands at the start of a .npy file that holds a matrix.

    Args:
        shape: rows and columns.
        dtype: of the elements, as stored.
        order: "F" or "C".
        offset: bytes before the first element.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    order: str
    offset: int


def checked_path(verb: str, path: object) -> str:
    """The path of a file as text.

    Raises:
        ArgumentError: no path, or one that no file can have.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(text := os.fspath(path), str) or "\0" in text:
        raise ArgumentError(f"{verb}: path must be a str or a pathlib.Path, got {path!r}")
    return text


def read_header(path: str | os.PathLike[str]) -> Header:
    """Header of a .npy file that holds a matrix.

    Raises:
        FileFormatError: no such file, another format, not a matrix, or fewer bytes than the header promises.
    """
    try:
        if Path(path).is_fifo():  # opening it would wait for a writer
            raise FileFormatError(f"{path}: cannot be read: it is a pipe; every rank reads its own part of a file")
        with Path(path).open("rb") as file:
            version = npy.read_magic(file)
            if version not in ((1, 0), (2, 0)):
                raise FileFormatError(f"{path}: .npy format version {version} is not known; save it with numpy.save")
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(file)
            offset, size = file.tell(), os.fstat(file.fileno()).st_size
    except FileFormatError:
        raise
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise FileFormatError(f"{path}: not a .npy file: {error}") from None
    if len(shape) != 2 or dtype.hasobject:
        raise FileFormatError(f"{path}: expected a matrix of numbers, got shape {shape}, dtype {dtype}")
    needed = offset + shape[0] * shape[1] * dtype.itemsize
    if size < needed:
        raise FileFormatError(f"{path}: truncated: {needed} bytes expected, {size} found; write the file anew")
    return Header(shape, dtype, "F" if fortran else "C", offset)


def read_part(path: str | os.PathLike[str], header: Header, desc: MatrixDescriptor, rank: int, local: Array) -> None:
    """Copy the elements that `rank` owns from a file into `local`, converted to its dtype.

    Raises:
        FileFormatError: the file cannot be read.
    """
    if not local.size:
        return
    try:
        stored = np.memmap(path, header.dtype, "r", header.offset, header.shape, order=header.order)  # type: ignore[call-overload]
        part = part_of(stored, desc, rank)
        if header.dtype.kind == "V":  # a dtype of ml_dtypes, which .npy files keep as raw bytes
            part = part.view(local.dtype)
        with np.errstate(all="ignore"):  # as in `Runtime.collective_section`
            local[...] = part
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # the file has become shorter since its header was read
        raise FileFormatError(f"{path}: cannot be read: {error}") from None


def destination(path: str | os.PathLike[str]) -> Path:
    """Where a file of this name is written: a link stays, and the file that it names is replaced.

    Raises:
        FileFormatError: a folder, a device or a pipe has the name, and is not to be replaced.
    """
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        raise FileFormatError(f"{path}: cannot be written: this name is not that of a file; choose another one")
    return place


def create(path: str | os.PathLike[str], shape: tuple[int, int], dtype: np.dtype[Any], order: str) -> str:
    """Make a file of the right size under a temporary name beside `path`, and return the name.

    Raises:
        FileFormatError: the folder is missing or not writable, the disk is too small, or the name is not a file's.
    """
    temporary = ""
    try:
        temporary, file = _begin(path)
        with file:
            header = {"descr": npy.dtype_to_descr(_stored(dtype)), "fortran_order": order == "F", "shape": shape}
            npy.write_array_header_1_0(file, header)
            file.flush()
            nbytes = shape[0] * shape[1] * dtype.itemsize
            if nbytes and hasattr(os, "posix_fallocate"):  # the disk's refusal comes here, not as a SIGBUS later
                os.posix_fallocate(file.fileno(), file.tell(), nbytes)
            os.ftruncate(file.fileno(), file.tell() + nbytes)
    except OSError as error:
        discard(temporary)
        raise FileFormatError(f"{path}: cannot be written: {error.strerror or error}") from None
    return temporary


def write(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file, which appears under its name when it is complete.

    Raises:
        FileFormatError: the folder is missing or not writable, the disk is too small, or the name is not a file's.
    """
    temporary = ""
    try:
        temporary, file = _begin(path)
        with file:
            file.write(content)
        finish(temporary, path)
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        discard(temporary)


def unused(path: str | os.PathLike[str]) -> str:
    """`path`, or if there is such a file `path` with a number before its suffix; an empty file has the name then.

    Raises:
        FileFormatError: no file can be made there.
    """
    wanted = Path(path)
    for number in count():
        free = wanted.with_name(f"{wanted.stem}.{number}{wanted.suffix}") if number else wanted
        try:
            with free.open("x"):
                return str(free)
        except FileExistsError:
            continue
        except OSError as error:
            raise FileFormatError(f"{path}: cannot be written: {error.strerror or error}") from None
    raise AssertionError("numbers do not end")


def _begin(path: str | os.PathLike[str]) -> tuple[str, BinaryIO]:
    """The name of a temporary file beside `path`, and the file, with the permissions of new files."""
    place = destination(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{place.name}.", suffix=".part", dir=place.parent)
    os.fchmod(handle, 0o666 & ~_umask())
    return temporary, os.fdopen(handle, "wb")


def write_part(temporary: str, desc: MatrixDescriptor, rank: int, local: Array) -> None:
    """Write the elements that `rank` speaks for into the file made by `create`.

    Raises:
        FileFormatError: the file cannot be written.
    """
    if not local.size or not holds_first_copy(desc, rank):
        return
    try:
        header = read_header(temporary)
        stored = np.memmap(temporary, header.dtype, "r+", header.offset, header.shape, order=header.order)  # type: ignore[call-overload]
        put_part(stored, desc, rank, local.view(header.dtype) if header.dtype.kind == "V" else local)
        stored.flush()
    except OSError as error:
        raise FileFormatError(f"{temporary}: cannot be written: {error.strerror or error}") from None


def finish(temporary: str, path: str | os.PathLike[str]) -> None:
    """Give the complete file its final name, in one step.

    Raises:
        FileFormatError: a folder has the name, or the disk refuses.
    """
    try:
        with Path(temporary).open("rb") as file:
            os.fsync(file.fileno())
        Path(temporary).replace(os.path.realpath(path))
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be written: {error.strerror or error}") from None


def discard(temporary: str) -> None:
    """Remove a file that could not be completed."""
    if temporary:
        Path(temporary).unlink(missing_ok=True)


def _stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype as numpy.save writes it: ml_dtypes' ones as raw bytes."""
    return np.dtype(f"V{dtype.itemsize}") if dtype.name == "bfloat16" else dtype


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

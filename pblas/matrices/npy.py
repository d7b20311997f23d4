"""Matrices in .npy files; every rank reads and writes only the elements that it owns.

Source: NumPy, the .npy format (numpy.lib.format).
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
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


_MOST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a .npy file that holds a matrix.

    Args:
        shape: rows and columns (global).
        dtype: dtype of the stored elements (global).
        order: storage order, "F" or "C" (global).
        offset: bytes before the first element.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    order: str
    offset: int


def checked_path(verb: str, path: object) -> str:
    """A path as text.

    Args:
        verb: name of the call, for messages.
        path: the argument of the user.

    Raises:
        ArgumentError: not a path, or a path with a zero byte.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(text := os.fspath(path), str) or "\0" in text:
        raise ArgumentError(f"{verb}: path must be a str or a pathlib.Path, got {path!r}")
    return text


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read the header of a .npy file that holds a matrix.

    Raises:
        FileFormatError: no such file, another format, not a matrix, or a file that is too short for its header.
    """
    try:
        if Path(path).is_fifo():  # opening it would wait for a writer
            raise FileFormatError(f"{path}: cannot be read: it is a pipe; pass a file, which all ranks can read")
        with Path(path).open("rb") as file:
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
    except FileFormatError:
        raise
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror or error}") from None
    except Exception as error:  # noqa: BLE001 - Python's parser raises many kinds for a header that is not NumPy's
        raise FileFormatError(f"{path}: not a .npy file: {type(error).__name__}: {error}") from None
    if not all(type(extent) is int and 0 <= extent <= _MOST for extent in shape):
        raise FileFormatError(f"{path}: not a .npy file: its shape is not of integers in 0..2**63 - 1")
    if len(shape) != 2 or dtype.hasobject:
        raise FileFormatError(f"{path}: expected a matrix of numbers, got shape {shape}, dtype {dtype}")
    needed = offset + shape[0] * shape[1] * dtype.itemsize
    if size < needed:
        raise FileFormatError(f"{path}: truncated: expected {needed} bytes, got {size}; write the file again")
    return Header(shape, dtype, "F" if fortran else "C", offset)


def read_part(path: str | os.PathLike[str], header: Header, desc: MatrixDescriptor, rank: int, local: Array) -> None:
    """Copy the elements that `rank` owns from a file into `local`, converted to its dtype.

    Args:
        path: path of the file (global).
        header: its header (global).
        desc: distribution, of the shape in the header (global).
        rank: this rank (local).
        local: this rank's local array, written (local).

    Raises:
        FileFormatError: the file cannot be read.
    """
    if not local.size:
        return
    try:
        stored = np.memmap(path, header.dtype, "r", header.offset, header.shape, order=header.order)  # type: ignore[call-overload]
        part = part_of(stored, desc, rank)
        if header.dtype.kind == "V":  # .npy files store the dtypes of ml_dtypes as raw bytes
            part = part.view(local.dtype)
        with np.errstate(all="ignore"):  # as in `Runtime.collective_section`
            local[...] = part
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # the file was truncated after its header was read
        raise FileFormatError(f"{path}: cannot be read: {error}") from None


def destination(path: str | os.PathLike[str]) -> Path:
    """The path that is written for a name: symbolic links are followed, so a link is kept and its target replaced.

    Raises:
        FileFormatError: a folder, a device or a pipe has the name; it is not replaced.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise FileFormatError(f"{path}: cannot be written: a folder, device or pipe has this name; choose another one")
    return target


def create(path: str | os.PathLike[str], shape: tuple[int, int], dtype: np.dtype[Any], order: str) -> str:
    """Create a .npy file of the right size under a temporary name in the folder of `path`, and return that name.

    Args:
        path: final path of the file.
        shape: rows and columns of the matrix (global).
        dtype: dtype of the matrix (global).
        order: storage order in the file, "F" or "C" (global).

    Raises:
        FileFormatError: the folder is missing or not writable, the disk is too small, or a folder, device or pipe has
            the name.
    """
    temporary = ""
    try:
        temporary, file = _begin(path)
        with file:
            header = {"descr": npy.dtype_to_descr(_stored(dtype)), "fortran_order": order == "F", "shape": shape}
            npy.write_array_header_1_0(file, header)
            file.flush()
            nbytes = shape[0] * shape[1] * dtype.itemsize
            if nbytes and hasattr(os, "posix_fallocate"):  # a full disk raises here; memmap would get a SIGBUS later
                os.posix_fallocate(file.fileno(), file.tell(), nbytes)
            os.ftruncate(file.fileno(), file.tell() + nbytes)
    except OSError as error:
        discard(temporary)
        raise FileFormatError(f"{path}: cannot be written: {error.strerror or error}") from None
    return temporary


def write(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file, which gets its name when it is complete.

    Raises:
        FileFormatError: the folder is missing or not writable, the disk is too small, or a folder, device or pipe has
            the name.
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
    """A path that no file has yet: `path`, or `path` with a number before its suffix. An empty file is created there.

    Raises:
        FileFormatError: no file can be created there.
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
    raise AssertionError("count() never ends")


def _begin(path: str | os.PathLike[str]) -> tuple[str, BinaryIO]:
    """The name of a temporary file in the folder of `path`, and the open file, with the permissions of new files."""
    target = destination(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    os.fchmod(handle, 0o666 & ~_umask())
    return temporary, os.fdopen(handle, "wb")


def write_part(temporary: str, desc: MatrixDescriptor, rank: int, local: Array) -> None:
    """Write the elements of `rank` into the file made by `create`; of replicated elements the first copy only.

    Args:
        temporary: name of the file, from `create` (global).
        desc: distribution (global).
        rank: this rank (local).
        local: this rank's local array (local).

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
    """Rename the complete file to its final name, in one step.

    Raises:
        FileFormatError: a folder has the name, or the disk reports an error.
    """
    try:
        with Path(temporary).open("rb") as file:
            os.fsync(file.fileno())
        Path(temporary).replace(os.path.realpath(path))
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be written: {error.strerror or error}") from None


def discard(temporary: str) -> None:
    """Remove a file that could not be completed, if that is possible."""
    if temporary:
        with suppress(OSError):  # the error that is on its way says more
            Path(temporary).unlink(missing_ok=True)


def _stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype as numpy.save writes it: bfloat16 as raw bytes."""
    return np.dtype(f"V{dtype.itemsize}") if dtype.name == "bfloat16" else dtype


def _umask() -> int:
    """The file mode creation mask of this process, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""Files that get their name when they are complete: an error leaves no new file, and an old one unchanged."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pblas.errors import ArgumentError, FileFormatError


@dataclass(frozen=True, slots=True)
class Header:
    """The shape, dtype and position of a matrix in a file."""

    shape: tuple[int, int]  # rows and columns (global)
    dtype: np.dtype[Any]  # dtype of the stored elements (global)
    order: str  # storage order, "F" or "C" (global)
    offset: int | None  # bytes before the first element; None if the elements are not one contiguous piece (global)
    dataset: str = ""  # name of the matrix in the file; "" in a format of one matrix (global)

    @property
    def is_raw(self) -> bool:
        """Whether the elements are bytes whose dtype the file does not tell."""
        return self.dtype.kind == "V" and self.dtype.names is None and self.dtype.name != "bfloat16"


def checked_path(verb: str, path: object) -> str:
    """A path as text."""
    if not isinstance(path, str | os.PathLike) or not isinstance(text := os.fspath(path), str) or "\0" in text:
        raise ArgumentError(f"{verb}: path must be a str or a pathlib.Path, got {path!r}")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as caught:
        raise ArgumentError(
            f"{verb}: path must be text that the file system can store, got {path!r}: {caught}"
        ) from None
    return text


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A with block that reads a file, whose errors of the file system become one kind."""
    try:
        if Path(path).is_fifo():  # opening it would wait for a writer
            raise FileFormatError(f"{path}: cannot be read: it is a pipe; pass a file, which all ranks can read")
        with Path(path).open("rb") as file:
            yield file
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror or error}") from None


def destination(path: str | os.PathLike[str]) -> Path:
    """The path that is written for a name: symbolic links are followed, so a link is kept and its target replaced."""
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise FileFormatError(f"{path}: cannot be written: the link leads to itself; remove it, or choose another name")
    if os.fspath(path).endswith(os.sep):
        raise FileFormatError(f"{path}: cannot be written: it is the name of a folder; choose another one")
    if target.exists() and not target.is_file():
        raise FileFormatError(f"{path}: cannot be written: a folder, device or pipe has this name; choose another one")
    return target


def begin(path: str | os.PathLike[str]) -> tuple[str, BinaryIO]:
    """The name of a temporary file in the folder of `path`, and the open file, with the permissions of new files."""
    target = destination(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    os.fchmod(handle, 0o666 & ~_umask())
    return temporary, os.fdopen(handle, "wb")


def write(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file, which gets its name when it is complete."""
    temporary = ""
    try:
        temporary, file = begin(path)
        with file:
            file.write(content)
        finish(temporary, path)
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        discard(temporary)


def unused(path: str | os.PathLike[str]) -> str:
    """A path that no file has yet: `path`, or `path` with a number before its suffix.

    An empty file is created there.
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


def finish(temporary: str, path: str | os.PathLike[str]) -> None:
    """Rename the complete file to its final name, in one step."""
    try:
        with Path(temporary).open("rb") as file:
            os.fsync(file.fileno())
        Path(temporary).replace(destination(path))
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be written: {error.strerror or error}") from None


def discard(temporary: str) -> None:
    """Remove a file that could not be completed, if that is possible."""
    if temporary:
        with suppress(OSError):  # the error that is on its way says more
            Path(temporary).unlink(missing_ok=True)


def _umask() -> int:
    """The file mode creation mask of this process, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask

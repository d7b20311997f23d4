"""Files that get their name when they are complete: an error leaves no new file, and an old one unchanged."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from pblas.errors import ArgumentError, BackendError, FileFormatError

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.runtime.progress import StageReport

_SHOWN = 48  # letters of a file's name in that of its temporary file: it may be as long as a name can be
_ACCESS_LIST = "system.posix_acl_access"


@dataclass(frozen=True, slots=True)
class Header:
    """The shape, dtype and position of a matrix in a file."""

    shape: tuple[int, int]  # rows and columns (global)
    dtype: Dtype  # dtype of the stored elements (global)
    order: str  # storage order, "F" or "C" (global)
    offset: int | None  # bytes before the first element; None if the elements are not one contiguous piece (global)
    dataset: str = ""  # name of the matrix in the file; "" in a format of one matrix (global)
    first: tuple[int, int] = (0, 0)  # row and column of the first element that is read (global)
    is_folder: bool = False  # whether it is a new array of zarr, in a folder (global)

    @property
    def is_raw(self) -> bool:
        """Whether the elements are bytes whose dtype the file does not tell."""
        return self.dtype.kind == "V" and self.dtype.names is None and self.dtype.name != "bfloat16"


class Part(NamedTuple):
    """The elements of a matrix in a file that a rank owns, and its memory for them."""

    path: str | os.PathLike[str]  # of the file (global)
    header: Header  # of the matrix there (global)
    desc: MatrixDescriptor  # of the matrix in memory (global)
    rank: int  # that reads or writes (local)
    local: Array  # its elements, converted to the dtype of the matrix (local)
    report: StageReport = None  # is told how much has been moved (local)


def checked_path(opname: str, path: object) -> str:
    """A path as text."""
    if not isinstance(path, str | os.PathLike) or not isinstance(text := os.fspath(path), str) or "\0" in text:
        raise ArgumentError(f"{opname}: path must be a str or a pathlib.Path, got {path!r}")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as caught:
        raise ArgumentError(
            f"{opname}: path must be text that the file system can store, got {path!r}: {caught}"
        ) from None
    return text


def library(name: str, what: str) -> Any:
    """A module that files of a format need."""
    try:
        return import_module(name)
    except ImportError as caught:
        raise BackendError(f"{what} need {name}: {caught}; pip install {name}, or use a .npy file") from None


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A with block that reads a file, whose errors of the file system become one kind."""
    if os.fspath(path).endswith(os.sep):  # which Path leaves out
        raise FileFormatError(f"{path}: cannot be read: it is the name of a folder; pass that of a file")
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
    """The name of a temporary file in the folder of `path`, and the open file; others may not read it before its end.

    A new file has the permissions of new files. Of an existing one the permissions follow at the end.
    """
    target = destination(path)
    exists = target.exists()
    if exists:
        target.open("r+b").close()  # a file that is write-protected is refused before the work
    temporary = str(target.with_name(f".{target.name[:_SHOWN]}.{secrets.token_hex(8)}.part"))
    handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600 if exists else 0o666)
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
    """Rename the complete file to its final name, in one step.

    A file of that name is replaced by one of equal owner and permissions. If a new file cannot be its equal, because it
    has further names (hard links), an access control list, or an owner whom this process cannot name, then its content
    is replaced.
    """
    try:
        with Path(temporary).open("rb") as file:
            os.fsync(file.fileno())
        target = destination(path)
        if not target.exists() or _made_equal(temporary, target):
            Path(temporary).replace(target)
        else:
            _replace_content(temporary, target)
            discard(temporary)
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be written: {error.strerror or error}") from None


def _made_equal(temporary: str, target: Path) -> bool:
    """Give a new file the owner and permissions of another; False if it cannot take its place."""
    new, old = Path(temporary).stat(), target.stat()
    if old.st_nlink > 1 or (hasattr(os, "listxattr") and _ACCESS_LIST in os.listxattr(target)):
        return False
    try:
        if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
            os.chown(temporary, old.st_uid, old.st_gid)
        Path(temporary).chmod(stat.S_IMODE(old.st_mode))  # after the owner, whose change resets bits
    except PermissionError:
        return False
    return True


def _replace_content(temporary: str, target: Path) -> None:
    """Copy a complete file into another, which is unchanged if there is no room."""
    with Path(temporary).open("rb") as source, target.open("r+b") as file:
        size, old = (os.fstat(opened.fileno()).st_size for opened in (source, file))
        if size > old and hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(file.fileno(), old, size - old)
            except OSError:
                file.truncate(old)
                raise
        shutil.copyfileobj(source, file, 1 << 20)
        file.truncate(size)
        file.flush()
        os.fsync(file.fileno())


def discard(temporary: str) -> None:
    """Remove a file that could not be completed, if that is possible."""
    if temporary:
        with suppress(OSError):  # the error that is on its way says more
            Path(temporary).unlink(missing_ok=True)

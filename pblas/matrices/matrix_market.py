"""Matrices in text files of the Matrix Market's format for arrays, .mtx.

Each line has one element, by columns. pblas writes lines of one length, so that every rank writes its own elements.

Source: Boisvert, Pozo, Remington, The Matrix Market Exchange Formats, NISTIR 5935 (1996).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from pblas.errors import FileFormatError
from pblas.matrices.complete_files import Header, Part, reading
from pblas.matrices.scatter_gather import global_indices

if TYPE_CHECKING:
    import os

    from pblas.backends.dtypes import Array, Dtype

_FIELDS = {"real": np.dtype("float64"), "integer": np.dtype("float64"), "complex": np.dtype("complex128")}
_PANEL_NBYTES = 4 << 20  # of text that is read at a time
_WIDTH = 25  # characters of a number, as "-1.2345678901234567e-308"


def read_header(path: str | os.PathLike[str]) -> Header:
    """The shape, dtype and place of the matrix."""
    with reading(path) as file:
        words = file.readline(200).decode("latin-1").lower().split()
        if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"] or words[3] not in _FIELDS:
            raise FileFormatError(f"{path}: not a Matrix Market file of real, integer or complex numbers")
        if words[2] != "array" or words[4] != "general":
            raise FileFormatError(
                f"{path}: expected 'array' and 'general', got {words[2]!r} and {words[4]!r}; read it by "
                f"scipy.io.mmread, and pass the dense array to from_global"
            )
        line = b"%"
        while line.startswith(b"%") or (line and not line.strip()):
            line = file.readline()
        sizes = line.split()
        if len(sizes) != 2 or not all(size.isdigit() for size in sizes):
            raise FileFormatError(f"{path}: expected a line of rows and columns, got {line[:80]!r}")
        return Header((int(sizes[0]), int(sizes[1])), _FIELDS[words[3]], "F", file.tell())


def read_part(part: Part) -> None:
    """Copy the elements that the rank owns from the file; every rank reads the whole text."""
    path, header, desc, rank, local, report = part
    assert header.offset is not None, "the text follows the header"
    (m, n), done = header.shape, 0
    places = []
    for size, first, indices in zip((m, n), header.first, global_indices(desc, rank), strict=True):
        places.append(np.full(size, -1))
        places[-1][indices + first] = np.arange(indices.size)
    with reading(path) as file:
        file.seek(header.offset)
        while lines := file.readlines(_PANEL_NBYTES):
            try:
                values = np.array(b" ".join(lines).split(), np.float64).view(header.dtype)
            except ValueError as error:
                raise FileFormatError(f"{path}: not a line of numbers: {error}") from None
            index = np.arange(done, done + values.size)
            done += values.size
            if done > m * n:
                break
            i_loc, j_loc = places[0][index % m], places[1][index // m]
            own = (i_loc >= 0) & (j_loc >= 0)
            local[i_loc[own], j_loc[own]] = values[own]
            if report is not None:
                report(done / (m * n))
    if done != m * n:
        raise FileFormatError(f"{path}: expected {m * n} elements, got {'more' if done > m * n else done}")


def write_header(file: BinaryIO, shape: tuple[int, int], dtype: Dtype) -> Header:
    """Write the header of a new file; the elements are lines of one length."""
    is_complex = dtype.kind == "c"
    field = "complex" if is_complex else "real"
    file.write(f"%%MatrixMarket matrix array {field} general\n{shape[0]} {shape[1]}\n".encode())
    file.flush()
    return Header(shape, np.dtype(f"S{(_WIDTH + 1) * (2 if is_complex else 1)}"), "F", file.tell())


def lines(local: Array) -> Array:
    """The elements as lines of text."""
    if local.dtype.kind == "c":
        return np.char.add(_numbers(local.real, " "), _numbers(local.imag, "\n"))
    return _numbers(local, "\n")


def _numbers(x: Array, end: str) -> Array:
    return np.char.mod(f"%{_WIDTH}.16e{end}", x.astype(np.float64)).astype(f"S{_WIDTH + 1}")

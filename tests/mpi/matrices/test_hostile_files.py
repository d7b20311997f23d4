"""A corpus of .npy headers and of paths that no matrix has: each one is refused on every rank, by one clear error."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import ArgumentError, Context, DTypeError, FileFormatError, MatrixDescriptor
from tests.common.ranks import COMM, check_product, few, outcome_of, raises_on_all_ranks

pytestmark = [pytest.mark.mpi, few]

MAGIC = b"\x93NUMPY"


def framed(header: str | bytes, version: bytes = b"\x01\x00", length: int | None = None, data: int = 1000) -> bytes:
    """A file with a header, and then zeros."""
    text = header.encode() if isinstance(header, str) else header
    size = len(text) if length is None else length
    return MAGIC + version + struct.pack("<H" if version[0] == 1 else "<I", size) + text + bytes(data)


def shaped(shape: str, descr: str = "'<f8'", order: str = "False") -> bytes:
    """A file whose header has these values, as Python text."""
    return framed(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}")


HEADERS: dict[str, bytes] = {
    # what NumPy's parser of literals raises many kinds of exceptions for
    "no text": framed(""),
    "spaces": framed(" " * 64),
    "a comment": framed("# descr"),
    "a number": framed("7"),
    "a list": framed("[('descr', '<f8')]"),
    "a set": framed("{'descr', 'fortran_order', 'shape'}"),
    "None": framed("None"),
    "an empty dictionary": framed("{}"),
    "a list as a key": framed("{[]: 1}"),
    "a dictionary as a key": framed("{{}: 1}"),
    "a number as a key": framed("{1: 2, 'descr': '<f8', 'fortran_order': False, 'shape': (8, 7)}"),
    "a key too few": framed("{'descr': '<f8', 'shape': (8, 7)}"),
    "a key too many": framed("{'descr': '<f8', 'fortran_order': False, 'shape': (8, 7), 'x': 1}"),
    "an open bracket": framed("(" * 5000),
    "an open brace": framed("{'descr': '<f8', 'fortran_order': False, 'shape': (8, 7)"),
    "an open quote": framed("{'descr': '<f8"),
    "nested lists": framed("[" * 90 + "]" * 90),
    "a call": framed("{'descr': '<f8', 'fortran_order': False, 'shape': tuple([8, 7])}"),
    "an import": framed("__import__('os').getcwd()"),
    "a comprehension": framed("{x: x for x in 'ab'}"),
    "two statements": framed("1; 2"),
    "zero bytes": framed(bytes(64)),
    "zero bytes after the text": framed(b"{'descr': '<f8', 'fortran_order': False, 'shape': (8, 7)}" + bytes(8)),
    "bytes that are no text": framed(bytes(range(128, 256))),
    "a line feed in a key": framed("{'descr\n': '<f8'}"),
    "a tab before it": framed("\t{'descr': '<f8', 'fortran_order': False, 'shape': (8, 7)}\n\tx"),
    "12000 characters": framed("{'descr': '<f8', 'fortran_order': False, 'shape': (8, 7)" + " " * 12000 + "}"),
    # shapes
    "9000 signs": shaped(f"({'-' * 9000}8, 7)"),
    "4300 digits": shaped(f"({'9' * 4300}, {'9' * 4300})"),
    "4301 digits": shaped(f"({'9' * 4301}, 7)"),
    "truth": shaped("(True, True)"),
    "a truth": shaped("(8, False)"),
    "a negative size": shaped("(-8, 7)"),
    "two negative sizes": shaped("(-8, -7)"),
    "a size of 2**63": shaped(f"({2**63}, 0)"),
    "sizes whose product is 2**64": shaped(f"({2**32}, {2**32})"),
    "sizes of 2**62": shaped(f"({2**62}, {2**62})"),
    "a size that is a fraction": shaped("(8.0, 7)"),
    "a size that is text": shaped("('8', '7')"),
    "a size that is nothing": shaped("(8, None)"),
    "a complex size": shaped("(8j, 7)"),
    "sizes in a list": shaped("[8, 7]"),
    "sizes in text": shaped("'87'"),
    "no size": shaped("()"),
    "three sizes": shaped("(2, 4, 7)"),
    "a thousand sizes": shaped(f"({'1, ' * 1000})"),
    "an infinite size": shaped("(1e999, 7)"),
    # orders and dtypes
    "an order that is a number": shaped("(8, 7)", order="1"),
    "an order that is text": shaped("(8, 7)", order="'F'"),
    "no order": shaped("(8, 7)", order="None"),
    "no dtype": shaped("(8, 7)", "None"),
    "an unknown dtype": shaped("(8, 7)", "'<f3'"),
    "an empty dtype": shaped("(8, 7)", "''"),
    "a dtype that is a number": shaped("(8, 7)", "8"),
    "a dtype that is a tuple": shaped("(8, 7)", "('<f8', (2,))"),
    "a dtype that is a list of numbers": shaped("(8, 7)", "[1, 2]"),
    "records without a dtype": shaped("(8, 7)", "[('x',)]"),
    "records of one name twice": shaped("(8, 7)", "[('x', '<f4'), ('x', '<f4')]"),
    "nested records": shaped("(8, 7)", "[('x', [('y', '|O')])]"),
    "Python's objects": shaped("(8, 7)", "'|O'"),
    "a dtype with a sign": shaped("(8, 7)", "'<-f8'"),
    "a dtype of 2**31 bytes": shaped("(8, 7)", f"'|V{2**31}'"),
    # the frame around the header
    "half the magic": MAGIC[:4],
    "another magic": b"\x93NUMPX\x01\x00",
    "version 0.0": framed("", b"\x00\x00"),
    "version 1.1": framed("{}", b"\x01\x01"),
    "version 255.255": framed("{}", b"\xff\xff"),
    "version 2 with a size of 4 GiB": framed("{}", b"\x02\x00", length=2**32 - 1),
    "a size beyond the end": framed("{}", length=65535, data=0),
    "no size of the header": MAGIC + b"\x01\x00",
    "half a size of the header": MAGIC + b"\x02\x00\x10\x00",
    "a zip file": b"PK\x03\x04" + bytes(200),
    "an HDF5 file": b"\x89HDF\r\n\x1a\n" + bytes(200),
}


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_a_hostile_header_is_refused_on_every_rank(name: str, ctx: Context, tmp_path: Path) -> None:
    path = COMM.bcast(tmp_path) / "hostile.npy"
    if COMM.rank == 0:
        path.write_bytes(HEADERS[name])
    COMM.Barrier()
    for desc in (None, MatrixDescriptor.row_wise(8, 7, ctx.nprocs)):
        raises_on_all_ranks(FileFormatError, "hostile.npy: ", partial(ctx.load, path, desc, "float64"))
    check_product(ctx)


@pytest.mark.parametrize("descr", ["'|V0'", "'<U0'", "'<M8'", "'<U3'", "[('x', '<f4')]", "'|V8'"])
def test_a_header_of_what_is_no_number_is_refused_on_every_rank(descr: str, ctx: Context, tmp_path: Path) -> None:
    path = COMM.bcast(tmp_path) / "hostile.npy"
    if COMM.rank == 0:
        path.write_bytes(shaped("(8, 7)", descr))
    COMM.Barrier()
    raises_on_all_ranks(DTypeError, "hostile.npy", partial(ctx.load, path))
    check_product(ctx)


class Unwilling:
    """A path that is no text."""

    def __fspath__(self) -> Any:
        return 7


PATHS: dict[str, tuple[type[Exception], Callable[[Path], Any]]] = {
    "no text": (ArgumentError, lambda _: 7),
    "bytes": (ArgumentError, lambda folder: os.fsencode(folder / "x.npy")),
    "a zero byte": (ArgumentError, lambda folder: f"{folder}/a\0.npy"),
    "no name": (FileFormatError, lambda _: ""),
    "the folder": (FileFormatError, lambda folder: folder),
    "a slash": (FileFormatError, lambda folder: f"{folder}/x.npy/"),
    "a file as a folder": (FileFormatError, lambda folder: folder / "x.npy" / "y.npy"),
    "a missing folder": (FileFormatError, lambda folder: folder / "none" / "x.npy"),
    "too long a name": (FileFormatError, lambda folder: folder / ("x" * 300 + ".npy")),
    "too long a path": (FileFormatError, lambda folder: folder / ("x/" * 3000 + "x.npy")),
    "a link to itself": (FileFormatError, lambda folder: folder / "itself.npy"),
    "a link to nothing": (FileFormatError, lambda folder: folder / "nothing.npy"),
    "half a character": (FileFormatError, lambda folder: f"{folder}/\udcff.npy"),
    "no character": (ArgumentError, lambda folder: f"{folder}/\ud800.npy"),
    "a path that is no path": (Exception, lambda _: Unwilling()),
}


def prepared(folder: Path) -> Path:
    """**Collective.** The folder of rank 0, with links in it."""
    folder = COMM.bcast(folder)
    if COMM.rank == 0:
        np.save(folder / "x.npy", np.ones((8, 7)))
        (folder / "itself.npy").symlink_to(folder / "itself.npy")
        (folder / "nothing.npy").symlink_to(folder / "none" / "x.npy")
    COMM.Barrier()
    return folder


@pytest.mark.parametrize("name", PATHS)
def test_a_hostile_path_is_refused_on_every_rank(name: str, ctx: Context, tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    kind, make = PATHS[name]
    outcomes = COMM.allgather(outcome_of(lambda: ctx.load(make(folder))))
    assert len(set(outcomes)) == 1, outcomes
    assert kind is Exception or outcomes[0][0] == kind.__name__, outcomes
    assert issubclass(getattr(pblas, outcomes[0][0]), pblas.PblasError), outcomes
    check_product(ctx)


@pytest.mark.parametrize("name", [name for name in PATHS if name != "half a character"])
def test_saving_to_a_hostile_path_is_refused_on_every_rank(name: str, ctx: Context, tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    before = sorted(folder.iterdir())
    COMM.Barrier()
    _, make = PATHS[name]
    a = ctx.ones((8, 7))
    outcomes = COMM.allgather(outcome_of(lambda: a.save(make(folder))))
    assert len(set(outcomes)) == 1, outcomes
    assert issubclass(getattr(pblas, outcomes[0][0]), pblas.PblasError), outcomes
    assert sorted(folder.iterdir()) == before
    assert (folder / "itself.npy").is_symlink()
    check_product(ctx)

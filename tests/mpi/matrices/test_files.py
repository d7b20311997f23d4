"""load and save: every rank reads and writes its part of a standard .npy file; a failed save changes no file."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import stat
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import scipy.io

from pblas import (
    ArgumentError,
    Context,
    DescriptorError,
    DTypeError,
    FileFormatError,
    Grid,
    MatrixDescriptor,
    MismatchError,
    PblasError,
)
from pblas.matrices import files
from pblas.matrices.complete_files import Part
from pblas.runtime.runtime import checked_dtype
from tests.common.gauge import NAMES
from tests.common.ranks import (
    COMM,
    check_product,
    collected,
    culprits,
    each_culprit,
    entries,
    layouts,
    one_host,
    outcome_of,
    raises_on_all_ranks,
    same_on_all_ranks,
    some_wrong,
)

pytestmark = pytest.mark.mpi

TIMEOUT = 20.0
Order = Literal["F", "C"]
ORDERS: tuple[Order, Order] = ("F", "C")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One new folder for all ranks."""
    return COMM.bcast(tmp_path, 0)


def on_one_rank(act: Callable[[], object]) -> None:
    """**Collective.** Do something once, before any rank goes on."""
    COMM.Barrier()
    if COMM.rank == 0:
        act()
    COMM.Barrier()


def contents(folder: Path) -> list[str]:
    """**Collective.** Names in a folder, hidden ones too."""
    COMM.Barrier()
    names = sorted(path.name for path in folder.iterdir())
    COMM.Barrier()
    return names


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("order", ORDERS)
def test_a_saved_matrix_is_a_standard_file_and_loads_again(
    ctx: Context, folder: Path, dtype: str, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = checked_dtype("test", dtype)
    for m, n in ((8, 7), (1, 9), (0, 4)):
        array = entries(m, n, checked)
        for number, desc in enumerate(layouts(m, n, order)):
            for name, nbytes in (("_GAP_NBYTES", 1 << 14), ("_WRITTEN_NBYTES", 64 << 20)):
                monkeypatch.setattr(files, name, 24 if number % 2 else nbytes)  # long and short pieces of lines
            path = folder / f"{number}.npy"
            ctx.from_global(array, desc, None).save(path)
            raw = np.load(path)
            assert raw.shape == (m, n)
            assert raw.flags.f_contiguous if order == "F" else raw.flags.c_contiguous
            assert np.array_equal(raw.view(checked) if dtype == "bfloat16" else raw, array)
            if dtype != "bfloat16":
                assert raw.dtype == checked
            others = list(layouts(m, n, ORDERS[number % 2]))
            again = ctx.load(path, others[(number + m) % len(others)], dtype if dtype == "bfloat16" else None)
            assert again.dtype == checked
            assert np.array_equal(collected(again), array)
    assert not [name for name in contents(folder) if name.endswith(".part")]


def test_views_are_saved_with_their_values(ctx: Context, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_GAP_NBYTES", 1)
    array = entries(8, 7, np.complex128)
    for desc in layouts(8, 7, "F"):
        a = ctx.from_global(array, desc, None)
        for view, expected in ((a.T, array.T), (a.H, array.conj().T), (a[1:6, 2:], array[1:6, 2:])):
            view.save(folder / "view.npy")
            assert np.array_equal(np.load(folder / "view.npy"), expected)
            COMM.Barrier()


@pytest.mark.parametrize("stored", [">f8", "<f4", ">c8", "<i2", ">i8", "u1", "?", "<f2", "<f8"])
@pytest.mark.parametrize("order", ORDERS)
def test_files_of_any_numbers_in_any_byte_order_load_as_their_values(
    ctx: Context, folder: Path, stored: str, order: Order
) -> None:
    array = np.asarray(np.arange(56).reshape(8, 7) % 2 if stored == "?" else np.arange(56).reshape(8, 7), dtype=stored)
    path = folder / "foreign.npy"
    on_one_rank(lambda: np.save(path, np.asarray(array, order=order)))
    multiplied = np.dtype(stored).kind in "fc"
    for desc in layouts(8, 7, "F"):
        a = ctx.load(path, desc, None if multiplied else "float64")
        assert a.dtype.isnative
        assert a.dtype == (np.dtype(stored).newbyteorder("=") if multiplied else np.dtype("float64"))
        assert np.array_equal(collected(a), array)
        wider = ctx.load(path, desc, "complex128")
        assert np.array_equal(collected(wider), array)
    if not multiplied:
        raises_on_all_ranks(
            DTypeError, "pass dtype='float64' to", partial(ctx.load, path, MatrixDescriptor.row_wise(8, 7, ctx.nprocs))
        )


@pytest.mark.parametrize("order", ORDERS)
def test_parts_of_files_are_read(ctx: Context, folder: Path, order: Order) -> None:
    x = entries(8, 7, np.dtype("float64"))
    a = ctx.from_global(x, root=None, order=order)
    for name in ("a.npy", "a.bin", "a.h5", "a.mtx"):
        a.save(folder / name)
        of_raw: dict[str, Any] = {"dtype": "float64", "shape": (8, 7), "order": order} if name == "a.bin" else {}
        for rows, columns in (
            (slice(2, 5), None),
            (None, slice(-3, None)),
            (slice(1, 7), slice(2, 6)),
            (slice(9, 9),) * 2,
        ):
            expected = x[rows or slice(None), columns or slice(None)]
            m, n = expected.shape
            for desc in (None, *layouts(m, n, "F")):
                part = ctx.load(folder / name, desc, rows=rows, columns=columns, **of_raw)
                assert np.array_equal(collected(part), expected)
    on_one_rank(lambda: save(x[0])(folder / "vector.npy"))
    assert np.array_equal(collected(ctx.load(folder / "vector.npy", rows=slice(2, 6))), x[0, 2:6, None])
    steps: tuple[Any, ...] = slice(0, 8, 2), 3, [1, 2]
    for wrong in steps:
        load = partial(ctx.load, folder / "a.npy", rows=wrong)
        raises_on_all_ranks(ArgumentError, "rows must be a slice of step 1", load)
    desc = MatrixDescriptor.row_wise(8, 7, ctx.nprocs)
    raises_on_all_ranks(DescriptorError, "3 x 7 are read", lambda: ctx.load(folder / "a.npy", desc, rows=slice(3)))
    if ctx.nprocs > 1:
        rows = slice(0, 2) if ctx.rank else slice(1, 3)
        raises_on_all_ranks(MismatchError, "first row differs", lambda: ctx.load(folder / "a.npy", rows=rows))


@pytest.mark.parametrize("dtype", ["float64", "complex64", "bfloat16"])
def test_texts_of_the_matrix_market_are_those_of_scipy(ctx: Context, folder: Path, dtype: str) -> None:
    x = entries(8, 7, checked_dtype("test", dtype))
    wide = x.astype("complex128" if x.dtype.kind == "c" else "float64")
    wide[1, 2], wide[3, 3], wide[0, 6] = np.inf, -1.2345678901234567e-300, 0.1
    for desc in layouts(8, 7, "C"):
        ctx.from_global(wide, desc, None).save(folder / "a.mtx")
        read: Any = scipy.io.mmread(folder / "a.mtx")
        assert np.array_equal(read, wide)
        assert np.array_equal(collected(ctx.load(folder / "a.mtx", desc)), wide)
    ctx.from_global(x, root=None).save(folder / "b.mtx")
    assert np.array_equal(collected(ctx.load(folder / "b.mtx", dtype=dtype)), x)
    on_one_rank(lambda: scipy.io.mmwrite(folder / "c.mtx", np.arange(56).reshape(8, 7), comment="integers"))
    assert np.array_equal(collected(ctx.load(folder / "c.mtx")), np.arange(56.0).reshape(8, 7))
    head = b"%%MatrixMarket matrix array real general\n2 2\n"
    for content, text in (
        (b"1 2\n", "not a Matrix Market file"),
        (head.replace(b"array", b"coordinate"), "scipy.io.mmread"),
        (head[:-4] + b"2\n", "a line of rows and columns"),
        (head + b"1\n2\n3\n", "expected 4 elements, got 3"),
        (head + b"1\n2\n3\n4\n5\n", "expected 4 elements, got more"),
        (head + b"1\n2\nx\n4\n", "not a line of numbers"),
    ):
        on_one_rank(partial((folder / "d.mtx").write_bytes, content))
        raises_on_all_ranks(FileFormatError, text, partial(ctx.load, folder / "d.mtx"))


def test_elements_alone_are_read_and_written(ctx: Context, folder: Path) -> None:
    path, x = folder / "a.bin", entries(8, 7, np.dtype("float64"))
    on_one_rank(lambda: path.write_bytes(b"head" + x.astype(">f8").tobytes("F")))
    for desc in layouts(8, 7, "C"):
        again = ctx.load(path, desc, ">f8", order="F", offset=4)
        assert again.desc == desc
        assert np.array_equal(collected(again), x)
    assert np.array_equal(collected(ctx.load(path, (8, 7), ">f8", offset=4)), x)
    again.astype("bfloat16").save(folder / "b.bin")
    assert (folder / "b.bin").stat().st_size == 2 * 56
    assert ctx.load(folder / "b.bin", (8, 7), "bfloat16", order="C").dtype == "bfloat16"
    load: Any = partial(ctx.load, path)
    for kind, text, call in (
        (ArgumentError, "pass its rows and columns", partial(load, dtype="float64")),
        (ArgumentError, "pass its rows and columns", partial(load, (8, 7))),
        (FileFormatError, "need 456 bytes, got 452", partial(load, (8, 7), "float64", offset=8)),
        (ArgumentError, "a number of bytes", partial(load, (8, 7), "float64", offset=-1)),
        (DTypeError, "dtype must be one of", partial(load, (8, 7), "int32")),
        (ArgumentError, "for .bin files", partial(ctx.load, folder / "a.npy", shape=(8, 7))),
    ):
        raises_on_all_ranks(kind, text, call)


def write_bytes(text: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(text)


def save_and_cut(nbytes: int) -> Callable[[Path], object]:
    def act(path: Path) -> None:
        np.save(path, np.ones((8, 7)))
        os.truncate(path, path.stat().st_size - nbytes)

    return act


def save(array: Any, **options: Any) -> Callable[[Path], object]:
    def act(path: Path) -> None:
        with path.open("wb") as file:
            np.save(file, array, **options)

    return act


Structured = np.dtype([("x", "f4"), ("y", "f4")])
FOREIGN: dict[str, tuple[type[Exception], str, Callable[[Path], object]]] = {
    "missing": (FileFormatError, "No such file", lambda path: None),  # noqa: ARG005
    "a folder": (FileFormatError, "cannot be read", lambda path: path.mkdir()),
    "empty": (FileFormatError, "not a .npy file", write_bytes(b"")),
    "text": (FileFormatError, "not a .npy file", write_bytes(b"1.0 2.0\n3.0 4.0\n")),
    "magic only": (FileFormatError, "not a .npy file", write_bytes(b"\x93NUMPY")),
    "half a header": (FileFormatError, "not a .npy file", write_bytes(b"\x93NUMPY\x01\x00\x76\x00{'descr': ")),
    "a header that lies": (
        FileFormatError,
        "not a .npy file",
        write_bytes(b"\x93NUMPY\x01\x00\x10\x00import os; 1+1  "),
    ),
    "a future version": (FileFormatError, "version", write_bytes(b"\x93NUMPY\x09\x00\x10\x00                ")),
    "truncated by a byte": (FileFormatError, "truncated", save_and_cut(1)),
    "header only": (FileFormatError, "truncated", save_and_cut(8 * 56)),
    "a vector": (DescriptorError, "holds a 56 x 1 matrix", save(np.ones(56))),
    "a scalar": (FileFormatError, "expected a matrix", save(np.float64(1))),
    "three dimensions": (FileFormatError, "expected a matrix", save(np.ones((2, 4, 7)))),
    "objects": (FileFormatError, "expected a matrix of numbers", save(np.full((8, 7), None), allow_pickle=True)),
    "another shape": (DescriptorError, "holds a 7 x 8 matrix", save(np.ones((7, 8)))),
    "integers": (DTypeError, "pass dtype='float64' to convert them", save(np.ones((8, 7), int))),
    "raw bytes": (DTypeError, "dtype='bfloat16'", save(np.zeros((8, 7), "V2"))),
    "records": (DTypeError, "dtype must be one of", save(np.zeros((8, 7), Structured))),
    "dates": (DTypeError, "dtype must be one of", save(np.zeros((8, 7), "M8[s]"))),
    "words": (DTypeError, "dtype must be one of", save(np.full((8, 7), "abc"))),
    "complex numbers, as float64": (DTypeError, "imaginary", save(np.full((8, 7), 1j))),
    "raw bytes, as float64": (DTypeError, "load", save(np.zeros((8, 7), "V2"))),
    "records, as float64": (DTypeError, "load", save(np.zeros((8, 7), Structured))),
    "dates, as float64": (DTypeError, "load", save(np.zeros((8, 7), "M8[s]"))),
    "words, as float64": (DTypeError, "load", save(np.full((8, 7), "abc"))),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_that_is_no_such_matrix_is_refused_on_every_rank(ctx: Context, folder: Path, name: str) -> None:
    kind, text, make = FOREIGN[name]
    good, bad = folder / "good.npy", folder / "bad.npy"
    on_one_rank(partial(save(np.ones((8, 7))), good))
    on_one_rank(partial(make, bad))
    load = partial(
        ctx.load,
        desc=MatrixDescriptor.row_wise(8, 7, ctx.nprocs),
        dtype="float64" if name.endswith("as float64") else None,
    )
    for ranks in culprits():
        raises_on_all_ranks(kind, text, partial(load, bad if ctx.rank in ranks else good))
        check_product(ctx)


def test_numbers_that_a_dtype_does_not_hold_are_infinities(ctx: Context, folder: Path) -> None:
    """Also if the caller sets NumPy to raise errors for them on one rank only."""
    x = np.ones((8, 7))
    x[0, 0] = 1e300
    ctx.from_global(x, MatrixDescriptor.row_wise(8, 7, COMM.size)).save(folder / "x.npy")
    with np.errstate(all="raise"):
        a = ctx.load(folder / "x.npy", MatrixDescriptor.row_wise(8, 7, COMM.size), "float32")
    result = a.to_global(None)
    x[0, 0] = np.inf
    assert result is not None
    assert np.array_equal(result, x)


@pytest.mark.parametrize("path", [None, 3, b"a.npy", "a\0b.npy", ["a.npy"]])
def test_an_invalid_path_is_refused_on_every_rank(ctx: Context, folder: Path, path: Any) -> None:
    desc = MatrixDescriptor.row_wise(8, 7, ctx.nprocs)
    a, good = ctx.zeros(desc), folder / "good.npy"
    a.save(good)
    for ranks in culprits():
        raises_on_all_ranks(ArgumentError, "path must be", partial(ctx.load, path if ctx.rank in ranks else good, desc))
        raises_on_all_ranks(ArgumentError, "path must be", partial(a.save, path if ctx.rank in ranks else good))
        check_product(ctx)


def test_paths_that_differ_between_ranks_are_an_error(ctx: Context, folder: Path) -> None:
    desc = MatrixDescriptor.row_wise(8, 7, ctx.nprocs)
    a = ctx.zeros(desc)
    a.save(folder / "a.npy")
    a.save(str(folder / "b.npy"))  # text and Path are the same thing
    for ranks in some_wrong():
        name = folder / ("b.npy" if ctx.rank in ranks else "a.npy")
        raises_on_all_ranks(MismatchError, "path differs", partial(ctx.load, name, desc))
        raises_on_all_ranks(MismatchError, "path differs", partial(a.save, name))


def test_a_failed_save_leaves_the_old_file_and_no_other(
    ctx: Context, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, desc = folder / "a.npy", MatrixDescriptor.row_wise(8, 7, ctx.nprocs)
    old = ctx.from_global(entries(8, 7, np.float64), desc, None)
    old.save(path)
    new = ctx.zeros(desc)
    for ranks in culprits():
        with monkeypatch.context() as patch:
            if ctx.rank in ranks:

                def fail(*_: Any, **__: Any) -> None:
                    raise FileFormatError("the cable was pulled")

                patch.setattr(files, "write_part", fail)
            raises_on_all_ranks(FileFormatError, "the cable was pulled", partial(new.save, path))
        assert contents(folder) == ["a.npy"]
        assert np.array_equal(np.load(path), entries(8, 7, np.float64))
        check_product(ctx)
    new.save(path)  # and the next one replaces it
    assert not np.any(np.load(path))
    assert contents(folder) == ["a.npy"]


def test_a_missing_folder_or_a_folder_as_the_file_is_refused_on_every_rank(ctx: Context, folder: Path) -> None:
    a = ctx.zeros(MatrixDescriptor.row_wise(8, 7, ctx.nprocs))
    on_one_rank((folder / "taken.npy").mkdir)
    on_one_rank((folder / "file").touch)
    for path in (
        folder / "missing" / "a.npy",
        folder / "file" / "a.npy",
        folder / "taken.npy",
        folder / ("x" * 300 + ".npy"),
    ):
        raises_on_all_ranks(FileFormatError, "cannot be written", partial(a.save, path))
        check_product(ctx)
    assert contents(folder) == ["file", "taken.npy"]


def test_special_files_are_neither_replaced_nor_waited_for(ctx: Context, folder: Path) -> None:
    """An administrator could put a file in the place of /dev/null."""
    a = ctx.zeros(MatrixDescriptor.row_wise(8, 7, ctx.nprocs))
    pipe = folder / "pipe.npy"
    on_one_rank(partial(os.mkfifo, pipe))
    raises_on_all_ranks(FileFormatError, "a folder, device or pipe has this name", partial(a.save, pipe))
    raises_on_all_ranks(FileFormatError, "it is a pipe", partial(ctx.load, pipe, a.desc))
    assert pipe.is_fifo()
    assert contents(folder) == ["pipe.npy"]


def test_a_link_stays_and_what_it_names_is_written(ctx: Context, folder: Path) -> None:
    a = ctx.random(MatrixDescriptor.row_wise(8, 7, ctx.nprocs))
    link, place = folder / "link.npy", folder / "elsewhere"
    on_one_rank(place.mkdir)
    on_one_rank(partial(link.symlink_to, place / "a.npy"))  # a link to a file that does not exist yet
    for _ in range(2):
        a.save(link)
        assert link.is_symlink()
        whole = collected(a)
        assert np.array_equal(np.load(place / "a.npy"), whole)
    assert contents(folder) == ["elsewhere", "link.npy"]
    assert contents(place) == ["a.npy"]


def test_a_folder_that_cannot_be_written_is_refused_on_every_rank(ctx: Context, folder: Path) -> None:
    a = ctx.zeros(MatrixDescriptor.row_wise(8, 7, ctx.nprocs))
    locked = Path("/sys") if os.geteuid() == 0 else folder / "locked"  # the administrator may write anywhere else
    if os.geteuid() != 0:
        on_one_rank(lambda: locked.mkdir(mode=0o500))
    raises_on_all_ranks(FileFormatError, "cannot be written", partial(a.save, locked / "a.npy"))
    check_product(ctx)


def test_a_disk_that_is_full_is_refused_on_every_rank_before_anything_is_written(ctx: Context, folder: Path) -> None:
    """A limit on the size of files stands in for the disk; it fails in the same call."""
    n = 200
    a = ctx.zeros(MatrixDescriptor.row_wise(n, n, ctx.nprocs))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (n * n * 4, before[1]))
        raises_on_all_ranks(FileFormatError, "File too large", partial(a.save, folder / "a.npy"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert contents(folder) == []
    check_product(ctx)


@one_host
def test_a_file_system_that_is_full_is_refused_on_every_rank(ctx: Context, folder: Path) -> None:
    small = folder / "small"

    def mount() -> bool:
        small.mkdir()
        libc = ctypes.CDLL(None, use_errno=True)
        return libc.mount(b"tmpfs", os.fsencode(small), b"tmpfs", 0, b"size=64k") == 0

    if not COMM.bcast(mount() if COMM.rank == 0 else None, 0):
        pytest.skip("mounting a small file system is not permitted here")
    try:
        a = ctx.zeros(MatrixDescriptor.row_wise(200, 200, ctx.nprocs))
        raises_on_all_ranks(FileFormatError, "No space left", partial(a.save, small / "a.npy"))
        assert contents(small) == []
        a[:20, :20].save(small / "a.npy")  # what fits is saved
        assert contents(small) == ["a.npy"]
        check_product(ctx)
    finally:
        on_one_rank(lambda: ctypes.CDLL(None).umount(os.fsencode(small)))


def test_a_rank_touches_its_own_part_of_the_file_only(ctx: Context, folder: Path) -> None:
    """A file is mostly hole: a rank that read or wrote more than its part would need memory for it."""
    n, wide = 64, 1 << 21  # 1 GiB; this rank owns one column block of 64 KiB
    path = folder / "sparse.npy"
    block = np.full((n, 128), 3.0)

    def make() -> None:
        header = {"descr": "<f8", "fortran_order": True, "shape": (n, wide)}
        with path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            start = file.tell()
            file.truncate(start + n * wide * 8)
            file.seek(start)
            for _ in range(COMM.size):
                file.write(block.tobytes(order="F"))

    on_one_rank(make)
    assert path.stat().st_blocks * 512 < 1 << 24, "a file system with holes"
    header = files.read_header(path)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    part = np.empty((n, 128), order="F")
    first = MatrixDescriptor(n, wide, n, 128, Grid.row(wide // 128))  # as one of many ranks
    files.read_part(Part(path, header, first, COMM.rank, part), ctx.runtime.backend)
    assert np.all(part == 3.0)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident
    assert grown < 1 << 16, f"{grown} KiB more for a part of 64 KiB"
    COMM.Barrier()
    files.write_part(Part(path, header, first, COMM.size + COMM.rank, part), ctx.runtime.backend)
    COMM.Barrier()
    assert path.stat().st_blocks * 512 < 1 << 24, "holes stay holes"


def test_a_replicated_matrix_is_written_once(ctx: Context, folder: Path) -> None:
    """Only the first rank writes its copy, so a copy that differs has no effect."""
    desc = MatrixDescriptor.replicated(8, 7, ctx.nprocs)
    a = ctx.zeros(desc)
    a.local[...] = ctx.rank
    a.save(folder / "a.npy")
    assert np.array_equal(np.load(folder / "a.npy"), np.zeros((8, 7)))


def test_a_file_that_shrinks_while_it_is_read_is_refused_on_every_rank(
    ctx: Context, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desc = MatrixDescriptor.row_wise(8, 7, ctx.nprocs)
    path = folder / "a.npy"
    ctx.zeros(desc).save(path)
    header = files.read_header(path)
    COMM.Barrier()
    monkeypatch.setattr(files, "read_header", lambda *_: header)
    on_one_rank(lambda: os.truncate(path, 300))
    raises_on_all_ranks(FileFormatError, "cannot be read: it became shorter", partial(ctx.load, path, desc))
    monkeypatch.undo()
    on_one_rank(partial(save(np.ones((4000, 500))), path))  # of many pages: beyond its end a map has none
    usual = os.preadv

    def preadv(*arguments: Any) -> int:
        os.truncate(path, 300)
        return usual(*arguments)

    monkeypatch.setattr(os, "preadv", preadv)
    raises_on_all_ranks(FileFormatError, "cannot be read: it became shorter", partial(ctx.load, path))
    check_product(ctx)


@each_culprit
def test_a_folder_unreadable_by_one_rank_is_an_error_on_every_rank(
    ctx: Context, folder: Path, wrong: frozenset[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    desc = MatrixDescriptor.row_wise(7, 5, ctx.nprocs)
    ctx.random(desc).save(folder / "x.npy")

    def denied(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        if COMM.rank in wrong:
            patched.setattr(Path, "is_fifo", denied)
        raises_on_all_ranks(
            FileFormatError, "cannot be read: Permission denied", lambda: ctx.load(folder / "x.npy", desc)
        )
    long = folder / ("x" * 300 if COMM.rank in wrong else "x.npy")
    raises_on_all_ranks(FileFormatError, "too long", lambda: ctx.load(long, desc))
    ctx.load(folder / "x.npy", desc)
    check_product(ctx)


def test_every_version_of_the_format_is_read(ctx: Context, folder: Path) -> None:
    array, desc = entries(8, 7, np.float64), MatrixDescriptor.row_wise(8, 7, ctx.nprocs)
    for version in ((1, 0), (2, 0), (3, 0)):
        path = folder / f"{version[0]}.npy"

        def write(path: Path = path, version: tuple[int, int] = version) -> None:
            with path.open("wb") as file:
                np.lib.format.write_array(file, array, version)

        on_one_rank(write)
        assert np.array_equal(collected(ctx.load(path, desc)), array)
    header = "{'descr': [('\u03b1', '<f8')], 'fortran_order': False, 'shape': (8, 7)}".encode()
    content = b"\x93NUMPY\x03\x00" + struct.pack("<I", len(header)) + header + bytes(8 * 56)
    on_one_rank(partial((folder / "records.npy").write_bytes, content))
    raises_on_all_ranks(DTypeError, "dtype must be one of", partial(ctx.load, folder / "records.npy", desc))


@one_host
def test_copies_of_a_file_that_differ_between_ranks_are_an_error(ctx: Context, folder: Path) -> None:
    """On each rank a folder of its own stands for the disk of a node, under one name."""
    desc, array = MatrixDescriptor.row_wise(8, 7, ctx.nprocs), entries(8, 7, np.float64)

    def padded(path: Path) -> None:
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (8, 7)}".ljust(200) + b"\n"
        path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + array.tobytes())

    others: dict[str, Callable[[Path], object]] = {
        "order": save(np.asfortranarray(array)),
        "offset": padded,
        "dtype": save(array.astype(np.float32)),
    }
    mine = folder / f"{ctx.rank}"
    mine.mkdir()
    before = Path.cwd()
    os.chdir(mine)
    try:
        for other in others.values():
            for ranks in some_wrong():
                (other if ctx.rank in ranks else save(array))(mine / "x.npy")
                raises_on_all_ranks(MismatchError, "stored differs", partial(ctx.load, "x.npy", desc, "float64"))
        save(array)(mine / "x.npy")
        assert np.array_equal(collected(ctx.load("x.npy", desc)), array)
    finally:
        os.chdir(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_files_have_the_permissions_that_the_mask_leaves(ctx: Context, folder: Path) -> None:
    a = ctx.ones((8, 7))
    for mask in (0o022, 0o027, 0o077):
        before = os.umask(mask)
        try:
            a.save(folder / f"{mask}.npy")
            assert os.umask(mask) == mask
        finally:
            os.umask(before)
        assert mode_of(folder / f"{mask}.npy") == 0o666 & ~mask


@pytest.mark.parametrize("linked", [False, True], ids=["one name", "two names"])
def test_a_replaced_file_keeps_its_permissions_owner_and_names(ctx: Context, folder: Path, linked: bool) -> None:
    path, second = folder / "a.npy", folder / "second.npy"
    ctx.random((30, 20)).save(path)
    is_root = os.geteuid() == 0
    if linked:
        on_one_rank(partial(second.hardlink_to, path))
    for mode in (0o640, 0o600, 0o664):
        on_one_rank(partial(path.chmod, mode))
        if is_root:
            on_one_rank(partial(os.chown, path, 1234, 4321))
        for shape in ((8, 7), (40, 30)):  # shorter and longer
            a = ctx.random(shape)
            a.save(path)
            assert mode_of(path) == mode
            assert not is_root or (path.stat().st_uid, path.stat().st_gid) == (1234, 4321)
            whole = collected(a)
            assert np.array_equal(np.load(path), whole)
            assert not linked or (path.samefile(second) and np.array_equal(np.load(second), whole))
            COMM.Barrier()
    assert contents(folder) == ["a.npy", *["second.npy"] * linked]


def test_the_unfinished_file_is_as_private_as_the_old_one(
    ctx: Context, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "a.npy"
    a = ctx.ones((8, 7))
    a.save(path)
    on_one_rank(partial(path.chmod, 0o600))
    seen: list[int] = []
    usual = files.write_part

    def write_part(part: Part, *arguments: Any, **options: Any) -> None:
        seen.append(mode_of(Path(part.path)))
        usual(part, *arguments, **options)

    monkeypatch.setattr(files, "write_part", write_part)
    a.save(path)
    assert seen == [0o600]


class Unwilling(os.PathLike[str]):
    """A path that cannot say which."""

    def __fspath__(self) -> str:
        raise OSError(116, "stale handle")


@pytest.mark.parametrize(
    "error",
    [PermissionError(13, "denied"), OSError(36, "File name too long"), OSError(116, "stale"), OSError(5, "input")],
    ids=lambda error: str(error.errno),
)
def test_an_error_of_the_disk_on_one_rank_is_raised_on_every_rank(
    error: OSError, ctx: Context, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, path = ctx.random(MatrixDescriptor.row_wise(2 * ctx.nprocs, 7, ctx.nprocs)), folder / "a.npy"
    a.save(path)

    def fails(*_: Any, **__: Any) -> Any:
        raise OSError(*error.args)  # a new one, which holds no frames of earlier calls

    for ranks in culprits():
        for place in ("pathlib.Path.is_fifo", "pathlib.Path.open", "os.preadv"):
            with monkeypatch.context() as patch:
                if ctx.rank in ranks:
                    patch.setattr(place, fails)
                raises_on_all_ranks(
                    FileFormatError, f"cannot be read: {error.strerror}", lambda: ctx.load(path, a.desc)
                )
        for place in ("pathlib.Path.is_fifo", "pathlib.Path.open", "numpy.memmap"):
            with monkeypatch.context() as patch:
                if ctx.rank in ranks:
                    patch.setattr(place, fails)
                kind, text = same_on_all_ranks(outcome_of(partial(a.save, path)))
                used = place != "pathlib.Path.is_fifo"
                assert kind == ("FileFormatError" if used else "no exception"), text
        unwilling: Any = Unwilling()
        for call in (lambda p: ctx.load(p, a.desc), a.save):
            raises_on_all_ranks(PblasError, "stale handle", partial(call, unwilling if ctx.rank in ranks else path))
        check_product(ctx)
    assert contents(folder) == ["a.npy"]

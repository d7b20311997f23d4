"""Matrices in HDF5 files: the values, dtypes and layouts of .npy files, and the same guarantees."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest

from pblas import (
    ArgumentError,
    BackendError,
    Context,
    DescriptorError,
    DTypeError,
    FileFormatError,
    MatrixDescriptor,
    MismatchError,
    PblasError,
)
from pblas.matrices import files
from pblas.matrices import hdf5 as module
from pblas.runtime.runtime import checked_dtype
from tests.common.gauge import NAMES
from tests.common.ranks import (
    COMM,
    check_product,
    collected,
    culprits,
    entries,
    few,
    layouts,
    raises_on_all_ranks,
    some_wrong,
)
from tests.mpi.matrices.arrays import check_failed_saves, some_matrix

pytestmark = [pytest.mark.mpi, few]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One new folder for all ranks."""
    return COMM.bcast(tmp_path, 0)


def written(path: Path, make: Callable[[Any], object]) -> None:
    """**Collective.** A file that rank 0 makes with h5py."""
    if COMM.rank == 0:
        with h5py.File(path, "w") as file:
            make(file)
    COMM.Barrier()


@pytest.mark.parametrize("dtype", NAMES)
def test_a_saved_matrix_is_a_standard_file_and_loads_again(ctx: Context, folder: Path, dtype: str) -> None:
    checked = checked_dtype("test", dtype)
    for m, n in ((8, 7), (1, 9), (0, 4)):
        array = entries(m, n, checked)
        for number, desc in enumerate(layouts(m, n, "F" if m == 8 else "C")):
            path = folder / f"{number}.h5"
            ctx.from_global(array, desc, None).save(path, overwrite=True)
            with h5py.File(path, "r") as file:
                assert list(file) == ["data"]
                found = file["data"][...]
            assert found.dtype == ("float32" if dtype == "bfloat16" else checked)
            assert np.array_equal(found, array.astype(found.dtype))
            others = list(layouts(m, n, "F"))
            again = ctx.load(path, others[(number + m) % len(others)])
            assert again.dtype == checked
            assert np.array_equal(collected(again), array)
            COMM.Barrier()
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("dtype", NAMES)
def test_views_are_saved_with_their_values(ctx: Context, folder: Path, dtype: str) -> None:
    for seed in range(6):
        a, elements = some_matrix(ctx, seed, dtype)
        path = folder / f"{seed}.hdf5"
        a.save(path, dataset="/group/x")
        assert np.array_equal(collected(ctx.load(path)), elements)
        assert np.array_equal(collected(ctx.load(path, dataset="group/x", dtype="complex128")), elements)


@pytest.mark.parametrize("stored", [">f8", ">c16", "<i2", ">i4", "u1", "?", "<f2", "<f4", "c8"])
@pytest.mark.parametrize(
    "options",
    [{}, {"chunks": (3, 2)}, {"chunks": (1, 7), "compression": "gzip", "shuffle": True}, {"fletcher32": True}],
    ids=["contiguous", "chunks", "compressed", "checked"],
)
def test_datasets_of_other_programs_load_as_their_values(
    ctx: Context, folder: Path, stored: str, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.asarray(np.arange(56).reshape(8, 7) % 2 if stored == "?" else np.arange(56).reshape(8, 7), dtype=stored)
    path = folder / "foreign.h5"
    written(path, lambda file: file.create_dataset("x", data=array, **options))
    native = np.dtype(stored).newbyteorder("=")
    dtype = None if native.kind in "fc" else "float64"
    for nbytes in (16 << 20, 1):
        monkeypatch.setattr(module, "_PANEL_NBYTES", nbytes)
        for desc in layouts(8, 7, "F"):
            a = ctx.load(path, desc, dtype)
            assert a.dtype == (dtype or native)
            assert np.array_equal(collected(a), array)
    if dtype:
        raises_on_all_ranks(DTypeError, "pass dtype='float64' to", partial(ctx.load, path))


@pytest.mark.parametrize("chunks", [None, (3,)])
def test_a_dataset_of_one_dimension_is_a_column(ctx: Context, folder: Path, chunks: Any) -> None:
    written(folder / "x.h5", lambda file: file.create_dataset("x", data=np.arange(9.0), chunks=chunks))
    assert np.array_equal(collected(ctx.load(folder / "x.h5")), np.arange(9.0)[:, None])
    assert np.array_equal(collected(ctx.load(folder / "x.h5", rows=slice(2, 7))), np.arange(2.0, 7)[:, None])
    if chunks:
        written(folder / "y.h5", lambda file: file.create_dataset("y", data=np.eye(9), chunks=(2, 2)))
        part = ctx.load(folder / "y.h5", rows=slice(1, 6), columns=slice(2, None))
        assert np.array_equal(collected(part), np.eye(9)[1:6, 2:])


def test_an_external_or_absent_storage_is_read_by_hdf5(ctx: Context, folder: Path) -> None:
    def make(file: Any) -> None:
        file.create_dataset("x", (8, 7), "f8", external=[(folder / "x.raw", 0, 8 * 56)])
        file["x"][...] = np.arange(56.0).reshape(8, 7)
        file.create_dataset("unwritten", (8, 7), "f8", fillvalue=3.0)

    written(folder / "x.h5", make)
    assert np.array_equal(collected(ctx.load(folder / "x.h5", dataset="x")), np.arange(56.0).reshape(8, 7))
    assert np.array_equal(collected(ctx.load(folder / "x.h5", dataset="unwritten")), np.full((8, 7), 3.0))


def several(file: Any) -> None:
    for name in ("a", "b", "c/d"):
        file[name] = np.ones((8, 7))


FOREIGN: dict[str, tuple[type[Exception], str, Callable[[Any], object]]] = {
    "several": (FileFormatError, "expected one dataset, the file holds 'a', 'b', 'c/d'; pass dataset='a'", several),
    "nothing": (FileFormatError, "expected one dataset, the file holds no dataset", lambda file: None),  # noqa: ARG005
    "a vector": (DescriptorError, "holds a 56 x 1", lambda file: file.create_dataset("x", data=np.ones(56))),
    "a number": (FileFormatError, "expected a matrix", lambda file: file.create_dataset("x", data=1.0)),
    "no value": (FileFormatError, "expected a matrix", lambda file: file.create_dataset("x", data=h5py.Empty("f8"))),
    "words": (FileFormatError, "expected a matrix", lambda file: file.create_dataset("x", data=[["abc"] * 7] * 8)),
    "arrays": (FileFormatError, "expected a matrix", lambda file: file.create_dataset("x", (8, 7), "(2,)f8")),
    "another shape": (DescriptorError, "holds a 7 x 8", lambda file: file.create_dataset("x", data=np.ones((7, 8)))),
    "records": (DTypeError, "dtype must be one of", lambda file: file.create_dataset("x", (8, 7), "f8,f4")),
    "raw bytes": (DTypeError, "pass their dtype", lambda file: file.create_dataset("x", (8, 7), "V2")),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_that_is_no_such_matrix_is_refused_on_every_rank(ctx: Context, folder: Path, name: str) -> None:
    kind, text, make = FOREIGN[name]
    desc = MatrixDescriptor.row_wise(8, 7, ctx.nprocs)
    written(folder / "bad.h5", make)
    written(folder / "good.h5", lambda file: file.create_dataset("x", data=np.ones((8, 7))))
    for ranks in culprits():
        path = folder / ("bad.h5" if COMM.rank in ranks else "good.h5")
        raises_on_all_ranks(kind, text, partial(ctx.load, path, desc))
        check_product(ctx)


@pytest.mark.parametrize("content", [b"", b"no", b"\x89HDF\r\n\x1a\n" + bytes(500), b"\x93NUMPY\x01\x00"])
def test_a_file_that_is_not_hdf5_is_refused_on_every_rank(ctx: Context, folder: Path, content: bytes) -> None:
    path = folder / "bad.h5"
    if COMM.rank == 0:
        path.write_bytes(content)
    COMM.Barrier()
    raises_on_all_ranks(FileFormatError, "bad.h5: not an HDF5 file", partial(ctx.load, path))
    raises_on_all_ranks(FileFormatError, "cannot be read: No such file", partial(ctx.load, folder / "none.h5"))
    check_product(ctx)


def test_a_damaged_file_is_refused_on_every_rank(ctx: Context, folder: Path) -> None:
    """Cut at every length: never a crash, never other values."""
    path, a = folder / "x.h5", ctx.from_global(entries(8, 7, np.float64), root=None)
    a.save(path)
    whole = path.read_bytes()
    COMM.Barrier()
    for length in (*range(1, 200, 20), *range(200, len(whole), 300), len(whole) - 1):
        if COMM.rank == 0:
            path.write_bytes(whole[:length])
        COMM.Barrier()
        raises_on_all_ranks(FileFormatError, "x.h5: ", partial(ctx.load, path))
    check_product(ctx)


@pytest.mark.parametrize("name", ["", "/", ".", "a/../b", "a//b", "a\0b", 3, b"x"])
def test_an_invalid_name_of_a_dataset_is_refused_on_every_rank(ctx: Context, folder: Path, name: Any) -> None:
    a = ctx.ones((8, 7))
    a.save(folder / "x.h5")
    for ranks in culprits():
        dataset = name if COMM.rank in ranks else "data"
        raises_on_all_ranks(ArgumentError, "dataset must be a name", partial(a.save, folder / "x.h5", dataset=dataset))
        raises_on_all_ranks(
            ArgumentError, "dataset must be a name", partial(ctx.load, folder / "x.h5", dataset=dataset)
        )
    check_product(ctx)


def test_names_that_do_not_fit_are_refused_on_every_rank(ctx: Context, folder: Path) -> None:
    a, path = ctx.ones((8, 7)), folder / "x.h5"
    a.save(path)
    a.save(folder / "x.npy")
    raises_on_all_ranks(FileFormatError, "no dataset 'b'; the file holds 'data'", lambda: ctx.load(path, dataset="b"))
    raises_on_all_ranks(ArgumentError, "is for .h5 and .zarr files", lambda: ctx.load(folder / "x.npy", dataset="data"))
    raises_on_all_ranks(ArgumentError, "is for .h5 and .zarr files", lambda: a.save(folder / "x.npy", dataset="data"))
    for ranks in some_wrong():
        dataset = "a" if COMM.rank in ranks else "b"
        raises_on_all_ranks(MismatchError, "dataset differs", partial(a.save, path, dataset=dataset))
    check_product(ctx)


@pytest.mark.parametrize("name", ["x.txt", "x", "x.npz", "x.npy.gz", ".npy", "x.NPZ", "x.h5.bak"])
def test_another_ending_is_refused_with_the_remedy(ctx: Context, folder: Path, name: str) -> None:
    a = ctx.ones((8, 7))
    text = raises_on_all_ranks(
        ArgumentError, "a matrix is saved as .npy, .h5, .zarr, .mtx or .bin: pass '", partial(a.save, folder / name)
    )
    assert not list(folder.iterdir())
    COMM.Barrier()
    remedy = text.split("pass '")[1].split("'")[0]
    a.save(folder / remedy)
    assert np.array_equal(np.load(folder / remedy), np.ones((8, 7)))


def test_without_h5py_the_error_names_the_remedy(ctx: Context, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = ctx.ones((8, 7))
    a.save(folder / "x.h5")
    for ranks in culprits():
        with monkeypatch.context() as patch:
            if COMM.rank in ranks:
                patch.setitem(sys.modules, "h5py", None)
            text = "pip install h5py"
            raises_on_all_ranks(BackendError, text, partial(ctx.load, folder / "x.h5"))
            if 0 in ranks:
                raises_on_all_ranks(BackendError, text, partial(a.save, folder / "x.h5"))
        check_product(ctx)
    assert [path.name for path in folder.iterdir()] == ["x.h5"]


def test_a_failed_save_leaves_the_old_file_and_no_other(
    ctx: Context, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = ((files, place, PblasError) for place in ("write_part", "create"))
    check_failed_saves(ctx, folder / "x.h5", places, monkeypatch)


def test_datasets_are_added_and_replaced_only_on_demand(ctx: Context, folder: Path) -> None:
    path = folder / "r.h5"
    arrays = {name: entries(8 + n, 7, np.float64) for n, name in enumerate(("A", "B", "runs/C"))}
    written(path, lambda file: file.create_dataset("text", data="of another program"))
    for name, array in arrays.items():
        ctx.from_global(array, root=None).save(path, dataset=name)
    new = ctx.zeros((3, 50))

    def check() -> None:
        for name, array in arrays.items():
            assert np.array_equal(collected(ctx.load(path, dataset=name)), array)
        with h5py.File(path, "r") as file:
            assert file["text"][()] == b"of another program"
        COMM.Barrier()

    check()
    for name, text in {
        "A": "there is a dataset 'A' already; pass overwrite=True to replace it",
        "runs": "'runs' is a group of datasets; pass another dataset=",
        "A/x": "dataset 'A/x' cannot be made",
    }.items():
        raises_on_all_ranks(FileFormatError, text, partial(new.save, path, dataset=name))
        check()
    for ranks in some_wrong():
        raises_on_all_ranks(
            MismatchError, "overwrite differs", partial(new.save, path, dataset="A", overwrite=COMM.rank in ranks)
        )
    arrays["A"] = np.zeros((3, 50))
    new.save(path, dataset="A", overwrite=True)
    check()
    raises_on_all_ranks(FileFormatError, "'runs' is a group", partial(new.save, path, dataset="runs", overwrite=True))
    check()
    assert [file.name for file in folder.iterdir()] == ["r.h5"]


def test_a_file_of_another_format_is_not_replaced(ctx: Context, folder: Path) -> None:
    path = folder / "r.h5"
    if COMM.rank == 0:
        path.write_text("notes of a year")
    COMM.Barrier()
    for overwrite in (False, True):
        raises_on_all_ranks(
            FileFormatError,
            "it exists, and is not an HDF5 file",
            partial(ctx.ones((8, 7)).save, path, overwrite=overwrite),
        )
    assert path.read_text() == "notes of a year"


def test_bfloat16_is_a_type_of_hdf5(ctx: Context, folder: Path) -> None:
    """Its bits survive, infinities and NaN among them; other programs read float32."""
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    array = bits.view(ml_dtypes.bfloat16)
    ctx.from_global(array, root=None).save(folder / "x.h5")
    again = collected(ctx.load(folder / "x.h5"))
    assert np.array_equal(again.view(np.uint16), bits)
    with h5py.File(folder / "x.h5", "r") as file:
        found = file["data"][...]
    assert np.array_equal(found, array.astype(np.float32), equal_nan=True)

"""Matrices in folders of zarr: values, layouts and guarantees are those of files; each chunk has one writer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pblas import BackendError, Context, DescriptorError, DTypeError, FileFormatError, MismatchError, PblasError
from pblas.matrices import files, zarr_folders
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

zarr = pytest.importorskip("zarr", reason="the extra `zarr` is not installed")
pytestmark = [pytest.mark.mpi, few]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One new folder for all ranks."""
    return COMM.bcast(tmp_path, 0)


def on_rank_0(make: Callable[[], object]) -> None:
    """**Collective.** Rank 0 makes something with zarr."""
    if COMM.rank == 0:
        make()
    COMM.Barrier()


def test_a_saved_matrix_is_a_standard_array_and_loads_again(
    ctx: Context, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zarr_folders, "_MOST", 4)  # several chunks in a block
    monkeypatch.setattr(zarr_folders, "_FEWEST", 2)
    for m, n, dtype in ((8, 7, "complex128"), (1, 9, "float32"), (0, 4, "float16")):
        array = entries(m, n, np.dtype(dtype))
        others = list(layouts(m, n, "F"))
        for number, desc in enumerate(layouts(m, n, "C")):
            path = folder / f"{number}.zarr"
            ctx.from_global(array, desc, None).save(path, overwrite=True)
            stored = zarr.open_array(path, mode="r")
            assert stored.dtype == dtype
            assert np.array_equal(stored[...], array)
            again = ctx.load(path, others[(number + m) % len(others)])
            assert np.array_equal(collected(again), array)
            COMM.Barrier()
    assert not list(folder.glob(".*"))


def test_views_are_saved_with_their_values(ctx: Context, folder: Path) -> None:
    for seed in range(4):
        a, elements = some_matrix(ctx, seed, "complex64")
        a.save(folder / f"{seed}.zarr", dataset="/runs/x")
        assert np.array_equal(collected(ctx.load(folder / f"{seed}.zarr")), elements)


def test_every_chunk_belongs_to_one_rank() -> None:
    """In the layout from which a matrix is written."""
    for m, n in ((8, 7), (5000, 3), (3001, 2503), (1, 1030)):
        for desc in layouts(m, n, "F"):
            source, writers = zarr_folders.layout(desc), dict[tuple[int, int], int]()
            sides = [zarr_folders._side(split) for split in (source.rows, source.columns)]
            for rank in range(source.nprocs):
                rows, columns = (
                    {i // side for start, stop in ranges for i in (*range(start, stop, side), stop - 1)}
                    for ranges, side in zip(source.global_ranges(rank), sides, strict=True)
                    if side is not None
                )
                for chunk in ((i, j) for i in rows for j in columns):
                    assert writers.setdefault(chunk, rank) == rank or desc.is_replicated
            assert len(writers) == np.prod([-(-size // (side or 0)) for size, side in zip((m, n), sides, strict=True)])


@pytest.mark.parametrize("version", [2, 3])
def test_arrays_of_other_programs_load_as_their_values(
    ctx: Context, folder: Path, version: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pblas.matrices.hdf5._PANEL_NBYTES", 1)
    array, line = np.arange(56, dtype=">i4").reshape(8, 7), np.arange(9.0)

    def make() -> None:
        group = zarr.open_group(folder / "g.zarr", mode="w", zarr_format=version)
        for name, x, chunks in (("a/x", array, (3, 2)), ("line", line, (4,))):
            group.create_array(name, data=x, chunks=chunks)

    on_rank_0(make)
    for desc in layouts(8, 7, "F"):
        a = ctx.load(folder / "g.zarr", desc, "float64", dataset="a/x")
        assert np.array_equal(collected(a), array)
    part = ctx.load(folder / "g.zarr", None, "float64", dataset="a/x", rows=slice(2, 7), columns=slice(1, 4))
    assert np.array_equal(collected(part), array[2:7, 1:4])
    assert np.array_equal(collected(ctx.load(folder / "g.zarr", dataset="line")), line[:, None])
    ctx.ones((2, 3)).save(folder / "g.zarr", dataset="new/one")  # in the group's own version
    on_rank_0(lambda: zarr.consolidate_metadata(folder / "g.zarr") if version == 2 else None)
    ctx.zeros((2, 3)).save(folder / "g.zarr", dataset="zeros")
    assert np.array_equal(collected(ctx.load(folder / "g.zarr", dataset="zeros")), np.zeros((2, 3)))
    group = zarr.open_group(folder / "g.zarr", mode="r")
    assert np.array_equal(group["new/one"][...], np.ones((2, 3)))
    assert np.array_equal(group["a/x"][...], array)
    raises_on_all_ranks(DTypeError, "pass dtype='float64' to", partial(ctx.load, folder / "g.zarr", dataset="a/x"))


def test_what_cannot_be_read_or_written_is_refused_on_every_rank(ctx: Context, folder: Path) -> None:
    a = ctx.ones((8, 7))
    a.save(folder / "a.zarr")
    for name in ("x", "runs/y"):
        a.save(folder / "g.zarr", dataset=name)
    (folder / "notes.zarr").mkdir(exist_ok=True)
    (folder / "text.zarr").write_text("notes of a year")
    on_rank_0(lambda: zarr.create_array(folder / "cube.zarr", data=np.zeros((2, 2, 2))))
    load: Any = lambda name, **more: ctx.load(folder / name, **more)  # noqa: E731
    save: Any = lambda name, **more: a.save(folder / name, **more)  # noqa: E731
    wrong: dict[str, Callable[[], object]] = {
        "expected one array, the folder holds 'runs/y', 'x'; pass dataset='runs/y'": lambda: load("g.zarr"),
        "there is no array 'z'; the folder holds": lambda: load("g.zarr", dataset="z"),
        "leave dataset= out": lambda: load("a.zarr", dataset="z"),
        "there is no such folder": lambda: load("none.zarr"),
        "notes.zarr: not a folder of zarr": lambda: load("notes.zarr"),
        "text.zarr: not a folder of zarr": lambda: load("text.zarr"),
        "expected a matrix of numbers, got shape": lambda: load("cube.zarr"),
        "there is an array already; pass overwrite=True": lambda: save("a.zarr"),
        "x: there is an array already": lambda: save("g.zarr", dataset="x"),
        "pass dataset= to add one": lambda: save("g.zarr", overwrite=True),
        "no array of zarr": lambda: save("g.zarr", dataset="runs", overwrite=True),
        "x is an array; pass another dataset=": lambda: save("g.zarr", dataset="x/y", overwrite=True),
        "it exists, and is no group of zarr": lambda: save("a.zarr", dataset="y", overwrite=True),
        "notes.zarr: cannot be written: it is no array": lambda: save("notes.zarr", overwrite=True),
        "text.zarr: cannot be written": lambda: save("text.zarr", overwrite=True),
        "there is no folder": lambda: save("none/a.zarr"),
    }
    for text, call in wrong.items():
        raises_on_all_ranks(FileFormatError, text, call)
    raises_on_all_ranks(DTypeError, "zarr has no bfloat16", partial(a.astype("bfloat16").save, folder / "b.zarr"))
    raises_on_all_ranks(DescriptorError, "make them agree", partial(ctx.load, folder / "a.zarr", (7, 8)))
    for ranks in some_wrong():
        name = "a" if COMM.rank in ranks else "b"
        raises_on_all_ranks(MismatchError, "dataset differs", partial(a.save, folder / "c.zarr", dataset=name))
    names = ["a.zarr", "cube.zarr", "g.zarr", "notes.zarr", "text.zarr"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert np.array_equal(collected(ctx.load(folder / "g.zarr", dataset="x")), np.ones((8, 7)))
    check_product(ctx)


def test_without_zarr_the_error_names_the_remedy(ctx: Context, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = ctx.ones((8, 7))
    a.save(folder / "x.zarr")
    for ranks in culprits():
        with monkeypatch.context() as patch:
            if COMM.rank in ranks:
                patch.setitem(sys.modules, "zarr", None)
            raises_on_all_ranks(BackendError, "pip install zarr", partial(ctx.load, folder / "x.zarr"))
        check_product(ctx)


def test_a_failed_save_leaves_the_old_array_and_no_other(
    ctx: Context, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = (
        (files, "write_part", PblasError),
        (zarr_folders, "create", FileFormatError),
        (Path, "rename", FileFormatError),
    )
    check_failed_saves(ctx, folder / "x.zarr", places, monkeypatch)

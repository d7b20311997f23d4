"""DistMatrix on GPUs: the laws of tests/mpi/matrices/test_matrix.py with CuPy arrays, and tests only for GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pblas import ArgumentError, BackendError, Context, DistMatrix, LayoutError, MatrixDescriptor
from pblas.backends.cpu.random import entries as random_entries
from pblas.errors import PblasWarning
from pblas.matrices import scatter_gather
from pblas.matrices.scatter_gather import part_of
from tests.common.gauge import NAMES
from tests.common.ranks import COMM, entries, layouts, raises_on_all_ranks, same_on_all_ranks
from tests.gpu.sharing import own_gpus
from tests.mpi.matrices.test_matrix import ORDERS, SLICES, Order, check_dealing, dtype_of

cupy = pytest.importorskip("cupy")
pytestmark = [pytest.mark.mpi, pytest.mark.gpu]
from pblas.backends.cuda import transfer  # noqa: E402 - it needs CuPy


@pytest.fixture(scope="module")
def ctx() -> Iterator[Context]:
    with Context(backend="nvshmem", timeout=60.0) as context:
        yield context


def check_local(matrix: DistMatrix, whole: Any) -> None:
    """Assert that this rank's GPU has exactly the shard of the descriptor."""
    rank, local = COMM.rank, matrix.local
    assert isinstance(local, cupy.ndarray)
    assert local.shape == matrix.desc.local_shape(rank)
    assert matrix.dtype == local.dtype == whole.dtype
    assert np.array_equal(matrix.runtime.backend.reading(local), part_of(whole, matrix.desc, rank))
    if whole.dtype.name != "bfloat16":  # and CuPy itself reads the same
        assert np.array_equal(cupy.asnumpy(local), part_of(whole, matrix.desc, rank))


def padded(desc: MatrixDescriptor, dtype: Any, gap: int = 3) -> tuple[Any, Any]:
    """(part, buffer) on the GPU: a poisoned buffer, in it this rank's part with gaps between its columns (or rows)."""
    rows, columns = desc.local_shape(COMM.rank)
    fast, slow = (rows, columns) if desc.order == "F" else (columns, rows)
    buffer = cupy.full((slow, fast + gap), -99, dtype)
    part = buffer[:, :fast]
    return (part.T if desc.order == "F" else part), buffer


def test_gpus_are_used_if_every_rank_has_one() -> None:
    with Context(timeout=60.0) as context:
        assert context.runtime.backend.name == "nvshmem"
        assert "GPU" in context.describe()
        assert isinstance(context.zeros(MatrixDescriptor.row_wise(8, 7, context.nprocs)).local, cupy.ndarray)


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("least", [0, scatter_gather.IN_PLACE_NBYTES])
def test_distributing_and_collecting_is_the_identity(
    ctx: Context, dtype: str, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scatter_gather, "IN_PLACE_NBYTES", least)
    check_dealing(ctx, dtype, check_local)


@pytest.mark.parametrize("order", ORDERS)
def test_a_large_matrix_travels_in_pieces(ctx: Context, order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter_gather, "IN_PLACE_NBYTES", 0)
    monkeypatch.setattr(transfer, "_DIRECT_NBYTES", 64)
    monkeypatch.setattr(transfer, "_PIECE_NBYTES", 512)
    for turn, desc in enumerate(layouts(40, 31, order)):
        root = turn % ctx.nprocs
        for dtype in ("float64", "float32"):
            array = np.asarray(entries(40, 31, np.float64), order=ORDERS[turn % 2])
            a = ctx.from_global(array if ctx.rank == root else None, desc, root, dtype=dtype)
            check_local(a, array.astype(dtype))
            everywhere = a.to_global(None)
            assert np.array_equal(everywhere, array.astype(dtype))


@pytest.mark.parametrize("order", ORDERS)
def test_all_ways_to_give_a_global_array_give_the_same_matrix(ctx: Context, order: Order) -> None:
    array = entries(8, 7, np.float64)
    on_device = cupy.asarray(array)
    for desc in layouts(8, 7, order):
        for source in (
            array,
            on_device,
            cupy.asfortranarray(on_device),
            on_device[::-1][::-1],
            cupy.repeat(on_device, 2, 0)[::2],
        ):
            check_local(ctx.from_global(source, desc, None), array)
            check_local(ctx.from_global(source, desc, ctx.nprocs - 1), array)
        check_local(ctx.from_global(array.tolist(), desc), array)
        check_local(ctx.from_global(lambda i, j: array[i, j], desc), array)
        check_local(ctx.from_global(on_device.astype(int), desc, dtype="float32"), array.astype("float32"))


@pytest.mark.parametrize("order", ORDERS)
def test_from_local_aliases_the_array_and_leaves_the_gaps_alone(ctx: Context, order: Order) -> None:
    for desc in layouts(8, 7, order):
        part, buffer = padded(desc, np.float64)
        a = ctx.from_local(part, replace(desc, lld=max(1, buffer.shape[1])))
        a.local[...] = ctx.rank + 1.0
        assert bool((part == ctx.rank + 1.0).all())
        part[...] = 7.0
        assert np.all(a.to_global(None) == 7.0)
        assert bool((buffer[:, -3:] == -99.0).all())
        assert np.all(ctx.from_local(part, desc).to_global(None) == 7.0)
        copied = ctx.from_local(part, desc, copy=True)
        copied.local[...] = -1.0
        assert bool((part == 7.0).all())


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("order", ORDERS)
def test_copies_come_from_any_memory_and_any_strides(ctx: Context, dtype: str, order: Order) -> None:
    array = entries(8, 7, dtype_of(dtype))
    for desc in layouts(8, 7, order):
        part = np.ascontiguousarray(part_of(array, desc, ctx.rank))
        words = cupy.asarray(
            part.view(np.uint16) if dtype == "bfloat16" else part
        )  # CuPy supports few copies of bfloat16
        on_device = [x.view(part.dtype) for x in (words, words.T.copy().T, words[::-1].copy()[::-1])]
        for source in (part, np.asfortranarray(part), part[::-1][::-1], *on_device):
            check_local(ctx.from_local(source, desc, copy=True), array)


def test_host_memory_that_would_be_used_in_place_is_rejected_on_every_rank(ctx: Context) -> None:
    desc = MatrixDescriptor.row_wise(8, 7, ctx.nprocs)
    part = np.zeros(desc.local_shape(ctx.rank), order="F")
    for rank in range(ctx.nprocs):
        array = part if ctx.rank == rank else cupy.asarray(part, order="F")
        message = raises_on_all_ranks(ArgumentError, "pass copy=True", partial(ctx.from_local, array, desc))
        assert f"found on rank {rank}" in message


def test_an_invalid_shard_is_rejected_on_every_rank(ctx: Context) -> None:
    desc = MatrixDescriptor.row_wise(8 * ctx.nprocs, 7, ctx.nprocs)
    every_other_row: Any
    a_list_of_arrays: Any
    every_other_row, a_list_of_arrays = cupy.zeros((16, 7), order="F")[::2], [[cupy.ones(2)]]
    raises_on_all_ranks(LayoutError, "copy=True", partial(ctx.from_local, every_other_row, desc))
    raises_on_all_ranks(ArgumentError, "not an array", partial(ctx.from_local, a_list_of_arrays, desc))


@pytest.mark.parametrize("dtype", NAMES)
def test_zeros_are_zeros_and_empty_has_the_shape(ctx: Context, dtype: str) -> None:
    for order in ORDERS:
        for desc in layouts(8, 7, order):
            for layout in (desc, replace(desc, lld=11)):
                dirty = ctx.random(layout, dtype)
                del dirty
                zeros, empty = ctx.zeros(layout, dtype), ctx.empty(layout, dtype)
                check_local(zeros, np.zeros((8, 7), dtype_of(dtype)))
                assert empty.local.shape == desc.local_shape(ctx.rank)
                assert empty.dtype == dtype_of(dtype)
                if empty.local.size:
                    slow = 1 if order == "F" else 0
                    assert empty.local.strides[slow] == layout.local_lld(ctx.rank) * empty.local.itemsize
                    assert empty.local.strides[1 - slow] == empty.local.itemsize


def test_a_new_matrix_has_the_same_offset_on_every_rank(ctx: Context) -> None:
    backend = ctx.runtime.backend
    for m, n in ((8, 7), (1000, 30), (5, 5)):
        a = ctx.empty(MatrixDescriptor.row_wise(m * ctx.nprocs, n, ctx.nprocs))
        window, _ = same_on_all_ranks(backend.arena.locate(backend.address(a.local)))
        assert window >= 0
    own = cupy.zeros((8, 7))
    assert backend.arena.locate(backend.address(own))[0] < 0


@pytest.mark.parametrize("dtype", NAMES)
def test_random_entries_have_the_bits_of_cpus(ctx: Context, dtype: str) -> None:
    expected = random_entries(np.arange(8)[:, None], np.arange(7)[None, :], 3, dtype_of(dtype))
    for order in ORDERS:
        for desc in layouts(8, 7, order):
            check_local(ctx.random(desc, dtype, seed=3), expected)


@pytest.mark.parametrize("dtype", ["float64", "complex64", "bfloat16"])
def test_views_and_submatrices_are_those_of_numpy_in_place(ctx: Context, dtype: str) -> None:
    array = entries(8, 7, dtype_of(dtype))
    for order in ORDERS:
        for desc in layouts(8, 7, order):
            a = ctx.from_global(array, desc, None)
            for view, expected in ((a.T, array.T), (a.H, array.conj().T), (a.H.T, array.conj()), (a.H.H, array)):
                check_local(view, expected)
                assert np.array_equal(view.to_global(None), expected)
            for key in SLICES:
                check_local(a[key], array[key])
                check_local(a[key].T, array[key].T)
                assert np.array_equal(a[key].to_global(None), array[key])
            if dtype == "float64":
                changed = array.copy()
                changed[1:7, 1:][2:, :-2] = -99.0
                a[1:7, 1:][2:, :-2].local[...] = -99.0
                assert np.array_equal(a.to_global(None), changed)


@pytest.mark.parametrize("dtype", ["float32", "complex128", "bfloat16"])
def test_files_are_the_same_as_on_cpus(ctx: Context, dtype: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = Path(COMM.bcast(str(tmp_path_factory.mktemp("files")) if COMM.rank == 0 else None, 0))
    array = entries(8, 7, dtype_of(dtype))
    for order in ORDERS:
        for desc in layouts(8, 7, order):
            ctx.from_global(array, desc, None).save(folder / "a.npy")
            ctx.from_global(array, desc, None).H.save(folder / "h.npy")
            raw = dtype_of(dtype) if dtype == "bfloat16" else None
            stored = np.load(folder / "a.npy")
            assert np.array_equal(stored.view(array.dtype), array)
            check_local(ctx.load(folder / "a.npy", desc, raw), array)
            check_local(ctx.load(folder / "h.npy", desc.T, raw), array.conj().T)


def test_shadows_overlap_where_the_arrays_do(ctx: Context) -> None:
    memory_of = ctx.runtime.backend.memory_of
    x, host = cupy.zeros((6, 5)), np.zeros((6, 5))

    def parts(a: Any) -> list[Any]:
        return [a, a.T, a[1:], a[:3], a[3:], a[:, :2], a[:, 2:], a[::2], a[1::2], a[2:2], a[1:3, 1:3].T]

    for on_device, on_host in zip(parts(x), parts(host), strict=True):
        assert memory_of(on_device).shape == on_host.shape
        for other_there, other_here in zip(parts(x), parts(host), strict=True):
            assert np.may_share_memory(memory_of(on_device), memory_of(other_there)) == np.may_share_memory(
                on_host, other_here
            )
            assert np.shares_memory(memory_of(on_device), memory_of(other_there)) == np.shares_memory(
                on_host, other_here
            )
    assert not np.may_share_memory(memory_of(x), memory_of(cupy.zeros((6, 5))))


def test_collecting_a_matrix_waits_for_all_streams(ctx: Context) -> None:
    n, times = 3000, 50
    a = ctx.zeros(MatrixDescriptor.row_wise(n, n, ctx.nprocs))
    streams = (cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(), cupy.cuda.Stream.null)
    for turn, stream in enumerate(streams, 1):
        with stream:
            for _ in range(times):
                a.local[...] += 1.0
        assert np.all(a.to_global(None) == turn * times)


def test_memory_of_dropped_matrices_is_reused(ctx: Context) -> None:
    desc = MatrixDescriptor.row_wise(500, 500, ctx.nprocs)
    arena = ctx.runtime.backend.arena
    for _ in range(3):
        ctx.zeros(desc)
    before = arena.live_nbytes
    for turn in range(200):
        assert ctx.random(desc, "float32", seed=turn).local.size >= 0
    assert arena.live_nbytes <= before + 3 * desc.max_local_nelements * 8


def test_an_array_that_outlives_its_context_is_named() -> None:
    context = Context(backend="nvshmem", timeout=60.0)
    kept = context.zeros(MatrixDescriptor.row_wise(8, 7, context.nprocs)).local
    with pytest.warns(PblasWarning, match="still in use after the context was closed"):
        context.close()
    del kept


@pytest.mark.parametrize("device", [99, -1])
def test_an_invalid_gpu_is_rejected_on_every_rank(device: Any) -> None:
    for rank in range(COMM.size):
        wanted = device if COMM.rank == rank else None
        raises_on_all_ranks(BackendError, "device", partial(Context, backend="nvshmem", device=wanted, timeout=60.0))


@own_gpus
def test_two_ranks_on_one_gpu_are_rejected_on_every_rank() -> None:
    if COMM.size == 1:
        pytest.skip("one rank has its GPU to itself")
    raises_on_all_ranks(BackendError, "GPU", partial(Context, backend="nvshmem", device=0, timeout=60.0))
    with Context(backend="nvshmem", timeout=60.0) as context:  # and the next context works
        assert np.all(context.zeros(MatrixDescriptor.row_wise(8, 7, context.nprocs)).to_global(None) == 0)

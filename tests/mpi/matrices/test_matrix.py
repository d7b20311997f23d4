"""DistMatrix: a new matrix has the requested entries at the places of its descriptor, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest

import pblas
from pblas import ArgumentError, Context, ContextError, DistMatrix, MatrixDescriptor, WorkspaceError
from pblas.backends.cpu.random import entries as random_entries
from pblas.matrices import scatter_gather as transfer
from pblas.runtime.runtime import checked_dtype
from tests.common.gauge import NAMES
from tests.common.ranks import (
    COMM,
    check_broken_half_way,
    entries,
    layouts,
    no_memory,
    padded,
    raises_on_all_ranks,
    same_on_all_ranks,
)

pytestmark = pytest.mark.mpi

TIMEOUT = 20.0
SIZES = ((8, 7), (9, 1), (1, 9), (2, 3), (0, 5), (4, 0))
Order = Literal["F", "C"]
ORDERS: tuple[Order, Order] = ("F", "C")


def dtype_of(name: str) -> np.dtype[Any]:
    return checked_dtype("test", name)


def check_local(matrix: DistMatrix, whole: Any) -> None:
    """Assert that this rank has exactly what the descriptor says, by asking it element by element."""
    desc = matrix.desc
    assert matrix.local.shape == desc.local_shape(COMM.rank)
    assert matrix.dtype == matrix.local.dtype == whole.dtype
    assert matrix.shape == whole.shape
    for i_loc in range(matrix.local.shape[0]):
        for j_loc in range(matrix.local.shape[1]):
            assert matrix.local[i_loc, j_loc] == whole[desc.global_index(COMM.rank, i_loc, j_loc)]


def check_dealing(ctx: Context, dtype: str, check_local: Callable[[DistMatrix, Any], None]) -> None:
    """**Collective.** Assert that a matrix distributed to any layout, from any rank, is collected unchanged."""
    for m, n in SIZES if dtype == "float64" else SIZES[:2]:
        for order in ORDERS:
            for turn, desc in enumerate(layouts(m, n, order)):
                root = turn % ctx.nprocs
                array = np.asarray(entries(m, n, dtype_of(dtype)), order=ORDERS[turn % 2])
                a = ctx.from_global(array if ctx.rank == root else None, desc, root)
                check_local(a, array)
                result = a.to_global(root)
                assert (result is None) == (ctx.rank != root)
                if result is not None:
                    assert isinstance(result, np.ndarray)
                    assert result.dtype == array.dtype
                    assert np.array_equal(result, array)
                    assert result.flags.f_contiguous if order == "F" else result.flags.c_contiguous
                everywhere = a.to_global(None)
                assert everywhere is not None
                assert np.array_equal(everywhere, array)


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("transport", ["auto", "message"])
@pytest.mark.parametrize("least", [0, transfer.IN_PLACE_NBYTES])
def test_dealing_out_and_collecting_is_the_identity(
    dtype: str, transport: Literal["auto", "message"], least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "IN_PLACE_NBYTES", least)
    with Context(timeout=TIMEOUT, transport=transport) as ctx:
        check_dealing(ctx, dtype, check_local)


@pytest.mark.parametrize("order", ORDERS)
def test_all_ways_to_give_a_global_array_give_the_same_matrix(ctx: Context, order: Order) -> None:
    array = entries(8, 7, np.float64)
    for desc in layouts(8, 7, order):
        for source in (array, np.asfortranarray(array), np.repeat(array, 2, 0)[::2], array[::-1][::-1]):
            check_local(ctx.from_global(source, desc, None), array)
            check_local(ctx.from_global(source, desc, ctx.nprocs - 1), array)
        check_local(ctx.from_global(array.tolist(), desc), array)
        check_local(ctx.from_global(lambda i, j: array[i, j], desc), array)
        check_local(ctx.from_global(array.astype(int), desc, dtype="float32"), array.astype("float32"))


def test_a_function_sees_its_own_indices_only(ctx: Context) -> None:
    desc = MatrixDescriptor.replicated(2, 3, ctx.nprocs)
    seen_shapes: list[tuple[Any, Any]] = []

    def record(i: Any, j: Any) -> Any:
        seen_shapes.append((i.shape, j.shape))
        return i * 10.0 + j

    a = ctx.from_global(record, desc)
    assert seen_shapes == [((2, 1), (1, 3))]
    assert a.local.tolist() == [[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("source_order", ORDERS)
def test_shards_sent_in_many_panels_arrive_unchanged(
    ctx: Context, order: Order, source_order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_PANEL_NBYTES", 40)
    for m, n in ((8, 7), (1, 30), (30, 1)):
        array = np.asarray(entries(m, n, np.float32), order=source_order)
        for desc in layouts(m, n, order):
            a = ctx.from_global(array, desc, ctx.nprocs - 1, dtype="float64")
            check_local(a, array.astype(float))
            assert np.array_equal(a.to_global(None), array)
            part, _ = padded(desc, ctx.rank, np.float64)
            part[...] = a.local
            assert np.array_equal(ctx.from_local(part, desc).to_global(None), array)
        # a single row or column fits either order, however it is stored
        for desc in (MatrixDescriptor.column_wise(1, 30, ctx.nprocs), MatrixDescriptor.row_wise(30, 1, ctx.nprocs)):
            desc = replace(desc, order=order)  # noqa: PLW2901
            whole = entries(*desc.shape, np.float64)
            part = np.array(ctx.from_global(whole, desc, None).local, order="C")
            assert np.array_equal(ctx.from_local(part, desc).to_global(None), whole)


@pytest.mark.parametrize("order", ORDERS)
def test_from_local_aliases_the_array_and_leaves_the_gaps_alone(ctx: Context, order: Order) -> None:
    for desc in layouts(8, 7, order):
        part, buffer = padded(desc, ctx.rank, np.float64)
        inside = np.zeros(buffer.shape, bool)
        inside[:, : buffer.shape[1] - 3] = True
        a = ctx.from_local(part, replace(desc, lld=max(1, buffer.shape[1])))
        a.local[...] = ctx.rank + 1.0
        assert np.all(part == ctx.rank + 1.0)
        part[...] = 7.0
        assert np.all(a.local == 7.0)
        assert np.all(a.to_global(None) == 7.0)
        assert np.all(buffer[~inside] == -99.0)
        free = ctx.from_local(part, desc)  # a descriptor without lld takes the array's
        assert np.all(free.to_global(None) == 7.0)
        copied = ctx.from_local(part, desc, copy=True)
        copied.local[...] = -1.0
        assert np.all(part == 7.0)


def test_extents_of_at_most_one_fit_either_order(ctx: Context) -> None:
    for order in ORDERS:
        row = MatrixDescriptor.row_wise(ctx.nprocs, 5, ctx.nprocs, order="F")
        column = MatrixDescriptor.column_wise(5, ctx.nprocs, ctx.nprocs, order="C")
        thin = MatrixDescriptor.row_wise(ctx.nprocs, 1, ctx.nprocs, order=order)
        none = MatrixDescriptor.row_wise(0, 5, ctx.nprocs, order=order)
        for desc, shape in ((row, (1, 5)), (column, (5, 1)), (thin, (1, 1)), (none, (0, 5))):
            for stored in ORDERS:
                part = np.full(shape, ctx.rank + 1.0, order=stored)
                strided = np.full((4 * shape[0], 4 * shape[1]), ctx.rank + 1.0)[::4, : shape[1]][: shape[0]]
                for x in (part, strided):
                    whole = ctx.from_local(x, desc).to_global(None)
                    assert whole is not None
                    assert whole.shape == desc.shape
                    assert whole.sum() == (0 if 0 in shape else sum(range(1, ctx.nprocs + 1)) * x.size)


@pytest.mark.parametrize("dtype", NAMES)
def test_padding_below_lld_is_never_touched(ctx: Context, dtype: str) -> None:
    """Neither by making a matrix, nor by collecting it, nor by a product that writes it."""
    n = 6
    for order in ORDERS:
        desc = MatrixDescriptor.row_wise(n, n, ctx.nprocs, order=order)
        part, buffer = padded(desc, ctx.rank, dtype_of(dtype))
        out = ctx.from_local(part, replace(desc, lld=buffer.shape[1]))
        a = ctx.from_global(entries(n, n, dtype_of(dtype)) * 0, desc, None)
        pblas.pmatmul(a, a, out=out)
        assert np.all(part == 0)
        assert np.all(buffer[:, -3:] == -99)
        assert COMM.allreduce(int(buffer[:, :-3].size)) == n * n


@pytest.mark.parametrize("dtype", NAMES)
def test_zeros_are_zeros_and_empty_has_the_shape(ctx: Context, dtype: str) -> None:
    for order in ORDERS:
        for desc in layouts(8, 7, order):
            dirty = ctx.empty(desc, dtype)
            dirty.local[...] = 9
            del dirty
            for layout in (desc, replace(desc, lld=11)):
                zeros, empty = ctx.zeros(layout, dtype), ctx.empty(layout, dtype)
                check_local(zeros, np.zeros((8, 7), dtype_of(dtype)))
                assert empty.local.shape == desc.local_shape(ctx.rank)
                assert empty.dtype == dtype_of(dtype)
                if empty.local.size:
                    slow = 1 if order == "F" else 0
                    step = layout.local_lld(ctx.rank) * empty.local.itemsize
                    assert empty.local.strides[slow] == step
                    assert empty.local.strides[1 - slow] == empty.local.itemsize
                zeros.local[...] = 1  # and they are not the same memory
                empty.local[...] = 2
                assert np.all(zeros.local == 1)


@pytest.mark.parametrize("dtype", NAMES)
def test_random_entries_depend_on_their_place_and_the_seed_only(ctx: Context, dtype: str) -> None:
    i, j = np.arange(8)[:, None], np.arange(7)[None, :]
    results = []
    seeds: list[Any] = [0, 1, -1, 2**63, np.int32(-7), np.uint64(2**63 + 1)]
    for seed in seeds:
        expected = random_entries(i, j, int(seed), dtype_of(dtype))
        results.append(expected)
        for order in ORDERS:
            for desc in layouts(8, 7, order):
                check_local(ctx.random(desc, dtype, seed=seed), expected)
    for first in range(len(results)):
        for second in range(first):
            assert not np.array_equal(results[first], results[second])


@pytest.mark.parametrize("dtype", NAMES)
def test_random_entries_fill_the_interval(dtype: str) -> None:
    values = random_entries(np.arange(300)[:, None], np.arange(301)[None, :], 5, dtype_of(dtype))
    parts = [values.real, values.imag] if values.dtype.kind == "c" else [values.astype(np.float64)]
    for part in parts:
        assert part.min() >= -1.0
        assert part.max() < 1.0
        sigma = 1 / np.sqrt(3 * part.size)
        assert abs(float(part.mean())) < 5 * sigma
        assert abs(float(part.var()) - 1 / 3) < 0.01
        assert abs(float((part[1:] * part[:-1]).mean())) < 10 * sigma
        assert abs(float((part[:, 1:] * part[:, :-1]).mean())) < 10 * sigma
    assert len(np.unique(parts[0])) > (30 if dtype == "bfloat16" else 300)
    if len(parts) == 2:
        assert abs(float((parts[0] * parts[1]).mean())) < 5 / np.sqrt(parts[0].size)


@pytest.mark.parametrize("dtype", ["float64", "complex64", "bfloat16"])
def test_views_are_those_of_numpy_and_share_memory(ctx: Context, dtype: str) -> None:
    array = entries(8, 7, dtype_of(dtype))
    for order in ORDERS:
        for desc in layouts(8, 7, order):
            a = ctx.from_global(array, desc, None)
            check_local(a.T, array.T)
            check_local(a.H, array.conj().T)
            check_local(a.H.H, array)
            check_local(a.H.T, array.conj())
            check_local(a.T[1:6, 2:8].H, array.T[1:6, 2:8].conj().T)
            for view, expected in ((a.T, array.T), (a.H, array.conj().T), (a.H.T, array.conj())):
                assert np.array_equal(view.to_global(None), expected)
            assert a.T.T.desc == a.desc
            if a.local.size:
                assert np.shares_memory(a.T.local, a.local)
                if a.dtype.kind != "c":
                    assert np.shares_memory(a.H.local, a.local)
                else:  # lazy: a copy on demand, which must not be mistaken for the memory
                    with pytest.raises(ValueError, match="read-only"):
                        a.H.local[0, 0] = 1


SLICES = (
    (slice(None), slice(None)),
    (slice(1, 6), slice(2, 7)),
    (slice(-5, -1), slice(-3, None)),
    (slice(3, 4), slice(None, 3)),
    (slice(7, 99), slice(0, 7)),
    (slice(5, 2), slice(None)),
    (slice(0, 0), slice(7, 7)),
    (slice(8, 8), slice(-99, 2)),
)


def test_a_submatrix_is_the_slice_of_numpy_in_place(ctx: Context) -> None:
    array = entries(8, 7, np.float64)
    for order in ORDERS:
        for desc in layouts(8, 7, order):
            a = ctx.from_global(array, desc, None)
            for key in SLICES:
                check_local(a[key], array[key])
                assert np.array_equal(a[key].to_global(None), array[key])
            twice, expected = a[1:7, 1:][2:, :-2], array[1:7, 1:][2:, :-2]
            check_local(twice, expected)
            check_local(twice.T[1:, 1:], expected.T[1:, 1:])
            twice.local[...] = -99.0
            changed = array.copy()
            changed[1:7, 1:][2:, :-2] = -99.0
            assert np.array_equal(a.to_global(None), changed)


@pytest.mark.parametrize(
    "key",
    [
        True,
        (0, 0.0),
        (slice(None),) * 3,
        (..., 0, ...),
        None,
        (slice(0.5, 2), slice(None)),
        (slice(None), slice("a", None)),
        (slice(None, None, 0), slice(None)),
    ],
)
def test_an_invalid_submatrix_is_refused(ctx: Context, key: Any) -> None:
    a = ctx.zeros(MatrixDescriptor.row_wise(4, 4, ctx.nprocs))
    raises_on_all_ranks(ArgumentError, "slice", lambda: a[key])


def test_views_of_a_view_keep_the_memory_alive(ctx: Context) -> None:
    desc = MatrixDescriptor.row_wise(8, 8, ctx.nprocs)
    view = ctx.from_global(entries(8, 8, np.float64), desc, None)[2:, 2:].T
    for _ in range(20):  # dropped blocks are handed out again; this one must not be
        ctx.zeros(desc)
    assert np.array_equal(view.to_global(None), entries(8, 8, np.float64)[2:, 2:].T)


def test_the_matrix_operator_is_pmatmul_and_refuses_other_types(ctx: Context) -> None:
    a = ctx.from_global(entries(6, 6, np.float64), MatrixDescriptor.row_wise(6, 6, ctx.nprocs), None)
    assert np.array_equal((a @ a).to_global(None), entries(6, 6, np.float64) @ entries(6, 6, np.float64))
    for operand in (np.float64(2), 3.0, None, "A"):
        with pytest.raises((TypeError, ArgumentError)):
            a @ operand  # type: ignore[operator]


def test_a_matrix_is_not_true_and_hashes_by_identity(ctx: Context) -> None:
    a, b = (ctx.zeros(MatrixDescriptor.row_wise(6, 4, ctx.nprocs)) for _ in range(2))
    raises_on_all_ranks(ArgumentError, "A.size != 0", lambda: bool(a))
    assert {a: 1, b: 2}[b] == 2


def test_properties_of_an_array(ctx: Context) -> None:
    a = ctx.zeros(MatrixDescriptor.row_wise(6, 4, ctx.nprocs), "complex64")
    assert (a.ndim, a.size, a.nbytes, len(a)) == (2, 24, 192, 6)
    a.local[...] = 1 + 2j
    a.local += 1
    assert np.array_equal(a.local, np.full_like(a.local, 2 + 2j))
    with pytest.raises(ArgumentError, match=r"A\.local\[\.\.\.\] = x writes into it"):
        a.local = a.local.copy()
    assert np.array_equal(a.conj().local, a.local.conj())
    assert np.array_equal(a.conj().conj().local, a.local)


def test_tab_shows_public_names(ctx: Context) -> None:
    names = set(dir(ctx.zeros(MatrixDescriptor.row_wise(6, 4, ctx.nprocs))))
    assert {"T", "local", "redistribute", "desc", "dtype"} <= names
    assert not {"detach", "key", "signature", "stored", "runtime"} & names
    assert not {"Any", "import_module", "annotations", "TYPE_CHECKING"} & set(dir(pblas))


def test_the_repr_of_a_matrix_is_the_same_on_every_rank(ctx: Context) -> None:
    desc = replace(MatrixDescriptor.row_wise(6, 4, ctx.nprocs), lld=6 + ctx.rank)
    text = same_on_all_ranks(repr(ctx.zeros(desc, "complex64").H))
    for part in ("4 x 6", "complex64", "conjugated", "MatrixDescriptor("):
        assert part in text


@pytest.mark.mpi(min_size=2)  # without messages the context goes on
@pytest.mark.parametrize("by", ["scatter", "gather"])
def test_a_matrix_that_is_dealt_out_or_collected_in_part_breaks_the_context(ctx: Context, by: str) -> None:
    x, desc = np.ones((8, 7)), MatrixDescriptor.row_wise(8, 7, COMM.size)
    a = ctx.from_global(x, desc)
    call = a.to_global if by == "gather" else partial(ctx.from_global, x, desc)
    assert "_global: KeyboardInterrupt" in check_broken_half_way(call, f"pblas.matrices.scatter_gather.{by}")


@pytest.mark.mpi(min_size=2)  # otherwise nobody waits
def test_an_exception_amid_messages_breaks_the_context_on_every_rank_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the first rank fails while it collects the parts, the others do not wait until the deadline."""
    with Context(timeout=TIMEOUT) as ctx:
        a = ctx.random(MatrixDescriptor.row_wise(2 * COMM.size, 7, COMM.size, mb=1))
        if COMM.rank == 0:
            monkeypatch.setattr(transfer, "put_part", no_memory)
        raises_on_all_ranks(WorkspaceError, "to_global: MemoryError", lambda: a.to_global(None))
        monkeypatch.undo()
        raises_on_all_ranks(ContextError, "broken since this happened: to_global: MemoryError", a.to_global)

"""Constructors: NumPy's matrices in any layout, on any number of ranks; a shape stands for the default layout."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import pytest

import pblas
from pblas import Context, DistMatrix, Grid, MatrixDescriptor
from pblas.backends.cpu.random import entries as random_entries
from pblas.errors import ArgumentError, DescriptorError, DTypeError, LayoutError, MismatchError
from tests.common.gauge import NAMES, dtype_of, entries
from tests.common.ranks import Contexts, check_product, collected, raises_on_all_ranks, some_wrong
from tests.mpi.matrices.arrays import Mistake, check_mistake, some_descriptor

pytestmark = pytest.mark.mpi
SETTINGS = ("shared", "message")
SHAPES = ((0, 0), (0, 5), (1, 1), (1, 9), (2, 7), (8, 9), (9, 1))


def check(a: DistMatrix, expected: Any, desc: MatrixDescriptor) -> None:
    """**Collective.** The matrix has these elements, dtype and layout."""
    assert a.desc == desc
    assert a.dtype == expected.dtype
    assert np.array_equal(collected(a), expected)


@pytest.mark.parametrize("dtype", NAMES)
def test_filled_matrices_are_those_of_numpy(contexts: Contexts, dtype: str) -> None:
    ctx, kind = contexts["shared"], dtype_of(dtype)
    for seed, (m, n) in enumerate(SHAPES):
        desc = some_descriptor(Random(seed), m, n, ctx.nprocs)
        default = MatrixDescriptor.default(m, n, ctx.nprocs)
        layouts: tuple[tuple[Any, MatrixDescriptor], ...] = ((desc, desc), ((m, n), default), ([m, n], default))
        for layout, expected in layouts:
            check(ctx.zeros(layout, kind), np.zeros((m, n), kind), expected)
            check(ctx.ones(layout, kind), np.ones((m, n), kind), expected)
            check(ctx.full(layout, -2.5, kind), np.full((m, n), -2.5, kind), expected)
            for k in (0, 1, -2, 20):
                check(ctx.eye(layout, kind, k=k), np.eye(m, n, k, kind), expected)
            check(ctx.zeros_like(ctx.ones(layout, kind)), np.zeros((m, n), kind), expected)
            check(ctx.from_function(lambda i, j: i - 2.0 * j, layout, kind), index_values(m, n).astype(kind), expected)
            assert ctx.empty(layout, kind).desc == expected
            assert ctx.random(layout, kind).desc == expected


def index_values(m: int, n: int) -> Any:
    """The values of i - 2 j."""
    return np.fromfunction(lambda i, j: i - 2.0 * j, (m, n))


def test_the_dtype_of_full_is_that_of_its_value(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    values: tuple[tuple[Any, str], ...] = (
        (1, "float64"),
        (2.0, "float64"),
        (1j, "complex128"),
        (np.float32(1), "float32"),
    )
    for value, dtype in values:
        assert ctx.full((2, 2), value).dtype == dtype
    assert collected(ctx.full((1, 2), np.nan)).tolist() != [[0.0, 0.0]]
    assert ctx.eye(3).shape == (3, 3)
    assert ctx.zeros_like(ctx.eye(3)[1:, :2], "complex64").dtype == np.complex64


def test_views_are_like_matrices(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    for view in (ctx.ones((8, 7))[2:5, 1:4].T, ctx.full((8, 7), 1j).H):
        like = ctx.zeros_like(view)
        assert like.shape == view.shape
        assert like.local.shape == view.local.shape
        assert not collected(like).any()


def test_every_constructor_has_the_same_default_layout(contexts: Contexts, folder: Path) -> None:
    ctx = contexts["shared"]
    for m, n in SHAPES:
        x, default = index_values(m, n), MatrixDescriptor.default(m, n, ctx.nprocs)
        check(ctx.from_global(x), x, default)
        check(ctx.from_global(x if ctx.rank == ctx.nprocs - 1 else None, root=ctx.nprocs - 1), x, default)
        check(ctx.from_global(x, root=None), x, default)
        check(ctx.from_global(lambda i, j: i - 2.0 * j, (m, n)), x, default)
        check(ctx.from_local(np.zeros(default.local_shape(ctx.rank), order="F"), (m, n)), 0 * x, default)
        path = folder / f"{m}x{n}.npy"
        ctx.from_global(x).save(path)
        check(ctx.load(path), x, default)


def test_a_context_of_c_order_makes_no_other_matrix(contexts: Contexts, folder: Path) -> None:
    x = index_values(8, 7)
    with Context(order="C") as ctx:
        a, path = ctx.from_global(x, root=None), folder / "order.npy"
        a.save(path)
        assert not np.load(path).flags.f_contiguous
        made = {
            "load": (ctx.load(path), x),
            "from_parts": (ctx.from_parts(x), np.vstack([x] * ctx.nprocs)),
            "replicate": (ctx.replicate(x), x),
            "zeros": (ctx.zeros((8, 7)), 0 * x),
            "products": (a.T @ a, x.T @ x),
            "products with arrays": (np.ones((2, 8)) @ a, np.ones((2, 8)) @ x),
            "expressions": (a.T + a.T, 2 * x.T),
            "copies": (a.T.copy(), x.T),
            "lists": (a[::2], x[::2]),
            "shapes": (ctx.from_global(x, (8, 7)), x),
        }
        for name, (b, expected) in made.items():
            assert np.array_equal(collected(b), expected)
            assert b.desc.order == "C", name
        assert ctx.load(path, order="F").desc.order == ctx.from_global(x, order="F").desc.order == "F"
        planned = pblas.plan_matmul(a, a.T)
        plain = contexts["shared"].from_global(x, root=None)
        same = pblas.plan_matmul(plain, plain.T)
        for nbytes in ("max_received_nbytes", "workspace_nbytes", "memory_nbytes"):  # no copy more
            assert getattr(planned.plan, nbytes) == getattr(same.plan, nbytes)
    ctx = contexts["shared"]
    for made_one in (ctx.load(path, order="C"), ctx.from_global(x, order="C"), ctx.from_parts(x, order="C")):
        assert made_one.desc.order == "C"
    desc = MatrixDescriptor.default(8, 7, ctx.nprocs)
    raises_on_all_ranks(ArgumentError, "order is 'C', the descriptor has 'F'", lambda: ctx.load(path, desc, order="C"))
    wrong: Any = "A"
    raises_on_all_ranks(ArgumentError, "by columns", lambda: Context(order=wrong))


def test_default_layouts_give_every_rank_something_if_they_can() -> None:
    for nprocs in (1, 3, 4):
        for m, n in ((4, 4), (1, 9), (9, 1), (100, 3)):
            desc = MatrixDescriptor.default(m, n, nprocs)
            assert desc.is_row_wise or desc.is_column_wise
            if max(m, n) % nprocs == 0:
                assert all(0 not in desc.local_shape(rank) for rank in range(nprocs))


@pytest.mark.parametrize("dtype", NAMES)
def test_random_numbers_do_not_depend_on_the_layout(contexts: Contexts, dtype: str) -> None:
    ctx, kind = contexts["shared"], dtype_of(dtype)
    for distribution in ("uniform", "normal"):
        whole = random_entries(np.arange(9)[:, None], np.arange(8)[None, :], 5, kind, normal=distribution == "normal")
        for seed in range(4):
            desc = some_descriptor(Random(seed), 9, 8, ctx.nprocs)
            check(ctx.random(desc, kind, seed=5, distribution=distribution), whole, desc)


def test_normal_numbers_have_the_moments_of_the_distribution(contexts: Contexts) -> None:
    a = collected(contexts["shared"].random((400, 250), "complex128", seed=3, distribution="normal"))
    for x, other in ((a.real, a.imag), (a.imag, a.real)):
        n = x.size
        assert abs(x.mean()) < 5 / np.sqrt(n)
        assert abs((x**2).mean() - 1) < 5 * np.sqrt(2 / n)
        assert abs((x**4).mean() - 3) < 5 * np.sqrt(96 / n)
        assert abs((np.abs(x) < 1).mean() - 0.6826895) < 5 * np.sqrt(0.22 / n)
        for independent in (np.roll(x, 1, 0), np.roll(x, 1, 1), other):
            assert abs((x * independent).mean()) < 5 / np.sqrt(n)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("dtype", ["float64", "complex64", "bfloat16"])
def test_parts_are_stacked_in_the_order_of_ranks(contexts: Contexts, setting: str, dtype: str) -> None:
    ctx = contexts[setting]
    for seed in range(8):
        rng = Random(seed)
        lengths = [rng.choice([0, 1, 2, 7]) for _ in range(ctx.nprocs)]
        if seed == 7:
            lengths = [4] * ctx.nprocs  # the even layout
        width, total = rng.choice([0, 1, 5]), sum(lengths)
        x, start = entries((total, width), dtype_of(dtype), seed), sum(lengths[: ctx.rank])
        part = np.asarray(x[start : start + lengths[ctx.rank]], order=rng.choice("CF"))  # type: ignore[call-overload]
        if not lengths[ctx.rank] and seed % 2 and any(lengths):
            part = part.reshape(0, 0) if width == 0 else np.empty((0, 0), x.dtype)  # of any width
        check(ctx.from_parts(part), x, MatrixDescriptor.row_wise(total, width, ctx.nprocs))
        check(ctx.from_parts(part.T, 1), x.T, MatrixDescriptor.column_wise(width, total, ctx.nprocs))


def test_large_parts_move_in_several_messages(contexts: Contexts, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = contexts["message"]
    monkeypatch.setattr("pblas.matrices.constructors._PANEL_NBYTES", 100)
    x = entries((10 * ctx.nprocs, 7), np.dtype(float), 1)
    mine = x if ctx.rank == ctx.nprocs - 1 else x[:0]
    check(ctx.from_parts(mine), x, MatrixDescriptor.row_wise(len(x), 7, ctx.nprocs))


def test_a_replicated_matrix_is_whole_on_every_rank(contexts: Contexts) -> None:
    ctx, x = contexts["shared"], index_values(3, 4)
    a = ctx.replicate(x)
    check(a, x, MatrixDescriptor.replicated(3, 4, ctx.nprocs))
    assert np.array_equal(ctx.runtime.backend.reading(a.local), x)
    b = ctx.ones((5, 3))
    for result, expected in ((b @ x, np.ones((5, 3)) @ x), (x.T @ b.T, x.T @ np.ones((3, 5)))):
        assert isinstance(result, DistMatrix)
        assert np.array_equal(collected(result), expected)


Calls = tuple[type[Exception], str, Callable[[Context], object], Callable[[Context], object]]
BIG = Grid(100, 100)
WRONG: dict[str, Mistake[Context]] = {
    "a layout": (ArgumentError, "or a shape", lambda c: c.ones("4 x 4"), lambda c: c.ones((4, 4))),  # type: ignore[arg-type]
    "three sizes": (ArgumentError, "or a shape", lambda c: c.zeros((4, 4, 4)), lambda c: c.zeros((4, 4))),  # type: ignore[arg-type]
    "a negative size": (LayoutError, "m is -1", lambda c: c.full((-1, 4), 1), lambda c: c.full((1, 4), 1)),
    "a size that is no integer": (LayoutError, "n is 4.0", lambda c: c.eye((4, 4.0)), lambda c: c.eye((4, 4))),  # type: ignore[arg-type]
    "another size": (MismatchError, "desc differs", lambda c: c.eye(4), lambda c: c.eye(5)),
    "a grid": (
        LayoutError,
        "smaller grid",
        lambda c: c.ones(MatrixDescriptor(9, 9, 1, 1, BIG)),
        lambda c: c.ones((9, 9)),
    ),
    "a dtype": (DTypeError, "dtype must be one of", lambda c: c.ones((4, 4), int), lambda c: c.ones((4, 4))),
    "another value": (MismatchError, "value differs", lambda c: c.full((4, 4), 1), lambda c: c.full((4, 4), 2)),
    "no number": (ArgumentError, "must be a number", lambda c: c.full((4, 4), "1"), lambda c: c.full((4, 4), 1)),  # type: ignore[arg-type]
    "a complex value": (
        *(ArgumentError, "must be real"),
        *(lambda c: c.full((4, 4), 1j, float), lambda c: c.full((4, 4), 1.0, float)),
    ),
    "a diagonal": (ArgumentError, "k must be an integer", lambda c: c.eye(4, k=0.5), lambda c: c.eye(4)),  # type: ignore[arg-type]
    "no function": (
        *(ArgumentError, "expected f(i, j)"),
        *(lambda c: c.from_function(np.ones((4, 4)), (4, 4)), lambda c: c.from_function(lambda i, j: i + j, (4, 4))),
    ),
    "a distribution": (
        *(ArgumentError, "distribution must be"),
        *(lambda c: c.random((4, 4), distribution="gauss"), lambda c: c.random((4, 4))),
    ),
    "another distribution": (
        *(MismatchError, "distribution differs"),
        *(lambda c: c.random((4, 4), distribution="normal"), lambda c: c.random((4, 4))),
    ),
    "a vector": (
        *(ArgumentError, "2 dimensions"),
        *(lambda c: c.replicate(np.ones(4)), lambda c: c.replicate(np.ones((4, 4)))),
    ),
    "another shape to replicate": (
        *(MismatchError, "desc differs"),
        *(lambda c: c.replicate(np.ones((5, 4))), lambda c: c.replicate(np.ones((4, 4)))),
    ),
    "an array of another shape": (
        *(MismatchError, "shape differs"),
        *(lambda c: c.from_global(np.ones((5, 4)), root=None), lambda c: c.from_global(np.ones((4, 4)), root=None)),
    ),
    "an axis": (
        *(ArgumentError, "axis must be"),
        *(lambda c: c.from_parts(np.ones((4, 4)), 2), lambda c: c.from_parts(np.ones((4, 4)))),
    ),
    "parts of one dimension": (
        *(ArgumentError, "2 dimensions"),
        *(lambda c: c.from_parts(np.ones(4)), lambda c: c.from_parts(np.ones((4, 4)))),
    ),
    "parts of integers": (
        *(DTypeError, "dtype must be one of"),
        *(lambda c: c.from_parts(np.ones((4, 4), int)), lambda c: c.from_parts(np.ones((4, 4)))),
    ),
    "parts of another dtype": (
        *(MismatchError, "dtype differs"),
        *(lambda c: c.from_parts(np.ones((4, 4), "f4")), lambda c: c.from_parts(np.ones((4, 4)))),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_of_one_rank_is_raised_on_all(contexts: Contexts, name: str) -> None:
    ctx = contexts["shared"]
    check_mistake(ctx, WRONG[name], ctx)


def test_zeros_like_an_array_are_refused(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    a: Any = ctx.ones((4, 4))
    for culprits in some_wrong():
        like: Any = np.ones((4, 4)) if ctx.rank in culprits else a
        raises_on_all_ranks(ArgumentError, "expected a DistMatrix", partial(ctx.zeros_like, like))
        check_product(ctx)


def test_parts_of_different_widths_are_refused(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    for culprits in some_wrong():
        part = np.ones((2, 4 if ctx.rank in culprits else 5))
        raises_on_all_ranks(DescriptorError, "parts have 4 to 5 columns", partial(ctx.from_parts, part))
        raises_on_all_ranks(DescriptorError, "parts have 4 to 5 rows", partial(ctx.from_parts, part.T, 1))
        check_product(ctx)


def test_a_context_has_a_short_repr(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    assert repr(ctx) == f"<pblas.Context: rank {ctx.rank} of {ctx.nprocs}, backend 'mpi'>"


def test_a_matrix_has_a_picture_for_notebooks(contexts: Contexts) -> None:
    a = contexts["shared"].full((5, 3), 1j)
    for matrix, words in ((a, "DistMatrix 5 × 3, complex128<"), (a.H, "DistMatrix 3 × 5, complex128, conjugated<")):
        html = matrix._repr_html_()
        assert words in html
        assert matrix.desc._repr_html_() in html


def test_each_call_without_a_seed_draws_numbers_of_its_own() -> None:
    """The n-th one of a context, on any transport and in any layout; calls that fail or have a seed do not count."""
    transports: tuple[Literal["shared", "message"], ...] = ("shared", "message")
    drawn = []
    for transport in transports:
        with Context(transport=transport, timeout=20) as ctx:
            by_columns = MatrixDescriptor.column_wise(5, 4, ctx.nprocs)
            matrices = [collected(ctx.random(desc)) for desc in ((5, 4), by_columns)]
            raises_on_all_ranks(DTypeError, "dtype", lambda: ctx.random((5, 4), "int8"))
            if ctx.nprocs > 1:
                seed = 0 if ctx.rank else None
                raises_on_all_ranks(MismatchError, "seed differs", lambda: ctx.random((5, 4), seed=seed))  # noqa: B023
            matrices += [collected(ctx.random((5, 4), seed=seed)) for seed in (0, None)]
            drawn.append(matrices)
    assert all(np.array_equal(x, y) for x, y in zip(*drawn, strict=True))
    for i, x in enumerate(drawn[0]):
        assert not any(np.isin(x, y).any() for y in drawn[0][:i])

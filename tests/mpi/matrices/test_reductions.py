"""Laws of reductions: NumPy's results on the gathered matrix, equal on all ranks, the same bits on any transport."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import Context, DistMatrix, Grid, MatrixDescriptor
from pblas.arrays.reduction_plan import ReductionPlan
from pblas.errors import ArgumentError, DescriptorError, DTypeError, MismatchError
from tests.common.gauge import NAMES, Array, dtype_of, eps_of
from tests.common.ranks import Contexts, few, raises_on_all_ranks, same_on_all_ranks
from tests.mpi.matrices.arrays import Mistake, check_mistake, on_device, placed, some_descriptor, some_matrix, wide

pytestmark = [pytest.mark.mpi, few]
SETTINGS = ("shared", "message", "mixed")
AXES = (None, 0, 1)
SEEDS = range(12)
Law = Callable[[DistMatrix, Array], None]


def real_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of norms: 32 bits at least."""
    return np.dtype(np.float64 if dtype in (np.float64, np.complex128) else np.float32)


def check_close(result: Any, reference: Any, terms: Any, count: int, dtype: np.dtype[Any]) -> None:
    """The error of each result is at most that of `count` additions in the accumulator, and of one rounding.

    Args:
        result: of pblas, equal on all ranks.
        reference: the same in the widest precision.
        terms: sums of the absolute values of the terms.
        count: of terms.
        dtype: of the result.
    """
    accumulator = max(np.finfo(np.float32).eps if dtype.itemsize == 2 else eps_of(dtype), 0)
    same_on_all_ranks(np.asarray(result).tobytes())
    assert np.asarray(result).shape == np.asarray(reference).shape
    assert np.asarray(result).dtype == dtype
    error = np.abs(wide(result) - reference)
    assert np.all(error <= (count + 2) * accumulator * terms + eps_of(dtype) * np.abs(reference))


def check_sums(a: DistMatrix, x: Array) -> None:
    for axis in AXES:
        for keepdims in (False, True):
            reference, terms = wide(x).sum(axis, keepdims=keepdims), np.abs(wide(x)).sum(axis, keepdims=keepdims)
            check_close(a.sum(axis, keepdims), reference, terms, x.size, x.dtype)
            if (x.size if axis is None else x.shape[axis]) > 0:
                count = x.size if axis is None else x.shape[axis]
                check_close(a.mean(axis, keepdims), reference / count, terms / count, x.size, x.dtype)


def check_extremes(a: DistMatrix, x: Array) -> None:
    if x.dtype.kind == "c":
        return
    numbers = x.astype(np.float64)
    for axis in (axis for axis in AXES if (x.size if axis is None else x.shape[axis]) > 0):
        for keepdims in (False, True):
            for name in ("max", "min"):
                extreme = getattr(a, name)(axis, keepdims)
                reference = getattr(numbers, name)(axis, keepdims=keepdims)
                assert np.array_equal(np.asarray(extreme, np.float64), reference, equal_nan=True)
                assert np.asarray(extreme).dtype == x.dtype
                index = getattr(a, f"arg{name}")(axis, keepdims)
                assert np.array_equal(index, getattr(numbers, f"arg{name}")(axis, keepdims=keepdims))
                assert np.asarray(index).dtype == np.intp
                same_on_all_ranks(np.asarray(index).tolist())


def check_norms(a: DistMatrix, x: Array) -> None:
    dtype, sizes = real_dtype(x.dtype), np.abs(wide(x))
    for axis in AXES:
        root, total, largest = (
            np.sqrt((sizes**2).sum(axis)),
            sizes.sum(axis),
            sizes.max(axis, initial=0),
        )
        check_close(a.norm(axis=axis), root, root, x.size, dtype)
        if axis is not None:
            check_close(a.norm(1, axis), total, total, x.size, dtype)
            check_close(a.norm(math.inf, axis), largest, largest, 1, dtype)
        check_close(a.norm("max", axis), largest, largest, 1, dtype)
    norms: tuple[tuple[Any, int], ...] = (1, 0), (np.inf, 1), ("inf", 1)
    for ord_, axis in norms:
        reference = sizes.sum(axis).max(initial=0)
        check_close(a.norm(ord_), reference, reference, x.size, dtype)
    assert a.norm(keepdims=True).shape == (1, 1)
    assert a.norm(1, 0, keepdims=True).shape == (1, x.shape[1])


def check_diagonal(a: DistMatrix, x: Array) -> None:
    diagonal = a.diagonal()
    same_on_all_ranks(diagonal.tobytes())
    assert np.array_equal(diagonal, x.diagonal())
    check_close(a.trace(), wide(x).trace(), np.abs(wide(x)).trace(), min(x.shape), x.dtype)


def check_vectors(a: DistMatrix, x: Array) -> None:
    v, w = (np.linspace(-1, 1, size).astype(x.dtype) for size in (x.shape[1], x.shape[0]))
    for result, left, right in ((a @ v, x, v), (w @ a, w, x)):
        reference, terms = wide(left) @ wide(right), np.abs(wide(left)) @ np.abs(wide(right))
        check_close(result, reference, terms, x.size, x.dtype)


LAWS = (check_sums, check_extremes, check_norms, check_diagonal, check_vectors)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("setting", ["shared", "message"])
def test_reductions_are_those_of_numpy(contexts: Contexts, setting: str, dtype: str, law: Law) -> None:
    for seed in SEEDS if setting == "shared" else SEEDS[:3]:
        law(*some_matrix(contexts[setting], seed, dtype))


@pytest.mark.parametrize("dtype", NAMES)
def test_vdot_takes_any_two_layouts(contexts: Contexts, dtype: str) -> None:
    for seed in SEEDS:
        a, x = some_matrix(contexts["shared"], seed, dtype)
        b, y = some_matrix(contexts["shared"], seed + 100, dtype, (x.shape[0], x.shape[1]))
        for one, other, left, right in ((a, b, x, y), (a, a, x, x), (b, a, y, x)):
            terms = np.abs(wide(left) * wide(right)).sum()
            check_close(pblas.vdot(one, other), (wide(left).conj() * wide(right)).sum(), terms, x.size, x.dtype)


@pytest.mark.parametrize("dtype", ["float64", "complex64", "bfloat16"])
def test_the_bits_depend_neither_on_the_transport_nor_on_the_leading_dimension(contexts: Contexts, dtype: str) -> None:
    rng = np.random.default_rng(1)
    for shape in ((300, 70), (5, 400), (1, 9)):
        x = rng.standard_normal(shape).astype(dtype_of(dtype))
        for seed in range(4):
            desc = some_descriptor(Random(seed), *shape, contexts["shared"].nprocs)
            bits = set()
            for ctx in contexts.values():
                for gap in (0, 3):
                    a = placed(ctx, x, desc, gap)
                    results = [a.sum(axis) for axis in AXES] + [a.norm(axis=axis) for axis in AXES]
                    results += [a.norm(1), a.trace(), pblas.vdot(a, a), a.T.sum()]
                    bits.add(b"".join(np.asarray(result).tobytes() for result in results))
            assert len(bits) == 1


def test_a_copy_of_a_replicated_matrix_is_not_counted(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    size = ctx.nprocs
    for grid, rsrc, csrc in ((Grid(1, size), -1, -1), (Grid(size, 1), -1, 0), (Grid(1, size), 0, -1)):
        desc = MatrixDescriptor(5, 4, 2, 2, grid, rsrc, csrc)
        first = ctx.rank == 0
        local = np.full(desc.local_shape(ctx.rank), 2.0 if first else np.nan, order="F")
        a = ctx.from_local(on_device(ctx, local), desc)
        assert same_on_all_ranks(float(a.sum())) == 40.0
        assert float(a.norm()) == math.sqrt(80.0)
        assert float(a.max()) == 2.0
        assert a.sum(axis=0).tolist() == [10.0] * 4
        assert a.diagonal().tolist() == [2.0] * 4
        assert (a @ np.ones(4)).tolist() == [8.0] * 5
        assert float(pblas.vdot(a, a)) == 80.0


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
def test_norms_neither_overflow_nor_underflow(contexts: Contexts, dtype: str) -> None:
    ctx, info = contexts["shared"], np.finfo(dtype_of(dtype))
    huge, tiny = float(info.max) / 64, float(info.smallest_subnormal) * 8
    for seed in range(6):
        desc = some_descriptor(Random(seed), 8, 9, ctx.nprocs)
        for scales in ((huge,), (tiny,), (1.0, tiny), (huge, 1.0), (huge, tiny, 0.0), (float(info.tiny), 0.0), (0.0,)):
            pattern = np.array(scales)[np.arange(72).reshape(8, 9) % 7 % len(scales)]
            x = (pattern * (np.arange(72).reshape(8, 9) % 3 + 1)).astype(dtype)
            if x.dtype.kind == "c":
                x *= 1 - 1j
            a = placed(ctx, x, desc)
            sizes = np.sqrt(wide(x).real ** 2 + wide(x).imag ** 2)
            for axis in AXES:
                result, reference = a.norm(axis=axis), np.sqrt((sizes**2).sum(axis))
                allowed = 100 * info.eps * reference + float(info.smallest_subnormal)
                assert np.all(np.abs(wide(result) - reference) <= allowed), (scales, axis)


def test_norms_of_infinities_and_nan_are_those_of_numpy(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    for special in (np.inf, -np.inf, np.nan):
        for other in (1.0, 1e-300, 1e300, 0.0):
            for seed in range(3):
                x = np.full((7, 8), other)
                x[3, 5] = special
                a = placed(ctx, x, some_descriptor(Random(seed), 7, 8, ctx.nprocs))
                for ord_ in ("fro", 1, np.inf):
                    assert np.array_equal(a.norm(ord_), abs(special), equal_nan=True), (special, other, ord_)
                with np.errstate(all="ignore"):
                    columns = np.isfinite(a.norm(axis=0))
                assert columns.tolist() == [j != 5 for j in range(8)]


def test_extremes_propagate_nan_and_name_the_first_place(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    for seed in range(8):
        rng = np.random.default_rng(seed)
        x = rng.integers(-2, 3, (7, 9)).astype(float)  # with many equal elements
        if seed % 2:
            x[rng.integers(0, 7, 3), rng.integers(0, 9, 3)] = np.nan
        x[rng.integers(0, 7), rng.integers(0, 9)] = np.inf if seed % 3 else -np.inf
        for dtype in ("float64", "float16", "bfloat16"):
            desc = some_descriptor(Random(seed), 7, 9, ctx.nprocs)
            a = placed(ctx, x.astype(dtype_of(dtype)), desc)
            with np.errstate(invalid="ignore"):
                check_extremes(a, x.astype(dtype_of(dtype)))
                check_extremes(a.T, x.T.astype(dtype_of(dtype)))


def test_16_bit_elements_are_added_in_32_bits(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    for dtype in ("float16", "bfloat16"):
        a = ctx.full((64, 65), 1 / 64, dtype_of(dtype))
        assert float(a.sum()) == 65.0
        assert float(a.mean()) == 1 / 64
        assert float(pblas.vdot(a, a)) == 65 / 64
        big = ctx.full((40, 50), 60000.0, dtype_of(dtype))
        assert float(big.norm()) == pytest.approx(abs(big[0, 0]) * math.sqrt(2000), rel=1e-6)


def test_empty_matrices_are_reduced_as_by_numpy(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    for m, n in ((0, 5), (4, 0), (0, 0)):
        a, x = ctx.zeros((m, n)), np.zeros((m, n))
        assert a.sum() == a.norm() == a.norm(1) == a.norm("max") == a.trace() == 0.0
        assert math.isnan(a.mean())
        assert a.diagonal().shape == (0,)
        for along in (0, 1):
            assert np.array_equal(a.sum(along), x.sum(along))
            assert np.array_equal(a.norm(axis=along), np.zeros(x.shape[1 - along]))
        for axis in AXES:
            for name in ("max", "min"):
                try:
                    expected = getattr(x, name)(axis)
                except ValueError:
                    for method in (getattr(a, name), getattr(a, f"arg{name}")):
                        raises_on_all_ranks(ArgumentError, "no element", partial(method, axis))
                else:
                    assert np.array_equal(getattr(a, name)(axis), expected)


class Cast:
    """Matrices that the calls below go wrong with."""

    def __init__(self, ctx: Context, other: Context) -> None:
        self.a, self.b = ctx.ones((7, 8)), ctx.ones((8, 7))
        self.single, self.complex, self.foreign = ctx.ones((7, 8), "float32"), ctx.full((7, 8), 1j), other.ones((7, 8))


WRONG: dict[str, Mistake[Cast]] = {
    "axis": (ArgumentError, "axis must be", lambda c: c.a.sum(axis=2), lambda c: c.a.sum()),
    "an axis that is no integer": (ArgumentError, "axis must be", lambda c: c.a.max(axis="0"), lambda c: c.a.max()),  # type: ignore[call-overload]
    "another axis": (MismatchError, "axis differs", lambda c: c.a.mean(0), lambda c: c.a.mean(1)),
    "keepdims": (ArgumentError, "keepdims must be", lambda c: c.a.sum(None, 3), lambda c: c.a.sum()),  # type: ignore[call-overload]
    "ord": (ArgumentError, "ord must be", lambda c: c.a.norm(2), lambda c: c.a.norm()),
    "nuclear": (ArgumentError, "ord must be", lambda c: c.a.norm("nuc"), lambda c: c.a.norm()),  # type: ignore[call-overload]
    "another ord": (MismatchError, "ord differs", lambda c: c.a.norm(1), lambda c: c.a.norm(np.inf)),
    "another call": (MismatchError, "different calls", lambda c: c.a.argmax(), lambda c: c.a.argmin()),
    "complex maximum": (DTypeError, "no order", lambda c: c.complex.max(), lambda c: c.a.max()),
    "another matrix": (MismatchError, "matrix differs", lambda c: c.b.trace(), lambda c: c.a.trace()),
    "vdot of shapes": (
        *(DescriptorError, "A is 7 x 8, B is 8 x 7"),
        *(lambda c: pblas.vdot(c.a, c.b), lambda c: pblas.vdot(c.a, c.a)),
    ),
    "vdot of dtypes": (
        *(DTypeError, "one dtype", lambda c: pblas.vdot(c.a, c.single), lambda c: pblas.vdot(c.a, c.a)),
    ),
    "vdot with an array": (
        *(ArgumentError, "must be a DistMatrix"),
        *(lambda c: pblas.vdot(c.a, np.ones((7, 8))), lambda c: pblas.vdot(c.a, c.a)),  # type: ignore[arg-type]
    ),
    "vdot of contexts": (
        *(ArgumentError, "different contexts", lambda c: pblas.vdot(c.a, c.foreign), lambda c: pblas.vdot(c.a, c.a)),
    ),
    "a short vector": (DescriptorError, "expected 8 elements", lambda c: c.a @ np.ones(7), lambda c: c.a @ np.ones(8)),
    "a complex vector": (DTypeError, "real part", lambda c: c.a @ np.full(8, 1j), lambda c: c.a @ np.ones(8)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_of_one_rank_is_raised_on_all(contexts: Contexts, name: str) -> None:
    ctx = contexts["shared"]
    check_mistake(ctx, WRONG[name], Cast(ctx, contexts["message"]))


def test_the_plan_counts_what_ranks_send(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    for seed in range(8):
        desc = some_descriptor(Random(seed), 9, 8, ctx.nprocs)
        for operation in ("sum", "squares", "diagonal"):
            for axis in AXES if operation != "diagonal" else AXES[:1]:
                plan = ReductionPlan(desc, operation, axis, "float64", ctx.nprocs)  # type: ignore[arg-type]
                assert plan.lower_bound <= max(map(plan.received_elements, range(ctx.nprocs)))
                assert "lower bound" in plan.explain()
                sent = sum(map(plan.sent_elements, range(ctx.nprocs)))
                assert sent == sum(map(plan.received_elements, range(ctx.nprocs)))

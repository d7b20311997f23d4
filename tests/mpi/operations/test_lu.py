"""Laws of lu_factor: the residual, pivots equal on all ranks, INFO, solves, and the same bits on any transport."""

from __future__ import annotations

import gc
import random
import time
import weakref
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import pblas
from pblas import MatrixDescriptor, linalg
from pblas.factor.lu_run import RunLu
from tests.common.factors import (
    MOST,
    NAMES,
    NB,
    general,
    lu_ratio,
    narrow_panels,  # noqa: F401
    norm1,
    put_alone,
    ratio,
    set_panels,
    solve_ratio,
)
from tests.common.gauge import applied, dtype_of
from tests.common.ranks import COMM, Contexts, collected, few, raises_on_all_ranks, same_on_all_ranks, some_wrong
from tests.mpi.matrices.arrays import some_descriptor
from tests.mpi.operations.test_redistribution import Guarded

pytestmark = [pytest.mark.mpi, few, pytest.mark.usefixtures("narrow_panels")]
SETTINGS = ("shared", "message", "mixed")
P = COMM.size


@pytest.mark.parametrize("seed", range(24))
def test_the_factor_of_any_layout(contexts: Contexts, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    dtype, ctx = dtype_of(NAMES[seed % 4]), contexts[rng.choice(SETTINGS)]
    put_alone(monkeypatch, ctx, alone=seed % 8 >= 4)
    sizes = [0, 1, NB - 1, NB, NB + 1, 3 * NB, 41]
    m = rng.choice(sizes)
    n = m if seed % 3 else rng.choice(sizes)
    a, offset = general(m, n, dtype, seed), rng.choice([0, 3])
    desc = some_descriptor(rng, m + offset + 1, n + offset, P)
    guarded = Guarded(ctx, desc, dtype, (offset, offset + m, offset, offset + n), rng.choice(["own", "shared"]))
    guarded.fill(a)
    factor = linalg.lu_factor(guarded.view)
    guarded.check_untouched()
    lu, pivots = factor.lu(), same_on_all_ranks(factor.pivots.tolist())
    assert lu.desc.same_distribution(guarded.view.desc)
    assert lu_ratio(a, collected(lu), np.array(pivots, int)) <= MOST
    assert pivots == (scipy.linalg.lu_factor(a)[1].tolist() if a.size else [])  # no ties: the pivots are unique
    if m != n:
        raises_on_all_ranks(pblas.DescriptorError, "must be square", lambda: factor.solve(np.zeros(m)))
        return
    b = general(n, rng.choice([0, 1, 7]), dtype, seed + 100)
    right = Guarded(ctx, some_descriptor(rng, n, b.shape[1], P), dtype, home="own")
    right.fill(b)
    for trans in ("N", "T", "C"):
        x = factor.solve(right.view, trans)
        right.check_untouched()
        assert x.desc.same_distribution(right.view.desc)
        assert solve_ratio(applied(trans, a), collected(x), b) <= MOST


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("nb", "alone"), [(7, False), (7, True), (96, False)])
def test_the_same_bits_on_any_transport(
    contexts: Contexts, name: str, nb: int, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with panels that all ranks factor, each alone on a host."""
    for ctx in contexts.values():
        put_alone(monkeypatch, ctx, alone)
    set_panels(monkeypatch, nb)
    n = 300 if nb > 90 else 5 * nb * P + 3
    a, b = general(n, n, dtype_of(name)), general(n, 9, dtype_of(name), 5)
    results = set()
    for ctx in contexts.values():
        matrix, right = (ctx.from_global(x, MatrixDescriptor.row_wise(n, x.shape[1], P), None) for x in (a, b))
        factor = linalg.lu_factor(matrix)
        parts = factor.lu(), factor.solve(right), factor.solve(right, "C"), factor.inv()
        results.add(tuple(collected(x).tobytes() for x in parts))
    assert len(results) == 1


def wilkinson(n: int) -> Any:
    """The matrix whose elements grow by 2^(n - 1) under partial pivoting."""
    a = np.eye(n) - np.tril(np.ones((n, n)), -1)
    a[:, -1] = 1
    return a


def test_special_matrices(ctx: pblas.Context) -> None:
    n = 37
    i = np.arange(n)
    graded = general(n, n, np.dtype(np.float64)) * 10.0 ** -(i[:, None] / 2)
    hilbert = 1 / (i[:, None] + i + 1.0)
    kahan = 0.9 ** i[:, None] * (np.eye(n) - np.triu(np.full((n, n), 0.3), 1))
    swapped = np.eye(n)[::-1]
    for a in (hilbert, graded, kahan, swapped, 1e300 * hilbert, 1e-280 * graded, np.eye(n)):
        factor = linalg.lu_factor(ctx.from_global(a, root=None))
        assert factor.info == 0
        assert lu_ratio(a, collected(factor.lu()), factor.pivots) <= MOST
    growing = wilkinson(n)
    factor = linalg.lu_factor(ctx.from_global(growing, root=None))
    assert collected(factor.lu())[-1, -1] == 2.0 ** (n - 1)
    assert lu_ratio(growing, collected(factor.lu()), factor.pivots) <= MOST


def test_info_is_the_first_zero_pivot(contexts: Contexts) -> None:
    n = NB * P + 2 * NB + 1
    for name in ("shared", "message"):
        ctx = contexts[name]
        for k in sorted({1, NB, NB + 1, 2 * NB, n - 1, n, *(NB * p + 2 for p in range(P))}):
            a = np.triu(general(n, n, np.dtype(np.float64), k))
            a[k - 1, k - 1] = a[-1, -1] = 0
            matrix = ctx.from_global(a, MatrixDescriptor.row_wise(n, n, P), None)
            factor = linalg.lu_factor(matrix)
            assert same_on_all_ranks(factor.info) == k
            assert lu_ratio(a, collected(factor.lu()), factor.pivots) <= MOST
            assert factor.det() == 0
            assert tuple(map(float, factor.slogdet())) == (0.0, -np.inf)
            for call in (lambda: factor.solve(np.ones(n)), factor.inv, lambda: linalg.solve(matrix, matrix)):  # noqa: B023
                with pytest.raises(pblas.SingularMatrixError) as caught:
                    call()
                assert same_on_all_ranks((str(caught.value), caught.value.info))[1] == k
            assert linalg.cond(matrix, 1) == np.inf
    x = linalg.solve(ctx.eye(n), np.arange(n))
    assert x.tolist() == list(range(n))


def test_rows_of_nan_are_results(ctx: pblas.Context) -> None:
    a = general(20, 20, np.dtype(np.float64))
    a[3, 7] = np.nan
    assert np.isnan(linalg.solve(ctx.from_global(a, root=None), np.ones(20))).any()


def test_wrong_arguments(ctx: pblas.Context) -> None:
    square, wide = ctx.eye(6), ctx.zeros((4, 6))
    factor = linalg.lu_factor(square)
    half = ctx.zeros((6, 6), "bfloat16")
    other = ctx.eye(6, "float32")
    for wrong in some_wrong():
        mistaken = ctx.rank in wrong
        cases: list[tuple[type[Exception], str, Any]] = [
            (pblas.DTypeError, "astype", lambda a: linalg.lu_factor(half if a else square)),
            (pblas.ArgumentError, "trans must be", lambda a: factor.solve(square, "X" if a else "N")),  # type: ignore[arg-type]
            (pblas.DescriptorError, "make them agree", lambda a: factor.solve(wide if a else square)),
            (pblas.DescriptorError, "make them agree", lambda a: factor.solve(np.ones(5 if a else 6))),
            (
                pblas.ArgumentError,
                "one or two dimensions",
                lambda a: factor.solve(np.ones((6, 1, 1)) if a else np.ones(6)),
            ),
            (pblas.DTypeError, "not numbers", lambda a: factor.solve(["x"] * 6 if a else np.ones(6))),  # type: ignore[type-var]
            (pblas.DTypeError, "real part", lambda a: factor.solve(np.ones(6, complex if a else float))),
            (pblas.DTypeError, "one dtype", lambda a: factor.solve(other if a else square)),
            (pblas.MismatchError, "", lambda a: factor.solve(square, "T" if a else "N")),
        ]
        for kind, text, call in cases:
            raises_on_all_ranks(kind, text, lambda: call(mistaken))  # noqa: B023
    assert factor.solve(np.arange(6.0)).tolist() == list(range(6))


def test_plans(ctx: pblas.Context) -> None:
    a = general(40, 40, np.dtype(np.float64))
    matrix = ctx.from_global(a, MatrixDescriptor.row_wise(40, 40, P), None)
    with linalg.plan_lu(matrix) as planned:
        assert "P A = L U" in planned.explain()
        for _ in range(2):
            factor = planned.execute(matrix)
            assert lu_ratio(a, collected(factor.lu()), factor.pivots) <= MOST
    inverse = collected(factor.inv())  # the factor outlives its plan
    assert ratio(a @ inverse - np.eye(40), 40, norm1(a), norm1(inverse), dtype=a.dtype) <= MOST


@few
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("late", [0, P - 1])
def test_rows_of_panels_are_exchanged_when_no_rank_reads_them(late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a wide matrix a late rank still reads panels when the others have factored all of them."""
    update = RunLu.update

    def slow(*arguments: Any) -> None:
        if COMM.rank == late:
            time.sleep(0.01)
        update(*arguments)

    monkeypatch.setattr(RunLu, "update", slow)
    a = general(300, 900, np.dtype(np.float64))
    with pblas.Context(timeout=20, transport="shared") as ctx:
        matrix = ctx.from_global(a, MatrixDescriptor.row_wise(300, 900, P), None)
        factor = linalg.lu_factor(matrix, algorithm="blocked")
        assert lu_ratio(a, collected(factor.lu()), factor.pivots) <= MOST


def test_factors_of_one_layout_keep_their_pivots(contexts: Contexts) -> None:
    """All are made by one kept plan, before the first is used."""
    n, ctx = 3 * NB + 1, contexts["shared"]
    matrices = [general(n, n, dtype_of("float64"), seed) for seed in (1, 2)]
    factors = [linalg.lu_factor(ctx.from_global(a, MatrixDescriptor.row_wise(n, n, P), None)) for a in matrices]
    for a, factor in zip(matrices, factors, strict=True):
        assert factor.pivots.tolist() == scipy.linalg.lu_factor(a)[1].tolist()
        assert lu_ratio(a, collected(factor.lu()), factor.pivots) <= MOST


@pytest.mark.mpi(min_size=2)
def test_factors_that_differ_between_ranks_are_refused(ctx: pblas.Context) -> None:
    """Their memory has one layout, but not their matrices; or one is of another factorization."""
    x = np.eye(4) + 1
    rows, columns = (
        ctx.from_global(x, f(4, 4, ctx.nprocs), None) for f in (MatrixDescriptor.row_wise, MatrixDescriptor.column_wise)
    )
    lu, other, cholesky = linalg.lu_factor(rows), linalg.lu_factor(columns), linalg.cho_factor(rows)
    for wrong in {0, ctx.nprocs - 1}:
        mine = wrong == ctx.rank
        raises_on_all_ranks(pblas.MismatchError, "layout of A differs", (other if mine else lu).inv)
        raises_on_all_ranks(pblas.MismatchError, "layout of A differs", (other if mine else lu).lu)
        factor = cholesky if mine else lu
        raises_on_all_ranks(pblas.MismatchError, "factor differs", lambda factor=factor: factor.solve(rows))  # type: ignore[misc]
    assert np.allclose(collected(lu.solve(rows)), np.eye(4))


def test_a_kept_plan_holds_no_factor(ctx: pblas.Context) -> None:
    """The context keeps the plan of the solve; the memory of a factor is free when it is dropped."""
    A = ctx.from_global(np.eye(40) + 1, MatrixDescriptor.row_wise(40, 40, ctx.nprocs), None)
    factor = linalg.lu_factor(A)
    memory = weakref.ref(factor._w.stored("test"))
    factor.solve(A)
    assert memory() is not None
    del factor
    gc.collect()
    assert memory() is None

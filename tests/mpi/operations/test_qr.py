"""Laws of qr_factor and qr: LAPACK's ratios, products with Q, and the same bits on any transport."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy as np
import pytest
import scipy.linalg

import pblas
from pblas import Grid, MatrixDescriptor, linalg
from pblas.core.options import Side, Trans
from pblas.factor.choose import QrAlgorithm
from pblas.factor.qr_factor import Mode
from tests.common.factors import MOST, NAMES, NB, general, narrow_panels, norm1, put_alone, qr_ratios, ratio  # noqa: F401
from tests.common.gauge import applied, dtype_of
from tests.common.ranks import COMM, Contexts, collected, few, raises_on_all_ranks, some_wrong
from tests.mpi.matrices.arrays import some_descriptor
from tests.mpi.operations.test_redistribution import Guarded

pytestmark = [pytest.mark.mpi, few, pytest.mark.usefixtures("narrow_panels")]
SETTINGS = ("shared", "message", "mixed")
P = COMM.size
ALGORITHMS: tuple[QrAlgorithm, ...] = ("auto", "blocked", "local", "tsqr", "cholesky")


def check(a: Any, factor: linalg.QrFactor) -> tuple[Any, Any]:
    """Assert that the factors are those of a; the complete ones."""
    for mode in get_args(Mode):
        q, r = factor.q(mode), factor.r(mode)
        k = len(a) if mode == "complete" else min(a.shape)
        assert (q.shape, r.shape) == ((len(a), k), (k, a.shape[1]))
        parts = collected(q), collected(r)
        assert (np.tril(parts[1], -1) == 0).all()
        assert max(qr_ratios(a, *parts)) <= MOST
    return parts


@pytest.mark.parametrize("seed", range(20))
def test_the_factor_of_any_layout(contexts: Contexts, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    dtype, ctx = dtype_of(NAMES[seed % 4]), contexts[rng.choice(SETTINGS)]
    put_alone(monkeypatch, ctx, alone=seed % 8 >= 4)
    sizes = [*range(10), 3 * NB, 41]
    m, n = rng.choice(sizes), rng.choice(sizes)
    if seed % 3 == 0:
        m, n = rng.choice([40, 90]), rng.choice([1, 2, 3])
    algorithm = rng.choice(ALGORITHMS)
    if algorithm in ("tsqr", "cholesky") and not m >= n > 0:
        algorithm = "auto"
    a, offset = general(m, n, dtype, seed), rng.choice([0, 3])
    desc = some_descriptor(rng, m + offset + 1, n + offset, P)
    guarded = Guarded(ctx, desc, dtype, (offset, offset + m, offset, offset + n), rng.choice(["own", "shared"]))
    guarded.fill(a)
    factor = linalg.qr_factor(guarded.view, algorithm=algorithm)
    guarded.check_untouched()
    if m >= n:
        assert factor.q().desc.same_distribution(guarded.view.desc)
    q, _ = check(a, factor)
    for side in get_args(Side):
        k = rng.choice([0, 1, 7])
        c = general(m, k, dtype, seed + 100)
        c = c if side == "L" else c.T
        right = Guarded(ctx, some_descriptor(rng, c.shape[0], c.shape[1], P), dtype, home="own")
        right.fill(c)
        for trans in get_args(Trans):
            x = factor.apply_q(right.view, side, trans)
            right.check_untouched()
            assert x.desc.same_distribution(right.view.desc)
            expected = applied(trans, q) @ c if side == "L" else c @ applied(trans, q)
            assert ratio(collected(x) - expected, max(m, 1), norm1(c), dtype=dtype) <= MOST


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("alone", [False, True])
def test_the_same_bits_on_any_transport(
    contexts: Contexts, name: str, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ctx in contexts.values():
        put_alone(monkeypatch, ctx, alone)
    for m, n in ((4 * NB * P, 3 * NB * P), (2 * NB, 3 * NB * P), (60 * P, 5)):
        a, c = general(m, n, dtype_of(name)), general(m, 5, dtype_of(name), 5)
        results = set()
        for ctx in contexts.values():
            matrix, right = (ctx.from_global(x, MatrixDescriptor.row_wise(m, x.shape[1], P), None) for x in (a, c))
            factor = linalg.qr_factor(matrix)
            parts = factor.q(), factor.r(), factor.apply_q(right), factor.apply_q(right, trans="T")
            results.add(tuple(collected(x).tobytes() for x in parts))
        assert len(results) == 1


def special(m: int, n: int) -> dict[str, Any]:
    """Matrices that are hard to make orthogonal."""
    u, v = (np.linalg.qr(general(size, n, np.dtype(np.float64), size))[0] for size in (m, n))
    i = np.arange(n)
    matrices = {f"condition 1e{k}": (u * 10.0 ** (-k * i / (n - 1))) @ v.T for k in (0, 4, 8, 12, 15)}
    random_one = general(m, n, np.dtype(np.float64))
    rank = random_one.copy()
    rank[:, -1] = rank[:, :-1].sum(1)
    zeros = random_one.copy()
    zeros[:, [0, n // 2, n - 1]] = 0
    graded = random_one * 10.0 ** -(np.arange(m)[:, None] / 5)
    more = {"rank n - 1": rank, "zero columns": zeros, "graded": graded, "graded columns": random_one * 10.0**-i}
    large = {"large": 1e300 * random_one, "small": 1e-290 * random_one, "zero": np.zeros((m, n))}
    return matrices | more | large | {"identity": np.eye(m, n), "reversed": np.eye(m, n)[:, ::-1]}


@pytest.mark.parametrize("algorithm", ["blocked", "tsqr", "cholesky"])
def test_special_matrices(ctx: pblas.Context, algorithm: QrAlgorithm) -> None:
    m, n = 16 * P + 3, 13
    for name, a in special(m, n).items():
        q, r = linalg.qr(ctx.from_global(a, MatrixDescriptor.row_wise(m, n, P), None), algorithm=algorithm)
        scale = 1e300 if name == "large" else 1.0
        ratios = qr_ratios(a / scale, collected(q), collected(r) / scale)
        assert max(ratios) <= MOST, (name, ratios)


def test_matrices_that_are_not_needed_any_more(ctx: pblas.Context) -> None:
    """A tall one in rows is factored in place; of the others Q takes the place."""
    for m, n in ((40 * P, 3), (9, 7)):
        a, desc = general(m, n, np.dtype(np.float64)), MatrixDescriptor.row_wise(m, n, P)
        make: Any = partial(ctx.from_global, a, desc, None)
        given = make()
        q, r = linalg.qr(given, overwrite_a=True)
        assert (q is given) == (m == 9)
        assert max(qr_ratios(a, collected(q), collected(r))) <= MOST
        given = make()
        factor = linalg.qr_factor(given, overwrite_a=True)
        assert (collected(given) == a).all() == (m == 9)
        assert np.array_equal(collected(factor.r()), collected(r))
        x, b = linalg.lstsq(make(), make()).x, make()
        assert np.array_equal(collected(linalg.lstsq(make(), b, overwrite_a=True).x), collected(x))
        raises_on_all_ranks(pblas.ArgumentError, "of A", lambda: linalg.lstsq(b, b, overwrite_a=True))  # noqa: B023
        conjugated = ctx.from_global(a.astype(complex), desc, None)
        assert linalg.qr(conjugated.H.T, overwrite_a=True).Q is not conjugated


def test_chunks_of_rows(ctx: pblas.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks with several chunks, of which the last is short, and cyclic rows from a middle rank on."""
    monkeypatch.setattr("pblas.factor.qr_plan._SHORTEST", 5)
    monkeypatch.setattr("pblas.factor.qr_plan._CHUNK", 2)
    monkeypatch.setattr("pblas.factor.qr_plan._INNER", 2)
    for m, n in ((31 * P, 3), (40 * P + 1, 5)):
        a = general(m, n, np.dtype(np.complex128))
        desc = MatrixDescriptor.row_wise(m, n, P, mb=10, rsrc=P // 2, order="C")
        factor = linalg.qr_factor(ctx.from_global(a, desc, None))
        check(a, factor)
        assert linalg.plan_qr(ctx.from_global(a, desc, None)).plan.copy.lower_bound == 0


def test_columns_of_nan_are_results(ctx: pblas.Context) -> None:
    for m, n in ((20, 20), (100, 3)):
        a = general(m, n, np.dtype(np.float64))
        a[3, 1] = np.nan
        r = collected(linalg.qr(ctx.from_global(a, root=None), mode="r"))
        assert np.isnan(r[:, 1]).any()
        assert not np.isnan(r[:, 0]).any()


def test_many_factorizations_take_constant_memory(ctx: pblas.Context) -> None:
    a = ctx.from_global(general(80, 4, np.dtype(np.float64)), root=None)
    held = []
    for _ in range(12):
        linalg.qr(a)
        linalg.qr(a, algorithm="blocked")
        held.append(len(ctx.runtime.backend.leaks()))
    assert max(held[4:]) <= max(held[:4])


def test_wrong_arguments(ctx: pblas.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    square, wide = ctx.eye(6), ctx.zeros((4, 6))
    linalg: Any = pblas.linalg  # whose arguments have any types
    factor = linalg.qr_factor(square)
    half, other = ctx.zeros((6, 6), "bfloat16"), ctx.eye(6, "float32")
    for wrong in some_wrong():
        mistaken = ctx.rank in wrong
        cases: list[tuple[type[Exception], str, Any]] = [
            (pblas.DTypeError, "astype", lambda a: linalg.qr_factor(half if a else square)),
            (
                pblas.ArgumentError,
                "algorithm must be",
                lambda a: linalg.qr_factor(square, algorithm="x" if a else "auto"),
            ),
            (pblas.ArgumentError, "leave algorithm out", lambda a: linalg.qr(wide if a else square, algorithm="tsqr")),
            (pblas.ArgumentError, "mode must be", lambda a: linalg.qr(square, mode="full" if a else "r")),
            (pblas.ArgumentError, "mode must be", lambda a: factor.q("r" if a else "complete")),
            (pblas.ArgumentError, "mode must be", lambda a: factor.r(None if a else "complete")),
            (pblas.ArgumentError, "trans must be", lambda a: factor.apply_q(square, trans="X" if a else "N")),
            (pblas.ArgumentError, "side must be", lambda a: factor.apply_q(square, "X" if a else "L")),
            (pblas.DescriptorError, "make them agree", lambda a: factor.apply_q(wide if a else square)),
            (pblas.DescriptorError, "4 columns", lambda a: factor.apply_q(wide.T if a else square, "R")),
            (pblas.DTypeError, "one dtype", lambda a: factor.apply_q(other if a else square)),
            (pblas.ArgumentError, "must be a DistMatrix", lambda a: factor.apply_q(np.eye(6) if a else square)),
            (pblas.MismatchError, "", lambda a: factor.apply_q(square, trans="T" if a else "N")),
            (pblas.MismatchError, "", lambda a: linalg.qr(square, mode="r" if a else "reduced")),
            (pblas.MismatchError, "", lambda a: linalg.qr_factor(square, algorithm="local" if a else "auto")),
        ]
        for kind, text, call in cases:
            raises_on_all_ranks(kind, text, lambda: call(mistaken))  # noqa: B023
    raises_on_all_ranks(pblas.ArgumentError, "must be a DistMatrix", lambda: linalg.qr(np.eye(6)))
    arrays = ctx.runtime.backend.arrays
    monkeypatch.setattr(arrays, "traits", replace(arrays.traits, gpu=True))
    raises_on_all_ranks(pblas.BackendError, "leave it out", lambda: linalg.qr(square, algorithm="tsqr"))
    monkeypatch.undo()
    assert abs(collected(factor.apply_q(square, trans="C")) - np.eye(6)).max() < 1e-15


def test_plans(ctx: pblas.Context) -> None:
    for m, n, text in ((40, 40, "A = Q R"), (100, 4, "TSQR")):
        a = general(m, n, np.dtype(np.float64))
        desc = MatrixDescriptor.block_cyclic(m, n, 4, 4, Grid(P, 1))
        matrix = ctx.from_global(a, desc, None)
        with linalg.plan_qr(matrix) as planned:
            assert text in planned.explain()
            for _ in range(2):
                factor = planned.execute(matrix)
                check(a, factor)
        check(a, factor)  # the factor outlives its plan
        raises_on_all_ranks(pblas.ContextError, "closed", lambda: planned.execute(matrix))  # noqa: B023
    described = linalg.plan_qr(MatrixDescriptor.row_wise(64, 64, P), dtype="float32")
    raises_on_all_ranks(pblas.ArgumentError, "without a context", lambda: described.execute(matrix))


@pytest.mark.parametrize("name", NAMES)
def test_column_pivoting(ctx: pblas.Context, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A[:, P] = Q R, and the sizes on the diagonal of R are those of SciPy, descending; of any rank."""
    monkeypatch.setattr("pblas.factor.qr_plan._BLOCK", 4)
    dtype = dtype_of(name)
    eps = float(np.finfo(dtype).eps)
    for m, n in ((12, 7), (7, 12), (21, 18), (0, 3), (3, 0), (1, 1)):
        a = general(m, n, dtype, m)
        if min(m, n) > 4:
            a[:, 2] = 2 * a[:, 0] - a[:, 3]
        if n == 18:  # norms lose their digits inside of blocks
            a[:, 5:] = a[:, :1] + eps**0.5 * a[:, 5:]
        A = ctx.from_global(a, MatrixDescriptor.row_wise(m, n, P), None)
        for mode in get_args(Mode):
            q, r, p = linalg.qr(A, mode=mode, pivoting=True)
            assert sorted(p.tolist()) == list(range(n))
            x, y = collected(q), collected(r)
            assert (np.tril(y, -1) == 0).all()
            assert max(qr_ratios(a[:, p], x, y)) <= MOST
            sizes = np.abs(y.diagonal())
            right = np.abs(scipy.linalg.qr(a, mode="r", pivoting=True)[0].diagonal()) if a.size else sizes
            assert (np.diff(sizes) <= 100 * eps * sizes.max(initial=0)).all()
            assert np.abs(sizes - right).max(initial=0) <= 100 * eps * right.max(initial=0)
    wrong: Any = linalg.qr
    raises_on_all_ranks(pblas.ArgumentError, "pivoting=True takes no", lambda: wrong(A, mode="r", pivoting=True))

"""Laws of cholesky and cho_factor: residuals, the triangle that is read, INFO, the same bits on any transport."""

from __future__ import annotations

import random
from typing import Any, Literal, get_args

import numpy as np
import pytest

import pblas
from pblas import Grid, MatrixDescriptor, linalg
from tests.common.factors import (
    MOST,
    NAMES,
    NB,
    cholesky_ratio,
    lu_ratio,
    narrow_panels,  # noqa: F401
    positive,
    ratio,
    set_panels,
    solve_ratio,
)
from tests.common.gauge import dtype_of
from tests.common.ranks import COMM, Contexts, collected, few, raises_on_all_ranks, same_on_all_ranks, some_wrong
from tests.mpi.matrices.arrays import some_descriptor
from tests.mpi.operations.test_redistribution import Guarded

pytestmark = [pytest.mark.mpi, few, pytest.mark.usefixtures("narrow_panels")]
SETTINGS = ("shared", "message", "mixed")
P = COMM.size
Uplo = Literal["L", "U"]


def one_triangle(a: np.ndarray[Any, Any], uplo: Uplo) -> np.ndarray[Any, Any]:
    """A with NaN in the other triangle, and in the imaginary parts of the diagonal."""
    keep = np.tril(np.ones(a.shape, bool)) if uplo == "L" else np.triu(np.ones(a.shape, bool))
    poisoned = np.where(keep, a, np.asarray(np.nan, a.dtype))
    if a.dtype.kind == "c":
        poisoned.imag[np.diag_indices(len(a))] = np.nan
    return poisoned


@pytest.mark.parametrize("seed", range(24))
def test_the_factor_of_any_layout(contexts: Contexts, seed: int) -> None:
    rng = random.Random(seed)
    name, dtype, uplos = rng.choice(SETTINGS), dtype_of(NAMES[seed % 4]), get_args(Uplo)
    uplo: Uplo = rng.choice(uplos)
    n = rng.choice([0, 1, NB - 1, NB, NB + 1, 3 * NB, 41])
    ctx, a, offset = contexts[name], positive(n, dtype, seed), rng.choice([0, 3])
    desc = some_descriptor(rng, n + offset + 1, n + offset, P)
    guarded = Guarded(ctx, desc, dtype, (offset, offset + n, offset, offset + n), rng.choice(["own", "shared"]))
    guarded.fill(one_triangle(a, uplo))
    view, conjugated = guarded.view, rng.random() < 0.3
    if conjugated:  # the other triangle of the conjugate transpose
        view, upper = view.H, uplo == "L"
    else:
        upper = uplo == "U"
    factor = linalg.cholesky(view, upper=upper)
    guarded.check_untouched()
    result = collected(factor)
    assert factor.desc.same_distribution(view.desc)
    assert (np.tril(result, -1) == 0).all() if upper else (np.triu(result, 1) == 0).all()
    assert cholesky_ratio(a, result.conj().T if upper else result) <= MOST
    b = positive(n, dtype, seed + 100)[:, : rng.choice([0, 1, 7])]
    right = Guarded(ctx, some_descriptor(rng, n, b.shape[1], P), dtype, home="own")
    right.fill(b)
    x = linalg.cho_factor(view, lower=not upper).solve(right.view)
    right.check_untouched()
    assert x.desc.same_distribution(right.view.desc)
    assert solve_ratio(a, collected(x), b) <= MOST


@pytest.mark.parametrize("upper", [False, True])
def test_out_may_be_the_matrix(ctx: pblas.Context, upper: bool) -> None:
    n, dtype = 23, np.dtype(np.complex128)
    a = positive(n, dtype)
    matrix = ctx.from_global(one_triangle(a, "U" if upper else "L"), MatrixDescriptor.row_wise(n, n, P), None)
    assert linalg.cholesky(matrix, upper=upper, out=matrix) is matrix
    result = collected(matrix)
    assert cholesky_ratio(a, result.conj().T if upper else result) <= MOST


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nb", [7, 128])
def test_the_same_bits_on_any_transport(contexts: Contexts, name: str, nb: int, monkeypatch: Any) -> None:
    set_panels(monkeypatch, nb)
    n = 3 * nb * P // (1 if nb < 100 else P) + 3
    a, b = positive(n, dtype_of(name)), positive(n, dtype_of(name), 5)[:, :9]
    results = set()
    for ctx in contexts.values():
        matrix, right = (ctx.from_global(x, MatrixDescriptor.row_wise(n, x.shape[1], P), None) for x in (a, b))
        x = linalg.cho_factor(matrix).solve(right)
        results.add((collected(linalg.cholesky(matrix)).tobytes(), collected(x).tobytes()))
    assert len(results) == 1


def test_columns_of_whole_pages_are_a_line_apart(ctx: pblas.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    n, a = 32, positive(32, np.dtype(np.float64))
    monkeypatch.setattr("pblas.factor.choose._PAGE", 8 * n)
    w = linalg.plan_cholesky(MatrixDescriptor.row_wise(n, n, P), dtype="float64").plan.w
    assert w.lld == n + 8
    for desc in (w, MatrixDescriptor.row_wise(n, n, P)):
        matrix = ctx.from_global(a, desc, None)
        assert cholesky_ratio(a, collected(linalg.cholesky(matrix))) <= MOST
        assert solve_ratio(a, collected(linalg.inv(matrix)), np.eye(n)) <= MOST
        x = linalg.cho_factor(matrix, overwrite_a=True).solve(a[0])
        assert solve_ratio(a, x[:, None], a[0][:, None]) <= MOST


@pytest.mark.parametrize("bad", [-1.0, 0.0, np.nan])
def test_info_is_the_first_bad_pivot(contexts: Contexts, bad: float) -> None:
    n = NB * P + 2 * NB + 1
    for name in ("shared", "message"):
        ctx = contexts[name]
        for k in sorted({1, NB, NB + 1, 2 * NB, n - 1, n, *(NB * p + 2 for p in range(P))}):
            a = positive(n, np.dtype(np.float64), k)
            a[k - 1, k - 1], a[-1, -1] = bad, -1e9  # the first one counts
            matrix = ctx.from_global(a, MatrixDescriptor.row_wise(n, n, P), None)
            with pytest.raises(pblas.NotPositiveDefiniteError) as caught:
                linalg.cholesky(matrix)
            assert same_on_all_ranks((str(caught.value), caught.value.info))[1] == k
            assert isinstance(caught.value, np.linalg.LinAlgError)
            with pytest.raises(pblas.NotPositiveDefiniteError, match=f"{k} x {k} block"):
                linalg.solve(matrix, matrix, assume_a="pos")
        good = positive(n, np.dtype(np.float64))
        assert cholesky_ratio(good, collected(linalg.cholesky(ctx.from_global(good, root=None)))) <= MOST


def test_graded_and_scaled_matrices(ctx: pblas.Context) -> None:
    n = 37
    i = np.arange(n)
    minij = np.minimum(i[:, None], i) + 1.0
    lehmer = (np.minimum(i[:, None], i) + 1) / (np.maximum(i[:, None], i) + 1)
    graded = minij * 10.0 ** -(i[:, None] / 3 + i / 3)
    for a in (minij, lehmer, graded, minij * 1e300, minij * 1e-300, np.eye(n)):
        assert cholesky_ratio(a, collected(linalg.cholesky(ctx.from_global(a, root=None)))) <= MOST


def test_determinants(ctx: pblas.Context) -> None:
    a = positive(12, np.dtype(np.complex128))
    factor = linalg.cho_factor(ctx.from_global(a, root=None))
    expected = np.linalg.slogdet(a)[1]
    assert same_on_all_ranks(float(factor.logdet())) == pytest.approx(expected, rel=1e-12)
    assert float(factor.det()) == pytest.approx(np.exp(expected), rel=1e-10)
    inverse = collected(factor.inv())
    assert (
        ratio(a @ inverse - np.eye(12), 12, np.abs(a).sum(0).max(), np.abs(inverse).sum(0).max(), dtype=a.dtype) <= MOST
    )


def test_wrong_arguments(ctx: pblas.Context) -> None:
    square, wide = ctx.eye(6), ctx.zeros((4, 6))
    half = ctx.zeros((6, 6), "float16")
    other = ctx.eye(6, "float32")
    for wrong in some_wrong():
        mistaken = ctx.rank in wrong
        cases: list[tuple[type[Exception], str, Any]] = [
            (pblas.DescriptorError, "must be square", lambda a: linalg.cholesky(wide if a else square)),
            (pblas.DTypeError, "astype", lambda a: linalg.cholesky(half if a else square)),
            (pblas.ArgumentError, "upper must be", lambda a: linalg.cholesky(square, upper="L" if a else False)),  # type: ignore[arg-type]
            (pblas.ArgumentError, "out must be", lambda a: linalg.cholesky(square, out=1 if a else None)),  # type: ignore[arg-type]
            (pblas.DescriptorError, "make them agree", lambda a: linalg.cholesky(square, out=wide if a else None)),
            (pblas.DTypeError, "one dtype", lambda a: linalg.cholesky(square, out=other if a else None)),
            (pblas.MismatchError, "", lambda a: linalg.cholesky(square, upper=a)),
        ]
        for kind, text, call in cases:
            raises_on_all_ranks(kind, text, lambda: call(mistaken))  # noqa: B023
    assert collected(linalg.cholesky(square)).tolist() == np.eye(6).tolist()


def test_the_look_at_info_may_be_deferred(ctx: pblas.Context) -> None:
    """The factor knows INFO of its own execution, and the first call that needs the factor raises."""
    bad = positive(4 * NB, np.dtype(float))
    good = bad.copy()
    bad[NB, NB] = -1
    factors = [linalg.cho_factor(ctx.from_global(a, root=None), check=False) for a in (bad, good)]
    assert [same_on_all_ranks(factor.info) for factor in factors] == [NB + 1, 0]
    for call in ("logdet", "inv", "det", lambda factor: factor.solve(np.ones(4 * NB))):
        factor = linalg.cho_factor(ctx.from_global(bad, root=None), check=False)
        with pytest.raises(pblas.NotPositiveDefiniteError) as caught:
            call(factor) if callable(call) else getattr(factor, call)()
        assert same_on_all_ranks(caught.value.info) == NB + 1
    x = factors[1].solve(np.ones(4 * NB))
    assert solve_ratio(good, x[:, None], np.ones((4 * NB, 1))) <= MOST
    matrix = ctx.eye(6)
    for wrong in some_wrong():
        mistaken = ctx.rank in wrong
        raises_on_all_ranks(pblas.MismatchError, "", lambda: linalg.cho_factor(matrix, check=not mistaken))  # noqa: B023
    assert linalg.cho_factor(matrix).info == 0


@pytest.mark.parametrize("algorithm", ["blocked", "local"])
def test_algorithms(ctx: pblas.Context, algorithm: Literal["blocked", "local"]) -> None:
    """The factors of each algorithm, and its name in explain()."""
    n, dtype = 4 * NB + 2, np.dtype(np.complex128)
    a = positive(n, dtype)
    matrix = ctx.from_global(a, root=None)
    assert cholesky_ratio(a, collected(linalg.cholesky(matrix, algorithm=algorithm))) <= MOST
    assert solve_ratio(a, linalg.cho_factor(matrix, algorithm=algorithm).solve(a[0])[:, None], a[0][:, None]) <= MOST
    factor = linalg.lu_factor(matrix, algorithm=algorithm)
    assert lu_ratio(a, collected(factor.lu()), factor.pivots) <= MOST
    with linalg.plan_lu(matrix, algorithm=algorithm) as planned:
        assert f"{algorithm}: " in planned.explain()
        assert planned.plan.w.nprocs == (1 if algorithm == "local" else P)
    raises_on_all_ranks(pblas.ArgumentError, "'blocked'", lambda: linalg.cholesky(matrix, algorithm="fast"))  # type: ignore[arg-type]


def test_plans(ctx: pblas.Context) -> None:
    a = positive(40, np.dtype(np.float64))
    matrix = ctx.from_global(a, MatrixDescriptor.block_cyclic(40, 40, 4, 4, Grid(P, 1)), None)
    with linalg.plan_cholesky(matrix) as planned:
        assert "A = L L^H" in planned.explain()
        read = ctx.runtime.backend.read_nbytes
        for _ in range(2):
            assert cholesky_ratio(a, collected(planned.execute(matrix))) <= MOST
        own = ctx.runtime.backend.read_nbytes - read
        assert own <= 2 * planned.plan.received_nbytes(ctx.rank)
        raises_on_all_ranks(pblas.DescriptorError, "plan anew", lambda: planned.execute(ctx.zeros((40, 40))[:9, :9]))
    raises_on_all_ranks(pblas.ContextError, "closed", lambda: planned.execute(matrix))
    described = linalg.plan_cholesky(MatrixDescriptor.row_wise(64, 64, P), dtype="float32", upper=True)
    assert "U^H U" in str(described.plan)
    raises_on_all_ranks(pblas.ArgumentError, "without a context", lambda: described.execute(matrix))

"""Laws of conjugate gradients: true residuals in any layout, failures, and the same numbers on all ranks."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import linalg
from tests.common.factors import NAMES, general, positive
from tests.common.gauge import dtype_of, eps_of
from tests.common.ranks import (
    COMM,
    Contexts,
    check_product,
    collected,
    few,
    raises_on_all_ranks,
    same_on_all_ranks,
    some_wrong,
)
from tests.mpi.matrices.arrays import some_descriptor
from tests.mpi.operations.test_redistribution import Guarded

pytestmark = [pytest.mark.mpi, few]
SETTINGS = ("shared", "message", "mixed")
P = COMM.size
N = 3 * P + 7


def well_conditioned(n: int, dtype: np.dtype[Any], seed: int = 0) -> Any:
    """A positive definite matrix with a condition number below 20."""
    s = positive(n, dtype, seed)
    return (s / max(1.0, float(np.linalg.norm(s, 2)) if n else 1.0) + 0.1 * np.eye(n)).astype(dtype)


@pytest.mark.parametrize("name", ["float32", "complex128"])
def test_elements_close_to_the_limits(ctx: pblas.Context, name: str) -> None:
    """A and B of any size give the same iterations; the tolerance 0 is out of reach of rounding errors, or is met."""
    dtype = np.dtype(name)
    limits, a, b = np.finfo(dtype), np.array([[4, 1], [1, 3]], dtype), np.array([9, 5], dtype)
    tol = float(32 * limits.eps)
    for exponent in (limits.minexp - limits.nmant // 3, 0, limits.maxexp - 6):
        s = np.ldexp(limits.dtype.type(1), exponent)
        x, residuals = linalg.cg(ctx.from_global(a * s, root=None), b * s, tol=tol)
        assert np.allclose(x, [2, 1], rtol=4 * tol)
        assert len(residuals) <= 4
    matrix = ctx.from_global(well_conditioned(9, dtype), root=None)
    for tol in (0, float(limits.tiny)):
        with pytest.raises(pblas.ConvergenceError, match="rounding errors keep the relative residual"):
            linalg.cg(matrix, np.arange(1, 10).astype(dtype), tol=tol)
    assert linalg.cg(ctx.eye(3, dtype), np.ones(3, dtype), tol=0).residuals[-1] == 0


@pytest.mark.parametrize("seed", range(12))
def test_the_residual_is_true_in_any_layout(contexts: Contexts, seed: int) -> None:
    rng = random.Random(seed)
    ctx, dtype = contexts[rng.choice(SETTINGS)], dtype_of(NAMES[seed % 4])
    n, k = rng.choice([0, 1, 3, 17]), rng.choice([0, 1, 4])
    a, b, tol = well_conditioned(n, dtype, seed), general(n, k, dtype, seed), 100 * eps_of(dtype)
    b[:, : rng.choice([0, 1])] = 0
    scale = rng.choice([1.0, 1e-30, 1e30])  # their squares are no numbers of 32 bits
    b *= np.asarray(scale, dtype)
    desc = some_descriptor(rng, n + 3, n + 2, P)
    left = Guarded(ctx, desc, dtype, (2, 2 + n, 1, 1 + n), rng.choice(["own", "shared"]))
    right = Guarded(ctx, some_descriptor(rng, n, k, P), dtype, home="own")
    left.fill(a)
    right.fill(b)
    matrix, inverse = left.view, ctx.from_global(np.linalg.inv(a).astype(dtype), some_descriptor(rng, n, n, P), None)
    operator: Any = rng.choice([matrix, matrix.H, lambda p: matrix @ p, lambda p: pblas.pmatmul(matrix, p, out=p.desc)])
    x, residuals = linalg.cg(
        operator,
        right.view,
        tol=tol,
        preconditioner=rng.choice([None, None, inverse, lambda r: r * 0.5, lambda r: inverse @ r]),
    )
    left.check_untouched()
    right.check_untouched()
    assert x.desc.same_distribution(right.view.desc)
    true = np.linalg.norm(b - a @ collected(x), axis=0)
    assert (true <= 2 * tol * np.linalg.norm(b, axis=0)).all()
    assert residuals.shape[1] == k
    assert len(residuals) <= 40
    assert (same_on_all_ranks(residuals.tolist())[-1] <= np.full(k, tol)).all()


def test_few_eigenvalues_take_few_iterations(ctx: pblas.Context) -> None:
    """One for each that differs; an array gives an array, and residuals of one dimension."""
    u = np.linalg.qr(general(N, 2, np.dtype(float)))[0]
    a = ctx.from_global(np.eye(N) + u @ np.diag([3.0, 8.0]) @ u.T, root=None)
    result = linalg.cg(a, np.arange(1.0, N + 1), tol=1e-12)
    assert same_on_all_ranks(result.iterations) == 3
    assert result.residuals.shape == (4,)
    assert np.allclose(a @ np.array(same_on_all_ranks(result.x.tolist())), np.arange(1.0, N + 1))
    factor = linalg.cho_factor(a)
    assert linalg.cg(a, ctx.ones((N, 2)), tol=1e-12, preconditioner=factor.solve).iterations == 1


def test_failures_are_equal_on_all_ranks_and_the_context_goes_on(ctx: pblas.Context) -> None:
    spd = well_conditioned(N, np.dtype(float))
    indefinite, broken, last = spd.copy(), spd.copy(), np.ones((N, 2))
    indefinite[-1, -1] = -9
    broken[-1, 0] = np.nan
    last[-1, 1] = np.inf
    cases: list[tuple[str, int, Any, Any, dict[str, Any]]] = [
        ("so A is not positive definite", 0, -spd, np.ones((N, 2)), {}),
        ("so A is not positive definite", 0, indefinite, np.eye(N)[:, [0, -1]], {}),
        ("so the preconditioner M is not positive definite", 0, spd, np.ones((N, 1)), {"preconditioner": lambda r: -r}),
        ("A, B or the preconditioner has", 0, broken, np.ones((N, 2)), {}),
        ("B has elements that are NaN", 0, spd, last, {}),
        (
            "after 2 iterations, above tol=1e-12; pass a larger maxiter",
            2,
            spd,
            last[:, :1],
            {"tol": 1e-12, "maxiter": 2},
        ),
        ("rounding errors keep the relative residual", 9, spd, last[:, :1], {"tol": 1e-20}),
    ]
    for text, least, a, b, options in cases:
        matrices = [ctx.from_global(x, root=None) for x in (a, b)]
        with pytest.raises(pblas.ConvergenceError, match=text) as caught:
            linalg.cg(*matrices, **options)
        error = caught.value
        assert isinstance(error, np.linalg.LinAlgError)
        info = same_on_all_ranks((str(error), error.info))[1]
        assert info == least or (least == 9 and info >= least)
        assert error.residuals is not None
        assert len(error.residuals) in {0, info + 1}
        check_product(ctx)


def test_wrong_arguments(ctx: pblas.Context) -> None:
    a, b, wide, narrow = ctx.eye(N), ctx.ones((N, 2)), ctx.zeros((4, N)), ctx.eye(N, "float32")

    def fails(_: Any) -> Any:
        raise ValueError("the user's")

    for wrong in some_wrong():
        mistaken = ctx.rank in wrong
        cases: list[tuple[type[Exception], str, Any]] = [
            (pblas.DescriptorError, "must be square", lambda x: linalg.cg(wide if x else a, b)),
            (pblas.DescriptorError, "make them agree", lambda x: linalg.cg(a, wide if x else b)),
            (pblas.DTypeError, "one dtype", lambda x: linalg.cg(narrow if x else a, b)),
            (pblas.ArgumentError, "tol must be", lambda x: linalg.cg(a, b, tol=-1 if x else 1e-5)),
            (pblas.ArgumentError, "maxiter must be", lambda x: linalg.cg(a, b, maxiter=1.5 if x else 3)),  # type: ignore[arg-type]
            (pblas.ArgumentError, "a must be", lambda x: linalg.cg(3 if x else a, b)),  # type: ignore[arg-type]
            (pblas.DescriptorError, "as A", lambda x: linalg.cg(a, b, preconditioner=wide if x else a)),
            (pblas.PblasError, "the user's", lambda x: linalg.cg(fails if x else (lambda p: p), b)),
            (pblas.DescriptorError, "keep the shape", lambda x: linalg.cg((lambda p: p.T) if x else (lambda p: p), b)),
            (pblas.ArgumentError, "must return a", lambda x: linalg.cg((lambda _: 1) if x else (lambda p: p), b)),  # type: ignore[arg-type, return-value]
            (pblas.MismatchError, "", lambda x: linalg.cg(a, b, tol=1e-6 if x else 1e-5)),
        ]
        for kind, text, call in cases:
            raises_on_all_ranks(kind, text, lambda: call(mistaken))  # noqa: B023
    raises_on_all_ranks(pblas.ArgumentError, "b must be", lambda: linalg.cg(lambda p: p, np.ones(N)))
    raises_on_all_ranks(pblas.DTypeError, "astype", lambda: linalg.cg(a.astype("float16"), b.astype("float16")))
    assert linalg.cg(a, b).iterations == 1

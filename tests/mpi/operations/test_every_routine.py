"""Every routine of pblas.blas once, on every grid: NumPy's result, and the same bits on any transport.

These tests run on two hosts too (tests/harness/run.py).
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pblas import Context, DistMatrix, Grid, MatrixDescriptor, blas
from tests.common import public
from tests.common.gauge import THRESHOLD, Array, entries
from tests.common.ranks import COMM, Contexts, collected, few, grids, same_on_all_ranks
from tests.conformance.tables import GUARD

pytestmark = [pytest.mark.mpi, few]
SETTINGS = ("shared", "message")
N = 13
untyped: Any = blas


def lower(x: Any) -> Array:
    """The lower triangle; the elements above may be NaN."""
    return np.tril(collected(x) if isinstance(x, DistMatrix) else x)


Operands = Any
"""General matrices a, b and c, lower triangles t, s of a symmetric and h of a Hermitian matrix, vectors x and y, real
ones ra, rx and ry, scalars alpha and beta; as matrices of a context, or as arrays."""
ROUTINES: dict[str, tuple[Callable[[Operands], object], Callable[[Operands], object]]] = {
    "dot": (lambda o: untyped.dot(o.rx, o.ry), lambda o: (o.rx * o.ry).sum()),
    "dotu": (lambda o: untyped.dotu(o.x, o.y), lambda o: (o.x * o.y).sum()),
    "dotc": (lambda o: untyped.dotc(o.x, o.y), lambda o: (o.x.conj() * o.y).sum()),
    "nrm2": (lambda o: untyped.nrm2(o.x), lambda o: np.sqrt((np.abs(o.x) ** 2).sum())),
    "asum": (lambda o: untyped.asum(o.x), lambda o: (np.abs(o.x.real) + np.abs(o.x.imag)).sum()),
    "amax": (lambda o: untyped.amax(o.x)[1], lambda o: np.argmax(np.abs(o.x.real) + np.abs(o.x.imag))),
    "scal": (lambda o: untyped.scal(o.alpha, o.x), lambda o: o.alpha * o.x),
    "axpy": (lambda o: untyped.axpy(o.alpha, o.x, o.y), lambda o: o.alpha * o.x + o.y),
    "copy": (lambda o: untyped.copy(o.x, o.y), lambda o: o.x),
    "swap": (lambda o: untyped.swap(o.x, o.y)[0], lambda o: o.y),
    "gemv": (
        lambda o: untyped.gemv(o.a, o.x, o.y, trans="T", alpha=o.alpha, beta=o.beta),
        lambda o: o.alpha * o.a.T @ o.x + o.beta * o.y,
    ),
    "symv": (lambda o: untyped.symv(o.s, o.x, alpha=o.alpha), lambda o: o.alpha * o.s @ o.x),
    "hemv": (lambda o: untyped.hemv(o.h, o.x, alpha=o.alpha), lambda o: o.alpha * o.h @ o.x),
    "trmv": (lambda o: untyped.trmv(o.t, o.x, trans="C"), lambda o: o.t.conj().T @ o.x),
    "trsv": (lambda o: untyped.trsv(o.t, o.x), lambda o: np.linalg.solve(o.t, o.x)),
    "ger": (lambda o: untyped.ger(o.rx, o.ry, o.ra), lambda o: o.rx @ o.ry.T + o.ra),
    "geru": (lambda o: untyped.geru(o.x, o.y, o.a, alpha=o.alpha), lambda o: o.alpha * o.x @ o.y.T + o.a),
    "gerc": (lambda o: untyped.gerc(o.x, o.y, o.a, alpha=o.alpha), lambda o: o.alpha * o.x @ o.y.conj().T + o.a),
    "syr": (lambda o: lower(untyped.syr(o.x, o.s)), lambda o: lower(o.x @ o.x.T + o.s)),
    "her": (lambda o: lower(untyped.her(o.x, o.h)), lambda o: lower(o.x @ o.x.conj().T + o.h)),
    "syr2": (
        lambda o: lower(untyped.syr2(o.x, o.y, o.s, alpha=o.alpha)),
        lambda o: lower(o.alpha * (o.x @ o.y.T + o.y @ o.x.T) + o.s),
    ),
    "her2": (
        lambda o: lower(untyped.her2(o.x, o.y, o.h, alpha=o.alpha)),
        lambda o: lower(o.alpha * o.x @ o.y.conj().T + np.conj(o.alpha) * o.y @ o.x.conj().T + o.h),
    ),
    "syrk": (
        lambda o: lower(untyped.syrk(o.a, o.s, alpha=o.alpha, beta=o.beta)),
        lambda o: lower(o.alpha * o.a @ o.a.T + o.beta * o.s),
    ),
    "herk": (
        lambda o: lower(untyped.herk(o.a, o.h, beta=2.0, trans="C")),
        lambda o: lower(o.a.conj().T @ o.a + 2 * o.h),
    ),
    "syr2k": (
        lambda o: lower(untyped.syr2k(o.a, o.b, alpha=o.alpha)),
        lambda o: lower(o.alpha * (o.a @ o.b.T + o.b @ o.a.T)),
    ),
    "her2k": (
        lambda o: lower(untyped.her2k(o.a, o.b, o.h, alpha=o.alpha)),
        lambda o: lower(o.alpha * o.a @ o.b.conj().T + np.conj(o.alpha) * o.b @ o.a.conj().T + o.h),
    ),
    "symm": (
        lambda o: untyped.symm(o.s, o.b, o.c, alpha=o.alpha, beta=o.beta),
        lambda o: o.alpha * o.s @ o.b + o.beta * o.c,
    ),
    "hemm": (lambda o: untyped.hemm(o.h, o.b, side="R"), lambda o: o.b @ o.h),
    "trmm": (lambda o: untyped.trmm(o.t, o.b, alpha=o.alpha), lambda o: o.alpha * o.t @ o.b),
    "trsm": (
        lambda o: untyped.trsm(o.t, o.b, side="R", trans="C"),
        lambda o: np.linalg.solve(o.t.conj(), o.b.T).T,
    ),
}


def elements() -> Operands:
    """The arrays of the operands."""
    general = [entries((N, N), np.dtype("complex128"), seed) for seed in range(3)]
    x, y = (entries((N, 1), np.dtype("complex128"), seed) for seed in (3, 4))
    triangle = np.tril(entries((N, N), np.dtype("complex128"), 5), -1)
    named = dict(zip("abc", general, strict=True))
    scalars = {"alpha": 2 - 1j, "beta": 0.5 + 1j}
    symmetric, hermitian = triangle + triangle.T + 3 * np.eye(N), triangle + triangle.conj().T + 3 * np.eye(N)
    real = {"ra": general[0].real.copy(), "rx": x.real.copy(), "ry": y.real.copy()}
    t = triangle / N + 2 * np.eye(N)
    return SimpleNamespace(**named, t=t, s=symmetric, h=hermitian, x=x, y=y, **real, **scalars)


class Matrices:
    """The operands on a grid, made on first use, with NaN in all elements that must not be read.

    The vector y is a row. Each matrix is in the middle of another one that is full of guard values.
    """

    def __init__(self, ctx: Context, nprow: int, npcol: int, e: Operands) -> None:
        self.alpha, self.beta = e.alpha, e.beta
        self.around: list[tuple[DistMatrix, Any]] = []
        self._ctx, self._grid, self._elements = ctx, Grid(nprow, npcol), e

    def __getattr__(self, name: str) -> DistMatrix:
        """**Collective.**"""
        x = getattr(self._elements, name)
        x = (x.T if name in ("y", "ry") else x).copy()
        if name in "tsh":
            x[np.triu_indices(N, 1)] = complex(np.nan, np.nan)
        if name == "h":
            np.einsum("ii->i", x).imag = np.nan
        whole = np.full((x.shape[0] + 3, x.shape[1] + 2), GUARD, x.dtype)
        inside = np.s_[2 : 2 + x.shape[0], 1 : 1 + x.shape[1]]
        whole[inside] = x
        grid, (m, n) = self._grid, whole.shape
        a = self._ctx.from_global(whole, MatrixDescriptor(m, n, 3, 2, grid, grid.nprow - 1, grid.npcol // 2))
        self.around.append((a, inside))
        setattr(self, name, a[inside])
        return a[inside]


def result_of(value: object) -> Array:
    """**Collective.** A matrix, an array or a number as an array, a vector as a column."""
    whole = collected(value) if isinstance(value, DistMatrix) else np.asarray(value)
    same_on_all_ranks(whole.tobytes())
    return whole.T if whole.ndim == 2 and len(whole) == 1 else whole


def bound(name: str, e: Operands) -> Array:
    """The sums of the absolute values of the terms; for solves Higham's bound, theorem 8.5."""
    expected: Callable[[Operands], Any] = ROUTINES[name][1]
    if name in ("trsv", "trsm"):
        inverse, t, x = (np.abs(v) for v in (np.linalg.inv(e.t), e.t, expected(e)))
        return np.asarray(inverse @ (t @ x) if name == "trsv" else x @ t.T @ inverse.T)
    return np.asarray(expected(SimpleNamespace(**{key: np.abs(value) for key, value in vars(e).items()})))


@pytest.mark.parametrize("shape", list(grids(COMM.size)), ids=str)
def test_every_routine_is_numpys_on_every_grid_and_the_same_on_every_transport(
    contexts: Contexts, shape: tuple[int, int]
) -> None:
    e = elements()
    for name, (call, expected) in ROUTINES.items():
        results = []
        for setting in SETTINGS:
            m = Matrices(contexts[setting], *shape, e)
            results.append(result_of(call(m)))
            for a, inside in m.around:
                around = collected(a)
                around[inside] = GUARD
                assert (around == GUARD).all(), f"{name} has written around an operand"
        assert results[0].tobytes() == results[1].tobytes(), name
        error = np.abs(results[0] - np.asarray(expected(e)))
        assert (error <= THRESHOLD * np.finfo("float64").eps * bound(name, e)).all(), name


def test_every_routine_is_listed() -> None:
    assert {f"blas.{name}" for name in ROUTINES} == {x for x in public.functions() if x.startswith("blas.")}


def test_trsm_after_trmm_gives_b_back(contexts: Contexts) -> None:
    """Within eps cond(T, B), as both have small backward errors: Higham, theorems 3.5 and 8.5."""
    ctx, e = contexts["shared"], elements()
    for seed, growth in enumerate((1.0, 30.0)):  # well and badly conditioned
        full = np.tril(entries((N, N), np.dtype("complex128"), seed) * growth, -1) / N + np.eye(N)
        for side, uplo, trans in (("L", "L", "N"), ("R", "L", "C"), ("L", "U", "T"), ("R", "U", "N")):
            stored = full if uplo == "L" else full.T
            op = {"N": stored, "T": stored.T, "C": stored.conj().T}[trans]
            a, b = ctx.from_global(stored), ctx.from_global(e.b)
            options: Any = {"side": side, "uplo": uplo, "trans": trans}
            back = collected(blas.trsm(a, blas.trmm(a, b, **options), **options))
            sizes, inverse, x = np.abs(op), np.abs(np.linalg.inv(op)), np.abs(e.b)
            terms = inverse @ sizes @ x if side == "L" else x @ sizes @ inverse
            assert (np.abs(back - e.b) <= 4 * N * np.finfo("float64").eps * terms).all()

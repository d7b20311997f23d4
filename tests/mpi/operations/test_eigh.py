"""Laws of eigh and eigvalsh: LAPACK's ratios on any layout, clusters, limits of the range, equal bits, and errors."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import MatrixDescriptor, linalg
from pblas.backends.cpu import lapack
from pblas.backends.cpu.arrays import HostArrays as CpuArrays
from pblas.backends.device import BandStages
from pblas.spectral import choose, eigh, robust
from pblas.spectral.choose import choose_eigh
from tests.common.factors import MOST, NAMES, general, norm1, positive, ratio
from tests.common.gauge import Array, dtype_of
from tests.common.ranks import COMM, Contexts, collected, few, raises_on_all_ranks, same_on_all_ranks
from tests.common.spectra import KINDS, sample
from tests.mpi.matrices.arrays import some_descriptor
from tests.mpi.operations.test_redistribution import Guarded

P = COMM.size
SETTINGS = ("shared", "message", "mixed")
NB = 3
ALGORITHMS = ("auto", "blocked", "local")
MOST_VALUES = 60.0
"""LAPACK's threshold of symmetric eigenproblems."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Panels and strips of a few columns, and leaves of a few rows, so that small matrices go through all of it."""
    for name, value in {
        "choose._WIDTH": NB,
        "choose._WIDTH_OF_ONE": NB + 1,
        "choose._LEAF": 2,
        "choose._DIRECT": 4,
        "choose._SPLIT": 12,
        "eigh_plan._STRIP": 4,
        "eigh_plan._ROBUST_FROM": 2,
        "eigh_plan._HOST_BAND": NB,
        "eigh_plan._HOST_BAND_FROM": 6,
        "tridiagonalization_run._ROWS": 5,
        "tridiagonalization_run._STRIP": 7,
    }.items():
        monkeypatch.setattr(f"pblas.spectral.{name}", value)
    choose_eigh.cache_clear()
    yield
    choose_eigh.cache_clear()


class HostStages(BandStages):
    """The stages of `backends.cuda.tridiagonal` by NumPy, so that ranks on CPUs run the plan of several GPUs."""

    def __init__(self, width: int) -> None:
        self.width = width

    def holds(self, n: int, dtype: Any) -> bool:
        return n != TOO_LONG

    def multiply(self, x: Array, y: Array, z: Array, *, alpha: Any = 1, beta: Any = 0, adjoint: Any = (0, 0)) -> None:
        left, right = (m.conj().T if turn else m for m, turn in zip((x, y), adjoint, strict=True))
        z[...] = alpha * (left @ right) + (beta * z if beta else 0)

    def complete(self, x: Array) -> None:
        lower = np.tril(x, -1)
        x[...] = lower + lower.conj().T + np.diag(x.diagonal().real)

    def factor(self, panel: Array, t: Array) -> None:
        lapack.geqrt(panel, t)

    def unit_lower(self, panel: Array, v: Array) -> None:
        v[...] = np.tril(panel, -1) + np.eye(*panel.shape, dtype=panel.dtype)

    def copy_blocks(self, x: Array, z: Array, step_x: int, step_z: int) -> None:
        rows = np.arange(len(x) if step_x == 1 else len(z))
        inside, block = rows % self.width, rows // self.width * self.width
        z[block * step_z + inside] = x[block * step_x + inside]

    def chase(self, a: Array, *, keeps: bool) -> Array:
        band = np.triu(np.tril(a), -self.width)
        a[np.triu_indices(len(a), 1)] = np.nan
        self.complete(band)
        return band

    def values(self, t: Array) -> Array:
        return np.linalg.eigvalsh(t)

    def vectors(self, a: Array, triangles: Array, t: Array, wanted: tuple[int, int], z: Array) -> tuple[Array, int]:
        values, s = np.linalg.eigh(t)
        z[...] = s[:, slice(*wanted)]
        for start in reversed(range(0, len(a), self.width)):
            panel = a[start + self.width :, start : start + self.width]
            if len(panel) > 1:
                v = np.zeros((len(panel), count := min(panel.shape)), a.dtype)
                self.unit_lower(panel[:, :count], v)
                block = z[start + self.width :]
                block -= v @ (triangles[:count, start : start + count] @ (v.conj().T @ block))
        return values, 0

    def release(self) -> None:
        pass


TOO_LONG = 23  # columns of a band that the stages do not hold


@pytest.fixture(params=[True, False], ids=["all share", "vectors are shared"])
def by_way_of_a_band(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of GPUs, with a band of a few columns, which all or one reduce."""
    bands = {name: choose._Band(NB, 1, 1) for name in NAMES}
    monkeypatch.setattr(choose, "_BANDS", bands)
    monkeypatch.setattr(choose, "_SHARED_FROM", 5 if request.param else 1000)
    monkeypatch.setattr(choose, "_VECTORS_FROM", 5)
    monkeypatch.setattr(CpuArrays, "band_stages", lambda _, width: HostStages(width))
    monkeypatch.setattr(eigh, "choose_eigh", lambda *a, **options: choose_eigh(*a, **options | {"gpus": True}))


pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("small")]


def hermitian(n: int, dtype: np.dtype[Any], seed: int = 0) -> Array:
    x = general(n, n, np.dtype(np.complex128) if dtype.kind == "c" else np.dtype(np.float64), seed)
    return (x + x.conj().T).astype(dtype)


def one_triangle(a: Array, *, lower: bool) -> Array:
    """A with NaN in the triangle that is not read, and in the imaginary parts of the diagonal."""
    other = np.triu_indices(len(a), 1) if lower else np.tril_indices(len(a), -1)
    a = a.copy()
    a[other] = np.nan
    if a.dtype.kind == "c":
        a.imag[np.diag_indices(len(a))] = np.nan
    return a


def check(a: Array, w: Array, v: Array) -> None:
    """Assert LAPACK's ratios, ascending values, and signs."""
    n, k = len(a), len(w)
    wide: Any = np.clongdouble if a.dtype.kind == "c" else np.longdouble
    exact, vectors = a.astype(wide), v.astype(wide)
    assert (v.shape, v.dtype, w.dtype) == ((n, k), a.dtype, a.real.dtype)
    assert (np.diff(w) >= 0).all()
    if k:
        size = norm1(exact)
        assert ratio(exact @ vectors - vectors * w, n, size, dtype=a.dtype) <= MOST
        assert ratio(vectors.conj().T @ vectors - np.eye(k), n, dtype=a.dtype) <= MOST
        largest = v[np.abs(v).argmax(axis=0), np.arange(k)]
        assert (largest.real > 0).all()
        assert (largest.imag == 0).all()


def check_values(a: Array, w: Array, wanted: slice = slice(None)) -> None:
    """Assert that w are eigenvalues of a, within LAPACK's threshold."""
    right = np.linalg.eigvalsh(a.astype("complex128" if a.dtype.kind == "c" else "float64"))[wanted]
    assert w.shape == right.shape
    if w.size and (size := np.abs(right).max()):
        assert np.abs(w - right).max() <= MOST_VALUES * size * np.finfo(a.dtype).eps


@pytest.mark.parametrize("seed", range(24))
def test_any_layout(contexts: Contexts, seed: int) -> None:
    rng = random.Random(seed)
    dtype, ctx = dtype_of(NAMES[seed % 4]), contexts[rng.choice(SETTINGS)]
    n, offset, lower = rng.choice([*range(10), 12, 30, 41]), rng.choice([0, 3]), rng.choice([True, False])
    a = hermitian(n, dtype, seed)
    desc = some_descriptor(rng, n + offset + 1, n + offset, P)
    guarded = Guarded(ctx, desc, dtype, (offset, offset + n, offset, offset + n), rng.choice(["own", "shared"]))
    guarded.fill(one_triangle(a, lower=lower))
    algorithm: Any = rng.choice(ALGORITHMS)
    w, v = linalg.eigh(guarded.view, lower=lower, algorithm=algorithm)
    values = linalg.eigvalsh(guarded.view, lower=lower, algorithm=algorithm)
    guarded.check_untouched()
    assert v.desc.same_distribution(guarded.view.desc)
    same_on_all_ranks((w.tobytes(), values.tobytes()))
    check(a, w, collected(v))
    check_values(a, w)
    check_values(a, values)


@pytest.mark.usefixtures("by_way_of_a_band")
@pytest.mark.parametrize("seed", range(1, 24, 2))
def test_any_layout_by_way_of_a_band(contexts: Contexts, seed: int) -> None:
    """As of several GPUs: panels and products are exchanged, and each rank multiplies its columns."""
    test_any_layout(contexts, seed)


@pytest.mark.usefixtures("by_way_of_a_band")
def test_plans_by_way_of_a_band(ctx: pblas.Context) -> None:
    """Ranks of a small matrix have no columns; a part of the spectrum; a band that is too long; NaN."""
    for n in (1, 2, 3, 4, 5, 7, TOO_LONG):
        a = hermitian(n, dtype_of("complex128"), n)
        A = ctx.from_global(a)
        w, v = linalg.eigh(A)
        check(a, w, collected(v))
        low, high = w[n // 3] - 1e-9, w[n // 2] + 1e-9
        part = linalg.eigh(A, subset_by_value=[low, high], algorithm="blocked")
        check(a, part.eigenvalues, collected(part.eigenvectors))
        assert part.eigenvectors.shape == (n, n // 2 + 1 - n // 3)
        check_values(a, linalg.eigvalsh(A, subset_by_index=[n // 3, n // 2]), slice(n // 3, n // 2 + 1))
    test_elements_that_are_not_finite(ctx, np.nan, "auto")
    ranks = "1 rank" if P == 1 else f"{min(P, 40 // NB)} ranks"
    text = linalg.plan_eigh(ctx.zeros((40, 40))).explain()
    assert f"a band of {NB} by products on {ranks if choose._SHARED_FROM == 5 else '1 rank'}" in text
    assert f"then of the band; {ranks}, each its columns of V" in text


@pytest.mark.parametrize("algorithm", ["blocked", "local"])
@pytest.mark.parametrize("n", [1, 7, 26])
def test_part_of_the_spectrum(ctx: pblas.Context, n: int, algorithm: Any) -> None:
    a = hermitian(n, dtype_of("complex128"), n)
    right = np.linalg.eigvalsh(a)
    A = ctx.from_global(a)
    for first, last in {(0, 0), (n // 3, n // 2), (n - 1, n - 1), (0, n - 1)}:
        w, v = linalg.eigh(A, subset_by_index=[first, last], algorithm=algorithm)
        check(a, w, collected(v))
        check_values(a, w, slice(first, last + 1))
        assert np.allclose(linalg.eigvalsh(A, subset_by_index=(first, last)), w, rtol=0, atol=1e-12 * n)
        low, high = right[first] - 1e-6, right[last] + 1e-6
        by_value, v = linalg.eigh(A, subset_by_value=[low, high], algorithm=algorithm)
        check(a, by_value, collected(v))
        check_values(a, by_value, slice(first, last + 1))
        assert len(linalg.eigvalsh(A, subset_by_value=[low, high])) == last + 1 - first
    w, v = linalg.eigh(A, subset_by_value=[1e8, 1e9], algorithm=algorithm)
    assert (w.shape, v.shape) == ((0,), (n, 0))


@few
@pytest.mark.parametrize("algorithm", ["blocked", "local"])
@pytest.mark.parametrize("name", ["float64", "complex64"])
@pytest.mark.parametrize("kind", KINDS)
def test_spectra(ctx: pblas.Context, kind: int | str, name: str, algorithm: Any) -> None:
    check_spectrum(ctx, 25, kind, dtype_of(name), algorithm)


def check_spectrum(ctx: pblas.Context, n: int, kind: int | str, dtype: np.dtype[Any], algorithm: Any) -> None:
    """Check a matrix of this kind: LAPACK's ratios, eigenvalues, and their sum."""
    a, size, values = sample(kind, n, dtype)
    A = ctx.from_global(a)
    w, v = linalg.eigh(A, algorithm=algorithm)
    # in units of the size: the ratios of numbers close to the limits are out of range
    wide: Any = np.clongdouble if dtype.kind == "c" else np.longdouble
    exact, vectors, found = a.astype(wide) / size, collected(v).astype(wide), w.astype(np.longdouble) / size
    limits = np.finfo(dtype)
    lost = float(limits.eps) + float(limits.smallest_subnormal) / size
    norm = max(norm1(exact), 0.0 if values is None else float(np.abs(values).max()))
    assert np.abs(exact @ vectors - vectors * found).sum(0).max() <= MOST * n * lost * norm
    assert ratio(vectors.conj().T @ vectors - np.eye(n), n, dtype=dtype) <= MOST
    if values is None:
        values = np.linalg.eigvalsh(exact.astype("c16" if dtype.kind == "c" else "f8"))
    all_found = [found]
    if algorithm == "local":  # by way of a band
        all_found.append(linalg.eigvalsh(A, algorithm=algorithm).astype(np.longdouble) / size)
    for eigenvalues in all_found:
        assert np.abs(eigenvalues - np.sort(values)).max() <= MOST_VALUES * lost * norm
        assert abs(eigenvalues.sum() - exact.trace().real) <= MOST_VALUES * n * lost * norm


@pytest.mark.parametrize("name", ["float32", "complex128"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_few_vectors_of_spectra(ctx: pblas.Context, kind: int | str, name: str) -> None:
    """Ranks find vectors one by one; those of a cluster that two ranks have by divide and conquer."""
    n, dtype = 40, dtype_of(name)
    a, size, _ = sample(kind, n, dtype)
    A, limits = ctx.from_global(a), np.finfo(dtype)
    wide: Any = np.clongdouble if dtype.kind == "c" else np.longdouble
    exact = a.astype(wide) / size
    all_values = np.linalg.eigvalsh(exact.astype("c16" if dtype.kind == "c" else "f8"))
    lost, norm = float(limits.eps) + float(limits.smallest_subnormal) / size, float(np.abs(exact).sum(0).max())
    for first, last in ((0, 11), (15, 32), (39, 39)):
        w, v = linalg.eigh(A, subset_by_index=[first, last])
        vectors, found = collected(v).astype(wide), w.astype(np.longdouble) / size
        assert (np.diff(w) >= 0).all()
        assert np.abs(found - all_values[first : last + 1]).max() <= MOST_VALUES * lost * norm
        assert np.abs(exact @ vectors - vectors * found).sum(0).max() <= MOST * n * lost * norm
        assert ratio(vectors.conj().T @ vectors - np.eye(last + 1 - first), n, dtype=dtype) <= MOST
    same_on_all_ranks(w.tobytes())
    assert "relatively robust" in linalg.plan_eigh(A, subset_by_index=[0, 11]).explain()


def test_clusters_of_several_ranks(ctx: pblas.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of a cluster that ranks found one by one are not used, on any rank."""
    results, found = list[bool](), robust.robust_vectors

    def recorded(*arguments: Any) -> Any:
        values = found(*arguments)
        results.append(values is not None)
        return values

    monkeypatch.setattr(robust, "robust_vectors", recorded)
    for kind in (13, "two values"):  # random elements
        a, *_ = sample(kind, 40, dtype_of("float64"))
        w, v = linalg.eigh(ctx.from_global(a), subset_by_index=[0, 11])
        check(a, w, collected(v))
    same_on_all_ranks(results)
    assert results == [True, P == 1]


def tridiagonal(d: Array, e: Array) -> Array:
    return np.diag(d) + np.diag(e, 1) + np.diag(e, -1)


@pytest.mark.parametrize(
    ("n", "first", "last", "glue"), [(317, 72, 128, 1e-7), (400, 10, 60, 1e-5), (333, 200, 230, 1e-9)]
)
def test_a_few_pairs_of_glued_matrices_are_those_wanted(
    ctx: pblas.Context, n: int, first: int, last: int, glue: float
) -> None:
    """Of clusters of eigenvalues LAPACK's xSTEMR finds neighbours of those that are wanted."""
    beside = np.ones(n - 1)
    beside[12::13] = glue
    a = tridiagonal(np.full(n, 2.0), beside)
    w, v = linalg.eigh(ctx.from_global(a), subset_by_index=[first, last])
    vectors = collected(v)
    assert np.abs(w - np.linalg.eigvalsh(a)[first : last + 1]).max() <= 1e-13
    assert np.abs(a @ vectors - vectors * w).max() <= 1e-12
    assert np.abs(vectors.T @ vectors - np.eye(last + 1 - first)).max() <= 1e-12


@pytest.mark.parametrize("algorithm", ["blocked", "local"])
def test_tridiagonal_matrices(ctx: pblas.Context, algorithm: Any) -> None:
    wilkinson = tridiagonal(np.abs(np.arange(-10.0, 11)), np.ones(20))
    glued = np.kron(np.eye(3), wilkinson)
    for i in (21, 42):
        glued[i, i - 1] = glued[i - 1, i] = 1e-8
    graded = tridiagonal(10.0 ** -np.arange(16), 10.0 ** -np.arange(0.5, 15))
    for a in (wilkinson, glued, graded, tridiagonal(np.full(30, 2.0), np.full(29, -1.0)), np.ones((17, 17))):
        A = ctx.from_global(a)
        w, v = linalg.eigh(A, algorithm=algorithm)
        check(a, w, collected(v))
        check_values(a, w)
        part = linalg.eigh(A, subset_by_index=[len(a) // 2, len(a) - 1], algorithm=algorithm)
        check(a, part.eigenvalues, collected(part.eigenvectors))


@pytest.mark.parametrize("kind", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_generalized(ctx: pblas.Context, name: str, kind: Any) -> None:
    """Against the equivalent problem with the Cholesky factor, in wide numbers; V is orthonormal with B."""
    n, dtype = 19, dtype_of(name)
    a, b = hermitian(n, dtype, 1), positive(n, dtype, 2)
    rows, columns = MatrixDescriptor.row_wise(n, n, P), MatrixDescriptor.column_wise(n, n, P, nb=2)
    wide = np.dtype(np.complex128 if dtype.kind == "c" else np.float64)
    left = np.linalg.cholesky(b.astype(wide))
    inverse = np.linalg.inv(left)
    c = inverse @ a @ inverse.conj().T if kind == 1 else left.conj().T @ a @ left
    right, eps = np.linalg.eigvalsh(c), float(np.finfo(dtype).eps)
    for lower in (True, False):
        A = ctx.from_global(one_triangle(a, lower=lower), rows)
        B = ctx.from_global(one_triangle(b, lower=lower), columns)
        w, v, residual, orthogonality = linalg.eigh(A, B, type=kind, lower=lower, check=True)
        assert v.desc.same_distribution(A.desc)
        assert np.abs(w - right).max() <= 10 * np.linalg.cond(b) * n * eps * np.abs(right).max()
        assert residual <= MOST * n * eps
        assert orthogonality <= MOST * n * eps
        x = collected(v)
        y = inverse @ x if kind == 3 else left.conj().T @ x
        assert np.abs(y.conj().T @ y - np.eye(n)).max() <= MOST * n * eps
        assert (x[np.abs(x).argmax(axis=0), np.arange(n)].real > 0).all()
        part = linalg.eigh(A, B, type=kind, lower=lower, subset_by_index=[2, 4])
        assert np.allclose(part.eigenvalues, w[2:5], rtol=0, atol=1e3 * eps * np.abs(w).max())
        same_on_all_ranks((residual, orthogonality))


@few
def test_checks_find_what_is_wrong(ctx: pblas.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    A = ctx.from_global(hermitian(19, dtype_of("complex128")))
    w, v, residual, orthogonality = linalg.eigh(A, check=True, subset_by_index=[0, 6])
    assert max(residual, orthogonality) <= 1e-13
    check(collected(A), w, collected(v))
    monkeypatch.setattr(type(ctx.runtime.backend.arrays), "fix_signs", lambda _, x: x.__imul__(1.5))
    result = linalg.eigh(A, check=True)
    assert abs(result.orthogonality - 1.25 * 19**0.5) < 1e-10
    assert result.residual <= 1e-13


@few
def test_a_b_that_is_not_positive_definite(ctx: pblas.Context) -> None:
    A, B = ctx.from_global(hermitian(9, dtype_of("float64"))), ctx.from_global(np.diag([1.0] * 4 + [-1.0] * 5))
    raises_on_all_ranks(
        pblas.NotPositiveDefiniteError, "eigh: B is not positive definite: its leading 5 x 5", lambda: linalg.eigh(A, B)
    )


def test_equal_bits(contexts: Contexts) -> None:
    """Over all transports, and of a second call."""
    a = hermitian(29, dtype_of("complex128"))
    algorithms: tuple[Any, ...] = ("blocked", "local")
    for algorithm in algorithms:
        results = []
        for name in SETTINGS:
            A = contexts[name].from_global(a)
            for _ in range(2):
                w, v = linalg.eigh(A, algorithm=algorithm)
                results.append((w.tobytes(), collected(v).tobytes()))
        assert len(set(results)) == 1


@few
def test_the_memory_of_a(ctx: pblas.Context) -> None:
    a = hermitian(14, dtype_of("float64"))
    A = ctx.from_global(a)
    w, v = linalg.eigh(A, overwrite_a=True)
    assert v is A
    check(a, w, collected(A))
    A = ctx.from_global(a)
    v = linalg.eigh(A, overwrite_a=True, subset_by_index=[0, 3]).eigenvectors
    assert v.shape == (14, 4)
    C = ctx.from_global(hermitian(14, dtype_of("complex128"))).H
    assert linalg.eigh(C, overwrite_a=True).eigenvectors is not C


@few
def test_progress(ctx: pblas.Context) -> None:
    reports = list[tuple[str, float]]()
    A = ctx.from_global(hermitian(30, dtype_of("float64")))
    linalg.eigh(A, algorithm="blocked", progress=lambda stage, done: reports.append((stage, done)))
    ends = [stage for stage, done in reports if done == 1]
    assert ends == ([] if COMM.rank else ["reduce", "divide and conquer", "transform"])


@few
def test_planned(ctx: pblas.Context) -> None:
    a = hermitian(20, dtype_of("float64"))
    A = ctx.from_global(a)
    with linalg.plan_eigh(A, subset_by_index=[0, 4]) as planned:
        w, v = planned.execute(A)
        check(a, w, collected(v))
        assert "5 of them" in planned.explain()
        text = "planned was"
        raises_on_all_ranks(pblas.DescriptorError, text, lambda: planned.execute(A[:19, :19]))
    raises_on_all_ranks(pblas.ContextError, "the planned eigh is closed", lambda: planned.execute(A))


@few
@pytest.mark.parametrize("algorithm", ["blocked", "local"])
@pytest.mark.parametrize("value", [np.nan, np.inf, complex(0, np.nan)])
def test_elements_that_are_not_finite(ctx: pblas.Context, value: complex, algorithm: Any) -> None:
    a = hermitian(15, dtype_of("complex128"))
    a_ij = a.copy()
    a_ij[14, 2] = value
    A = ctx.from_global(a_ij)
    call = partial(linalg.eigh, A, algorithm=algorithm)
    raises_on_all_ranks(pblas.ArgumentError, "A has NaN or infinite elements in its lower triangle", call)
    check_values(a, linalg.eigvalsh(A, lower=False))
    w, v = linalg.eigh(ctx.from_global(a), algorithm=algorithm)  # the context goes on
    check(a, w, collected(v))


@few
def test_no_convergence(ctx: pblas.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    A = ctx.from_global(hermitian(12, dtype_of("float64")))
    if COMM.rank == P - 1:
        monkeypatch.setattr("pblas.backends.cpu.lapack.stedc", lambda *_: 3)
    error = raises_on_all_ranks(pblas.ConvergenceError, "INFO=3", lambda: linalg.eigh(A))
    assert "scale A" in error
    monkeypatch.undo()
    if COMM.rank == 0:
        monkeypatch.setattr("pblas.backends.cpu.lapack.sterf", lambda *_: 2)
        monkeypatch.setattr("pblas.backends.cpu.lapack.syevd", lambda *_, **__: 4)
    raises_on_all_ranks(pblas.ConvergenceError, "INFO=2", lambda: linalg.eigvalsh(A, algorithm="local"))
    raises_on_all_ranks(pblas.ConvergenceError, "INFO=4", lambda: linalg.eigh(A[:4, :4]))  # one routine


@few
def test_errors(ctx: pblas.Context) -> None:
    A, rectangle = ctx.from_global(hermitian(6, dtype_of("float64"))), ctx.zeros((4, 5))
    wrong: Any = linalg.eigh
    for kind, text, call in (
        (pblas.DescriptorError, "A is 4 x 5; it must be square", lambda: wrong(rectangle)),
        (pblas.DTypeError, "has too few bits", lambda: wrong(A.astype("float16"))),
        (pblas.ArgumentError, "algorithm must be 'auto'", lambda: wrong(A, algorithm="qr")),
        (pblas.ArgumentError, "pass one of them", lambda: wrong(A, subset_by_index=[0, 1], subset_by_value=[0, 1])),
        (pblas.ArgumentError, "0 <= first <= last < 6", lambda: wrong(A, subset_by_index=[0, 6])),
        (pblas.ArgumentError, "must be two integers", lambda: wrong(A, subset_by_index=[0.0, 1.0])),
        (pblas.ArgumentError, "must be two numbers", lambda: wrong(A, subset_by_value=[0.0])),
        (pblas.ArgumentError, "low < high", lambda: wrong(A, subset_by_value=[1, 1])),
        (pblas.ArgumentError, "lower must be", lambda: wrong(A, lower="L")),
        (pblas.ArgumentError, "type must be 1, 2 or 3", lambda: wrong(A, A, type=4)),
        (pblas.DescriptorError, "A and B are 6 x 6 and 4 x 5", lambda: wrong(A, rectangle)),
        (pblas.DTypeError, "both must have one dtype", lambda: wrong(A, A.astype("float32"))),
        (pblas.ArgumentError, "check must be", lambda: wrong(A, check="yes")),
    ):
        raises_on_all_ranks(kind, text, call)
    one_wrong = linalg.eigvalsh if COMM.rank else partial(linalg.eigvalsh, lower=False)
    if P > 1:
        raises_on_all_ranks(pblas.MismatchError, "uplo", lambda: one_wrong(A))

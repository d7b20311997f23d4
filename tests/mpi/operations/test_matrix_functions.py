"""Laws of polar, newton_schulz, roots, signs and exponentials: equations on any layout, SciPy's values, errors."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import pblas
from pblas import linalg
from tests.common.factors import MOST, NAMES, general, positive
from tests.common.gauge import Array, dtype_of
from tests.common.ranks import COMM, Contexts, collected, few, raises_on_all_ranks
from tests.mpi.matrices.arrays import some_descriptor
from tests.mpi.operations.test_redistribution import Guarded

P = COMM.size
SETTINGS = ("shared", "message", "mixed")
pytestmark = pytest.mark.mpi


def check_polar(a: Array, u: Array, p: Array, side: str) -> None:
    """Assert A = U P or P U, orthonormal columns or rows, and a Hermitian semidefinite P."""
    eps, (m, n) = float(np.finfo(a.dtype).eps), a.shape
    size, bound = np.abs(a).max(initial=0), MOST * max(m, n) * eps
    assert (u.shape, u.dtype, p.dtype) == (a.shape, a.dtype, a.dtype)
    assert np.abs((u @ p if side == "right" else p @ u) - a).max(initial=0) <= bound * size
    gram = u.conj().T @ u if m >= n else u @ u.conj().T
    assert np.abs(gram - np.eye(len(gram))).max(initial=0) <= bound
    assert np.array_equal(p, p.conj().T)
    assert np.linalg.eigvalsh(p).min(initial=0) >= -bound * size


@pytest.mark.parametrize("seed", range(12))
def test_polar_of_any_layout(contexts: Contexts, seed: int) -> None:
    rng = random.Random(seed)
    dtype, ctx = dtype_of(NAMES[seed % 4]), contexts[rng.choice(SETTINGS)]
    m, n = rng.choice([(k, k) for k in range(10)] + [(9, 4), (4, 9), (0, 3), (17, 17)])
    desc = some_descriptor(rng, m, n, P)
    guarded = Guarded(ctx, desc, dtype, home=rng.choice(["own", "shared"]))
    a = general(m, n, dtype, seed)
    guarded.fill(a)
    side: Any = rng.choice(["left", "right"])
    algorithm: Any = rng.choice(["newton", "qdwh", "svd", "auto"])
    u, p = linalg.polar(guarded.view, side, algorithm=algorithm)
    guarded.check_untouched()
    assert u.desc.same_distribution(guarded.view.desc)
    check_polar(a, collected(u), collected(p), side)


@few
@pytest.mark.parametrize("condition", [1, 1e2, 1e8, 1e15, 1e30, 0])
@pytest.mark.parametrize("shape", [(12, 12), (15, 8)])
def test_polar_of_any_condition(ctx: pblas.Context, shape: tuple[int, int], condition: float) -> None:
    k = min(shape)
    left, right = (np.linalg.qr(general(n, k, dtype_of("float64"), n))[0] for n in shape)
    values = np.geomspace(1, 1 / condition, k) if condition else np.zeros(k)
    for size in (1.0, 1e300, 1e-300):
        a = (left * values) @ right.T * size
        A = ctx.from_global(a)
        for algorithm in ("newton", "qdwh", "svd"):
            name: Any = algorithm
            u, p = linalg.polar(A, algorithm=name)
            check_polar(a / size, collected(u), collected(p) / size, "right")
    nearest = scipy.linalg.polar(a)[0]
    if 0 < condition < 1e9:
        assert np.abs(collected(u) - nearest).max() <= 1e-14 * condition * k


@pytest.mark.parametrize("name", ["float16", "bfloat16", *NAMES])
def test_newton_schulz(ctx: pblas.Context, name: str) -> None:
    dtype = dtype_of(name)
    eps = 2.0**-8 if name == "bfloat16" else float(np.finfo(dtype).eps)
    for m, n in ((7, 7), (5, 9), (9, 5), (1, 3), (0, 2)):
        x = general(m, n, dtype if dtype.kind == "c" else dtype_of("float64"), 3).astype(dtype)
        y: Any = x.astype("complex128" if dtype.kind == "c" else "float64")
        y = y / (np.linalg.norm(y) or 1)
        for a, b, c in ((3.4445, -4.7750, 2.0315),) * 5:
            g = y @ y.conj().T
            y = a * y + (b * g + c * g @ g) @ y
        X = ctx.from_global(x)
        result = linalg.newton_schulz(X)
        assert (result.dtype, result.desc.same_distribution(X.desc)) == (dtype, True)
        assert np.abs(collected(result).astype(y.dtype) - y).max(initial=0) <= 40 * eps
        adjoint = collected(linalg.newton_schulz(X.H)).astype(y.dtype)
        assert np.abs(adjoint - y.conj().T).max(initial=0) <= 40 * eps
        u = collected(linalg.newton_schulz(X, steps=30, coefficients=[(1.5, -0.5, 0)] * 30)).astype(y.dtype)
        gram = u.conj().T @ u if m >= n else u @ u.conj().T
        assert np.abs(gram - np.eye(len(gram))).max(initial=0) <= 40 * eps


@pytest.mark.parametrize(
    ("name", "size"),
    [("float16", 1e-6), ("bfloat16", 1e-30), ("float64", 1e-310), ("float64", 1e200), ("float64", np.inf)],
)
def test_many_are_iterated_as_one_is(ctx: pblas.Context, name: str, size: float) -> None:
    """Each of as many matrices as ranks, twice, is whole on one rank; elements may be subnormal, or no numbers."""
    eps = 2.0**-8 if name == "bfloat16" else float(np.finfo(dtype_of(name)).eps)
    for shape in ((6, 6), (4, 13), (13, 4)):
        X = ctx.from_global((general(*shape, dtype_of("float64"), 3) * size).astype(dtype_of(name)))
        with np.errstate(all="ignore"):
            one = collected(linalg.newton_schulz(X)).astype("float64")
            many = [collected(y).astype("float64") for y in linalg.orthogonalize_many([X] * (2 * ctx.nprocs))]
        for y in many:
            np.testing.assert_allclose(y, one, rtol=0, atol=40 * eps)


@pytest.mark.parametrize("name", NAMES)
def test_sizes_at_the_ends_of_the_range(ctx: pblas.Context, name: str) -> None:
    """Norms overflow, and squares and reciprocals of elements, too; of complex matrices absolute values of elements."""
    dtype, limits, eps = dtype_of(name), np.finfo(name), float(np.finfo(name).eps)
    options: Any = {"steps": 40, "coefficients": (1.5, -0.5, 0)}
    for size in (float(limits.max), 0.6 * float(limits.max), 64 * float(limits.smallest_subnormal)):
        x = np.empty((5, 4), dtype)
        signs = np.where((np.arange(20).reshape(5, 4) * 7 + 3) % 11 < 5, 1.0, -0.5) * size
        x.real = signs
        if dtype.kind == "c":
            x.imag = signs[::-1]
        X = ctx.from_global(x)
        for y in (linalg.newton_schulz(X, **options), *linalg.orthogonalize_many([X] * ctx.nprocs, **options)):
            u = collected(y)
            assert np.abs(u.conj().T @ u - np.eye(4)).max() <= 40 * eps


def test_small_elements_of_bfloat16_grow(ctx: pblas.Context) -> None:
    x = np.diag([1.0, 1e-9]).astype(dtype_of("bfloat16"))
    X, options = ctx.from_global(x), dict[str, Any](steps=60, coefficients=(1.5, -0.5, 0))
    for y in (linalg.newton_schulz(X, **options), *linalg.orthogonalize_many([X] * ctx.nprocs, **options)):
        assert np.abs(collected(y).astype(float) - np.eye(2)).max() <= 0.02


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
def test_steps_in_the_square_are_as_accurate_as_single_ones(ctx: pblas.Context, name: str) -> None:
    """Of a wide matrix that one rank has; with singular values 0 and 1, single steps in bfloat16 are 0.25 off."""
    left, values, right = np.linalg.svd(general(48, 150, dtype_of("float64"), 5), full_matrices=False)
    for spectrum in (values, np.arange(48) < 24, 1 / (1 + np.arange(48))):
        x = ((left * spectrum) @ right).astype(dtype_of(name))
        y = x.astype("float64") / np.linalg.norm(x.astype("float64"))
        for a, b, c in ((3.4445, -4.7750, 2.0315),) * 5:
            g = y @ y.T
            y = a * y + (b * g + c * g @ g) @ y
        for result in linalg.orthogonalize_many([ctx.from_global(x)] * ctx.nprocs):
            error = np.linalg.norm(collected(result).astype("float64") - y) / np.linalg.norm(y)
            assert error <= (1e-4 if name == "float32" else 0.03)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [0, 1, 3, 9])
def test_functions(ctx: pblas.Context, n: int, name: str) -> None:
    """Roots and signs by their equations, exponentials by SciPy's; one triangle is read."""
    dtype = dtype_of(name)
    eps, one = float(np.finfo(dtype).eps), np.eye(n)
    a, general_a = positive(n, dtype), general(n, n, dtype)
    h = general_a + general_a.conj().T
    lower = np.tril(a) + np.triu(np.full_like(a, np.nan), 1)
    A, H = ctx.from_global(lower), ctx.from_global(h)
    size, inverse = np.abs(a).sum(), np.abs(np.linalg.inv(a)).sum()
    root, inverse_root, third = (collected(x) for x in (linalg.sqrtm(A), linalg.invsqrtm(A), linalg.inverse_root(A, 3)))
    sign, positive_part = collected(linalg.signm(H)), linalg.sqrtm(ctx.from_global(h @ h.conj().T))
    for x, y, bound in (
        (root @ root, a, size),
        (inverse_root @ a @ inverse_root, one, size * inverse),
        (third @ third @ third @ a, one, size * inverse),
        (sign @ sign, one, 1),
        (sign @ h, collected(positive_part), size * 10),
    ):
        assert np.abs(x - y).max(initial=0) <= MOST * eps * bound * max(n, 1)
    for x in (root, inverse_root, third, sign):
        assert np.array_equal(x, x.conj().T)
    wide = "complex128" if dtype.kind == "c" else "float64"
    for matrix, hermitian in ((general_a, False), (3 * h, False), (h, True)):
        right = scipy.linalg.expm(matrix.astype(wide)) if n else matrix
        found = collected(linalg.expm(ctx.from_global(matrix.astype(dtype)), hermitian=hermitian))
        assert found.dtype == dtype
        bound = MOST * eps * max(n, 1) * (1 + np.abs(matrix).sum()) * np.abs(right).max(initial=0)
        assert np.abs(found - right).max(initial=0) <= bound


def test_functions_of_ill_conditioned_matrices(ctx: pblas.Context) -> None:
    """Against mpmath's with 40 digits, for a condition of 1.5e7: as accurate as eigenvalues in rounded elements are."""
    mpmath = pytest.importorskip("mpmath")
    a = 1 / (np.arange(6)[:, None] + np.arange(6) + 1)  # of Hilbert
    least, h = float(np.linalg.eigvalsh(a)[0]), a - 0.2 * np.eye(6)
    with mpmath.workdps(40):
        exact_a, exact_h = mpmath.matrix(a.tolist()), mpmath.matrix(h.tolist())
        root = mpmath.sqrtm(exact_a)
        sign = exact_h * mpmath.inverse(mpmath.sqrtm(exact_h * exact_h))
        exact = [np.array(x.tolist(), complex).real for x in (root, mpmath.inverse(root), sign, mpmath.expm(exact_a))]
    A, H = ctx.from_global(a), ctx.from_global(h)
    found = linalg.sqrtm(A), linalg.invsqrtm(A), linalg.signm(H), linalg.expm(A, hermitian=True)
    gap = float(np.abs(np.linalg.eigvalsh(h)).min())
    for x, y, bound in zip(found, exact, (least**-0.5, least**-1.5, 1 / gap, 10.0), strict=True):
        assert 0 < np.abs(collected(x) - y).max() <= 12 * 2.0**-52 * bound


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("wrong", range(P))
def test_an_error_of_one_of_many(contexts: Contexts, setting: str, wrong: int) -> None:
    """Each rank has three whole matrices: after an error in the first one it still sends parts of the others."""
    ctx = contexts[setting]
    matrices = [ctx.full((6, 6), np.nan if k == wrong else 1.0) for k in range(3 * P)]
    text = "elements that are NaN or infinite"
    raises_on_all_ranks(pblas.ArgumentError, text, lambda: linalg.orthogonalize_many(matrices, function="polar"))
    x = linalg.orthogonalize_many([ctx.eye(6)] * (3 * P), function="polar")
    assert all(np.allclose(collected(each), np.eye(6)) for each in x)


@few
def test_errors(ctx: pblas.Context) -> None:
    wrong: Any = linalg
    eye, half = ctx.eye(4), ctx.eye(4).astype("float16")
    for kind, text, call in (
        (pblas.ArgumentError, "side must be", lambda: wrong.polar(eye, "up")),
        (pblas.ArgumentError, "algorithm must be", lambda: wrong.polar(eye, algorithm="halley")),
        (pblas.ArgumentError, "polar: A has NaN", lambda: wrong.polar(ctx.full((3, 3), np.nan), algorithm="qdwh")),
        (pblas.ArgumentError, "expm: A has NaN", lambda: wrong.expm(ctx.full((3, 3), np.inf))),
        (pblas.DTypeError, "too few bits", lambda: wrong.polar(half)),
        (pblas.DescriptorError, "must be square", lambda: wrong.expm(ctx.ones((3, 4)))),
        (pblas.DescriptorError, "must be square", lambda: wrong.sqrtm(ctx.ones((3, 4)))),
        (pblas.NotPositiveDefiniteError, "1 negative eigenvalue", lambda: wrong.sqrtm(-1 * ctx.eye((1, 1)))),
        (pblas.NotPositiveDefiniteError, "4 eigenvalues", lambda: wrong.invsqrtm(0 * eye)),
        (pblas.ArgumentError, "p must be", lambda: wrong.inverse_root(eye, 0)),
        (pblas.ArgumentError, "steps must be", lambda: wrong.newton_schulz(eye, steps=-1)),
        (pblas.ArgumentError, "coefficients must be", lambda: wrong.newton_schulz(eye, coefficients=(1, 2))),
    ):
        raises_on_all_ranks(kind, text, call)
    if P > 1:
        mine = linalg.sqrtm if COMM.rank else linalg.invsqrtm
        raises_on_all_ranks(pblas.MismatchError, "", lambda: mine(eye))

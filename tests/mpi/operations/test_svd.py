"""Laws of svd and svdvals: LAPACK's ratios on any layout, clusters, limits of the range, equal bits, and errors."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import linalg
from pblas.spectral.svd_plan import SvdAlgorithm, choose_svd
from tests.common.factors import MOST, NAMES, general, norm1, ratio
from tests.common.gauge import Array, dtype_of
from tests.common.ranks import COMM, Contexts, collected, few, raises_on_all_ranks, same_on_all_ranks
from tests.common.spectra import spectra
from tests.mpi.matrices.arrays import some_descriptor
from tests.mpi.operations.test_redistribution import Guarded

P = COMM.size
ALGORITHMS: tuple[SvdAlgorithm, ...] = ("auto", "blocked", "local", "polar")
SETTINGS = ("shared", "message", "mixed")
MOST_OF_SVD = 50.0
"""LAPACK's threshold of singular values."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Panels and tiles of a few columns, and all ranks for them, so that small matrices go through all of it."""
    monkeypatch.setattr("pblas.spectral.choose._WIDTH", 3)
    monkeypatch.setattr("pblas.spectral.choose._WIDTH_OF_ONE", 4)
    monkeypatch.setattr("pblas.spectral.choose._SPLIT", 12)
    monkeypatch.setattr("pblas.spectral.bidiagonalization_run._TILE_NBYTES", 400)
    monkeypatch.setattr("pblas.spectral.svd_plan._BAND", 3)
    monkeypatch.setattr("pblas.spectral.svd_plan._BAND_FROM", 6)
    choose_svd.cache_clear()
    yield
    choose_svd.cache_clear()


pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("small")]


def check(a: Array, u: Array, s: Array, vh: Array, size: float = 1.0) -> None:
    """Assert LAPACK's ratios, and descending values; `size` is a unit in which the numbers are in range."""
    (m, n), k = a.shape, min(a.shape)
    wide: Any = np.clongdouble if a.dtype.kind == "c" else np.longdouble
    u, vh, exact, values = u.astype(wide), vh.astype(wide), a.astype(wide) / size, s.astype(np.longdouble) / size
    assert (u.shape[0], vh.shape[1], s.shape, s.dtype) == (m, n, (k,), a.real.dtype)
    assert (np.diff(s) <= 0).all() and (s >= 0).all()  # noqa: PT018
    eps = float(np.finfo(a.dtype).eps) + float(np.finfo(a.dtype).smallest_subnormal) / size
    residual = norm1(exact - (u[:, :k] * values) @ vh[:k])
    assert residual <= MOST_OF_SVD * max(m, n) * eps * max(norm1(exact), float(values.max(initial=0)))
    for x in (u, vh.conj().T):
        assert ratio(x.conj().T @ x - np.eye(x.shape[1]), max(len(x), 1), dtype=a.dtype) <= MOST
    short = vh[:k].conj().T if m >= n else u[:, :k]
    largest = short[np.abs(short).argmax(axis=0), np.arange(k)] if k else np.ones(1)
    assert (largest.real > 0).all()
    assert np.abs(largest.imag).max() <= 2 * eps


@pytest.mark.parametrize("seed", range(24))
def test_any_layout(contexts: Contexts, seed: int) -> None:
    rng = random.Random(seed)
    dtype, ctx = dtype_of(NAMES[seed % 4]), contexts[rng.choice(SETTINGS)]
    m, n = (rng.choice([*range(10), 14, 23]) for _ in range(2))
    m, n, offset = *rng.choice([(m, m), (m, n), (m, n)]), rng.choice([0, 3])
    a = general(m, n, dtype, seed)
    desc = some_descriptor(rng, m + offset + 1, n + offset, P)
    guarded = Guarded(ctx, desc, dtype, (offset, offset + m, offset, offset + n), rng.choice(["own", "shared"]))
    guarded.fill(a)
    full, algorithm = rng.choice([True, False]), rng.choice(ALGORITHMS)
    u, s, vh = linalg.svd(guarded.view, full_matrices=full, algorithm=algorithm)
    values = linalg.svdvals(guarded.view, algorithm=algorithm)
    guarded.check_untouched()
    k = min(m, n)
    assert (u.shape, vh.shape) == ((m, m if full else k), (n if full else k, n))
    assert u.desc.grid == guarded.view.desc.grid
    same_on_all_ranks((s.tobytes(), values.tobytes()))
    check(a, collected(u), s, collected(vh))
    right = np.linalg.svd(a.astype("complex128" if dtype.kind == "c" else "float64"), compute_uv=False)
    assert np.abs(values - right).max(initial=0) <= MOST * max(m, n) * np.finfo(dtype).eps * right.max(initial=0)


@few
@pytest.mark.parametrize("name", ["float64", "complex64"])
@pytest.mark.parametrize("kind", list(spectra(3, 1e-16)))
def test_spectra(ctx: pblas.Context, kind: str, name: str) -> None:
    n, dtype = 25, dtype_of(name)
    limits = np.finfo(dtype)
    d = spectra(n, float(limits.eps))[kind]
    for diagonal in (True, False):
        wide = np.dtype(np.complex128 if dtype.kind == "c" else np.float64)
        left, right = (np.eye(n) if diagonal else np.linalg.qr(general(n, n, wide, seed))[0] for seed in (1, 2))
        for size in (1.0, float(limits.max) / 64, float(limits.smallest_normal) * 64):
            a = ((left * d) @ right * size).astype(dtype)
            for algorithm in ALGORITHMS[1:3] if diagonal else ALGORITHMS[1:]:
                u, s, vh = linalg.svd(ctx.from_global(a), algorithm=algorithm)
                check(a, collected(u), s, collected(vh), size)


@few
def test_kahan_and_graded_matrices(ctx: pblas.Context) -> None:
    """A row that is all but zero is reflected by a product of its own; values have an error of a few eps norm(A)."""
    n, c = 24, 0.285
    kahan = np.diag((1 - c * c) ** (np.arange(n) / 2)) @ (np.eye(n) - c * np.triu(np.ones((n, n)), 1))
    graded = general(n, n, dtype_of("float64")) * 10.0 ** -np.arange(0, 2 * n, 2)
    tiny_row = np.eye(n) + 0.0
    tiny_row[0, 2:] = 1e-305 * np.arange(n - 2)
    tiny_row[2:, 2:] = general(n - 2, n - 2, dtype_of("float64"))
    for a in (kahan, graded, graded.T.copy(), tiny_row, np.ones((n, n)), np.triu(np.ones((n, 2 * n)))):
        A = ctx.from_global(a)
        u, s, vh = linalg.svd(A, algorithm="blocked")
        check(a, collected(u), s, collected(vh))
        right = np.linalg.svd(a, compute_uv=False)
        for values in (s, linalg.svdvals(A)):  # the latter by way of a band
            assert np.abs(values - right).max() <= 1e-14 * n * right[0]


@pytest.mark.parametrize("name", NAMES)
def test_leading_singular_values(ctx: pblas.Context, name: str) -> None:
    """The residual of rsvd is that of its result, and near that of the best approximation; seeds give equal bits."""
    dtype, k = dtype_of(name), 4
    for m, n in ((30, 20), (20, 30), (9, 9)):
        wide = np.dtype(np.complex128 if dtype.kind == "c" else np.float64)
        left, right = (np.linalg.qr(general(x, min(m, n), wide, x))[0] for x in (m, n))
        values = 3.0 ** -np.arange(min(m, n))
        a = ((left * values) @ right.conj().T).astype(dtype)
        A = ctx.from_global(a)
        u, s, vh, residual = linalg.rsvd(A, k)
        x, y = collected(u), collected(vh)
        found = np.linalg.norm(a - (x * s) @ y) / np.linalg.norm(a)
        best = np.linalg.norm(values[k:]) / np.linalg.norm(values)
        assert residual == pytest.approx(found, rel=1e-2)
        assert best * 0.99 <= residual <= best * 1.01
        assert np.allclose(s, values[:k], rtol=1e-3)
        for q in (x, y.conj().T):
            assert ratio(q.conj().T @ q - np.eye(k), len(q), dtype=dtype) <= MOST
        again = linalg.rsvd(A, k)
        assert collected(again.U).tobytes() == x.tobytes()
    exact = linalg.rsvd(A, 9, power=0, oversample=0, seed=5)
    assert exact.residual <= 20 * np.finfo(dtype).eps


def test_equal_bits(contexts: Contexts) -> None:
    """Over all transports, and of a second call; those of A^H are those of A."""
    for shape in ((26, 26), (40, 9)):
        a = general(*shape, dtype_of("complex128"))
        for algorithm in ALGORITHMS[1:3]:
            results = []
            for name in SETTINGS:
                A = contexts[name].from_global(a)
                for _ in range(2):
                    u, s, vh = linalg.svd(A, algorithm=algorithm)
                    results.append((collected(u).tobytes(), s.tobytes(), collected(vh).tobytes()))
            assert len(set(results)) == 1
        assert np.abs(linalg.svdvals(A.H) - s).max() <= 1e-13 * s[0]


@few
def test_planned_progress_and_memory(ctx: pblas.Context) -> None:
    a, reports = general(20, 11, dtype_of("float64")), list[tuple[str, float]]()
    A = ctx.from_global(a)
    with linalg.plan_svd(A, full_matrices=True, algorithm="local") as planned:
        u, s, vh = planned.execute(A)
        assert u.shape == (20, 20)
        check(a, collected(u), s, collected(vh))
        assert "bidiagonalized in place" in planned.explain()
        raises_on_all_ranks(pblas.DescriptorError, "planned was", lambda: planned.execute(A[:19]))
    raises_on_all_ranks(pblas.ContextError, "the planned svd is closed", lambda: planned.execute(A))
    u, s, vh = linalg.svd(A, overwrite_a=True, progress=lambda stage, done: reports.append((stage, done)))
    check(a, collected(u), s, collected(vh))
    assert [stage for stage, done in reports if done == 1] == ([] if COMM.rank else ["factor", "reduce", "transform"])


@few
def test_errors(ctx: pblas.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    a = general(12, 12, dtype_of("complex128"))
    A = ctx.from_global(a)
    wrong: Any = linalg.svd
    for value in (np.nan, np.inf, complex(0, np.nan)):
        a[7, 3] = value
        raises_on_all_ranks(pblas.ArgumentError, "svd: A has NaN or infinite", lambda: wrong(ctx.from_global(a)))
    for kind, text, call in (
        (pblas.DTypeError, "has too few bits", lambda: wrong(ctx.ones((3, 3)).astype("float16"))),
        (pblas.ArgumentError, "algorithm must be", lambda: wrong(A, algorithm="qr")),
        (pblas.ArgumentError, "full_matrices must be", lambda: wrong(A, full_matrices=2)),
        (pblas.ArgumentError, "a must be a DistMatrix", lambda: wrong(a)),
        (pblas.ArgumentError, "k must be an integer from 1 to", lambda: linalg.rsvd(A, 13)),
        (pblas.ArgumentError, "power must be", lambda: linalg.rsvd(A, 1, power=-1)),
    ):
        raises_on_all_ranks(kind, text, call)
    one_wrong = linalg.svd if COMM.rank else partial(linalg.svd, full_matrices=True)
    if P > 1:
        raises_on_all_ranks(pblas.MismatchError, "full_matrices", lambda: one_wrong(A))
    if COMM.rank == 0:
        monkeypatch.setattr("pblas.backends.cpu.lapack.bdsdc", lambda *_: 3)
    raises_on_all_ranks(pblas.ConvergenceError, "INFO=3", lambda: linalg.svd(A))
    monkeypatch.undo()
    assert linalg.svdvals(A).shape == (12,)  # the context goes on

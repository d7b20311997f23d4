"""The laws of eigh and eigvalsh on GPUs; see tests/mpi."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cupy
import numpy as np
import pytest

import pblas
from pblas import linalg
from pblas.backends.cuda import tridiagonal
from pblas.backends.cuda.arrays import DeviceArrays
from pblas.spectral import choose
from pblas.spectral.choose import choose_eigh
from tests.common.factors import NAMES
from tests.common.gauge import dtype_of
from tests.common.ranks import collected
from tests.common.spectra import KINDS
from tests.gpu.products.test_arrays import Guarded, contexts, ctx  # noqa: F401 - fixtures
from tests.mpi.operations import test_eigh
from tests.mpi.operations.test_eigh import (  # noqa: F401 - pytest runs the imported tests on GPUs
    check,
    check_spectrum,
    check_values,
    hermitian,
    test_a_b_that_is_not_positive_definite,
    test_any_layout,
    test_checks_find_what_is_wrong,
    test_elements_that_are_not_finite,
    test_errors,
    test_generalized,
    test_part_of_the_spectrum,
    test_planned,
    test_spectra,
    test_the_memory_of_a,
    test_tridiagonal_matrices,
)

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]


@pytest.fixture(autouse=True)
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_eigh, "Guarded", Guarded)


@pytest.mark.parametrize("name", NAMES)
def test_larger_matrices(ctx: pblas.Context, name: str) -> None:  # noqa: F811
    """A second call gives the same bits; one rank takes no second matrix for V."""
    n, dtype = 260, dtype_of(name)  # NumPy takes 20 times longer to check 700 columns in extended precision
    a = hermitian(n, dtype)
    A = ctx.from_global(a)
    results = [linalg.eigh(A) for _ in range(2)]
    (w, v), (again, _) = results
    check(a, w, collected(v))
    assert w.tobytes() == again.tobytes()
    assert collected(v).tobytes() == collected(results[1].eigenvectors).tobytes()
    check_values(a, linalg.eigvalsh(A, lower=False))
    assert "cuSOLVER's xSYEVD, on rank 0" in linalg.plan_eigh(A).explain()


@pytest.fixture
def by_way_of_a_band(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A band for matrices of any order."""
    bands = {name: band._replace(values_from=0, vectors_from=0) for name, band in choose._BANDS.items()}
    monkeypatch.setattr(choose, "_BANDS", bands)
    monkeypatch.setattr(choose, "_SHARED_FROM", 0)
    choose_eigh.cache_clear()
    yield
    choose_eigh.cache_clear()


@pytest.mark.usefixtures("by_way_of_a_band")
@pytest.mark.parametrize("name", NAMES)
def test_by_way_of_a_band(ctx: pblas.Context, name: str, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """One CTA that chases and several, one leaf and several levels of merges; equal bits in a second call.

    Vectors of an even number go through the kernel of chains, those of an odd one through cuBLAS. CTAs have two pieces
    of the band in every other case.
    """
    dtype = dtype_of(name)
    for n in (*range(10), 33, 65, 66, 129, 200):
        monkeypatch.setattr(tridiagonal, "_CHAINS_FROM", 0 if n % 2 == 0 else 1 << 30)
        monkeypatch.setattr(tridiagonal.TwoStage, "_pieces_of_a_cta", lambda *_, pieces=1 + n % 3 % 2: pieces)
        a = hermitian(n, dtype, n)
        A = ctx.from_global(a)
        w, v = linalg.eigh(A)
        check(a, w, collected(v))
        values = linalg.eigvalsh(A, lower=False)
        check_values(a, values)
        assert values.tobytes() == linalg.eigvalsh(A, lower=False).tobytes()
        assert collected(v).tobytes() == collected(linalg.eigh(A).eigenvectors).tobytes()
        part = linalg.eigh(A, subset_by_index=[n // 3, n // 2]) if n else None
        if part is not None:
            check(a, part.eigenvalues, collected(part.eigenvectors))
    assert "two stages: a band of" in linalg.plan_eigh(A).explain()


@pytest.mark.usefixtures("by_way_of_a_band")
@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_shared(ctx: pblas.Context, name: str, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """One GPU reduces A, and each of all computes its vectors."""
    monkeypatch.setattr(choose, "_SHARED_FROM", 1 << 30)
    monkeypatch.setattr(choose, "_VECTORS_FROM", 0)
    for n in (5, 66, 200, 300):
        a = hermitian(n, dtype_of(name), n)
        A = ctx.from_global(a)
        results = [linalg.eigh(A) for _ in range(2)]
        check(a, results[0].eigenvalues, collected(results[0].eigenvectors))
        assert collected(results[0].eigenvectors).tobytes() == collected(results[1].eigenvectors).tobytes()
        part = linalg.eigh(A, subset_by_index=[n // 3, n // 2])
        check(a, part.eigenvalues, collected(part.eigenvectors))
        plan = linalg.plan_eigh(A).plan
        assert (plan.w.nprocs, plan.members) == (1, max(1, min(ctx.nprocs, n // plan.bandwidth)))


@pytest.mark.usefixtures("by_way_of_a_band")
@pytest.mark.parametrize("kind", KINDS)
def test_spectra_by_way_of_a_band(ctx: pblas.Context, kind: int | str) -> None:  # noqa: F811
    for name in ("float64", "complex64"):
        check_spectrum(ctx, 140, kind, dtype_of(name), "auto")


@pytest.mark.usefixtures("by_way_of_a_band")
def test_tridiagonal_matrices_by_way_of_a_band(ctx: pblas.Context) -> None:  # noqa: F811
    test_tridiagonal_matrices(ctx, "auto")
    test_elements_that_are_not_finite(ctx, np.nan, "auto")


@pytest.mark.usefixtures("by_way_of_a_band")
@pytest.mark.parametrize("name", NAMES)
def test_tiny_elements_by_way_of_a_band(ctx: pblas.Context, name: str) -> None:  # noqa: F811
    """Beside large ones, or in the whole matrix: A is scaled, and what is far below eps times its norm becomes 0."""
    n, dtype = 140, dtype_of(name)
    a, limits = hermitian(n, dtype), np.finfo(dtype)
    tiny, least = float(limits.tiny), float(limits.smallest_subnormal)
    for size in (tiny**0.5, 2 * tiny, 2**10 * least):
        beside, alone = a.copy(), (a * limits.dtype.type(size)).astype(dtype)
        beside[n // 2 :, : n // 2] = beside[: n // 2, n // 2 :] = 0
        beside[n // 2 :, n // 2 :] = alone[n // 2 :, n // 2 :]
        decreasing = a * np.exp(np.log(size) * np.add.outer(np.arange(n), np.arange(n)) / (2 * n)).astype(a.real.dtype)
        for matrix in (beside, decreasing.astype(dtype)):
            w, v = linalg.eigh(ctx.from_global(matrix))
            check(matrix, w, collected(v))
            check_values(matrix, linalg.eigvalsh(ctx.from_global(matrix)))
        w = linalg.eigvalsh(ctx.from_global(alone)) / np.float64(size)
        exact = alone.real / np.float64(size) + 1j * (alone.imag / np.float64(size))  # complex division overflows
        expected = np.linalg.eigvalsh(exact if dtype.kind == "c" else exact.real)
        lost = float(limits.eps) + least / size
        assert np.abs(w - expected).max() <= 60 * lost * np.abs(expected).max()


def test_chasing_without_a_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CTA that does not run: the others give up."""
    arrays = DeviceArrays()
    arrays.begin()
    stages = arrays.band_stages(64)
    launch = stages._chase.launch

    def without_the_last(stream: int, name: str, letter: str, ctas: int, *rest: Any, **options: Any) -> None:
        launch(stream, name, letter, ctas - 1, *rest, **options)

    monkeypatch.setattr(stages._chase, "launch", without_the_last)
    with pytest.raises(pblas.BackendError, match="did not run at the same time"):
        stages.values(stages.chase(cupy.asfortranarray(cupy.ones((300, 300))), keeps=False))
    arrays.close()


def test_progress(ctx: pblas.Context) -> None:  # noqa: F811
    reports = list[tuple[str, float]]()
    linalg.eigh(ctx.from_global(np.eye(30)), progress=lambda stage, done: reports.append((stage, done)))
    assert reports == ([("solve", 1.0)] if ctx.rank == 0 else [])

"""The laws of eigh and eigvalsh on GPUs; see tests/mpi."""

from __future__ import annotations

import numpy as np
import pytest

import pblas
from pblas import linalg
from tests.common.factors import NAMES
from tests.common.gauge import dtype_of
from tests.common.ranks import collected
from tests.gpu.products.test_arrays import Guarded, contexts, ctx  # noqa: F401 - fixtures
from tests.mpi.operations import test_eigh
from tests.mpi.operations.test_eigh import (  # noqa: F401 - pytest runs the imported tests on GPUs
    check,
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
    n, dtype = 700, dtype_of(name)
    a = hermitian(n, dtype)
    A = ctx.from_global(a)
    results = [linalg.eigh(A) for _ in range(2)]
    (w, v), (again, _) = results
    check(a, w, collected(v))
    assert w.tobytes() == again.tobytes()
    assert collected(v).tobytes() == collected(results[1].eigenvectors).tobytes()
    check_values(a, linalg.eigvalsh(A, lower=False))
    assert "cuSOLVER's xSYEVD, on rank 0" in linalg.plan_eigh(A).explain()


def test_progress(ctx: pblas.Context) -> None:  # noqa: F811
    reports = list[tuple[str, float]]()
    linalg.eigh(ctx.from_global(np.eye(30)), progress=lambda stage, done: reports.append((stage, done)))
    assert reports == ([("solve", 1.0)] if ctx.rank == 0 else [])

"""The laws of singular values on GPUs; see tests/mpi."""

from __future__ import annotations

import pytest

from tests.gpu.products.test_arrays import Guarded, contexts, ctx  # noqa: F401 - fixtures
from tests.mpi.operations import test_svd
from tests.mpi.operations.test_svd import (  # noqa: F401 - pytest runs the imported tests on GPUs
    test_any_layout,
    test_kahan_and_graded_matrices,
    test_leading_singular_values,
    test_spectra,
)

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]


@pytest.fixture(autouse=True)
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_svd, "Guarded", Guarded)
    monkeypatch.setattr(test_svd, "ALGORITHMS", ("auto", "polar"))

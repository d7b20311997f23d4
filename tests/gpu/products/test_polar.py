"""The laws of polar decompositions and of pseudoinverses on GPUs; see tests/mpi."""

from __future__ import annotations

import pytest

from tests.gpu.products.test_arrays import Guarded, contexts, ctx  # noqa: F401 - fixtures
from tests.mpi.operations import test_lstsq, test_matrix_functions
from tests.mpi.operations.test_lstsq import (  # noqa: F401 - pytest runs the imported tests on GPUs
    test_pseudoinverses_and_norms,
    test_singular_values_that_count_as_zero,
)
from tests.mpi.operations.test_matrix_functions import (  # noqa: F401
    test_newton_schulz,
    test_polar_of_any_condition,
    test_polar_of_any_layout,
)

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]


@pytest.fixture(autouse=True)
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (test_lstsq, test_matrix_functions):
        monkeypatch.setattr(module, "Guarded", Guarded)

"""The laws of arrays and of PBLAS's levels 1 to 3 on GPUs: those of tests/mpi, with NVSHMEM and with messages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import MatrixDescriptor, blas
from pblas.backends.cuda import copies, lanes
from pblas.collectives import api
from tests.gpu.products.general import context
from tests.gpu.products.products import Placed
from tests.gpu.sharing import SHARED
from tests.mpi.matrices.test_constructors import (  # noqa: F401 - pytest runs the imported tests on GPUs
    test_a_replicated_matrix_is_whole_on_every_rank,
    test_filled_matrices_are_those_of_numpy,
    test_parts_are_stacked_in_the_order_of_ranks,
    test_random_numbers_do_not_depend_on_the_layout,
    test_views_are_like_matrices,
)
from tests.mpi.matrices.test_indexing import (  # noqa: F401
    test_a_mask_selects_elements_by_rows,
    test_an_index_selects_what_is_assigned,
    test_an_overlapping_value_is_copied_first,
    test_assignment_is_that_of_numpy,
    test_assignment_promotes_and_converts,
    test_elements_are_read_on_all_ranks,
    test_keys_select_views,
    test_lists_and_steps_are_those_of_numpy,
    test_triangles_and_stacks_are_those_of_numpy,
)
from tests.mpi.matrices.test_reductions import (  # noqa: F401
    test_a_copy_of_a_replicated_matrix_is_not_counted,
    test_empty_matrices_are_reduced_as_by_numpy,
    test_extremes_propagate_nan_and_name_the_first_place,
    test_norms_neither_overflow_nor_underflow,
    test_norms_of_infinities_and_nan_are_those_of_numpy,
    test_reductions_are_those_of_numpy,
    test_vdot_takes_any_two_layouts,
)
from tests.mpi.operations import test_elementwise, test_structured
from tests.mpi.operations.test_elementwise import (  # noqa: F401
    test_any_layouts_give_what_numpy_gives,
    test_astype_converts_and_rounds_once,
    test_augmented_assignment_writes_in_place,
    test_operators_are_those_of_numpy,
    test_special_numbers_are_results,
    test_the_result_may_be_an_operand_whatever_the_layouts,
)
from tests.mpi.operations.test_level1 import (  # noqa: F401
    test_nrm2_neither_overflows_nor_underflows,
    test_sums_and_extremes_are_those_of_numpy,
    test_updates_are_those_of_numpy_and_nothing_else_changes,
)
from tests.mpi.operations.test_level2 import (  # noqa: F401
    test_alpha_0_reads_neither_matrix_nor_vector_and_beta_0_does_not_read_y,
    test_products_are_those_of_numpy,
    test_results_may_replace_the_operands,
    test_updates_are_those_of_numpy,
)
from tests.mpi.operations.test_structured import (  # noqa: F401
    test_either_triangle_gives_the_same_product,
    test_of_any_layouts,
    test_syrk_is_the_triangle_of_the_product,
    test_trmm_is_the_product_with_the_triangle,
)
from tests.mpi.operations.test_trsv import test_the_backward_error_is_small  # noqa: F401

cupy = pytest.importorskip("cupy")
pytestmark = [pytest.mark.mpi, pytest.mark.gpu]


class Contexts(dict[str, pblas.Context]):
    """A context of GPUs for each transport of the laws; a test of another transport is skipped."""

    def __missing__(self, transport: str) -> pblas.Context:
        pytest.skip(f"transport {transport} is one of CPUs")


@pytest.fixture(scope="module")
def contexts() -> Iterator[dict[str, pblas.Context]]:
    with context("nvshmem") as pushing, context("cuda") as sending:
        yield Contexts(shared=pushing, message=sending)


@pytest.fixture(scope="module")
def ctx(contexts: dict[str, pblas.Context]) -> pblas.Context:
    return contexts["shared"]


class Guarded(Placed):
    """As tests.mpi.operations.test_redistribution.Guarded, on a GPU."""

    def __init__(self, ctx: pblas.Context, desc: Any, dtype: Any, place: Any = None, home: str = "own") -> None:
        super().__init__(ctx, desc, place or (0, desc.m, 0, desc.n), dtype, "w" if home == "shared" else "u", 3)

    def remember(self) -> bytes:
        """All memory, poison included."""
        return self._download().tobytes()


@pytest.fixture(autouse=True)
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_elementwise, "Guarded", Guarded)
    if SHARED:  # each message takes time slices
        monkeypatch.setattr(test_structured, "CASES", test_structured.CASES // 4)


class Counting:
    """CuPy's runtime, whose waits are counted."""

    def __init__(self, runtime: Any) -> None:
        self._runtime, self.waits = runtime, 0

    def __getattr__(self, name: str) -> Any:
        self.waits += name.endswith("Synchronize")
        return getattr(self._runtime, name)


@pytest.mark.parametrize("transport", ["shared", "message"])
def test_a_chain_in_one_layout_waits_for_nothing(
    contexts: dict[str, pblas.Context], transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its calls follow each other on the caller's stream, and calls on another stream wait for them.

    On one rank products of a matrix with a vector are such calls, and updates by vectors.
    """
    ctx = contexts[transport]
    A, B = (ctx.random((300, 40), seed=seed) for seed in (1, 2))
    a, b, v = A.to_global(None), B.to_global(None), ctx.random((40, 1), seed=3)
    y = blas.gemv(A, v)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    for _ in range(3):
        counting = Counting(cupy.cuda.runtime)
        with monkeypatch.context() as patch, streams[0]:
            C = abs(2 * (A + B) - A)
            for module in (lanes, copies):
                patch.setattr(module, "runtime", counting)
            C = abs(2 * (C - B) + A) + ctx.zeros(A.shape) * ctx.eye(A.shape)
            C[:] = C * ctx.full(A.shape, 1.0)
            (C * 0)[2:, :7] = 3
            if ctx.nprocs == 1:
                blas.gemv(C, v, y, beta=2.0, out=y)
                blas.ger(y, v, C)
        assert counting.waits == 0
        with streams[1]:
            D = C + C
            total = D.sum()
        c = abs(2 * (abs(2 * (a + b) - a) - b) + a)
        if ctx.nprocs == 1:
            c = c + y.to_global(None) @ v.to_global(None).T
        expected = 2 * c
        assert np.allclose(D.to_global(None), expected, rtol=1e-14, atol=1e-13)
        assert np.isclose(total, expected.sum())


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
@pytest.mark.parametrize("layout", ["row_wise", "column_wise"])
def test_large_matrices_exchange_results_on_gpus(
    ctx: pblas.Context, dtype: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "LEAST_ON_GPUS", 0)
    n, agreement = 61, ctx.runtime.backend.agreement
    A = ctx.random(getattr(MatrixDescriptor, layout)(n, n, ctx.nprocs), dtype, seed=1, distribution="normal")
    x, y = (ctx.random((n, 1), dtype, seed=seed) for seed in (2, 3))
    a, v, w = (z.to_global(None) for z in (A, x, y))
    close: Any = partial(np.allclose, rtol=1e-4, atol=1e-3 if dtype == "float32" else 1e-11)
    before = agreement.nexecutions
    for axis in (None, 0, 1):
        assert close(A.sum(axis=axis), a.sum(axis))
        if A.dtype.kind == "f":
            assert np.array_equal(A.max(axis=axis), a.max(axis))
    lower, unit = np.tril(a), np.tril(a, -1) + np.eye(n)
    symmetric = lower + np.tril(a, -1).T
    hermitian = np.tril(a, -1) + np.tril(a, -1).conj().T + np.diag(np.diag(a).real)
    ops: dict[Any, Any] = {"N": a, "T": a.T, "C": a.conj().T}
    solve: Any = blas.trsv
    for trans, op in ops.items():
        assert close(blas.gemv(A, x, y, trans=trans, alpha=2.0, beta=-1.0).to_global(None), 2 * op @ v - w)
    for _ in range(2):
        assert close(blas.symv(A, x, y, alpha=0.5).to_global(None), 0.5 * symmetric @ v + w)
        assert close(blas.hemv(A, x).to_global(None), hermitian @ v)
        assert close(blas.symv(A.T, x, uplo="U").to_global(None), symmetric @ v)
        assert close(blas.trmv(A, x, trans="T").to_global(None), lower.T @ v)
        assert close(blas.trmv(A, x, diag="U").to_global(None), unit @ v)
    T = pblas.elementwise("a + n * e", a=A, n=float(n), e=ctx.eye((n, n), dtype))
    t = T.to_global(None)
    for uplo, part in (("L", np.tril), ("U", np.triu)):
        for trans, op in {"N": part(t), "T": part(t).T, "C": part(t).conj().T}.items():
            for _ in range(2):
                assert close(op @ solve(T, x, uplo=uplo, trans=trans).to_global(None), v)
        Z, Y = A.copy(), A.copy()
        blas.syr(x, Z, uplo=uplo, alpha=2.0)
        assert close(part(Z.to_global(None)), part(a + 2 * v @ v.T))
        blas.syr2(x, y, Y, uplo=uplo)
        assert close(part(Y.to_global(None)), part(a + v @ w.T + w @ v.T))
        triangle = pblas.tril(A) if uplo == "L" else pblas.triu(A)
        assert np.array_equal(triangle.to_global(None), part(a))
    Z = A.copy()
    assert close(blas.gerc(x, y, Z, alpha=0.5).to_global(None), a + 0.5 * v @ w.conj().T)
    z = x.copy()
    assert close(blas.gemv(A, z, out=z).to_global(None), a @ v)
    assert ctx.nprocs == 1 or agreement.nexecutions > before

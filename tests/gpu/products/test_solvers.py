"""The laws of QR, least squares, conjugate gradients, solves and ScaLAPACK's factorizations on GPUs; see tests/mpi."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import cupy
import numpy as np
import pytest

import pblas
from pblas import Grid, MatrixDescriptor, linalg, scalapack
from pblas.backends.cuda.lapack import Reflectors
from pblas.backends.nvshmem.settings import may_share_gpu
from pblas.matrices.scatter_gather import part_of, put_part
from tests.common.factors import MOST, NAMES, forget_plans, general, lu_ratio, positive, qr_ratios, ratio, solve_ratio
from tests.common.gauge import applied, dtype_of
from tests.common.ranks import COMM, collected, raises_on_all_ranks, same_on_all_ranks
from tests.gpu.products.test_arrays import Guarded, contexts, ctx  # noqa: F401 - fixtures
from tests.mpi.operations import test_cg, test_lstsq, test_qr
from tests.mpi.operations.test_cg import (  # noqa: F401 - pytest runs the imported tests on GPUs
    test_failures_are_equal_on_all_ranks_and_the_context_goes_on,
    test_few_eigenvalues_take_few_iterations,
    test_the_residual_is_true_in_any_layout,
)
from tests.mpi.operations.test_cholesky import test_the_look_at_info_may_be_deferred  # noqa: F401
from tests.mpi.operations.test_lstsq import (  # noqa: F401
    test_full_ranks_and_others,
    test_rows_of_nan_are_results,
    test_solutions_of_any_layout,
)
from tests.mpi.operations.test_qr import (  # noqa: F401
    special,
    test_columns_of_nan_are_results,
    test_the_factor_of_any_layout,
)
from tests.mpi.operations.test_solve import (  # noqa: F401
    test_inverses_and_numbers,
    test_progress_is_told_on_rank_0_only,
    test_refined_solutions,
    test_solutions,
)

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]
P, NB = COMM.size, 5
QR_ALGORITHMS: tuple[Literal["blocked", "cholesky", "local"], ...] = ("blocked", "cholesky", "local")


@pytest.fixture
def narrow_panels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Panels of NB columns, and all ranks for matrices of a few columns."""
    for name, value in (("_NARROWEST", NB), ("_WIDEST", NB), ("_LEAST", 3)):
        monkeypatch.setattr(f"pblas.factor.choose.{name}_ON_GPUS", value)
    forget_plans()
    yield
    forget_plans()


@pytest.fixture(autouse=True)
def on_gpus(monkeypatch: pytest.MonkeyPatch, narrow_panels: None) -> None:
    for module in (test_cg, test_lstsq, test_qr):
        monkeypatch.setattr(module, "Guarded", Guarded)
    monkeypatch.setattr(test_qr, "ALGORITHMS", ("auto", *QR_ALGORITHMS))


@pytest.mark.parametrize("algorithm", QR_ALGORITHMS)
def test_special_matrices(ctx: pblas.Context, algorithm: Literal["blocked", "cholesky", "local"]) -> None:  # noqa: F811
    m, n = 16 * P + 3, 13
    for name, a in special(m, n).items():
        q, r = linalg.qr(ctx.from_global(a, MatrixDescriptor.row_wise(m, n, P), None), algorithm=algorithm)
        scale = 1e300 if name == "large" else 1.0
        ratios = qr_ratios(a / scale, collected(q), collected(r) / scale)
        assert max(ratios) <= MOST, (name, ratios)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("by", ["kernel", "cuSOLVER"])
def test_wide_panels(ctx: pblas.Context, monkeypatch: pytest.MonkeyPatch, name: str, by: str) -> None:  # noqa: F811
    """Several CTAs, blocks of columns and panels; more columns than rows; panels that the kernel cannot hold."""
    for key, value in (("_NARROWEST", 80), ("_WIDEST", 80)):
        monkeypatch.setattr(f"pblas.factor.choose.{key}_ON_GPUS", value)
    if by == "cuSOLVER":
        monkeypatch.setattr(Reflectors, "_shape", lambda *_: (0, 0))
    for m, n in ((700, 200), (90, 240), (300, 300), (1100, 33)):
        a = general(m, n, dtype_of(name), m)
        factor = linalg.qr_factor(ctx.from_global(a, root=None), algorithm="blocked")
        assert max(qr_ratios(a, collected(factor.q()), collected(factor.r()))) <= MOST


def test_tsqr_runs_on_cpus(ctx: pblas.Context) -> None:  # noqa: F811
    raises_on_all_ranks(pblas.BackendError, "leave it out", lambda: linalg.qr(ctx.eye(6), algorithm="tsqr"))
    assert collected(linalg.qr(ctx.eye(6), mode="r")).shape == (6, 6)


@pytest.mark.parametrize("name", NAMES)
def test_a_matrix_that_may_be_overwritten_is_factored_in_place(contexts: Any, name: str) -> None:  # noqa: F811
    """In block columns in memory of the context; `cholesky` and `inv` return A itself, whatever its layout is."""
    n, dtype = 3 * NB + 4, dtype_of(name)
    a, b = positive(n, dtype), general(n, 2, dtype)
    for opened in contexts.values():
        layout = linalg.plan_lu(opened.from_global(a, root=None)).plan.w
        for desc in (layout, MatrixDescriptor.row_wise(n, n, P)):

            def matrix(desc: MatrixDescriptor = desc, opened: pblas.Context = opened) -> Any:
                return opened.from_global(a, desc, None)

            overwritten = matrix()
            factor = linalg.lu_factor(overwritten, overwrite_a=True)
            lu = collected(factor.lu())
            assert lu_ratio(a, lu, factor.pivots) <= MOST
            assert np.array_equal(collected(overwritten), lu if desc == layout else a) or P == 1
            taken = matrix()
            assert linalg.cholesky(taken, overwrite_a=True) is taken
            l = collected(taken)
            assert (np.triu(l, 1) == 0).all()
            assert ratio(a - l @ l.conj().T, n, float(np.abs(a).sum(0).max()), dtype=dtype) <= MOST
            taken = matrix()
            assert linalg.inv(taken, overwrite_a=True) is taken
            assert solve_ratio(a, collected(taken) @ b, b) <= MOST * n
            for kind in ("gen", "pos"):
                x = linalg.solve(matrix(), opened.from_global(b, root=None), assume_a=kind, overwrite_a=True)
                assert solve_ratio(a, collected(x), b) <= MOST


SHAPE = max(((i, P // i) for i in range(1, P + 1) if P % i == 0), key=min)


class Local:
    """A matrix in blocks of 3 x 2 over a ScaLAPACK grid, in this rank's CuPy array, with a border."""

    def __init__(self, ictxt: int, sub: Any) -> None:
        self.shape, self._whole = sub.shape, np.full((sub.shape[0] + 3, sub.shape[1] + 2), -99, sub.dtype)
        self._whole[2 : 2 + sub.shape[0], 1 : 1 + sub.shape[1]] = sub
        m, n = self._whole.shape
        self._desc = MatrixDescriptor.block_cyclic(m, n, 3, 2, Grid(*SHAPE, "R"))
        self.places = [np.r_[*itertools.starmap(slice, ranges), :0] for ranges in self._desc.global_ranges(COMM.rank)]
        self.part = cupy.asfortranarray(cupy.asarray(part_of(self._whole, self._desc, COMM.rank)))
        self.desc = [1, ictxt, m, n, 3, 2, 0, 0, max(self.part.shape[0], 1)]
        self.ipiv = np.full(self.part.shape[0] + 3, -7, np.intc)

    def vector(self, axis: int, dtype: Any) -> Any:
        """TAU or IPIV, with room for this rank's rows or columns; nothing is in it."""
        return np.full(self.part.shape[axis], -7, dtype)

    def elements(self, vector: Any, axis: int) -> Any:
        """**Collective.** The elements of TAU or IPIV that were written, in their order; all copies are equal."""
        found: dict[int, Any] = {}
        for part in COMM.allgather(dict(zip(self.places[axis].tolist(), vector.tolist(), strict=True))):
            assert all(found.setdefault(place, value) == value for place, value in part.items())
        return [found[place] for place in sorted(found) if found[place] != -7]

    @property
    def at(self) -> tuple[Any, int, int, list[int]]:
        """A, IA, JA, DESCA."""
        return self.part, 3, 2, self.desc

    def collected(self) -> Any:
        """**Collective.** The submatrix on all ranks; nothing around it has changed."""
        result = np.empty_like(self._whole)
        for rank, part in enumerate(COMM.allgather(self.part.get())):
            put_part(result, self._desc, rank, part)
        i, j = slice(2, 2 + self.shape[0]), slice(1, 1 + self.shape[1])
        around = result.copy()
        around[i, j] = -99
        assert (around == -99).all()
        return result[i, j]


@contextmanager
def scalapacks_grid(backend: Any) -> Iterator[int]:
    """A context of ScaLAPACK's on GPUs, which ends with the block."""
    if backend == "nvshmem" and cupy.cuda.runtime.getDeviceCount() < P and not may_share_gpu():
        pytest.skip("NVSHMEM needs a GPU for each rank")
    ictxt = scalapack.gridinit(COMM, "R", *SHAPE, backend=backend, timeout=30.0)
    try:
        yield ictxt
    finally:
        scalapack.gridexit(ictxt)


@pytest.mark.parametrize("backend", ["nvshmem", "cuda"])
@pytest.mark.parametrize("letter", "sdcz")
def test_scalapacks_orthogonal_factors(backend: Any, letter: str) -> None:
    """QR, LQ, pivoted QR, products with Q, and least squares in CuPy arrays; TAU and IPIV in memory of the host."""
    calls: Any = scalapack
    kind, dtype = "or" if letter in "sd" else "un", np.dtype(dict(zip("sdcz", "fdFD", strict=True))[letter])
    adjoint = "T" if kind == "or" else "C"
    routine: Any = lambda name: getattr(calls, f"p{letter}{name}")  # noqa: E731
    with scalapacks_grid(backend) as ictxt:
        for (m, n), name in itertools.product(((9 * P + 4, 7), (5, 6 * P + 3)), ("geqrf", "gelqf", "geqpf")):
            a, k, axis = general(m, n, dtype, m), min(m, n), 0 if name == "gelqf" else 1
            A = Local(ictxt, a)
            tau, order = A.vector(axis, dtype), A.vector(1, np.intc)
            routine(name)(m, n, *A.at, *((order,) if name == "geqpf" else ()), tau)
            factor, columns = A.collected(), list(range(n))
            assert len(A.elements(tau, axis)) == k
            if name == "geqpf":
                columns = [int(j) - A.at[2] for j in A.elements(order, 1)]
                assert sorted(columns) == list(range(n))
                diagonal = np.abs(np.diagonal(factor))
                assert (diagonal[1:] <= diagonal[:-1] * (1 + 100 * np.finfo(dtype).eps)).all()
            length = m if axis else n  # rows of Q, which is square
            whole = Local(ictxt, np.eye(length, dtype=dtype))
            at = length, length, k, *A.at, tau
            routine(f"{kind}m{'qr' if axis else 'lq'}")("L", "N", *at, *whole.at)
            q = whole.collected()
            if axis:
                assert max(qr_ratios(a[:, columns], q, np.triu(factor))) <= MOST
                Q = Local(ictxt, factor[:, :k])
                routine(f"{kind}gqr")(m, k, k, *Q.at, tau)
                assert np.abs(Q.collected() - q[:, :k]).max() <= MOST * m * np.finfo(dtype).eps
            else:
                assert max(qr_ratios(a.conj().T, q.conj().T, np.tril(factor).conj().T)) <= MOST
            for side, trans in itertools.product("LR", ("N", adjoint)):
                c = general(*((length, 3) if side == "L" else (3, length)), dtype, 1)
                C, op = Local(ictxt, c), q if trans == "N" else q.conj().T
                routine(f"{kind}m{'qr' if axis else 'lq'}")(side, trans, *c.shape, k, *A.at, tau, *C.at)
                product = op @ c if side == "L" else c @ op
                assert np.abs(C.collected() - product).max() <= MOST * length * np.finfo(dtype).eps
            assert np.array_equal(A.collected(), factor)
        for (m, n), trans in itertools.product(((6 * P + 3, 5), (5, 6 * P + 3)), ("N", adjoint)):
            a = general(m, n, dtype)
            op = a if trans == "N" else a.conj().T
            b = general(len(op), 2, dtype, 1)
            A, B = Local(ictxt, a), Local(ictxt, np.concatenate([b, np.zeros((max(m, n) - len(b), 2), dtype)]))
            assert routine("gels")(trans, m, n, 2, *A.at, *B.at) == 0
            x, expected = B.collected()[: op.shape[1]], np.linalg.lstsq(op, b, rcond=None)[0]
            assert np.abs(x - expected).max() <= MOST * np.linalg.cond(op) * m * n * np.finfo(dtype).eps
            singular = np.array(a)
            singular[(slice(None), 0) if m > n else 0] = 0
            A, B = Local(ictxt, singular), Local(ictxt, b := general(max(m, n), 2, dtype, 1))
            assert same_on_all_ranks(routine("gels")(trans, m, n, 2, *A.at, *B.at)) == 1
            assert np.array_equal(B.collected(), b)


@pytest.mark.parametrize("backend", ["nvshmem", "cuda"])
@pytest.mark.parametrize("letter", "dc")
def test_scalapacks_tridiagonal_matrix(backend: Any, letter: str) -> None:
    """Q^H A Q = T, from CuPy arrays of A; D, E and TAU in memory of the host."""
    calls: Any = scalapack
    reduce, multiply, adjoint = ("hetrd", "unmtr", "C") if letter == "c" else ("sytrd", "ormtr", "T")
    n, dtype = 9 * P + 4, np.dtype({"d": "d", "c": "F"}[letter])
    x = general(n, n, dtype)
    x = x + x.conj().T
    with scalapacks_grid(backend) as ictxt:
        for uplo, triangle in (("L", np.tril), ("U", np.triu)):
            A, C = Local(ictxt, triangle(x)), Local(ictxt, x)
            d, e, tau = (A.vector(1, kind) for kind in (x.real.dtype, x.real.dtype, dtype))
            getattr(calls, f"p{letter}{reduce}")(uplo, n, *A.at, d, e, tau)
            for side, trans in (("L", adjoint), ("R", "N")):
                getattr(calls, f"p{letter}{multiply}")(side, uplo, trans, n, n, *A.at, tau, *C.at)
            d, e = (np.array(A.elements(part, 1)) for part in (d, e))
            t = np.diag(d) + np.diag(e, 1) + np.diag(e, -1)
            assert np.abs(C.collected() - t).max() <= MOST * n * np.finfo(dtype).eps * np.abs(x).sum(0).max()


@pytest.mark.parametrize("backend", ["nvshmem", "cuda"])
@pytest.mark.parametrize("letter", "sdcz")
def test_scalapacks_calls(backend: Any, letter: str) -> None:
    """Factors, solutions, inverses and condition numbers in CuPy arrays; INFO and IPIV in memory of the host."""
    calls: Any = scalapack
    routine: Any = lambda name: getattr(calls, f"p{letter}{name}")  # noqa: E731
    n, k = 9 * P + 4, 3
    dtype = np.dtype(dict(zip("sdcz", "fdFD", strict=True))[letter])
    with scalapacks_grid(backend) as ictxt:
        a, s, b = general(n, n, dtype), positive(n, dtype), general(n, k, dtype, 1)
        for uplo in "LU":
            half = np.tril(s) if uplo == "L" else np.triu(s)
            A, B = Local(ictxt, half), Local(ictxt, b)
            assert routine("potrf")(uplo, n, *A.at) == 0
            routine("potrs")(uplo, n, k, *A.at, *B.at)
            assert solve_ratio(s, B.collected(), b) <= MOST
            assert 0 < routine("pocon")(uplo, n, *A.at, float(np.abs(s).sum(0).max())) <= 1
            assert routine("potri")(uplo, n, *A.at) == 0
            inverse = A.collected()
            inverse = np.tril(inverse) if uplo == "L" else np.triu(inverse)
            inverse = inverse + (inverse - np.diag(np.diag(inverse))).conj().T
            assert solve_ratio(s, inverse @ b, b) <= MOST * n
            bad = half.copy()
            bad[4, 4] = -1
            wrong = Local(ictxt, bad)
            assert same_on_all_ranks(routine("potrf")(uplo, n, *wrong.at)) == 5
            assert np.array_equal(wrong.collected(), bad)
        A, B = Local(ictxt, a), Local(ictxt, b)
        assert routine("getrf")(n, n, *A.at, A.ipiv) == 0
        for trans in "NTC":
            X = Local(ictxt, b)
            routine("getrs")(trans, n, k, *A.at, A.ipiv, *X.at)
            assert solve_ratio(applied(trans, a), X.collected(), b) <= MOST
        assert 0 < routine("gecon")("1", n, *A.at, float(np.abs(a).sum(0).max())) <= 1
        assert routine("getri")(n, *A.at, A.ipiv) == 0
        inverse = A.collected()
        assert (
            ratio(inverse @ a - np.eye(n), n, *(float(np.abs(x).sum(0).max()) for x in (a, inverse)), dtype=dtype)
            <= MOST
        )
        A = Local(ictxt, a)
        assert routine("gesv")(n, k, *A.at, A.ipiv, *B.at) == 0
        assert solve_ratio(a, B.collected(), b) <= MOST
        upper = np.triu(a) + n * np.eye(n, dtype=dtype)
        T, B = Local(ictxt, upper), Local(ictxt, b)
        assert routine("trtrs")("U", "N", "N", n, k, *T.at, *B.at) == 0
        assert solve_ratio(upper, B.collected(), b) <= MOST
        assert routine("trtri")("U", "N", n, *T.at) == 0
        assert solve_ratio(upper, T.collected() @ b, b) <= MOST * n

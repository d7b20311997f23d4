"""Laws of trsm: op(A) X = alpha B in any layouts, in place and out of place, and nothing else read or written."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest

import pblas
from pblas import Grid, MatrixDescriptor
from pblas.triangular import choose as choice
from pblas.triangular import trsm as operation
from pblas.triangular.trsm_plan import TrsmPlan
from tests.common.gauge import Array, applied, dtype_of, entries, gauge
from tests.common.ranks import Contexts, check_product, collected, each_wrong, raises_on_all_ranks
from tests.mpi.matrices.arrays import some_descriptor
from tests.mpi.operations.test_matmul import part
from tests.mpi.operations.test_redistribution import Guarded

SETTINGS = ("shared", "message", "mixed", "push")
DTYPES = ("float32", "float64", "complex64", "complex128")
pytestmark = pytest.mark.mpi


def triangle(n: int, dtype: Any, uplo: str, *, unit: bool, seed: int) -> tuple[Array, Array]:
    """A well conditioned triangle, and the same with NaN in all elements that must not be read."""
    full = entries((n, n), dtype, seed) / max(1, n)
    np.fill_diagonal(full, 1 if unit else full.diagonal() + 2)
    inside = np.tri(n, dtype=bool) if uplo == "L" else np.tri(n, dtype=bool).T
    if unit:
        np.fill_diagonal(inside, False)
    t = np.tril(full) if uplo == "L" else np.triu(full)
    return t, np.where(inside, t, np.asarray(np.nan, dtype)).astype(dtype)


class Case:
    """One random solve: its arguments, and its matrices with NaN in elements that must not be read."""

    def __init__(self, ctx: pblas.Context, seed: int) -> None:
        rng = random.Random(seed)
        n, nrhs = rng.choice([0, 1, 7, 23, 40]), rng.choice([0, 1, 1, 8, 9, 31])
        self.dtype = dtype_of(rng.choice(DTYPES))
        self.side: Literal["L", "R"] = rng.choice(("L", "R"))
        self.uplo: Literal["L", "U"] = rng.choice(("L", "U"))
        self.trans: Literal["N", "T", "C"] = rng.choice(("N", "T", "C"))
        self.diag: Literal["N", "U"] = rng.choice(("N", "U"))
        self.alpha: complex = rng.choice([0, 1, 1, -0.5])
        if self.dtype.kind == "c":
            self.alpha *= rng.choice([1, 1 - 1j])
        self.out = rng.choice(["none", "in place", "other"])
        shape = (n, nrhs) if self.side == "L" else (nrhs, n)
        homes = [rng.choice(["own", "shared"]) for _ in range(3)]
        i, j, k, l = (rng.choice([0, 0, 3]) for _ in range(4))
        a_desc = some_descriptor(rng, n + i + 2, n + j, ctx.nprocs)
        self.A = Guarded(ctx, a_desc, self.dtype, (i, i + n, j, j + n), homes[0])
        b_desc, x_desc = (some_descriptor(rng, shape[0] + k, shape[1] + l + 1, ctx.nprocs) for _ in range(2))
        place = (k, k + shape[0], l, l + shape[1])
        self.B = Guarded(ctx, b_desc, self.dtype, place, homes[1])
        self.X = Guarded(ctx, x_desc, self.dtype, place, homes[2]) if self.out == "other" else self.B
        self.t, poisoned = triangle(n, self.dtype, self.uplo, unit=self.diag == "U", seed=2 * seed)
        self.b = entries(shape, self.dtype, 2 * seed + 1)
        unread = self.alpha == 0
        self.A.fill(np.full_like(poisoned, np.nan) if unread else poisoned)
        self.B.fill(np.full_like(self.b, np.nan) if unread else self.b)
        if self.X is not self.B:
            self.X.fill(np.full_like(self.b, np.nan))

    @property
    def options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("side", "uplo", "trans", "diag", "alpha")}

    def check(self, x: Array) -> None:
        """The residual of the solution in units of its terms."""
        if self.alpha == 0:
            assert not x.any()
            return
        op = applied(self.trans, self.t)
        wide: Any = np.clongdouble if self.dtype.kind == "c" else np.longdouble
        b = wide(self.alpha) * self.b
        left, right = (op, x) if self.side == "L" else (x, op)
        assert gauge(np.asarray(b, self.dtype), left, right) <= 16


@pytest.fixture
def prefer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """A function that lets the planner prefer one plan of trsm, by its name, in calls that come later."""

    def use(name: str) -> None:
        monkeypatch.setattr(choice, "predict", lambda plan, _: float(plan.name != name))
        choice.choose_trsm.cache_clear()

    yield use
    monkeypatch.undo()
    choice.choose_trsm.cache_clear()


@pytest.mark.parametrize("setting", SETTINGS)
def test_any_layouts(
    contexts: Contexts, setting: str, prefer: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every argument on all transports: the residual is small, other memory is untouched, the plan's bytes move."""
    context = contexts[setting]
    backend = context.runtime.backend
    for seed in range(60):
        monkeypatch.setattr(operation, "PANEL", random.Random(seed).choice([1, 5, 16, 256]))
        prefer(("TrsmPlan", "PipelinedTrsm")[seed % 2])
        case = Case(context, seed)
        a, b = case.A.view, case.B.view
        before = {x: x.remember() for x in (case.A, case.B, case.X)}
        out = None if case.out == "none" else case.X.view
        counted = backend.channel.received_nbytes + backend.read_nbytes
        with pblas.blas.plan_trsm(a, b, out=out, **case.options) as planned:
            for _ in range(1 if case.out == "in place" else 2):
                result = planned.execute(a, b, out=out)
                counted = backend.channel.received_nbytes + backend.read_nbytes - counted
                plan = planned.plan
                assert counted == plan.received_nbytes(context.rank), plan
                assert plan.max_received_nbytes == max(map(plan.received_nbytes, range(context.nprocs)))
                counted = backend.channel.received_nbytes + backend.read_nbytes
        assert out is None or result is out
        case.check(collected(result))
        for guarded in (case.A, case.B) if case.out != "in place" else (case.A,):
            assert guarded.remember() == before[guarded], seed
        if case.out != "none":
            case.X.check_untouched_outside()


def test_views_and_repeated_calls(contexts: Contexts) -> None:
    """op and a view are the same: trsm(A.H) is trsm(A, trans="C"), bit for bit, and calls are planned once."""
    n, nrhs, dtype = 19, 6, np.dtype("complex128")
    for ctx in contexts.values():
        t, poisoned = triangle(n, dtype, "U", unit=False, seed=3)
        b = entries((n, nrhs), dtype, 4)
        A = ctx.from_global(poisoned, MatrixDescriptor(n, n, 3, 2, Grid(ctx.nprocs, 1)), root=None)
        B = ctx.from_global(b, MatrixDescriptor(n, nrhs, 4, 2, Grid(1, ctx.nprocs)), root=None)
        flagged = collected(pblas.blas.trsm(A, B, uplo="U", trans="C"))
        assert gauge(b, t.conj().T, flagged) <= 16
        for _ in range(2):
            assert np.array_equal(collected(pblas.blas.trsm(A.H, B, uplo="L")), flagged)
        turned = pblas.blas.trsm(A, B.H, side="R", uplo="U")  # X A = B^H is A^H X^H = B
        assert np.allclose(collected(turned).conj().T, flagged, rtol=0, atol=1e-14)
        X = pblas.blas.trsm(A, B, uplo="U", trans="C")
        back = pblas.pmatmul(pblas.triu(A), X, transa="C")  # the other triangle of A is NaN, and triu drops it
        assert np.allclose(collected(back), b, rtol=0, atol=1e-13)


def test_solve_triangular(contexts: Contexts) -> None:
    n = 11
    for ctx in contexts.values():
        for lower, trans, unit in ((False, "N", False), (True, 1, True), (True, "C", False), (False, 0, True)):
            uplo = "L" if lower else "U"
            t, poisoned = triangle(n, np.dtype("float64"), uplo, unit=unit, seed=5)
            A = ctx.from_global(poisoned, MatrixDescriptor(n, n, 2, 3, Grid(1, ctx.nprocs)), root=None)
            b = entries((n, 3), np.dtype("float64"), 6)
            op = t if trans in ("N", 0) else t.T
            solve: Any = partial(pblas.linalg.solve_triangular, A, lower=lower, trans=trans, unit_diagonal=unit)
            B = ctx.from_global(b, MatrixDescriptor.row_wise(n, 3, ctx.nprocs), root=None)
            x = collected(solve(B))
            assert gauge(b, op, x) <= 16
            for array in (b[:, 0], b):
                solution = solve(array)
                assert isinstance(solution, np.ndarray)
                assert solution.shape == array.shape
                assert gauge(array.reshape(n, -1), op, solution.reshape(n, -1)) <= 16


def test_singular_triangles_raise_on_all_ranks(contexts: Contexts) -> None:
    n = 9
    for ctx in contexts.values():
        for zeros in ([0], [3, 7], [8]):
            full = np.eye(n)
            full[zeros, zeros] = 0
            A = ctx.from_global(full, MatrixDescriptor(n, n, 2, 2, Grid(ctx.nprocs, 1)), root=None)
            B = ctx.ones((n, 2))
            text = f"(info={zeros[0] + 1})"
            raises_on_all_ranks(pblas.SingularMatrixError, text, partial(pblas.linalg.solve_triangular, A, B))
            with pytest.raises(np.linalg.LinAlgError) as caught:
                pblas.linalg.solve_triangular(A, B)
            assert isinstance(caught.value, pblas.SingularMatrixError)
            assert caught.value.info == zeros[0] + 1
            assert np.array_equal(collected(pblas.linalg.solve_triangular(A, B, unit_diagonal=True)), np.ones((n, 2)))
            with np.errstate(all="ignore"):
                assert not np.isfinite(collected(pblas.blas.trsm(A, B))).all(), "as BLAS"
        check_product(ctx)


@each_wrong
def test_wrong_arguments_raise_on_all_ranks(ctx: pblas.Context, wrong: frozenset[int]) -> None:
    """One wrong rank: the same exception with the same text everywhere, with the remedy; the context stays usable."""
    A, B = ctx.ones((6, 6)), ctx.ones((6, 4))
    half, wide = ctx.ones((6, 6), dtype="float16"), ctx.ones((6, 5))
    cases: list[tuple[type[Exception], str, Any, Any, dict[str, Any]]] = [
        (pblas.ArgumentError, "side must be 'L' or 'R', got 'X'", A, B, {"side": "X"}),
        (pblas.ArgumentError, "uplo must be 'L' or 'U', got None", A, B, {"uplo": None}),
        (pblas.ArgumentError, "diag must be 'N' or 'U', got True", A, B, {"diag": True}),
        (pblas.ArgumentError, "trans must be 'N', 'T' or 'C', got 'H'", A, B, {"trans": "H"}),
        (pblas.ArgumentError, "alpha is 1j, the matrices are float64; it must be real", A, B, {"alpha": 1j}),
        (pblas.ArgumentError, "b must be a DistMatrix, got ndarray", A, np.ones((6, 4)), {}),
        (pblas.ArgumentError, "out overlaps A", A, B, {"out": A[:, :4]}),
        (pblas.ArgumentError, "out overlaps B in part", A, wide[:, 1:5], {"out": wide[:, :4]}),
        (pblas.DescriptorError, "A is 6 x 4; it must be square", B, B, {}),
        (pblas.DescriptorError, "so B must have 6 columns", A, B, {"side": "R"}),
        (pblas.DescriptorError, "out is 6 x 6, B is 6 x 4", A, B, {"out": A}),
        (pblas.DTypeError, "A.astype('float32')", half, half, {}),
        (pblas.DTypeError, "B is float16, A is float64", A, half, {}),
    ]
    for kind, text, a, b, options in cases:
        is_wrong = ctx.rank in wrong or ctx.nprocs == 1
        call = partial(pblas.blas.trsm, a, b, **options) if is_wrong else partial(pblas.blas.trsm, A, B)
        if "overlaps" in text and not (a.local.size and ctx.nprocs == 1):
            continue  # whether the local arrays overlap depends on the layout
        raises_on_all_ranks(kind, text, call)
    wrong_a: Any = np.eye(6) if ctx.rank in wrong else A
    raises_on_all_ranks(
        pblas.ArgumentError, "a must be a DistMatrix, got ndarray", partial(pblas.linalg.solve_triangular, wrong_a, B)
    )
    if ctx.nprocs > 1:
        alpha = 2.0 if ctx.rank in wrong else 1.0
        raises_on_all_ranks(pblas.MismatchError, "alpha", partial(pblas.blas.trsm, A, B, alpha=alpha))
    check_product(ctx)


def test_the_same_bits_on_every_transport(
    contexts: Contexts, prefer: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of the additions depends on the plan alone."""
    n, p = 40, contexts["shared"].nprocs
    grid = Grid(p // 2, 2) if p % 2 == 0 else Grid(p, 1)
    monkeypatch.setattr(operation, "PANEL", 8)
    for name, nrhs, desc in (
        ("TrsmPlan", 17, MatrixDescriptor(n, n, 3, 5, Grid(1, p))),
        ("PipelinedTrsm", 3, MatrixDescriptor(n, n, 3, 5, grid)),
    ):
        prefer(name)
        results = []
        for ctx in contexts.values():
            A, B = ctx.random(desc, seed=1), ctx.random(MatrixDescriptor(n, nrhs, 4, 4, Grid(p, 1)), seed=2)
            assert p == 1 or pblas.blas.plan_trsm(A, B).plan.name == name
            results.append(collected(pblas.blas.trsm(A, B, diag="U")).tobytes())
        assert len(set(results)) == 1


def test_one_right_hand_side_moves_little_to_idle_ranks(contexts: Contexts) -> None:
    for ctx in contexts.values():
        A, b = ctx.ones((12, 12)), ctx.ones((12, 1))
        planned = pblas.blas.plan_trsm(A, b)
        received = [planned.plan.received_elements(rank) for rank in range(1, ctx.nprocs)]
        assert isinstance(planned.plan, TrsmPlan)
        assert planned.plan.nsolvers == 1
        assert all(elements <= 12 for elements in received), "parts of X only"
        x = collected(planned.execute(A, b))
        assert np.array_equal(x, np.eye(12)[:, :1])
        assert part(x, planned.out, ctx.rank).shape == planned.out.local_shape(ctx.rank)
        planned.close()


@pytest.mark.parametrize("make", [MatrixDescriptor.row_wise, MatrixDescriptor.column_wise])
def test_a_conjugated_view_of_the_result_is_refused(ctx: pblas.Context, make: Any) -> None:
    """It would not be conjugated where X is computed in the memory of B."""
    desc, x = make(4, 4, ctx.nprocs), np.eye(4) + 1j
    A, B = (ctx.from_global(x, desc, None) for _ in range(2))
    raises_on_all_ranks(pblas.ArgumentError, "out overlaps B in part", lambda: pblas.blas.trsm(A, B.conj(), out=B))

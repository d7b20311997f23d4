"""Laws of syrk, symm, trmm and their relatives: half a product, from one triangle, on any layouts."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import Grid, MatrixDescriptor, blas
from pblas.matrices.matrix import DistMatrix
from tests.common.gauge import NAMES, THRESHOLD, Array, applied, dtype_of, entries, gauge
from tests.common.ranks import COMM, Contexts, few, raises_on_all_ranks, same_on_all_ranks, some_wrong
from tests.conformance.problems import Problem
from tests.conformance.structured import ROUTINES, UPDATES, error, extents, names, poison

pytestmark = [pytest.mark.mpi, few]

P = COMM.size
UNTYPED: Any = blas
"""Takes letters and wrong types."""
SETTINGS = ("shared", "message")
GUARD = -99
SIZES = (0, 1, 2, 5, 8, 9, 13)
CASES = 60


def some_descriptor(rng: random.Random, m: int, n: int) -> tuple[MatrixDescriptor, int, int]:
    """Any grid, blocks, sources, copies and order for a matrix around m x n, and the place of those in it."""
    grids = [(p, q) for p in range(1, P + 1) for q in range(1, P + 1) if p * q <= P]
    p, q = rng.choice(grids)
    rsrc, csrc = (rng.choice([-1, *range(extent), *range(extent)]) for extent in (p, q))
    mb, nb = rng.choice([1, 2, 3, 5, 40]), rng.choice([1, 2, 3, 5, 40])
    order, grid = rng.choice("FC"), Grid(p, q, rng.choice("CR"))  # type: ignore[arg-type]  # C or R
    desc = MatrixDescriptor(m + 4, n + 3, mb, nb, grid, rsrc, csrc, order=order)  # type: ignore[arg-type]  # F or C
    return desc, rng.randrange(5), rng.randrange(4)


def placed(ctx: pblas.Context, rng: random.Random, x: Array) -> tuple[DistMatrix, DistMatrix, Any]:
    """A matrix of guards, a view of it that holds x, and the view's place."""
    (m, n), (desc, i, j) = x.shape, some_descriptor(rng, *x.shape)
    whole = np.full(desc.shape, GUARD, x.dtype)
    whole[i : i + m, j : j + n] = x
    matrix = ctx.from_global(whole, desc)
    return matrix, matrix[i : i + m, j : j + n], np.s_[i : i + m, j : j + n]


def some_problem(rng: random.Random, routine: str, name: str, sizes: Sequence[int] = SIZES) -> Problem:
    """A random problem; `letter` is not used."""
    is_complex = name.startswith("complex")
    m, n, k = (rng.choice(sizes) for _ in range(3))
    if routine in ("symm", "hemm"):
        trans = "N"
    elif routine == "trmm" or not is_complex:
        trans = rng.choice("NTC")
    else:
        trans = rng.choice("NC" if routine.startswith("he") else "NT")
    alpha, beta = (rng.choice([0.0, 1.0, -1.5, 2 - 1j if is_complex else 2.0]) for _ in range(2))
    if routine == "herk":
        alpha = complex(alpha).real
    if routine in ("herk", "her2k"):
        beta = complex(beta).real
    side, diag = rng.choice("L" if routine in UPDATES else "LR"), rng.choice("NU" if routine == "trmm" else "N")
    return Problem(routine, "", m, n, k, {}, (trans,), rng.choice("UL"), alpha, beta, side, diag)


def call(problem: Problem, x: dict[str, DistMatrix]) -> None:
    """**Collective.** The routine in place, as in PBLAS: its last operand is read and written."""
    function, options = getattr(blas, problem.routine), {"uplo": problem.uplo, "alpha": problem.alpha}
    *inputs, written = x.values()
    if problem.routine in UPDATES:
        options["trans"] = problem.trans[0]
    else:
        options["side"] = problem.side
    if problem.routine == "trmm":
        function(*inputs, written, **options, trans=problem.trans[0], diag=problem.diag, out=written)
    else:
        function(*inputs, written, **options, beta=problem.beta, out=written)


@pytest.mark.parametrize("transport", SETTINGS)
@pytest.mark.parametrize("routine", ROUTINES)
def test_of_any_layouts(contexts: Contexts, routine: str, transport: str) -> None:
    """The gauge of PBLAS; NaN in all that must not be read; nothing else is written."""
    ctx, rng = contexts[transport], random.Random(f"{routine} {P}")
    for case in range(CASES):
        name = rng.choice([x for x in NAMES if routine[0] != "h" or x.startswith("complex")])
        problem = some_problem(rng, routine, name)
        subs: dict[str, Array] = {}
        for seed, operand in enumerate(names(routine)):
            subs[operand] = entries(extents(problem, operand), dtype_of(name), 100 * case + seed)
            poison(problem, operand, subs[operand])
        matrices = {operand: placed(ctx, rng, x) for operand, x in subs.items()}
        call(problem, {operand: view for operand, (_, view, _) in matrices.items()})
        whole, view, place = list(matrices.values())[-1]
        result, around = view.to_global(None), whole.to_global(None)
        assert result is not None
        assert around is not None
        text, _ = error(problem, subs, np.arange(result.shape[0]), np.arange(result.shape[1]), result)
        assert not text, f"case {case}: {text}: {problem}, {name}"
        around[place] = GUARD
        assert (around == GUARD).all(), f"case {case}: memory around the result has changed"


def whole(x: DistMatrix) -> Array:
    """**Collective.** All elements of a matrix, on all ranks."""
    array = x.to_global(None)
    assert array is not None
    return array


def test_syrk_is_the_triangle_of_the_product(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    a = ctx.random((150, 70), seed=1)
    for uplo, triangle in (("L", np.tril), ("U", np.triu)):
        half = UNTYPED.syrk(a, uplo=uplo).to_global(None)
        full = pblas.pmatmul(a, a, transb="T").to_global(None)
        assert half is not None
        assert full is not None
        np.testing.assert_allclose(half, triangle(full), rtol=1e-12, atol=1e-12)


def test_either_triangle_gives_the_same_product(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    x = entries((90, 90), np.dtype("complex128"), 3)
    x = x + x.conj().T
    b = ctx.random((90, 40), dtype="complex128", seed=1)
    grid = MatrixDescriptor(90, 90, 7, 7, Grid(1, P))
    results = [
        UNTYPED.hemm(ctx.from_global(keep(x), grid), b, uplo=uplo).to_global(None)
        for uplo, keep in (("L", np.tril), ("U", np.triu))
    ]
    assert np.array_equal(*results)


def test_trmm_is_the_product_with_the_triangle(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    x, y = entries((130, 130), np.dtype("float64"), 1), entries((130, 50), np.dtype("float64"), 2)
    grid = MatrixDescriptor(130, 130, 16, 16, Grid(P, 1))
    for trans in "NT":
        result = UNTYPED.trmm(ctx.from_global(x, grid), ctx.from_global(y), trans=trans).to_global(None)
        assert result is not None
        assert gauge(result, applied(trans, np.tril(x)), y) <= THRESHOLD


def test_a_new_result_is_0_outside_the_triangle(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    a, c = ctx.random((20, 6), seed=1), ctx.random((20, 20), seed=2)
    for result in (blas.syrk(a), blas.syrk(a, c)):
        whole = result.to_global(None)
        assert whole is not None
        assert (np.triu(whole, 1) == 0).all()


def test_planned_twins_run_again_and_explain(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    a, b = ctx.random((64, 64), seed=1), ctx.random((64, 64), seed=2)
    for plan, matrices, named in (
        (blas.plan_syrk(a), (a,), "op(A) and op(A)^T"),
        (blas.plan_syr2k(a, b), (a, b), "op(B)^T"),
        (blas.plan_symm(a, b), (a, b), "completed"),
        (blas.plan_trmm(a, b), (a, b), "op(A) and B"),
    ):
        with plan:
            first, again = (whole(plan.execute(*matrices)) for _ in range(2))
            assert np.array_equal(first, again)
            assert "flops" in plan.explain()
            assert "lower bound" in plan.explain()
            assert named in plan.explain()
            assert plan.plan.simulate("laptop").seconds > 0
            assert plan.workspace_nbytes <= plan.plan.workspace_nbytes + 4096


WRONG: dict[str, Callable[[DistMatrix, DistMatrix], object]] = {
    "uplo": lambda a, _: UNTYPED.syrk(a, uplo="X"),
    "trans": lambda a, b: UNTYPED.trmm(a, b, trans="H"),
    "side": lambda a, b: UNTYPED.symm(a, b, side="M"),
    "diag": lambda a, b: UNTYPED.trmm(a, b, diag="D"),
    "alpha": lambda a, _: UNTYPED.syrk(a, alpha="1"),
    "complex alpha": lambda a, _: UNTYPED.syrk(a, alpha=1j),
    "beta without C": lambda a, b: UNTYPED.syr2k(a, b, beta=2.0),
    "A": lambda a, b: UNTYPED.syrk(a.local, b),
    "B": lambda a, _: UNTYPED.trmm(a, None),
    "shape of B": lambda a, b: UNTYPED.symm(a, b[:3, :]),
    "shape of C": lambda a, b: UNTYPED.syrk(a, b[:, :3]),
    "A not square": lambda a, b: UNTYPED.trmm(a[:, :3], b),
    "shapes of A and B": lambda a, b: UNTYPED.syr2k(a, b[:, :3]),
    "out overlaps A": lambda a, b: UNTYPED.trmm(a, b, out=a),
    "out overlaps B": lambda a, b: UNTYPED.symm(a, b, out=b),
    "out overlaps A, which is C too": lambda a, b: UNTYPED.symm(a, b, a, out=a),
    "out overlaps part of B": lambda a, b: UNTYPED.trmm(a[:8, :8], b[:8, :8], out=b[1:9, 1:9]),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_argument_raises_the_same_everywhere(contexts: Contexts, what: str) -> None:
    ctx = contexts["shared"]
    a, b = ctx.random((12, 12), seed=1), ctx.random((12, 12), seed=2)
    for ranks in {frozenset({0}), frozenset({P - 1}), frozenset(range(P))}:
        same_on_all_ranks(refused(WRONG[what] if ctx.rank in ranks else lambda a, _: blas.syrk(a), a, b))
    blas.syrk(a)  # the context is usable
    gc.collect()  # the exceptions, whose frames keep matrices


@pytest.mark.parametrize("side", ["L", "R"])
@pytest.mark.parametrize("by", ["rows", "columns"])
def test_trmm_over_another_matrix_in_the_memory_of_b(contexts: Contexts, side: Any, by: str) -> None:
    ctx, n = contexts["shared"], 600
    a, b = (entries((n, n), np.dtype("float64"), seed) for seed in (1, 2))
    desc = (MatrixDescriptor.row_wise if by == "rows" else MatrixDescriptor.column_wise)(n, n, P)
    A, B = (ctx.from_global(x, desc, None) for x in (a, b))
    for wrong in (*range(P), P):
        before, fresh = B.local.copy(order="F"), ctx.empty(desc)
        other = ctx.from_local((B if wrong in (ctx.rank, P) else fresh).local, desc)
        result = whole(blas.trmm(A, B, side=side, out=other))
        t = np.tril(a)
        assert np.allclose(result, t @ b if side == "L" else b @ t, rtol=0, atol=1e-9)
        B.local[...] = before


@pytest.mark.parametrize("routine", ["herk", "her2k"])
def test_scalars_with_which_a_result_is_not_hermitian_are_refused(contexts: Contexts, routine: str) -> None:
    """Alpha of her2k may be complex."""
    ctx = contexts["shared"]
    a, c = ctx.zeros((12, 12), "complex128"), ctx.zeros((12, 12), "complex128")
    operands = (a,) if routine == "herk" else (a, ctx.zeros((12, 12), "complex128"))
    for name in ("alpha", "beta"):
        call = partial(getattr(blas, routine), *operands, c, **{name: 1j})
        if (routine, name) == ("her2k", "alpha"):
            assert (call().local == 0).all()
        else:
            raises_on_all_ranks(pblas.ArgumentError, f"{name} must be real", call)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("routine", ["syrk", "syr2k", "symm"])
def test_an_execution_with_c_on_some_ranks_is_refused(contexts: Contexts, routine: str) -> None:
    """Planned with beta = 0, with which C is not read."""
    ctx = contexts["shared"]
    a, b, c = (ctx.zeros((12, 12)) for _ in range(3))
    operands = (a,) if routine == "syrk" else (a, b)
    with getattr(blas, f"plan_{routine}")(*operands, c, beta=0.0) as planned:
        for wrong in some_wrong():
            given = None if ctx.rank in wrong else c
            call = partial(planned.execute, *operands, given)
            raises_on_all_ranks(pblas.MismatchError, "c is given differs between ranks", call)
        planned.execute(*operands, c)


def refused(wrong: Callable[[DistMatrix, DistMatrix], object], a: DistMatrix, b: DistMatrix) -> str:
    """**Collective.** The text of the error that a call raises."""
    with pytest.raises(pblas.PblasError) as caught:
        wrong(a, b)
    return str(caught.value)

"""Laws of redistribute: B = alpha op(A) + beta B from any layout to any other, and nothing else touched."""

from __future__ import annotations

import dataclasses
import random
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest

import pblas
from pblas import Grid, MatrixDescriptor
from pblas.core.planned import Planned
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import Redistribution, redistributed
from pblas.redistribution.redistribution_run import RunRedistribution
from tests.common.gauge import NAMES, Array, applied, dtype_of, entries, eps_of
from tests.common.ranks import (
    Contexts,
    check_product,
    collected,
    delay_exchanges,
    first_and_last,
    interrupted,
    one_host,
    open_context,
    raises_on_all_ranks,
    some_wrong,
)
from tests.mpi.matrices.arrays import some_descriptor
from tests.mpi.operations.test_matmul import Placed, part

POISON = -99
SETTINGS = ("shared", "message", "mixed", "push")


class Guarded(Placed):
    """A matrix amid poison: below its columns (or beside its rows), and around the view that is moved.

    `home` is "shared" for the context's memory and "own" for the user's, which peers cannot read in place.
    """

    def __init__(
        self, ctx: pblas.Context, desc: MatrixDescriptor, dtype: np.dtype[Any], place: Any = None, home: str = "own"
    ) -> None:
        super().__init__(ctx, desc, place or (0, desc.m, 0, desc.n), dtype, "w" if home == "shared" else "u", 3)
        self.rank = ctx.rank

    def remember(self) -> bytes:
        """All memory, poison included."""
        return self.memory.tobytes()

    def check(self, x: Array, before: bytes) -> None:
        """Assert that the view equals the global array x, bit for bit, and that no other element has changed."""
        local = self.view.local
        expected = part(x, self.view.desc, self.rank)
        assert local.tobytes() == np.asarray(expected, local.dtype).tobytes()
        self._before = before
        self.check_untouched_outside()


def numbered(m: int, n: int, start: int = 0) -> Array:
    """A matrix whose entries are all different."""
    return np.arange(start, start + m * n, dtype=np.float64).reshape(m, n)


class Case:
    """One random redistribution: its arguments, and its matrices with NaN in elements that must not be read."""

    def __init__(self, ctx: pblas.Context, seed: int) -> None:
        rng = random.Random(seed)
        self.m, self.n = rng.choice([0, 1, 7, 23, 40]), rng.choice([1, 8, 9, 31])
        self.dtype = dtype_of(rng.choice(NAMES))
        self.trans: Literal["N", "T", "C"] = rng.choice(("N", "T", "C"))
        self.alpha: complex = rng.choice([0, 1, 1, -0.5])
        self.beta: complex = rng.choice([0, 0, 1, 2.5])
        if self.dtype.kind == "c":
            self.alpha, self.beta = self.alpha * rng.choice([1, 1j]), self.beta * rng.choice([1, 1 - 2j])
        self.uplo: Literal["U", "L"] | None = rng.choice(["U", "L", None, None])
        self.diagonal = rng.randint(-9, 9) if self.uplo else 0
        i, j, k, l = (rng.choice([0, 0, 3]) for _ in range(4))
        shape_a = (self.m, self.n) if self.trans == "N" else (self.n, self.m)
        a_desc = some_descriptor(rng, shape_a[0] + i + 2, shape_a[1] + j, ctx.nprocs)
        b_desc = some_descriptor(rng, self.m + k, self.n + l + 1, ctx.nprocs)
        homes = rng.choice(["own", "shared"]), rng.choice(["own", "shared"])
        self.A = Guarded(ctx, a_desc, self.dtype, (i, i + shape_a[0], j, j + shape_a[1]), homes[0])
        self.B = Guarded(ctx, b_desc, self.dtype, (k, k + self.m, l, l + self.n), homes[1])
        self.a, self.b = entries(shape_a, self.dtype, 2 * seed), entries((self.m, self.n), self.dtype, 2 * seed + 1)
        self.inside = np.ones((self.m, self.n), bool)
        if self.uplo is not None:
            self.inside = (np.triu if self.uplo == "U" else np.tril)(self.inside, self.diagonal)
        if self.beta == 0:
            self.b[self.inside] = np.nan
        read = self.a if self.alpha != 0 else np.full_like(self.a, np.nan)
        outside = ~(self.inside if self.trans == "N" else self.inside.T)
        self.A.fill(np.where(outside, np.asarray(np.nan, self.dtype), read))
        self.B.fill(self.b)

    @property
    def options(self) -> dict[str, Any]:
        names = ("trans", "alpha", "beta", "uplo", "diagonal")
        return {name: getattr(self, name) for name in names}

    def check(self, before: bytes) -> None:
        """The bound of p?geadd's tests: 8 units of the terms' absolute values; a plain copy is exact."""
        wide: Any = np.clongdouble if self.dtype.kind == "c" else np.longdouble
        op, old = applied(self.trans, self.a).astype(wide), np.nan_to_num(self.b.astype(wide))
        exact = wide(self.alpha) * op + wide(self.beta) * old
        size = abs(self.alpha) * np.abs(op) + abs(self.beta) * np.abs(old)
        result = np.array(self.b)  # outside the trapezoid, bit for bit
        local = self.B.view.local
        rows, columns = ([g for r in rs for g in range(*r)] for rs in self.B.view.desc.global_ranges(self.B.rank))
        inside = np.ix_(rows, columns)
        error = np.abs(np.where(self.inside[inside], local.astype(wide) - exact[inside], 0))
        bound = 0 if self.alpha == 1 and self.beta == 0 else 8 * eps_of(self.dtype)
        assert (error <= bound * size[inside]).all(), "NaN, or too far off"
        result[inside] = np.where(self.inside[inside], local, self.b[inside])
        self.B.check(result, before)


@pytest.mark.mpi
@pytest.mark.openmpi
@pytest.mark.parametrize("setting", SETTINGS)
def test_any_layout_to_any_other(contexts: Contexts, setting: str) -> None:
    """Every argument on all transports: the result is right, other memory is untouched, the plan's bytes move."""
    context = contexts[setting]
    backend = context.runtime.backend
    for seed in range(60):
        case = Case(context, seed)
        before, before_a = case.B.remember(), case.A.remember()
        counted = backend.channel.received_nbytes + backend.read_nbytes
        with pblas.plan_redistribution(case.A.view, out=case.B.view, **case.options) as planned:
            planned.execute(case.A.view, out=case.B.view)
            counted = backend.channel.received_nbytes + backend.read_nbytes - counted
            case.check(before)
            assert case.A.remember() == before_a
            plan = planned.plan
            assert counted == plan.received_nbytes(context.rank), plan
            assert plan.max_received_nbytes == max(map(plan.received_nbytes, range(context.nprocs)))
        if setting == "message":
            assert backend.read_nbytes == 0


@pytest.mark.mpi
def test_a_plan_is_run_many_times(contexts: Contexts) -> None:
    for context in contexts.values():
        rows, columns = (
            MatrixDescriptor.row_wise(9, 7, context.nprocs),
            MatrixDescriptor.column_wise(7, 9, context.nprocs),
        )
        planned = None
        for seed in range(4):
            x, y = numbered(9, 7, seed), numbered(7, 9, 100)
            a, b = context.from_global(x, rows, root=None), context.from_global(y, columns, root=None)
            planned = planned or pblas.plan_redistribution(a, out=b, trans="T", alpha=2, beta=1)
            assert planned.execute(a, out=b) is b
            result = collected(b)
            assert np.array_equal(result, 2 * x.T + y)
        assert planned is not None
        planned.close()
        raises_on_all_ranks(pblas.ContextError, "is closed", partial(planned.execute, a, out=b))
        check_product(context)


@pytest.mark.mpi
def test_calls_are_planned_once_and_differ_in_scalars_and_memory(contexts: Contexts) -> None:
    """A repeated call is not planned again, for any scalars, address of A and column stride of B."""
    dtype, (m, n) = np.dtype(np.float64), (23, 17)
    for setting, ctx in contexts.items():
        x, old = entries((m, n), dtype, 1), entries((m, n), dtype, 2)
        a_desc = MatrixDescriptor(m, n, 3, 2, Grid(ctx.nprocs, 1))
        targets = [MatrixDescriptor(m, n, mb, 4, Grid(1, ctx.nprocs)) for mb in (2, 5)]
        movements: dict[int, set[int]] = {0: set(), 1: set()}
        for turn, (alpha, beta) in enumerate([(1.0, 0.0), (2.0, 1.0), (-1.0, 0.5)]):
            a = Guarded(ctx, a_desc, dtype, home=("shared", "own", "shared")[turn])
            a.view.local[...] = part(x, a_desc, ctx.rank)
            for index, target in enumerate(targets):
                b_desc = dataclasses.replace(target, lld=max(1, target.local_shape(ctx.rank)[0]) + turn)
                b = ctx.empty(b_desc, dtype)
                b.local[...] = part(old, b_desc, ctx.rank)
                pblas.redistribute(a.view, out=b, alpha=alpha, beta=beta)
                expected = alpha * part(x, b_desc, ctx.rank) + beta * part(old, b_desc, ctx.rank)
                assert np.array_equal(b.local, expected), (setting, turn)
                result = a.view.redistribute(b_desc)
                assert np.array_equal(result.local, part(x, b_desc, ctx.rank)), (setting, turn)
                assert result.local.strides == b.local.strides
                movements[index].add(id(_kept(ctx, a.view, b)))
        assert {len(plans) for plans in movements.values()} == {1}, setting


@pytest.mark.mpi
def test_a_kept_plan_holds_no_buffers_between_calls(contexts: Contexts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither after a result nor after an error."""
    for ctx in contexts.values():
        a_desc, b_desc = (make(9, 7, ctx.nprocs) for make in (MatrixDescriptor.row_wise, MatrixDescriptor.column_wise))
        a, b = ctx.random(a_desc, seed=1), ctx.empty(b_desc)
        for _ in range(2):
            assert np.array_equal(collected(pblas.redistribute(a, out=b)), collected(a))
            kept: Any = _kept(ctx, a, b)
            assert kept.workspace_nbytes == 0
    with open_context("message", timeout=20) as ctx, monkeypatch.context() as patch:
        a, b = ctx.random(a_desc, seed=1), ctx.empty(b_desc)
        pblas.redistribute(a, out=b)
        kept = _kept(ctx, a, b)
        patch.setattr(RunRedistribution, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pblas.redistribute(a, out=b)
        assert kept.workspace_nbytes == 0


def _kept(ctx: pblas.Context, a: DistMatrix, b: DistMatrix) -> Any:
    """The plan that the context has kept of a redistribution."""
    kept = ctx.runtime.kept.get(Redistribution.bind("redistribute", ctx.runtime, a, out=b).key, Planned)
    assert kept is not None, "the call has been planned"
    return kept


@pytest.mark.mpi
def test_a_new_matrix_is_zero_outside_the_trapezoid(contexts: Contexts) -> None:
    for context in contexts.values():
        x = numbered(8, 8, 1)
        a = context.from_global(x, MatrixDescriptor.row_wise(8, 8, context.nprocs), root=None)
        desc = MatrixDescriptor(8, 8, 3, 2, Grid(1, context.nprocs), order="C")
        result = pblas.redistribute(a, desc, uplo="L", diagonal=-1).to_global(root=None)
        assert np.array_equal(result, np.tril(x, -1))
        b = a.redistribute(desc)
        assert b.desc == desc
        assert np.array_equal(collected(b), x)


@pytest.mark.mpi
def test_conjugated_views_are_conjugated(ctx: pblas.Context) -> None:
    x = entries((6, 5), np.dtype(np.complex128), 1)
    a = ctx.from_global(x, MatrixDescriptor.row_wise(6, 5, ctx.nprocs), root=None)
    wide, tall = MatrixDescriptor.column_wise(5, 6, ctx.nprocs), MatrixDescriptor.column_wise(6, 5, ctx.nprocs)
    for trans, desc, expected in (("N", wide, x.conj().T), ("C", tall, x), ("T", tall, x.conj())):
        result = pblas.redistribute(a.H, desc, trans=trans).to_global(root=None)  # type: ignore[arg-type]
        assert np.array_equal(result, expected)


# A wrong argument of one rank, the exception, and a part of its text.
MISTAKES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "trans": ({"trans": "X"}, pblas.ArgumentError, "trans must be 'N', 'T' or 'C', got 'X'"),
    "uplo": ({"uplo": "X"}, pblas.ArgumentError, "uplo must be None, 'U' or 'L', got 'X'"),
    "diagonal": ({"diagonal": 1}, pblas.ArgumentError, "uplo is None"),
    "diagonal's kind": ({"uplo": "U", "diagonal": 0.5}, pblas.ArgumentError, "diagonal must be an integer"),
    "alpha": ({"alpha": "x"}, pblas.ArgumentError, "alpha must be a number, got 'x'"),
    "complex": ({"alpha": 1j}, pblas.ArgumentError, "it must be real"),
    "too large": ({"beta": 10**400}, pblas.ArgumentError, "too large"),
    "nowhere": ({"out": None}, pblas.ArgumentError, "neither of desc and out"),
    "beta": ({"out": None, "desc": "row_wise", "beta": 1}, pblas.ArgumentError, "no B to scale"),
    "desc": ({"out": None, "desc": 3}, pblas.ArgumentError, "desc must be a MatrixDescriptor"),
    "shape": ({"trans": "T"}, pblas.DescriptorError, "op(A) is 5 x 8 (trans='T'), B is 8 x 5"),
    "grid": ({"out": None, "desc": "too large"}, pblas.LayoutError, "use a smaller grid"),
    "itself": ({"out": "A"}, pblas.ArgumentError, "out overlaps A"),
    "part": ({"out": "part"}, pblas.ArgumentError, "out overlaps A"),
    "dtype": ({"out": "float32"}, pblas.DTypeError, "out is float32, A is float64"),
    "read-only": ({"out": "read-only"}, pblas.ArgumentError, "read-only"),
    "other": ({"out": "another context"}, pblas.ArgumentError, "matrices of different contexts"),
    "no matrix": ({"out": 3}, pblas.ArgumentError, "out must be a DistMatrix, got int"),
    "no out": ({"out": "row_wise"}, pblas.ArgumentError, "got MatrixDescriptor; for a new matrix pass desc="),
    "nothing": ({"a": None}, pblas.ArgumentError, "a must be a DistMatrix, got NoneType"),
    "a descriptor": ({"a": "row_wise"}, pblas.ArgumentError, "a must be a DistMatrix, got MatrixDescriptor"),
}


@pytest.mark.mpi
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_one_rank_is_an_error_on_every_rank(contexts: Contexts, name: str) -> None:
    wrong, kind, text = MISTAKES[name]
    context = contexts["mixed"]
    rows, p = MatrixDescriptor.row_wise(8, 5, context.nprocs), context.nprocs
    whole = context.zeros(MatrixDescriptor.row_wise(9, 5, p, mb=1))
    a, b = whole[:8, :], context.zeros(rows)
    fixed = np.zeros(rows.local_shape(context.rank), order="F")
    fixed.flags.writeable = False
    values = {
        "row_wise": rows,
        "too large": MatrixDescriptor.row_wise(8, 5, p + 1),
        "A": a,
        "part": whole[1:, :],
        "float32": context.zeros(rows, np.float32),
        "another context": contexts["shared"].zeros(rows),
        "read-only": context.from_local(fixed, rows),
    }
    mistake = {key: values.get(value, value) if isinstance(value, str) else value for key, value in wrong.items()}
    for ranks in [*some_wrong(), frozenset(range(p))]:
        arguments: dict[str, Any] = {"a": a, "out": b} | (mistake if context.rank in ranks else {})
        for operation in (pblas.redistribute, pblas.plan_redistribution):
            raises_on_all_ranks(kind, text, partial(operation, **arguments))
    assert np.array_equal(pblas.redistribute(a, out=b).local, np.zeros_like(b.local))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("key", ["alpha", "uplo", "trans"])
def test_arguments_that_differ_are_named(ctx: pblas.Context, key: str) -> None:
    square = MatrixDescriptor.row_wise(8, 8, ctx.nprocs)
    a, b = ctx.zeros(square), ctx.zeros(square)
    value = {"alpha": 2.0, "uplo": "U", "trans": "T"}[key]
    for wrong in some_wrong():
        arguments: dict[str, Any] = {key: value} if ctx.rank in wrong else {}
        name = "trapezoid" if key == "uplo" else key
        raises_on_all_ranks(pblas.MismatchError, f"{name} differs", partial(pblas.redistribute, a, out=b, **arguments))


@pytest.mark.mpi
def test_an_execution_refuses_other_matrices(ctx: pblas.Context) -> None:
    rows = MatrixDescriptor.row_wise(8, 8, ctx.nprocs)
    columns = MatrixDescriptor.column_wise(8, 8, ctx.nprocs, nb=1)
    a, b, c = ctx.zeros(rows), ctx.zeros(columns), ctx.zeros(rows, np.float32)
    with pblas.plan_redistribution(a, out=b) as planned:
        raises_on_all_ranks(pblas.DTypeError, "planned was float64", lambda: planned.execute(c, out=b))
        raises_on_all_ranks(pblas.ArgumentError, "out must be a DistMatrix", lambda: planned.execute(a, out=3))  # type: ignore[arg-type]
        raises_on_all_ranks(pblas.ArgumentError, "out is conjugated", lambda: planned.execute(a, out=Marked(b)))
        if ctx.nprocs > 1:
            raises_on_all_ranks(pblas.DescriptorError, "planned was", lambda: planned.execute(b, out=a))
        assert np.array_equal(planned.execute(a).local, np.zeros_like(b.local))
    with pytest.raises(pblas.ArgumentError, match="without a context"):
        pblas.plan_redistribution(rows, columns, dtype="float64").execute(a)


class Marked(DistMatrix):
    """A matrix with the mark of a conjugated view, which a real one never gets."""

    def __init__(self, x: DistMatrix) -> None:
        super().__init__(x.desc, x.local, x.runtime, conj=True)


@one_host
@pytest.mark.mpi
def test_explain_lists_the_data_movement(contexts: Contexts) -> None:
    words = {"shared": "in place", "message": "messages", "mixed": "messages between nodes", "push": "in place"}
    for name, context in contexts.items():
        p = context.nprocs
        a = context.zeros(MatrixDescriptor.row_wise(8, 8, p))
        with pblas.plan_redistribution(a, MatrixDescriptor.column_wise(8, 8, p), uplo="U") as planned:
            planned.execute(a)
            assert planned.workspace_nbytes <= planned.plan.workspace_nbytes
            text = planned.explain()
            assert f"{planned.plan.max_received_nbytes:,} bytes" in text
            expected = "nothing" if p == 1 else words[name]
            assert expected in text or (name == "mixed" and p == 2 and "in place" in text)
            assert "upper triangle" in text


@pytest.mark.mpi(min_size=2)
@first_and_last("late")
def test_a_second_step_of_one_plan_waits_for_readers_of_the_first(
    ctx: pblas.Context, late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They look up the first matrix where the second one will be published."""
    rows, columns = (f(9, 9, ctx.nprocs) for f in (MatrixDescriptor.row_wise, MatrixDescriptor.column_wise))
    arrays = [entries((9, 9), np.dtype(np.float64), seed) for seed in range(4)]
    matrices = [ctx.from_global(x, rows, None) for x in arrays]
    redistributed("warm", matrices[0], columns)  # the context keeps the plan
    ctx.runtime.end_reading("warm")
    delay_exchanges(monkeypatch, late, 0.02)
    with ctx.runtime.call("steps"):
        results = [redistributed("steps", matrix, columns) for matrix in matrices]
        ctx.runtime.end_reading("steps")
    for x, result in zip(arrays, results, strict=True):
        assert np.array_equal(result.local, part(x, columns, ctx.rank))

"""Laws of pmatmul: D = alpha op(A) op(B) + beta C for any 1D layouts, and nothing else touched."""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
import tracemalloc
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pblas
from pblas.core.planned import Planned
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from pblas.matrices.matrix import DistMatrix
from tests.common.gauge import NAMES, THRESHOLD, Array, applied, dtype_of, entries, gauge
from tests.common.ranks import Contexts, check_broken_half_way, collected, few, one_host, raises_on_all_ranks

POISON = -99
TRANS = ("N", "T", "C")
Order = Literal["F", "C"]

# How op(A), op(B) and D are split: along rows, along columns, or not at all.
LAYOUTS = {
    "AG(B) rows": ("rows", "rows", "rows"),
    "AG(B) columns": ("rows", "columns", "rows"),
    "AG(B) A replicated": ("all", "columns", "rows"),
    "AG(A) rows": ("rows", "columns", "columns"),
    "AG(A) columns": ("columns", "columns", "columns"),
    "AG(A) B replicated": ("rows", "all", "columns"),
    "RS to rows": ("columns", "rows", "rows"),
    "RS to columns": ("columns", "rows", "columns"),
    "RS A replicated": ("all", "rows", "columns"),
    "RS B replicated": ("columns", "all", "rows"),
    "AR": ("columns", "rows", "all"),
    "AR A replicated": ("all", "rows", "all"),
    "AR B replicated": ("columns", "all", "all"),
    "Local rows": ("rows", "all", "rows"),
    "Local columns": ("all", "columns", "columns"),
    "Local, all replicated": ("all", "all", "all"),
}
COMMUNICATING = [name for name in LAYOUTS if not name.startswith("Local")]
SETTINGS = ("shared", "message", "mixed", "link", "push")


@dataclass(frozen=True)
class Dimension:
    """One of M, N, K: its length, its blocks, and the margins around the view in its matrix."""

    n: int
    nb: int | None = None
    src: int = 0
    before: int = 0
    after: int = 0


@dataclass(frozen=True)
class Case:
    """One product. `orders` and `homes` are those of op(A), op(B), C and D."""

    m: Dimension
    n: Dimension
    k: Dimension
    layout: tuple[str, str, str]
    dtype: str = "float64"
    trans: tuple[str, ...] = ("N", "N")
    orders: tuple[Order, Order, Order, Order] = ("F", "F", "F", "F")
    alpha: complex = 1.0
    beta: complex = 0.0
    out: Literal["none", "descriptor", "matrix", "in place"] = "matrix"
    homes: str = "wwww"  # w: in the context's memory, u: the user's own
    padding: int = 0
    options: tuple[tuple[str, Any], ...] = ()
    seed: int = 1


def descriptor(
    kind: str, rows: Dimension, columns: Dimension, order: Order, nprocs: int
) -> tuple[MatrixDescriptor, tuple[int, int, int, int]]:
    """The descriptor of the matrix around the view, and the view's place in it."""
    m, n = rows.before + rows.n + rows.after, columns.before + columns.n + columns.after
    place = (rows.before, rows.before + rows.n, columns.before, columns.before + columns.n)
    if kind == "rows":
        return MatrixDescriptor.row_wise(m, n, nprocs, mb=rows.nb, rsrc=rows.src % nprocs, order=order), place
    if kind == "columns":
        return MatrixDescriptor.column_wise(m, n, nprocs, nb=columns.nb, csrc=columns.src % nprocs, order=order), place
    return MatrixDescriptor.replicated(m, n, nprocs, order=order), place


class Placed:
    """A matrix of a case: the view that is multiplied, and all the memory around it, so that it can be checked."""

    def __init__(
        self, ctx: pblas.Context, desc: MatrixDescriptor, place: Any, dtype: np.dtype[Any], home: str, padding: int
    ) -> None:
        rows, columns = desc.local_shape(ctx.rank)
        high, wide = (rows, columns) if desc.order == "F" else (columns, rows)
        lld = max(high, 1) + padding
        desc = dataclasses.replace(desc, lld=lld if padding else None)
        if home == "w":
            whole = ctx.empty(desc, dtype)
            tall = whole.local if desc.order == "F" else whole.local.T
            strides = (dtype.itemsize, lld * dtype.itemsize)
            self.memory = np.lib.stride_tricks.as_strided(tall, (lld, wide), strides) if tall.size else tall
        else:
            self.memory = np.empty((lld, wide), dtype, order="F")
            local = self.memory[:high]
            whole = ctx.from_local(local if desc.order == "F" else local.T, desc)
        self.memory[...] = POISON
        i0, i1, j0, j1 = place
        self.view = whole[i0:i1, j0:j1] if place != (0, desc.m, 0, desc.n) else whole
        self._before = b""

    def fill(self, x: Array) -> None:
        """The view := the global array x."""
        self.view.local[...] = part(x, self.view.desc, self.view.runtime.rank)
        self._before = self.memory.tobytes()

    def check_untouched(self) -> None:
        """Assert that no element has changed, inside the view and outside."""
        assert self.memory.tobytes() == self._before

    def check_untouched_outside(self) -> None:
        """Assert that no element outside the view has changed."""
        inside = self.view.local.copy()
        self.view.local[...] = 0
        outside = self.memory.copy()
        self.memory[...] = np.frombuffer(self._before, self.memory.dtype).reshape(self.memory.shape)
        self.view.local[...] = 0
        assert self.memory.tobytes() == outside.tobytes()
        self.view.local[...] = inside


def indices(desc: MatrixDescriptor, rank: int) -> tuple[Array, Array]:
    """The rows and columns (global) of a rank's part."""
    rows, columns = (
        np.concatenate([np.arange(0), *(np.arange(*r) for r in ranges)]).astype(int)
        for ranges in desc.global_ranges(rank)
    )
    return rows, columns


def part(x: Array, desc: MatrixDescriptor, rank: int) -> Array:
    """The shard of a global array on a rank."""
    return x[np.ix_(*indices(desc, rank))] if desc.grid.coordinates(rank)[0] >= 0 else x[:0, :0]


class Operands:
    """The matrices of a case on a context, and the checks of their memory."""

    placed: Any = Placed

    def __init__(self, ctx: pblas.Context, case: Case) -> None:
        self.ctx, self.case, self.dtype = ctx, case, dtype_of(case.dtype)
        kind_a, kind_b, kind_d = case.layout
        m, n, k = case.m, case.n, case.k
        self.A = self._place(kind_a, m, k, 0, case.trans[0])
        self.B = self._place(kind_b, k, n, 1, case.trans[1])
        self.D = self.C = self._place(kind_d, m, n, 3, "N")
        if case.out != "in place" and (case.beta != 0 or case.out == "none"):
            self.C = self._place(kind_d, m, n, 2, "N")

    def _place(self, kind: str, rows: Dimension, columns: Dimension, i: int, trans: str) -> Any:
        case = self.case
        desc, place = descriptor(kind, rows, columns, case.orders[i], self.ctx.nprocs)
        if trans != "N":
            desc, place = desc.T, (*place[2:], *place[:2])
        return self.placed(self.ctx, desc, place, self.dtype, case.homes[i], case.padding)

    @property
    def arguments(self) -> dict[str, Any]:
        """Of `pmatmul` and `plan_matmul`."""
        case = self.case
        out = {"none": None, "descriptor": self.D.view.desc}.get(case.out, self.D.view)
        return {
            "c": self.C.view if case.beta != 0 or case.out in ("none", "in place") else None,
            "transa": case.trans[0],
            "transb": case.trans[1],
            "alpha": case.alpha,
            "beta": case.beta,
            "out": out,
            **dict(case.options),
        }

    def fill(self, a: Array, b: Array, c: Array) -> None:
        """Fill all matrices anew, op(A) and op(B) as given. Unread memory, D too, gets NaN."""
        case, nan = self.case, np.full(c.shape, np.nan, self.dtype)
        for x, whole, trans in ((self.A, a, case.trans[0]), (self.B, b, case.trans[1])):
            stored = np.full_like(whole, np.nan) if case.alpha == 0 else whole
            x.fill(applied(trans, stored))  # T and C undo themselves
        self.D.fill(nan)
        if self.C is not self.D or case.out == "in place":
            self.C.fill(c if case.beta != 0 else nan)

    def check_memory(self, result: DistMatrix) -> tuple[Array, Array]:
        """Assert that D is where it should be and nothing else was touched; rows and columns of this rank's part."""
        assert result.desc == self.D.view.desc
        if self.case.out in ("matrix", "in place"):
            assert result is self.D.view
            self.D.check_untouched_outside()
        else:
            self.D.check_untouched()
        if self.C is not self.D:
            self.C.check_untouched()
        self.A.check_untouched()
        self.B.check_untouched()
        return indices(result.desc, self.ctx.rank)


class Run(Operands):
    """A case on a context: its matrices, the product, and the check of every law that holds for all cases."""

    def __init__(self, ctx: pblas.Context, case: Case) -> None:
        super().__init__(ctx, case)
        m, n, k = case.m.n, case.n.n, case.k.n
        self.a = entries((m, k), self.dtype, 3 * case.seed)
        self.b = entries((k, n), self.dtype, 3 * case.seed + 1)
        self.c = entries((m, n), self.dtype, 3 * case.seed + 2)
        self.reset()

    def reset(self) -> None:
        """Fill all matrices anew."""
        self.fill(self.a, self.b, self.c)

    def multiply(self) -> DistMatrix:
        result = pblas.pmatmul(self.A.view, self.B.view, **self.arguments)
        self.check(result)
        return result

    def check_after(self, result: DistMatrix, kept: tuple[Array, Array]) -> None:
        """`check` with saved inputs, after the matrices have been overwritten."""
        self.A.memory[...], self.B.memory[...] = kept
        self.check(result)

    def check(self, result: DistMatrix, limit: float = THRESHOLD) -> None:
        case, (rows, columns) = self.case, self.check_memory(result)
        c = self.c[np.ix_(rows, columns)]
        error = gauge(result.local, self.a[rows], self.b[:, columns], c, alpha=case.alpha, beta=case.beta)
        assert error <= limit, f"{error} in the gauge: {case}"


def sizes(nprocs: int) -> list[tuple[Dimension, Dimension, Dimension]]:
    """M, N and K: uneven, cyclic, with sources, with empty shards, inside larger matrices."""
    far = nprocs - 1
    return [
        (Dimension(7), Dimension(8), Dimension(9)),
        (Dimension(9, 1), Dimension(7, 1), Dimension(8, 1)),
        (Dimension(8, 2, far), Dimension(9, 1, far), Dimension(7, 2, 1)),
        (Dimension(7, 3, 1, 1, 2), Dimension(8, 2, far, 3, 1), Dimension(9, 2, far, 5, 0)),
        (Dimension(2), Dimension(3, 2, 1), Dimension(1, 1, far)),
        (Dimension(1, 1, far), Dimension(1, 9, 1), Dimension(3, 2, far, 7, 7)),
    ]


EMPTY = [(0, 8, 9), (7, 0, 9), (7, 8, 0), (0, 0, 0), (0, 8, 0)]


@pytest.mark.mpi
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_product(ctx: pblas.Context, layout: str, name: str) -> None:
    """All trans, with sizes, orders, scalars, places and homes taken in turn."""
    orders: Any = itertools.cycle(itertools.product("FC", repeat=4))
    scalars: Any = itertools.cycle([(1.0, 0.0), (0.75, -0.5), (-1.0, 1.0), (0.0, 0.25), (2.0, 0.0)])
    if dtype_of(name).kind == "c":
        scalars = itertools.cycle([(0.5 - 2j, 1.5 + 0.5j), (1j, 0.0), (1.0, 1.0), (0.0, 2j)])
    outs: Any = itertools.cycle(["matrix", "in place", "descriptor"])
    homes = itertools.cycle(["wwww", "uuuu", "wuuw", "uwwu", "wwuu"])
    places = itertools.cycle(sizes(ctx.nprocs))
    first = NAMES.index(name) + 5 * list(LAYOUTS).index(layout)  # another combination for every dtype and layout
    for options in (orders, scalars, outs, homes, places):
        next(itertools.islice(options, first, None))
    real: list[tuple[str, str]] = [("N", "N"), ("N", "T"), ("T", "N"), ("T", "T"), ("C", "C")]
    for trans in itertools.product(TRANS, repeat=2) if dtype_of(name).kind == "c" else real:
        m, n, k = next(places)
        alpha, beta = next(scalars)
        case = Case(
            m, n, k, LAYOUTS[layout], name, trans, next(orders), alpha, beta, next(outs), next(homes), first % 3
        )
        Run(ctx, case).multiply()


@pytest.mark.mpi
@pytest.mark.parametrize("where", ["shared", "message", "push"])
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if "replicated" not in name])
def test_empty_products(contexts: Contexts, layout: str, where: str) -> None:
    scalars = itertools.cycle([(1.0, 0.0), (1.0, 0.5), (0.0, 0.0)])
    for m, n, k in EMPTY:
        dims = (Dimension(m, 2), Dimension(n, 2, 1), Dimension(k))
        alpha, beta = next(scalars)
        Run(contexts[where], Case(*dims, LAYOUTS[layout], alpha=alpha, beta=beta, out="in place")).multiply()


@few
@pytest.mark.mpi
@pytest.mark.parametrize("layout", COMMUNICATING)
def test_same_bits_whatever_the_transport_and_overlap(contexts: Contexts, layout: str) -> None:
    """Pushed products have other bits: their algorithms cut the GEMM, and round the own partial product too."""
    far = contexts["shared"].nprocs - 1
    dims = [
        (Dimension(7), Dimension(8), Dimension(9)),
        (Dimension(8, 2, far), Dimension(9, 1, far), Dimension(7, 2, 1)),
        (Dimension(13, 3, 1, 1, 2), Dimension(17, 2, far, 3, 1), Dimension(9, 2, far, 5, 0)),
    ]
    last: list[Order] = ["F", "C", "C"]
    names = itertools.islice(itertools.cycle(["float64", "complex64", "bfloat16"]), list(LAYOUTS).index(layout), None)
    for (m, n, k), chunks, beta, order in zip(dims, (1, 3, 2), (0.0, 0.5, 1.0), last, strict=True):
        results, name = {}, next(names)
        for (where, ctx), (overlap, homes) in itertools.product(
            contexts.items(), [(True, "wwww"), (False, "wwww"), (True, "uuuu")]
        ):
            if where == "push":
                continue
            if ctx.runtime.backend.shared is False and homes == "uuuu":
                continue  # over messages all memory is the same
            if where == "link" and (chunks == 1 or not overlap):
                continue
            case = Case(
                *(m, n, k, LAYOUTS[layout], name, ("N", "C")),
                orders=("F", "C", "F", order),
                alpha=0.75,
                beta=beta,
                homes=homes,
                options=(("chunks", chunks), ("overlap", overlap)),
            )
            results[where, overlap, homes] = Run(ctx, case).multiply().local.tobytes()
        assert len(set(results.values())) == 1, {key: hash(value) for key, value in results.items()}


@few
@pytest.mark.mpi
@pytest.mark.parametrize("order", ["F", "C"])
@pytest.mark.parametrize("name", NAMES)
def test_all_reduce_leaves_the_same_bits_on_all_ranks(contexts: Contexts, name: str, order: Order) -> None:
    from mpi4py import MPI

    for (where, ctx), beta in itertools.product(contexts.items(), (0.0, 0.5)):
        chunks = {"shared": 1, "message": 5, "mixed": 2, "link": 3, "push": 2}[where]
        case = Case(
            *(Dimension(13), Dimension(11), Dimension(9, 1), LAYOUTS["AR"], name, ("N", "N")),
            ("F", "F", order, order),
            beta=beta,
            options=(("chunks", chunks),),
        )
        run = Run(ctx, case)
        bits = MPI.COMM_WORLD.allgather(run.multiply().local.tobytes())
        assert len(set(bits)) == 1


@few
@pytest.mark.mpi
@pytest.mark.parametrize("where", ["shared", "message", "mixed", "push"])
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_wire_dtype_bounds_the_roundings(contexts: Contexts, name: str, where: str) -> None:
    """Each partial product is rounded once, by half an eps, and so is the sum; with a wide wire only the sum is."""
    for layout, beta in itertools.product(("RS to rows", "AR", "AG(B) rows"), (0.0, 0.5)):
        dims = (Dimension(7), Dimension(8), Dimension(40, 3))
        for wire, limit in ((None, 1.0), ("float32", 0.5)):
            case = Case(*dims, LAYOUTS[layout], name, orders=("F", "C", "C", "C"), beta=beta)
            run = Run(contexts[where], dataclasses.replace(case, options=(("wire_dtype", wire), ("chunks", 2))))
            result = pblas.pmatmul(run.A.view, run.B.view, **run.arguments)
            # What adding 40 terms in 32 bits costs is far below the rest.
            run.check(result, limit=limit * (1 + 2**-6))


@few
@pytest.mark.mpi
@pytest.mark.parametrize("block", [70, 130])
def test_long_runs_are_multiplied_in_place(contexts: Contexts, block: int) -> None:
    """Cyclic blocks that are long enough are packed along K only, once for all pieces; the laws are the same."""
    for layout, where in itertools.product(
        ("AG(B) rows", "AG(B) columns", "RS to columns", "AR"), ("shared", "message", "push")
    ):
        dims = (Dimension(9, 2), Dimension(421, block, 1), Dimension(3 * block + 7, block))
        options = (("chunks", 3),) if where == "message" else ()
        Run(
            contexts[where], Case(*dims, LAYOUTS[layout], "complex64", ("C", "T"), beta=0.5, options=options)
        ).multiply()


@few
@pytest.mark.mpi
@pytest.mark.parametrize("view_a", ["A", "A.T", "A.H", "A.T.H"])
def test_views_are_operands(ctx: pblas.Context, view_a: str) -> None:
    """op of a transposed or conjugated view is the op of its values."""
    dtype = np.dtype(np.complex64)
    a, b = entries((8, 8), dtype, 1), entries((8, 8), dtype, 2)
    shown = {"A": a, "A.T": a.T, "A.H": a.conj().T, "A.T.H": a.conj()}
    A = ctx.from_global(a, MatrixDescriptor.row_wise(8, 8, ctx.nprocs), root=None)
    B = ctx.from_global(b, MatrixDescriptor.column_wise(8, 8, ctx.nprocs), root=None)
    view = {"A": A, "A.T": A.T, "A.H": A.H, "A.T.H": A.T.H}[view_a]
    for transa, transb in itertools.product(TRANS, repeat=2):
        for first, second, x, y in ((view, B, shown[view_a], b), (B, view, b, shown[view_a])):
            result = pblas.pmatmul(first, second, transa=transa, transb=transb).to_global(root=None)  # type: ignore[arg-type]
            assert result is not None
            assert gauge(result, applied(transa, x), applied(transb, y)) <= THRESHOLD
    kept = collected(A)
    assert np.array_equal(kept, a)


@pytest.mark.mpi
def test_output_layout_is_chosen(ctx: pblas.Context) -> None:
    """With out=None and no C the result has the layout of the planner's cheapest plan."""
    a, b = entries((9, 7), np.dtype(np.float64), 1), entries((7, 8), np.dtype(np.float64), 2)
    for kind_a, kind_b, order in itertools.product(("rows", "columns"), ("rows", "columns"), ("F", "C")):
        desc_a, _ = descriptor(kind_a, Dimension(9), Dimension(7, 2), order, ctx.nprocs)  # type: ignore[arg-type]
        desc_b, _ = descriptor(kind_b, Dimension(7, 2), Dimension(8), order, ctx.nprocs)  # type: ignore[arg-type]
        A, B = ctx.from_global(a, desc_a, root=None), ctx.from_global(b, desc_b, root=None)
        D = A @ B
        assert D.desc == pblas.plan_matmul(desc_a, desc_b, dtype="float64").out
        assert D.desc.order == order
        result = collected(D)
        assert gauge(result, a, b) <= THRESHOLD


@pytest.mark.mpi
@pytest.mark.parametrize("where", ["shared", "message", "push"])
def test_one_process_has_one_copy(contexts: Contexts, where: str) -> None:
    """On a grid of one process, rsrc = csrc = -1 means the same as 0: the other ranks have no part of the matrix."""
    ctx = contexts[where]
    a, b = entries((9, 7), np.dtype(np.float64), 1), entries((7, 8), np.dtype(np.float64), 2)
    alone = MatrixDescriptor.replicated
    for kind, order in itertools.product(("rows", "columns", "all"), ("F", "C")):
        desc_a, _ = descriptor(kind, Dimension(9), Dimension(7, 2), order, ctx.nprocs)  # type: ignore[arg-type]
        desc_b, _ = descriptor(kind, Dimension(7, 2), Dimension(8), order, ctx.nprocs)  # type: ignore[arg-type]
        for first, second, out in (
            (alone(9, 7, 1), desc_b, None),
            (desc_a, alone(7, 8, 1), None),
            (desc_a, desc_b, alone(9, 8, 1)),
            (alone(9, 7, 1), alone(7, 8, 1), alone(9, 8, 1)),
        ):
            A, B = ctx.from_global(a, first, root=None), ctx.from_global(b, second, root=None)
            D = pblas.pmatmul(A, B, out=out)
            result = collected(D)
            assert gauge(result, a, b) <= THRESHOLD
            owned = [MatrixDescriptor(d.m, d.n, d.mb, d.nb, d.grid) if d.nprocs == 1 else d for d in (first, second)]
            desc = dataclasses.replace(D.desc, rsrc=0, csrc=0) if D.desc.nprocs == 1 else D.desc
            plans = [
                pblas.plan_matmul(*descs, out=d, dtype="float64", nprocs=ctx.nprocs).plan
                for descs, d in (((first, second), D.desc), (owned, desc))
            ]
            assert plans[0].max_received_nbytes == plans[1].max_received_nbytes


@one_host
@pytest.mark.mpi
@pytest.mark.parametrize("layout", ["AG(B) columns", "RS to rows", "AR", "Local rows"])
@pytest.mark.parametrize("homes", ["wwww", "uuuu"])
def test_ranks_agree_at_the_end_where_their_memory_was_read(ctx: pblas.Context, layout: str, homes: str) -> None:
    """Peers read gathered operands, and sums in D; partial products have arrived when a call returns."""
    run = Run(ctx, Case(Dimension(7), Dimension(8), Dimension(9), LAYOUTS[layout], homes=homes))
    planned = pblas.plan_matmul(run.A.view, run.B.view, **run.arguments)
    reads = layout == "AG(B) columns" or (layout == "AR" and homes == "wwww")
    for _ in range(2):  # the first takes memory
        before = ctx.runtime.backend.agreement.ncalls
        result = planned.execute(run.A.view, run.B.view, out=run.arguments["out"])
        agreements = ctx.runtime.backend.agreement.ncalls - before
        run.check(result)
    assert agreements == 1 + (reads and ctx.nprocs > 1)


@pytest.mark.mpi
@pytest.mark.parametrize("where", SETTINGS)
def test_executions_of_two_plans_alternate(contexts: Contexts, where: str) -> None:
    """Ranks may be early or late: every execution multiplies the data that the matrices have when it is called."""
    ctx = contexts[where]
    delays = random.Random(ctx.rank)
    runs = []
    for layout, chunks in (("AG(B) columns", 2), ("RS to rows", 1), ("AR", 3)):
        case = Case(
            *(Dimension(7), Dimension(9, 2), Dimension(8), LAYOUTS[layout], "float32", ("T", "N")),
            beta=0.5,
            out="in place",
            options=(("chunks", chunks),),
        )
        run = Run(ctx, case)
        planned = pblas.plan_matmul(run.A.view, run.B.view, **run.arguments)
        runs.append((run, planned))
    bits: dict[tuple[int, int], bytes] = {}
    for turn in range(6):
        for i, (run, planned) in enumerate(runs):
            seed = 1000 + turn % 3  # the data of turns 0..2 come again
            run.a, run.b, run.c = (
                entries(x.shape, run.dtype, seed + 10 * j) for j, x in enumerate((run.a, run.b, run.c))
            )
            run.reset()
            time.sleep(delays.choice([0.0, 0.0, 0.001, 0.003]))
            result = planned.execute(run.A.view, run.B.view, run.C.view, out=run.C.view)
            # A rank that returns early may overwrite its inputs while others still multiply.
            kept = run.A.memory.copy(), run.B.memory.copy()
            run.A.memory[...] = np.nan
            run.B.memory[...] = np.nan
            run.check_after(result, kept)
            assert bits.setdefault((i, turn % 3), result.local.tobytes()) == result.local.tobytes()
    for _, planned in runs:
        planned.close()


EXAMPLES: dict[str, Any] = {
    "AllGatherGemm": ((2, 8, 2, 2, "row"), (2, 4, 2, 1, "row"), (8, 4, 2, 1, "column")),
    "GemmReduceScatter": ((8, 2, 2, 2, "column"), (8, 4, 2, 1, "column"), (2, 4, 2, 1, "row")),
    "GemmAllReduce": ((8, 2, 2, 2, "column"), (8, 4, 2, 4, "column"), (2, 4, 2, 4, "all")),
}


@pytest.mark.mpi
@pytest.mark.ranks(4, reason="the examples are for 4 ranks")
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_cublasmp(ctx: pblas.Context, name: str) -> None:
    """The three tensor-parallel examples of cuBLASMp on 4 ranks: D = A^T B in place, with virtual blocks."""

    def described(m: int, n: int, mb: int, nb: int, grid: str) -> MatrixDescriptor:
        if grid == "all":
            return MatrixDescriptor.replicated(m, n, 4)
        return MatrixDescriptor(m, n, mb, nb, pblas.Grid(1, 4, "R") if grid == "row" else pblas.Grid(4, 1, "C"))

    desc_a, desc_b, desc_d = (described(*row) for row in EXAMPLES[name])
    dtype = np.dtype(np.float32)
    a, b, c = entries(desc_a.shape, dtype, 1), entries(desc_b.shape, dtype, 2), entries(desc_d.shape, dtype, 3)
    A, B, D = (ctx.from_global(x, desc, root=None) for x, desc in ((a, desc_a), (b, desc_b), (c, desc_d)))
    with pblas.plan_matmul(A, B, D, transa="T", beta=1.0, out=D) as planned:
        assert planned.plan.name == name
        assert planned.execute(A, B, D, out=D) is D
    result = collected(D)
    assert gauge(result, a.T, b, c, beta=1.0) <= THRESHOLD


@few
@pytest.mark.mpi
@pytest.mark.parametrize("where", ["shared", "message"])
@pytest.mark.parametrize("layout", ["AG(B) rows", "AG(A) columns", "RS to rows", "AR", "Local, all replicated"])
def test_c_order_costs_as_much_as_f_order(contexts: Contexts, layout: str, where: str) -> None:
    """The same bytes move and are allocated, and temporaries are smaller than an operand's part.

    With messages, pieces of a shard that have gaps are packed: together they are as large as the part.
    """
    ctx, n = contexts[where], 512  # a part is well above the buffers that NumPy's loops take, 64 KiB an operand
    dims = (Dimension(n), Dimension(n), Dimension(n))
    costs = {}
    all_orders: list[tuple[Order, Order, Order]] = [("F", "F", "F"), ("C", "C", "C"), ("F", "C", "C"), ("C", "F", "F")]
    for order_a, order_b, order_d in all_orders:
        case = Case(*dims, LAYOUTS[layout], orders=(order_a, order_b, order_d, order_d), options=(("chunks", 2),))
        run = Run(ctx, case)
        backend = ctx.runtime.backend
        with pblas.plan_matmul(run.A.view, run.B.view, **run.arguments) as planned:
            planned.execute(run.A.view, run.B.view, out=run.D.view)  # types and flags are made once
            received, live = backend.channel.received_nbytes, backend.arena.live_nbytes
            tracemalloc.start()
            planned.execute(run.A.view, run.B.view, out=run.D.view)
            private = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert not np.isnan(run.D.view.local).any()
            assert backend.arena.live_nbytes == live
            smallest = min(x.view.local.nbytes for x in (run.A, run.B, run.D))
            assert private < smallest + (where == "message" and layout.startswith("AG")) * 2**16
            costs[order_a, order_b, order_d] = (
                backend.channel.received_nbytes - received,
                planned.workspace_nbytes,
                planned.plan.max_received_nbytes,
            )
    assert len(set(costs.values())) == 1, costs


@st.composite
def dimensions(draw: st.DrawFn) -> Dimension:
    return Dimension(
        draw(st.sampled_from([1, 2, 3, 7, 8, 9, 13, 0])),
        draw(st.sampled_from([None, 1, 2, 3, 20])),
        draw(st.integers(0, 5)),
        draw(st.sampled_from([0, 0, 1, 4])),
        draw(st.sampled_from([0, 0, 1, 3])),
    )


KINDS = st.sampled_from(["rows", "columns", "all"])
LAWFUL = st.sampled_from(list(LAYOUTS.values()))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(NAMES))
    scalars: Any = st.sampled_from([0.0, 1.0, -1.0, 0.75] + ([0.5 - 2j, 1j] if dtype_of(name).kind == "c" else []))
    order: Any = st.sampled_from(["F", "C"])
    return Case(
        draw(dimensions()),
        draw(dimensions()),
        draw(dimensions()),
        draw(LAWFUL | st.tuples(KINDS, KINDS, KINDS)),
        name,
        (draw(st.sampled_from(TRANS)), draw(st.sampled_from(TRANS))),
        (draw(order), draw(order), draw(order), draw(order)),
        draw(scalars),
        draw(scalars),
        draw(st.sampled_from(["none", "descriptor", "matrix", "in place"])),
        "".join(draw(st.sampled_from("wu")) for _ in range(4)),
        draw(st.sampled_from([0, 0, 2])),
        (("chunks", draw(st.sampled_from([None, 1, 2, 5]))), ("overlap", draw(st.booleans()))),
        draw(st.integers(1, 100)),
    )


@pytest.mark.mpi
@settings(max_examples=100)
@given(case=cases(), where=st.sampled_from(list(SETTINGS)))
def test_random_cases(contexts: Contexts, case: Case, where: str) -> None:
    """Every drawn case is multiplied, or refused on every rank with nothing touched."""
    run = Run(contexts[where], case)
    delays = random.Random(case.seed + contexts[where].rank)
    time.sleep(delays.choice([0.0, 0.0, 0.002]))
    try:
        result = pblas.pmatmul(run.A.view, run.B.view, **run.arguments)
    except pblas.PlanError:
        for matrix in (run.A, run.B, run.C, run.D):
            matrix.check_untouched()
        assert case.layout not in LAYOUTS.values()
        return
    if case.out == "none":
        assert result.desc == run.C.view.desc
        run.D = run.C
    run.check(result)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("layout", "step"), [("AG(B) rows", "allgather_gemm"), ("RS to rows", "gemm_reduce")])
def test_an_execution_that_ends_half_way_breaks_the_context(layout: str, step: str) -> None:
    with pblas.Context(timeout=5, transport="message") as context:
        even = Dimension(2 * context.nprocs)  # every rank multiplies
        run = Run(context, Case(even, even, even, LAYOUTS[layout]))
        check_broken_half_way(run.multiply, f"pblas.matmul.{step}_run.gemm_runs")


@pytest.mark.mpi
def test_c_is_added_unless_beta_says_otherwise(ctx: pblas.Context) -> None:
    desc = MatrixDescriptor.row_wise(8, 8, ctx.nprocs)
    x, y = (entries((8, 8), np.dtype("float64"), seed) for seed in (1, 2))
    A, C = (ctx.from_global(z, desc, None) for z in (x, y))
    for options, beta in (({}, 1.0), ({"beta": None}, 1.0), ({"beta": 0}, 0.0), ({"beta": 0.5}, 0.5)):
        expected = {"alpha": 1.0, "beta": beta}
        assert gauge(collected(pblas.pmatmul(A, A, C, **options)), x, x, y, **expected) <= THRESHOLD
        with pblas.plan_matmul(A, A, C, **options) as planned:
            assert gauge(collected(planned.execute(A, A, C)), x, x, y, **expected) <= THRESHOLD
    assert gauge(collected(pblas.pmatmul(A, A)), x, x) <= THRESHOLD
    name = "AllGatherGemm" if ctx.nprocs > 1 else "LocalGemm"
    assert pblas.plan_matmul(desc, desc, desc, dtype="float64").plan.name == name
    assert pblas.plan_matmul(64, 64, 64, nprocs=2).plan is not None


@pytest.mark.parametrize("transport", ["shared", "message", "mixed"])
def test_successive_calls_use_one_plan(contexts: Contexts, transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls with the same layouts and scalars, whatever the matrices; a plan with a large workspace is not kept."""
    ctx, built, build = contexts[transport], list[str](), Planned.prepare

    def counted(self: Any, runtime: Any) -> None:
        built.append(self.noun)
        build(self, runtime)

    monkeypatch.setattr(Planned, "prepare", counted)
    n, p = 8, ctx.nprocs
    desc = MatrixDescriptor(n, n, 3, 2, Grid(p, 1))
    for most, count in ((1 << 20, 1), (-1, 4)):
        monkeypatch.setattr("pblas.core.call.MOST_NBYTES", most)
        for routine, alpha in (("product", 3.0 + count), ("rank-k update", 5.0 + count)):
            ctx.runtime.close_plans()
            built.clear()
            for seed in range(4):
                x, y = (entries((n, n), np.dtype("float64"), seed + k) for k in range(2))
                wide = dataclasses.replace(desc, lld=desc.min_lld(ctx.rank) + seed)
                A, B = (ctx.from_global(z, d, root=None) for z, d in ((x, desc), (y, wide)))
                if routine == "product":
                    got, expected = pblas.pmatmul(A, B, alpha=alpha), alpha * x @ y
                else:
                    got, expected = pblas.blas.syrk(A, alpha=alpha), np.tril(alpha * x @ x.T)
                assert np.allclose(collected(got), expected)
            assert built == [routine] * count


@pytest.mark.mpi
@pytest.mark.parametrize("which", ["a", "b", "c", "out"])
def test_an_execution_refuses_another_storage_order(ctx: pblas.Context, which: str) -> None:
    desc = MatrixDescriptor.row_wise(7, 7, ctx.nprocs)
    x: Any = {name: ctx.random(desc, seed=seed) for seed, name in enumerate(("a", "b", "c", "out"))}
    other = x | {which: ctx.random(dataclasses.replace(desc, order="C"))}
    with pblas.plan_matmul(**x) as planned:
        raises_on_all_ranks(pblas.DescriptorError, "planned was", lambda: planned.execute(**other))
        planned.execute(**x)

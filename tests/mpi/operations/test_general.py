"""Laws of pmatmul on any three layouts: 2D grids, idle ranks, submatrices, copies, on every transport."""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pblas
from pblas import Grid, MatrixDescriptor
from pblas.backends.cpu.arrays import HostArrays
from pblas.backends.device import Programs
from pblas.backends.traced import Kind
from pblas.backends.transport import Channel, Transfer
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from pblas.matmul import arguments
from pblas.matmul import summa_run as stationary_c
from pblas.matmul.choose import general_product
from pblas.matmul.choose_granularity import PlanningContext
from pblas.matmul.choose_grid import natural_plan, on_grids
from pblas.matmul.product_plan import ProductPlan
from pblas.matmul.summa_plan import Summa, SummaC
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.packing import BlockCopy
from tests.common.choices import Layouts, choosing
from tests.common.gauge import NAMES, THRESHOLD, Array, applied, dtype_of, entries, gauge
from tests.common.ranks import (
    Contexts,
    check_broken_half_way,
    check_product,
    collected,
    few,
    one_host,
    raises_on_all_ranks,
    same_on_all_ranks,
)

POISON = -99
SETTINGS = ("shared", "message", "mixed")


@dataclass(frozen=True)
class Layout:
    """The layout of one matrix, and the memory around its multiplied submatrix."""

    grid: tuple[int, int] = (1, 1)  # made smaller where there are fewer ranks
    rank_order: Literal["C", "R"] = "C"
    blocks: tuple[int, int] = (2, 2)
    sources: tuple[int, int] = (0, 0)  # -1: copies
    order: Literal["F", "C"] = "F"
    around: tuple[int, int, int, int] = (0, 0, 0, 0)  # rows before, rows after, columns before, columns after
    home: Literal["w", "u"] = "w"  # in the context's memory, or the user's own


@dataclass(frozen=True)
class Case:
    """One product D = alpha op(A) op(B) + beta C."""

    sizes: tuple[int, int, int]
    a: Layout
    b: Layout
    d: Layout
    c: Layout | None = None  # None: D itself holds C
    dtype: str = "float64"
    trans: tuple[str, str] = ("N", "N")
    alpha: complex = 1.0
    beta: complex = 0.0
    chunks: int | None = None
    overlap: bool = True
    seed: int = 1


class Placed:
    """A matrix of a case inside a larger one that is poisoned."""

    def __init__(self, ctx: pblas.Context, x: Array, layout: Layout) -> None:
        (m, n), (top, bottom, left, right) = x.shape, layout.around
        p = min(layout.grid[0], ctx.nprocs)
        q = min(layout.grid[1], ctx.nprocs // p)
        rsrc, csrc = (min(src, extent - 1) for src, extent in zip(layout.sources, (p, q), strict=True))
        grid = Grid(p, q, layout.rank_order)
        desc = MatrixDescriptor(
            top + m + bottom, left + n + right, *layout.blocks, grid, rsrc, csrc, order=layout.order
        )
        whole = np.full(desc.shape, POISON, x.dtype)
        whole[top : top + m, left : left + n] = x
        self.whole = ctx.from_global(whole, desc, root=None)
        if layout.home == "u":
            self.whole = ctx.from_local(own(self.whole.local, layout.order), desc)
        self.view = self.whole[top : top + m, left : left + n]
        self._inside = slice(top, top + m), slice(left, left + n)
        self._before = bits(self.whole)

    def values(self) -> Array:
        """**Collective.** The part that is multiplied, after checking that nothing around it has changed."""
        result = collected(self.whole)
        inside: Array = result[self._inside].copy()
        result[self._inside] = POISON
        assert (result == POISON).all()
        return inside

    def check_untouched(self) -> None:
        assert bits(self.whole) == self._before


def own(x: Array, order: Literal["F", "C"]) -> Array:
    """A copy in memory outside the context; CuPy copies few kinds of bfloat16 arrays."""
    words = x.view(np.uint16) if x.dtype.itemsize == 2 else x
    return words.copy(order=order).view(x.dtype)


def bits(x: DistMatrix) -> bytes:
    """This rank's part."""
    return x.runtime.backend.reading(x.local).tobytes()


class Run:
    """A case on a context."""

    def __init__(self, ctx: pblas.Context, case: Case) -> None:
        self.ctx, self.case = ctx, case
        (m, n, k), dtype = case.sizes, dtype_of(case.dtype)
        self.a, self.b = entries((m, k), dtype, 3 * case.seed), entries((k, n), dtype, 3 * case.seed + 1)
        self.c = entries((m, n), dtype, 3 * case.seed + 2)
        a, b = (x * np.nan if case.alpha == 0 else x for x in (self.a, self.b))
        nan = np.full((m, n), np.nan, dtype)
        self.A = Placed(ctx, applied(case.trans[0], a).astype(dtype), case.a)
        self.B = Placed(ctx, applied(case.trans[1], b).astype(dtype), case.b)
        self.D = Placed(ctx, self.c if case.beta != 0 and case.c is None else nan, case.d)
        self.C = self.D if case.c is None else Placed(ctx, self.c if case.beta != 0 else nan, case.c)

    def plan(self) -> pblas.PlannedMatmul:
        case = self.case
        return pblas.plan_matmul(
            self.A.view,
            self.B.view,
            self.C.view,
            transa=case.trans[0],  # type: ignore[arg-type]
            transb=case.trans[1],  # type: ignore[arg-type]
            alpha=case.alpha,
            beta=case.beta,
            out=self.D.view,
            chunks=case.chunks,
            overlap=case.overlap,
        )

    def multiply(self) -> bytes:
        """Plan, execute and check every law that holds for all cases; the bits of this rank's part."""
        backend, case = self.ctx.runtime.backend, self.case
        with self.plan() as planned:
            before = backend.channel.received_nbytes + backend.read_nbytes
            planned.execute(self.A.view, self.B.view, self.C.view, out=self.D.view)
            received = backend.channel.received_nbytes + backend.read_nbytes - before
            multiplies = case.alpha != 0 and case.sizes[2] > 0
            assert received == (planned.plan.received_nbytes(self.ctx.rank) if multiplies else 0), planned.plan
            assert planned.workspace_nbytes <= planned.plan.workspace_nbytes, planned.plan
            assert planned.plan.max_received_nbytes == max(
                planned.plan.received_nbytes(rank) for rank in range(self.ctx.nprocs)
            )
        self.A.check_untouched()
        self.B.check_untouched()
        if self.C is not self.D:
            self.C.check_untouched()
        result = bits(self.D.whole)
        error = gauge(self.D.values(), self.a, self.b, self.c, alpha=case.alpha, beta=case.beta)
        assert error <= THRESHOLD, f"{error} in the gauge: {case}\n{planned.plan}"
        return result


SIZES = st.sampled_from([1, 2, 3, 5, 7, 8, 9, 13, 24, 0])
BLOCKS = st.sampled_from([1, 2, 3, 5, 40])
AROUND = st.sampled_from([0, 0, 0, 1, 3])
LAYOUTS = st.builds(
    Layout,
    grid=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    rank_order=st.sampled_from(["C", "R"]),
    blocks=st.tuples(BLOCKS, BLOCKS),
    sources=st.tuples(st.integers(-1, 5), st.integers(-1, 5)),
    order=st.sampled_from(["F", "C"]),
    around=st.tuples(AROUND, AROUND, AROUND, AROUND),
    home=st.sampled_from(["w", "w", "u"]),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(NAMES))
    scalars: Any = st.sampled_from([1.0, 0.0, -1.0, 0.75] + ([0.5 - 2j, 1j] if dtype_of(name).kind == "c" else []))
    d = draw(LAYOUTS)
    c = None if draw(st.booleans()) else replace(d, home=draw(st.sampled_from(["w", "u"])))
    return Case(
        (draw(SIZES), draw(SIZES), draw(SIZES)),
        draw(LAYOUTS),
        draw(LAYOUTS),
        d,
        c,
        name,
        (draw(st.sampled_from("NTC")), draw(st.sampled_from("NTC"))),
        draw(scalars),
        draw(scalars),
        draw(st.sampled_from([None, None, 1, 2, 5])),
        draw(st.booleans()),
        draw(st.integers(1, 100)),
    )


@pytest.mark.mpi
@settings(max_examples=50)
@given(case=cases(), where=st.sampled_from(list(SETTINGS)))
def test_any_three_layouts(contexts: Contexts, case: Case, where: str) -> None:
    """Results are within the PBLAS test threshold, nothing else is touched, and the plan's number of bytes arrives."""
    Run(contexts[where], case).multiply()


# Plans of every kind for a few layouts: D stays, A stays, B stays, all ranks arranged, partial products sent on.
KINDS = {
    "grid": Case((24, 24, 24), Layout((2, 2)), Layout((2, 2)), Layout((2, 2))),
    "long k": Case(
        (5, 7, 60), Layout((2, 2), blocks=(2, 3)), Layout((2, 2), blocks=(3, 1)), Layout((2, 2), blocks=(2, 1))
    ),
    "tall": Case(
        (60, 5, 7), Layout((2, 2), blocks=(3, 2)), Layout((2, 2), blocks=(1, 2)), Layout((2, 2), blocks=(2, 2))
    ),
    "wide": Case((5, 60, 7), Layout((2, 2)), Layout((2, 2), blocks=(1, 5)), Layout((2, 2))),
    "D copied": Case((9, 8, 60), Layout((2, 2)), Layout((2, 2)), Layout((2, 2), sources=(-1, -1))),
    "D on one rank": Case((24, 25, 26), Layout((2, 2)), Layout((2, 2), blocks=(3, 3)), Layout()),
    "A copied": Case((24, 25, 26), Layout((2, 2), sources=(-1, 0)), Layout((2, 2), blocks=(3, 3)), Layout((2, 2))),
    "K over 3": Case((9, 9, 9), Layout((1, 3)), Layout((3, 2), "R"), Layout((1, 2))),
    "cyclic 1": Case(
        (9, 13, 24), Layout((2, 2), blocks=(1, 1)), Layout((2, 2), "R", blocks=(1, 1)), Layout((1, 4), blocks=(1, 1))
    ),
}


class LaterCopy(BlockCopy):
    """Copies of a part of a message that are operations of a lane."""

    def __init__(self, lanes: Lanes, *part: Any) -> None:
        super().__init__(*part)
        self._lanes = lanes

    def copy(self, *operands: Any) -> None:
        self._lanes.later(partial(super().copy, *operands))


class LaneTransfer:
    """A message; if it is not there yet, `done` lets the next one of this rank leave."""

    def __init__(self, channel: LaneChannel, started: Transfer | None = None, landing: Any = None) -> None:
        self._channel, self.started, self._landing = channel, started, landing

    def done(self) -> bool:
        if self.started is None or not self.started.done():
            self._channel.progress()
            return False
        if self._landing is not None:
            self._channel.land(*self._landing)
            self._landing = None
        return True


class LaneChannel:
    """A channel whose messages leave after the operations of their lane so far, as those of a `DeviceChannel`.

    What has arrived is copied on the side lane.
    """

    def __init__(self, hosts: Channel, lanes: Lanes) -> None:
        self._hosts, self._lanes = hosts, lanes
        self.received_nbytes = 0
        self._waiting: deque[tuple[list[bool], LaneTransfer, Any]] = deque()

    def send(self, x: Array, dest: int, tag: int) -> LaneTransfer:
        staged = np.empty_like(x)
        self._lanes.assign(x, staged)
        return self._later(lambda: self._hosts.send(staged, dest, tag))

    def receive(self, x: Array, source: int, tag: int) -> LaneTransfer:
        staged = np.empty_like(x)
        return LaneTransfer(self, self._hosts.receive(staged, source, tag), (staged, x))

    def land(self, staged: Array, x: Array) -> None:
        with self._lanes.on_side_lane():
            self._lanes.assign(staged, x)

    def signal(self, dest: int, tag: int) -> LaneTransfer:
        return self._later(lambda: self._hosts.signal(dest, tag))

    def await_signal(self, source: int, tag: int) -> LaneTransfer:
        return LaneTransfer(self, self._hosts.await_signal(source, tag))

    def progress(self) -> None:
        if self._waiting:
            reached, transfer, post = self._waiting.popleft()
            self._lanes.reach(reached)
            transfer.started = post()

    def _later(self, post: Any) -> LaneTransfer:
        transfer = LaneTransfer(self)
        self._waiting.append((self._lanes.mark(), transfer, post))
        return transfer

    def close(self) -> None:
        """The backend closes the hosts' channel."""


class Lanes(HostArrays):
    """Arrays whose operations run as late as a signal or the end of the execution allows, in any order of the lanes.

    As on a GPU, all that an executor does with elements are operations of the lane that it has selected: the methods of
    the device, the copies of its `block_copy`, and the departure of signals.
    """

    traits = replace(HostArrays.traits, blocking=False, reads_peers=False)

    def __init__(self, prefer: str, rng: random.Random) -> None:
        self._lanes: dict[str, list[Any]] = {"main": [], "side": []}
        self._lane, self._prefer, self._rng = "main", prefer, rng
        self.replays = 0

    @property
    def block_copy(self) -> Any:  # type: ignore[override]
        return partial(LaterCopy, self)

    def later(self, work: Any) -> None:
        """Append work to the selected lane: a function, or a mark, which the lane waits for."""
        self._lanes[self._lane].append(work)

    def pick(self, x: Array, rows: Array, columns: Array) -> Array:
        z = np.empty((len(rows), len(columns)), x.dtype, "F")
        self.later(lambda: z.__setitem__(..., HostArrays.pick(self, x, rows, columns)))
        return z

    def to_host(self, x: Array) -> Array:
        self.reach(self.mark())
        return x.copy(order="K")

    def from_host(self, x: Array, z: Array) -> None:
        self.assign(x.copy(), z)

    def reach(self, mark: list[bool]) -> None:
        """Run operations until the one before a mark."""
        while not mark[0]:
            self.step()

    @contextmanager
    def on_side_lane(self, what: str = "", kind: Kind = "copy") -> Iterator[None]:
        before, self._lane = self._lane, "side"
        yield
        self._lane = before

    def mark(self) -> list[bool]:
        reached = [False]
        self.later(lambda: reached.__setitem__(0, True))
        return reached

    def follow(self, mark: Any) -> None:
        if mark is not None:
            self.later(mark)

    def synchronize(self) -> None:
        while any(self._lanes.values()):
            self.step()

    def step(self) -> None:
        """Run an operation of a lane that does not wait for the other."""
        heads = {name: lane[0] for name, lane in self._lanes.items() if lane}
        ready = [name for name, head in heads.items() if head != [False]]
        assert ready, "each lane waits for the other"
        name = self._prefer if self._prefer in ready else self._rng.choice(ready)
        head = self._lanes[name].pop(0)
        if callable(head):
            head()

    def replayed(self, programs: Programs, key: Callable[[], Any], body: Callable[[], None]) -> bool:
        known = key()
        if known not in programs:
            programs.keep(known, None)
            body()
            return True
        is_new = programs[known] is None
        if is_new:
            before, self._lanes = self._lanes, {"main": [], "side": []}
            body()
            programs[known], self._lanes = self._lanes, before
        for name, lane in programs[known].items():
            for work in lane:
                if isinstance(work, list):  # a mark
                    work[0] = False
            self._lanes[name] += lane
        self.replays += not is_new
        return is_new


def _deferred(name: str) -> Any:
    def method(self: Lanes, *operands: Any, **options: Any) -> None:
        self.later(partial(getattr(HostArrays, name), self, *operands, **options))

    return method


for _name in (
    *("assign", "scale", "add_scaled", "place", "gemm", "subtract_square", "trsm", "solve_factored", "lower"),
    *("unit_lower", "cholesky", "lu", "qr", "multiply_q", "swap_rows"),
):
    setattr(Lanes, _name, _deferred(_name))


def force(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let the planner choose a general plan in which one matrix stays, or in which two layers form partial products."""

    def pick(dtype: str, layouts: Layouts, context: PlanningContext) -> ProductPlan:
        product = general_product(dtype, *layouts, context.nprocs, context.others)
        layers = natural_plan(product, (2, 1, 2))
        sums = Placement(Split(product.m, 3, 2), Split(product.n, 3, 2), (2, 1, 1))  # not that of D
        plans = {plan.name: plan for plan in on_grids(product)}
        plans |= {"layers": layers, "sums elsewhere": replace(layers, sum_placement=sums)}
        return plans[name]

    monkeypatch.setattr(arguments, "choose", choosing(pick))


@one_host
@pytest.mark.mpi
@pytest.mark.ranks(4, reason="a grid of 2 x 2")
@pytest.mark.parametrize("prefer", ["main", "side", "neither"])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("name", ["SummaA", "SummaB", "SummaC", "layers", "sums elsewhere"])
def test_lanes_wait_only_for_their_dependencies(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: str, prefer: str
) -> None:
    """No panel is multiplied before it has come, or overwritten before it has been multiplied; nor are partial products
    added before they are formed, or overwritten before they are added."""
    monkeypatch.setattr(stationary_c, "_COLUMNS", 2)
    force(monkeypatch, name)
    with pblas.Context(transport="shared") as ctx:
        backend = ctx.runtime.backend
        backend.arrays = lanes = Lanes(prefer, random.Random(ctx.rank))
        backend.channel = LaneChannel(backend.channel, lanes)
        layout = Layout((2, 2), blocks=(3, 3))
        for width, beta in itertools.product((2, 3, 16), (0.0, 0.5)):
            case = Case((24, 40, 36), layout, layout, layout, dtype=dtype, beta=beta, chunks=-(-36 // width))
            Run(ctx, case).multiply()


@one_host
@pytest.mark.mpi
@pytest.mark.ranks(4, reason="a grid of 2 x 2")
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_replay_equals_a_fresh_execution(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """With new values, in other memory, and after another rank has changed its memory."""
    force(monkeypatch, "SummaC")
    rng = np.random.default_rng(0)
    with pblas.Context(transport="shared") as ctx:
        lanes = Lanes("neither", random.Random(ctx.rank))
        ctx.runtime.backend.arrays = lanes
        desc = MatrixDescriptor(12, 12, 3, 3, Grid(2, 2))
        a, b, d = ([ctx.empty(desc, dtype) for _ in range(2)] for _ in range(3))
        before = 0
        with pblas.plan_matmul(a[0], b[0], out=d[0]) as plan:
            same, elsewhere, changes = (0, 0, 0), (0, 1, 0), ((1, 0, 0), (0, 0, 0), (0, 0, 1), (0, 0, 0))
            for own, others, into in (*4 * [same], *3 * [elsewhere], *changes):
                for matrix in (*a, *b):
                    matrix.local[...] = rng.integers(-2, 3, matrix.local.shape)  # ranks may have the same
                x, y, out = a[own if ctx.rank == 0 else others], b[0], d[into]
                out.local[...] = np.nan
                read = ctx.runtime.backend.read_nbytes
                plan.execute(x, y, out=out)
                read = ctx.runtime.backend.read_nbytes - read
                assert read == (before or read)
                before = read
                left, right, result = (np.asarray(w.to_global(None), float) for w in (x, y, out))
                assert np.array_equal(result, left @ right)
        assert lanes.replays >= 4
        del matrix, x, y, out
        for matrices in (a, b, d):
            matrices.clear()


@pytest.mark.mpi
@pytest.mark.openmpi
@pytest.mark.parametrize("kind", KINDS)
@few
def test_same_bits_whatever_the_transport_and_overlap(contexts: Contexts, kind: str) -> None:
    rng = random.Random(kind)
    for name in rng.sample(["float64", "complex64", "bfloat16"], 2):
        beta = rng.choice([0.0, 0.5])
        case = replace(KINDS[kind], dtype=name, trans=("N", "C"), beta=beta, alpha=0.75, chunks=rng.choice([1, 2, 3]))
        results = {}
        for where, ctx in contexts.items():
            for overlap in (True, False):
                for home in "wu":
                    layouts = {x: replace(getattr(case, x), home=home) for x in "abd"}
                    results[where, overlap, home] = Run(ctx, replace(case, overlap=overlap, **layouts)).multiply()
        assert len(set(results.values())) == 1, {key: hash(value) for key, value in results.items()}


@few
@pytest.mark.mpi
@pytest.mark.parametrize("where", SETTINGS)
def test_panels_of_real_width(contexts: Contexts, where: str) -> None:
    """Panels as the planner cuts them: several in a row, in place and packed, with messages between GEMMs."""
    for grid, blocks in (((2, 2), (64, 64)), ((2, 2), (1, 1)), ((2, 3), (100, 130)), ((1, 3), (7, 300))):
        a, b, d = (Layout(grid, blocks=x) for x in (blocks, blocks[::-1], blocks))
        for sizes in ((70, 60, 1100), (60, 1100, 90)):
            Run(contexts[where], Case(sizes, a, b, d, trans=("N", "T"), dtype="float32")).multiply()


@pytest.mark.mpi
@pytest.mark.parametrize("where", SETTINGS)
def test_a_plan_is_executed_again_and_again(contexts: Contexts, where: str) -> None:
    """Data may change between executions, ranks may be early or late, and two plans may alternate."""
    ctx = contexts[where]
    rng = random.Random(ctx.rank)
    runs = [Run(ctx, replace(KINDS[kind], beta=0.5, chunks=3)) for kind in ("long k", "wide", "D copied")]
    plans = [run.plan() for run in runs]
    for turn in range(4):
        for run, planned in zip(runs, plans, strict=True):
            scale = 1.0 + turn
            a, c = run.A.view.local * 2.0 if turn else run.A.view.local, run.c * scale
            run.A.view.local[...] = a
            run.D.view.local[...] = ctx.from_global(c, run.D.view.desc, root=None).local
            if rng.random() < 0.3:
                time.sleep(0.002)
            planned.execute(run.A.view, run.B.view, run.D.view, out=run.D.view)
            assert gauge(run.D.values(), run.a * 2.0**turn, run.b, c, beta=0.5) <= THRESHOLD
    for planned in plans:
        planned.close()


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_partial_products_are_rounded_once(contexts: Contexts, name: str) -> None:
    """Each layer's partial product is rounded by half an eps, and so is the sum; with a wide wire only the sum is."""
    ctx = contexts["shared"]
    run = Run(ctx, replace(KINDS["long k"], dtype=name))
    for wire, limit in ((None, 1.0), ("float32", 0.5)):
        pblas.pmatmul(run.A.view, run.B.view, out=run.D.view, wire_dtype=wire)
        assert gauge(run.D.values(), run.a, run.b) <= limit * (1 + 2**-6)


@pytest.mark.mpi
@pytest.mark.parametrize("where", SETTINGS)
@pytest.mark.parametrize("sizes", [(40, 40, 40), (3, 4, 90), (90, 3, 4), (1, 1, 1), (4, 0, 5)])
def test_layouts_that_the_planner_chose(contexts: Contexts, where: str, sizes: tuple[int, int, int]) -> None:
    ctx, (m, n, k) = contexts[where], sizes
    free = pblas.plan_matmul(m, n, k, nprocs=ctx.nprocs, dtype="float64")
    a, b = entries((m, k), dtype_of("float64"), 1), entries((k, n), dtype_of("float64"), 2)
    A, B = (ctx.from_global(x, desc, root=None) for x, desc in zip((a, b), free.descriptors, strict=True))
    with pblas.plan_matmul(A, B, out=free.out) as planned:
        assert planned.plan.name == free.plan.name
        assert planned.plan.max_received_nbytes == free.plan.max_received_nbytes
        result = collected(planned.execute(A, B))
    assert gauge(result, a, b) <= THRESHOLD


@pytest.mark.mpi
def test_output_layout_of_grids(contexts: Contexts) -> None:
    """With out=None and no C the result is on the grid of the operands; any two grids have an output."""
    ctx = contexts["shared"]
    for grid_a, grid_b in (((2, 2), (2, 2)), ((2, 2), (1, 2)), ((1, 3), (3, 2)), ((1, 1), (2, 2))):
        run = Run(ctx, Case((9, 8, 13), Layout(grid_a), Layout(grid_b), Layout()))
        result: DistMatrix = pblas.pmatmul(run.A.view, run.B.view)
        whole = collected(result)
        assert gauge(whole, run.a, run.b) <= THRESHOLD
        same_on_all_ranks(str(result.desc))


@pytest.mark.mpi(min_size=4)
def test_strict_refuses_layouts_that_do_not_conform_on_every_rank(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    grid = Layout((2, 2))
    for d, text in ((Layout((2, 2), blocks=(3, 2)), "rows: op"), (Layout(), "op(A) is on a"), (grid, None)):
        run = Run(ctx, Case((24, 24, 24), grid, grid, d))

        def call(run: Run = run) -> DistMatrix:
            return pblas.pmatmul(run.A.view, run.B.view, out=run.D.view, strict=True)

        if text is None:
            call()
            assert gauge(run.D.values(), run.a, run.b) <= THRESHOLD
        else:
            raises_on_all_ranks(pblas.PlanError, text, call)


@one_host
@pytest.mark.mpi(min_size=4)
def test_too_little_shared_memory_is_messages() -> None:
    """A general plan is made again when the context switches from shared memory to messages."""
    with pblas.Context(timeout=20) as ctx:
        desc = MatrixDescriptor(24, 24, 2, 2, Grid(2, 2))
        a = entries((24, 24), dtype_of("float64"), 1)
        A, B, D = (ctx.from_global(a, desc, root=None) for _ in range(3))
        with pblas.plan_matmul(A, B, out=D) as planned:
            assert isinstance(planned.plan, SummaC)
            seen = [planned.plan.transport]
            ctx.runtime.give_up_shared_memory()
            planned.execute(A, B, out=D)
            assert isinstance(planned.plan, Summa)
            seen.append(planned.plan.transport)
            assert seen == ["shared", "message"]
        result = collected(D)
        assert gauge(result, a, a) <= THRESHOLD


@pytest.mark.mpi
@pytest.mark.ranks(4, reason="every rank of the 2 x 2 grid multiplies")
@pytest.mark.parametrize("kind", ["grid", "long k"])
def test_an_execution_that_ends_half_way_breaks_the_context(kind: str) -> None:
    with pblas.Context(timeout=5, transport="message") as context:
        check_broken_half_way(Run(context, KINDS[kind]).multiply, "pblas.backends.cpu.arrays.HostArrays.gemm")


@pytest.mark.mpi
@pytest.mark.parametrize("where", SETTINGS)
def test_c_and_d_of_equal_layouts_may_have_empty_shards_of_different_shapes(contexts: Contexts, where: str) -> None:
    ctx, m = contexts[where], 5
    single, rows = MatrixDescriptor(m, m, m, m, Grid(1, 1)), MatrixDescriptor(m, m, m, m, Grid(ctx.nprocs, 1))
    for columns in (MatrixDescriptor.column_wise(m, m, ctx.nprocs), single, rows):
        x = np.arange(25.0).reshape(m, m)
        a, c, d = (ctx.from_global(x, desc, root=None) for desc in (columns, single, rows))
        whole = collected(pblas.pmatmul(a, a, c, beta=2.0, out=d))
        assert np.array_equal(whole, x @ x + 2 * x)


@pytest.mark.mpi
def test_a_new_d_has_a_place_on_every_rank() -> None:
    with pblas.Context() as ctx:
        a = ctx.random(MatrixDescriptor.row_wise(12, 12, ctx.nprocs), seed=1)
        large = MatrixDescriptor.row_wise(12, 12, ctx.nprocs + 1)
        raises_on_all_ranks(pblas.LayoutError, "use a smaller grid", partial(pblas.pmatmul, a, a, out=large))
        narrow = replace(MatrixDescriptor(12, 12, 2, 2, Grid(1, ctx.nprocs)), lld=3 if ctx.rank == 0 else None)
        raises_on_all_ranks(pblas.LayoutError, "lld of out", partial(pblas.pmatmul, a, a, out=narrow))
        preset: Any = "laptop" if ctx.rank == 0 else None
        raises_on_all_ranks(pblas.ArgumentError, "hardware is for", partial(pblas.plan_matmul, a, a, hardware=preset))
        check_product(ctx)
        assert pblas.plan_matmul(a, a, chunks=10**9).plan.chunks <= 12

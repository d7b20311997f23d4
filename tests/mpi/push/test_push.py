"""Laws of the push transport: slots, parities and flags, with any rank late; mutants of the protocol are caught."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pblas
from pblas.backends.push_engine import Finish, Portion
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matmul.one_dimensional_plan import GemmReduceScatter
from pblas.matmul.push.schedules.operations import PARTS, RESULTS
from pblas.plans.algorithm import Algorithm
from pblas.plans.partition import HALF_TILE
from tests.common.gauge import entries
from tests.common.ranks import (
    COMM,
    broken_later,
    check_broken_half_way,
    check_product,
    each_culprit,
    few,
    no_memory,
    open_context,
    outcome_of,
    raises_on_all_ranks,
    release,
    wait_for_release,
    waits,
    waits_long,
)
from tests.common.window_engine import WindowEngine
from tests.model.push import DELAYS, MUTANTS, Calls, Pause, algorithms, applied, delay_readers, outcome, take
from tests.mpi.operations.test_epilogues import described, local_columns
from tests.mpi.operations.test_matmul import COMMUNICATING, LAYOUTS, Case, Dimension, Run, sizes

pytestmark = pytest.mark.mpi

TIMEOUT = 20.0
NAMES = ("AllGatherGemm", "GemmReduceScatter", "GemmAllReduce")
DISTRIBUTED = [name for name in COMMUNICATING if "replicated" not in name]
"""Without those that differ in what one rank multiplies only."""


@pytest.fixture(scope="module")
def ctx() -> Iterator[pblas.Context]:
    with open_context("push", timeout=TIMEOUT) as context:
        yield context


def middle(nprocs: int) -> list[tuple[Dimension, Dimension, Dimension]]:
    """M, N and K, large enough for pieces, which begin on multiples of eight lines."""
    far = nprocs - 1
    return [
        (Dimension(3), Dimension(24 * nprocs + 40), Dimension(2 * nprocs)),
        (Dimension(9 * nprocs, 4, 1), Dimension(67, 8, far, 3, 1), Dimension(11, 2, far)),
    ]


class Counted:
    """Counts of the bytes and flags that the engines of this process move."""

    def __init__(self, patch: pytest.MonkeyPatch, ctx: pblas.Context) -> None:
        self.nbytes: Counter[int] = Counter()  # put to each rank, or pulled by this one
        self.flags: Counter[int] = Counter()
        put, pull, place = WindowEngine.put, WindowEngine.pull, WindowEngine._set

        def counted(engine: Any, lane: str, source: Any, peer: int, *rest: Any) -> None:
            if peer != ctx.rank:
                self.nbytes[peer] += source.nbytes
            put(engine, lane, source, peer, *rest)

        def counted_too(engine: Any, peer: int, *rest: Any) -> Any:
            pulled = pull(engine, peer, *rest)
            if peer != ctx.rank:
                self.nbytes[ctx.rank] += pulled.nbytes
            return pulled

        def noted(engine: Any, peer: int, source: int, phase: int, value: int) -> None:
            if value:
                self.flags[peer] += 1
            place(engine, peer, source, phase, value)

        patch.setattr(WindowEngine, "put", counted)
        patch.setattr(WindowEngine, "pull", counted_too)
        patch.setattr(WindowEngine, "_set", noted)

    def received(self) -> int:
        """**Collective.** Bytes that this rank has pulled, and others have put to it, since the last look."""
        everywhere = COMM.allgather(dict(self.nbytes))
        self.nbytes.clear()
        return sum(counts.get(COMM.rank, 0) for counts in everywhere)


class Fused:
    """One kernel for all portions of a GEMM, which engines of CPUs do not have.

    Portions with terms are summed when others' parts have come, which they cannot do before this rank has sent its own.
    """

    def __init__(self, patch: pytest.MonkeyPatch, counted: Counted) -> None:
        self._counted = counted
        self._marks: set[int] = set()
        self._later: list[tuple[int, Any]] = []  # mark, and the function that computes the portion
        self._call = WindowEngine.call
        for name in ("follow", "burst", "signal", "wait", "sum", "copy"):
            patch.setattr(WindowEngine, name, self._settled(getattr(WindowEngine, name)))
        of = {"multiply_portions": self._multiply, "call": self._whole}
        for name, method in of.items():
            patch.setattr(WindowEngine, name, lambda *rest, method=method, **more: method(*rest, **more))
        patch.setattr(WindowEngine, "await_tile_flag", lambda _, __, mark: self._await(mark))

    def _settled(self, operation: Any) -> Any:
        def settled(engine: Any, lane: Any, *rest: Any) -> Any:
            if lane == "main" and (operation.__name__ != "follow" or rest[0]):
                self._settle()
            return operation(engine, lane, *rest)

        return settled

    def _settle(self) -> None:
        later, self._later = self._later, []
        for _, portion in later:
            portion()

    def _await(self, mark: int) -> None:
        self._marks.remove(mark)
        while any(later == mark for later, _ in self._later):
            _, portion = self._later.pop(0)
            portion()

    @contextmanager
    def _whole(self, engine: Any, work: Any) -> Iterator[None]:
        with self._call(engine, work):
            yield
            self._settle()
        assert not self._marks

    def _multiply(
        self,
        engine: Any,
        lane: Any,
        alpha: float,
        portions: list[Portion],
        beta: float,
        *,
        finish: Finish | None = None,
    ) -> bool:
        if portions[0].x.dtype.kind == "c":
            return False
        self._settle()
        awaited = set()
        for portion in portions:
            if portion.awaits is not None and portion.awaits not in awaited:
                awaited.add(portion.awaits)
                engine.wait(lane, portion.awaits[1], portion.awaits[:1], "an operand of")
            make = partial(self._form, engine, alpha, portion, beta, None if portion.partial else finish)
            if portion.terms:
                self._later.append((portion.tile_flag, make))
            else:
                make()
            if portion.tile_flag >= 0:
                assert portion.tile_flag not in self._marks
                self._marks.add(portion.tile_flag)
        return True

    def _form(self, engine: Any, alpha: float, portion: Portion, beta: float, finish: Finish | None) -> None:
        wide = np.zeros(portion.z.shape, np.result_type(portion.z.dtype, np.float32))
        engine.gemm("copy", alpha, portion.x, portion.y, 0.0, wide)
        for term, (source, phase) in portion.terms:
            engine.wait("copy", phase, (source,), "a term of")
            wide += term
        old = portion.z if portion.old is None else portion.old
        if beta and not portion.partial:
            wide += beta * old.astype(wide.dtype)
        if finish is not None:
            engine.finish("copy", finish.of(itemgetter(portion.index)), wide)
        portion.z[...] = wide
        for place, _ in portion.places:
            place[...] = portion.z
        flags = [portion.signal, *(flag for _, flag in portion.places)]
        for peer, phase in (flag for flag in flags if flag is not None):
            self._counted.nbytes[peer] += portion.z.nbytes
            engine.signal("copy", (peer,), phase)


@pytest.mark.parametrize("layout", COMMUNICATING if COMM.size <= 4 else DISTRIBUTED)
def test_every_algorithm(ctx: pblas.Context, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """D is right, the plan's bytes are put, and after an all-reduce all ranks have the same bits."""
    if ctx.nprocs == 1:
        pytest.skip("one rank moves nothing")
    counted = Counted(monkeypatch, ctx)
    names = itertools.cycle(["float64", "bfloat16", "complex64"])
    orders: Any = itertools.cycle(itertools.product("FC", repeat=4))
    homes = itertools.cycle(["wwww", "uuuu", "wuwu"])
    betas = itertools.cycle([0.0, 0.5])
    next(itertools.islice(orders, list(LAYOUTS).index(layout), None))
    places = itertools.cycle([*middle(ctx.nprocs), *sizes(ctx.nprocs)[2:]])
    tried = [
        (algorithm, fused) for algorithm in algorithms(layout, ctx.nprocs) for fused in {False, algorithm.is_one_kernel}
    ]
    for algorithm, fused in tried:
        with monkeypatch.context() as patch:
            take(algorithm, patch)
            if fused:
                Fused(patch, counted)
            for (m, n, k), name in itertools.islice(zip(places, names, strict=False), 2):
                case = Case(m, n, k, LAYOUTS[layout], name, orders=next(orders), beta=next(betas), homes=next(homes))
                run = Run(ctx, case)
                arguments = run.arguments
                with pblas.plan_matmul(run.A.view, run.B.view, **arguments) as planned:
                    assert planned.plan.algorithm == algorithm
                    assert planned.workspace_nbytes <= planned.plan.workspace_nbytes + 1024 * ctx.nprocs
                    bits = set()
                    for _ in range(3):
                        run.reset()
                        counted.received()
                        result = planned.execute(run.A.view, run.B.view, arguments["c"], out=arguments["out"])
                        assert counted.received() == planned.plan.received_nbytes(ctx.rank)
                        run.check(result)
                        bits.add(result.local.tobytes())
                    assert len(bits) == 1
                    if layout.startswith("AR"):
                        assert len(set().union(*COMM.allgather(bits))) == 1


@pytest.mark.parametrize("algorithm", [Algorithm("tile_signals", (2, 1)), Algorithm("fused_stores", (1, 1, 1))])
@pytest.mark.parametrize("layout", ["RS to rows", "AR"])
def test_pieces_of_half_tiles(
    ctx: pblas.Context, layout: str, algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases: numbers of lines with which one rank has twice as much of a piece as another; one kernel, and several."""
    take(algorithm, monkeypatch)
    p = ctx.nprocs
    dims = Dimension(400 * p + 10 * (p - 1), 410), Dimension(24), Dimension(8 * p)
    case = Case(*dims, LAYOUTS[layout], "bfloat16", orders=("C", "F", "C", "C"), beta=0.5)
    for fused in (False, True):
        with monkeypatch.context() as patch:
            if fused:
                Fused(patch, Counted(patch, ctx))
            run = Run(ctx, case)
            with pblas.plan_matmul(run.A.view, run.B.view, **run.arguments) as planned:
                if p > 1:
                    assert planned.plan.algorithm == algorithm
                    assert isinstance(planned.plan, GemmReduceScatter)
                    assert planned.plan.unit == HALF_TILE
                run.check(planned.execute(run.A.view, run.B.view, run.arguments["c"], out=run.arguments["out"]))


@pytest.mark.parametrize(
    ("layout", "by"),
    [
        *itertools.product(("AG(B) columns", "AG(A) rows", "RS to rows", "RS to columns", "AR"), ("tile_signals",)),
        *itertools.product(("RS to rows", "RS to columns", "AR"), ("fused_stores",)),
    ],
)
def test_epilogues_are_applied_where_portions_are_made(
    ctx: pblas.Context, layout: str, by: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one kernel, and by several, for both orders of D; no separate pass over D follows."""
    p, passes = ctx.nprocs, list[str]()
    finish = WindowEngine.finish

    def noted(engine: Any, lane: str, follows: Any, z: Any) -> None:
        passes.extend([lane] if follows is not None and z.size else [])
        finish(engine, lane, follows, z)

    monkeypatch.setattr(WindowEngine, "finish", noted)
    algorithm = Algorithm(by, (2, 1))
    take(algorithm, monkeypatch)
    m, n, k = 5 * p + 1, 4 * p + 2, 3 * p
    a, b = (np.add.outer(np.arange(rows), np.arange(columns)) % 5.0 for rows, columns in ((m, k), (k, n)))
    h, bias = np.arange(m * n).reshape(m, n) % 7.0, np.arange(n) % 3.0
    for fused, order in itertools.product((False, True), "CF"):
        with monkeypatch.context() as patch:
            if fused:
                Fused(patch, Counted(patch, ctx))
            descs = [
                described(kind, *shape, order)
                for kind, shape in zip(LAYOUTS[layout], ((m, k), (k, n), (m, n)), strict=True)
            ]
            A, B, H = (ctx.from_global(x, desc, None) for x, desc in zip((a, b, h), descs, strict=True))
            follows = pblas.Epilogue("relu(x - s) * bias + h", s=20.0, bias=local_columns(bias, descs[2]), h=H)
            with pblas.plan_matmul(A, B, out=descs[2], epilogue=follows) as planned:
                assert p == 1 or planned.plan.algorithm == algorithm
                passes.clear()
                D = planned.execute(A, B)
            result = D.to_global(None)
            assert p == 1 or by == "fused_stores" or {"main"}.isdisjoint(passes)
            assert result is not None
            assert np.array_equal(result, np.maximum(a @ b - 20, 0) * bias + h)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_product(ctx: pblas.Context, layout: str) -> None:
    """All dtypes and trans flags, with sizes, orders, scalars, layouts, memory and numbers of GEMMs in rotation."""
    first = list(LAYOUTS).index(layout)
    orders: Any = itertools.cycle(itertools.product("FC", repeat=4))
    outs: Any = itertools.cycle(["matrix", "in place", "descriptor", "none"])
    homes = itertools.cycle(["wwww", "uuuu", "wuuw", "uwwu"])
    places = itertools.cycle([*sizes(ctx.nprocs), *middle(ctx.nprocs)])
    trans = itertools.cycle([("N", "N"), ("T", "N"), ("N", "C"), ("C", "T"), ("T", "T")])
    scalars: Any = itertools.cycle([(1.0, 0.0), (0.75, -0.5), (-1.0, 1.0), (0.0, 0.25), (2.0, 0.0)])
    options: Any = itertools.cycle(
        [("chunks", None), ("overlap", False), *(("chunks", p + 1) for p in range(ctx.nprocs))]
    )
    for values in (orders, outs, homes, places, trans, scalars, options):
        next(itertools.islice(values, first, None))
    for name in ("float64", "complex64", "float16", "float32", "bfloat16", "complex128"):
        (m, n, k), (alpha, beta), order, out = next(places), next(scalars), next(orders), next(outs)
        if name.startswith("complex"):
            alpha, beta = alpha * (0.5 - 2j), beta * 1j
        if out == "none":
            order = (*order[:3], order[2])  # D is stored as C
        case = Case(
            *(m, n, k, LAYOUTS[layout], name, next(trans), order),
            *(alpha, beta, out, next(homes), first % 3, (next(options),), first + 1),
        )
        run = Run(ctx, case)
        result = pblas.pmatmul(run.A.view, run.B.view, **run.arguments)
        if out == "none":
            run.D = run.C
        run.check(result)


@pytest.mark.parametrize("layout", DISTRIBUTED)
def test_every_rank_sends_a_flag_to_every_other_in_every_call(
    ctx: pblas.Context, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with empty shards, an empty D or K, and alpha = 0: the next call but one relies on the flags."""
    counted = Counted(monkeypatch, ctx)
    others = set(range(ctx.nprocs)) - {ctx.rank}
    for (m, n, k), alpha, overlap in itertools.product(
        ((9, 8, 7), (1, 1, 1), (0, 8, 9), (7, 0, 9), (7, 8, 0)), (1.0, 0.0), (True, False)
    ):
        dims = (Dimension(m, 20, 1), Dimension(n, 20), Dimension(k, 20, 2))
        case = Case(*dims, LAYOUTS[layout], alpha=alpha, beta=0.5, out="in place", options=(("overlap", overlap),))
        run = Run(ctx, case)
        with pblas.plan_matmul(run.A.view, run.B.view, **run.arguments) as planned:
            for _ in range(3):
                run.reset()
                counted.flags.clear()
                run.check(planned.execute(run.A.view, run.B.view, run.C.view, out=run.C.view))
                assert set(counted.flags) == others
        engine: Any = ctx.runtime.backend.engine()
        if ctx.nprocs > 1:
            assert len(set(COMM.allgather(engine._workspaces[2].calls))) == 1, "the ranks are at different parities"


def test_products_follow_each_other(ctx: pblas.Context) -> None:
    """X = A @ X, a chain of new matrices, on one plan and on many."""
    n = 2 * ctx.nprocs + 1
    desc = MatrixDescriptor.row_wise(n, n, ctx.nprocs)
    a = ctx.from_global(lambda i, j: (j - i) % n == 1, desc)  # shifts the rows
    start = entries((n, n), np.dtype(np.float64), 1)
    first = second = ctx.from_global(start, desc, root=None)
    with pblas.plan_matmul(a, first) as planned:
        for _ in range(50):
            first = planned.execute(a, first)
    for _ in range(50):
        second = a @ second
    expected = np.roll(start, -50, axis=0)
    for x in (first, second):
        assert np.array_equal(x.to_global(None), expected)


# Time


def rest(engine: Any, lane: str) -> None:
    """At random, on any rank."""
    del engine, lane
    if RANDOM.random() < 0.2:
        time.sleep(RANDOM.expovariate(1 / 5e-4))


RANDOM = random.Random(COMM.rank)
PLANS: list[tuple[str, dict[str, Any]]] = [(name, {"chunks": 2}) for name in NAMES]
KERNELS: list[tuple[str, dict[str, Any]]] = [(name, {"overlap": False}) for name in NAMES]


def test_many_calls_without_a_barrier(ctx: pblas.Context) -> None:
    """Six plans take turns on one workspace, also those with queues, and a rank may be a call ahead."""
    queued = [(name, options | {"queue": queue}) for queue, (name, options) in enumerate(PLANS)]
    calls = Calls(ctx, 15, queued + KERNELS, 8 * ctx.nprocs, "float64")
    for seed in range(3):
        calls.round(seed, partial(rest, None, ""))
    calls.close()


@pytest.mark.parametrize("delayed", DELAYS)
def test_delays_change_nothing(ctx: pblas.Context, delayed: Any) -> None:
    """Between a put and its signal, before waits, after them: at random, and on one rank always."""

    def late(engine: Any, lane: str) -> None:
        del engine, lane
        if ctx.rank == 0:
            time.sleep(5e-4)

    calls = Calls(ctx, 3, PLANS + KERNELS, 8 * ctx.nprocs, "float64")
    for seed, pause in enumerate((rest, late)):
        with applied(delayed, WindowEngine, pause):
            calls.round(seed)
    calls.close()


def parity_fixed(patch: pytest.MonkeyPatch, engine: type[Any], pause: Pause) -> None:
    """All calls use the same half of the workspace."""
    delay_readers(patch, engine, pause)
    patch.setattr(engine, "parity", lambda *_: 0)


ALL_MUTANTS = {**MUTANTS, "parity fixed": parity_fixed}


@few
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("plans", [PLANS, KERNELS], ids=["copy_engine", "kernels"])
@pytest.mark.parametrize("name", ALL_MUTANTS)
def test_mutants_are_caught(name: str, plans: list[tuple[str, dict[str, Any]]]) -> None:
    """Each mutant breaks the protocol in one place: with the same delays, D is wrong or a flag is lost."""

    def pause(engine: Any, lane: str) -> None:
        del engine, lane
        if COMM.rank == 0:
            time.sleep(0.02)

    with broken_later(timeout=1.0, transport="push") as context:
        with applied(ALL_MUTANTS[name], WindowEngine, pause):
            calls = Calls(context, 3 if name == "parity fixed" else 1, plans, 8 * context.nprocs)
            outcomes = COMM.allgather(outcome(partial(calls.round, 1)))
        assert set(outcomes) != {"right"}, f"{name}: not caught"
        calls.close()
        del calls


@few
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize("unheard", [None, PARTS, RESULTS])
def test_two_shot_reads_only_valid_memory(unheard: int | None, halves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 multiplies and reads late. Of it one flag is not awaited: that its product is there, or that it has read.

    The latter keeps the others from overwriting what rank 0 reads; so do the two halves.
    """
    take(Algorithm("two_shot"), monkeypatch)
    gemm, pull, wait = WindowEngine.gemm, WindowEngine.pull, WindowEngine.wait

    def late(function: Any) -> Any:
        def paused(*args: Any, **options: Any) -> Any:
            time.sleep(0.06 * (COMM.rank == 0))
            return function(*args, **options)

        return paused

    def careless(self: Any, lane: str, phase: int, sources: Any, step: str) -> None:
        wait(self, lane, phase, [s for s in sources if s or COMM.rank == 0 or phase != unheard], step)

    with broken_later(timeout=5.0, transport="push") as context:
        calls = Calls(context, 3, [("GemmAllReduce", {})], 8 * context.nprocs, "float64")
        monkeypatch.setattr(WindowEngine, "gemm", late(gemm))
        monkeypatch.setattr(WindowEngine, "pull", late(pull))
        monkeypatch.setattr(WindowEngine, "wait", careless)
        monkeypatch.setattr(WindowEngine, "parity", lambda _, work: work.calls % halves)
        outcomes = COMM.allgather(outcome(partial(calls.round, 1)))
        calls.close()
        del calls
    assert (set(outcomes) == {"right"}) == (unheard is None)
    overwritten = unheard == RESULTS and halves == 1
    assert (outcomes[0] != "right") == (unheard == PARTS or overwritten), outcomes[0]


# Memory


def test_a_workspace_grows_while_older_plans_live() -> None:
    with open_context("push", timeout=TIMEOUT) as ctx:
        engine: Any = ctx.runtime.backend.engine()
        plans, known = [], []
        for n in (8, 64, 24):
            plans.append(Calls(ctx, 1, PLANS, n * ctx.nprocs))
            known.append(engine._workspaces.get(2))
            for calls in plans:
                calls.round(n)
        if ctx.nprocs > 1:
            assert known[0] is not known[1], "it has grown"
            assert known[1] is known[2], "it has not shrunk"
        live = ctx.runtime.backend.arena.live_nbytes
        for calls in plans:
            calls.close()
        del calls, plans, known
        engine.close()
        check_product(ctx)
        assert ctx.runtime.backend.arena.live_nbytes < live or ctx.nprocs == 1


def test_a_closed_context_leaves_no_resources() -> None:
    """Plans and matrices that are still referenced do not keep its memory. Warnings are errors here."""
    before = len(list(Path("/dev/shm").glob("*"))) if Path("/dev/shm").exists() else 0
    for _ in range(3):
        with open_context("push", timeout=TIMEOUT) as ctx:
            check_product(ctx)
            calls = Calls(ctx, 2, PLANS, 16)
            calls.round(1)
        del calls
    COMM.Barrier()
    if before:
        assert len(list(Path("/dev/shm").glob(f"*{os.getpid()}*"))) <= before


# Ranks that are wrong, and ranks that are late


class Scene:
    """A context, a plan, and matrices that it takes and one that it does not take."""

    def __init__(self, timeout: float, name: str, **options: Any) -> None:
        from tests.model.push import LAYOUTS as KINDS
        from tests.model.push import descriptor

        self.ctx = ctx = open_context("push", timeout=timeout)
        descs = [descriptor(kind, 4 * ctx.nprocs, 4 * ctx.nprocs, ctx.nprocs) for kind in KINDS[name]]
        self.a, self.b, self.d = (ctx.random(desc, seed=i) for i, desc in enumerate(descs))
        self.single = ctx.random(descs[0], "float32")
        self.planned = pblas.plan_matmul(self.a, self.b, out=self.d, **options)
        self.execute()

    def execute(self, a: Any = None) -> None:
        self.planned.execute(self.a if a is None else a, self.b, out=self.d)

    def check_broken(self, text: str) -> None:
        """Assert that every call raises at once, with the reason."""
        start = time.monotonic()
        for call in (self.execute, partial(self.execute, self.single), partial(self.ctx.zeros, self.a.desc)):
            name, again = outcome_of(call)
            assert name == "ContextError", again
            assert text in again
        assert time.monotonic() - start < 0.5

    def close(self) -> None:
        self.ctx.close()
        COMM.Barrier()


def until_error(call: Any) -> tuple[str, str]:
    """The error of a repeated call: a rank may be one call ahead of a wrong rank."""
    for _ in range(3):
        outcome = outcome_of(call)
        if outcome[0] != "no exception":
            break
    return outcome


def execute_closed(scene: Scene) -> None:
    scene.planned.close()
    scene.execute()


MISTAKES: dict[str, tuple[str, str, Callable[[Scene], object]]] = {
    "dtype": ("DTypeError", "A is float32, planned was float64; plan anew", lambda scene: scene.execute(scene.single)),
    "no matrix": ("ArgumentError", "a must be a DistMatrix, got int", lambda scene: scene.execute(7)),
    "overlap": ("ArgumentError", "out overlaps B", lambda scene: scene.planned.execute(scene.a, scene.b, out=scene.b)),
    "a stream": (
        "ArgumentError",
        "stream is for GPUs",
        lambda scene: scene.planned.execute(scene.a, scene.b, stream=7),
    ),
    "a plan that is closed": ("ContextError", "the planned product is closed", execute_closed),
}


@waits_long
@pytest.mark.parametrize(
    ("mistake", "name", "options", "wrong"),
    [
        *(("dtype", name, {"chunks": 2}, 0) for name in NAMES),
        *(("dtype", name, {"overlap": False}, COMM.size - 1) for name in NAMES),
        *((mistake, "AllGatherGemm", {}, COMM.size - 1) for mistake in MISTAKES if mistake != "dtype"),
    ],
)
def test_a_mistake_of_one_rank_is_the_same_error_on_all_and_breaks_the_context(
    mistake: str, name: str, options: dict[str, Any], wrong: int
) -> None:
    """There is no agreement: the other ranks raise the error as soon as they wait."""
    scene, (kind, text, call) = Scene(TIMEOUT, name, **options), MISTAKES[mistake]
    start = time.monotonic()
    everywhere = COMM.allgather(until_error(partial(call, scene) if COMM.rank == wrong else scene.execute))
    assert time.monotonic() - start < TIMEOUT / 2
    assert len(set(everywhere)) == 1, everywhere
    assert everywhere[0][0] == kind
    assert text in everywhere[0][1]
    assert f"found on rank {wrong} of {COMM.size}" in everywhere[0][1]
    scene.check_broken(everywhere[0][1])
    scene.close()
    with open_context("push", timeout=TIMEOUT) as after:
        check_product(after)


@waits
def test_a_rank_that_sleeps_is_named() -> None:
    late = COMM.size - 1
    scene = Scene(0.5, NAMES[COMM.size % 3])
    if COMM.rank == late:
        wait_for_release()
    start = time.monotonic()
    kind, text = until_error(scene.execute)
    seconds = time.monotonic() - start
    release(late)
    everywhere = COMM.allgather((kind, text))
    assert {entry[0] for entry in everywhere} == {"PeerTimeout"}, everywhere
    assert f"rank {late} of {COMM.size} did not arrive within 0.5 s" in text
    assert seconds < 0.5 + 1.0 + 1.0, "the timeout, and the second in which the living answer"
    scene.check_broken(text)
    scene.close()


@waits_long
def test_a_rank_that_leaves_by_an_exception_breaks_the_context_of_all() -> None:
    scene = Scene(0.5, NAMES[0])
    if COMM.rank == 0:
        with pytest.raises(ZeroDivisionError), scene.ctx:
            raise ZeroDivisionError
        outcome = ("PeerTimeout", "rank 0")
    else:
        outcome = until_error(scene.execute)
    assert outcome[0] == "PeerTimeout"
    assert "rank 0" in outcome[1]
    scene.close()


@pytest.mark.parametrize("name", NAMES)
def test_an_execution_that_ends_half_way_breaks_the_context(name: str) -> None:
    scene = Scene(2.0, name)
    check_broken_half_way(scene.execute, "tests.common.window_engine.WindowEngine.gemm")
    scene.check_broken("KeyboardInterrupt in the middle of it")
    scene.close()


@pytest.mark.mpi(min_size=2)
def test_a_stale_flag_is_not_taken_for_a_new_one(ctx: pblas.Context) -> None:
    """After every call all flags of this rank are 0 again, in both parities."""
    calls = Calls(ctx, 3, PLANS + KERNELS, 8 * ctx.nprocs)
    calls.round(1)
    COMM.Barrier()
    engine: Any = ctx.runtime.backend.engine()
    work = engine._workspaces[2]
    for parity in range(2):
        engine._current, engine._parity = work, parity
        assert not any(engine._get(source, phase) for source in range(ctx.nprocs) for phase in range(work.phases)), (
            "a flag is left"
        )
    del engine._current
    calls.close()


def test_debug_finds_executions_in_another_order() -> None:
    with open_context("push", timeout=TIMEOUT, debug=True) as context:
        if context.nprocs == 1:
            pytest.skip("one rank has one order")
        rows = MatrixDescriptor.row_wise(8, 8, context.nprocs)
        a = context.random(rows)
        first, second = pblas.plan_matmul(a, a), pblas.plan_matmul(a, a, alpha=2.0)
        plans = (first, second) if context.rank else (second, first)
        kind, text = outcome_of(lambda: plans[0].execute(a, a))
        assert kind == "MismatchError"
        assert "ranks made different calls: execute of planned product" in text
        first.execute(a, a)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("bound", [False, True])
def test_debug_finds_executions_with_another_d(bound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of CPUs do not bind D; this one only claims that peers could put results into it."""
    with open_context("push", timeout=TIMEOUT, debug=True) as context:
        p = context.nprocs
        a, b = context.random(MatrixDescriptor.column_wise(8, 8, p)), context.random(MatrixDescriptor.row_wise(8, 8, p))
        d, another = (context.zeros(MatrixDescriptor.replicated(8, 8, p)) for _ in range(2))
        if bound:
            monkeypatch.setattr(WindowEngine, "peer_addresses", lambda *_: [0] * p)
        planned = pblas.plan_matmul(a, b, out=d, overlap=False)
        bound_d = (d, another if bound else None)[context.rank == p - 1]
        expected = "out is the planned matrix" if bound else "out is given"
        raises_on_all_ranks(
            pblas.MismatchError, f"{expected} differs between ranks", lambda: planned.execute(a, b, out=bound_d)
        )
        monkeypatch.undo()
        scaled = pblas.plan_matmul(a, b, epilogue=pblas.Epilogue("x * s", s=2.0))
        numbers = {"s": 2.0 + (context.rank == p - 1)}
        text = "epilogue's s differs between ranks: 2.0 on rank 0, 3.0 on rank"
        raises_on_all_ranks(pblas.MismatchError, text, lambda: scaled.execute(a, b, operands=numbers))
        check_product(context)


def test_ranks_that_push_share_a_node() -> None:
    if COMM.size == 1:
        pytest.skip("one rank is a node")
    kind, text = outcome_of(lambda: open_context("push", ranks_per_node=1, timeout=TIMEOUT))
    assert kind == "BackendError"
    assert "ranks that push share a node's memory" in text


def test_a_rank_without_memory_for_a_plan_is_an_error_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_context("push", timeout=TIMEOUT) as context:
        a = context.random(MatrixDescriptor.column_wise(8, 8, context.nprocs))
        b = context.random(MatrixDescriptor.row_wise(8, 8, context.nprocs))
        if context.rank == context.nprocs - 1:
            monkeypatch.setattr(WindowEngine, "scratch", no_memory)
        kind, text = outcome_of(lambda: pblas.plan_matmul(a, b, out=a.desc))
        monkeypatch.undo()
        if context.nprocs > 1:
            assert kind == "WorkspaceError"
            assert f"rank {context.nprocs - 1} has no memory for partial products" in text
        check_product(context)


@pytest.mark.mpi(min_size=2)
@each_culprit
@few
def test_a_rank_without_memory_for_d_is_an_error_on_every_rank(
    wrong: frozenset[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed plan, or if all ranks lack memory for D, the context stays usable; else it breaks at once."""

    with open_context("push", timeout=TIMEOUT) as context:
        a = context.random(MatrixDescriptor.column_wise(8, 8, context.nprocs))
        b = context.random(MatrixDescriptor.row_wise(8, 8, context.nprocs))
        planned = pblas.plan_matmul(a, b, out=a.desc)
        with monkeypatch.context() as patch:
            if context.rank in wrong:
                patch.setattr(WindowEngine, "matrix", no_memory)
            for out in (a.desc, context.empty(a.desc)):
                plan = partial(pblas.plan_matmul, a, b, out=out)
                raises_on_all_ranks(pblas.WorkspaceError, "plan_matmul: no memory for D", plan)
            start = time.monotonic()
            everywhere = COMM.allgather(until_error(partial(planned.execute, a, b)))
        assert time.monotonic() - start < TIMEOUT / 2
        assert len(set(everywhere)) == 1, everywhere
        assert everywhere[0][0] == "WorkspaceError"
        assert "execute: no memory for D" in everywhere[0][1]
        if len(wrong) == COMM.size:
            planned.execute(a, b)
            check_product(context)
        else:
            assert outcome_of(partial(planned.execute, a, b))[0] == "ContextError"


def test_planning_makes_one_d(monkeypatch: pytest.MonkeyPatch) -> None:
    matrices, matrix = list[Any](), WindowEngine.matrix

    def noted(*arguments: Any) -> Any:
        matrices.append(matrix(*arguments))
        return matrices[-1]

    with open_context("push", timeout=TIMEOUT) as context:
        a = context.random(MatrixDescriptor.row_wise(8, 8, context.nprocs))
        d = context.empty(MatrixDescriptor.row_wise(8, 8, context.nprocs, order="C"))
        monkeypatch.setattr(WindowEngine, "matrix", noted)
        pblas.plan_matmul(a, a, out=d).close()
        assert [x.strides for x in matrices] == [d.local.strides]

"""Algorithms of pushed plans, calls of several on one workspace without a barrier, and mutants of the push protocol.

An engine with delayed operations must still be right; a mutant must be caught. Rank 0 is delayed: with the same delays
the protocol holds, and each mutant reads some data too early, on a busy machine too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import MatrixDescriptor
from pblas.matmul.choose_granularity import doubling
from pblas.matrices.scatter_gather import part_of
from pblas.plans.algorithm import Algorithm
from tests.common.ranks import COMM

Pause = Callable[[Any, str], None]
"""Delays an engine on one of its lanes."""

LAYOUTS = {  # of op(A), op(B) and D
    "AllGatherGemm": ("rows", "rows", "rows"),
    "GemmReduceScatter": ("columns", "rows", "columns"),
    "GemmAllReduce": ("columns", "rows", "all"),
}
ALONG_N = "AllGatherGemm along N"
EVERY_LAYOUT = LAYOUTS | {ALONG_N: ("rows", "columns", "rows")}


def descriptor(kind: str, m: int, n: int, nprocs: int) -> MatrixDescriptor:
    """Row-wise, column-wise or replicated."""
    if kind == "all":
        return MatrixDescriptor.replicated(m, n, nprocs)
    return (MatrixDescriptor.row_wise if kind == "rows" else MatrixDescriptor.column_wise)(m, n, nprocs)


def algorithms(
    layout: str, nprocs: int, pieces: tuple[tuple[int, ...], ...] = ((1,), (2, 1), (3, 2, 1))
) -> list[Algorithm]:
    """Every algorithm that a plan of a layout can take."""
    if layout.startswith("AR"):
        names = itertools.product(("copy_engine", "tile_signals", "fused_stores", "two_shot"), pieces)
        return [Algorithm("one_shot"), *(Algorithm(*algorithm) for algorithm in names)]  # type: ignore[arg-type]
    groups = dict.fromkeys(doubling(nprocs, count) for count in range(1, nprocs + 1))
    tiles = [Algorithm("tile_signals"), Algorithm("tile_signals", (2, 3))]
    if layout.startswith("RS"):
        tiles += [Algorithm("fused_stores"), Algorithm("fused_stores", (2, 3))]
    if layout in ("AG(B) rows", "AG(A) columns"):  # gathered along K
        tiles = []
    return [Algorithm("sm_push"), *tiles, *(Algorithm("copy_engine", sizes) for sizes in groups)]


def take(algorithm: Algorithm, patch: pytest.MonkeyPatch) -> None:
    """Let the planner give every plan this algorithm."""
    patch.setattr("pblas.matmul.choose_granularity.choose_algorithm", lambda *_: algorithm)


class Calls:
    """Plans that take turns, and matrices of small integers for every call, so that D is exact.

    Args:
        ctx: whose workspace they share (global).
        turns: calls of each plan in one round (global).
        plans: what to plan: entries of EVERY_LAYOUT with options of `plan_matmul` (global).
        n: rows and columns of every matrix (global).
        dtype: of the matrices (global).
    """

    def __init__(
        self, ctx: pblas.Context, turns: int, plans: list[tuple[str, dict[str, Any]]], n: int, dtype: str = "float32"
    ) -> None:
        self._ctx, self._turns, self._n, self._dtype = ctx, turns, n, np.dtype(dtype)
        self._plans, self._matrices = [], []
        for name, options in plans:
            descs = [descriptor(kind, n, n, ctx.nprocs) for kind in EVERY_LAYOUT[name]]
            sets = [[ctx.empty(desc, dtype) for desc in descs] for _ in range(turns)]
            a, b, d = sets[0]
            # Kernels with tiles add partial products of 16 bits that travel as they are.
            self._plans.append(pblas.plan_matmul(a, b, out=d, **{"wire_dtype": dtype} | options))
            assert ctx.nprocs == 1 or self._plans[-1].plan.name == name.split()[0]
            self._matrices.append(sets)

    def _data(self, seed: int, plan: int, turn: int) -> Any:
        random = np.random.default_rng((seed, plan, turn))
        return random.integers(-3, 4, (2, self._n, self._n)).astype(self._dtype)

    def _write(self, matrix: pblas.DistMatrix, whole: Any) -> None:
        with matrix.runtime.backend.writing(matrix.local) as part:
            part[...] = part_of(whole, matrix.desc, matrix.runtime.rank)

    def round(self, seed: int, before: Callable[[], object] = lambda: None) -> None:
        """Call every plan in turn, without waiting for anything, and look at all results at the end.

        Args:
            seed: of the data (global).
            before: runs before each call (local).
        """
        nan = np.full((self._n, self._n), np.nan, self._dtype)
        for i, sets in enumerate(self._matrices):
            for turn, (a, b, d) in enumerate(sets):
                for matrix, whole in zip((a, b, d), (*self._data(seed, i, turn), nan), strict=True):
                    self._write(matrix, whole)
        COMM.Barrier()
        for turn in range(self._turns):
            for planned, sets in zip(self._plans, self._matrices, strict=True):
                before()
                a, b, d = sets[turn]
                planned.execute(a, b, out=d)
        for i, sets in enumerate(self._matrices):
            for turn, (_, _, d) in enumerate(sets):
                a, b = self._data(seed, i, turn)
                local = d.runtime.backend.reading(d.local)
                right = np.array_equal(local, part_of(a @ b, d.desc, self._ctx.rank))
                assert right, f"{self._plans[i].plan.name}, call {turn}: wrong"

    def close(self) -> None:
        """Drop the plans."""
        for planned in self._plans:
            planned.close()


def outcome(call: Callable[[], object]) -> str:
    """What `call` raises on this rank, "right" if nothing."""
    try:
        call()
    except (AssertionError, pblas.errors.PblasError) as error:
        return f"{type(error).__name__}: {error}"
    return "right"


def delay_puts(patch: pytest.MonkeyPatch, engine: type[Any], pause: Pause) -> None:
    """Pause before every put."""
    put = engine.put

    def late(self: Any, lane: str, *rest: Any) -> None:
        pause(self, lane)
        put(self, lane, *rest)

    patch.setattr(engine, "put", late)


def delay_signals(patch: pytest.MonkeyPatch, engine: type[Any], pause: Pause) -> None:
    """Pause between every put and its signal."""
    signal = engine.signal

    def late(self: Any, lane: str, *rest: Any) -> None:
        pause(self, lane)
        signal(self, lane, *rest)

    patch.setattr(engine, "signal", late)


def delay_bursts(patch: pytest.MonkeyPatch, engine: type[Any], pause: Pause) -> None:
    """Pause before every burst."""
    burst = engine.burst

    def late(self: Any, lane: str, *rest: Any) -> None:
        pause(self, lane)
        burst(self, lane, *rest)

    patch.setattr(engine, "burst", late)


def delay_waits(patch: pytest.MonkeyPatch, engine: type[Any], pause: Pause) -> None:
    """Pause before every wait."""
    wait = engine.wait

    def late(self: Any, lane: str, *rest: Any) -> None:
        pause(self, lane)
        wait(self, lane, *rest)

    patch.setattr(engine, "wait", late)


def delay_readers(patch: pytest.MonkeyPatch, engine: type[Any], pause: Pause) -> None:
    """Pause between every wait and what reads the data that it waited for."""

    def delayed(operation: Callable[..., None]) -> Callable[..., None]:
        def late(self: Any, lane: str, *rest: Any) -> None:
            operation(self, lane, *rest)
            pause(self, lane)

        return late

    for name in ("wait", "burst"):  # a burst may wait too
        patch.setattr(engine, name, delayed(getattr(engine, name)))


DELAYS = (delay_puts, delay_signals, delay_bursts, delay_waits, delay_readers)


def flag_before_data(patch: pytest.MonkeyPatch, engine: type[Any], pause: Pause) -> None:
    """A put runs after its signal."""
    put, signal, burst = engine.put, engine.signal, engine.burst
    waiting: list[tuple[Any, ...]] = []

    def held(self: Any, *rest: Any) -> None:
        del self
        waiting.append(rest)

    def early(self: Any, lane: str, *rest: Any) -> None:
        signal(self, lane, *rest)
        pause(self, lane)
        while waiting:
            put(self, *waiting.pop(0))

    def early_burst(self: Any, lane: str, puts: Any, *rest: Any) -> None:
        burst(self, lane, [], *rest)
        pause(self, lane)
        for peer, *place in puts:
            source, *target = place
            put(self, lane, source, peer, *target)

    patch.setattr(engine, "put", held)
    patch.setattr(engine, "signal", early)
    patch.setattr(engine, "burst", early_burst)


def wait_dropped(patch: pytest.MonkeyPatch, engine: type[Any], pause: Pause) -> None:
    """No rank waits for rank 0."""
    delay_puts(patch, engine, pause)
    delay_bursts(patch, engine, pause)
    wait = engine.wait

    def careless(self: Any, lane: str, phase: int, sources: Any, *rest: Any) -> None:
        others = tuple(source for source in sources if source != 0)
        if others:
            wait(self, lane, phase, others, *rest)

    patch.setattr(engine, "wait", careless)


MUTANTS = {"flag before data": flag_before_data, "a wait dropped": wait_dropped}


@contextmanager
def applied(change: Callable[..., None], engine: type[Any], pause: Pause) -> Iterator[None]:
    """An engine with some of its operations delayed or changed."""
    with pytest.MonkeyPatch.context() as patch:
        change(patch, engine, pause)
        yield

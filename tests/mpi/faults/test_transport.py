"""The transports move and hold the bytes of the plans."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pblas
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matmul import arguments
from pblas.matmul.one_dimensional_plan import AllGatherGemm, GemmAllReduce, GemmReduceScatter
from tests.common.choices import only
from tests.common.gauge import THRESHOLD, Array, entries, gauge
from tests.common.ranks import Contexts, collected, few, open_context, some_wrong
from tests.mpi.operations.test_matmul import LAYOUTS as MATMUL_LAYOUTS
from tests.mpi.operations.test_matmul import Case, Dimension, Run

LOCATION_NBYTES = 32  # location of an array: window, offset, two strides
SIZES = ((7, 8, 9), (13, 11, 3), (2, 3, 1), (9, 29, 16))
LAYOUTS = ["AG(B) rows", "AG(B) columns", "AG(A) columns", "RS to rows", "RS A replicated", "AR", "AR B replicated"]
LAYOUTS.append("Local rows")
SETTINGS = ("message", "shared", "mixed")


@pytest.fixture
def message(contexts: Contexts) -> pblas.Context:
    return contexts["message"]


@pytest.fixture
def window(contexts: Contexts) -> pblas.Context:
    return contexts["shared"]


class Product(Run):
    """A product with one of three distributions; C is D itself."""

    def __init__(
        self, ctx: pblas.Context, layout: str, sizes: tuple[int, int, int], name: str, turn: int, beta: float = 0.0
    ) -> None:
        nb, src = ((None, 0), (1, 0), (2, ctx.nprocs - 1))[turn % 3]
        m, n, k = (Dimension(size, nb, src) for size in sizes)
        super().__init__(ctx, Case(m, n, k, MATMUL_LAYOUTS[layout], name, beta=beta, out="in place"))


def combinations() -> Iterator[tuple[int, tuple[int, int, int], int | None, bool]]:
    """(turn, sizes, chunks, overlap), each value of each several times."""
    chunks: Any = itertools.cycle([1, 2, 5, None])
    for turn, (sizes, overlap) in enumerate(itertools.product(SIZES, (True, False))):
        yield turn, sizes, next(chunks), overlap


@few
@pytest.mark.mpi(min_size=2)
@pytest.mark.openmpi
def test_many_shapes_of_messages_take_no_more_memory(message: pblas.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pblas.backends.mpi.channel._MAX_TYPES", 3)
    channel: Any = message.runtime.backend.plain_channel
    rank, nprocs = message.rank, message.nprocs
    after, before = (rank + 1) % nprocs, (rank - 1) % nprocs
    x, z = entries((7, 30), np.dtype(float), 1), np.zeros((7, 30))
    for first in range(2, 22, 5):
        lengths = range(first, first + 5)
        sent = [channel.send(x[:6, :n], after, n) for n in lengths]
        heard = [channel.receive(z[:6, :n], before, n) for n in lengths]
        for transfer in (*sent, *heard):
            message.runtime.backend.wait(transfer.done, "a message")
        assert np.array_equal(z[:6, : lengths[-1]], x[:6, : lengths[-1]])
        assert len(channel._types) <= 3


@few
@pytest.mark.mpi
@pytest.mark.openmpi
@pytest.mark.parametrize("layout", LAYOUTS)
def test_messages_carry_the_bytes_of_the_plan(message: pblas.Context, layout: str) -> None:
    """Counted by the channel, on every rank, of every dtype; the descriptors alone foretell the same."""
    backend = message.runtime.backend
    names = itertools.cycle(["float64", "complex64", "float16", "bfloat16"])
    for turn, sizes, chunks, overlap in combinations():
        name = next(names)
        x = Product(message, layout, sizes, name, turn)
        descs = (x.A.view.desc, x.B.view.desc)
        foretold = pblas.plan_matmul(*descs, out=x.D.view.desc, dtype=name, nprocs=message.nprocs, chunks=chunks).plan
        with pblas.plan_matmul(x.A.view, x.B.view, out=x.D.view, chunks=chunks, overlap=overlap) as planned:
            before = backend.channel.received_nbytes
            planned.execute(x.A.view, x.B.view, out=x.D.view)
            received = backend.channel.received_nbytes - before
            assert received == planned.plan.received_nbytes(message.rank) == foretold.received_nbytes(message.rank)
            assert planned.plan.max_received_nbytes == max(map(planned.plan.received_nbytes, range(message.nprocs)))
        x.check(x.D.view)


@pytest.mark.mpi(min_size=2)
def test_wire_dtype_doubles_the_bytes_of_partial_products_only(message: pblas.Context) -> None:
    backend, received = message.runtime.backend, {}
    for layout, wire in itertools.product(("RS to rows", "AR", "AG(A) columns"), (None, "float32")):
        x = Product(message, layout, (9, 12, 8), "bfloat16", 0)
        with pblas.plan_matmul(x.A.view, x.B.view, out=x.D.view, wire_dtype=wire) as planned:
            before = backend.channel.received_nbytes
            planned.execute(x.A.view, x.B.view, out=x.D.view)
            received[layout, wire] = backend.channel.received_nbytes - before
            assert received[layout, wire] == planned.plan.received_nbytes(message.rank)
        x.check(x.D.view)
    assert received["RS to rows", "float32"] == 2 * received["RS to rows", None]
    assert received["AG(A) columns", "float32"] == received["AG(A) columns", None]
    plan = pblas.plan_matmul(
        x.A.view.desc, x.B.view.desc, out=x.D.view.desc, dtype="bfloat16", nprocs=message.nprocs
    ).plan
    assert isinstance(plan, AllGatherGemm)
    x = Product(message, "AR", (9, 12, 8), "bfloat16", 0)
    reduce = pblas.plan_matmul(
        x.A.view.desc, x.B.view.desc, out=x.D.view.desc, dtype="bfloat16", nprocs=message.nprocs
    ).plan
    assert isinstance(reduce, GemmReduceScatter)
    partial = 2 * GemmReduceScatter.received_elements(reduce, message.rank)
    assert received["AR", "float32"] == received["AR", None] + partial


@few
@pytest.mark.mpi
@pytest.mark.parametrize("layout", LAYOUTS)
def test_workspace_is_within_the_plan(contexts: Contexts, layout: str) -> None:
    """On every rank, with beta or without, for wide and narrow dtypes, over messages, in the window and over both."""
    wide: Any = itertools.cycle([("float64", None), ("bfloat16", None), ("float16", "float32")])
    for ctx, beta in itertools.product(contexts.values(), (0.0, 0.5)):
        for turn, sizes, chunks, overlap in combinations():
            name, wire = next(wide)
            x = Product(ctx, layout, sizes, name, turn, beta)
            with pblas.plan_matmul(
                x.A.view, x.B.view, x.D.view, out=x.D.view, chunks=chunks, overlap=overlap, beta=beta, wire_dtype=wire
            ) as planned:
                x.check(planned.execute(x.A.view, x.B.view, x.D.view, out=x.D.view))
                assert planned.workspace_nbytes <= planned.plan.workspace_nbytes, (planned.plan, name, beta)


@pytest.mark.mpi(min_size=2)
def test_messages_gather_through_the_pieces_of_a_shard(message: pblas.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ranks there are, the chunks of one shard are held; without overlap all that arrives."""
    monkeypatch.setattr(arguments, "choose", only(AllGatherGemm))
    m, n, k, chunks = 40 * message.nprocs, 40, 16, 5
    descs = [MatrixDescriptor.row_wise(*shape, message.nprocs) for shape in ((m, k), (k, n), (m, n))]
    for overlap in (True, False):
        A, B, D = (message.random(desc, seed=seed) for seed, desc in enumerate(descs))
        with pblas.plan_matmul(A, B, out=D, chunks=chunks, overlap=overlap) as planned:
            planned.execute(A, B, out=D)
            assert isinstance(planned.plan, AllGatherGemm)
            received = planned.plan.received_nbytes(message.rank)
            largest = max(planned.plan.shards.count(p) for p in range(message.nprocs) if p != message.rank)
            assert received > 0
            assert planned.workspace_nbytes == (8 * largest * n if overlap else received)


@pytest.mark.mpi(min_size=2)
def test_messages_reduce_through_the_pieces_of_a_shard_and_two_more(
    message: pblas.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pieces of one shard go out and two come in, whatever D's size; beta = 0 needs nothing else."""
    monkeypatch.setattr(arguments, "choose", only(GemmReduceScatter, GemmAllReduce))
    for layout in ("RS to rows", "RS A replicated", "AR"):
        held = {}
        for chunks in (1, 2, 4):
            n = 8 * message.nprocs
            x = Product(message, layout, (n, n, 128 * message.nprocs), "float64", 0)  # no thin GEMMs
            with pblas.plan_matmul(x.A.view, x.B.view, out=x.D.view, chunks=chunks) as planned:
                planned.execute(x.A.view, x.B.view, out=x.D.view)
                held[chunks] = planned.workspace_nbytes
                assert held[chunks] == (max(2, chunks) + 2) * 8 * n * (8 // chunks)


@pytest.mark.mpi(min_size=2)
def test_messages_arrive_while_a_rank_computes(message: pblas.Context) -> None:
    """A message that is too large to be sent at once arrives although this rank calls no MPI, as within BLAS."""
    backend = message.runtime.backend
    x, y = np.full((1 << 20, 1), 1.0 + message.rank), np.zeros((1 << 20, 1))
    received = backend.channel.receive(y, (message.rank - 1) % message.nprocs, 7)
    sent = backend.channel.send(x, (message.rank + 1) % message.nprocs, 7)
    with backend.progressing():
        end = time.monotonic() + 20
        while y[-1, 0] == 0 and time.monotonic() < end:
            time.sleep(0.001)
        arrived = y[-1, 0]
    for transfer in (received, sent):
        backend.wait(transfer.done, "messages of the test")
    assert message.runtime.backend.gather(float(arrived)) == [
        1.0 + (r - 1) % message.nprocs for r in range(message.nprocs)
    ]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("setting", SETTINGS[:2])
@pytest.mark.parametrize("overlap", [True, False])
def test_messages_move_during_executions_that_overlap(
    contexts: Contexts, setting: str, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An execution lets MPI move messages while the rank computes, if there are any; otherwise no thread is woken."""
    ctx, entered = contexts[setting], []
    progressing = type(ctx.runtime.backend).progressing

    def counted(backend: Any) -> Any:
        entered.append(1)
        return progressing(backend)

    a = ctx.ones(MatrixDescriptor.row_wise(24, 24, ctx.nprocs))
    with pblas.plan_matmul(a, a, overlap=overlap) as planned:
        monkeypatch.setattr(type(ctx.runtime.backend), "progressing", counted)
        result = planned.execute(a, a)
        monkeypatch.undo()
    assert np.array_equal(collected(result), np.full((24, 24), 24.0))
    assert len(entered) == (setting == "message" and overlap)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("layout", ["AG(B) rows", "AG(B) columns", "AG(A) columns"])
def test_windows_gather_nothing(window: pblas.Context, layout: str) -> None:
    """Shards that the context allocated are read in place: a plan takes a table of locations, no more."""
    backend, stays = window.runtime.backend, 1 if layout == "AG(A) columns" else 0
    for turn, each in enumerate(SIZES):
        sizes: Any = [30 * size if i == stays else size for i, size in enumerate(each)]  # nothing receives less
        x = Product(window, layout, sizes, "float64", turn)
        window.runtime.agree("settle", {}, maxima=(0, 0, 0, 0))  # what the last turn dropped is free now
        before, received = backend.arena.live_nbytes, backend.channel.received_nbytes
        with pblas.plan_matmul(x.A.view, x.B.view, out=x.D.view) as planned:
            allocated = backend.arena.live_nbytes - before
            planned.execute(x.A.view, x.B.view, out=x.D.view)
            assert planned.workspace_nbytes == 0
            assert backend.arena.live_nbytes - before <= allocated
            assert LOCATION_NBYTES <= allocated <= 256  # blocks are aligned to 256 bytes
            assert backend.channel.received_nbytes == received
        x.check(x.D.view)


@pytest.mark.mpi(min_size=2)
def test_windows_stage_only_arrays_outside_the_window(window: pblas.Context) -> None:
    """A user's own array costs one copy of its shard, taken anew in every execution."""
    n = 4 * window.nprocs
    desc = MatrixDescriptor.row_wise(n, n, window.nprocs)
    values = [entries((n, n), np.dtype(np.float64), seed) for seed in range(3)]
    local: Array = np.zeros(desc.local_shape(window.rank), order="F")
    A, D = window.from_global(values[0], desc, root=None), window.empty(desc)
    B = window.from_local(local, desc)
    with pblas.plan_matmul(A, B, out=D) as planned:
        for value in values:
            local[...] = value[4 * window.rank : 4 * window.rank + 4]
            planned.execute(A, B, out=D)
            assert planned.workspace_nbytes == local.nbytes <= planned.plan.workspace_nbytes
            result = collected(D)
            assert gauge(result, values[0], value) <= THRESHOLD


@few
@pytest.mark.mpi(min_size=2)
def test_arrays_in_the_window_are_read_in_place_though_another_is_not(
    window: pblas.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the rank whose array is outside the window copies it."""
    n = 8 * window.nprocs
    desc = MatrixDescriptor.row_wise(n, n, window.nprocs)
    a, b = (entries((n, n), np.dtype(np.float64), seed) for seed in range(2))
    A, inside = window.from_global(a, desc, root=None), window.from_global(b, desc, root=None).local
    assign = type(window.runtime.backend.arrays).assign
    for wrong in some_wrong():
        local = inside.copy(order="F") if window.rank in wrong else inside
        B, copied = window.from_local(local, desc), list[bool]()

        def counted(
            arrays: Any, source: Array, target: Array, local: Array = local, copied: list[bool] = copied
        ) -> None:
            copied.append(np.shares_memory(source, local))
            assign(arrays, source, target)

        with pblas.plan_matmul(A, B) as planned, monkeypatch.context() as patch:
            patch.setattr(type(window.runtime.backend.arrays), "assign", counted)
            result = planned.execute(A, B)
        assert sum(copied) == (window.rank in wrong)
        assert gauge(collected(result), a, b) <= THRESHOLD


@pytest.mark.mpi(min_size=2)
def test_a_context_measures_the_link_and_all_ranks_plan_with_it(message: pblas.Context) -> None:
    """A link delivers no sooner than it may; without measuring, plans depend on the layouts alone."""
    rate = 1e8
    descs = [
        MatrixDescriptor.column_wise(2048, 2048, message.nprocs),
        MatrixDescriptor.row_wise(2048, 2048, message.nprocs),
    ]
    chunks = {}
    for tuning in ("measured", "fixed"):
        with open_context("message", link=(0.0, rate), tuning=tuning, timeout=30) as ctx:
            bandwidth = ctx.runtime.bandwidth
            assert ctx.runtime.backend.gather(bandwidth) == [bandwidth] * ctx.nprocs
            assert 0 < bandwidth < 1.5 * rate if tuning == "measured" else bandwidth == 0
            plan = pblas.plan_matmul(ctx.zeros(descs[0]), ctx.zeros(descs[1]), out=ctx.empty(descs[0])).plan
            chunks[tuning] = plan.chunks
            assert ("MB/s between nodes (measured)" in plan.explain()) == (tuning == "measured")
    assert chunks["measured"] >= chunks["fixed"]

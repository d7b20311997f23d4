"""Ranks of a node receive data of other nodes once: bytes, waits for each other, nodes of other numbers."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pblas
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matmul import arguments
from pblas.matmul.one_dimensional_plan import AllGatherGemm
from tests.common.choices import only
from tests.common.gauge import Array
from tests.common.ranks import COMM, SEVERAL_HOSTS, Contexts, broken_later, one_host, open_context, outcome_of
from tests.mpi.faults.test_transport import LAYOUTS, Product, combinations

SETTINGS = ("message", "shared", "mixed")


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nodes_receive_the_bytes_of_the_plan(contexts: Contexts, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank by messages or in place; over the network all ranks of a node together receive each shard once."""
    names = itertools.cycle(["float64", "complex64", "float16"])
    for ctx in contexts.values():
        backend = ctx.runtime.backend
        group = next(group for group in backend.groups if ctx.rank in group)
        for turn, sizes, chunks, overlap in combinations():
            x = Product(ctx, layout, sizes, next(names), turn)
            with pblas.plan_matmul(x.A.view, x.B.view, out=x.D.view, chunks=chunks, overlap=overlap) as planned:
                with monkeypatch.context() as patch:
                    far = count_far_bytes(patch, backend)
                    before = backend.channel.received_nbytes + backend.read_nbytes
                    planned.execute(x.A.view, x.B.view, out=x.D.view)
                    received = backend.channel.received_nbytes + backend.read_nbytes - before
                plan, over_network = planned.plan, backend.gather(sum(far))
                assert received == plan.received_nbytes(ctx.rank), plan
                assert sum(over_network[rank] for rank in group) == plan.network_nbytes(group), plan
                if plan.transport == "mixed":
                    nodes = [plan.network_nbytes(node) for node in backend.groups]
                    assert plan.max_network_nbytes == max(nodes)
            x.check(x.D.view)


def count_far_bytes(patch: pytest.MonkeyPatch, backend: Any) -> list[int]:
    """Sizes of the messages that this rank receives from other nodes from now on (local)."""
    far: list[int] = []
    receive = backend.channel.receive

    def counting(x: Array, source: int, tag: int) -> Any:
        if not backend.is_near(source):
            far.append(x.nbytes)
        return receive(x, source, tag)

    patch.setattr(backend.channel, "receive", counting)
    return far


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("layout", ["AG(B) rows", "AG(B) columns", "AG(A) columns"])
def test_slow_ranks_of_a_node_read_pieces_before_later_ones_take_their_memory(
    contexts: Contexts, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With memory for one piece on each rank, and GEMMs of random length: the bits are those of the messages."""
    bits = {}
    monkeypatch.setattr("pblas.matmul.product_plan.ProductPlan.in_flight", 1)
    monkeypatch.setattr(arguments, "choose", only(AllGatherGemm))
    for name in ("message", "mixed"):
        ctx, rng = contexts[name], np.random.default_rng(contexts[name].rank)
        arrays = ctx.runtime.backend.arrays
        gemm = arrays.gemm

        def slow(*args: Any, gemm: Any = gemm, rng: Any = rng, **kwargs: Any) -> Any:
            time.sleep(rng.choice([0, 0, 0.001, 0.005]))
            return gemm(*args, **kwargs)

        monkeypatch.setattr(arrays, "gemm", slow)
        x = Product(ctx, layout, (13, 29, 17), "float64", 0)
        with pblas.plan_matmul(x.A.view, x.B.view, out=x.D.view, chunks=4) as planned:
            assert isinstance(planned.plan, AllGatherGemm)
            results = [planned.execute(x.A.view, x.B.view, out=x.D.view).local.tobytes() for _ in range(3)]
        x.check(x.D.view)
        assert len(set(results)) == 1
        bits[name] = results[0]
    assert bits["message"] == bits["mixed"]


@one_host
@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("layout", ["AG(B) rows", "AG(A) columns", "AR"])
def test_ranks_of_nodes_without_consecutive_numbers_receive_for_themselves(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They read the shards of other nodes in different orders, so that no rank could receive for the others."""
    monkeypatch.setattr(
        "pblas.backends.mpi.transport.MpiTransport.node",
        property(lambda peers: tuple(range(peers.rank % 2, peers.size, 2))),
    )
    with open_context(transport="shared", timeout=30) as ctx:
        backend = ctx.runtime.backend
        assert [list(group) for group in backend.groups] == [[rank] for rank in range(ctx.nprocs)]
        x = Product(ctx, layout, (24, 29, 24), "float64", 0)
        with pblas.plan_matmul(x.A.view, x.B.view, out=x.D.view, chunks=3) as planned, monkeypatch.context() as patch:
            far, before = count_far_bytes(patch, backend), backend.channel.received_nbytes + backend.read_nbytes
            planned.execute(x.A.view, x.B.view, out=x.D.view)
            received = backend.channel.received_nbytes + backend.read_nbytes - before
            assert received == planned.plan.received_nbytes(ctx.rank) >= sum(far) > 0
            assert planned.plan.transport == "mixed"
            assert "  network  " not in planned.explain()
        x.check(x.D.view)
        del x


@one_host
@pytest.mark.mpi(min_size=3)
@pytest.mark.filterwarnings("ignore:.*still in use after the context was closed")
def test_a_piece_that_its_receiver_does_not_announce_is_missed_in_time() -> None:
    with broken_later(ranks_per_node=2, timeout=1.0) as ctx:
        backend = ctx.runtime.backend
        x = Product(ctx, "AG(B) rows", (12, 12, 12), "float64", 0)
        with pblas.plan_matmul(x.A.view, x.B.view, out=x.D.view, chunks=1) as planned:
            assert planned.plan.transport == "mixed"
            if ctx.rank == 0:
                backend.channel.signal = lambda dest, tag: backend.channel.send(np.empty((0, 0)), dest, tag + 1000)  # type: ignore[method-assign]
            name, text = outcome_of(lambda: planned.execute(x.A.view, x.B.view, out=x.D.view))
        assert name == "PeerTimeout"
        if ctx.rank == 1:
            assert "shard of rank 2, piece 0, which rank 0 receives" in text


@pytest.mark.mpi(min_size=2)
@pytest.mark.skipif(not SEVERAL_HOSTS, reason="one host has no link")
@pytest.mark.parametrize("layout", ["AG", "RS", "AR"])
def test_the_link_of_a_host_carries_the_bytes_of_the_plan(contexts: Contexts, layout: str) -> None:
    """Headers, agreements, acknowledgements and what TCP sends again are less than a quarter."""
    n, ctx = 1024, contexts["shared"]
    backend, by_rows, by_columns = ctx.runtime.backend, MatrixDescriptor.row_wise, MatrixDescriptor.column_wise
    kinds: Any = {
        "AG": (by_rows, by_rows, by_rows),
        "RS": (by_columns, by_rows, by_columns),
        "AR": (by_columns, by_rows, MatrixDescriptor.replicated),
    }
    descs = [kind(n, n, ctx.nprocs) for kind in kinds[layout]]
    A, B, D = ctx.random(descs[0], seed=1), ctx.random(descs[1], seed=2), ctx.empty(descs[2])
    with pblas.plan_matmul(A, B, out=D) as planned:
        planned.execute(A, B, out=D)
        time.sleep(0.2)
        COMM.Barrier()
        before = link_nbytes()
        COMM.Barrier()
        planned.execute(A, B, out=D)
        COMM.Barrier()
        received = link_nbytes() - before
        expected = planned.plan.network_nbytes(next(group for group in backend.groups if ctx.rank in group))
    assert expected <= received <= 1.25 * expected + 50_000


def link_nbytes() -> int:
    """Bytes that this host has received so far, headers included (global to the host)."""
    devices = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()[2:]
    return sum(int(line.split()[1]) for line in devices if not line.lstrip().startswith("lo:"))

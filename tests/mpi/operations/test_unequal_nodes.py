"""Nodes of unequal numbers of ranks, and ranks that alternate between nodes: plans know who shares memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import pblas
from pblas import Grid, MatrixDescriptor
from tests.common.gauge import THRESHOLD, Array, entries, gauge
from tests.common.ranks import COMM, grids
from tests.mpi.operations.test_matmul import LAYOUTS, Case, Dimension, Run, part

pytestmark = pytest.mark.mpi
ORDERS = ("by node", "alternating", "descending")


@pytest.fixture(params=ORDERS, scope="module")
def ctx(request: pytest.FixtureRequest) -> Iterator[pblas.Context]:
    """A context whose ranks are numbered in one of several orders."""
    node = COMM.Split_type(MPI.COMM_TYPE_SHARED)
    keys = {"by node": COMM.rank, "alternating": node.rank * COMM.size + COMM.rank, "descending": -COMM.rank}
    comm: Any = COMM.Split(0, keys[request.param])
    with pblas.Context(comm, timeout=20.0) as context:
        yield context
    comm.Free()
    node.Free()


def test_a_plan_is_shared_only_if_all_its_ranks_share_memory(ctx: pblas.Context) -> None:
    """Also a plan of fewer ranks than the context has: those are the first ones."""
    nodes = ctx.runtime.gathered(min(ctx.runtime.backend.near))  # the lowest rank of each rank's node
    for n in range(2, ctx.nprocs + 1):
        first = len(set(nodes[:n])) == 1
        assert ctx.runtime.topology.transport(n) in (("shared", "mixed") if first else ("mixed", "message"))
    least = ctx.runtime.topology.ranks_per_node
    for start in range(0, ctx.nprocs, least):
        assert len(set(nodes[start : start + least])) == 1


def test_one_node_and_equal_nodes_are_known(ctx: pblas.Context) -> None:
    nodes = ctx.runtime.gathered(min(ctx.runtime.backend.near))
    sizes = {nodes.count(node) for node in nodes}
    if nodes == sorted(nodes) and len(sizes) == 1:
        assert ctx.runtime.topology.ranks_per_node == sizes.pop()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_are_right(ctx: pblas.Context, layout: str) -> None:
    dims = Dimension(13, 3, 1), Dimension(17, 2, ctx.nprocs - 1), Dimension(9, 2)
    Run(ctx, Case(*dims, LAYOUTS[layout], options=(("chunks", 2),))).multiply()


def test_products_of_grids_and_redistributions_are_right(ctx: pblas.Context) -> None:
    """On all ranks, and on fewer."""
    m, n, k = 23, 19, 21
    a, b = entries((m, k), np.dtype(float), 1), entries((k, n), np.dtype(float), 2)
    for size in range(1, ctx.nprocs + 1):
        for p, q in grids(size):
            blocks = [MatrixDescriptor(*shape, 4, 5, Grid(p, q)) for shape in ((m, k), (k, n), (m, n))]
            d = pblas.pmatmul(ctx.from_global(a, blocks[0]), ctx.from_global(b, blocks[1]), out=ctx.empty(blocks[2]))
            check(ctx, d, a, b)
            moved = pblas.redistribute(d, MatrixDescriptor.row_wise(m, n, ctx.nprocs, mb=3))
            check(ctx, moved, a, b)


def check(ctx: pblas.Context, d: pblas.DistMatrix, a: Array, b: Array) -> None:
    """Assert that D is A B."""
    whole = d.to_global(root=None)
    assert whole is not None
    assert gauge(whole, a, b, whole * 0) <= THRESHOLD
    assert (d.local == part(whole, d.desc, ctx.rank)).all()

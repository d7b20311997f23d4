"""Sizes near 2**63 beside a size of 0: one error on every rank, or a result without a loop over the blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest

import pblas
from pblas import Context, DistMatrix, Grid, MatrixDescriptor, WorkspaceError
from tests.common.ranks import COMM, check_product, few, raises_on_all_ranks, same_on_all_ranks

pytestmark = [pytest.mark.mpi, few]

P = COMM.size
LONG = 1 << 50
SHAPES = [(LONG, 0), (0, LONG)]


def descriptors(m: int, n: int) -> list[MatrixDescriptor]:
    return [
        MatrixDescriptor.default(m, n, P),
        MatrixDescriptor.replicated(m, n, P),
        MatrixDescriptor(m, n, 2, 3, Grid(P, 1), P - 1, imb=1),
        MatrixDescriptor(m, n, 1, 1, Grid(1, P), order="C"),
    ]


@pytest.mark.parametrize("transport", ["auto", "message"])
@pytest.mark.parametrize("size", [1 << 62, (1 << 63) - 1])
def test_arrays_that_cannot_exist_are_refused_on_every_rank(size: int, transport: Literal["auto", "message"]) -> None:
    with Context(timeout=20.0, transport=transport) as ctx:
        for m, n in ((size, 0), (0, size), (size, 1)):
            for desc in (MatrixDescriptor.replicated(m, n, P), MatrixDescriptor(m, n, size, size, Grid(P, 1))):
                for make in (ctx.zeros, ctx.empty, ctx.random, ctx.ones, partial(ctx.from_function, np.add)):
                    raises_on_all_ranks(WorkspaceError, "", partial(make, desc))
        half = ctx.zeros(MatrixDescriptor.replicated(1 << 59, 0, P))
        raises_on_all_ranks(WorkspaceError, "", lambda: pblas.vstack([half, half]))
        check_product(ctx)


def test_results_that_cannot_exist_are_refused_on_every_rank(ctx: Context) -> None:
    for m, n in SHAPES:
        for desc in descriptors(m, n):
            a, axis = ctx.zeros(desc), 0 if n else 1
            for call in (a.sum, a.norm, lambda axis, a=a: (a @ np.zeros(0)) if axis else (np.zeros(0) @ a)):
                raises_on_all_ranks(WorkspaceError, "", partial(call, axis=axis))
        check_product(ctx)


CALLS: dict[str, Callable[[Context, DistMatrix], Any]] = {
    "to_global": lambda _, a: a.to_global(None).shape,
    "to_global, of a rank": lambda ctx, a: a.to_global() is not None or ctx.rank,
    "from_global": lambda ctx, a: ctx.from_global(np.empty(a.shape), a.desc).shape,
    "random": lambda ctx, a: ctx.random(a.desc).shape,
    "eye": lambda ctx, a: ctx.eye(a.desc).shape,
    "from_function": lambda ctx, a: ctx.from_function(np.add, a.desc).shape,
    "redistribute": lambda ctx, a: a.redistribute(MatrixDescriptor.default(*a.shape, ctx.nprocs)).shape,
    "A + B": lambda ctx, a: (a + ctx.zeros(a.shape)).shape,
    "2 * A": lambda _, a: (2 * a).shape,
    "copy": lambda _, a: a.copy().shape,
    "sum": lambda _, a: float(a.sum()),
    "norm": lambda _, a: float(a.norm(1)),
    "trace": lambda _, a: float(a.trace()),
    "diagonal": lambda _, a: a.diagonal().shape,
    "A.T": lambda _, a: a.T.shape,
    "tril": lambda _, a: pblas.tril(a).shape,
    "A[...] = 1": lambda _, a: a.__setitem__(slice(None), 1.0),
    "picture": lambda _, a: len(a.desc.picture()) < 10000,
    "repr": lambda _, a: repr(a),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("shape", SHAPES, ids=["no columns", "no rows"])
def test_nothing_is_done_block_by_block(ctx: Context, shape: tuple[int, int], name: str) -> None:
    for desc in descriptors(*shape):
        result = CALLS[name](ctx, ctx.zeros(desc))
        if not name.endswith("of a rank"):
            same_on_all_ranks(result)

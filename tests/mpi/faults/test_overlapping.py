"""An array that is written, and whose elements share memory on one rank, is refused on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import linalg, scalapack, tp
from pblas.epilogues import Epilogue
from tests.common.gauge import Array
from tests.common.operations.operation import outcome
from tests.common.ranks import COMM, Contexts, check_product

SETTINGS = ("shared",)
pytestmark = [pytest.mark.mpi(min_size=2)]
P, N = COMM.size, 6
X, W = np.ones((P * N, N)), np.ones((N, N))
WRITERS: dict[str, tuple[Callable[[pblas.Context, Array], object], tuple[int, ...]]] = {
    "allreduce: out": (lambda ctx, z: ctx.allreduce(np.ones((N, N)), z), (N, N)),
    "allreduce: out of three dimensions": (lambda ctx, z: ctx.allreduce(np.ones((2, 3, 4)), z), (2, 3, 4)),
    "allreduce: in place": (lambda ctx, z: ctx.allreduce(z, z), (40000, 3)),
    "reduce_scatter: out": (lambda ctx, z: ctx.reduce_scatter(X, z), (N, N)),
    "allgather: out": (lambda ctx, z: ctx.allgather(np.ones((N, N)), z), (P * N, N)),
    "allreduce: residual": (
        lambda ctx, z: ctx.allreduce(W, epilogue=Epilogue("rmsnorm", weight=np.ones(N), residual=z)),
        (N, N),
    ),
    "allgather_linear: out": (lambda ctx, z: tp.allgather_linear(W, W, out=z, ctx=ctx), (P * N, N)),
    "linear_allreduce: out": (lambda ctx, z: tp.linear_allreduce(W, W, out=z, ctx=ctx), (N, N)),
    "linear_allreduce: aux": (lambda ctx, z: tp.linear_allreduce(W, W, epilogue="gelu", aux=z, ctx=ctx), (N, N)),
    "linear_reduce_scatter: out": (lambda ctx, z: tp.linear_reduce_scatter(X, W, out=z, ctx=ctx), (N, N)),
    "allgather_linear_backward: dweight": (
        lambda ctx, z: tp.allgather_linear_backward(X, W, W, dweight=z, ctx=ctx),
        (N, N),
    ),
    "pmatmul: residual": (
        lambda ctx, z: pblas.pmatmul(
            *2 * (ctx.ones((N * P, N * P)),), epilogue=Epilogue("rmsnorm", weight=np.ones(N * P), residual=z)
        ),
        (N, N * P),
    ),
    "from_local": (lambda ctx, z: ctx.from_local(z, pblas.MatrixDescriptor.row_wise(N * P, N, P, order="C")), (N, N)),
}


def folded(shape: tuple[int, ...]) -> Array:
    """An array whose rows share memory."""
    return np.lib.stride_tricks.as_strided(np.ones(shape[1:]), shape, (0, *np.ones(shape[1:]).strides))


@pytest.mark.parametrize("name", WRITERS)
def test_an_array_that_overlaps_itself_is_refused_by_all_ranks(contexts: Contexts, name: str) -> None:
    """After a call with a good array too, whose form is kept."""
    ctx = contexts["shared"]
    call, shape = WRITERS[name]
    for _ in range(2):
        kind, said, _ = outcome(lambda: call(ctx, np.ones(shape)))
        assert (kind, said) == ("", "")
    kind, said, _ = outcome(lambda: call(ctx, folded(shape) if ctx.rank == P - 1 else np.ones(shape)))
    assert kind in ("ArgumentError", "LayoutError")
    assert "strides" in said
    assert f"found on rank {P - 1} of {P}" in said
    assert len(set(COMM.allgather(said))) == 1
    check_product(ctx)


def test_vectors_of_scalapack_that_overlap_themselves_are_refused() -> None:
    n = 4
    ictxt = scalapack.gridinit(COMM, "R", 1, P)
    desc = [1, ictxt, n, n, n, n, 0, 0, n]
    a = np.eye(n, order="F")
    bad: Any = np.lib.stride_tricks.as_strided(np.zeros(1, np.intc), (n,), (0,))
    pivots = bad if COMM.rank == 0 else np.zeros(n, np.intc)
    kind, said, _ = outcome(lambda: scalapack.pdgetrf(n, n, a, 1, 1, desc, pivots))
    assert (kind, "IPIV has elements that share memory" in said) == ("PblasArgumentError", True)
    kind, said, _ = outcome(
        lambda: scalapack.pdgetrf(n, n, folded((n, n)) if COMM.rank == 0 else a, 1, 1, desc, np.zeros(n, np.intc))
    )
    assert (kind, "A has elements that share memory" in said) == ("PblasArgumentError", True)
    scalapack.gridexit(ictxt)
    with pblas.Context(COMM) as ctx:
        assert linalg.det(ctx.eye(n)) == 1

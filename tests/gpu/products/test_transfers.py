"""No call moves a matrix through host memory: it copies vectors, and its arrays and results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from pblas import Context, DistMatrix
from pblas.matrices import scatter_gather
from tests.common.operations.catalogue import OPERATIONS
from tests.common.operations.operation import Operand, descriptor, made

cupy = pytest.importorskip("cupy")
pytestmark = [pytest.mark.mpi, pytest.mark.gpu]
from pblas.backends.cuda import transfer  # noqa: E402 - it needs CuPy
from pblas.backends.cuda.arrays import DeviceArrays  # noqa: E402

COPIES: list[tuple[Any, str, int]] = [
    *((transfer, name, 0) for name in ("copy_to_host", "copy_from_host", "on_gpu", "on_host")),
    *((DeviceArrays, name, 1) for name in ("download", "upload")),
]
"""The functions that copy, and the position of the array that they copy."""
N, VECTORS = 384, 48
"""Order of the matrices; a call may copy this many vectors of N elements."""
THROUGH_HOSTS = {
    *("DistMatrix.to_global", "Context.from_global", "Context.replicate", "Context.from_parts"),
    "linalg.qr: pivoting",  # which LAPACK does on one host
}
NOT_ON_GPUS = {f"linalg.plan_{name}" for name in ("pinv", "polar", "rsvd", "svd")}
"""Plans that GPUs have not, since their steps depend on the matrix."""
ON_GPUS = {"Context.allgather", "Context.allreduce", "Context.reduce_scatter"}
"""Calls that take arrays on the GPU, which the catalogue has in host memory."""


def counted(patch: pytest.MonkeyPatch, call: Callable[[], Any]) -> tuple[int, Any]:
    """Bytes that the library copies between the GPU and the host in a call, and its result."""
    moved = [0]

    def counting(function: Any, place: int) -> Any:
        def counted(*arguments: Any) -> Any:
            moved[0] += arguments[place].nbytes
            return function(*arguments)

        return counted

    with patch.context() as patched:
        for where, name, place in COPIES:
            patched.setattr(where, name, counting(getattr(where, name), place))
        result = call()
    return moved[0], result


@pytest.fixture(scope="module")
def ctx() -> Iterator[Context]:
    with Context(backend="nvshmem", timeout=60.0) as context:
        yield context


def placed_on_gpus(ctx: Context, name: str, x: Any, operand: Operand) -> DistMatrix:
    """**Collective.** The matrix of an operand, a view if it is conjugated or has an offset."""
    (m, n), (i, j) = x.shape, operand.offset
    whole = np.zeros((m + 2 * i, n + 2 * j), x.dtype)
    whole[i : i + m, j : j + n] = x
    view = ctx.from_global(whole, descriptor(operand.layout, whole.shape, operand.order), None)[i : i + m, j : j + n]
    return view.conj() if operand.conj else view


def nbytes_of(*values: Any) -> int:
    """Bytes of the arrays in host memory among some values."""
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray))


@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - THROUGH_HOSTS - ON_GPUS - NOT_ON_GPUS))
def test_a_call_copies_no_matrix(ctx: Context, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = OPERATIONS[name]
    monkeypatch.setattr(scatter_gather, "IN_PLACE_NBYTES", 0)
    for _ in range(2):  # the first call makes plans, and what they keep
        arguments = made(ctx, operation.values, N, placed_on_gpus)[0]
        moved, result = counted(monkeypatch, partial(operation.call, ctx, **arguments))
    given = nbytes_of(*arguments.values(), *(result if isinstance(result, tuple) else [result]))
    assert moved <= given + VECTORS * N * 16

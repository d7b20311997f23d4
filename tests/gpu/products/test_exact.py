"""Reproducible products on GPUs, with NVSHMEM and messages: the bits of one rank, "exact" ones on its processor."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import pblas
from tests.common.gauge import applied, dtype_of, entries
from tests.common.ranks import collected, open_context, raises_on_all_ranks
from tests.gpu.products.general import BACKENDS, context
from tests.mpi.laws.test_reproducible import DTYPES, EXACT, KINDS, TRANS, P, layout

FIXED = (5, 3, 7), (65, 70, 4097), (9, 100, 8200), (3, 4, 40000), (300, 5, 15000), (32, 48, 2048)

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]


@pytest.fixture(scope="module", params=BACKENDS)
def ctx(request: pytest.FixtureRequest) -> Iterator[pblas.Context]:
    with context(request.param) as opened:
        yield opened


@pytest.fixture(scope="module")
def processor() -> Iterator[pblas.Context]:
    """A context of this rank alone, with matrices in the memory of its host."""
    with open_context(comm=MPI.COMM_SELF, backend="mpi") as opened:
        yield opened


@pytest.fixture(scope="module")
def alone() -> Iterator[pblas.Context]:
    """A context of this rank alone, with matrices in the memory of its GPU."""
    with open_context(comm=MPI.COMM_SELF, backend="cuda") as opened:
        yield opened


def dealt(dtypes: tuple[str, ...], number: int, backend: str) -> tuple[str, ...]:
    """A third of the dtypes, at least one: over all backends and three sizes each dtype has its turn."""
    return dtypes[(number + BACKENDS.index(backend)) % min(3, len(dtypes)) :: 3]


@pytest.mark.parametrize("number", range(len(EXACT)), ids=lambda number: str(EXACT[number]))
def test_gpus_give_the_bits_of_a_processor(
    request: pytest.FixtureRequest, ctx: pblas.Context, processor: pblas.Context, number: int
) -> None:
    for dtype in dealt(("float64", "float32"), number, request.node.callspec.params["ctx"]):
        compare(ctx, processor, dtype, EXACT[number], "exact")


@pytest.mark.parametrize("number", range(len(FIXED)), ids=lambda number: str(FIXED[number]))
def test_gpus_give_the_bits_of_one_gpu(
    request: pytest.FixtureRequest, ctx: pblas.Context, alone: pblas.Context, number: int
) -> None:
    for dtype in dealt(DTYPES, number, request.node.callspec.params["ctx"]):
        compare(ctx, alone, dtype, FIXED[number], True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("size", [(600, 520, 14400), (48, 72, 28680), (264, 8, 4104)], ids=str)
def test_a_kernel_that_adds_pieces_gives_the_bits_of_cublaslt(
    ctx: pblas.Context, alone: pblas.Context, dtype: str, size: tuple[int, int, int]
) -> None:
    """With NVSHMEM on Hopper GPUs; operands are stored along K, and each rank has all of K of its part of D."""
    m, n, k = size
    x, y = entries((m, k), dtype_of(dtype), 1), entries((k, n), dtype_of(dtype), 2)
    expected = collected(pblas.pmatmul(alone.from_global(x), alone.from_global(y), reproducible=True))
    left = pblas.MatrixDescriptor.row_wise(m, k, P, mb=-(-m // (8 * P)) * 8, order="C")
    a, b = ctx.from_global(x, left), ctx.from_global(y, pblas.MatrixDescriptor.replicated(k, n, P, order="F"))
    orders: tuple[Any, ...] = ("C", "F")
    for order in orders:
        out = pblas.MatrixDescriptor.row_wise(m, n, P, mb=left.mb, order=order)
        with pblas.plan_matmul(a, b, out=out, reproducible=True) as planned:
            for _ in range(3):  # eager, captured and launched again
                assert collected(planned.execute(a, b)).tobytes() == expected.tobytes(), planned.explain()


def compare(ctx: pblas.Context, one: pblas.Context, dtype: str, size: tuple[int, int, int], reproducible: Any) -> None:
    """**Collective.** Compare products in random layouts with those of one rank."""
    choice = random.Random(f"{dtype} {size} {P}")
    m, n, k = size
    x, y, z = (entries(shape, dtype_of(dtype), seed) for seed, shape in enumerate(((m, k), (k, n), (m, n))))
    for alpha, beta in ((1, 0), (-0.3, 0.7)):
        transa, transb = choice.choice(TRANS), choice.choice(TRANS)
        options: dict[str, Any] = {"alpha": alpha, "beta": beta, "reproducible": reproducible}
        expected = pblas.pmatmul(*(one.from_global(array) for array in (x, y, z)), **options)
        a, b, c = (
            ctx.from_global(array, layout(choice.choice(KINDS), array.shape, choice.choice("FC"), choice))
            for array in (applied(transa, x), applied(transb, y), z)
        )
        options |= {"transa": transa, "transb": transb, "out": c.desc, "chunks": choice.choice([None, 1, 3])}
        options["overlap"] = choice.random() < 0.7
        with pblas.plan_matmul(a, b, c, **options) as planned:
            for _ in range(2):
                result = planned.execute(a, b, c)
                assert collected(result).tobytes() == collected(expected).tobytes(), planned.explain()
            assert planned.workspace_nbytes <= planned.plan.workspace_nbytes, planned.explain()
        assert collected(pblas.pmatmul(a, b, c, **options)).tobytes() == collected(expected).tobytes()


def test_products_are_near_those_of_numpy(alone: pblas.Context) -> None:
    """The law above compares pblas with itself."""
    x, y = entries((33, 5000), np.dtype("float64"), 1), entries((5000, 17), np.dtype("float64"), 2)
    result = collected(pblas.pmatmul(alone.from_global(x), alone.from_global(y), reproducible=True))
    assert abs(result - x @ y).max() <= 1e-13 * (abs(x) @ abs(y)).max()


def test_matrices_of_8_bits_are_refused(ctx: pblas.Context) -> None:
    a = ctx.zeros((16, 16), dtype=dtype_of("float8_e4m3fn"))
    raises_on_all_ranks(pblas.DTypeError, "of 16 bits and more", lambda: pblas.pmatmul(a, a, reproducible=True))

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


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("size", EXACT, ids=str)
def test_gpus_give_the_bits_of_a_processor(
    ctx: pblas.Context, processor: pblas.Context, dtype: str, size: tuple[int, int, int]
) -> None:
    compare(ctx, processor, dtype, size, "exact")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", FIXED, ids=str)
def test_gpus_give_the_bits_of_one_gpu(
    ctx: pblas.Context, alone: pblas.Context, dtype: str, size: tuple[int, int, int]
) -> None:
    compare(ctx, alone, dtype, size, True)


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

"""reproducible="exact" on GPUs, with NVSHMEM and with messages: the bits of one rank's processor."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import pblas
from tests.common.gauge import applied, entries
from tests.common.ranks import collected, open_context, raises_on_all_ranks
from tests.gpu.products.general import BACKENDS, context
from tests.mpi.laws.test_reproducible import EXACT, KINDS, TRANS, P, layout

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


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("size", EXACT, ids=str)
def test_gpus_give_the_bits_of_a_processor(
    ctx: pblas.Context, processor: pblas.Context, dtype: str, size: tuple[int, int, int]
) -> None:
    choice = random.Random(f"{dtype} {size} {P}")
    m, n, k = size
    x, y, z = (entries(shape, np.dtype(dtype), seed) for seed, shape in enumerate(((m, k), (k, n), (m, n))))
    for alpha, beta in ((1, 0), (-0.3, 0.7)):
        transa, transb = choice.choice(TRANS), choice.choice(TRANS)
        options: dict[str, Any] = {"alpha": alpha, "beta": beta, "reproducible": "exact"}
        expected = pblas.pmatmul(*(processor.from_global(array) for array in (x, y, z)), **options)
        a, b, c = (
            ctx.from_global(array, layout(choice.choice(KINDS), array.shape, choice.choice("FC"), choice))
            for array in (applied(transa, x), applied(transb, y), z)
        )
        options |= {"transa": transa, "transb": transb, "out": c.desc, "chunks": choice.choice([None, 1, 3])}
        with pblas.plan_matmul(a, b, c, **options) as planned:
            for _ in range(2):
                result = planned.execute(a, b, c)
                assert collected(result).tobytes() == collected(expected).tobytes(), planned.explain()
            assert planned.workspace_nbytes <= planned.plan.workspace_nbytes, planned.explain()
        assert collected(pblas.pmatmul(a, b, c, **options)).tobytes() == collected(expected).tobytes()


def test_other_reproducible_products_are_refused(ctx: pblas.Context) -> None:
    a = ctx.zeros((4, 4))
    raises_on_all_ranks(
        pblas.ArgumentError, "pass reproducible='exact'", lambda: pblas.pmatmul(a, a, reproducible=True)
    )

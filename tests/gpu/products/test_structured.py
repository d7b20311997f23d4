"""Laws of syrk, symm, trmm and their relatives on GPUs, with NVSHMEM and with messages; see tests/mpi/operations."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

import pblas
from tests.common.gauge import NAMES, Array, dtype_of, entries
from tests.conformance.structured import ROUTINES, error, extents, names, poison
from tests.gpu.products.general import BACKENDS, context
from tests.mpi.operations.test_structured import GUARD, call, placed, some_problem, whole

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]
CASES = 16


@pytest.fixture(scope="module", params=BACKENDS)
def ctx(request: pytest.FixtureRequest) -> Iterator[pblas.Context]:
    with context(request.param) as opened:
        yield opened


@pytest.mark.parametrize("routine", ROUTINES)
def test_of_any_layouts(ctx: pblas.Context, routine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gauge of PBLAS; NaN in all that must not be read; nothing else is written; with one leaf and with many."""
    monkeypatch.setattr("pblas.symmetric.choose._LEAF_ON_GPUS", 16)
    rng = random.Random(f"{routine} {ctx.nprocs}")
    for case in range(CASES):
        name = rng.choice([x for x in NAMES if routine[0] != "h" or x.startswith("complex")])
        problem = some_problem(rng, routine, name, sizes=(0, 1, 9, 33, 70))
        subs: dict[str, Array] = {}
        for seed, operand in enumerate(names(routine)):
            subs[operand] = entries(extents(problem, operand), dtype_of(name), 100 * case + seed)
            poison(problem, operand, subs[operand])
        matrices = {operand: placed(ctx, rng, x) for operand, x in subs.items()}
        call(problem, {operand: view for operand, (_, view, _) in matrices.items()})
        matrix, view, place = list(matrices.values())[-1]
        result, around = whole(view), whole(matrix)
        text, _ = error(problem, subs, np.arange(result.shape[0]), np.arange(result.shape[1]), result)
        assert not text, f"case {case}: {text}: {problem}, {name}"
        around[place] = GUARD
        assert (around == GUARD).all(), f"case {case}: memory around the result has changed"

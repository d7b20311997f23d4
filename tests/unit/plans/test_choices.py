"""The law of the planner: no other plan is much faster by the simulation than the plan that it chooses.

`python -m benchmarks.planning` looks at 2,000 random products, on up to 4096 ranks.
"""

from __future__ import annotations

import random

import pytest

from benchmarks.planning import WITHIN, Case
from pblas.matmul.choose import _SURE, choose, choose_layouts, general_product
from pblas.matmul.choose_granularity import PlanningContext, needed_nbytes
from pblas.matmul.choose_grid import over_all_ranks
from pblas.simulation.hardware import FAT_TREE, LAPTOP, NVLINK, Hardware, Topology
from pblas.simulation.simulate import predict, simulate


@pytest.mark.parametrize("seed", range(100))
def test_no_other_plan_is_much_faster(seed: int) -> None:
    found = Case.of(random.Random(seed), most=16 if seed % 10 else 64).outcome()
    assert found.fits
    assert found.ratio <= WITHIN, found


@pytest.mark.parametrize("seed", range(24))
def test_outlines_are_bounds_and_predictions_include_the_slowest_rank(seed: int) -> None:
    """Operands are on all ranks, on many or on few; on GPUs panels may be wider than in outline."""
    rng = random.Random(seed)
    case = next(case for case in iter(lambda: Case.of(rng, most=(8, 64, 400)[seed % 3]), None) if case.layouts)
    context, bounds = case.context, [0.0]
    assert case.layouts is not None

    def promises(bound: float) -> bool:
        bounds.append(bound)
        return True

    product = general_product(case.dtype, *case.layouts, context.nprocs)
    for plans in over_all_ranks(product, (), context.machine, promises, 6):
        for plan in map(context.complete, plans):
            seconds = predict(plan, context.machine)
            assert seconds >= simulate(plan, context.machine, plan.extreme_ranks()).seconds
            assert context.hardware is NVLINK or _SURE * bounds[-1] <= seconds, plan


@pytest.mark.parametrize("hardware", [None, LAPTOP, FAT_TREE])
def test_matrices_and_little_more_fit_into_memory(hardware: Hardware | None) -> None:
    """54 MB of matrices on each rank: no copy of an operand is counted, since the context makes the matrices."""
    topology = Topology(4, shared=True) if hardware is None else hardware.topology
    context = PlanningContext(topology, 4, hardware=hardware, memory_nbytes=60_000_000)
    layouts = choose_layouts(3000, 3000, 3000, "float64", context=context)
    plan = choose("float64", *layouts, context=context)
    assert needed_nbytes(plan) <= 60_000_000
    assert plan.staged_nbytes > 0 or plan.transport == "message"


def test_the_example_of_the_documentation_runs_at_its_rate() -> None:
    context = PlanningContext(FAT_TREE.topology, 4096, hardware=FAT_TREE)
    layouts = choose_layouts(262144, 262144, 262144, "float64", context=context)
    simulation = choose("float64", *layouts, context=context).simulate(FAT_TREE)
    assert simulation.efficiency >= 0.9
    assert simulation.fits

"""The law of the planner: no other plan is much faster by the simulation than the plan that it chooses.

`python -m tests.unit.plans.test_choices 2000` checks as many random products, on up to 4096 ranks.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from pblas.matmul.choose import choose, choose_layouts, general_product, one_dimensional
from pblas.matmul.choose_granularity import PlanningContext, needed_nbytes
from pblas.matmul.choose_grid import free_layouts, natural_plan, on_grids, over_all_ranks
from pblas.matmul.product_plan import ProductPlan
from pblas.simulation.hardware import FAT_TREE, ITEMSIZE, LAPTOP, NVLINK, Hardware, Topology
from pblas.simulation.simulate import predict

WITHIN = 1.05
Layouts = tuple[MatrixDescriptor, MatrixDescriptor, MatrixDescriptor]
RANKS = 2, 3, 4, 6, 8, 12, 16, 30, 64, 128, 256, 1000, 1024, 4096


class Case(NamedTuple):
    """A product to plan: with given layouts, or None for layouts that the planner chooses."""

    hardware: Hardware
    nprocs: int
    sizes: tuple[int, int, int]
    dtype: str
    layouts: Layouts | None
    memory_nbytes: int | None

    @staticmethod
    def draw(rng: random.Random, most: int) -> Case:
        hardware, nprocs = rng.choice((LAPTOP, FAT_TREE, NVLINK)), rng.choice([p for p in RANKS if p <= most])
        largest = {"laptop": 13, "fat-tree": 15, "nvlink": 16}[hardware.name] + min(2.0, nprocs.bit_length() / 6)
        m, n, k = (int(2 ** rng.uniform(6, largest)) for _ in range(3))
        dtype = rng.choice(("float64", "bfloat16" if hardware is NVLINK else "float32"))
        layouts, limit = None, None
        if rng.random() < 0.5:
            layouts = drawn(rng, m, k, nprocs), drawn(rng, k, n, nprocs), drawn(rng, m, n, nprocs)
        if rng.random() < 0.4:
            limit = int(rng.uniform(1.3, 4) * ITEMSIZE[dtype] * (m * n + n * k + m * k) / nprocs) + 4096
        return Case(hardware, nprocs, (m, n, k), dtype, layouts, limit)

    def check(self) -> None:
        """Assert that no plan of the library is much faster than the chosen one, of those that fit into memory."""
        hardware, limit = self.hardware, self.memory_nbytes or self.hardware.memory_nbytes
        context = PlanningContext(hardware.topology, self.nprocs, hardware=hardware, memory_nbytes=self.memory_nbytes)
        layouts = self.layouts or choose_layouts(*self.sizes, self.dtype, context=context)
        chosen = choose(self.dtype, *layouts, context=context)
        seconds, fits = chosen.simulate(hardware).seconds, needed_nbytes(chosen) <= limit
        for plan in map(context.complete, self.plans(context)):
            # A prediction is the simulation of a few ranks, so it is never longer than that of all.
            if needed_nbytes(plan) <= limit and (not fits or WITHIN * predict(plan, hardware) < seconds):
                assert fits, (self, chosen, plan)
                assert seconds <= WITHIN * plan.simulate(hardware).seconds, (self, chosen, plan)

    def plans(self, context: PlanningContext) -> Iterator[ProductPlan]:
        """All plans for these layouts, or for all layouts that can be chosen."""
        everything = lambda _: True  # noqa: E731
        free = free_layouts(*self.sizes, self.dtype, self.nprocs, self.hardware, everything, sys.maxsize)
        for layouts, sizes in free if self.layouts is None else ((self.layouts, None),):
            product = general_product(self.dtype, *layouts, self.nprocs)
            yield from one_dimensional(self.dtype, *layouts, self.nprocs)
            yield from on_grids(product)
            if sizes is not None:
                yield natural_plan(product, sizes)
            else:
                every = over_all_ranks(product, (), self.hardware, everything, sys.maxsize)
                yield from itertools.chain.from_iterable(every)


def drawn(rng: random.Random, m: int, n: int, nprocs: int) -> MatrixDescriptor:
    """Random layouts: rows, columns, or blocks over a grid."""
    kind = rng.choice(("rows", "columns", "blocks", "blocks"))
    if kind != "blocks":
        return (MatrixDescriptor.row_wise if kind == "rows" else MatrixDescriptor.column_wise)(m, n, nprocs)
    nprow, block = rng.choice([p for p in range(1, nprocs + 1) if nprocs % p == 0]), rng.choice((64, 128, 256))
    return MatrixDescriptor(m, n, block, block, Grid(nprow, nprocs // nprow))


@pytest.mark.parametrize("seed", range(100))
def test_no_other_plan_is_much_faster(seed: int) -> None:
    Case.draw(random.Random(seed), most=16 if seed % 10 else 64).check()


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


def main(count: int) -> None:
    """Check `count` random products and print those that fail."""
    failed = 0
    for seed in range(count):
        try:
            Case.draw(random.Random(seed), most=4096).check()
        except AssertionError as error:
            failed += 1
            print(f"{seed}: {error}".splitlines()[0][:600], flush=True)
    print(f"{failed} of {count} fail")


if __name__ == "__main__":
    main(int(sys.argv[1]))

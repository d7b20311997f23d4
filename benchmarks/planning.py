"""How long the planner takes on first sight, and how good its choice is: random products on described machines.

Sizes, 2 to 4096 ranks, layouts, presets and memory limits are random, and some layouts are left to the planner. The
chosen plan is compared with all plans of the library by the full simulation; a plan whose lower bound or prediction is
longer than that of the chosen one needs no full simulation. Times are of this process alone, in CPU time.

    python -m benchmarks.planning --cases 2000
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from pblas.matmul.choose import choose, choose_layouts, general_product, one_dimensional
from pblas.matmul.choose_granularity import PlanningContext, needed_nbytes
from pblas.matmul.choose_grid import free_layouts, natural_plan, on_grids, over_all_ranks
from pblas.matmul.product_plan import ProductPlan
from pblas.simulation.hardware import NVLINK, PRESETS
from pblas.simulation.simulate import least, predict, simulate

WITHIN = 1.05  # the chosen plan takes at most so many times as long as the best one
_NO_LIMIT = 1 << 60
Layouts = tuple[MatrixDescriptor, MatrixDescriptor, MatrixDescriptor]


@dataclass(frozen=True)
class Case:
    """A product: its layouts, or None if they are to be chosen, its machine, and how short memory is."""

    sizes: tuple[int, int, int]
    dtype: str
    layouts: Layouts | None
    context: PlanningContext
    part: float | None  # of the memory between what the plans need least and most; None: there is no limit

    @staticmethod
    def of(rng: random.Random, most: int = 4096) -> Case:
        """A random case on 2 to `most` ranks."""
        hardware = rng.choice(list(PRESETS.values()))
        nprocs = min(most, round(2 ** rng.uniform(1, rng.choice((3, 6, 12)))))
        m, n, k = (round(2 ** rng.uniform(6, 15)) for _ in range(3))
        dtype = rng.choice(("float64", "bfloat16" if hardware is NVLINK else "float32"))
        layouts = None
        if rng.random() < 0.7:
            layouts = _layout(rng, m, k, nprocs), _layout(rng, k, n, nprocs), _layout(rng, m, n, nprocs)
        context = PlanningContext(hardware.topology, nprocs, hardware=hardware, memory_nbytes=_NO_LIMIT)
        return Case((m, n, k), dtype, layouts, context, rng.uniform(0, 1) if rng.random() < 0.4 else None)

    def plans(self) -> Iterator[ProductPlan]:
        """All plans of the library, for these layouts or for all that can be chosen."""
        nprocs, machine = self.context.nprocs, self.context.machine
        free = free_layouts(*self.sizes, self.dtype, nprocs, machine, lambda _: True, sys.maxsize)
        for layouts, sizes in free if self.layouts is None else ((self.layouts, None),):
            product = general_product(self.dtype, *layouts, nprocs)
            yield from one_dimensional(self.dtype, *layouts, nprocs)
            yield from on_grids(product)
            if sizes is not None:
                yield natural_plan(product, sizes)
            else:
                every = over_all_ranks(product, (), machine, lambda _: True, sys.maxsize)
                yield from itertools.chain.from_iterable(every)

    def limited(self) -> PlanningContext:
        """The context with its memory limit."""
        if self.part is None:
            return self.context
        needed = sorted(needed_nbytes(self.context.complete(plan)) for plan in self.plans())
        return replace(self.context, memory_nbytes=int(needed[0] + self.part * (needed[-1] - needed[0])))

    def outcome(self) -> Outcome:
        """Choose, and compare with all plans."""
        context = self.limited()
        machine, limit = context.machine, context.memory_nbytes or 0
        start = time.process_time()
        layouts = self.layouts or choose_layouts(*self.sizes, self.dtype, context=context)
        chosen = choose(self.dtype, *layouts, context=context)
        seconds = time.process_time() - start
        first = best = _simulated(chosen, context)
        name, fits = chosen.label, needed_nbytes(chosen) <= limit
        for plan in map(context.complete, self.plans()):
            if needed_nbytes(plan) > limit:
                continue
            if not fits:
                return Outcome(seconds, 1.0, False, chosen.label, plan.label)
            # A prediction is the simulation of a few ranks, so it is never longer than that of all.
            if max(least(plan, machine), predict(plan, machine)) < best:
                taken = _simulated(plan, context)
                if taken < best:
                    best, name = taken, f"{plan.label} {plan.why}"
        return Outcome(seconds, first / best, True, chosen.label, name)


def _layout(rng: random.Random, m: int, n: int, nprocs: int) -> MatrixDescriptor:
    kind = rng.choice(("rows", "columns", "replicated", "grid", "grid"))
    if kind == "rows":
        return MatrixDescriptor.row_wise(m, n, nprocs)
    if kind == "columns":
        return MatrixDescriptor.column_wise(m, n, nprocs)
    if kind == "replicated":
        return MatrixDescriptor.replicated(m, n, nprocs)
    nprow = rng.choice([p for p in range(1, nprocs + 1) if nprocs % p == 0])
    nb = rng.choice((32, 64, 128, 256, 1000))
    return MatrixDescriptor(m, n, nb, nb, Grid(nprow, nprocs // nprow))


@dataclass(frozen=True)
class Outcome:
    """What was chosen for a case, in which time, and how much longer it takes than the best plan."""

    seconds: float  # CPU time of the choice
    ratio: float  # time of the chosen plan over that of the best one that fits
    fits: bool  # whether the chosen plan fits, or none does
    chosen: str
    best: str


def _simulated(plan: ProductPlan, context: PlanningContext) -> float:
    """Seconds by the full simulation."""
    ranks = plan.extreme_ranks() | set(plan.typical_ranks(context.machine.ranks_per_node))
    return simulate(plan, context.machine, ranks).seconds


def main() -> None:
    """Print the quantiles of the times, and the cases that miss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="+", help="numbers of the cases to look at")
    options = parser.parse_args()
    outcomes, missed = [], 0
    for number in options.only or range(options.cases):
        case = Case.of(random.Random(f"{options.seed}, {number}"))
        found = case.outcome()
        outcomes.append(found)
        if found.ratio > WITHIN or not found.fits:
            missed += 1
            lack = "" if found.fits else "DOES NOT FIT, "
            print(f"{number}: {lack}{found.ratio:.3f} {found.chosen}; best: {found.best}; {case.context.machine.name}")
    times = sorted(1e3 * found.seconds for found in outcomes)
    quantiles = ", ".join(f"{q}%: {times[min(len(times) - 1, len(times) * q // 100)]:.2f}" for q in (50, 90, 99, 100))
    print(f"{len(outcomes)} cases, {missed} not within 5 % of the best plan, or too large; ms to choose: {quantiles}")


if __name__ == "__main__":
    main()

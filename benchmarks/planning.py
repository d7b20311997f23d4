"""How long the planner takes on first sight, and how good its choice is: random products on described machines.

Sizes, 2 to 4096 ranks, layouts, presets and memory limits are random. The chosen plan is compared with all plans of the
library by the full simulation; a plan whose lower bound or prediction is longer than that of the chosen one needs no
full simulation. Times are of this process alone, in CPU time.

    python -m benchmarks.planning --cases 2000
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from pblas.matmul.choose import choose, general_product, one_dimensional
from pblas.matmul.choose_granularity import PlanningContext, needed_nbytes
from pblas.matmul.choose_grid import on_grids, over_all_ranks
from pblas.matmul.product_plan import ProductPlan
from pblas.simulation.hardware import PRESETS
from pblas.simulation.simulate import least, predict, simulate

WITHIN = 1.05  # the chosen plan takes at most so many times as long as the best one
_ALL = 1 << 20  # arrangements of all ranks: more than there are


@dataclass(frozen=True)
class Case:
    """A product: its layouts, its machine, and the memory of a rank as a part of what a rank of each plan needs."""

    descs: tuple[MatrixDescriptor, MatrixDescriptor, MatrixDescriptor]
    context: PlanningContext
    part: float | None

    @staticmethod
    def of(rng: random.Random) -> Case:
        """A random case."""
        nprocs = min(4096, round(2 ** rng.uniform(1, rng.choice((3, 6, 12)))))
        m, n, k = (round(2 ** rng.uniform(6, 15)) for _ in range(3))
        hardware = rng.choice(list(PRESETS.values()))
        context = PlanningContext(hardware.topology, nprocs, hardware=hardware, memory_nbytes=1 << 60)
        a, b, d = (_layout(rng, *shape, nprocs) for shape in ((m, k), (k, n), (m, n)))
        return Case((a, b, d), context, rng.uniform(0, 1) if rng.random() < 0.5 else None)

    def plans(self) -> Iterator[ProductPlan]:
        """All plans of the library."""
        product = general_product("float64", *self.descs, self.context.nprocs)
        yield from one_dimensional("float64", *self.descs, self.context.nprocs)
        yield from on_grids(product)
        yield from itertools.chain.from_iterable(
            over_all_ranks(product, (), self.context.machine, lambda _: True, _ALL)
        )

    def limited(self) -> PlanningContext:
        """The context with its memory limit: between the least and the most that its plans need."""
        if self.part is None:
            return self.context
        needed = sorted(needed_nbytes(self.context.complete(plan)) for plan in self.plans())
        return replace(self.context, memory_nbytes=int(needed[0] + self.part * (needed[-1] - needed[0])))


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


def outcome(case: Case) -> Outcome:
    """Choose, and compare with all plans."""
    context = case.limited()
    machine, limit = context.machine, context.memory_nbytes or 0
    start = time.process_time()
    chosen = choose("float64", *case.descs, context=context)
    seconds = time.process_time() - start
    first = best = _simulated(chosen, context)
    fitting, name = needed_nbytes(chosen) <= limit, chosen.label
    fits = fitting
    for plan in case.plans():
        complete = context.complete(plan)
        if needed_nbytes(complete) > limit:
            continue
        if not fitting:
            return Outcome(seconds, 1.0, False, chosen.label, complete.label)
        if max(least(complete, machine), predict(complete, machine)) < best:
            taken = _simulated(complete, context)
            if taken < best:
                best, name = taken, f"{complete.label} {complete.why}"
    return Outcome(seconds, first / best, fits or not fitting, chosen.label, name)


def _simulated(plan: ProductPlan, context: PlanningContext) -> float:
    """Seconds by the full simulation."""
    ranks = plan.extreme_ranks() | set(plan.typical_ranks(context.machine.ranks_per_node))
    return simulate(plan, context.machine, ranks).seconds


def main() -> None:
    """Print the quantiles of the times, and the cases that miss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    outcomes, missed = [], 0
    for number in range(options.cases):
        case = Case.of(rng)
        found = outcome(case)
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

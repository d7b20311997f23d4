"""`plan solve`, `plan cholesky`, `plan qr` and `plan eigh`: the bytes that they move, without running them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.cli.layout import Named, check_grid
from pblas.cli.output import Console
from pblas.errors import ArgumentError

if TYPE_CHECKING:
    from argparse import Namespace

    from pblas.plans.base import Plan

OPERATIONS = "matmul", "solve", "cholesky", "qr", "eigh"
_USES = {
    "m": ("matmul", "qr"),
    "nrhs": ("solve",),
    "b": ("matmul", "solve"),
    "assume_a": ("solve",),
    "algorithm": ("solve", "cholesky", "qr", "eigh"),
    **dict.fromkeys(("k", "out", "grid", "block", "transa", "transb", "chunks", "no_overlap"), ("matmul",)),
}
"""The operations that take an option, if not all do."""


def check_options(arguments: Namespace, defaults: Namespace) -> None:
    """Raise ArgumentError for an option that the operation does not take."""
    for name, operations in _USES.items():
        if arguments.operation not in operations and getattr(arguments, name) != getattr(defaults, name):
            option, others = name.replace("_", "-"), " and ".join(f"plan {x}" for x in operations)
            raise ArgumentError(f"plan {arguments.operation}: --{option} is for {others}; leave it out")


def run(arguments: Namespace, console: Console) -> int:
    """Print the plans of an operation, and the simulated times if they are asked for."""
    plans = _plans(arguments)
    for plan in plans:
        console.print(plan.explain(), soft_wrap=True)
    for plan in plans if arguments.simulate else ():
        console.print(str(plan.simulate(arguments.simulate)), soft_wrap=True)
    return 0


def _plans(arguments: Namespace) -> list[Plan]:
    """The plans of the steps of an operation."""
    from pblas.factor import arguments as checks
    from pblas.factor.cholesky import plan_cholesky
    from pblas.factor.qr import plan_qr
    from pblas.factor.solve_plan import solve_plans
    from pblas.spectral.eigh import plan_eigh

    ranks, n, operation = arguments.ranks, arguments.n, arguments.operation
    algorithm: Any = arguments.algorithm or "auto"
    a = (arguments.a or Named("row")).descriptor(n if arguments.m is None else arguments.m, n, ranks)
    check_grid("plan", "A", a, ranks)
    options: Any = {"algorithm": algorithm, "dtype": arguments.dtype, "nprocs": ranks, "hardware": arguments.simulate}
    if operation != "solve":
        planners: dict[str, Any] = {"cholesky": plan_cholesky, "qr": plan_qr, "eigh": plan_eigh}
        plan: Plan = planners[operation](a, **options).plan
        return [plan]
    assume_a: Any = arguments.assume_a or "gen"
    dtype, _, topology = checks.of_descriptor("plan", a, arguments.dtype, ranks, arguments.simulate)
    checks.check_algorithm("plan", "cholesky" if assume_a == "pos" else "lu", a, algorithm, gpus=topology.gpus)
    b = (arguments.b or Named("row")).descriptor(n, 1 if arguments.nrhs is None else arguments.nrhs, ranks)
    check_grid("plan", "B", b, ranks)
    return solve_plans(a, b, dtype.name, ranks, topology, assume_a=assume_a, algorithm=algorithm)

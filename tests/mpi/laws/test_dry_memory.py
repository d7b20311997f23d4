"""A dry run counts the memory that a real run allocates."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import pblas
from pblas import blas, linalg
from pblas.dry import _run
from pblas.simulation.hardware import LAPTOP

pytestmark = pytest.mark.mpi

N = 300
PROGRAMS: dict[str, Callable[[pblas.Context], Any]] = {
    "product": lambda ctx: ctx.random((N, N)) @ ctx.random((N, N)),
    "solve": lambda ctx: linalg.solve(ctx.eye(N), ctx.random((N, N)), check=False),
    "solve_pos": lambda ctx: linalg.solve(ctx.eye(N), ctx.random((N, 9)), assume_a="pos", check=False),
    "qr": lambda ctx: linalg.qr(ctx.random((N, N))),
    "lstsq": lambda ctx: linalg.lstsq(ctx.random((N, 20)), ctx.random((N, 1))),
    "trsm": lambda ctx: blas.trsm(ctx.eye(N), ctx.random((N, N))),
    "elementwise": lambda ctx: (2 * ctx.ones((N, N)) + ctx.ones((N, N)).T).norm(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_dry_run_takes_the_memory_of_a_run(name: str) -> None:
    """Shared memory to within 5 %: matrices, and the workspace of plans."""

    def program() -> int:
        with pblas.Context(backend="mpi") as ctx:
            PROGRAMS[name](ctx)
            return ctx.runtime.backend.arena.peak_nbytes

    with pblas.Context(backend="mpi") as ctx:
        nprocs = ctx.nprocs
    needed, (dry, *_) = program(), _run(program, nprocs, replace(LAPTOP, ranks_per_node=nprocs), {})
    private = dry.peak_nbytes if nprocs == 1 else 0  # of one rank all memory is private
    assert private or needed == pytest.approx(dry.peak_nbytes, rel=0.05)

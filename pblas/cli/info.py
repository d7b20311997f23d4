"""`info`: MPI, BLAS, GPUs and packages of this machine, and how to install missing ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import config
from pblas.backends.select import gpu_facts
from pblas.cli import gpus
from pblas.cli.output import Commands, Console, Table, add_command
from pblas.errors import BackendError
from pblas.layouts import Grid, MatrixDescriptor

if TYPE_CHECKING:
    from argparse import Namespace

    from pblas.context import Context

_PER_RANK = ("cores for this rank", "BLAS threads per rank", "ranks on this node")


def add_parser(commands: Commands, rank: int) -> None:
    parser = add_command(
        commands,
        "info",
        rank,
        run,
        "Print the MPI, BLAS, GPUs and packages of this machine, and what is missing.",
        "Works without MPI too. Under mpiexec it reports on all ranks.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON: a text for each line of the table")


def run(arguments: Namespace, console: Console) -> int:
    """Print the table; the status is 0 even if something is missing."""
    from pblas.context import Context

    facts = {"system": config.system()}
    missing: list[str] = []
    try:
        with Context(backend="mpi") as ctx:
            facts |= _mpi_facts(ctx)
            gpu_facts = _gpu_facts(ctx, missing)
    except BackendError as error:
        facts["MPI"] = "not available; plan, layout and info work without it"
        missing.append(str(error))
        gpu_facts = _gpu_facts(None, missing)
    facts |= config.local_facts() | gpu_facts
    missing += [problem] if (problem := config.shared_memory_problem()) else []
    if arguments.json:
        console.print(json.dumps({**facts, "missing": missing}, indent=2), soft_wrap=True)
        return 0
    table = Table(show_header=False, title="pblas info", title_justify="left")
    for name, value in facts.items():
        table.add_row(name, value)
    console.print(table)
    for line in missing:
        console.print(f"missing: {line}", soft_wrap=True)
    if not missing:
        console.print("Nothing is missing." if "GPU peers" in facts else "Nothing is missing for CPUs.")
    return 0


def _mpi_facts(ctx: Context) -> dict[str, str]:
    """**Collective.** `Context.describe`; numbers that differ between ranks are collected from all of them."""
    facts = ctx.describe()
    for name, values in zip(_PER_RANK, _collect(ctx, [float(facts[name]) for name in _PER_RANK]).T, strict=True):
        facts[name] = _summary([int(value) for value in values])
    names = {"ranks on this node": "ranks per node", "cores for this rank": "cores that a rank may use"}
    return {names.get(name, name): " ".join(value.split()) for name, value in facts.items()}


def _gpu_facts(ctx: Context | None, missing: list[str]) -> dict[str, str]:
    """**Collective**, if there is a context. The GPUs and GPU libraries of the ranks; no work runs on a GPU."""
    cupy = gpus.has_cupy()
    if ctx is not None:
        cupy = bool(_collect(ctx, [float(cupy)]).any())  # all ranks take the same branch
    if not cupy:
        text, problem = gpus.absent()
        missing += [problem] if problem else []
        return {"GPUs": text}
    diagnostics = gpu_facts(0 if ctx is None else ctx.runtime.backend.peers.local_rank)
    if ctx is None:
        numbers = [gpus.number(diagnostics)]
    else:
        numbers = _collect(ctx, [gpus.number(diagnostics)])[:, 0].tolist()
    missing += gpus.missing(diagnostics, numbers)
    return gpus.rows(diagnostics, numbers)


def _collect(ctx: Context, numbers: list[float]) -> Any:
    """**Collective.** One row of numbers from each rank, on all ranks."""
    desc = MatrixDescriptor(ctx.nprocs, len(numbers), 1, len(numbers), Grid.column(ctx.nprocs))
    return ctx.from_local(np.array([numbers]), desc, copy=True).to_global(None)


def _summary(values: list[int]) -> str:
    """One number if it is the same on all ranks, else the numbers of all ranks, or their range if there are many.

    >>> _summary([2, 2]), _summary([1, 2]), _summary([*range(1, 41)])
    ('2', '1, 2 (ranks 0 to 1)', '1 to 40 (40 ranks)')
    """
    if len(set(values)) == 1:
        return str(values[0])
    if len(values) > 16:
        return f"{min(values)} to {max(values)} ({len(values)} ranks)"
    return f"{', '.join(map(str, values))} (ranks 0 to {len(values) - 1})"

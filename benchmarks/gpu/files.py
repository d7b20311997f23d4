"""How fast are save and load of .npy files from GPUs, compared with NumPy's on the same disk?

[mpiexec -n P] python -m benchmarks.gpu.files FOLDER [--n 11585] [--repeats 3] [--json FILE]

The matrix is n x n, float64, dealt in blocks of columns in order F, and in blocks of rows in order C. NumPy saves and
loads a whole array in host memory on rank 0. `np.save` returns before the file is on the disk, `A.save` after that; the
column "fsync" waits for it as well. Medians, from a barrier until the last rank has finished; loaded files are in the
memory of the system, which has just written them.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from rich.console import Console
from rich.table import Table

import pblas
from benchmarks import results_file
from benchmarks.gpu.rows import about
from benchmarks.rounds import together
from pblas import MatrixDescriptor


def synced(path: Path, x: Any) -> None:
    """Save an array by NumPy, and return when the disk has it."""
    np.save(path, x)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder on the disk; the files are removed at the end")
    parser.add_argument("--n", type=int, default=11585, help="order of the matrix (%(default)s: 1 GiB)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = list[dict[str, Any]]()
    names, n = [options.folder / name for name in ("numpy.npy", "pblas.npy")], options.n
    table = Table("order", "call", "s", "GB/s", title=f"medians of {options.repeats}, {8 * n * n / 1e9:.2f} GB")
    with pblas.Context(timeout=60.0) as ctx:
        for desc in (
            MatrixDescriptor.column_wise(n, n, ctx.nprocs),
            MatrixDescriptor.row_wise(n, n, ctx.nprocs, order="C"),
        ):
            A = ctx.random(desc, seed=1)
            x = A.to_global()
            alone: Callable[..., Any] = (lambda work: work) if ctx.rank == 0 else (lambda _: lambda: None)
            calls: dict[str, Callable[[], Any]] = {
                "np.save": alone(partial(np.save, names[0], x)),
                "np.save, fsync": alone(partial(synced, names[0], x)),
                "A.save": partial(A.save, names[1]),
                "np.load": alone(partial(np.load, names[0])),
                "np.load, to the GPU": alone(lambda: cupy.asarray(np.load(names[0]))),
                "ctx.load": partial(ctx.load, names[1]),
            }
            rows.append({"order": desc.order, "n": n, "s": {}})
            for name, call in calls.items():
                times = [together(call, cupy.cuda.runtime.deviceSynchronize) for _ in range(options.repeats)]
                rows[-1]["s"][name] = seconds = statistics.median(times)
                table.add_row(desc.order, name, f"{seconds:.3f}", f"{8 * n * n / seconds / 1e9:.2f}")
        if ctx.rank == 0:
            Console(width=100).print(table)
            for path in names:
                path.unlink()
            if options.json:
                head = about(ctx.describe()["GPU"].partition(",")[0], ctx.nprocs) | {"rounds": options.repeats}
                results_file.write(options.json, head | {"rows": rows})


if __name__ == "__main__":
    main()

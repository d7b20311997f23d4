"""How fast is an expression of distributed matrices on one GPU, compared with CuPy's fused elementwise kernel?

python -m benchmarks.gpu.elementwise [--sizes 8192,16384] [--repeats 21] [--json FILE]

The columns run in rounds of rotated order, each from an idle GPU until it is idle again:

    cupy      a cupy.ElementwiseKernel with the expression, written for this benchmark
    pblas     pblas.elementwise("x * s + y * z", ..., out=D)
    execute   the same, planned before

The goal: pblas is at most 1.1 of cupy.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import pblas
from benchmarks import results_file
from benchmarks.gpu.rows import about
from benchmarks.rounds import rounds, together

EXPRESSION, SCALAR = "x * s + y * z", 2.5
DTYPES = "float64", "float32"


def measure(ctx: pblas.Context, n: int, dtype: str, repeats: int) -> dict[str, list[float]]:
    """Seconds of each column in each round; the results are compared at the end."""
    import cupy

    X, Y, Z = (ctx.random((n, n), dtype, seed=seed) for seed in range(3))
    D, operands = ctx.zeros((n, n), dtype), {"x": X, "y": Y, "z": Z, "s": SCALAR}
    x, y, z, result = (matrix.local.T.reshape(-1) for matrix in (X, Y, Z, D))  # views: columns are contiguous
    d = cupy.empty_like(x)
    inputs = ", ".join(f"{dtype} {name}" for name in "xyzs")
    kernel = cupy.ElementwiseKernel(inputs, f"{dtype} d", "d = x * s + y * z", "pblas_benchmark_elementwise")
    settle: Callable[[], Any] = cupy.cuda.runtime.deviceSynchronize
    with pblas.plan_elementwise(EXPRESSION, out=D, **operands) as planned:
        columns: dict[str, Callable[[], Any]] = {
            "cupy": lambda: kernel(x, y, z, SCALAR, d),
            "pblas": lambda: pblas.elementwise(EXPRESSION, out=D, **operands),
            "execute": lambda: planned.execute(out=D, **operands),
        }
        times = rounds({name: partial(together, call, settle) for name, call in columns.items()}, repeats)
    error = float(cupy.abs(result - d).max())
    assert error < 1e-5, f"the columns differ by {error}"
    return times


def device_name() -> str:
    """The name of this process's GPU."""
    import cupy

    properties: Any = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
    return str(properties["name"].decode())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sizes", default="8192,16384", help="n of the n x n matrices")
    options.add_argument("--repeats", type=int, default=21, help="number of rounds")
    options.add_argument("--json", type=Path, help="write the results to this file")
    arguments = options.parse_args()
    table = Table("n", "dtype", "column", "microseconds", "ratio to cupy", title=f"Medians of {arguments.repeats}")
    rows = []
    with pblas.Context(timeout=60.0) as ctx:
        for n in map(int, arguments.sizes.split(",")):
            for dtype in DTYPES:
                times = measure(ctx, n, dtype, arguments.repeats)
                medians = {name: statistics.median(seconds) for name, seconds in times.items()}
                rows.append({"n": n, "dtype": dtype, "median_us": {k: round(1e6 * v, 1) for k, v in medians.items()}})
                for name, seconds in medians.items():
                    table.add_row(str(n), dtype, name, f"{1e6 * seconds:.0f}", f"{seconds / medians['cupy']:.3f}")
    Console(width=100).print(table)
    if arguments.json is not None:
        results_file.write(arguments.json, about(device_name(), 1) | {"expression": EXPRESSION, "rows": rows})


if __name__ == "__main__":
    main()

"""What do reproducible products cost, beside the same products without `reproducible=`?

    python -m benchmarks.cpu.reproducible [--n 2048] [--ranks 1,2,4] [--repeats 9] [--dtypes float64,float32] [--exact]
    python -m benchmarks.cpu.reproducible --calls

Products of n x n matrices over shared memory, with one BLAS thread per rank: all-gathers (AG), reductions (RS, AR) and
blocks over a grid. With --calls factorizations, solves and products with triangles, of matrices in block columns, with
256 right-hand sides in `solve`. In each round both columns run once, in rotated order; a time is from a barrier to the
last rank's return. The table has the least times, and the median of the ratios of the rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

ROOT = Path(__file__).resolve().parents[2]


def job(n: int, repeats: int, dtypes: list[str], reproducible: Any) -> None:
    """**Collective.** Print a line for each kind of product and dtype."""
    import pblas
    from benchmarks.rounds import rounds, together
    from pblas import Grid, MatrixDescriptor

    with pblas.Context(transport="shared") as ctx:
        p = ctx.nprocs
        rows, columns = MatrixDescriptor.row_wise(n, n, p), MatrixDescriptor.column_wise(n, n, p)
        whole = MatrixDescriptor.replicated(n, n, p)
        nprow = next(q for q in range(int(p**0.5), 0, -1) if p % q == 0)
        grid = MatrixDescriptor(n, n, 128, 128, Grid(nprow, p // nprow))
        kinds = {
            "AG, along K": (rows, rows, rows),
            "AG, along N": (rows, columns, rows),
            "RS": (columns, rows, rows),
            "AR": (columns, rows, whole),
            "grid": (grid, grid, grid),
        }
        for dtype in dtypes:
            for name, (desc_a, desc_b, desc_d) in kinds.items():
                a, b = ctx.random(desc_a, dtype, seed=1), ctx.random(desc_b, dtype, seed=2)
                d = ctx.zeros(desc_d, dtype)
                plans = {flag: pblas.plan_matmul(a, b, out=desc_d, reproducible=flag) for flag in (False, reproducible)}
                calls = {flag: partial(plan.execute, a, b, out=d) for flag, plan in plans.items()}
                times = rounds({flag: partial(together, call) for flag, call in calls.items()}, repeats)
                ratio = statistics.median(new / old for old, new in zip(*times.values(), strict=True))
                if ctx.rank == 0:
                    old, new = (1e3 * min(values) for values in times.values())
                    plan = plans[reproducible].plan.name
                    print(f"{p:5} {dtype:10} {name:12} {old:8.1f} ms {new:8.1f} ms {ratio:6.2f}  {plan}", flush=True)
                for planned in plans.values():
                    planned.close()


def calls(n: int, repeats: int, dtypes: list[str]) -> None:
    """**Collective.** Print a line for each call and dtype."""
    import pblas
    from benchmarks.rounds import rounds, together
    from pblas import MatrixDescriptor, blas, linalg

    def work(ctx: pblas.Context, dtype: str) -> dict[str, Any]:
        columns = MatrixDescriptor.column_wise(n, n, ctx.nprocs, nb=128)
        a = ctx.random(columns, dtype, seed=1)
        s = a @ a.T + ctx.eye(columns, dtype=dtype) * n
        b = ctx.random(MatrixDescriptor.column_wise(n, 256, ctx.nprocs, nb=128), dtype, seed=2)
        return {
            "cholesky": lambda: linalg.cholesky(s),
            "lu_factor": lambda: linalg.lu_factor(a),
            "solve": lambda: linalg.solve(a, b),
            "trsm": lambda: blas.trsm(s, a),
            "syrk": lambda: blas.syrk(a),
            "syr2k": lambda: blas.syr2k(a, s),
            "trmm": lambda: blas.trmm(s, a),
        }

    with pblas.Context(transport="shared") as plain, pblas.Context(transport="shared", reproducible=True) as other:
        for dtype in dtypes:
            of_plain, of_other = work(plain, dtype), work(other, dtype)
            for name in of_plain:
                columns = {"default": of_plain[name], "reproducible": of_other[name]}
                times = rounds({key: partial(together, call) for key, call in columns.items()}, repeats)
                ratio = statistics.median(new / old for old, new in zip(*times.values(), strict=True))
                if plain.rank == 0:
                    old, new = (1e3 * min(values) for values in times.values())
                    print(f"{plain.nprocs:5} {dtype:10} {name:12} {old:8.1f} ms {new:8.1f} ms {ratio:6.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=2048)
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--dtypes", default="float64,float32")
    parser.add_argument("--exact", action="store_true", help="measure reproducible='exact'")
    parser.add_argument("--calls", action="store_true", help="measure factorizations, solves and products of triangles")
    parser.add_argument("--job", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.exact and options.calls:
        parser.error("--exact is for products; leave out --calls")
    if options.job and options.calls:
        calls(options.n, options.repeats, options.dtypes.split(","))
        return
    if options.job:
        job(options.n, options.repeats, options.dtypes.split(","), "exact" if options.exact else True)
        return
    print("ranks dtype      product        default    reproducible  ratio  plan", flush=True)
    for ranks in options.ranks.split(","):
        mpiexec = Path(sys.executable).with_name("mpiexec")
        command = [str(mpiexec) if mpiexec.exists() else "mpiexec", "-n", ranks, sys.executable, "-m", "mpi4py"]
        command += ["-m", "benchmarks.cpu.reproducible", "--job"]
        command += ["--n", str(options.n), "--repeats", str(options.repeats), "--dtypes", options.dtypes]
        command += ["--exact"] * options.exact + ["--calls"] * options.calls
        subprocess.run(command, check=True, cwd=ROOT)


if __name__ == "__main__":
    main()

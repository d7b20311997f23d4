"""What rate does an exact product have on a GPU, beside the same product by cuBLASLt?

    python -m benchmarks.gpu.exact [--sizes 2048 4096 8192] [--repeats 9] [--json FILE]

Products of n x n matrices with `reproducible="exact"` and without, planned and executed on one GPU. In each round both
run once, in rotated order. The table has the medians of the times, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import results_file
from benchmarks.gpu.rows import about
from benchmarks.rounds import rounds, together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 4096, 8192])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    import cupy

    import pblas

    flags: tuple[Any, ...] = False, "exact"
    reports: list[dict[str, Any]] = []
    print("     n dtype                   cuBLASLt                      exact  ratio", flush=True)
    with pblas.Context(backend="cuda") as ctx:
        desc_of = partial(pblas.MatrixDescriptor.replicated, nprocs=ctx.nprocs)
        for n in options.sizes:
            for dtype in ("float64", "float32"):
                a, b = (ctx.random(desc_of(n, n), dtype, seed=seed) for seed in (1, 2))
                d = ctx.zeros(desc_of(n, n), dtype)
                plans = {flag: pblas.plan_matmul(a, b, out=d.desc, reproducible=flag) for flag in flags}
                work = {flag: partial(plan.execute, a, b, out=d) for flag, plan in plans.items()}
                synchronize = cupy.cuda.Device().synchronize
                times = rounds(
                    {flag: partial(together, call, synchronize) for flag, call in work.items()}, options.repeats
                )
                plain, exact = (statistics.median(values) for values in times.values())
                columns = [
                    f"{1e3 * seconds:8.2f} ms {2e-12 * n**3 / seconds:6.1f} Tflop/s" for seconds in (plain, exact)
                ]
                print(f"{n:6} {dtype:8} {'  '.join(columns)} {plain / exact:6.2f}", flush=True)
                ms = {"pblas": 1e3 * exact, "cuBLASLt": 1e3 * plain}
                reports.append({"n": n, "dtype": dtype, "ms": ms})
                for plan in plans.values():
                    plan.close()
        if options.json:
            head = about(ctx.describe()["GPU"].partition(",")[0], 1) | {"rounds": options.repeats}
            results_file.write(options.json, head | {"rows": reports})


if __name__ == "__main__":
    main()

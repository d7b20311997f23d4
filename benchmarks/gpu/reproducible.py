"""What do reproducible products of language models cost on GPUs, beside the same products without `reproducible=`?

    mpiexec -n 2 python -m mpi4py -m benchmarks.gpu.reproducible [--tokens 512 4096] [--repeats 11] [--json FILE]

The products of the feed-forward block of Llama 3 8B and 70B in bfloat16: AG, [tokens, hidden] by [hidden, 2 features],
with gathered tokens; RS and AR, [tokens, features] by [features, hidden], with sums over the ranks. Weights are stored
along K. In each round both columns run once, in rotated order; a time is from a barrier to the end of the product on
the last rank. The table has medians of the times, and their ratio.
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

MODELS = {"8B": (4096, 14336), "70B": (8192, 28672)}  # hidden, features


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 4096])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    import cupy

    import pblas
    from pblas import MatrixDescriptor

    reports: list[dict[str, Any]] = []
    with pblas.Context(timeout=60) as ctx:
        p, synchronize = ctx.nprocs, cupy.cuda.Device().synchronize
        rows, columns = partial(MatrixDescriptor.row_wise, nprocs=p), partial(MatrixDescriptor.column_wise, nprocs=p)
        whole = partial(MatrixDescriptor.replicated, nprocs=p)
        if ctx.rank == 0:
            print("GPUs model product tokens      plain  reproducible  ratio  plan", flush=True)
        for model in options.models:
            hidden, features = MODELS[model]
            for m in options.tokens:
                kinds = {
                    "AG": (rows(m, hidden, order="C"), columns(hidden, 2 * features), columns(m, 2 * features)),
                    "RS": (columns(m, features, order="C"), rows(features, hidden), rows(m, hidden, order="C")),
                    "AR": (columns(m, features, order="C"), rows(features, hidden), whole(m, hidden, order="C")),
                }
                for name, (desc_a, desc_b, desc_d) in kinds.items():
                    a, b = (ctx.random(desc, "bfloat16", seed=seed) for seed, desc in enumerate((desc_a, desc_b)))
                    d = ctx.zeros(desc_d, "bfloat16")
                    plans = {flag: pblas.plan_matmul(a, b, out=desc_d, reproducible=flag) for flag in (False, True)}
                    calls = {flag: partial(plan.execute, a, b, out=d) for flag, plan in plans.items()}
                    times = rounds(
                        {flag: partial(together, call, synchronize) for flag, call in calls.items()}, options.repeats
                    )
                    plain, reproducible = (statistics.median(values) for values in times.values())
                    if ctx.rank == 0:
                        columns_text = f"{1e3 * plain:8.3f} ms   {1e3 * reproducible:8.3f} ms"
                        print(
                            f"{p:4} {model:5} {name:7} {m:6} {columns_text} {reproducible / plain:6.2f}  "
                            f"{plans[False].plan.name}, {plans[True].plan.name}",
                            flush=True,
                        )
                    ms = {"pblas": 1e3 * reproducible, "without": 1e3 * plain}
                    reports.append({"op": name, "model": model, "m": m, "ms": ms})
                    for planned in plans.values():
                        planned.close()
        if options.json and ctx.rank == 0:
            head = about(ctx.describe()["GPU"].partition(",")[0], p) | {"rounds": options.repeats}
            results_file.write(options.json, head | {"rows": reports})


if __name__ == "__main__":
    main()

"""How much time does an epilogue of a product take, fused into the product or as a separate pass over D?

mpiexec -n 4 python -m mpi4py -m benchmarks.gpu.epilogues [--ops gemm_rs] [--models 8B] [--m 16 512 4096] [--json FILE]

The products are the same as in `overlap.py`, on plain arrays, with cuBLASLt's default algorithms. Columns of a row are
timed in rounds of rotated order. Each call starts after a delay, in which the host enqueues it, and a barrier of all
GPUs. A time is that of the slowest rank. "apart" is the product without an epilogue, followed by one kernel that reads
and writes D. Ratios are medians of the ratios in each round. The results of both columns are compared.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpi4py import MPI
from rich.console import Console

from benchmarks import results_file
from benchmarks.gpu.rows import MODELS, OPS, Row, about, descriptors, heap_nbytes, rotated, rows
from benchmarks.gpu.timing import TOLERANCE, Job, Operands

EXPRESSIONS = ("relu(x + bias)", "gelu", "x + h")
PRODUCT = "product"
MOST_SETS = 4
DELAY = 3e-4
WARM_CALLS = 3  # one eager call, then one capture for each half of the workspace


class Work:
    """A product of a row, and its epilogues.

    Args:
        job: the ranks.
        ctx: a context of pblas.
        row: the sizes of the product.
    """

    def __init__(self, job: Job, ctx: Any, row: Row) -> None:
        import cupy

        self.job, self.ctx = job, ctx
        self.ops = Operands(job, row, min(row.sets, MOST_SETS))
        self.ops.refill(0)
        matrices = zip((self.ops.a, self.ops.b, self.ops.d), descriptors(row), strict=True)
        self._sets = list(zip(*([ctx.from_local(x, desc) for x in some] for some, desc in matrices), strict=True))
        h, bias = cupy.empty_like(self.ops.d[0]), cupy.empty(row.d_shape[1], self.ops.d[0].dtype)
        job.fill(h, 98)
        job.fill(bias.reshape(1, -1), 99)
        self._operands = {"h": h, "bias": bias}
        self.algorithm, self.where = "", dict[str, str]()
        self.calls: dict[str, Callable[[int], Any]] = {}
        product = self._planned(None)
        self.algorithm = product.plan.algorithm
        self.calls[PRODUCT] = lambda s: self._execute(product, s)
        for text in EXPRESSIONS:
            self._add(text, product)

    def _planned(self, epilogue: Any) -> Any:
        import pblas

        a, b, d = self._sets[0]
        return pblas.plan_matmul(a, b, out=d, epilogue=epilogue)

    def _execute(self, planned: Any, s: int) -> Any:
        a, b, d = self._sets[s]
        return planned.execute(a, b, out=d)

    def _add(self, text: str, product: Any) -> None:
        """The columns of an expression."""
        import pblas

        operands = {name: array for name, array in self._operands.items() if name in text.replace("gelu", "")}
        epilogue = pblas.Epilogue(text, **operands)
        fused, kernel, stream = self._planned(epilogue), self.ctx.runtime.backend.arrays.pointwise, self.job.stream
        self.where[text] = fused.explain().splitlines()[-1].partition(", ")[2]

        def separate_pass(s: int) -> None:
            self._execute(product, s)
            kernel.evaluate(stream.cuda_stream, epilogue.tree, self.ops.d[s], operands, self.ops.d[s])

        self.calls |= {text: lambda s: self._execute(fused, s), f"{text} apart": separate_pass}

    def check(self) -> dict[str, float]:
        """For each expression the largest difference of both results, relative to the largest element."""
        errors = {}
        for text in EXPRESSIONS:
            results = []
            for name in (text, f"{text} apart"):
                self.calls[name](0)
                self.job.synchronize()
                results.append(self.ops.td[0].float())
            errors[text] = float((results[0] - results[1]).abs().max() / results[1].abs().max())
        return errors

    def run(self, rounds: int) -> dict[str, list[float]]:
        """us of the slowest rank, for each column in each round."""
        names, times = list(self.calls), dict[str, list[float]]()
        for name in names:
            for s in range(self.ops.sets * WARM_CALLS):
                self.calls[name](s % self.ops.sets)
        for turn in range(rounds):
            for name in rotated(names, turn):
                call, s = self.calls[name], turn % self.ops.sets
                seconds, _, _ = self.job.timed(lambda call=call, s=s: call(s), DELAY)
                times.setdefault(name, []).append(1e6 * seconds)
        return {name: self.job.largest(seconds).tolist() for name, seconds in times.items()}


def reported(row: Row, work: Work, times: dict[str, list[float]], errors: dict[str, float]) -> dict[str, Any]:
    """A row of the file."""
    medians = {name: round(statistics.median(seconds), 1) for name, seconds in times.items()}
    ratios = {
        text: round(statistics.median(x / y for x, y in zip(times[text], times[f"{text} apart"], strict=True)), 3)
        for text in EXPRESSIONS
    }
    facts = {"op": row.op, "model": row.model, "m": row.m, "n": row.n, "k": row.k, "gpus": row.gpus}
    wrong = {text: error for text, error in errors.items() if not error <= TOLERANCE}
    return facts | {
        "algorithm": str(work.algorithm),
        "where": work.where,
        "us": medians,
        "fused / apart": ratios,
        "wrong": wrong,
    }


def main() -> None:
    """Measure the rows of a run, print them, and write them to a file if one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", nargs="+", choices=OPS, default=OPS)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=["8B"])
    parser.add_argument("--m", nargs="+", type=int, default=[16, 512, 4096], help="rows of the activations")
    parser.add_argument("--tp", type=int, default=8, help="tensor-parallel size that determines N and K of a rank")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds for a step before the process is ended")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    import pblas

    gpus, console = MPI.COMM_WORLD.Get_size(), Console(soft_wrap=True)
    measured = [row for row in rows(options.ops, options.models, options.m, options.tp, gpus) if not row.unfit()]
    os.environ.setdefault("PBLAS_SYMMETRIC_SIZE", str(heap_nbytes(measured)))  # NVSHMEM's heap cannot grow everywhere
    job = Job(MPI.COMM_WORLD, options.deadline)
    reports = []
    with job.current(), pblas.Context(job.comm, backend="nvshmem") as ctx:
        for row in measured:
            job.deadline.step(row.title)
            work = Work(job, ctx, row)
            times, errors = work.run(options.rounds), work.check()
            reports.append(reported(row, work, times, errors))
            if job.rank == 0:
                console.print(row.title, reports[-1], highlight=False, markup=False)
                if options.json:
                    head = about(job.device_name(), job.size) | {"rounds": options.rounds}
                    results_file.write(options.json, head | {"rows": reports})
            del work
            gc.collect()
    job.close()


if __name__ == "__main__":
    main()

"""How long does an all-reduce of one array take on the GPUs of a node by NCCL, torch's symmetric memory and pblas?

mpiexec -n 4 python -m mpi4py -m benchmarks.gpu.allreduce [--sizes 65536 ...] [--epilogue-sizes 65536 ...] [--json FILE]

The arrays are bfloat16, the operation is the sum. Each column is one CUDA graph with several consecutive calls, which
excludes launch cost. The calls start after a barrier of the GPUs, in rounds of rotated order. The table has us per
call: the median over the rounds of the slowest rank's time. Every column is first checked against float32.

    nccl                torch.distributed.all_reduce, in place, NVLink SHARP switched off
    torch one-shot      torch.ops.symm_mem.one_shot_all_reduce, of an array in its symmetric memory to a new one
    torch two-shot      torch.ops.symm_mem.two_shot_all_reduce_, in place, in its symmetric memory
    pblas               ctx.allreduce(x, x) of arrays outside symmetric memory
    pblas symmetric     the same of arrays in memory of ctx.empty
    pblas one_shot, two_shot    each algorithm, of arrays outside symmetric memory

Further rows have epilogues, on matrices with 4096 columns. pblas fuses "relu(x * s + bias)"; after NCCL and torch one
kernel reads and writes the array once. pblas also fuses "rmsnorm" with a residual and a weight; after NCCL and torch
the epilogue is torch's add and rms_norm.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mpi4py import MPI
from rich.console import Console
from rich.table import Table

from benchmarks import results_file
from benchmarks.gpu.graphs import captured
from benchmarks.gpu.rows import about, quartiles, rotated
from benchmarks.gpu.timing import TOLERANCE, Job, torch_view

COLUMNS = 4096
SIZES = tuple(1 << k for k in (12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28))
EPILOGUE_SIZES = tuple(1 << k for k in (14, 16, 18, 20, 22, 24, 26))
RELU, NORM = "relu(x * s + bias)", "rmsnorm"
CHAIN_SECONDS, LONGEST_CHAIN = 200e-6, 20
SCALE, EPS = 0.5, 1e-5


class Work:
    """One size: the arrays of this rank, and the columns that add them.

    Args:
        job: the ranks.
        ctx: a context of pblas.
        nbytes: bytes of the array.
        epilogue: the epilogue of the all-reduce, or "".
    """

    def __init__(self, job: Job, ctx: Any, nbytes: int, epilogue: str) -> None:
        import cupy
        import ml_dtypes
        import torch

        self.job, self.ctx, self.nbytes, self.epilogue = job, ctx, nbytes, epilogue
        self.columns = min(COLUMNS, nbytes // 2)
        self.shape = nbytes // 2 // self.columns, self.columns
        new = lambda shape=self.shape: cupy.empty(shape, ml_dtypes.bfloat16)  # noqa: E731 - five of them
        self.x, self.h, self.first, self.first_h = new(), new(), new(), new()
        self.row = new((self.columns,))
        job.fill(self.first, 1 + job.rank)
        job.fill(self.first_h, 98)
        job.fill(self.row.reshape(1, -1), 99)
        self.reference = torch.zeros(self.shape, dtype=torch.float32, device=f"cuda:{job.device}")
        for rank in range(job.size):
            job.fill(self.x, 1 + rank)
            self.reference += torch_view(self.x).float()
        row = torch_view(self.row.reshape(1, -1)).float()
        if epilogue == RELU:
            self.reference = torch.relu(self.reference * SCALE + row)
        if epilogue == NORM:
            total = (self.reference + torch_view(self.first_h).float()).bfloat16().float()
            self.reference = total * torch.rsqrt(total.square().mean(1, keepdim=True) + EPS) * row

    def load(self, *arrays: Any) -> None:
        """Restore the initial values of this rank's operands."""
        for array in arrays:
            torch_view(array).copy_(torch_view(self.first))
        torch_view(self.h).copy_(torch_view(self.first_h))

    def candidates(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Names of columns, and functions that return their (load, call, output)."""
        yield "nccl", self._nccl
        yield "torch one-shot", self._one_shot
        yield "torch two-shot", self._two_shot
        yield "pblas", lambda: self._ours(self.x, "auto")
        yield "pblas symmetric", self._symmetric
        if not self.epilogue:
            for name in ("one_shot", "two_shot"):
                if name != "one_shot" or self.nbytes <= 4 << 20:
                    yield f"pblas {name}", lambda name=name: self._ours(self.x, name)

    def _epilogue(self) -> Callable[[Any], Any]:
        """The separate epilogue after an all-reduce of NCCL or torch: from the sums to the result."""
        import cupy
        import torch

        from pblas.backends.cuda.pointwise import Pointwise
        from pblas.epilogues import parse

        if self.epilogue == RELU:
            kernel, tree, stream = Pointwise(), parse(RELU), self.job.stream.cuda_stream

            def relu(x: Any) -> Any:
                array = cupy.asarray(x.view(torch.int16)).view(self.x.dtype)
                kernel.evaluate(stream, tree, array, {"s": SCALE, "bias": self.row}, array)
                return x

            return relu
        if self.epilogue == NORM:
            h, weight = torch_view(self.h), torch_view(self.row.reshape(1, -1)).reshape(-1)
            return lambda x: torch.nn.functional.rms_norm(h.add_(x), (self.columns,), weight, EPS)
        return lambda x: x

    def _library_call(self, load: Callable[[], Any], reduce: Callable[[], Any]) -> Any:
        """A column of NCCL or torch: (load, call, output)."""
        epilogue, results = self._epilogue(), []

        def call() -> None:
            results[:] = [epilogue(reduce())]

        return load, call, lambda: results[0]

    def _nccl(self) -> Any:
        import torch.distributed as dist

        tensor = torch_view(self.x)

        def reduce() -> Any:
            dist.all_reduce(tensor)
            return tensor

        return self._library_call(lambda: self.load(self.x), reduce)

    def _torch_symmetric(self) -> Any:
        import torch
        import torch.distributed._symmetric_memory as symm_mem

        if self.job.no_symmetric:
            raise RuntimeError(self.job.no_symmetric)
        tensor = symm_mem.empty(*self.shape, dtype=torch.bfloat16, device=f"cuda:{self.job.device}")
        self._handle = symm_mem.rendezvous(tensor, self.job.group)
        first, h, first_h = (torch_view(x) for x in (self.first, self.h, self.first_h))
        return tensor, lambda: (tensor.copy_(first), h.copy_(first_h))

    def _one_shot(self) -> Any:
        import torch

        tensor, load = self._torch_symmetric()
        group = self.job.group.group_name
        return self._library_call(load, lambda: torch.ops.symm_mem.one_shot_all_reduce(tensor, "sum", group))

    def _two_shot(self) -> Any:
        import torch

        tensor, load = self._torch_symmetric()
        group = self.job.group.group_name
        return self._library_call(load, lambda: torch.ops.symm_mem.two_shot_all_reduce_(tensor, "sum", group))

    def _ours(self, x: Any, algorithm: Any) -> Any:
        import pblas

        epilogue = None
        if self.epilogue == RELU:
            epilogue = pblas.Epilogue(RELU, s=SCALE, bias=self.row)
        if self.epilogue == NORM:
            epilogue = pblas.Epilogue(NORM, residual=self.h, weight=self.row, eps=EPS)
        return (
            lambda: self.load(x),
            lambda: self.ctx.allreduce(x, x, epilogue=epilogue, algorithm=algorithm),
            lambda: torch_view(x),
        )

    def _symmetric(self) -> Any:
        from pblas import MatrixDescriptor

        desc = MatrixDescriptor.replicated(*self.shape, self.job.size, order="C")
        self._kept = self.ctx.empty(desc, "bfloat16")
        return self._ours(self._kept.local, "auto")


def relative_error(result: Any, wanted: Any) -> float:
    """Relative error of an array in the Frobenius norm."""
    return float(((result.float() - wanted).norm() / wanted.norm()).item())


def measure(job: Job, work: Work, options: argparse.Namespace) -> dict[str, Any]:
    """**Collective.** A row of the file: us of each column, and the reasons for missing columns."""
    graphs: dict[str, tuple[Any, Any, int]] = {}
    missing, errors = {}, {}
    for name, make in work.candidates():
        job.deadline.step(f"{work.nbytes} bytes: {name}")

        def tried(name: str = name, make: Callable[[], Any] = make) -> tuple[Any, Any, float]:
            load, call, output = make()
            load()
            call()
            job.synchronize()
            errors[name] = relative_error(output(), work.reference)
            if not errors[name] <= TOLERANCE:
                raise RuntimeError(f"relative error {errors[name]:.3g}")
            load()
            once = captured([call])[0]
            return load, call, min(job.timed(once.replay, 200e-6)[0] for _ in range(3))

        attempt, reason = job.attempt(tried)
        if reason:
            missing[name] = reason
            continue
        load, call, seconds = attempt
        chain = max(2, min(LONGEST_CHAIN, math.ceil(CHAIN_SECONDS / float(job.largest(seconds)))))
        graphs[name] = load, captured([lambda call=call, chain=chain: [call() for _ in range(chain)]])[0], chain
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(options.rounds):
        for name in rotated(list(graphs), turn):
            load, graph, chain = graphs[name]
            job.deadline.step(f"{work.nbytes} bytes: {name}, round {turn}")
            load()
            times[name].append(job.timed(graph.replay, 150e-6)[0] / chain)
    for name, values in times.items():
        times[name] = job.largest(values).tolist()
    for _, graph, _ in graphs.values():
        graph.reset()
    job.deadline.step("")
    spread = {name: quartiles([1e6 * x for x in values]) for name, values in times.items()}
    return {
        "nbytes": work.nbytes,
        "epilogue": work.epilogue,
        "us": {name: round(summary["median"], 2) for name, summary in spread.items()},
        "us_quartiles": {name: [round(summary["q1"], 2), round(summary["q3"], 2)] for name, summary in spread.items()},
        "relative_error": max((errors[name] for name in graphs if name.startswith("pblas")), default=None),
        "missing": missing,
    }


def ratio(row: dict[str, Any]) -> float | None:
    """The time of the fastest other library over the time of the faster pblas column; None if one is missing.

    >>> ratio({"us": {"nccl": 12.0, "torch two-shot": 9.0, "pblas": 6.0}})
    1.5
    """
    others = [us for name, us in row["us"].items() if not name.startswith("pblas")]
    ours = [us for name, us in row["us"].items() if name in ("pblas", "pblas symmetric")]
    return min(others) / min(ours) if others and ours else None


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """Print all rows as a table."""
    names = list(dict.fromkeys(name for row in rows for name in row["us"]))
    table = Table("bytes", "epilogue", *names, "best other / pblas")
    for row in rows:
        speedup = ratio(row)
        cells = [f"{row['us'][name]:.1f}" if name in row["us"] else "-" for name in names]
        table.add_row(str(row["nbytes"]), row["epilogue"], *cells, f"{speedup:.2f}" if speedup else "")
    console.print(table)


def write(path: Path, head: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write rows to a file; they replace rows of the same size and epilogue."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}
    keys = {(row["nbytes"], row["epilogue"]) for row in rows}
    kept = [row for row in before["rows"] if (row["nbytes"], row["epilogue"]) not in keys]
    everything = sorted([*kept, *rows], key=lambda row: (row["epilogue"], row["nbytes"]))
    results_file.write(path, head | {"rows": everything})


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="bytes; by default 4 KiB to 256 MiB")
    parser.add_argument("--epilogue-sizes", type=int, nargs="*", default=EPILOGUE_SIZES, help="sizes with epilogues")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds for a step before the process is ended")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    import pblas

    os.environ.setdefault("PBLAS_SYMMETRIC_SIZE", str(2 << 30))  # NVSHMEM's heap cannot grow everywhere
    job = Job(MPI.COMM_WORLD, options.deadline)
    console = Console(quiet=job.rank != 0, width=170)
    head = about(job.device_name(), job.size) | {"rounds": options.rounds}
    wanted = [(nbytes, "") for nbytes in options.sizes]
    wanted += [(nbytes, epilogue) for epilogue in (RELU, NORM) for nbytes in options.epilogue_sizes]
    rows = []
    with job.current(), pblas.Context(job.comm, backend="nvshmem") as ctx:
        for nbytes, epilogue in wanted:
            work = Work(job, ctx, nbytes, epilogue)
            rows.append(measure(job, work, options))
            del work
            if job.rank == 0 and options.json:
                write(options.json, head, rows[-1:])
    show(rows, console)
    job.close()


if __name__ == "__main__":
    main()

"""A product whose left operand is larger than the memory of one GPU, or of all GPUs.

mpiexec -n 4 python -m mpi4py examples/bigger_than_one_gpu.py
mpiexec -n 4 python -m mpi4py examples/bigger_than_one_gpu.py --m 115000 --k 60000 --n 1024     28 GB, on GPUs
mpiexec -n 4 python -m mpi4py examples/bigger_than_one_gpu.py --m 500000 --k 400000 --n 1024    800 GB: more than 4 have
mpiexec -n 4 python -m mpi4py examples/bigger_than_one_gpu.py --file A.npy --memory 8e9        from a file, by panels

Rows of A, m x k, are distributed over the ranks, so each rank needs memory for its rows only. If these do not fit, the
rank generates them, or reads them from a file, one panel of rows at a time, in the same memory:

    one panel:        B is split by rows, and travels while it is multiplied (AG + GEMM)
    several panels:   B is gathered on every rank once, and each rank multiplies its panels

Some elements of the result are compared with float64 on every rank.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import pblas
from pblas import MatrixDescriptor, tp


class Source:
    """Rows of A: from a .npy file, or random numbers, generated on demand."""

    def __init__(self, path: Path | None, m: int, k: int) -> None:
        self._file = None if path is None else np.lib.format.open_memmap(path, mode="r")
        if self._file is not None and (self._file.ndim != 2 or self._file.dtype.kind not in "biuf"):
            raise ValueError(f"expected a real matrix, got shape {self._file.shape}, dtype {self._file.dtype}")
        self.m, self.k = (m, k) if self._file is None else self._file.shape

    def read(self, xp: Any, start: int, target: Any) -> None:
        """Read rows from `start` on into a contiguous float32 array of `xp`, NumPy or CuPy."""
        step = max(1, _BLOCK // max(1, self.k))
        for row in range(0, len(target), step):
            block, first = target[row : row + step], start + row
            if self._file is not None:
                block[...] = xp.asarray(self._file[first : first + len(block)], np.float32)
            elif xp is np:
                fill(block, first * self.k)
            elif block.size:
                xp.ElementwiseKernel("uint64 first", "float32 out", _FILL, "fill")(np.uint64(first * self.k), block)


def fill(out: Any, first: int) -> None:
    """Fill with numbers from [-0.5, 0.5) that depend on their index in A only; `first` is the first index."""
    out[...] = numbers(np.arange(first, first + out.size, dtype=np.uint64)).reshape(out.shape)


def numbers(indices: Any) -> Any:
    """The elements of A at some indices, which count along rows."""
    words = indices * np.uint64(0x9E3779B97F4A7C15)
    words ^= words >> np.uint64(32)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    return (words >> np.uint64(40)) * np.float32(2**-24) - np.float32(0.5)


_FILL = """
unsigned long long word = (first + i) * 0x9E3779B97F4A7C15ull;
word ^= word >> 32;
word *= 0xBF58476D1CE4E5B9ull;
out = (word >> 40) * 5.9604644775390625e-8f - 0.5f;
"""  # the same on a GPU
_BLOCK = 1 << 27  # elements that are generated at once
_COLUMNS = 16  # number of columns of the result that are compared with float64


def multiply(ctx: pblas.Context, A: Source, B: pblas.DistMatrix, step: int) -> tuple[Any, pblas.Plan]:
    """This rank's rows of A B, and the plan of a panel, which has `step` rows on each rank.

    Args:
        ctx: the ranks (global).
        A: source of all rows (global).
        B: split by rows if there is one panel, replicated if there are more (global).
        step: rows of a panel on each rank (global).
    """
    xp, shard = library(ctx), tp.local_shard(A.m, ctx.rank, ctx.nprocs)
    npanels = -(-tp.local_shard(A.m, 0, ctx.nprocs).stop // step)
    desc_a, desc_d = (MatrixDescriptor.row_wise(step * ctx.nprocs, n, ctx.nprocs, order="C") for n in B.shape)
    rows = xp.zeros(desc_a.local_shape(ctx.rank), B.dtype)
    result = xp.empty((npanels * step, B.shape[1]), B.dtype)  # the last panel may be shorter than its memory
    panel = ctx.from_local(rows, desc_a)
    parts = [ctx.from_local(result[p * step : (p + 1) * step], desc_d) for p in range(npanels)]
    with pblas.plan_matmul(panel, B, out=parts[0]) as mm:
        for p, part in enumerate(parts):
            start, stop = (min(shard.start + row, shard.stop) for row in (p * step, (p + 1) * step))
            A.read(xp, start, rows[: stop - start])
            mm.execute(panel, B, out=part)
        return result[: shard.stop - shard.start], mm.plan


def everywhere(ctx: pblas.Context, B: pblas.DistMatrix) -> pblas.DistMatrix:
    """B, replicated on every rank."""
    return pblas.redistribute(B, MatrixDescriptor.replicated(*B.shape, ctx.nprocs, order="C"))


def largest_error(ctx: pblas.Context, A: Source, result: Any) -> float:
    """Largest error of some elements of this rank's rows of A B, compared with float64, over the largest element.

    The host generates the operands of the check again, so the check does not depend on the measured computation.
    """
    rows, n = tp.local_shard(A.m, ctx.rank, ctx.nprocs), result.shape[1]
    checked_rows = sorted({0, len(result) // 2, len(result) - 1}) if len(result) else []
    columns = np.unique(np.linspace(0, n - 1, _COLUMNS).astype(np.uint64))
    wide = numbers(np.arange(A.k, dtype=np.uint64)[:, None] * np.uint64(n) + columns).astype(np.float64)
    row, error = np.empty((1, A.k), np.float32), 0.0
    for i in checked_rows:
        A.read(np, rows.start + i, row)
        exact = row.astype(np.float64) @ wide
        error = max(error, float(np.abs(np.array(result[i].tolist())[columns] - exact).max() / np.abs(exact).max()))
    return error


def library(ctx: pblas.Context) -> Any:
    """NumPy, or CuPy if the context multiplies on GPUs."""
    return importlib.import_module("cupy" if "GPU" in ctx.describe() else "numpy")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A product larger than a GPU's memory.")
    parser.add_argument("--m", type=int, default=1150)
    parser.add_argument("--k", type=int, default=600)
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--file", type=Path, help="read A from this .npy file, instead of --m and --k")
    parser.add_argument("--memory", type=float, help="bytes for A on a rank; default: 3/4 of a GPU's free memory")
    options = parser.parse_args(argv)
    if options.memory is not None and not options.memory > 0:
        parser.error(f"--memory must be more than 0 bytes, got {options.memory:g}")
    try:
        A = Source(options.file, options.m, options.k)
    except (OSError, ValueError) as error:
        parser.error(f"--file {options.file}: {error}")
    if min(A.m, A.k, options.n) < 1:
        parser.error(f"rows and columns must be at least 1, got {A.m} x {A.k} by {A.k} x {options.n}")
    with pblas.Context() as ctx:
        xp = library(ctx)
        held = max(1, -(-A.m // ctx.nprocs))  # rows of A on a rank, if it holds its whole shard
        free = 0.75 * xp.cuda.runtime.memGetInfo()[0] if xp is not np else 4.0 * held * A.k
        fitting = int(ctx.allreduce(xp.asarray([options.memory or free]), op="min")[0]) // (4 * max(1, A.k))
        step = max(1, min(held, fitting))
        B = ctx.empty(MatrixDescriptor.row_wise(A.k, options.n, ctx.nprocs, order="C"), "float32")
        Source(None, A.k, options.n).read(xp, tp.local_shard(A.k, ctx.rank, ctx.nprocs).start, B.local)
        npanels, sizes = -(-held // step), f"{A.m} x {A.k} by {A.k} x {options.n}"
        say = partial(print, flush=True) if ctx.rank == 0 else lambda _: None
        say(f"{sizes} in float32 on {ctx.nprocs} ranks; A: {4e-9 * A.m * A.k:.3g} GB")
        ctx.allreduce(xp.zeros(1)).tolist()  # a barrier
        start = time.perf_counter()
        if npanels > 1:
            B = everywhere(ctx, B)
        result, plan = multiply(ctx, A, B, step)
        result[:1].tolist()  # waits for the GPU
        seconds = float(ctx.allreduce(xp.asarray([time.perf_counter() - start]), op="max")[0])
        say(f"panels of {step} rows on each rank: {npanels}, each by {plan.name}")
        say(f"{seconds:.3f} s, including the time to read or generate A")
        error = largest_error(ctx, A, result)
        say(f"largest error {float(ctx.allreduce(xp.asarray([error]), op='max')[0]):.1e}, of sums over {A.k} terms")
    return 0


if __name__ == "__main__":
    sys.exit(main())

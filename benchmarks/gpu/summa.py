"""How close does a product over a 2D grid of GPUs come to the rate of the same GPUs without communication?

mpiexec -n 4 python -m mpi4py -m benchmarks.gpu.summa [--sizes 8192 16384] [--chunks 8 4] [--json FILE]
mpiexec -n 4 python -m mpi4py -m benchmarks.gpu.summa --cublasmp [--wheels DIR] --json FILE

D = A B, all three n x n in square blocks on a grid of all ranks. A time is measured on the host, from a barrier until
the last GPU has D, in rounds of rotated order. "alone" is each rank's share of the product by the fastest algorithm of
cuBLASLt, on all GPUs at the same time and without communication: the rate of P GPUs. With --chunks there is a further
column for each number of panels. cuBLASMp is measured in a separate job (see cublasmp.py), which merges its times into
the file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
os.environ.setdefault("PBLAS_SYMMETRIC_SIZE", "8G")

from mpi4py import MPI

from benchmarks import results_file
from benchmarks.gpu.rows import about
from benchmarks.rounds import rounds, together

COMM = MPI.COMM_WORLD
DTYPES = ("bfloat16", "float32", "float64")
GOAL = 0.85
CHECKED = 1024
FILL = "unsigned int x = i * 0x9E3779B9u ^ seed; x ^= x >> 16; x *= 0x85EBCA6Bu; x ^= x >> 13; z = (int)x * 4.66e-10f;"

Columns = dict[str, Callable[[], object]]


def grid_of(ranks: int) -> tuple[int, int]:
    """Process rows and columns of the grid that is closest to a square.

    >>> grid_of(4), grid_of(8), grid_of(2)
    ((2, 2), (2, 4), (1, 2))
    """
    nprow = max(p for p in range(1, ranks + 1) if ranks % p == 0 and p * p <= ranks)
    return nprow, ranks // nprow


def timed(columns: Columns, count: int, synchronize: Callable[[], object]) -> dict[str, list[float]]:
    """Seconds of each column until the last rank's GPU has done its work, once per round."""
    return rounds({name: partial(together, work, synchronize) for name, work in columns.items()}, count)


def fill(local: Any, arrays: Any, seed: int) -> None:
    """Fill an array with numbers from [-1, 1) on this rank's GPU; they differ between ranks."""
    import cupy

    kernel = cupy.ElementwiseKernel("uint32 seed", "float32 z", FILL, "pblas_benchmark_summa_fill")
    x = cupy.empty(local.shape, cupy.float32, order="F")
    kernel(cupy.uint32(seed + 97 * COMM.rank), x)
    if local.dtype.itemsize == 2:
        arrays.begin()
        arrays.assign(x, local)
        arrays.synchronize()
    else:
        local[...] = x
    cupy.cuda.runtime.deviceSynchronize()


def operands(ctx: Any, n: int, nb: int, dtype: str) -> tuple[Any, Any, Any]:
    """A, B and D."""
    import pblas

    desc = pblas.MatrixDescriptor(n, n, nb, nb, pblas.Grid(*grid_of(COMM.size)))
    matrices = [ctx.empty(desc, dtype) for _ in range(3)]
    for seed, matrix in enumerate(matrices):
        fill(matrix.local, ctx.runtime.backend.arrays, seed)
    return matrices[0], matrices[1], matrices[2]


def check(ctx: Any, nb: int, dtype: str) -> float:
    """Relative error of a small product, compared with float64."""
    import numpy as np

    a, b, d = operands(ctx, CHECKED, nb, dtype)
    import pblas

    pblas.pmatmul(a, b, out=d)
    wide = [x.to_global(None).astype(np.float64) for x in (a, b, d)]
    exact = wide[0] @ wide[1]
    return float(np.linalg.norm(wide[2] - exact) / np.linalg.norm(exact))


def measure(contexts: dict[str, Any], n: int, nb: int, dtype: str, options: Any) -> dict[str, Any]:
    """**Collective.** One row of the file."""
    import cupy

    import pblas

    nprow, npcol = grid_of(COMM.size)
    columns: Columns = {}
    plans, explained, errors = [], {}, {}
    for name, ctx in contexts.items():
        errors[name] = check(ctx, min(nb, CHECKED // 4), dtype)
        a, b, d = operands(ctx, n, nb, dtype)
        for chunks in (None, *options.chunks):
            planned = pblas.plan_matmul(a, b, out=d, chunks=chunks, autotune=options.autotune)
            plans.append((planned, a, b, d))
            column = name if chunks is None else f"{name}, {chunks} panels"
            explained[column] = f"{planned.plan.name}, panels of {getattr(planned.plan, 'width', 0)}"
            columns[column] = lambda p=planned, a=a, b=b, d=d: p.execute(a, b, out=d)  # type: ignore[misc]
    arrays = next(iter(contexts.values())).runtime.backend.arrays
    z = plans[0][3].local
    x = cupy.ndarray((n // nprow, n), z.dtype, cupy.cuda.alloc(n // nprow * n * z.itemsize), order="F")
    y = cupy.ndarray((n, n // npcol), z.dtype, cupy.cuda.alloc(n // npcol * n * z.itemsize), order="F")
    for seed, matrix in enumerate((x, y)):  # zeros would cost less power
        fill(matrix, arrays, seed)

    def alone() -> None:
        arrays.begin(autotune=options.autotune)
        arrays.gemm(1.0, x, y, 0.0, z)
        arrays.synchronize()

    columns["alone"] = alone
    times = timed(columns, options.rounds, cupy.cuda.runtime.deviceSynchronize)
    for planned, *_ in plans:
        planned.close()
    return {
        **row_of(n, nb, dtype, times),
        "plans": explained,
        "relative_errors": errors,
        "efficiency": {
            name: statistics.median(alone / beside for alone, beside in zip(times["alone"], times[name], strict=True))
            for name in explained
        },
    }


def measure_cublasmp(n: int, nb: int, dtype: str, options: Any) -> dict[str, Any]:
    """**Collective.** One row of the file, with cuBLASMp."""
    import nvmath.distributed as nd
    import torch
    from nvmath.distributed.distribution import BlockCyclic, ProcessGrid
    from nvmath.distributed.linalg.advanced import Matmul

    nprow, npcol = grid_of(COMM.size)
    kind = getattr(torch, dtype)
    plans = []
    for _ in range(2):
        tensor = nd.allocate_symmetric_memory((n // nprow, n // npcol), torch, dtype=kind, axis_order="F")
        tensor.copy_(torch.rand(tensor.shape, device=tensor.device, dtype=torch.float32) - 0.5)
        plans.append(tensor)
    grid = ProcessGrid(shape=(nprow, npcol), layout=ProcessGrid.Layout.COL_MAJOR)
    product = Matmul(*plans, distributions=[BlockCyclic(grid, (nb, nb))] * 3)
    product.plan()
    times = timed({"cublasmp": product.execute}, options.rounds, torch.cuda.synchronize)
    product.free()
    nd.free_symmetric_memory(*plans)
    return row_of(n, nb, dtype, times)


def row_of(n: int, nb: int, dtype: str, times: dict[str, list[float]]) -> dict[str, Any]:
    """Fields of a row of the file for all columns."""
    median = {name: statistics.median(seconds) for name, seconds in times.items()}
    return {
        "n": n,
        "dtype": dtype,
        "grid": list(grid_of(COMM.size)),
        "block": nb,
        "us": {name: round(1e6 * seconds, 1) for name, seconds in median.items()},
        "tflops_per_gpu": {name: 2e-12 * n**3 / COMM.size / seconds for name, seconds in median.items()},
        "seconds": times,
    }


def merge(path: Path, new: dict[str, Any], facts: dict[str, Any]) -> None:
    """Add a row to the file, or its columns to the same row in the file."""
    whole: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"rows": []}
    key = ("n", "dtype", "grid", "block")
    same = [row for row in whole["rows"] if all(row[name] == new[name] for name in key)]
    if same:
        for name, value in new.items():
            same[0][name] = {**same[0].get(name, {}), **value} if isinstance(value, dict) else value
    else:
        whole["rows"].append(new)
    whole |= facts
    results_file.write(path, whole)


def publish(row: dict[str, Any], options: Any, facts: dict[str, Any]) -> None:
    """Print a row, and merge it into the file (rank 0)."""
    if COMM.rank:
        return
    shown = [f"{name} {us:,.0f} us ({row['tflops_per_gpu'][name]:.1f} TFLOP/s)" for name, us in row["us"].items()]
    ratios = [f"{name} {x:.3f}{'' if x >= GOAL else ' (goal 0.85)'}" for name, x in row.get("efficiency", {}).items()]
    print(f"{row['n']} {row['dtype']} {row['grid']} {row['block']}:", *shown, *ratios, sep="  ", flush=True)
    if options.json:
        merge(options.json, row, facts)


def run_pblas(options: Any) -> None:
    """**Collective.** Measure pblas and the GPUs alone."""
    import pblas

    contexts = {name: pblas.Context(backend=name) for name in options.backends}
    described = next(iter(contexts.values())).describe()
    facts = about(described["GPU"].partition(",")[0], COMM.size) | {"MPI": described["MPI library"]}
    facts |= {"transports": {name: ctx.describe()["transport"] for name, ctx in contexts.items()}}
    for dtype in options.dtypes:
        for n in options.sizes:
            for nb in options.blocks:
                publish(measure(contexts, n, nb, dtype, options), options, facts)
    for ctx in contexts.values():
        ctx.close()


def run_cublasmp(options: Any) -> None:
    """**Collective.** Measure cuBLASMp, whose libraries conflict with those of pblas."""
    from benchmarks.gpu.cublasmp import load_libraries, unpacked

    os.environ.setdefault("NVSHMEM_SYMMETRIC_SIZE", "8G")
    with tempfile.TemporaryDirectory() as own:
        folder = Path(COMM.bcast(own))
        if options.wheels is not None:
            if COMM.rank == 0:
                unpacked(options.wheels, folder)
            COMM.Barrier()
            sys.path.insert(0, str(folder))
            load_libraries(folder)
        import nvmath.distributed
        import torch

        device = COMM.Split_type(MPI.COMM_TYPE_SHARED, COMM.rank).Get_rank()
        torch.cuda.set_device(device)
        torch.set_default_device(f"cuda:{device}")
        nvmath.distributed.initialize(device, COMM, backends=["nvshmem", "nccl"])
        for dtype in options.dtypes:
            for n in options.sizes:
                for nb in options.blocks:
                    publish(measure_cublasmp(n, nb, dtype, options), options, {})
        COMM.Barrier()
        nvmath.distributed.finalize()


def main() -> None:
    """Measure all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[8192, 16384], help="n")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--blocks", nargs="+", type=int, default=[256], help="MB = NB")
    parser.add_argument("--backends", nargs="+", default=["nvshmem", "cuda"], help="backends of pblas")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--chunks", nargs="*", type=int, default=[], help="further columns with these numbers of panels"
    )
    parser.add_argument("--no-autotune", dest="autotune", action="store_false", help="use cuBLASLt's first algorithms")
    parser.add_argument("--cublasmp", action="store_true", help="measure cuBLASMp only")
    parser.add_argument("--wheels", type=Path, help="folder with the wheels of nvmath-python 0.8 and cuBLASMp")
    parser.add_argument("--json", type=Path, help="merge the rows into this file")
    options = parser.parse_args()
    (run_cublasmp if options.cublasmp else run_pblas)(options)


if __name__ == "__main__":
    main()

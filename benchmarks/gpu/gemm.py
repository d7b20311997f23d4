"""How fast is the Hopper kernel on one GPU, compared with the fastest algorithm of cuBLASLt?

python -m benchmarks.gpu.gemm [--models 8B,70B,405B] [--tokens 4096,8192,16384] [--orders CFC] [--json FILE]
python -m benchmarks.gpu.gemm --dtype float8_e4m3fn ...   8 bits into bfloat16, without the Hopper kernel

The products are those of one of 8 ranks, in bfloat16: "ag" multiplies gathered rows (n = F/8, k = hidden), "rs" forms
the partial product that is reduced and scattered (n = hidden, k = F/8). Orders are the storage orders of X, Y and Z;
with CFC, Y is stored as PyTorch stores weights. cuBLASLt's algorithm is tuned in the same way as by pblas. Each column
is a CUDA graph of back-to-back products, on random operands that rotate through more memory than the L2 cache. In each
round every column runs once, in rotated order; medians are compared.

"parts" is the Hopper kernel on 8 blocks of rows, one per rank. In "added" the first 7 blocks are partial products of
the last one, as if this GPU were all ranks of a GEMM+RS: the kernel signals them when they are stored, and adds them.

With 8 bits, "cublas" is the first algorithm of cuBLASLt's heuristics, "tuned" the fastest one, "fast" that with fast
accumulation, and "bfloat16" the same product in bfloat16. "pblas" is the graph of a planned product's executions.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cupy
import ml_dtypes
import numpy as np
from rich.console import Console
from rich.table import Table

import pblas
from benchmarks import results_file
from benchmarks.gpu.rows import MODELS, SET_NBYTES, about, rotated
from pblas import MatrixDescriptor
from pblas.backends.cuda.gemm import Gemm, read
from pblas.backends.cuda.pointwise import Pointwise
from pblas.backends.cuda.transfer import new_array
from pblas.backends.dtypes import FLOAT32, dtype_of_name
from pblas.backends.nvshmem.hopper.compile import Part, Term
from pblas.backends.nvshmem.hopper.gemm import Hopper
from pblas.backends.nvshmem.kernels.arguments import Watch
from pblas.backends.push_engine import GemmModes
from pblas.epilogues import RESULT, Name

RANKS = 8
SECONDS = 5  # deadline of a kernel that waits
GRAPH_SECONDS = 2e-3
FLOPS = 700e12  # approximate rate, from which the number of products per graph is computed
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
POINTWISE = Pointwise()
TOLERANCE = 0.01
"""Largest relative error of the whole result; bfloat16 rounds it by 0.0017."""


@dataclass(frozen=True)
class Row:
    """The model, the kind, the sizes and the storage orders of a product."""

    model: str
    op: str
    m: int
    n: int
    k: int
    orders: str

    @property
    def flop(self) -> int:
        """Floating-point operations."""
        return 2 * self.m * self.n * self.k


def rows(models: list[str], tokens: list[int], orders: list[str]) -> list[Row]:
    cases = []
    for model in models:
        hidden, forward = MODELS[model]
        shard = forward // RANKS
        for op, n, k in (("ag", shard, hidden), ("rs", hidden, shard)):
            cases += [Row(model, op, m, n, k, order) for order in orders for m in tokens]
    return cases


def converted(x: Any, dtype: np.dtype[Any]) -> Any:
    """The elements of a matrix, rounded to a dtype, by rows."""
    out = new_array(x.shape, dtype, cupy.cuda.alloc(x.size * dtype.itemsize))
    POINTWISE.evaluate(cupy.cuda.get_current_stream().ptr, Name(RESULT), x, {}, out, FLOAT32)
    return out


def matrix(rng: Any, m: int, n: int, order: str, dtype: np.dtype[Any] = BFLOAT16) -> Any:
    """Normal random numbers, rounded to a dtype."""
    x = converted(rng.standard_normal((m, n) if order == "C" else (n, m), dtype=cupy.float32), dtype)
    return x if order == "C" else x.T


def widened(x: Any) -> Any:
    return converted(x, FLOAT32)


def checked(row: Row, column: str, operands: tuple[Any, Any, Any]) -> None:
    """Compare some rows of the result with float32."""
    x, y, z = operands
    xs = blocks(x) if column == "added" else [x]
    z = z[-xs[0].shape[0] :]
    some = slice(0, z.shape[0], max(1, z.shape[0] // 64))
    exact = sum(widened(x[some]) for x in xs) @ widened(y)
    error = float(cupy.linalg.norm(widened(z[some]) - exact) / cupy.linalg.norm(exact))
    if not error < TOLERANCE:
        raise SystemExit(f"{row}: the result of {column} is wrong by {error}")


def blocks(x: Any) -> list[Any]:
    """The rows of each rank."""
    rows = -(-x.shape[0] // RANKS)
    return [x[i : i + rows] for i in range(0, x.shape[0], rows)]


def added(x: Any, y: Any, z: Any, flags: Any) -> list[Part]:
    """The parts of a launch in which all blocks of Z but the last are partial products of the last block."""
    *sent, (x_own, z_own) = zip(blocks(x), blocks(z), strict=True)
    words = [int(flag.data.ptr) for flag in flags]
    terms = tuple(Term(slot, word, source) for source, ((_, slot), word) in enumerate(zip(sent, words, strict=True)))
    parts = [Part(block, y, slot, signal=word, partial=True) for (block, slot), word in zip(sent, words, strict=True)]
    return [*parts, Part(x_own, y, z_own, terms=terms)]


def measured_in_8_bits(row: Row, dtype: np.dtype[Any], gemm: Gemm, stream: Any, rounds: int) -> dict[str, list[float]]:
    """Seconds of a product of 8 bits, for each column in each round."""
    rng, sets = cupy.random.default_rng(1), []
    nbytes = row.m * row.k + row.k * row.n + 2 * row.m * row.n
    for _ in range(max(1, -(-SET_NBYTES // nbytes))):
        x, y = (matrix(rng, *shape, "CF"[i], dtype) for i, shape in enumerate(((row.m, row.k), (row.k, row.n))))
        halves = matrix(rng, row.m, row.k, "C"), matrix(rng, row.k, row.n, "F")
        sets.append((x, y, matrix(rng, row.m, row.n, "C"), *halves))
    cupy.cuda.runtime.deviceSynchronize()
    x, y, z, *halves = sets[0]
    fast = GemmModes(fast_accumulate=True)
    descs = [MatrixDescriptor.replicated(*w.shape, 1, order=order) for w, order in zip((x, y, z), "CFC", strict=True)]
    with pblas.Context(backend="nvshmem") as ctx, Gemm() as tuned:
        tuned.tune([read(x, y, z).problem, read(x, y, z, modes=fast).problem, read(*halves, z).problem], stream.ptr)
        a, b, d = (ctx.from_local(w, desc) for w, desc in zip((x, y, z), descs, strict=True))
        planned = pblas.plan_matmul(a, b, out=d, autotune=True)
        columns = {
            "cublas": lambda x, y, z, *_: gemm.matmul(stream.ptr, 1.0, x, y, 0.0, z),
            "tuned": lambda x, y, z, *_: tuned.matmul(stream.ptr, 1.0, x, y, 0.0, z),
            "fast": lambda x, y, z, *_: tuned.matmul(stream.ptr, 1.0, x, y, 0.0, z, modes=fast),
            "bfloat16": lambda _x, _y, z, x, y: tuned.matmul(stream.ptr, 1.0, x, y, 0.0, z),
            "pblas": lambda x, y, z, *_: planned.execute(
                *(ctx.from_local(w, desc) for w, desc in zip((x, y), descs, strict=False)),
                out=ctx.from_local(z, descs[2]),
                stream=stream,
            ),
        }
        times = timed(row, columns, sets, stream, rounds)
        planned.close()
    return times


def measured(row: Row, gemm: Gemm, hopper: Hopper, stream: Any, rounds: int) -> dict[str, list[float]]:
    """Seconds of a product, for each column in each round."""
    rng = cupy.random.default_rng(1)
    nbytes = 2 * (row.m * row.k + row.k * row.n + row.m * row.n)
    sets = []
    for _ in range(max(1, -(-SET_NBYTES // nbytes))):
        x, y = matrix(rng, row.m, row.k, row.orders[0]), matrix(rng, row.k, row.n, row.orders[1])
        sets.append((x, y, matrix(rng, row.m, row.n, row.orders[2])))
    cupy.cuda.runtime.deviceSynchronize()
    gemm.tune([read(*sets[0]).problem], stream.ptr, candidates=16)
    flags = cupy.zeros(RANKS - 1, cupy.uint32)
    columns = {
        "cublas": lambda x, y, z: gemm.matmul(stream.ptr, 1.0, x, y, 0.0, z),
        "hopper": lambda x, y, z: hopper.matmul(stream.ptr, 1.0, [Part(x, y, z)], 0.0),
        "parts": lambda x, y, z: hopper.matmul(
            stream.ptr, 1.0, [Part(a, y, c) for a, c in zip(blocks(x), blocks(z), strict=True)], 0.0
        ),
        "added": lambda x, y, z: hopper.matmul(
            stream.ptr, 1.0, added(x, y, z, flags), 0.0, watch=Watch(SECONDS * 10**9)
        ),
    }
    return timed(row, columns, sets, stream, rounds)


def timed(
    row: Row, columns: dict[str, Any], sets: list[tuple[Any, ...]], stream: Any, rounds: int
) -> dict[str, list[float]]:
    """Seconds of each column's product in each round."""
    launches = max(len(sets), round(GRAPH_SECONDS * FLOPS / row.flop))
    graphs = {}
    for name, call in columns.items():
        sets[0][2][...] = 0
        cupy.cuda.runtime.deviceSynchronize()
        call(*sets[0])
        stream.synchronize()
        checked(row, name, sets[0][:3] if name != "bfloat16" else (*sets[0][3:], sets[0][2]))
        stream.begin_capture()
        for i in range(launches):
            call(*sets[i % len(sets)])
        graphs[name] = stream.end_capture()
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(rounds + 1):  # the first warms up
        order = rotated(list(graphs), turn)
        graphs[order[-1]].launch(stream)  # so that the GPU is busy before the first column, as before the others
        events = [cupy.cuda.Event() for _ in range(len(order) + 1)]
        events[0].record(stream)
        for name, event in zip(order, events[1:], strict=True):
            graphs[name].launch(stream)
            event.record(stream)
        stream.synchronize()
        for name, begin, end in zip(order, events, events[1:], strict=False):
            if turn:
                times[name].append(1e-3 * cupy.cuda.get_elapsed_time(begin, end) / launches)
    return times


def table_of_8_bits(results: list[dict[str, Any]], gpu: str) -> Table:
    summary = Table(title=f"Products of 8 bits on one {gpu}: us; speed: that of pblas, times that of cuBLASLt")
    names = ("cublas", "tuned", "fast", "pblas", "bfloat16")
    for head in ("model", "op", "m", "n", "k", *names, "speed"):
        summary.add_column(head, justify="left" if head in {"model", "op"} else "right")
    for result in results:
        medians, row = result["median_us"], result["row"]
        summary.add_row(
            *(str(row[name]) for name in ("model", "op", "m", "n", "k")),
            *(f"{medians[name]:.1f}" for name in names),
            f"{medians['cublas'] / medians['pblas']:.3f}",
        )
    return summary


def table(results: list[dict[str, Any]], gpu: str) -> Table:
    summary = Table(title=f"bfloat16 products on one {gpu}: us, and TFLOP/s of the Hopper kernel")
    for head in ("model", "op", "orders", "m", "n", "k", "cuBLASLt", "Hopper", "TFLOP/s", "speed", "parts", "added"):
        summary.add_column(head, justify="left" if head in {"model", "op", "orders"} else "right")
    for result in results:
        medians, row = result["median_us"], result["row"]
        speed = medians["cublas"] / medians["hopper"]
        summary.add_row(
            *(str(row[name]) for name in ("model", "op", "orders", "m", "n", "k")),
            *(f"{medians[name]:.1f}" for name in ("cublas", "hopper")),
            f"{2 * row['m'] * row['n'] * row['k'] / medians['hopper'] / 1e6:.0f}",
            f"{speed:.3f}",
            *(f"{medians[name]:.1f}" for name in ("parts", "added")),
        )
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--tokens", default="4096,8192,16384")
    parser.add_argument("--orders", default="CFC")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float8_e4m3fn"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tokens = [int(m) for m in options.tokens.split(",")]
    gpu = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    stream, results = cupy.cuda.Stream(non_blocking=True), []
    hopper, short = Hopper(), options.dtype != "bfloat16"
    with Gemm() as gemm:
        for row in rows(options.models.split(","), tokens, options.orders.split(",")):
            if short:
                times = measured_in_8_bits(row, dtype_of_name(options.dtype), gemm, stream, options.rounds)
            else:
                times = measured(row, gemm, hopper, stream, options.rounds)
            micro = {name: [1e6 * t for t in times[name]] for name in times}
            results.append(
                {"row": vars(row), "median_us": {n: statistics.median(t) for n, t in micro.items()}, "rounds_us": micro}
            )
            cupy.get_default_memory_pool().free_all_blocks()
        head = about(gpu, 1) | {"rounds": options.rounds, "cublaslt": gemm.version, "cupy": cupy.__version__}
    Console(width=120).print((table_of_8_bits if short else table)(results, gpu))
    if options.json:
        results_file.write(options.json, head | {"rows": results})


if __name__ == "__main__":
    main()

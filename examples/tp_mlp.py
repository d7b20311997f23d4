"""The feed-forward block of a Llama decoder over ranks: y = (silu(x G^T) * (x U^T)) D^T.

mpiexec -n 4 python -m mpi4py examples/tp_mlp.py
mpiexec -n 4 python -m mpi4py examples/tp_mlp.py --tokens 4096 --hidden 4096 --ff 14336 --dtype float16    (on GPUs)

Tokens, the rows of x, are split over the ranks, and so are the features of the hidden layer: each rank has some rows of
G, below them the same rows of U, and the same columns of D.

    h = silu(x G^T) * (x U^T)     x is gathered while it is multiplied; each rank keeps its features of h
    y = h D^T                     the sums are reduced and scattered while they are multiplied

These are two calls; each plans once. They are compared with an all-gather, products of the array library and a
reduce-scatter, one after the other. The result is checked against that of one rank.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import pblas
from pblas import tp


def mlp(ctx: pblas.Context, x: Any, gate_up: Any, down: Any, tokens: int, *, autotune: bool = False) -> Any:
    h = tp.allgather_linear(x, gate_up, epilogue="swiglu", tokens=tokens, autotune=autotune, ctx=ctx)
    return tp.linear_reduce_scatter(h, down, autotune=autotune, ctx=ctx)


def plain(ctx: pblas.Context, x: Any, gate_up: Any, down: Any, tokens: int) -> Any:
    spans = [tp.local_shard(tokens, rank, ctx.nprocs) for rank in range(ctx.nprocs)]
    counts = [span.stop - span.start for span in spans]
    z = ctx.allgather(x, counts=counts) @ gate_up.T
    gate, up = z[:, : down.shape[1]], z[:, down.shape[1] :]
    h = gate / (1 + np.exp(-gate)) * up
    return ctx.reduce_scatter(h @ down.T, counts=counts)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A Llama feed-forward block over ranks.")
    parser.add_argument("--tokens", type=int, default=250)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--ff", type=int, default=360)
    parser.add_argument("--dtype", choices=("float16", "bfloat16", "float32", "float64"), default="float32")
    parser.add_argument("--autotune", action="store_true", help="choose algorithms by measuring them")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args(argv)
    tokens, hidden, ff = options.tokens, options.hidden, options.ff
    if min(tokens, hidden, ff, options.repeat) < 1:
        parser.error("--tokens, --hidden, --ff and --repeat must be at least 1")
    with pblas.Context() as ctx:
        if ff % ctx.nprocs:
            parser.error(f"--ff {ff} must be a multiple of {ctx.nprocs}, the number of ranks")
        xp = library(ctx)
        rng = np.random.default_rng(0)  # every rank draws the same arrays, and keeps its shards
        x, gate, up, down = (
            rng.standard_normal(shape, np.float32) / np.float32(scale)
            for shape, scale in (((tokens, hidden), 1), *[((ff, hidden), hidden**0.5)] * 2, ((hidden, ff), ff**0.5))
        )
        rows, features = tp.local_shard(tokens, ctx.rank, ctx.nprocs), tp.local_shard(ff, ctx.rank, ctx.nprocs)
        shards = x[rows], np.vstack([gate[features], up[features]]), np.ascontiguousarray(down[:, features])
        operands = [xp.asarray(part).astype(options.dtype) for part in shards]
        ours = partial(mlp, autotune=options.autotune)
        y = xp.asarray(ours(ctx, *operands, tokens)).astype("float32")
        seconds = [timed(xp, options.repeat, function, ctx, *operands, tokens) for function in (ours, plain)]
        z = x @ gate.T
        exact = ((z / (1 + np.exp(-z)) * (x @ up.T)) @ down.T)[rows]
        error = float(abs(y - xp.asarray(exact)).max()) if exact.size else 0.0
        error, together, by_turns = ctx.allreduce(xp.asarray([error, *seconds]), op="max").tolist()
        if ctx.rank == 0:
            print(f"{tokens} tokens, {hidden} -> {ff} -> {hidden}, {options.dtype}, {ctx.nprocs} ranks")
            print(f"{1e3 * together:.2f} ms; with collectives before and after the products {1e3 * by_turns:.2f} ms")
            print(f"largest error {error:.1e}")
    return 0


def library(ctx: pblas.Context) -> Any:
    """NumPy, or CuPy if the context multiplies on GPUs."""
    return importlib.import_module("cupy" if "GPU" in ctx.describe() else "numpy")


def timed(xp: Any, repeat: int, function: Callable[..., Any], *arguments: Any) -> float:
    """Median seconds of a call, after three warm-up calls: the first plans, and on GPUs the next two capture graphs."""
    seconds = []
    for _ in range(3 + repeat):
        start = time.perf_counter()
        function(*arguments)
        if xp is not np:
            xp.cuda.get_current_stream().synchronize()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[3:]))


if __name__ == "__main__":
    sys.exit(main())

"""A stack of Llama 3 decoder layers over ranks, with random weights: prefill and decode, checked and timed.

mpiexec -n 4 python -m mpi4py examples/tp_llama.py                                     toy sizes, anywhere
mpiexec -n 4 python -m mpi4py examples/tp_llama.py --size 8B --tokens 4096 --batch 1 16 64 --ranks 1 2 4      on GPUs

Attention heads and the features of the feed-forward block are cut over the ranks. A layer has four products:

    q, k, v = h W^T                      column: each rank has the rows of its heads
    r, h    = r + a O^T, norm of it      row: each rank has the columns of its heads, and all add up what they have
    g       = silu(h G^T) * (h U^T)      column
    r, h    = r + g D^T, norm of it      row

In prefill tokens are cut, too: a column product gathers them (`allgather_linear`), a row product reduces and scatters
(`linear_reduce_scatter`). In decode every rank has all tokens, of which there are few: column products move nothing,
row products are all-reduced (`linear_allreduce`). What follows a row product, the residual and the norm, is its
epilogue. Beside each stands the same model with plain collectives: pblas' own on CPUs, NCCL's on GPUs, where torch is
needed and both are recorded in CUDA graphs. What it needs of either array library is in llama_arrays.py.

The check: on toy sizes, prefill over ranks is that of one rank in float64, and decoding token by token is the same.
"""

import argparse
import datetime as dt
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from llama_arrays import EPS, Float64Ops, operations
from mpi4py import MPI

import pblas
from pblas import Epilogue, tp


@dataclass(frozen=True)
class Config:
    """Sizes of the model: `head` is the length of one of `heads` queries, which share `kv_heads` keys and values."""

    layers: int
    hidden: int
    ff: int
    heads: int
    kv_heads: int
    head: int


DTYPES = ("bfloat16", "float32")
SIZES = {"toy": Config(2, 48, 120, 24, 12, 16), "8B": Config(32, 4096, 14336, 32, 8, 128)}


# The model. A way of running it has two products; arrays are a library's.


@dataclass(frozen=True)
class Model:
    """One rank's part of it.

    Args:
        config: sizes (global).
        layers: weights (local).
        turns: cosines and sines of the angles by which pairs of elements turn, positions x head / 2 (global).
    """

    config: Config
    layers: list[dict[str, Any]]
    turns: tuple[Any, Any]


def forward(way: Any, ops: Any, model: Model, x: Any, caches: Any, span: tuple[int, int]) -> Any:
    """The stack's output, normalised, for what `x` has of the tokens.

    Args:
        way: its `column` and `row` (global).
        ops: what it needs of the array library (local).
        model: sizes and weights of this rank (local).
        x: tokens x hidden (local).
        caches: keys and values of each layer; those of these tokens are stored there (local).
        span: positions of the tokens, the same in all sequences (global).
    """
    residual, layers = ops.copy(x), model.layers
    h = ops.norm(residual, layers[0]["norm1"])
    for number, w in enumerate(layers):
        z = way.column(h, w["qkv"], gated=False)
        a = attend(ops, model, z, caches[number], span)
        h = way.row(a, w["o"], residual, w["norm2"])
        z = way.column(h, w["gate_up"], gated=True)
        h = way.row(z, w["down"], residual, layers[(number + 1) % len(layers)]["norm1"])
    return h


def attend(ops: Any, model: Model, z: Any, cache: Any, span: tuple[int, int]) -> Any:
    """The heads of this rank: z is tokens x (queries, keys, values), sequence after sequence."""
    rows, length = len(z), span[1] - span[0]
    queries = ops.turned(z.reshape(rows // length, length, -1, model.config.head), cache, span, model.turns)
    keys, values = (part[:, : span[1]] for part in cache)
    return ops.attention(queries, keys, values, causal=length > 1).reshape(rows, -1)


# Ways of running it.


class Cut:
    """Tokens are cut over the ranks."""

    def __init__(self, ctx: pblas.Context, ntokens: int, *, autotune: bool = False) -> None:
        self.ctx, self.ntokens, self.options = ctx, ntokens, {"ctx": ctx, "autotune": autotune}

    def column(self, x: Any, weight: Any, *, gated: bool) -> Any:
        return tp.allgather_linear(x, weight, None, "swiglu" if gated else None, tokens=self.ntokens, **self.options)

    def row(self, x: Any, weight: Any, residual: Any, norm: Any) -> Any:
        following = Epilogue("rmsnorm", weight=norm, eps=EPS, residual=residual)
        return tp.linear_reduce_scatter(x, weight, None, following, **self.options)


class Whole:
    """Every rank has all tokens, so that column products are those of a context of its own."""

    def __init__(self, ctx: pblas.Context, alone: pblas.Context, *, autotune: bool = False) -> None:
        self.ctx, self.alone, self.options = ctx, alone, {"autotune": autotune}

    def column(self, x: Any, weight: Any, *, gated: bool) -> Any:
        return tp.allgather_linear(x, weight, None, "swiglu" if gated else None, ctx=self.alone, **self.options)

    def row(self, x: Any, weight: Any, residual: Any, norm: Any) -> Any:
        following = Epilogue("rmsnorm", weight=norm, eps=EPS, residual=residual)
        return tp.linear_allreduce(x, weight, None, following, ctx=self.ctx, **self.options)


class PlainCut(Cut):
    """The same with collectives before and after the products."""

    def __init__(self, ctx: pblas.Context, ntokens: int, ops: Any) -> None:
        super().__init__(ctx, ntokens)
        self.ops = ops

    def column(self, x: Any, weight: Any, *, gated: bool) -> Any:
        z = self.ops.gathered(x) @ weight.T
        return self.ops.gated(z) if gated else z

    def row(self, x: Any, weight: Any, residual: Any, norm: Any) -> Any:
        return self.ops.norm(self.ops.scattered(x @ weight.T), norm, residual)


class PlainWhole:
    """The same with an all-reduce after the product."""

    def __init__(self, ops: Any) -> None:
        self.ops = ops

    def column(self, x: Any, weight: Any, *, gated: bool) -> Any:
        return self.ops.gated(x @ weight.T) if gated else x @ weight.T

    def row(self, x: Any, weight: Any, residual: Any, norm: Any) -> Any:
        return self.ops.norm(self.ops.reduced(x @ weight.T), norm, residual)


class Reference(PlainWhole):
    """One rank has all heads and features."""

    def row(self, x: Any, weight: Any, residual: Any, norm: Any) -> Any:
        return self.ops.norm(x @ weight.T, norm, residual)


# Weights.


def random_layers(config: Config, nprocs: int, make: Callable[..., Any]) -> list[Any]:
    """One rank's weights, of `nprocs`; all of them of one."""
    q, kv, f = (n // nprocs for n in (config.heads * config.head, config.kv_heads * config.head, config.ff))
    shapes = {
        "qkv": (q + 2 * kv, config.hidden),
        "o": (config.hidden, q),
        "gate_up": (2 * f, config.hidden),
        "down": (config.hidden, f),
        "norm1": (config.hidden,),
        "norm2": (config.hidden,),
    }
    return [{name: make(*shape) for name, shape in shapes.items()} for _ in range(config.layers)]


def part_of(whole: dict[str, Any], config: Config, rank: int, nprocs: int) -> dict[str, Any]:
    """A rank's part of a layer's weights: its heads and features."""
    q, kv, f = config.heads * config.head, config.kv_heads * config.head, config.ff
    blocks = {"qkv": (q, kv, kv), "gate_up": (f, f)}
    found = {name: whole[name] for name in ("norm1", "norm2")}
    for name, lengths in blocks.items():
        pieces = np.split(whole[name], np.cumsum(lengths)[:-1])
        found[name] = np.vstack([piece[tp.part(len(piece), rank, nprocs)] for piece in pieces])
    return found | {name: whole[name][:, tp.part(n, rank, nprocs)] for name, n in (("o", q), ("down", f))}


def empty_caches(ops: Any, config: Config, nprocs: int, batch: int, length: int) -> list[Any]:
    shape = batch, length, config.kv_heads // nprocs, config.head
    return [(ops.zeros(*shape), ops.zeros(*shape)) for _ in range(config.layers)]


# The check and the times.


def check(ctx: pblas.Context, ops: Any, ntokens: int) -> float:
    """The largest difference of prefill, and of decode, from one rank's, in units of its largest element."""
    config, rng, mine = SIZES["toy"], np.random.default_rng(0), tp.part(ntokens, ctx.rank, ctx.nprocs)
    whole = random_layers(config, 1, lambda *shape: rng.standard_normal(shape) / shape[-1] ** 0.5 + (len(shape) == 1))
    x, wide, span = rng.standard_normal((ntokens, config.hidden)), Float64Ops(ctx), (0, ntokens)
    single = Model(config, whole, wide.turns(ntokens, config.head))
    expected = forward(Reference(wide), wide, single, x, empty_caches(wide, config, 1, 1, ntokens), span)
    layers = [{name: ops.array(part) for name, part in part_of(w, config, ctx.rank, ctx.nprocs).items()} for w in whole]
    model, caches = (
        Model(config, layers, ops.turns(ntokens, config.head)),
        empty_caches(ops, config, ctx.nprocs, 1, ntokens),
    )
    prefill = ops.host(forward(Cut(ctx, ntokens), ops, model, ops.array(x[mine]), caches, span))
    caches = empty_caches(ops, config, ctx.nprocs, 1, ntokens)
    with pblas.Context(MPI.COMM_SELF) as alone:
        way, tokens = Whole(ctx, alone), [ops.array(x[t : t + 1]) for t in range(ntokens)]
        one_by_one = [ops.host(forward(way, ops, model, token, caches, (t, t + 1))) for t, token in enumerate(tokens)]
    differences = prefill - expected[mine], np.vstack(one_by_one) - expected
    error = max(np.abs(each).max(initial=0.0) for each in differences) / np.abs(expected).max()
    return float(MPI.COMM_WORLD.allreduce(error, MPI.MAX))


def timed(ops: Any, comm: MPI.Intracomm, calls: Sequence[Callable[[], Any]], repeat: int) -> list[float]:
    """Median seconds of each of some calls, which take turns, on the slowest rank."""
    ready, seconds = [ops.recorded(call) for call in calls], [list[float]() for _ in calls]
    for _ in range(repeat):
        for call, found in zip(ready, seconds, strict=True):
            ops.wait()
            comm.Barrier()
            start = time.perf_counter()
            call()
            ops.wait()
            found.append(time.perf_counter() - start)
    return [comm.allreduce(float(np.median(found)), MPI.MAX) for found in seconds]


class Row(NamedTuple):
    """Seconds in which so many tokens were computed, with pblas and with plain collectives."""

    phase: str
    ranks: int
    tokens: int
    seconds: float
    plain: float

    def __str__(self) -> str:
        ours, plain = (f"{1e3 * t:.2f} ms, {self.tokens / t:.0f} tokens/s" for t in (self.seconds, self.plain))
        ratio = f"{self.plain / self.seconds:.2f} x as long"
        return (
            f"{self.ranks} ranks, {self.phase}: {self.tokens} tokens in {ours}; with plain collectives {plain}, {ratio}"
        )


def measured(ctx: pblas.Context, comm: MPI.Intracomm, ops: Any, config: Config, options: Any) -> list[Row]:
    """A row for a prompt, and one for each number of sequences that are decoded together, one token of each."""
    ntokens, most, mine = options.tokens, max(options.batch), tp.part(options.tokens, ctx.rank, ctx.nprocs)
    model, rows = (
        Model(config, random_layers(config, ctx.nprocs, ops.random), ops.turns(ntokens, config.head)),
        list[Row](),
    )
    prompt, batch = ops.random(mine.stop - mine.start, config.hidden), ops.random(most, config.hidden)
    caches = empty_caches(ops, config, ctx.nprocs, most, ntokens)

    def compare(phase: str, ways: Sequence[Any], x: Any, tokens: int, sequences: int, first: int) -> None:
        some = [(keys[:sequences], values[:sequences]) for keys, values in caches]
        calls = [partial(forward, way, ops, model, x, some, (first, ntokens)) for way in ways]
        rows.append(Row(phase, ctx.nprocs, tokens, *timed(ops, comm, calls, options.repeat)))
        if ctx.rank == 0:
            print(rows[-1], flush=True)

    ops.join(comm)
    tuned = options.autotune
    compare("prefill", [Cut(ctx, ntokens, autotune=tuned), PlainCut(ctx, ntokens, ops)], prompt, ntokens, 1, 0)
    with pblas.Context(MPI.COMM_SELF) as alone:
        for n in options.batch:
            compare("decode", [Whole(ctx, alone, autotune=tuned), PlainWhole(ops)], batch[:n], n, n, ntokens - 1)
    ops.close()
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Llama decoder layers over ranks.")
    parser.add_argument("--size", choices=SIZES, default="toy")
    parser.add_argument("--layers", type=int, help="fewer than the model has")
    parser.add_argument("--tokens", type=int, default=24, help="of a prompt; on GPUs a multiple of the number of ranks")
    parser.add_argument("--batch", type=int, nargs="+", default=[4], help="sequences that are decoded together")
    parser.add_argument("--ranks", type=int, nargs="+", help="on how many of the ranks, one after the other")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="on GPUs; on CPUs it is float32")
    parser.add_argument("--autotune", action="store_true", help="choose GEMM algorithms by trying them, on GPUs")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path, help="a list of runs, to which this one is added")
    options = parser.parse_args(argv)
    world, config = MPI.COMM_WORLD, SIZES[options.size]
    config, counts, rows = replace(config, layers=options.layers or config.layers), options.ranks, list[Row]()
    with pblas.Context() as ctx:
        counts = counts or [ctx.nprocs]
        if max(counts) > ctx.nprocs or any(config.kv_heads % count for count in counts):
            parser.error(f"{config.kv_heads} heads of keys cannot be shared evenly by {counts} of {ctx.nprocs} ranks")
        device = ctx.describe().get("GPU", "CPUs").partition(",")[0]
        error = check(ctx, operations(ctx, "float32"), 25)
        if ctx.rank == 0:
            print(f"largest error, toy size: {error:.1e}\n{config.layers} layers of size {options.size} on {device}")
        for count in counts:
            some = world.Split(int(ctx.rank < count), ctx.rank)
            if ctx.rank < count:
                with pblas.Context(some) as among:
                    rows += measured(among, some, operations(among, options.dtype), config, options)
            some.Free()
    if options.json and world.rank == 0:
        runs = json.loads(options.json.read_text()) if options.json.exists() else []
        facts = {"date": f"{dt.datetime.now(dt.UTC):%Y-%m-%d}", "device": device, "size": options.size}
        facts |= {"layers": config.layers, "dtype": options.dtype, "prompt": options.tokens}
        runs.append(facts | {"rows": [row._asdict() for row in rows]})
        options.json.write_text(json.dumps(runs, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

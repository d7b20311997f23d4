"""A stack of Llama 3 decoder layers over ranks, with random weights: prefill and decode, checked and timed.

mpiexec -n 4 python -m mpi4py examples/tp_llama.py                                     toy sizes, anywhere
mpiexec -n 4 python -m mpi4py examples/tp_llama.py --size 8B --tokens 4096 --batch 1 16 64 --ranks 1 2 4      on GPUs

Attention heads and the features of the feed-forward block are split over the ranks. A layer has four products:

    q, k, v = h W^T                      column: each rank has the rows of its heads
    r, h    = r + a O^T, norm(r)         row: each rank has the columns of its heads; the partial sums are added
    g       = silu(h G^T) * (h U^T)      column
    r, h    = r + g D^T, norm(r)         row

In prefill tokens are split, too: a column product gathers them (`allgather_linear`), a row product reduces and scatters
(`linear_reduce_scatter`). In decode every rank has all tokens, which are few: column products move nothing, row
products are all-reduced (`linear_allreduce`). The residual and the norm after a row product are its epilogue. Each time
is compared with the same model with separate collectives: those of pblas on CPUs, NCCL on GPUs. On GPUs the example
needs torch, and both models are captured in CUDA graphs. llama_arrays.py has the operations of both array libraries.

The check compares prefill and the tokens decoded after it, in the timed graphs, at the timed sizes and on the timed
ranks, with the whole stack on one rank: in float32 on a GPU, in float64 on CPUs. The reference draws one layer's
weights at a time, so it fits on one GPU even if the model does not.
"""

import argparse
import datetime as dt
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from llama_arrays import EPS, operations
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


# The model. `products` has its two kinds of products, column and row; `ops` has its array operations.


@dataclass(frozen=True)
class Model:
    """One rank's shard of the model.

    Args:
        config: sizes (global).
        layers: weights of each layer: a list, or `Weights`, which draws them on demand (local).
        turns: cosines and sines of the rotary position embedding, positions x head / 2 (global).
    """

    config: Config
    layers: Any
    turns: tuple[Any, Any]


def forward(products: Any, ops: Any, model: Model, x: Any, caches: Any, span: tuple[int, int]) -> Any:
    """The stack's output, normalised, for the tokens of `x`.

    Args:
        products: an object with `column` and `row` (global).
        ops: array operations (local).
        model: sizes and weights of this rank (local).
        x: tokens x hidden (local).
        caches: keys and values of each layer; the keys and values of these tokens are added (local).
        span: positions of the tokens, the same in all sequences (global).
    """
    residual, layers = ops.copy(x), model.layers
    h = ops.norm(residual, layers[0]["norm1"])
    for number, w in enumerate(layers):
        z = products.column(h, w["qkv"], gated=False)
        a = attend(ops, model, z, caches[number], span)
        h = products.row(a, w["o"], residual, w["norm2"])
        z = products.column(h, w["gate_up"], gated=True)
        h = products.row(z, w["down"], residual, layers[(number + 1) % len(layers)]["norm1"])
    return h


def attend(ops: Any, model: Model, z: Any, cache: Any, span: tuple[int, int]) -> Any:
    """The heads of this rank: z is tokens x (queries, keys, values), sequence after sequence."""
    rows, length = len(z), span[1] - span[0]
    queries = ops.turned(z.reshape(rows // length, length, -1, model.config.head), cache, span, model.turns)
    keys, values = (part[:, : span[1]] for part in cache)
    return ops.attention(queries, keys, values, causal=length > 1).reshape(rows, -1)


# Implementations of the products.


class Cut:
    """Prefill: tokens are split over the ranks."""

    def __init__(self, ctx: pblas.Context, ntokens: int, *, autotune: bool = False) -> None:
        self.ctx, self.ntokens, self.options = ctx, ntokens, {"ctx": ctx, "autotune": autotune}

    def column(self, x: Any, weight: Any, *, gated: bool) -> Any:
        return tp.allgather_linear(x, weight, None, "swiglu" if gated else None, tokens=self.ntokens, **self.options)

    def row(self, x: Any, weight: Any, residual: Any, norm: Any) -> Any:
        following = Epilogue("rmsnorm", weight=norm, eps=EPS, residual=residual)
        return tp.linear_reduce_scatter(x, weight, None, following, **self.options)


class Whole:
    """Decode: every rank has all tokens, so column products run on a context of one rank."""

    def __init__(self, ctx: pblas.Context, alone: pblas.Context, *, autotune: bool = False) -> None:
        self.ctx, self.alone, self.options = ctx, alone, {"autotune": autotune}

    def column(self, x: Any, weight: Any, *, gated: bool) -> Any:
        return tp.allgather_linear(x, weight, None, "swiglu" if gated else None, ctx=self.alone, **self.options)

    def row(self, x: Any, weight: Any, residual: Any, norm: Any) -> Any:
        following = Epilogue("rmsnorm", weight=norm, eps=EPS, residual=residual)
        return tp.linear_allreduce(x, weight, None, following, ctx=self.ctx, **self.options)


class PlainCut(Cut):
    """Prefill with separate collectives before and after the products."""

    def __init__(self, ctx: pblas.Context, ntokens: int, ops: Any) -> None:
        super().__init__(ctx, ntokens)
        self.ops = ops

    def column(self, x: Any, weight: Any, *, gated: bool) -> Any:
        z = self.ops.gathered(x) @ weight.T
        return self.ops.gated(z) if gated else z

    def row(self, x: Any, weight: Any, residual: Any, norm: Any) -> Any:
        return self.ops.norm(self.ops.scattered(x @ weight.T), norm, residual)


class PlainWhole:
    """Decode with a separate all-reduce after the product."""

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


class Weights:
    """The unsharded weights of the stack; the weights of a layer are drawn on demand, the same on every rank.

    Args:
        config: sizes (global).
        ops: the array library that draws them (local).
        wide: the array library that holds them (local).
    """

    def __init__(self, config: Config, ops: Any, wide: Any) -> None:
        self._config, self._ops, self._wide = config, ops, wide
        self._drawn = lru_cache(2)(self._draw)

    def _draw(self, number: int) -> dict[str, Any]:
        config = self._config
        q, kv = config.heads * config.head, config.kv_heads * config.head
        shapes = {
            "qkv": (q + 2 * kv, config.hidden),
            "o": (config.hidden, q),
            "gate_up": (2 * config.ff, config.hidden),
            "down": (config.hidden, config.ff),
            "norm1": (config.hidden,),
            "norm2": (config.hidden,),
        }
        self._ops.seed(number)
        drawn = {name: self._ops.random(*shape) + (len(shape) == 1) for name, shape in shapes.items()}
        return {name: self._wide.array(x) for name, x in drawn.items()}

    def __getitem__(self, number: int) -> dict[str, Any]:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return self._drawn(number)

    def __len__(self) -> int:
        return self._config.layers


def part_of(whole: dict[str, Any], config: Config, ops: Any, rank: int, nprocs: int) -> dict[str, Any]:
    """A rank's shard of a layer's weights: its heads and features."""
    q, kv, f = config.heads * config.head, config.kv_heads * config.head, config.ff
    shards = {name: whole[name] for name in ("norm1", "norm2")}
    for name, lengths in {"qkv": (q, kv, kv), "gate_up": (f, f)}.items():
        pieces = ops.split(whole[name], lengths)
        shards[name] = ops.joined([piece[tp.local_shard(len(piece), rank, nprocs)] for piece in pieces])
    return shards | {
        name: ops.copy(whole[name][:, tp.local_shard(n, rank, nprocs)]) for name, n in (("o", q), ("down", f))
    }


def empty_caches(ops: Any, config: Config, nprocs: int, batch: int, length: int) -> list[Any]:
    shape = batch, length, config.kv_heads // nprocs, config.head
    return [(ops.zeros(*shape), ops.zeros(*shape)) for _ in range(config.layers)]


# The check and the times.


STEPS = 3  # number of checked steps of decode


def expected(config: Config, ops: Any, x: Any) -> Any:
    """The stack's output for one sequence on one rank, in a wider dtype."""
    ntokens, wide = len(x), ops.wider()
    model = Model(config, Weights(config, ops, wide), wide.turns(ntokens, config.head))
    caches = empty_caches(wide, config, 1, 1, ntokens)
    return wide.host(forward(Reference(wide), wide, model, wide.array(x), caches, (0, ntokens)))


def error(
    ctx: pblas.Context, comm: MPI.Intracomm, ops: Any, model: Model, phases: tuple[Any, Any], x: Any, reference: Any
) -> float:
    """The largest difference of prefill and of steps of decode, relative to the largest element of the reference.

    Args:
        ctx: context of the ranks (global).
        comm: communicator of the same ranks (global).
        ops: array operations (local).
        model: sizes and weights of this rank (local).
        phases: the products of prefill and of decode (global).
        x: tokens x hidden; the last STEPS tokens are decoded (global).
        reference: output for all of them (global).
    """
    length = len(x) - STEPS
    shard, caches = tp.local_shard(length, ctx.rank, ctx.nprocs), empty_caches(ops, model.config, ctx.nprocs, 1, len(x))
    spans = [(0, length), *((t, t + 1) for t in range(length, len(x)))]
    parts = [shard, *(slice(*span) for span in spans[1:])]
    differences = []
    for products, part, span in zip((phases[0], *(STEPS * [phases[1]])), parts, spans, strict=True):
        call = ops.recorded(partial(forward, products, ops, model, x[part], caches, span))
        difference = np.abs(ops.host(call()) - reference[part])
        differences.append(difference.max(initial=0.0) / np.abs(reference).max())
    return float(comm.allreduce(max(differences), MPI.MAX))


def timed(ops: Any, comm: MPI.Intracomm, calls: Sequence[Callable[[], Any]], repeat: int) -> list[float]:
    """Median seconds of each call on the slowest rank; the calls alternate."""
    ready, seconds = [ops.recorded(call) for call in calls], [list[float]() for _ in calls]
    for _ in range(repeat):
        for call, samples in zip(ready, seconds, strict=True):
            ops.wait()
            comm.Barrier()
            start = time.perf_counter()
            call()
            ops.wait()
            samples.append(time.perf_counter() - start)
    return [comm.allreduce(float(np.median(samples)), MPI.MAX) for samples in seconds]


class Errors(NamedTuple):
    """Largest errors with pblas and with plain collectives, relative to the largest element."""

    ranks: int
    pblas: float
    plain: float

    def __str__(self) -> str:
        return (
            f"{self.ranks} ranks, largest error: with plain collectives {self.plain:.1e}, with pblas {self.pblas:.1e}"
        )


class Row(NamedTuple):
    """Number of tokens, and seconds to compute them with pblas and with plain collectives."""

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


def measured(
    ctx: pblas.Context, comm: MPI.Intracomm, ops: Any, config: Config, options: Any
) -> tuple[Errors, list[Row]]:
    """The errors, and rows of times: one for a prompt, one for each number of sequences that are decoded together."""
    ntokens, most, tuned = options.tokens, max(options.batch), options.autotune
    layers = [part_of(whole, config, ops, ctx.rank, ctx.nprocs) for whole in Weights(config, ops, ops)]
    model, rows = Model(config, layers, ops.turns(ntokens + STEPS, config.head)), list[Row]()
    ops.seed(config.layers)
    x = ops.random(max(ntokens + STEPS, most), config.hidden)
    caches = empty_caches(ops, config, ctx.nprocs, most, ntokens)

    def compare(phase: str, variants: Sequence[Any], x: Any, tokens: int, sequences: int, first: int) -> None:
        some = [(keys[:sequences], values[:sequences]) for keys, values in caches]
        calls = [partial(forward, products, ops, model, x, some, (first, ntokens)) for products in variants]
        rows.append(Row(phase, ctx.nprocs, tokens, *timed(ops, comm, calls, options.repeat)))
        if ctx.rank == 0:
            print(rows[-1], flush=True)

    ops.join(comm)
    with pblas.Context(MPI.COMM_SELF) as alone:
        prefill = [Cut(ctx, ntokens, autotune=tuned), PlainCut(ctx, ntokens, ops)]
        decode = [Whole(ctx, alone, autotune=tuned), PlainWhole(ops)]
        some = x[: ntokens + STEPS]
        reference = expected(config, ops, some)
        variants = zip(prefill, decode, strict=True)
        errors = Errors(ctx.nprocs, *(error(ctx, comm, ops, model, phases, some, reference) for phases in variants))
        if ctx.rank == 0:
            print(errors)
        compare("prefill", prefill, x[tp.local_shard(ntokens, ctx.rank, ctx.nprocs)], ntokens, 1, 0)
        for n in options.batch:
            compare("decode", decode, x[:n], n, n, ntokens - 1)
    ops.close()
    return errors, rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Llama decoder layers over ranks.")
    parser.add_argument("--size", choices=SIZES, default="toy")
    parser.add_argument("--layers", type=int, help="number of layers; default: that of the model")
    parser.add_argument("--tokens", type=int, default=24, help="tokens of a prompt; on GPUs a multiple of the ranks")
    parser.add_argument("--batch", type=int, nargs="+", default=[4], help="sequences that are decoded together")
    parser.add_argument("--ranks", type=int, nargs="+", help="numbers of ranks to measure; default: all ranks")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="dtype on GPUs; on CPUs it is float32")
    parser.add_argument("--autotune", action="store_true", help="on GPUs, measure algorithms and take the fastest")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path, help="file with a list of runs, to which this run is added")
    options = parser.parse_args(argv)
    world, config = MPI.COMM_WORLD, SIZES[options.size]
    config, counts, rows = replace(config, layers=options.layers or config.layers), options.ranks, list[Row]()
    errors = list[Errors]()
    with pblas.Context() as ctx:
        counts = counts or [ctx.nprocs]
        if max(counts) > ctx.nprocs or any(config.kv_heads % count for count in counts):
            parser.error(f"{config.kv_heads} heads of keys cannot be shared evenly by {counts} of {ctx.nprocs} ranks")
        device = ctx.describe().get("GPU", "CPUs").partition(",")[0]
        if ctx.rank == 0:
            print(f"{config.layers} layers of size {options.size} on {device}")
        for count in counts:
            comm = world.Split(int(ctx.rank < count), ctx.rank)
            if ctx.rank < count:
                with pblas.Context(comm) as subset:
                    largest_errors, more = measured(subset, comm, operations(subset, options.dtype), config, options)
                    errors.append(largest_errors)
                    rows += more
            comm.Free()
    if options.json and world.rank == 0:
        runs = json.loads(options.json.read_text()) if options.json.exists() else []
        facts = {"date": f"{dt.datetime.now(dt.UTC):%Y-%m-%d}", "device": device, "size": options.size}
        facts |= {"layers": config.layers, "dtype": options.dtype, "prompt": options.tokens}
        runs.append(
            facts | {name: [x._asdict() for x in items] for name, items in (("errors", errors), ("rows", rows))}
        )
        options.json.write_text(json.dumps(runs, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

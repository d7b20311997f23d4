"""A stack of Llama 3 decoder layers over ranks, with random weights: prefill and decode, checked and timed.

mpiexec -n 4 python -m mpi4py examples/tp_llama.py                                         toy sizes, anywhere
mpiexec -n 4 python -m mpi4py examples/tp_llama.py --size 8B --tokens 4096 --batch 64      on GPUs, with torch

Attention heads and the features of the feed-forward block are cut over the ranks. A layer has four products:

    q, k, v = h W^T                      column: each rank has the rows of its heads
    r, h    = r + a O^T, norm of it      row: each rank has the columns of its heads, and all add up what they have
    g       = silu(h G^T) * (h U^T)      column
    r, h    = r + g D^T, norm of it      row

In prefill tokens are cut, too: a column product gathers them (`allgather_linear`), a row product reduces and scatters
(`linear_reduce_scatter`). In decode every rank has all tokens, of which there are few: column products move nothing,
row products are all-reduced (`linear_allreduce`). What follows a row product, the residual and the norm, is its
epilogue. Beside each stands the same model with plain collectives: pblas' own on CPUs, NCCL's on GPUs.

The check: on toy sizes, prefill over ranks is that of one rank in float64, and decoding token by token is the same.
"""

import argparse
import importlib
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from mpi4py import MPI

import pblas
from pblas import Epilogue, tp

EPS, THETA = 1e-5, 500_000.0


@dataclass(frozen=True)
class Config:
    """Sizes of the model: `head` is the length of one of `heads` queries, which share `kv_heads` keys and values."""

    layers: int
    hidden: int
    ff: int
    heads: int
    kv_heads: int
    head: int


SIZES = {"toy": Config(2, 48, 120, 24, 12, 4), "8B": Config(32, 4096, 14336, 32, 8, 128)}


# The model. A way of running it has two products; arrays are a library's.


def forward(way: Any, ops: Any, config: Config, layers: list[Any], x: Any, caches: Any, span: tuple[int, int]) -> Any:
    """The stack's output, normalised, for what `x` has of the tokens.

    Args:
        way: its `column` and `row` (global).
        ops: what it needs of the array library (local).
        config: sizes (global).
        layers: weights of this rank (local).
        x: tokens x hidden (local).
        caches: keys and values of each layer; those of these tokens are stored there (local).
        span: positions of the tokens, the same in all sequences (global).
    """
    residual, turn = ops.copy(x), ops.turns(*span, config.head)
    h = ops.norm(residual, layers[0]["norm1"])
    for number, w in enumerate(layers):
        z = way.column(h, w["qkv"], gated=False)
        a = attend(ops, config, z, caches[number], span, turn)
        h = way.row(a, w["o"], residual, w["norm2"])
        z = way.column(h, w["gate_up"], gated=True)
        h = way.row(z, w["down"], residual, layers[(number + 1) % len(layers)]["norm1"])
    return h


def attend(ops: Any, config: Config, z: Any, cache: Any, span: tuple[int, int], turn: Any) -> Any:
    """The heads of this rank: z is tokens x (queries, keys, values), sequence after sequence."""
    groups, length = config.heads // config.kv_heads, span[1] - span[0]
    sequences, kv = len(z) // length, z.shape[1] // (groups + 2)
    parts = z[:, : groups * kv], *halves(z[:, groups * kv :])
    q, k, v = (part.reshape(sequences, length, -1, config.head) for part in parts)
    cache[0][:, slice(*span)], cache[1][:, slice(*span)] = rotated(ops, k, turn), v
    keys, values = (part[:, : span[1]] for part in cache)
    return ops.attention(rotated(ops, q, turn), keys, values, causal=length > 1).reshape(len(z), -1)


def halves(z: Any) -> tuple[Any, Any]:
    middle = z.shape[-1] // 2
    return z[..., :middle], z[..., middle:]


def rotated(ops: Any, x: Any, turn: tuple[Any, Any]) -> Any:
    """Rotary embedding: pairs of elements, turned by the token's position."""
    (a, b), (cos, sin) = halves(x), turn
    return ops.joined(a * cos - b * sin, b * cos + a * sin)


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
    """Every rank has all tokens; alone it has all heads and features as well."""

    def __init__(self, ctx: pblas.Context | None, ops: Any, *, autotune: bool = False) -> None:
        self.ctx, self.ops, self.autotune = ctx, ops, autotune

    def column(self, x: Any, weight: Any, *, gated: bool) -> Any:
        return self.ops.gated(x @ weight.T) if gated else x @ weight.T

    def row(self, x: Any, weight: Any, residual: Any, norm: Any) -> Any:
        if self.ctx is None:
            return self.ops.norm(x @ weight.T, norm, residual)
        following = Epilogue("rmsnorm", weight=norm, eps=EPS, residual=residual)
        return tp.linear_allreduce(x, weight, None, following, ctx=self.ctx, autotune=self.autotune)


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


class PlainWhole(Whole):
    """The same with an all-reduce after the product."""

    def row(self, x: Any, weight: Any, residual: Any, norm: Any) -> Any:
        return self.ops.norm(self.ops.reduced(x @ weight.T), norm, residual)


# Array libraries.


class NumPyOps:
    """What the model needs of NumPy."""

    dtype: Any = np.float32
    library = "pblas' collectives"

    def __init__(self, ctx: pblas.Context) -> None:
        self.ctx = ctx

    def array(self, x: Any) -> Any:
        return np.array(x, self.dtype)

    def zeros(self, *shape: int) -> Any:
        return np.zeros(shape, self.dtype)

    def host(self, x: Any) -> Any:
        return x

    def random(self, *shape: int) -> Any:
        return self.array(np.random.default_rng(0).standard_normal(shape) / shape[-1] ** 0.5)

    def copy(self, x: Any) -> Any:
        return x.copy()

    def joined(self, a: Any, b: Any) -> Any:
        return np.concatenate([a, b], -1)

    def turns(self, first: int, stop: int, head: int) -> tuple[Any, Any]:
        angles = np.arange(first, stop)[:, None] * THETA ** (-np.arange(0, head, 2) / head)
        return self.array(np.cos(angles))[:, None], self.array(np.sin(angles))[:, None]

    def norm(self, x: Any, weight: Any, residual: Any = None) -> Any:
        if residual is not None:
            residual += x
            x = residual
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.dtype(EPS)) * weight

    def gated(self, z: Any) -> Any:
        gate, up = halves(z)
        return gate / (1 + np.exp(-gate)) * up

    def attention(self, q: Any, k: Any, v: Any, *, causal: bool) -> Any:
        groups = q.shape[2] // k.shape[2]
        k, v = (np.repeat(part, groups, 2) for part in (k, v))
        scores = np.einsum("bthd,bshd->bhts", q, k) * self.dtype(q.shape[-1] ** -0.5)
        if causal:
            scores += np.triu(np.full(scores.shape[-2:], -np.inf, self.dtype), 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("bhts,bshd->bthd", weights / weights.sum(-1, keepdims=True), v)

    def gathered(self, x: Any) -> Any:
        return self.ctx.allgather(x)

    def scattered(self, x: Any) -> Any:
        spans = [tp.part(len(x), rank, self.ctx.nprocs) for rank in range(self.ctx.nprocs)]
        return self.ctx.reduce_scatter(x, counts=[span.stop - span.start for span in spans])

    def reduced(self, x: Any) -> Any:
        return self.ctx.allreduce(x, x)

    def recorded(self, call: Callable[[], Any]) -> Callable[[], Any]:
        call()
        return call

    def wait(self) -> None:
        """Every call has waited."""

    def close(self) -> None:
        """There is nothing to close."""


class Float64Ops(NumPyOps):
    """The reference."""

    dtype = np.float64


class TorchOps:
    """What the model needs of torch, on this rank's GPU; calls are recorded into CUDA graphs."""

    library = "NCCL"

    def __init__(self, ctx: pblas.Context, dtype: str) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.device = importlib.import_module("cupy").cuda.Device().id
        self.torch.cuda.set_device(self.device)
        self.torch.manual_seed(0)  # norms, and tokens that are not cut, are the same on every rank
        self.nprocs = ctx.nprocs
        self.dtype, self.stream = getattr(self.torch, dtype), self.torch.cuda.Stream()
        self.torch.cuda.set_stream(self.stream)
        self.dist: Any = importlib.import_module("torch.distributed")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = MPI.COMM_WORLD.bcast(free.getsockname()[1])
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ |= {"RANK": str(ctx.rank), "WORLD_SIZE": str(ctx.nprocs)}
        if not self.dist.is_initialized():
            self.dist.init_process_group("nccl", device_id=self.torch.device("cuda", self.device))

    def array(self, x: Any) -> Any:
        return self.torch.tensor(x, dtype=self.dtype, device=self.device)

    def zeros(self, *shape: int) -> Any:
        return self.torch.zeros(shape, dtype=self.dtype, device=self.device)

    def host(self, x: Any) -> Any:
        return x.float().cpu().numpy()

    def random(self, *shape: int) -> Any:
        return self.torch.randn(shape, dtype=self.dtype, device=self.device) / shape[-1] ** 0.5

    def copy(self, x: Any) -> Any:
        return x.clone()

    def joined(self, a: Any, b: Any) -> Any:
        return self.torch.cat([a, b], -1)

    def turns(self, first: int, stop: int, head: int) -> tuple[Any, Any]:
        torch = self.torch
        powers = THETA ** (-torch.arange(0, head, 2, device=self.device, dtype=torch.float32) / head)
        angles = torch.arange(first, stop, device=self.device)[:, None] * powers
        return angles.cos()[:, None].to(self.dtype), angles.sin()[:, None].to(self.dtype)

    def norm(self, x: Any, weight: Any, residual: Any = None) -> Any:
        x = x if residual is None else residual.add_(x)
        return self.torch.nn.functional.rms_norm(x, weight.shape, weight, EPS)

    def gated(self, z: Any) -> Any:
        gate, up = halves(z)
        return self.torch.nn.functional.silu(gate).mul_(up)

    def attention(self, q: Any, k: Any, v: Any, *, causal: bool) -> Any:
        attention = self.torch.nn.functional.scaled_dot_product_attention
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        return attention(q, k, v, is_causal=causal, enable_gqa=True).transpose(1, 2)

    def gathered(self, x: Any) -> Any:
        out = x.new_empty(len(x) * self.nprocs, x.shape[1])
        self.dist.all_gather_into_tensor(out, x)
        return out

    def scattered(self, x: Any) -> Any:
        out = x.new_empty(len(x) // self.nprocs, x.shape[1])
        self.dist.reduce_scatter_tensor(out, x)
        return out

    def reduced(self, x: Any) -> Any:
        self.dist.all_reduce(x)
        return x

    def recorded(self, call: Callable[[], Any]) -> Callable[[], Any]:
        for _ in range(3):
            call()
        self.wait()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=self.stream, capture_error_mode="relaxed"):
            result = call()

        def replay() -> Any:
            graph.replay()
            return result

        return replay

    def wait(self) -> None:
        self.stream.synchronize()

    def close(self) -> None:
        self.dist.destroy_process_group()


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
    x, alone, span = rng.standard_normal((ntokens, config.hidden)), Float64Ops(ctx), (0, ntokens)
    expected = forward(Whole(None, alone), alone, config, whole, x, empty_caches(alone, config, 1, 1, ntokens), span)
    layers = [{name: ops.array(part) for name, part in part_of(w, config, ctx.rank, ctx.nprocs).items()} for w in whole]
    caches = empty_caches(ops, config, ctx.nprocs, 1, ntokens)
    prefill = ops.host(forward(Cut(ctx, ntokens), ops, config, layers, ops.array(x[mine]), caches, span))
    caches = empty_caches(ops, config, ctx.nprocs, 1, ntokens)
    one_by_one = [
        ops.host(forward(Whole(ctx, ops), ops, config, layers, ops.array(x[t : t + 1]), caches, (t, t + 1)))
        for t in range(ntokens)
    ]
    differences = prefill - expected[mine], np.vstack(one_by_one) - expected
    error = max(np.abs(each).max(initial=0.0) for each in differences) / np.abs(expected).max()
    return float(MPI.COMM_WORLD.allreduce(error, MPI.MAX))


def timed(ops: Any, calls: Sequence[Callable[[], Any]], repeat: int) -> list[float]:
    """Median seconds of each of some calls, which take turns, on the slowest rank."""
    ready, seconds = [ops.recorded(call) for call in calls], [list[float]() for _ in calls]
    for _ in range(repeat):
        for call, found in zip(ready, seconds, strict=True):
            ops.wait()
            MPI.COMM_WORLD.Barrier()
            start = time.perf_counter()
            call()
            ops.wait()
            found.append(time.perf_counter() - start)
    return [MPI.COMM_WORLD.allreduce(float(np.median(found)), MPI.MAX) for found in seconds]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Llama decoder layers over ranks.")
    parser.add_argument("--size", choices=SIZES, default="toy")
    parser.add_argument("--layers", type=int, help="fewer than the model has")
    parser.add_argument("--tokens", type=int, default=24, help="of a prompt; on GPUs a multiple of the number of ranks")
    parser.add_argument("--batch", type=int, default=4, help="sequences that are decoded together")
    parser.add_argument("--dtype", default="bfloat16", help="on GPUs")
    parser.add_argument("--autotune", action="store_true", help="choose GEMM algorithms by trying them, on GPUs")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args(argv)
    config, ntokens, batch, tuned = SIZES[options.size], options.tokens, options.batch, options.autotune
    config = replace(config, layers=options.layers or config.layers)
    with pblas.Context() as ctx:
        on_gpus = "GPU" in ctx.describe()
        if config.kv_heads % ctx.nprocs:
            parser.error(f"{ctx.nprocs} ranks cannot share {config.kv_heads} heads of keys evenly")
        if on_gpus and not find_spec("torch"):
            sys.exit("On GPUs the attention is torch's: pip install torch")
        error = check(ctx, TorchOps(ctx, "float32") if on_gpus else NumPyOps(ctx), 25)
        ops = TorchOps(ctx, options.dtype) if on_gpus else NumPyOps(ctx)
        layers = random_layers(config, ctx.nprocs, ops.random)
        mine = tp.part(ntokens, ctx.rank, ctx.nprocs)
        prompt, tokens = ops.random(mine.stop - mine.start, config.hidden), ops.random(batch, config.hidden)
        caches = [empty_caches(ops, config, ctx.nprocs, n, ntokens) for n in (1, batch)]

        def prefill(way: Any) -> Callable[[], Any]:
            return lambda: forward(way, ops, config, layers, prompt, caches[0], (0, ntokens))

        def decode(way: Any) -> Callable[[], Any]:
            return lambda: forward(way, ops, config, layers, tokens, caches[1], (ntokens - 1, ntokens))

        def say(text: str) -> None:
            if ctx.rank == 0:
                print(text, flush=True)

        def compare(name: str, count: int, calls: Sequence[Callable[[], Any]]) -> None:
            ours, plain = timed(ops, calls, options.repeat)
            text = f"{name}: {count} tokens in {1e3 * ours:.2f} ms, {count / ours:.0f} tokens/s"
            say(f"{text}; with {ops.library} {1e3 * plain:.2f} ms, {plain / ours:.2f} x as long")

        say(f"largest error, toy size: {error:.1e}")
        say(f"{config.layers} layers of size {options.size} on {ctx.nprocs} ranks")
        compare("prefill", ntokens, [prefill(Cut(ctx, ntokens, autotune=tuned)), prefill(PlainCut(ctx, ntokens, ops))])
        compare("decode", batch, [decode(Whole(ctx, ops, autotune=tuned)), decode(PlainWhole(ctx, ops))])
        ops.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

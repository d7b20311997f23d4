"""The array operations of the decoder layers in tp_llama.py, with NumPy and with torch."""

import importlib
import os
import socket
import sys
from collections.abc import Callable, Sequence
from copy import copy
from importlib.util import find_spec
from typing import Any

import numpy as np
from mpi4py import MPI

import pblas
from pblas import tp

EPS, THETA = 1e-5, 500_000.0


def halves(z: Any) -> tuple[Any, Any]:
    """Both halves of the last dimension."""
    middle = z.shape[-1] // 2
    return z[..., :middle], z[..., middle:]


class NumPyOps:
    """Array operations of the model by NumPy."""

    dtype: Any = np.float32

    def __init__(self, ctx: pblas.Context) -> None:
        self.ctx, self.rng = ctx, np.random.default_rng(0)

    def wider(self) -> Any:
        """The operations of the reference, in a wider dtype."""
        return Float64Ops(self.ctx)

    def array(self, x: Any) -> Any:
        return np.array(x, self.dtype)

    def zeros(self, *shape: int) -> Any:
        return np.zeros(shape, self.dtype)

    def host(self, x: Any) -> Any:
        return x

    def seed(self, number: int) -> None:
        """Seed `random`, so that it draws the same numbers on every rank."""
        self.rng = np.random.default_rng(number)

    def random(self, *shape: int) -> Any:
        return self.array(self.rng.standard_normal(shape) / shape[-1] ** 0.5)

    def copy(self, x: Any) -> Any:
        return x.copy()

    def split(self, x: Any, lengths: Sequence[int]) -> Any:
        return np.split(x, np.cumsum(lengths)[:-1])

    def joined(self, parts: Sequence[Any]) -> Any:
        return np.concatenate(parts)

    def turns(self, length: int, head: int) -> tuple[Any, Any]:
        """Cosines and sines of the angles of `turned`, positions x head / 2 (global)."""
        angles = np.outer(np.arange(length), THETA ** (-np.arange(0, head, 2) / head))
        return self.array(np.cos(angles)), self.array(np.sin(angles))

    def turned(self, z: Any, cache: Any, span: tuple[int, int], turns: tuple[Any, Any]) -> Any:
        """The rotated queries of z; rotated keys, and values, are stored in the cache.

        Rotary position embedding: pairs of elements of queries and keys, half a head apart, are rotated by angles that
        grow with the position.

        Args:
            z: sequences x tokens x heads x head: queries, keys, values (local).
            cache: keys and values, each sequences x positions x heads x head (local).
            span: positions of the tokens, the same in all sequences (global).
            turns: see `turns` (global).
        """
        kv, places = cache[0].shape[2], slice(*span)
        cos, sin = (table[places, None] for table in turns)
        first, second = halves(z[:, :, :-kv])
        turned = np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)
        cache[0][:, places], cache[1][:, places] = turned[:, :, -kv:], z[:, :, -kv:]
        return turned[:, :, :-kv]

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
        spans = [tp.local_shard(len(x), rank, self.ctx.nprocs) for rank in range(self.ctx.nprocs)]
        return self.ctx.reduce_scatter(x, counts=[span.stop - span.start for span in spans])

    def reduced(self, x: Any) -> Any:
        return self.ctx.allreduce(x, x)

    def recorded(self, call: Callable[[], Any]) -> Callable[[], Any]:
        call()
        return call

    def wait(self) -> None:
        """Wait for the device; NumPy calls return when they are done."""

    def join(self, comm: MPI.Intracomm) -> None:
        """Start the separate collectives; with NumPy they are those of pblas."""

    def close(self) -> None:
        """End the separate collectives."""


class Float64Ops(NumPyOps):
    """Array operations of the model by NumPy in 64 bits."""

    dtype = np.float64


TURN = """
typedef float float32;
typedef long long integer;
struct bfloat16 { unsigned short bits; };
__device__ float wide(float x) { return x; }
__device__ float wide(bfloat16 x) { return __uint_as_float(unsigned(x.bits) << 16); }
__device__ void narrow(float x, float& y) { y = x; }
__device__ void narrow(float x, bfloat16& y) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }

constexpr int N = 8;
template <class E>
struct alignas(16) Pack { E x[N]; };

template <class E>
__device__ Pack<E>& pack(E* x) { return reinterpret_cast<Pack<E>&>(*x); }

// A CTA has a token. Its threads have N pairs of elements each, of one head.
template <class T>
__global__ void turn(T* z, float* cos, float* sin, T* queries, T* keys, T* values,
                     integer length, integer first, integer positions, integer kv) {
    const integer token = blockIdx.x, head = threadIdx.y, heads = blockDim.y, q = heads - 2 * kv;
    const integer at = threadIdx.x * N, half = blockDim.x * N;
    const integer position = first + token % length, place = (token / length * positions + position) * kv - q;
    T* from = z + (token * heads + head) * 2 * half + at;
    Pack<T> low = pack(from), high = pack(from + half);
    if (head < q + kv) {
        const Pack<float> c = pack(cos + position * half + at), s = pack(sin + position * half + at);
        for (int i = 0; i < N; i++) {
            const float x = wide(low.x[i]), y = wide(high.x[i]);
            narrow(x * c.x[i] - y * s.x[i], low.x[i]);
            narrow(y * c.x[i] + x * s.x[i], high.x[i]);
        }
    }
    T* to = head < q ? queries + (token * q + head) * 2 * half
        : head < q + kv ? keys + (place + head) * 2 * half
                        : values + (place + head - kv) * 2 * half;
    pack(to + at) = low;
    pack(to + at + half) = high;
}
"""
"""`turned` as one kernel, for heads with a multiple of 16 elements."""


class TorchOps:
    """Array operations of the model by torch on this rank's GPU; calls are captured in CUDA graphs."""

    def __init__(self, ctx: pblas.Context, dtype: str) -> None:
        self.torch: Any = importlib.import_module("torch")
        cupy: Any = importlib.import_module("cupy")
        self.device = cupy.cuda.Device().id
        self.torch.cuda.set_device(self.device)
        self.nprocs = ctx.nprocs
        self.stream = self.torch.cuda.Stream()
        self.torch.cuda.set_stream(self.stream)
        self.launches = cupy.cuda.Stream.from_external(self.stream)
        self.turns_of = cupy.RawModule(
            code=TURN, options=("--std=c++17",), name_expressions=[f"turn<{name}>" for name in ("bfloat16", "float32")]
        )
        self.take(dtype)

    def take(self, dtype: str) -> None:
        """Compute in a dtype."""
        self.dtype, self.turn = getattr(self.torch, dtype), self.turns_of.get_function(f"turn<{dtype}>")

    def wider(self) -> Any:
        ops = copy(self)
        ops.take("float32")
        return ops

    def array(self, x: Any) -> Any:
        return self.torch.as_tensor(x, dtype=self.dtype, device=self.device)

    def zeros(self, *shape: int) -> Any:
        return self.torch.zeros(shape, dtype=self.dtype, device=self.device)

    def host(self, x: Any) -> Any:
        return x.float().cpu().numpy()

    def seed(self, number: int) -> None:
        self.torch.manual_seed(number)

    def random(self, *shape: int) -> Any:
        return self.torch.randn(shape, dtype=self.dtype, device=self.device) / shape[-1] ** 0.5

    def copy(self, x: Any) -> Any:
        return x.clone(memory_format=self.torch.contiguous_format)

    def split(self, x: Any, lengths: Sequence[int]) -> Any:
        return x.split(lengths)

    def joined(self, parts: Sequence[Any]) -> Any:
        return self.torch.cat(parts)

    def turns(self, length: int, head: int) -> tuple[Any, Any]:
        torch = self.torch
        powers = THETA ** (-torch.arange(0, head, 2, device=self.device, dtype=torch.float64) / head)
        angles = torch.outer(torch.arange(length, device=self.device, dtype=torch.float64), powers)
        return angles.cos().float(), angles.sin().float()

    def turned(self, z: Any, cache: Any, span: tuple[int, int], turns: tuple[Any, Any]) -> Any:
        sequences, length, heads, head = z.shape
        keys, values = cache
        queries = z.new_empty(sequences, length, heads - 2 * keys.shape[2], head)
        arrays = [x.data_ptr() for x in (z, *turns, queries, keys, values)]
        with self.launches:
            sizes = length, span[0], keys.shape[1], keys.shape[2]
            self.turn((sequences * length,), (head // 16, heads), (*arrays, *sizes))
        return queries

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

    def join(self, comm: MPI.Intracomm) -> None:
        self.dist: Any = importlib.import_module("torch.distributed")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = comm.bcast(free.getsockname()[1])
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ |= {"RANK": str(comm.rank), "WORLD_SIZE": str(comm.size)}
        self.dist.init_process_group("nccl", device_id=self.torch.device("cuda", self.device))

    def close(self) -> None:
        self.dist.destroy_process_group()


def operations(ctx: pblas.Context, dtype: str) -> Any:
    """Array operations of the model: by torch on GPUs, by NumPy on CPUs."""
    if "GPU" not in ctx.describe():
        return NumPyOps(ctx)
    if not find_spec("torch"):
        sys.exit("On GPUs this example needs torch for the attention: pip install torch")
    return TorchOps(ctx, dtype)

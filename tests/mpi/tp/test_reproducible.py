"""Layers in a reproducible context: results and gradients have the bits of one rank, for any number of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pblas
from pblas import tp
from pblas.tp import local_shard
from tests.common.gauge import Array, dtype_of, entries
from tests.common.ranks import COMM
from tests.mpi.tp.test_tp import COUNTS, LAYERS, SPREAD, I, O, T, backward, forward

P, RANK = COMM.size, COMM.rank

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("kind", [*LAYERS, "replicated"])
def test_a_layer_and_its_gradients(reproducible: pblas.Context, one: pblas.Context, kind: str, dtype: str) -> None:
    spread = SPREAD[kind]()
    x, w, dy = (entries(shape, dtype_of(dtype), seed) for seed, shape in enumerate(((T, I), (O, I), (T, O))))
    own = [array[spread[name]] for name, array in (("x", x), ("w", w), ("y", dy))]
    y = forward(kind)(own[0], own[1], None, "silu(x)", ctx=reproducible, **COUNTS[kind])
    whole = forward(kind)(x, w, None, "silu(x)", ctx=one)
    assert y.tobytes() == whole[spread["y"]].tobytes()
    gradients = backward(kind)(own[2], own[0], own[1], ctx=reproducible, **COUNTS[kind])
    wholes = backward(kind)(dy, x, w, ctx=one)
    assert gradients.x.tobytes() == wholes.x[spread["x"]].tobytes()
    assert gradients.weight.tobytes() == wholes.weight[spread["w"]].tobytes()
    assert gradients.bias.tobytes() == wholes.bias[spread["y"][1]].tobytes()


HIDDEN, HEADS, HEAD, WORDS, TOKENS = 40, 12, 4, 24, 5


def norm(x: Array) -> Array:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(1e-5))


def attention(queries: Array, keys: Array, values: Array) -> Array:
    """Causal attention of the heads at hand, each of which is computed alone."""
    heads = []
    for head in range(0, queries.shape[1], HEAD):
        q, k, v = (part[:, head : head + HEAD].copy() for part in (queries, keys, values))
        scores = np.where(np.tri(TOKENS, dtype=bool), q @ k.T, np.float32(-np.inf))
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        heads.append(weights / weights.sum(axis=1, keepdims=True) @ v)
    return np.concatenate(heads, axis=1)


def logits(ctx: pblas.Context, weights: dict[str, Array], x: Array, tp: Any = tp) -> Array:
    """A decoder block and the last projection: heads, features of the feed-forward block and words are split.

    `tp` has the layers, which take and return arrays in host memory.
    """

    def shard(name: str, axis: int = 0) -> Any:
        w = weights[name]
        span = local_shard(w.shape[axis], ctx.rank, ctx.nprocs)
        return w[span] if axis == 0 else np.ascontiguousarray(w[:, span])

    h = norm(x)
    attended = attention(*(tp.replicated_linear(h, shard(name), ctx=ctx) for name in ("q", "k", "v")))
    x = x + tp.linear_allreduce(attended, shard("o", 1), ctx=ctx)
    h = norm(x)
    gate = tp.replicated_linear(h, shard("gate"), None, "silu(x)", ctx=ctx)
    up = tp.replicated_linear(h, shard("up"), ctx=ctx)
    x = x + tp.linear_allreduce(gate * up, shard("down", 1), ctx=ctx)
    result: Array = tp.replicated_linear(norm(x), shard("words"), ctx=ctx)
    return result


@pytest.mark.ranks(1, 2, 3, 4, 6, reason="heads are split evenly")
def test_logits_of_a_llama_block(reproducible: pblas.Context, one: pblas.Context) -> None:
    compare(reproducible, one, 2400)


def compare(ctx: pblas.Context, one: pblas.Context, features: int, tp: Any = tp) -> None:
    """**Collective.** Compare logits with those of one rank."""
    width, float32 = HEADS * HEAD, np.dtype("float32")
    shapes = dict.fromkeys(("q", "k", "v"), (width, HIDDEN)) | {"o": (HIDDEN, width), "words": (WORDS, HIDDEN)}
    shapes |= dict.fromkeys(("gate", "up"), (features, HIDDEN)) | {"down": (HIDDEN, features)}
    weights = {name: entries(shape, float32, seed) / np.float32(8) for seed, (name, shape) in enumerate(shapes.items())}
    x = entries((TOKENS, HIDDEN), float32, 99)
    own, whole = logits(ctx, weights, x, tp), logits(one, weights, x, tp)
    assert own.tobytes() == np.ascontiguousarray(whole[:, local_shard(WORDS, RANK, P)]).tobytes()

"""Linear layers as operators of torch, with gradients and with fake kernels for torch.compile.

`torch.ops.pblas.linear` is one of the layers of `pblas.tp`, by its kind. Contexts are known to it by the names of their
groups, and the lengths of axes that are cut are arguments, so that shapes of results follow without communication.
"""

from __future__ import annotations

from typing import Any

import torch

from pblas import errors, tp
from pblas.torch.mesh import context_named

FORWARD: dict[str, Any] = {
    "allgather": tp.allgather_linear,
    "reduce_scatter": tp.linear_reduce_scatter,
    "allreduce": tp.linear_allreduce,
    "replicated": tp.replicated_linear,
}
"""The layers, by kind."""
BACKWARD: dict[str, Any] = {
    "allgather": tp.allgather_linear_backward,
    "reduce_scatter": tp.linear_reduce_scatter_backward,
    "allreduce": tp.linear_allreduce_backward,
    "replicated": tp.replicated_linear_backward,
}


def _options(kind: str, tokens: int, features: int, group: str) -> dict[str, Any]:
    """The options of a layer; `tokens` is the length of the first axis over all ranks."""
    options = {"features": features, "ctx": context_named(group)}
    return options | {"tokens": tokens} if kind == "allgather" else options


@torch.library.custom_op("pblas::linear", mutates_args=())
def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    kind: str,
    epilogue: str,
    rows: int,
    tokens: int,
    features: int,
    group: str,
) -> torch.Tensor:
    """**Collective.** y = epilogue(x w^T + bias), whose first axis has `rows` elements on this rank."""
    with torch.no_grad():
        options = _options(kind, tokens, features, group)
        y: torch.Tensor = FORWARD[kind](x.contiguous(), weight, bias, epilogue or None, **options)
    return y


@linear.register_fake
def _(
    x: Any, weight: Any, bias: Any, kind: str, epilogue: str, rows: int, tokens: int, features: int, group: str
) -> Any:
    columns = weight.shape[0] // 2 if epilogue == "swiglu" else weight.shape[0]
    return x.new_empty(rows, *x.shape[1:-1], columns)


@torch.library.custom_op("pblas::linear_backward", mutates_args=())
def linear_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    kind: str,
    needs: list[bool],
    tokens: int,
    features: int,
    group: str,
) -> list[torch.Tensor]:
    """**Collective.** Those of the gradients by x, weight and bias that are needed."""
    with torch.no_grad():
        options = _options(kind, tokens, features, group)
        if dy.is_complex():  # pblas does not conjugate
            dy = dy.conj().resolve_conj()
        gradients = BACKWARD[kind](dy.contiguous(), x.contiguous(), weight, needs=tuple(needs), **options)
        needed = [gradient for gradient in gradients if gradient is not None]
        return [gradient.conj().resolve_conj() for gradient in needed] if dy.is_complex() else needed


@linear_backward.register_fake
def _(dy: Any, x: Any, weight: Any, kind: str, needs: list[bool], tokens: int, features: int, group: str) -> list[Any]:
    like = x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(weight.shape[:1])
    return [gradient for gradient, is_needed in zip(like, needs, strict=True) if is_needed]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, bias, ctx.kind, epilogue, _rows, ctx.tokens, ctx.features, ctx.group = inputs
    if epilogue:
        raise errors.ArgumentError(
            f"pblas::linear: the gradient of an epilogue is not recorded, got {epilogue!r}; apply it to the result"
        )
    ctx.has_bias = bias is not None
    ctx.save_for_backward(x, weight)


def _gradients(ctx: Any, dy: Any) -> tuple[Any, ...]:
    x, weight = ctx.saved_tensors
    needs = [*ctx.needs_input_grad[:2], ctx.has_bias and ctx.needs_input_grad[2]]
    computed = iter(
        torch.ops.pblas.linear_backward(dy, x, weight, ctx.kind, needs, ctx.tokens, ctx.features, ctx.group)
    )
    return *(next(computed) if is_needed else None for is_needed in needs), *[None] * 6


linear.register_autograd(_gradients, setup_context=_keep)


@torch.library.custom_op("pblas::allreduce", mutates_args=())
def allreduce(x: torch.Tensor, group: str) -> torch.Tensor:
    """**Collective.** The sum of all ranks' x."""
    with torch.no_grad():
        y: torch.Tensor = context_named(group).allreduce(x.contiguous())
    return y


@allreduce.register_fake
def _(x: Any, group: str) -> Any:
    return x.new_empty(x.shape)


@torch.library.custom_op("pblas::sum_gradients", mutates_args=())
def sum_gradients(x: torch.Tensor, group: str) -> torch.Tensor:
    """A copy of x, which is equal on all ranks. The gradient is the sum of those of all ranks."""
    return x.clone()


@sum_gradients.register_fake
def _(x: Any, group: str) -> Any:
    return torch.empty_like(x)


def _keep_group(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, *_, ctx.group = inputs
    ctx.columns = x.shape[-1]


sum_gradients.register_autograd(
    lambda ctx, dy: (torch.ops.pblas.allreduce(dy, ctx.group), None), setup_context=_keep_group
)


@torch.library.custom_op("pblas::gather_features", mutates_args=())
def gather_features(x: torch.Tensor, features: int, group: str) -> torch.Tensor:
    """**Collective.** The features of all ranks, whose shards are cut along the last axis."""
    ctx = context_named(group)
    shards = [tp.local_shard(features, rank, ctx.nprocs) for rank in range(ctx.nprocs)]
    with torch.no_grad():
        columns = x.movedim(-1, 0).contiguous()
        whole = ctx.allgather(columns, counts=[shard.stop - shard.start for shard in shards])
        return whole.movedim(0, -1).contiguous()


@gather_features.register_fake
def _(x: Any, features: int, group: str) -> Any:
    return x.new_empty(*x.shape[:-1], features)


@torch.library.custom_op("pblas::split_features", mutates_args=())
def split_features(x: torch.Tensor, columns: int, group: str) -> torch.Tensor:
    """This rank's shard of the features of x, which is equal on all ranks."""
    ctx = context_named(group)
    return x[..., tp.local_shard(x.shape[-1], ctx.rank, ctx.nprocs)].clone(memory_format=torch.contiguous_format)


@split_features.register_fake
def _(x: Any, columns: int, group: str) -> Any:
    return x.new_empty(*x.shape[:-1], columns)


gather_features.register_autograd(
    lambda ctx, dy: (torch.ops.pblas.split_features(dy, ctx.columns, ctx.group), None, None), setup_context=_keep_group
)


def _keep_features(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, _, ctx.group = inputs
    ctx.features = x.shape[-1]


split_features.register_autograd(
    lambda ctx, dy: (torch.ops.pblas.gather_features(dy, ctx.features, ctx.group), None, None),
    setup_context=_keep_features,
)

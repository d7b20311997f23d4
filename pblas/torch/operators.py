"""Linear layers as operators of torch, with gradients and with fake kernels for torch.compile.

`torch.ops.pblas.linear` is one of the layers of `pblas.tp`, by its kind. Contexts are known to it by the names of their
groups, and the lengths of axes that are cut are arguments, so that shapes of results follow without communication.

`torch.library.custom_op` would do the same, but its wrappers take longer than a product of few tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from pblas import errors, tp
from pblas.torch.mesh import context_named

if TYPE_CHECKING:
    from collections.abc import Callable

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
_LIBRARY = torch.library.Library("pblas", "FRAGMENT")  # its operators end with it


def _define(
    schema: str,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    keep: Callable[..., None] | None = None,
    gradients: Callable[..., Any] | None = None,
) -> None:
    """An operator `torch.ops.pblas.NAME`; `keep` and `gradients` are forward and backward of its autograd.Function."""
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"pblas::{name}", fake, lib=_LIBRARY)
    if keep is None or gradients is None:
        return
    operator = getattr(torch.ops.pblas, name).default

    def below(*arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 - as in the wrappers of torch.library
            return operator(*arguments)

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            keep(ctx, *arguments)
            return below(*arguments)

        backward = staticmethod(once_differentiable(gradients))

    def dispatched(*arguments: Any) -> Any:
        needed = torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in arguments)
        return Recorded.apply(*arguments) if needed else below(*arguments)

    _LIBRARY.impl(name, dispatched, "Autograd")


def _options(kind: str, tokens: int, features: int, group: str) -> dict[str, Any]:
    """The options of a layer; `tokens` is the length of the first axis over all ranks."""
    options = {"features": features, "ctx": context_named(group)}
    return options | {"tokens": tokens} if kind == "allgather" else options


def _linear(
    x: Any, weight: Any, bias: Any, kind: str, epilogue: str, rows: int, tokens: int, features: int, group: str
) -> Any:
    """**Collective.** y = epilogue(x w^T + bias), whose first axis has `rows` elements on this rank."""
    options = _options(kind, tokens, features, group)
    return FORWARD[kind](x.contiguous(), weight, bias, epilogue or None, **options)


def _linear_fake(
    x: Any, weight: Any, bias: Any, kind: str, epilogue: str, rows: int, tokens: int, features: int, group: str
) -> Any:
    columns = weight.shape[0] // 2 if epilogue == "swiglu" else weight.shape[0]
    return x.new_empty(rows, *x.shape[1:-1], columns)


def _linear_backward(
    dy: Any, x: Any, weight: Any, kind: str, needs: list[bool], tokens: int, features: int, group: str
) -> list[Any]:
    """**Collective.** Those of the gradients by x, weight and bias that are needed."""
    options = _options(kind, tokens, features, group)
    if dy.is_complex():  # pblas does not conjugate
        dy = dy.conj().resolve_conj()
    gradients = BACKWARD[kind](dy.contiguous(), x.contiguous(), weight, needs=tuple(needs), **options)
    needed = [gradient for gradient in gradients if gradient is not None]
    return [gradient.conj().resolve_conj() for gradient in needed] if dy.is_complex() else needed


def _linear_backward_fake(
    dy: Any, x: Any, weight: Any, kind: str, needs: list[bool], tokens: int, features: int, group: str
) -> list[Any]:
    like = x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(weight.shape[:1])
    return [gradient for gradient, is_needed in zip(like, needs, strict=True) if is_needed]


def _keep_linear(ctx: Any, x: Any, weight: Any, bias: Any, *others: Any) -> None:
    ctx.kind, epilogue, _rows, ctx.tokens, ctx.features, ctx.group = others
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


_LENGTHS = "SymInt tokens, SymInt features, str group"
_define(
    f"linear(Tensor x, Tensor weight, Tensor? bias, str kind, str epilogue, SymInt rows, {_LENGTHS}) -> Tensor",
    *(_linear, _linear_fake, _keep_linear, _gradients),
)
_define(
    f"linear_backward(Tensor dy, Tensor x, Tensor weight, str kind, bool[] needs, {_LENGTHS}) -> Tensor[]",
    *(_linear_backward, _linear_backward_fake),
)


def _keep_columns(ctx: Any, x: Any, *others: Any) -> None:
    ctx.columns, ctx.group = x.shape[-1], others[-1]


_define(
    "allreduce(Tensor x, str group) -> Tensor",
    lambda x, group: context_named(group).allreduce(x.contiguous()),  # the sum of all ranks' x
    lambda x, group: x.new_empty(x.shape),
)
_define(  # a copy of x, which is equal on all ranks; its gradient is the sum of those of all ranks
    "sum_gradients(Tensor x, str group) -> Tensor",
    lambda x, group: x.clone(),
    lambda x, group: torch.empty_like(x),
    _keep_columns,
    lambda ctx, dy: (torch.ops.pblas.allreduce(dy, ctx.group), None),
)


def _gather_features(x: Any, features: int, group: str) -> Any:
    """**Collective.** The features of all ranks, whose shards are cut along the last axis."""
    ctx = context_named(group)
    shards = [tp.local_shard(features, rank, ctx.nprocs) for rank in range(ctx.nprocs)]
    columns = x.movedim(-1, 0).contiguous()
    whole = ctx.allgather(columns, counts=[shard.stop - shard.start for shard in shards])
    return whole.movedim(0, -1).contiguous()


def _split_features(x: Any, columns: int, group: str) -> Any:
    """This rank's shard of the features of x, which is equal on all ranks."""
    ctx = context_named(group)
    return x[..., tp.local_shard(x.shape[-1], ctx.rank, ctx.nprocs)].clone(memory_format=torch.contiguous_format)


_define(
    "gather_features(Tensor x, SymInt features, str group) -> Tensor",
    _gather_features,
    lambda x, features, group: x.new_empty(*x.shape[:-1], features),
    _keep_columns,
    lambda ctx, dy: (torch.ops.pblas.split_features(dy, ctx.columns, ctx.group), None, None),
)
_define(
    "split_features(Tensor x, SymInt columns, str group) -> Tensor",
    _split_features,
    lambda x, columns, group: x.new_empty(*x.shape[:-1], columns),
    _keep_columns,
    lambda ctx, dy: (torch.ops.pblas.gather_features(dy, ctx.columns, ctx.group), None, None),
)

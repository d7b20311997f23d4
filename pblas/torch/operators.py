"""Linear layers as operators of torch, with gradients and with fake kernels for torch.compile.

`torch.ops.pblas.linear` is one of the layers of `pblas.tp`, by its kind. Contexts are known to it by the names of their
groups, and the lengths of axes that are cut are arguments, so that shapes of results follow without communication.

`torch.library.custom_op` would do the same, but its wrappers take longer than a product of few tokens. So does torch's
dispatcher: the functions of this module, as `linear`, pass it by where nothing would see the operator in it.
"""

from __future__ import annotations

from contextlib import nullcontext
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor

from pblas import errors, tp
from pblas.backends.local_step import AgreedError, LocalStep
from pblas.epilogues import Epilogue
from pblas.torch.mesh import context_named
from pblas.tp.products import refuse

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

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
) -> Callable[..., Any]:
    """An operator `torch.ops.pblas.NAME`; `keep` and `gradients` are forward and backward of its autograd.Function.

    The result calls the operator, or its kernel at once where that does the same.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"pblas::{name}", fake, lib=_LIBRARY)
    operator = getattr(torch.ops.pblas, name).default
    recorded = kernel
    if keep is not None and gradients is not None:
        below = partial(_below_autograd, operator)
        _LIBRARY.impl(name, _recorded(below, keep, gradients), "Autograd")
        recorded = _recorded(kernel, keep, gradients)

    def call(*arguments: Any) -> Any:
        return operator(*arguments) if _is_watched(arguments) else recorded(*arguments)

    return call


def _below_autograd(operator: Any, *arguments: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 - as in the wrappers of torch.library
        return operator(*arguments)


def _recorded(
    compute: Callable[..., Any], keep: Callable[..., None], gradients: Callable[..., Any]
) -> Callable[..., Any]:
    """A function, recorded for its gradients where they are needed."""

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            results = compute(*arguments)
            keep(ctx, results, *arguments)
            return results

        backward = staticmethod(once_differentiable(gradients))

    def call(*arguments: Any) -> Any:
        needed = torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in arguments)
        return Recorded.apply(*arguments) if needed else compute(*arguments)

    return call


def _is_watched(arguments: tuple[Any, ...]) -> bool:
    """Whether torch's dispatcher must see an operator of these: for a compiler, a profiler, a mode, a subclass."""
    return (
        torch.compiler.is_compiling()
        or not _PLAIN.issuperset(map(type, arguments))
        or torch._C._len_torch_dispatch_stack() > 0  # noqa: SLF001 - the modes; torch has no public call
        or torch._C._functorch.peek_interpreter_stack() is not None  # noqa: SLF001 - torch.func, as vmap
        or torch.autograd.profiler._is_profiler_enabled  # noqa: SLF001
    )


_PLAIN = {torch.Tensor, torch.nn.Parameter, type(None), str, int, bool, list}


def local(x: Any) -> Any:
    """This rank's shard of a DTensor; other tensors, and None, as they are (local)."""
    return x.to_local() if isinstance(x, DTensor) else x


def _options(kind: str, tokens: int, features: int, group: str) -> dict[str, Any]:
    """The options of a layer; `tokens` is the length of the first axis over all ranks."""
    options = {"features": features, "ctx": context_named(group)}
    return options | {"tokens": tokens} if kind == "allgather" else options


def _uniform(x: Any) -> Any:
    """X, or a copy if its rows do not follow each other with one stride."""
    return x if x.ndim == 2 and x.stride(1) == 1 else x.contiguous()


def checking(opname: str, group: str) -> AbstractContextManager[None]:
    """A with block before a layer's product: an error in it is raised on all ranks, which call the layer (local)."""
    if torch.compiler.is_compiling():
        return nullcontext()
    runtime = context_named(group).runtime

    def fail(opname: str, error: AgreedError) -> None:
        with runtime.call(opname):
            refuse(runtime, opname, error)

    return LocalStep(fail, opname)


_LARGEST = 448.0  # of float8_e4m3fn


def eight_bits(group: str, *operands: Any) -> tuple[list[Any], Any]:
    """**Collective.** Operands in float8_e4m3fn, and the scale of each: the largest of all ranks becomes 448."""
    with checking("linear", group):
        norms = (torch.linalg.vector_norm(z, torch.inf) if z.numel() else z.new_zeros(()) for z in operands)
        own = torch.stack([norm.float() for norm in norms])
    largest = context_named(group).allreduce(own, op="max")
    scales = (largest / _LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
    return [(z / scale).to(torch.float8_e4m3fn) for z, scale in zip(operands, scales, strict=True)], scales


def _linear(
    x: Any,
    weight: Any,
    bias: Any,
    residual: Any,
    scale: Any,
    kind: str,
    epilogue: str,
    keep: bool,
    float8: bool,
    rows: int,
    tokens: int,
    features: int,
    group: str,
) -> tuple[Any, Any]:
    """**Collective.** y = epilogue(z) + residual with z = x w^T + bias, whose first axis has `rows` elements here.

    The second result is z, for the gradient, with `keep`, and else empty. With `float8` x and weight are rounded to 8
    bits; the gradients are those of the operands as they were. A weight that has 8 bits has a `scale`.
    """
    options = _options(kind, tokens, features, group)
    applied: str | Epilogue | None = epilogue or None
    with checking("linear", group):
        if residual is not None:
            applied = Epilogue("x + residual", residual=_uniform(residual))
        z = x.new_empty((rows, *x.shape[1:-1], weight.shape[0])) if keep else x.new_empty(0)
        x = _uniform(x)
    if float8:
        options["out_dtype"] = str(x.dtype).removeprefix("torch.")
        (x, *rounded), scales = eight_bits(group, x, *([weight] if scale is None else []))
        weight, scale = (rounded[0], scales[1:].clone()) if scale is None else (weight, scale)
        options |= {"scale_a": scales[:1].clone(), "scale_b": scale}
    y = FORWARD[kind](x, weight, bias, applied, aux=z if keep else None, **options)
    return y, z


def _linear_fake(
    x: Any, weight: Any, _b: Any, _r: Any, _s: Any, _kind: str, epilogue: str, keep: bool, _8: bool, rows: int, *_: Any
) -> tuple[Any, Any]:
    columns = weight.shape[0]
    y = x.new_empty(rows, *x.shape[1:-1], columns // 2 if epilogue == "swiglu" else columns)
    return y, x.new_empty((rows, *x.shape[1:-1], columns) if keep else 0)


def _linear_backward(
    dy: Any,
    x: Any,
    weight: Any,
    z: Any,
    kind: str,
    epilogue: str,
    needs: list[bool],
    tokens: int,
    features: int,
    group: str,
) -> list[Any]:
    """**Collective.** Those of the gradients by x, weight and bias that are needed."""
    options = _options(kind, tokens, features, group)
    if dy.is_complex():  # pblas does not conjugate
        dy = dy.conj().resolve_conj()
    options |= {"needs": tuple(needs), "aux": z if epilogue else None}
    gradients = BACKWARD[kind](_uniform(dy), _uniform(x), weight, epilogue or None, **options)
    needed = [gradient for gradient in gradients if gradient is not None]
    return [gradient.conj().resolve_conj() for gradient in needed] if dy.is_complex() else needed


def _linear_backward_fake(
    _dy: Any, x: Any, weight: Any, _z: Any, _kind: str, _epilogue: str, needs: list[bool], *_: Any
) -> list[Any]:
    like = x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(weight.shape[:1])
    return [gradient for gradient, is_needed in zip(like, needs, strict=True) if is_needed]


def _shards(weight: Any, bias: Any) -> tuple[Any, Any]:
    """This rank's shards of the parameters, as a matrix and a vector: two layers in one have an axis more (local)."""
    weight, bias = (z._local_tensor if isinstance(z, DTensor) else z for z in (weight, bias))  # noqa: SLF001
    return weight.flatten(0, -2), None if bias is None else bias.flatten()


def _keep_linear(
    ctx: Any, results: Any, x: Any, weight: Any, bias: Any, _residual: Any, scale: Any, *others: Any
) -> None:
    if scale is not None:
        raise errors.ArgumentError("pblas::linear: a weight of 8 bits has no gradients; call under torch.no_grad()")
    ctx.kind, ctx.epilogue, keep, _, _, *ctx.sizes = others
    if ctx.epilogue and not keep:
        raise errors.ArgumentError(f"pblas::linear: the gradient of the epilogue {ctx.epilogue!r} needs keep=True")
    ctx.mark_non_differentiable(results[1])
    ctx.has_bias, ctx.parameters = bias is not None, [_described(weight), _described(bias)]
    ctx.save_for_backward(x, _shards(weight, bias)[0], results[1])


def _described(parameter: Any) -> tuple[Any, Any] | None:
    """The shape of a parameter's shard and the spec of its DTensor; None for other tensors (local)."""
    if not isinstance(parameter, DTensor):
        return None
    return parameter._local_tensor.shape, parameter._spec  # noqa: SLF001 - DTensor.from_local takes 40 us


def _gradient(computed: Any, described: tuple[Any, Any] | None) -> Any:
    """A gradient like its parameter (local)."""
    if described is None:
        return computed
    shape, spec = described
    return DTensor(computed.view(shape), copy(spec), requires_grad=False)


def _gradients(ctx: Any, dy: Any, _dz: Any) -> tuple[Any, ...]:
    x, weight, z = ctx.saved_tensors
    needs = [*ctx.needs_input_grad[:2], ctx.has_bias and ctx.needs_input_grad[2]]
    computed = iter(linear_backward(dy, x, weight, z, ctx.kind, ctx.epilogue, needs, *ctx.sizes))
    residual = dy if ctx.needs_input_grad[3] else None
    likes = None, *ctx.parameters
    gradients = (
        _gradient(next(computed), like) if is_needed else None for is_needed, like in zip(needs, likes, strict=True)
    )
    return *gradients, residual, *[None] * 9


_SIZES = "SymInt tokens, SymInt features, str group"
_operator = _define(
    "linear(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, Tensor? scale, str kind, str epilogue, bool keep, "
    f"bool float8, SymInt rows, {_SIZES}) -> (Tensor, Tensor)",
    *(_linear, _linear_fake, _keep_linear, _gradients),
)
_of_shards = _recorded(
    lambda x, weight, bias, *others: _linear(x, *_shards(weight, bias), *others), _keep_linear, _gradients
)


def linear(x: Any, weight: Any, bias: Any, *others: Any) -> tuple[Any, Any]:
    """**Collective.** The operator, of parameters that may be DTensors; see `_linear`."""
    if type(weight) is DTensor and type(bias) in (DTensor, type(None)) and not _is_watched((x, *others)):
        return _of_shards(x, weight, bias, *others)
    weight, bias = local(weight), local(bias)
    return _operator(x, weight.flatten(0, -2), None if bias is None else bias.flatten(), *others)


linear_backward = _define(
    "linear_backward(Tensor dy, Tensor x, Tensor weight, Tensor z, str kind, str epilogue, bool[] needs, "
    f"{_SIZES}) -> Tensor[]",
    *(_linear_backward, _linear_backward_fake),
)


def _keep_columns(ctx: Any, _results: Any, x: Any, *others: Any) -> None:
    ctx.columns, ctx.group = x.shape[-1], others[-1]


allreduce = _define(
    "allreduce(Tensor x, str group) -> Tensor",
    lambda x, group: context_named(group).allreduce(x.contiguous()),  # the sum of all ranks' x
    lambda x, _group: x.new_empty(x.shape),
)
sum_gradients = _define(  # a copy of x, which is equal on all ranks; its gradient is the sum of those of all ranks
    "sum_gradients(Tensor x, str group) -> Tensor",
    lambda x, _group: x.clone(),
    lambda x, _group: torch.empty_like(x),
    _keep_columns,
    lambda ctx, dy: (allreduce(dy, ctx.group), None),
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


gather_features: Callable[..., Any] = _define(
    "gather_features(Tensor x, SymInt features, str group) -> Tensor",
    _gather_features,
    lambda x, features, _group: x.new_empty(*x.shape[:-1], features),
    _keep_columns,
    lambda ctx, dy: (split_features(dy, ctx.columns, ctx.group), None, None),
)
split_features: Callable[..., Any] = _define(
    "split_features(Tensor x, SymInt columns, str group) -> Tensor",
    _split_features,
    lambda x, columns, _group: x.new_empty(*x.shape[:-1], columns),
    _keep_columns,
    lambda ctx, dy: (gather_features(dy, ctx.columns, ctx.group), None, None),
)

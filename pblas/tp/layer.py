"""A linear layer as an object, with its weight and with memory for its largest number of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from pblas import errors
from pblas.backends.dtypes import E4M3, FLOAT8, ArrayT, Dtype
from pblas.backends.interop import detached, empty
from pblas.backends.local_step import LocalStep
from pblas.epilogues import Epilogue
from pblas.layouts.checks import checked_int
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.runtime import checked_flag
from pblas.tp import linear
from pblas.tp.partitioning import GATHER, REDUCE, REPLICATED, SCATTER, local_shard
from pblas.tp.products import Caller

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from pblas.context import Context
    from pblas.tp.linear import Gradients

_KINDS = {
    "allgather": (GATHER, linear.allgather_linear, linear.allgather_linear_backward),
    "reduce_scatter": (SCATTER, linear.linear_reduce_scatter, linear.linear_reduce_scatter_backward),
    "allreduce": (REDUCE, linear.linear_allreduce, linear.linear_allreduce_backward),
    "replicated": (REPLICATED, linear.replicated_linear, linear.replicated_linear_backward),
}
"""For each kind: the distribution of the layer, its function, and the function of its gradients."""


class Linear:
    """A linear layer with its weight. **Collective:** all ranks make it and call it together.

    The constructor plans for `max_tokens` and reserves the memory. The layer plans for another number of tokens in the
    first call with that number. All plans share one workspace, so plans of the same kind need no more memory.

    Plans belong to the context, and layers with the same sizes and options share them. The context caches the last 4096
    plans and forms of calls on CPUs, of 5 to 70 kB each, and the last 64 plans on GPUs, where they have graphs. A layer
    has one plan for each shape of x without the features, and two more for gradients. So a model with four kinds of
    layers can use 256 numbers of tokens on CPUs, or 16 on GPUs, before a plan is made again.

    Args:
        weight: this rank's shard, features out x features in, stored by rows (local).
        kind: "allgather": tokens of x are cut and gathered, see `allgather_linear`; "reduce_scatter" and "allreduce":
            features in are cut, see `linear_reduce_scatter` and `linear_allreduce`; "replicated": see
            `replicated_linear` (global).
        bias: as in that function (local).
        epilogue: as in that function; operands with y's shape may have any number of tokens here, if each call passes
            its own (global).
        max_tokens: largest number of tokens of a call, over all ranks: the product of all axes of x but the last. If
            x has more than two axes and the first does not divide evenly, a rank's shard is larger, and may need more
            memory. None reserves nothing (global).
        training: reserve memory for the gradients of `max_tokens` too; otherwise the first call of `backward` reserves
            it (global).
        features: length of the weight's cut axis over all ranks; None if every rank's shard has the same length
            (global).
        out_dtype: dtype of y, as in that function (global).
        tf32: multiply float32 in TF32 on GPUs (global).
        fast_accumulate: as in that function (global).
        autotune: measure algorithms when planning, see `allgather_linear` (global).
        wire_dtype: dtype in which partial products of 16-bit matrices travel: those of y, or of the gradient by x if
            the kind is "allgather" or "replicated"; see `linear_reduce_scatter` (global).
        scale_b: factor of a weight of 8 bits, see `allgather_linear`. Layers of 8 bits have no gradients (global).
        ctx: the ranks; None for `default_context` (global).

    Raises:
        ArgumentError, DTypeError: arguments that do not fit, the same on every rank.
        LayoutError: a number of tokens or features that is not an integer.
        WorkspaceError: too little memory.

    >>> import numpy as np
    >>> layer = Linear(np.eye(3), "allreduce", max_tokens=8)
    >>> layer(np.ones((2, 3))).shape
    (2, 3)
    """

    def __init__(
        self,
        weight: object,
        kind: Literal["allgather", "reduce_scatter", "allreduce", "replicated"],
        bias: object = None,
        epilogue: str | Epilogue | None = None,
        *,
        max_tokens: Any = None,
        training: bool = False,
        features: int | None = None,
        out_dtype: DTypeLike | None = None,
        tf32: bool = False,
        fast_accumulate: bool = False,
        autotune: bool = False,
        wire_dtype: DTypeLike | None = None,
        scale_b: object = None,
        ctx: Context | None = None,
    ) -> None:
        self.weight: Any = weight
        self.kind = kind
        self.bias: Any = bias
        self.epilogue: str | Epilogue | None = epilogue
        self.max_tokens: int | None = max_tokens
        options = {"features": features, "tf32": tf32, "autotune": autotune, "wire_dtype": wire_dtype}
        self._options: dict[str, Any] = options
        forward = {"out_dtype": out_dtype, "fast_accumulate": fast_accumulate, "scale_b": scale_b}
        self._forward_options: dict[str, Any] = forward
        kind_value: object = kind  # a caller may pass anything; a list cannot be looked up
        is_kind = isinstance(kind_value, str) and kind_value in _KINDS
        self._layer, self._forward, self._backward = _KINDS[kind if is_kind else "allgather"]
        with Caller(self._layer, "Linear", ctx, weight, None) as caller:
            self._ctx = caller.ctx
            self._make(caller, kind, bias, epilogue, max_tokens=max_tokens, training=training)

    def _make(
        self, caller: Caller, kind: object, bias: object, epilogue: object, *, max_tokens: object, training: bool
    ) -> None:
        """**Collective.** Check the arguments, and reserve memory for `max_tokens`."""
        is_kind = isinstance(kind, str) and kind in _KINDS
        with LocalStep(lambda opname, error: caller.runtime.fail(opname, caller.named(error)), "Linear"):
            if not is_kind:
                raise errors.ArgumentError(f"Linear: kind must be one of {', '.join(_KINDS)}, got {kind!r}")
            if max_tokens is not None:
                self.max_tokens = checked_int("Linear", "max_tokens", max_tokens, 1)
            training = checked_flag("Linear", "training", training)
            if training and max_tokens is None:
                raise errors.ArgumentError("Linear: training=True reserves memory for max_tokens; pass max_tokens too")
            caller.array("weight", detached(self.weight), tokens=False, stored=True)
        call_args = {"kind": kind, "max_tokens": self.max_tokens, "training": training}
        caller.runtime.agree("Linear", call_args)
        if self.max_tokens is not None:
            self._reserve(self.max_tokens, bias, epilogue, training=training)
            # Few tokens may use other kernels, and collectives on CPUs, with memory of their own.
            if kind == "allreduce" or not caller.runtime.backend.gpus:
                self._reserve(1, training=training)

    def __call__(
        self,
        x: ArrayT,
        *,
        operands: Mapping[str, object] | None = None,
        out: ArrayT | None = None,
        aux: object = None,
        tokens: int | None = None,
        scale_a: object = None,
        scale_d: object = None,
        amax: object = None,
        stream: object = None,
    ) -> ArrayT:
        """**Collective.** y = epilogue(x w^T + bias), by the function of the layer's kind.

        Args:
            x: as in that function (local).
            operands: operands of the epilogue by name, which replace the layer's, such as a residual with as many
                tokens as x; None for the layer's own (local).
            out, aux, tokens, scale_a, scale_d, amax, stream: as in that function.

        Raises:
            ArgumentError: more tokens than `max_tokens`, the same on every rank; also as in that function.
        """
        with Caller(self._layer, "Linear", self._ctx, x, stream) as caller:
            with caller.checking():
                options, epilogue = self._checked(x, tokens), self._epilogue_with(operands)
            options |= {"out": out, "aux": aux, "scale_a": scale_a, "scale_d": scale_d, "amax": amax, "stream": stream}
            options |= self._forward_options
            return self._forward(x, self.weight, self.bias, epilogue, **options)

    def backward(
        self,
        dy: object,
        x: ArrayT,
        *,
        aux: object = None,
        needs: tuple[bool, bool, bool] = (True, True, True),
        dweight: object = None,
        tokens: int | None = None,
        stream: object = None,
    ) -> Gradients[ArrayT]:
        """**Collective.** The gradients by x, weight and bias; see the backward function of the layer's kind.

        Raises:
            as `__call__`.
        """
        with Caller(self._layer, "Linear", self._ctx, dy, stream) as caller:
            with caller.checking():
                options = self._checked(x, tokens)
            options |= {"aux": aux, "needs": needs, "dweight": dweight, "stream": stream}
            return self._backward(dy, x, self.weight, self.epilogue, **options)

    def _checked(self, x: object, tokens: int | None) -> dict[str, Any]:
        """The options of a call, with its number of tokens checked (local)."""
        options, (total, *between) = dict(self._options, ctx=self._ctx), tuple(getattr(x, "shape", ()))[:-1] or (0,)
        tokens = None if tokens is None else checked_int("Linear", "tokens", tokens, 0)
        if self.kind == "allgather":
            options["tokens"], total = tokens, total * self._ctx.nprocs if tokens is None else tokens
        elif tokens is not None:
            raise errors.ArgumentError(
                f"Linear: tokens= is for kind 'allgather'; for {self.kind!r} x has all tokens: leave tokens out"
            )
        total *= prod(between)
        if self.max_tokens is not None and total > self.max_tokens:
            many = f"{total} tokens are more than max_tokens={self.max_tokens}"
            raise errors.ArgumentError(f"Linear: {many}; make the layer for as many, or call it with fewer")
        return options

    def _epilogue_with(self, operands: object) -> str | Epilogue | None:
        """The layer's epilogue, with a call's operands instead of some of its own (local)."""
        if operands is None:
            return self.epilogue
        known = self.epilogue.operands if isinstance(self.epilogue, Epilogue) else {}
        if not isinstance(operands, Mapping) or not operands.keys() <= known.keys():
            got = list(operands) if isinstance(operands, Mapping) else type(operands).__name__
            raise errors.ArgumentError(
                f"Linear: operands must be a dict of those of the epilogue, {', '.join(known) or 'which has none'}; "
                f"got {got}"
            )
        assert isinstance(self.epilogue, Epilogue), "other epilogues have no operands"
        return Epilogue(self.epilogue.expression, **{**known, **operands})

    def _reserve(self, tokens: int, bias: Any = None, epilogue: Any = None, *, training: bool) -> None:
        """**Collective.** Reserve memory: run the layer (with training, its gradients too) once on zeros."""
        runtime, options = self._ctx.runtime, dict(self._options, ctx=self._ctx)
        shard = local_shard(tokens, self._ctx.rank, self._ctx.nprocs)
        length = shard.stop - shard.start
        if self.kind == "allgather":
            options["tokens"] = tokens
        weight = detached(self.weight)
        array = runtime.backend.as_array(weight)
        outwards, features = array.shape
        dtype = E4M3 if array.dtype in FLOAT8 else array.dtype  # E5M2 is not multiplied with itself
        rows = length if self.kind == "reduce_scatter" else tokens
        with runtime.local_step("Linear: reserve"):
            try:
                x = self._zeros(length if self.kind == "allgather" else tokens, features, weight, dtype)
                epilogue = self._with_own_arrays(epilogue, rows)
                dy = self._zeros(rows, outwards, weight) if training else None
            except (MemoryError, ValueError, RuntimeError) as caught:  # ValueError: NumPy; RuntimeError: torch
                problem = f"Linear: no memory for {tokens} tokens of {features} features: {caught}"
                raise errors.WorkspaceError(problem) from None
        runtime.agree("Linear: reserve", {})
        self._forward(x, weight, detached(bias), epilogue, **options, **self._forward_options)
        if training:  # the gradient of an epilogue needs no workspace
            self._backward(dy, x, weight, needs=(True, True, self.bias is not None), **options)

    def _with_own_arrays(self, epilogue: object, tokens: int) -> Any:
        """The epilogue with new arrays for this many tokens, since a call may store sums into them (local)."""
        if not isinstance(epilogue, Epilogue):
            return epilogue
        operands = {name: z.local if isinstance(z, DistMatrix) else z for name, z in epilogue.operands.items()}
        own = {
            name: self._zeros(tokens, z.shape[-1], z)
            for name, z in operands.items()
            if len(getattr(z, "shape", ())) > 1
        }
        return Epilogue(epilogue.expression, **{name: own.get(name, detached(z)) for name, z in operands.items()})

    def _zeros(self, m: int, n: int, like: object, dtype: Dtype | None = None) -> Any:
        """An m x n array of zeros, of the library of `like`, and of its dtype if that is None (local)."""
        backend, x = self._ctx.runtime.backend, empty((m, n), like, dtype)
        x = backend.new((m, n), dtype or backend.as_array(like).dtype) if x is None else x
        backend.fill(backend.as_array(x))
        return x

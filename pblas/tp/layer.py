"""A linear layer as an object: its weight, and what it needs for as many tokens as it will ever see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pblas import errors
from pblas.backends.foreign import empty
from pblas.epilogues import Epilogue
from pblas.layouts.check import checked_int
from pblas.matrix import DistMatrix
from pblas.tp import linear
from pblas.tp.default import default_context
from pblas.tp.spread import part

if TYPE_CHECKING:
    from pblas.context import Context
    from pblas.tp.linear import Gradients

_FORWARD = {
    "allgather": linear.allgather_linear,
    "reduce_scatter": linear.linear_reduce_scatter,
    "allreduce": linear.linear_allreduce,
}
_BACKWARD = {
    "allgather": linear.allgather_linear_backward,
    "reduce_scatter": linear.linear_reduce_scatter_backward,
    "allreduce": linear.linear_allreduce_backward,
}


class Linear:
    """A linear layer. **Collective** when it is made, as its calls are.

    Memory for `max_tokens` is taken, and their plan made, at once. Other numbers of tokens have plans of their own,
    made when they first occur: all share the memory that products need beside operands, so that none takes more of it.

    Args:
        weight: this rank's part, features out x features in, stored by rows (local).
        kind: "allgather": tokens of x are cut and gathered, see `allgather_linear`; "reduce_scatter" and "allreduce":
            features in are cut, see `linear_reduce_scatter` and `linear_allreduce` (global).
        bias: as of that function (local).
        epilogue: as of that function (global).
        max_tokens: most tokens of a call, of all ranks; None to reserve nothing (global).
        features: of the weight's cut axis, of all ranks; None if each has as many as this one (global).
        tf32: multiply float32 in TF32 on GPUs (global).
        autotune: try roads and GEMM algorithms, see `allgather_linear` (global).
        ctx: the ranks; None for `default_context` (global).

    Raises:
        ArgumentError, DTypeError: what does not fit, the same on every rank.
        LayoutError: numbers of tokens or features that are no integers.
        WorkspaceError: too little memory.

    >>> import numpy as np
    >>> layer = Linear(np.eye(3), "allreduce", max_tokens=8)
    >>> layer(np.ones((2, 3))).shape
    (2, 3)
    """

    def __init__(
        self,
        weight: Any,
        kind: Literal["allgather", "reduce_scatter", "allreduce"],
        bias: Any = None,
        epilogue: str | Epilogue | None = None,
        *,
        max_tokens: Any = None,
        features: int | None = None,
        tf32: bool = False,
        autotune: bool = False,
        ctx: Context | None = None,
    ) -> None:
        if kind not in _FORWARD:
            raise errors.ArgumentError(f"Linear: kind must be one of {', '.join(_FORWARD)}, got {kind!r}")
        max_tokens = None if max_tokens is None else checked_int("Linear", "max_tokens", max_tokens, 1)
        self.weight, self.kind, self.bias, self.epilogue, self.max_tokens = weight, kind, bias, epilogue, max_tokens
        self._options: dict[str, Any] = {"features": features, "tf32": tf32, "autotune": autotune}
        self._ctx = default_context() if ctx is None else ctx
        if max_tokens is not None:
            self._reserve(max_tokens, bias, epilogue)
            if kind == "allreduce":  # the sums of few tokens may be added by other kernels, in memory of theirs
                self._reserve(1)

    def __call__(
        self, x: Any, *, out: Any = None, pre: Any = None, tokens: int | None = None, stream: Any = None
    ) -> Any:
        """**Collective.** y, as the function of the layer's kind returns it; see there for the arguments.

        Raises:
            ArgumentError: more tokens than `max_tokens`, the same on every rank; and as that function.
        """
        options = self._checked(x, tokens) | {"out": out, "pre": pre, "stream": stream}
        return _FORWARD[self.kind](x, self.weight, self.bias, self.epilogue, **options)

    def backward(
        self,
        dy: Any,
        x: Any,
        *,
        pre: Any = None,
        needs: tuple[bool, bool, bool] = (True, True, True),
        dweight: Any = None,
        tokens: int | None = None,
        stream: Any = None,
    ) -> Gradients:
        """**Collective.** The gradients by x, weight and bias; see the backward function of the layer's kind.

        Raises:
            as `__call__`.
        """
        options = self._checked(x, tokens) | {"pre": pre, "needs": needs, "dweight": dweight, "stream": stream}
        return _BACKWARD[self.kind](dy, x, self.weight, self.epilogue, **options)

    def _checked(self, x: Any, tokens: int | None) -> dict[str, Any]:
        """What a call passes on."""
        options, total = dict(self._options, ctx=self._ctx), getattr(x, "shape", (0,))[0]
        tokens = None if tokens is None else checked_int("Linear", "tokens", tokens, 0)
        if self.kind == "allgather":
            options["tokens"], total = tokens, total * self._ctx.nprocs if tokens is None else tokens
        elif tokens is not None:
            raise errors.ArgumentError(f"Linear: tokens= is for kind 'allgather'; for {self.kind!r} x has all of them")
        if self.max_tokens is not None and total > self.max_tokens:
            raise errors.ArgumentError(f"Linear: {total} tokens are more than max_tokens={self.max_tokens}")
        return options

    def _reserve(self, tokens: int, bias: Any = None, epilogue: Any = None) -> None:
        """**Collective.** Call the layer once with as many tokens, all zero."""
        rows, options = tokens, dict(self._options, ctx=self._ctx)
        if self.kind == "allgather":
            mine = part(tokens, self._ctx.rank, self._ctx.nprocs)
            rows, options["tokens"] = mine.stop - mine.start, tokens
        runtime, error = self._ctx.runtime, None
        weight = runtime.backend.as_array(self.weight)
        shape = rows, weight.shape[-1]
        try:
            x = empty(shape, self.weight)
            x = runtime.backend.new(shape, weight.dtype) if x is None else x
            x[...] = 0
        except (MemoryError, RuntimeError) as caught:  # torch has an error of its own
            error = errors.WorkspaceError(f"Linear: no memory for {rows} tokens of {shape[1]} features: {caught}")
        runtime.agree("Linear", {"max_tokens": tokens}, error)
        _FORWARD[self.kind](x, self.weight, bias, self._spared(epilogue), **options)

    def _spared(self, epilogue: Any) -> Any:
        """The same epilogue with a residual of its own, since a call stores sums there (local)."""
        operands = dict(epilogue.operands) if isinstance(epilogue, Epilogue) and epilogue.is_rmsnorm else {}
        residual = operands.get("residual")
        if not hasattr(residual, "shape"):
            return epilogue
        backend = self._ctx.runtime.backend
        theirs: Any = residual.local if isinstance(residual, DistMatrix) else residual
        own = empty(theirs.shape, theirs)
        own = backend.new(theirs.shape, backend.as_array(theirs).dtype) if own is None else own
        own[...] = 0
        return Epilogue(epilogue.expression, **operands | {"residual": own})

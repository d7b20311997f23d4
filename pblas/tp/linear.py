"""The layers of a tensor-parallel model and their gradients: each is one product that overlaps its communication.

A layer's weight is cut over the ranks, by rows (`allgather_linear`) or by columns (the other two), and stored as
torch.nn stores it, features out x features in. Tokens are the rows of x and y. Where tokens are cut, every rank has
equally many, or `tokens=` gives their total; `local_shard` gives the tokens of a rank.

As torch.nn.Linear, all functions also take x, y and arrays like them with axes between tokens and features, as in
tokens x batch x features. The first axis is cut or gathered; the others are equal on all ranks. Such arrays are read in
place, as a matrix whose rows are all axes but the last. These rows must have one stride, as in C-contiguous
arrays.

Plans are kept by shape: a call with known sizes does not plan. Products read the caller's arrays in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pblas import errors
from pblas.runtime.runtime import checked_flag
from pblas.tp.activation import Activation, ActivationGradient
from pblas.tp.partitioning import GATHER, REDUCE, SCATTER
from pblas.tp.products import Caller, Options, Product, rows

if TYPE_CHECKING:
    from pblas.context import Context
    from pblas.epilogues import Epilogue
    from pblas.tp.partitioning import Layer


class Gradients(NamedTuple):
    """Gradients of a layer by its arguments; None for a gradient that was not requested.

    dx = dy w and dw = dy^T x, of complex numbers too: nothing is conjugated. For torch's gradient by complex numbers
    give the conjugate of dy, and take that of the results.

    Args:
        x: distributed as x (local).
        weight: distributed as the weight (local).
        bias: distributed as the bias (local).
    """

    x: Any
    weight: Any
    bias: Any


def allgather_linear(
    x: Any,
    weight: Any,
    bias: Any = None,
    epilogue: str | Epilogue | None = None,
    *,
    out: Any = None,
    aux: Any = None,
    tokens: int | None = None,
    features: int | None = None,
    tf32: bool = False,
    autotune: bool = False,
    wire_dtype: Any = None,
    ctx: Context | None = None,
    stream: Any = None,
) -> Any:
    """**Collective.** y = epilogue(x w^T + bias): tokens are gathered during the product, features out are cut.

    Args:
        x: this rank's tokens x ... x features in, stored by rows; if there are axes between, y, out, aux and arrays of
            the epilogue have the same (local).
        weight: this rank's features out x features in, stored by rows (local).
        bias: one element for each of this rank's features out, or None (local; given on all ranks or on none).
        epilogue: an expression, as "gelu" or "x * s", or an `Epilogue`, whose arrays have the shape of this rank's y or
            one element for each of its columns. Or "swiglu": the first half of this rank's features out are the gate of
            the second half, and y = silu(gate) up has half as many (global).
        out: where y goes; None for a new array of x's library (local).
        aux: where x w^T + bias goes, before the epilogue; None not to keep it (local; given on all ranks or on none).
        tokens: of all ranks, along the first axis; None if each has as many as this one (global).
        features: out, of all ranks; None if each has as many as this one (global).
        tf32: multiply float32 in TF32 on GPUs (global).
        autotune: measure algorithms, and GEMM algorithms on GPUs, when planning; see `pblas.plan_matmul` (global).
        wire_dtype: of the gradients, see `allgather_linear_backward`; here no partial products travel (global).
        ctx: the ranks; None for `default_context` (global).
        stream: CUDA stream on which to run; None for the current one of x's library (local).

    Returns:
        y, all tokens x ... x this rank's features out.

    Raises:
        ArgumentError, DTypeError: arguments that do not fit, the same on every rank. On GPUs other ranks may have begun
            already: an error on some ranks only closes the context.
        LayoutError: numbers of tokens or features that are no integers.
        MismatchError: ranks that passed different (global) arguments, where the ranks' hosts agree on a call: on CPUs
            always, on GPUs when it is planned.
    """
    options = Options({"T": tokens, "O": features}, tf32, autotune, wire_dtype, ctx, stream)
    return _forward(GATHER, x, weight, bias, epilogue, out, aux, options)


def linear_reduce_scatter(
    x: Any,
    weight: Any,
    bias: Any = None,
    epilogue: str | Epilogue | None = None,
    *,
    out: Any = None,
    aux: Any = None,
    features: int | None = None,
    tf32: bool = False,
    autotune: bool = False,
    wire_dtype: Any = None,
    ctx: Context | None = None,
    stream: Any = None,
) -> Any:
    """**Collective.** y = epilogue(x w^T + bias), where features in are cut: each rank gets the sums for its tokens.

    Args:
        x: all tokens x ... x this rank's features in, stored by rows; see `allgather_linear` (local).
        weight: all features out x this rank's features in, stored by rows (local).
        bias: one element for each feature out, the same on every rank, or None (global).
        epilogue: see `allgather_linear`; also "rmsnorm", since rows of y are whole (global).
        features: in, of all ranks; None if each has as many as this one (global).
        wire_dtype: dtype in which partial products of 16-bit matrices travel: None for their own, or "float32", so that
            the sum of all ranks is rounded once, at twice the bytes; see `pblas.plan_matmul` (global).
        out, aux, tf32, autotune, ctx, stream: see `allgather_linear`.

    Returns:
        y, this rank's tokens, `local_shard(tokens, rank, nprocs)`, x ... x all features out.

    Raises:
        as `allgather_linear`.
    """
    options = Options({"I": features}, tf32, autotune, wire_dtype, ctx, stream)
    return _forward(SCATTER, x, weight, bias, epilogue, out, aux, options)


def linear_allreduce(
    x: Any,
    weight: Any,
    bias: Any = None,
    epilogue: str | Epilogue | None = None,
    *,
    out: Any = None,
    aux: Any = None,
    features: int | None = None,
    tf32: bool = False,
    autotune: bool = False,
    wire_dtype: Any = None,
    ctx: Context | None = None,
    stream: Any = None,
) -> Any:
    """**Collective.** y = epilogue(x w^T + bias), where features in are cut: every rank gets all sums, the same bits.

    Args:
        x: all tokens x ... x this rank's features in, stored by rows; see `allgather_linear` (local).
        weight: all features out x this rank's features in, stored by rows (local).
        wire_dtype: see `linear_reduce_scatter`; with "float32" GPUs add few tokens as they do many (global).
        bias, epilogue, features: see `linear_reduce_scatter`.
        out, aux, tf32, autotune, ctx, stream: see `allgather_linear`.

    Returns:
        y, all tokens x ... x all features out.

    Raises:
        as `allgather_linear`.
    """
    options = Options({"I": features}, tf32, autotune, wire_dtype, ctx, stream)
    return _forward(REDUCE, x, weight, bias, epilogue, out, aux, options)


def allgather_linear_backward(
    dy: Any,
    x: Any,
    weight: Any,
    epilogue: str | Epilogue | None = None,
    *,
    aux: Any = None,
    needs: tuple[bool, bool, bool] = (True, True, True),
    dweight: Any = None,
    tokens: int | None = None,
    features: int | None = None,
    tf32: bool = False,
    autotune: bool = False,
    wire_dtype: Any = None,
    ctx: Context | None = None,
    stream: Any = None,
) -> Gradients:
    """**Collective.** The gradients of `allgather_linear`: dx = dy w is reduced and scattered, x is gathered for dw.

    Args:
        dy: gradient by y, all tokens x ... x this rank's features out (local).
        x: as in the layer (local).
        weight: as in the layer (local).
        epilogue: as in the layer: None, "relu", "gelu", "gelu_tanh", "silu" or "swiglu" (global).
        aux: the array that the layer filled; needed with an epilogue (local).
        needs: whether the gradients by x, weight and bias are wanted (global).
        dweight: array of the weight's shape to which its gradient is added; None for a new one (local; given on all
            ranks or on none).
        wire_dtype: of dx, see `linear_reduce_scatter` (global).
        stream: CUDA stream on which to run; None for the current one of dy's library (local).
        tokens, features, tf32, autotune, ctx: as in the layer, see `allgather_linear` (global).

    Raises:
        as `allgather_linear`.
    """
    options = Options({"T": tokens, "O": features}, tf32, autotune, wire_dtype, ctx, stream)
    return _backward(GATHER, dy, x, weight, epilogue, aux, needs, dweight, options)


def linear_reduce_scatter_backward(
    dy: Any,
    x: Any,
    weight: Any,
    epilogue: str | Epilogue | None = None,
    *,
    aux: Any = None,
    needs: tuple[bool, bool, bool] = (True, True, True),
    dweight: Any = None,
    features: int | None = None,
    tf32: bool = False,
    autotune: bool = False,
    wire_dtype: Any = None,
    ctx: Context | None = None,
    stream: Any = None,
) -> Gradients:
    """**Collective.** The gradients of `linear_reduce_scatter`: dy is gathered, for dx = dy w and for dw = dy^T x.

    Args:
        dy: gradient by y, this rank's tokens x ... x all features out (local).
        wire_dtype: as in the layer; here no partial products travel (global).
        x, weight, features, tf32, autotune, ctx: as in the layer.
        epilogue, aux, needs, dweight, stream: see `allgather_linear_backward`.

    Raises:
        as `allgather_linear`.
    """
    options = Options({"I": features}, tf32, autotune, wire_dtype, ctx, stream)
    return _backward(SCATTER, dy, x, weight, epilogue, aux, needs, dweight, options)


def linear_allreduce_backward(
    dy: Any,
    x: Any,
    weight: Any,
    epilogue: str | Epilogue | None = None,
    *,
    aux: Any = None,
    needs: tuple[bool, bool, bool] = (True, True, True),
    dweight: Any = None,
    features: int | None = None,
    tf32: bool = False,
    autotune: bool = False,
    wire_dtype: Any = None,
    ctx: Context | None = None,
    stream: Any = None,
) -> Gradients:
    """**Collective.** The gradients of `linear_allreduce`; every rank has all of dy, so there is no communication.

    Args:
        dy: gradient by y, all tokens x ... x all features out, the same on every rank (global).
        wire_dtype: as in the layer; here no partial products travel (global).
        x, weight, features, tf32, autotune, ctx: as in the layer.
        epilogue, aux, needs, dweight, stream: see `allgather_linear_backward`.

    Raises:
        as `allgather_linear`.
    """
    options = Options({"I": features}, tf32, autotune, wire_dtype, ctx, stream)
    return _backward(REDUCE, dy, x, weight, epilogue, aux, needs, dweight, options)


def _forward(layer: Layer, x: Any, weight: Any, bias: Any, epilogue: Any, out: Any, aux: Any, options: Options) -> Any:
    caller = Caller(layer, layer.name, options.ctx, x, options.stream)
    with caller.checking():
        shards = caller.operands({"x": x, "w": weight}, options)
        dtype, placed = caller.dtype, caller.placed
        shape = placed.shapes["y"]
        if aux is not None and epilogue is None:
            raise errors.ArgumentError("aux stores the input of an epilogue, and there is none; leave it out")
        out_array = None if out is None else caller.array("out", out)
        aux_array = None if aux is None else caller.array("aux", aux)
        caller.check_apart("out", out_array, x=shards["x"], weight=shards["w"])
        caller.check_apart("aux", aux_array, x=shards["x"], weight=shards["w"], out=out_array)
        activation = Activation(caller, epilogue, bias, placed, dtype, out=out_array, aux=aux_array)
        y = caller.target("out", (*shape[:-1], activation.columns), dtype, out)
        y_rows = z_rows = rows(y.array)
        if aux is not None or activation.is_gated:
            z_rows = rows(caller.target("aux", shape, dtype, aux).array)
    epilogue, steps = activation.split(z_rows, y_rows)
    caller.run(Product("y", shards["x"], shards["w"], z_rows, epilogue))
    activation.run(steps)
    return y.result


def _backward(
    layer: Layer, dy: Any, x: Any, weight: Any, epilogue: Any, aux: Any, needs: Any, dweight: Any, options: Options
) -> Gradients:
    caller = Caller(layer, f"{layer.name}_backward", options.ctx, dy, options.stream)
    runtime, dx, dw, db = caller.runtime, None, None, None
    with caller.checking():
        if not isinstance(needs, tuple | list) or len(needs) != 3:
            raise errors.ArgumentError(f"needs must say True or False of x, weight and bias, got {needs!r}")
        needs = [checked_flag(caller.verb, "each of needs", each) for each in needs]
        caller.call_args |= {"needs": needs, "dweight is given": dweight is not None, "epilogue": None}
        gradient = ActivationGradient(caller, epilogue, dy, aux)
        shards = caller.operands({"y": gradient.dz, "w": weight, "x": x}, options)
        y, w, x = shards["y"], shards["w"], shards["x"]
        if needs[0]:
            dx = caller.target("dx", caller.placed.shapes["x"], x.dtype)
        if needs[1]:
            dw = caller.target("dweight", w.shape, w.dtype, dweight, tokens=False)
            caller.check_apart("dweight", None if dweight is None else dw.array, dy=y, x=x)
        if needs[2]:
            db = caller.target("dbias", y.shape[1:], y.dtype)
    gradient.run()
    if dx is dw is None:
        caller.agree()
    if dx is not None:
        caller.run(Product("x", y, w, rows(dx.array)))
    if dw is not None:
        caller.run(Product("w", y, x, dw.array, beta=0.0 if dweight is None else 1.0))
    if db is not None:
        whole = caller.gathered.get("y")
        runtime.backend.arrays.add_rows(y if whole is None else whole, db.array, caller.stream)
        if layer.y == "T" and whole is None and runtime.nprocs > 1:  # each rank has summed its own tokens only
            caller.ctx.allreduce(db.array, db.array, stream=caller.stream)
    return Gradients(*(None if each is None else each.result for each in (dx, dw, db)))

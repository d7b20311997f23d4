"""The layers of a tensor-parallel model and their gradients: each is one product that overlaps its communication.

A layer's weight is cut over the ranks, by rows (`allgather_linear`, `replicated_linear`) or by columns (the other two),
and stored as torch.nn stores it, features out x features in. Tokens are the rows of x and y. Where tokens are cut, all
ranks have the same number of tokens, or `tokens=` gives the total and `local_shard` the tokens of each rank.

As torch.nn.Linear, all functions also take x, y and arrays like them with axes between tokens and features, as in
tokens x batch x features. The first axis is cut or gathered; the others have the same length on all ranks. Such arrays
are read in place, as a matrix whose rows are all axes but the last. One stride must lead from each of these rows to the
next, as in C-contiguous arrays.

Plans are cached by shape: a call with known sizes does not plan. Products read the caller's arrays in place.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from pblas import errors
from pblas.arrays.reductions import sums_exactly
from pblas.backends.dtypes import ArrayT
from pblas.core.variants import variant
from pblas.matmul.epilogue_arguments import scaled
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.runtime import checked_flag
from pblas.tp.activation import Activation, ActivationGradient
from pblas.tp.partitioning import GATHER, REDUCE, REPLICATED, SCATTER, Layer
from pblas.tp.products import Caller, Options, Product, rows

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from pblas.backends.dtypes import Array
    from pblas.context import Context
    from pblas.epilogues import Epilogue


class Gradients(NamedTuple, Generic[ArrayT]):
    """Gradients of a layer by its arguments; None for a gradient that was not requested.

    dx = dy w and dw = dy^T x, without conjugation also for complex numbers. For torch's gradient by complex numbers,
    pass the conjugate of dy, and conjugate the results.

    Args:
        x: gradient by x, distributed as x (local).
        weight: gradient by the weight, distributed as the weight (local).
        bias: gradient by the bias, distributed as the bias (local).
    """

    x: ArrayT | None
    weight: ArrayT | None
    bias: ArrayT | None


def allgather_linear(
    x: ArrayT,
    weight: object,
    bias: object = None,
    epilogue: str | Epilogue | None = None,
    *,
    out: ArrayT | None = None,
    aux: object = None,
    tokens: int | None = None,
    features: int | None = None,
    out_dtype: DTypeLike | None = None,
    tf32: bool = False,
    fast_accumulate: bool = False,
    autotune: bool = False,
    wire_dtype: DTypeLike | None = None,
    scale_a: object = None,
    scale_b: object = None,
    scale_d: object = None,
    amax: object = None,
    ctx: Context | None = None,
    stream: object = None,
) -> ArrayT:
    """**Collective.** y = epilogue(x w^T + bias): tokens are gathered during the product, features out are cut.

    Args:
        x: this rank's tokens x ... x features in, stored by rows. If x has axes between tokens and features, y, out,
            aux and arrays of the epilogue have the same axes (local).
        weight: this rank's features out x features in, stored by rows (local).
        bias: one element for each of this rank's features out, or None (local; given on all ranks or on none).
        epilogue: an expression, as "gelu" or "x * s", or an `Epilogue`, whose arrays have the shape of this rank's y or
            one element for each of its columns. Or "swiglu": y = silu(gate) up, where gate and up are the first and
            the second half of this rank's features out, so that y has half as many columns (global).
        out: array that receives y; None for a new array of x's library (local).
        aux: array that receives x w^T + bias, the input of the epilogue; None if it is not needed (local; given on all
            ranks or on none).
        tokens: length of the first axis over all ranks; None if all ranks have the same length (global).
        features: number of features out of all ranks; None if all ranks have the same number (global).
        out_dtype: dtype of y if out is None: that of x or float32 for an x of 16 bits; for x and weight of 8 bits
            bfloat16, the default, float16 or float32 (global).
        tf32: multiply float32 in TF32 on GPUs (global).
        fast_accumulate: add products of 8 bits with fewer bits on GPUs; see `pblas.plan_matmul` (global).
        autotune: measure algorithms when planning on GPUs; see `pblas.plan_matmul` (global).
        scale_a: factor of an x of 8 bits: a number, or an array of one float32 where x is; see `pblas.plan_matmul`
            (global).
        scale_b: factor of the weight, as scale_a (global).
        scale_d: factor of y, after the epilogue, as scale_a (global).
        amax: array of one float32 that receives the largest modulus in this rank's y (local; given on all ranks or on
            none).
        wire_dtype: accepted as in `allgather_linear_backward`; no partial products travel in the layer itself (global).
        ctx: the context whose ranks share the layer; None for `default_context` (global).
        stream: CUDA stream on which to run; None for the current stream of x's library (local).

    Returns:
        y, all tokens x ... x this rank's features out.

    Raises:
        ArgumentError, DTypeError: wrong arguments; the same error on every rank. On GPUs other ranks may have begun
            already: an error on some ranks only breaks the context.
        LayoutError: a number of tokens or features that is not an integer.
        MismatchError: ranks that passed different (global) arguments. On CPUs every call compares them, on GPUs the
            first call of each kind, which plans.
    """
    scales = scale_a, scale_b, scale_d, amax
    options = Options(
        {"T": tokens, "O": features}, tf32, autotune, wire_dtype, ctx, stream, out_dtype, fast_accumulate, scales
    )
    return _forward(GATHER, x, weight, bias, epilogue, out, aux, options)


def _linear_of_all_tokens(
    layer: str,
    x: ArrayT,
    weight: object,
    bias: object = None,
    epilogue: str | Epilogue | None = None,
    *,
    out: ArrayT | None = None,
    aux: object = None,
    features: int | None = None,
    out_dtype: DTypeLike | None = None,
    tf32: bool = False,
    fast_accumulate: bool = False,
    autotune: bool = False,
    wire_dtype: DTypeLike | None = None,
    scale_a: object = None,
    scale_b: object = None,
    scale_d: object = None,
    amax: object = None,
    ctx: Context | None = None,
    stream: object = None,
) -> ArrayT:
    """**Collective.** A layer to which every rank passes all tokens.

    Args:
        x: all tokens x ... x features in, stored by rows; see `allgather_linear`. Of `replicated_linear` all features,
            the same on every rank (global), otherwise this rank's features (local).
        weight: features out x features in, stored by rows. Of `replicated_linear` this rank's features out, otherwise
            this rank's features in (local).
        bias: one element for each feature out of the weight, or None; the same on every rank (global), but for
            `replicated_linear` (local).
        epilogue: see `allgather_linear`; also "rmsnorm" where rows of y are whole (global).
        features: number of features of all ranks along the weight's cut axis; None if all ranks have the same number
            (global).
        wire_dtype: dtype in which partial products of 16-bit matrices travel: the matrices' own, or "float32", which
            rounds the sum of all ranks only once, and moves twice the bytes; None for "float32" of float16, otherwise
            for the matrices' own; see `pblas.plan_matmul` (global).
        out, aux, out_dtype, tf32, fast_accumulate, autotune, ctx, stream: see `allgather_linear`.
        scale_a, scale_b, scale_d, amax: see `allgather_linear`.

    Raises:
        as `allgather_linear`.
    """
    scales = scale_a, scale_b, scale_d, amax
    kind = _LAYERS[layer]
    options = Options({kind.w: features}, tf32, autotune, wire_dtype, ctx, stream, out_dtype, fast_accumulate, scales)
    return _forward(kind, x, weight, bias, epilogue, out, aux, options)


_LAYERS = {layer.name: layer for layer in (SCATTER, REDUCE, REPLICATED)}
linear_reduce_scatter = variant(
    _linear_of_all_tokens,
    "linear_reduce_scatter",
    """**Collective.** y = epilogue(x w^T + bias), where features in are cut: each rank gets the sums for its tokens.

    The result y is this rank's tokens, `local_shard(tokens, rank, nprocs)`, x ... x all features out.
    """,
)
linear_allreduce = variant(
    _linear_of_all_tokens,
    "linear_allreduce",
    """**Collective.** y = epilogue(x w^T + bias), where features in are cut: every rank gets all sums, the same bits.

    The result y is all tokens x ... x all features out. With wire_dtype="float32" GPUs do not use the collective for
    few tokens.
    """,
)
replicated_linear = variant(
    _linear_of_all_tokens,
    "replicated_linear",
    """**Collective.** y = epilogue(x w^T + bias), where every rank has all of x, and features out are cut.

    Nothing moves. The result y is all tokens x ... x this rank's features out. It is `allgather_linear` for tokens that
    are not cut: its gradient by x is a sum over all ranks.
    """,
)


def allgather_linear_backward(
    dy: object,
    x: ArrayT,
    weight: object,
    epilogue: str | Epilogue | None = None,
    *,
    aux: object = None,
    needs: tuple[bool, bool, bool] = (True, True, True),
    dweight: object = None,
    tokens: int | None = None,
    features: int | None = None,
    tf32: bool = False,
    autotune: bool = False,
    wire_dtype: DTypeLike | None = None,
    ctx: Context | None = None,
    stream: object = None,
) -> Gradients[ArrayT]:
    """**Collective.** The gradients of `allgather_linear`: dx = dy w by a reduce-scatter, dw by an all-gather of x.

    Args:
        dy: gradient by y, all tokens x ... x this rank's features out (local).
        x: as in the layer (local).
        weight: as in the layer (local).
        epilogue: as in the layer: None, "relu", "gelu", "gelu_tanh", "silu" or "swiglu" (global).
        aux: the array that the layer filled; needed with an epilogue (local).
        needs: whether to compute the gradients by x, by weight and by bias (global).
        dweight: array of the weight's shape to which the gradient is added; None for a new array (local; given on all
            ranks or on none).
        wire_dtype: dtype in which partial products of dx travel, see `linear_reduce_scatter` (global).
        stream: CUDA stream on which to run; None for the current stream of dy's library (local).
        tokens, features, tf32, autotune, ctx: as in the layer, see `allgather_linear` (global).

    Returns:
        The gradients; None for those that `needs` leaves out.

    Raises:
        as `allgather_linear`.
    """
    options = Options({"T": tokens, "O": features}, tf32, autotune, wire_dtype, ctx, stream)
    return _backward(GATHER, dy, x, weight, epilogue, aux, needs, dweight, options)


def _linear_of_all_tokens_backward(
    opname: str,
    dy: object,
    x: ArrayT,
    weight: object,
    epilogue: str | Epilogue | None = None,
    *,
    aux: object = None,
    needs: tuple[bool, bool, bool] = (True, True, True),
    dweight: object = None,
    features: int | None = None,
    tf32: bool = False,
    autotune: bool = False,
    wire_dtype: DTypeLike | None = None,
    ctx: Context | None = None,
    stream: object = None,
) -> Gradients[ArrayT]:
    """**Collective.** The gradients of a layer to which every rank passes all tokens.

    Args:
        dy: gradient by y, distributed as y (local); of `linear_allreduce` the same on every rank (global).
        wire_dtype: as in the layer; only in `replicated_linear_backward` partial products travel (global).
        x, weight, features, tf32, autotune, ctx: as in the layer.
        epilogue, aux, needs, dweight, stream: see `allgather_linear_backward`.

    Returns:
        The gradients; None for those that `needs` leaves out.

    Raises:
        as `allgather_linear`.
    """
    layer = _LAYERS[opname.removesuffix("_backward")]
    options = Options({layer.w: features}, tf32, autotune, wire_dtype, ctx, stream)
    return _backward(layer, dy, x, weight, epilogue, aux, needs, dweight, options)


linear_reduce_scatter_backward = variant(
    _linear_of_all_tokens_backward,
    "linear_reduce_scatter_backward",
    "**Collective.** The gradients of `linear_reduce_scatter`: one all-gather of dy, for dx = dy w and dw = dy^T x.",
)
linear_allreduce_backward = variant(
    _linear_of_all_tokens_backward,
    "linear_allreduce_backward",
    "**Collective.** The gradients of `linear_allreduce`; every rank has all of dy, so there is no communication.",
)
replicated_linear_backward = variant(
    _linear_of_all_tokens_backward,
    "replicated_linear_backward",
    "**Collective.** The gradients of `replicated_linear`: dx = dy w by an all-reduce, the same bits on every rank.",
)


def _forward(
    layer: Layer,
    x: ArrayT,
    weight: object,
    bias: Any,
    epilogue: str | Epilogue | None,
    out: ArrayT | None,
    aux: Any,
    options: Options,
) -> ArrayT:
    with Caller(layer, layer.name, options.ctx, x, options.stream) as caller:
        repeated = caller.repeat(x, weight, bias, epilogue, out, aux, *options.values)
        if repeated is not None:
            result: ArrayT = repeated["out"] if out is None else out
            return result
        with caller.checking():
            shards = caller.operands({"x": x, "w": weight}, options, out=out, stored=True)
            if layer is REPLICATED:
                caller.compare("x", shards["x"])
            scales = caller.scales
            if scales is not None and scales.d is not None:
                if epilogue == "swiglu":
                    raise errors.ArgumentError(
                        f"{caller.opname}: scale_d= and 'swiglu' exclude each other; scale y yourself"
                    )
                epilogue = scaled(caller.opname, epilogue, scales.d)
                caller.scales = scales.factors
            dtype, placed = caller.form.dtype, caller.form.placed
            shape = placed.shapes["y"]
            if aux is not None and epilogue is None:
                raise errors.ArgumentError("aux= stores the input of an epilogue, and there is none; leave it out")
            out_array = None if out is None else caller.array("out", out)
            aux_array = None if aux is None else caller.array("aux", aux)
            caller.check_apart("out", out_array, x=shards["x"], weight=shards["w"])
            caller.check_apart("aux", aux_array, x=shards["x"], weight=shards["w"], out=out_array)
            activation = Activation(caller, epilogue, bias, placed, dtype, out=out_array, aux=aux_array)
            target = caller.target("out", (*shape[:-1], activation.columns), dtype, out)
            y_rows = z_rows = rows(target.array)
            if aux is not None or activation.is_gated:
                z_rows = rows(caller.target("aux", shape, dtype, aux).array)
        epilogue, steps = activation.split(z_rows, y_rows)
        caller.run(Product("y", shards["x"], shards["w"], z_rows, epilogue))
        activation.run(steps)
        if scales is not None and scales.amax is not None:
            caller.do(partial(caller.runtime.backend.arrays.largest, y_rows, scales.amax))
        return target.result


def _backward(
    layer: Layer,
    dy: object,
    x: object,
    weight: object,
    epilogue: str | Epilogue | None,
    aux: object,
    needs: Any,
    dweight: object,
    options: Options,
) -> Gradients[Any]:
    with Caller(layer, f"{layer.name}_backward", options.ctx, dy, options.stream) as caller:
        runtime, dx, dw, db = caller.runtime, None, None, None
        repeated = caller.repeat(dy, x, weight, epilogue, aux, dweight, needs, *options.values)
        if repeated is not None:
            given = dweight if needs[1] else None
            return Gradients(repeated.get("dx"), repeated.get("dweight", given), repeated.get("dbias"))
        with caller.checking():
            if not isinstance(needs, tuple | list) or len(needs) != 3:
                raise errors.ArgumentError(f"needs must say True or False of x, weight and bias, got {needs!r}")
            needs = tuple(checked_flag(caller.opname, "each of needs", each) for each in needs)
            caller.call_args |= {"needs": needs, "dweight is given": dweight is not None, "epilogue": None}
            gradient = ActivationGradient(caller, epilogue, dy, aux)
            shards = caller.operands({"y": gradient.dz, "w": weight, "x": x}, options)
            y, w, x = shards["y"], shards["w"], shards["x"]
            if layer is REDUCE:
                caller.compare("dy", runtime.backend.as_array(dy))
            if needs[0]:
                dx = caller.target("dx", caller.form.placed.shapes["x"], x.dtype)
            if needs[1]:
                dw = caller.target("dweight", w.shape, w.dtype, dweight, tokens=False)
                caller.check_apart("dweight", None if dweight is None else dw.array, dy=y, x=x)
            if needs[2]:
                db = caller.target("dbias", y.shape[1:], y.dtype)
        gradient.run()
        if dx is dw is None:
            caller.agree()
        caller.gather({} if dw is None else {"y": y, "x": x})
        if dx is not None:
            caller.run(Product("x", y, w, rows(dx.array)))
        whole = None if db is None else caller.whole("y")
        if whole is not None and db is not None:  # after the last product its memory may change
            caller.do(partial(runtime.backend.arrays.add_rows, whole, db.array))
        if dw is not None:
            caller.run(Product("w", y, x, dw.array, beta=0.0 if dweight is None else 1.0))
        if whole is None and db is not None:
            caller.do(partial(_add_rows, caller, y, db.array))
        return Gradients(*(None if each is None else each.result for each in (dx, dw, db)))


def _add_rows(caller: Caller, y: Array, db: Array, stream: object) -> None:
    """**Collective.** Db := the sum of the rows of dy on all ranks (local)."""
    runtime, layer, gathered = caller.runtime, caller.layer, caller.gathered
    if sums_exactly(runtime) and not runtime.topology.gpus:
        desc = caller.form.placed.descs["y"]
        total = DistMatrix(desc, y, runtime).sum(axis=0)
        for j0, j1 in desc.global_ranges(runtime.rank)[1]:
            db[...] = total[j0:j1]
        return
    whole = gathered.get("y")
    runtime.backend.arrays.add_rows(y if whole is None else whole, db, stream)
    if layer.y == "T" and whole is None and runtime.nprocs > 1:  # each rank has summed its own tokens only
        caller.ctx.allreduce(db, db, stream=stream)

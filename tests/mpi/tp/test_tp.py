"""Laws of pblas.tp: layers and gradients equal those of torch.nn on one rank, for arrays of any library."""

from __future__ import annotations

import gc
import itertools
import time
import tracemalloc
import weakref
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import Epilogue, errors, tp
from pblas.backends.cpu.pointwise import evaluate
from pblas.collectives.api import Sum
from pblas.epilogues import NAMED, parse
from pblas.tp.products import Caller
from tests.common.gauge import Array, dtype_of, entries, eps_of
from tests.common.ranks import (
    COMM,
    NO_DIFFERENT,
    Contexts,
    Foreign,
    check_broken_half_way,
    open_context,
    raises_on_all_ranks,
    some_wrong,
)

P, RANK = COMM.size, COMM.rank
T, I, O = 2 * P + 3, 3 * P - 1, 4 * P  # tokens and features in do not divide
SETTINGS = ("shared", "message", "push")
MODES = ("shared", "shared, planned", "message", "message, planned", "push")
"""Transports, each with the collectives for few tokens and with plans; the push transport has plans only."""
LAYERS = ("allgather", "reduce_scatter", "allreduce")
ALL = (*LAYERS, "replicated")
pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2, 3, 4, reason=NO_DIFFERENT)]


def own_slice(n: int) -> slice:
    return tp.local_shard(n, RANK, P)


@pytest.fixture
def mode_ctx(request: pytest.FixtureRequest, contexts: Contexts, monkeypatch: pytest.MonkeyPatch) -> pblas.Context:
    """The context of one of the `MODES`."""
    setting, _, planned = request.param.partition(", ")
    if planned:
        monkeypatch.setattr("pblas.tp.products.Caller.is_apart", lambda *_: False)
    contexts[setting].runtime.repeats = None  # steps of tests with other plans
    return contexts[setting]


WHOLE = slice(None)
SPREAD: dict[str, Callable[[], dict[str, tuple[slice, slice]]]] = {
    "allgather": lambda: {"x": (own_slice(T), WHOLE), "w": (own_slice(O), WHOLE), "y": (WHOLE, own_slice(O))},
    "reduce_scatter": lambda: {"x": (WHOLE, own_slice(I)), "w": (WHOLE, own_slice(I)), "y": (own_slice(T), WHOLE)},
    "allreduce": lambda: {"x": (WHOLE, own_slice(I)), "w": (WHOLE, own_slice(I)), "y": (WHOLE, WHOLE)},
    "replicated": lambda: {"x": (WHOLE, WHOLE), "w": (own_slice(O), WHOLE), "y": (WHOLE, own_slice(O))},
}
COUNTS: dict[str, dict[str, int]] = {
    "allgather": {"tokens": T},
    "reduce_scatter": {"features": I},
    "allreduce": {"features": I},
    "replicated": {"features": O},
}


def forward(kind: str) -> Any:
    return getattr(tp, f"{kind}_linear" if kind in ("allgather", "replicated") else f"linear_{kind}")


def backward(kind: str) -> Any:
    return getattr(tp, f"{forward(kind).__name__}_backward")


def matrices(dtype: Any) -> tuple[Array, Array, Array]:
    """Global x, w and dy."""
    x, w, dy = (entries(shape, np.dtype(dtype), seed) for seed, shape in enumerate([(T, I), (O, I), (T, O)]))
    return x, w, dy


def padded(x: Array) -> Array:
    """A copy in rows that end two elements before the next one begins."""
    buffer = np.full((*x.shape[:-1], x.shape[-1] + 2), np.nan, x.dtype)
    buffer[..., : x.shape[-1]] = x
    return buffer[..., : x.shape[-1]]


def close(result: Any, expected: Array, dtype: Any) -> None:
    assert result.shape == expected.shape
    bound = 4 * eps_of(np.dtype(dtype)) * (I + O + T) * max(1.0, np.abs(expected).max(initial=0))
    assert np.abs(np.asarray(result, float) - expected).max(initial=0) <= bound


@pytest.mark.parametrize(
    ("mode_ctx", "name"),
    [*((each, "float64") for each in MODES), ("shared", "bfloat16"), ("shared, planned", "bfloat16")],
    indirect=["mode_ctx"],
)
@pytest.mark.parametrize("kind", ALL)
def test_a_layer_is_that_of_one_rank_and_so_are_its_gradients(mode_ctx: pblas.Context, kind: str, name: str) -> None:
    """With a bias, with and without memory given for the results; for arrays with padded rows."""
    ctx, dtype, spread = mode_ctx, dtype_of(name), SPREAD[kind]()
    x, w, dy = matrices(dtype)
    bias = entries((1, O), dtype, 7)[0]
    x_, w_, dy_ = padded(x[spread["x"]]), padded(w[spread["w"]]), padded(dy[spread["y"]])
    options = COUNTS[kind] | {"ctx": ctx}
    wide = [z.astype(float) for z in (x, w, dy, bias)]
    for repeat in range(2):
        out = padded(np.zeros_like(dy_)) if repeat else None
        y = forward(kind)(x_, w_, bias[spread["y"][1]], out=out, **options)
        assert out is None or y is out
        close(y, (wide[0] @ wide[1].T + wide[3])[spread["y"]], dtype)
        dweight = np.ones_like(w_) if repeat else None
        results = backward(kind)(dy_, x_, w_, dweight=dweight, **options)
        close(results.x, (wide[2] @ wide[1])[spread["x"]], dtype)
        close(results.weight, (wide[2].T @ wide[0])[spread["w"]] + repeat, dtype)
        close(results.bias, wide[2].sum(0)[spread["y"][1]], dtype)
        assert dweight is None or results.weight is dweight
    assert backward(kind)(dy_, x_, w_, needs=(False, False, False), **options) == (None, None, None)


BATCHES = [*itertools.product(((1,), (2, 3), (0,)), (T, 2 * P, 1)), ((), 0), ((), 1), ((), 2), ((2,), 0)]
"""Lengths of the axes between tokens and features, and numbers of tokens, also fewer than ranks."""


@pytest.mark.parametrize("mode_ctx", MODES, indirect=True)
@pytest.mark.parametrize("kind", ALL)
def test_axes_between_tokens_and_features_come_back(mode_ctx: pblas.Context, kind: str) -> None:
    """They come back in results and gradients, in any memory; only the first axis is cut."""
    shares, ctx = SPREAD[kind](), mode_ctx
    _, w, _ = matrices(np.float64)
    w_, bias = np.ascontiguousarray(w[shares["w"]]), np.arange(1.0, O + 1)
    options = COUNTS[kind] | {"ctx": ctx}
    for batch, tokens in BATCHES:
        x, dy = (np.random.default_rng(n).standard_normal((tokens, *batch, n)) for n in (I, O))
        z, cut = (
            x @ w.T + bias,
            {key: own_slice(tokens) if places[0] == own_slice(T) else WHOLE for key, places in shares.items()},
        )
        x_, dy_, z_ = (array[cut[key]][..., shares[key][1]] for key, array in (("x", x), ("y", dy), ("y", z)))
        if kind == "allgather":
            options["tokens"] = tokens
        for spread in (np.ascontiguousarray, padded):
            out, aux = spread(np.zeros_like(z_)), spread(np.zeros_like(z_))
            y = forward(kind)(spread(x_), w_, bias[shares["y"][1]], **options)
            close(y, z_, np.float64)
            assert forward(kind)(spread(x_), w_, bias[shares["y"][1]], "relu", out=out, aux=aux, **options) is out
            close(out, np.maximum(z_, 0), np.float64)
            close(aux, z_, np.float64)
            dz, dweight = dy * (z > 0), np.ones_like(w_)
            results = backward(kind)(spread(dy_), spread(x_), w_, "relu", aux=aux, dweight=dweight, **options)
            close(results.x, (dz @ w)[cut["x"]][..., shares["x"][1]], np.float64)
            dz, rows = (
                dz.reshape(-1, O) if dz.size else np.zeros((0, O)),
                x.reshape(-1, I) if x.size else np.zeros((0, I)),
            )
            close(dweight - 1, (dz.T @ rows)[shares["w"]], np.float64)
            close(results.bias, dz.sum(0)[shares["y"][1]], np.float64)


@pytest.mark.parametrize("mode_ctx", MODES, indirect=True)
def test_epilogues_take_arrays_with_the_axes_of_y(mode_ctx: pblas.Context) -> None:
    """A residual, in which sums are stored; a gate; for any library's x, and from a layer that has reserved memory."""
    spread, batch = SPREAD["reduce_scatter"](), (2, 3)
    options: dict[str, Any] = {"features": I, "ctx": mode_ctx}
    w = entries((O, I), np.dtype(float), 1)
    x, h = (np.random.default_rng(n).standard_normal((T, *batch, n)) for n in (I, O))
    x_, w_, z = np.ascontiguousarray(x[..., own_slice(I)]), np.ascontiguousarray(w[:, own_slice(I)]), x @ w.T
    total = z + h
    weight = np.linspace(1, 2, O)
    norm = (total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-5) * weight)[spread["y"][0]]
    for give in (np.asarray, Foreign):
        residual = padded(h[spread["y"][0]])
        epilogue = Epilogue("rmsnorm", weight=weight, residual=residual, eps=1e-5)
        y = tp.linear_reduce_scatter(give(x_), w_, None, epilogue, **options)
        assert isinstance(y, Foreign) == (give is Foreign)
        assert np.allclose(getattr(y, "x", y), norm)
        assert np.allclose(residual, total[spread["y"][0]])
    layer = tp.Linear(
        *(w_, "reduce_scatter", None, Epilogue("rmsnorm", weight=weight, residual=np.ones((1, 1, 1, O)), eps=1e-5)),
        max_tokens=6 * T,
        **options,
    )
    assert np.allclose(layer(x_, operands={"residual": h[spread["y"][0]].copy()}), norm)
    y = tp.linear_reduce_scatter(x_, w_, None, Epilogue("x * f + b", f=h[spread["y"][0]], b=np.ones(O)), **options)
    assert np.allclose(y, (z * h + 1)[spread["y"][0]])
    y = tp.linear_reduce_scatter(x_, w_, None, "swiglu", **options)
    gate, up = np.split(z, 2, axis=-1)
    assert np.allclose(y, (gate / (1 + np.exp(-gate)) * up)[spread["y"][0]])
    raises_on_all_ranks(
        errors.ArgumentError, f"{6 * T + 6} tokens are more", partial(layer, np.ones((T + 1, *batch, I)))
    )


@pytest.mark.parametrize("mode_ctx", ["shared", "message, planned", "push"], indirect=True)
def test_axes_between_that_do_not_fit_are_refused_on_every_rank(mode_ctx: pblas.Context) -> None:
    """Batch axes that differ, within a call or between ranks, and arrays whose rows have no common stride."""
    ctx, w = mode_ctx, np.ones((4, 3))
    for wrong in [frozenset(range(P)), *([] if ctx.runtime.backend.push else some_wrong())]:
        is_wrong = RANK in wrong

        def refused(text: str, call: Any, *arrays: Any, is_wrong: bool = is_wrong, **options: Any) -> None:
            """Each array is one that is right and one that is not, or right for all."""
            operands = [x[is_wrong] if isinstance(x, tuple) else x for x in arrays]
            options = {name: value[is_wrong] if isinstance(value, tuple) else value for name, value in options.items()}
            raises_on_all_ranks(errors.ArgumentError, text, partial(call, *operands, **options, ctx=ctx))

        x, y = np.ones((2, 5, 3)), np.ones((2, 5, 4))
        transposed = np.ones((5, 2, 4)).transpose(1, 0, 2)
        layer, gradients = tp.linear_allreduce, tp.linear_allreduce_backward
        refused("x must be stored by rows (C order), got shape (2, 5, 3)", layer, (x, transposed[..., :3]), w)
        refused("x must have 2 dimensions or more, got shape (3,)", layer, (x, x[0, 0]), w)
        refused("weight must have 2 dimensions, got shape (1, 4, 3)", layer, x, (w, w[None]))
        refused("out must be stored by rows", layer, x, w, out=(y.copy(), transposed))
        refused("out is 10 x 4: between its first axis and its last", layer, x, w, out=(y, y.reshape(10, 4)))
        refused("out is 3 x 5 x 4 float64, the result 2 x 5 x 4", layer, x, w, out=(y, np.ones((3, 5, 4))))
        refused("aux is 2 x 4 x 4: ", layer, x, w, None, "relu", aux=(y, np.ones((2, 4, 4))))
        refused("the axes (5,), as dy has", gradients, y, (x, np.ones((2, 4, 3))), w)
        refused("aux is 5 x 2 x 4: ", gradients, y, x, w, "relu", aux=(y, np.ones((5, 2, 4))))
        for operand in (y.reshape(10, 4), y[:, :4], y[:1], transposed[None]):
            text = f"on rank {min(wrong)}, got shape {operand.shape}"
            refused(text, layer, x, w, None, (Epilogue("x + r", r=y), Epilogue("x + r", r=operand)))
        refused(
            "r must be stored by rows", layer, x, w, None, (Epilogue("x + r", r=y), Epilogue("x + r", r=transposed))
        )
        refused("got shape (2, 5, 4)", layer, np.ones((2, 3)), w, None, Epilogue("x + r", r=y))
    for wrong in [] if ctx.runtime.backend.push else some_wrong():
        for function, left, right in itertools.product(
            (tp.allgather_linear, tp.linear_reduce_scatter, tp.linear_allreduce), [(2, 7), (7,)], [(7, 2), (14,)]
        ):
            call: Any = partial(function, np.ones((2, *(left if RANK in wrong else right), 3)), w, ctx=ctx)
            raises_on_all_ranks(errors.MismatchError, f"{function.__name__}: batch shape differs between ranks", call)
    assert tp.linear_allreduce(x, w, ctx=ctx).shape == y.shape


@pytest.mark.parametrize(
    ("kind", "epilogue"),
    [("allgather", "gelu"), ("reduce_scatter", "silu"), ("allreduce", "swiglu"), ("allgather", "relu")],
)
def test_gradients_of_epilogues_are_differences(contexts: Contexts, kind: str, epilogue: str) -> None:
    """The gradient of sum(y dy) along a direction: central differences through the layer itself."""
    spread, h = SPREAD[kind](), 1e-6
    x, w, dy = matrices(np.float64)
    dx, dw = (entries(z.shape, z.dtype, 50 + i) for i, z in enumerate((x, w)))
    bias, options = entries((1, O), np.dtype(float), 7)[0][spread["y"][1]], COUNTS[kind] | {"ctx": contexts["shared"]}
    dy_ = np.ascontiguousarray(dy[spread["y"]])
    dy_ = dy_[:, : dy_.shape[1] // 2] if epilogue == "swiglu" else dy_

    def loss(step: float, aux: Array | None = None) -> float:
        x_, w_ = (np.ascontiguousarray((z + step * d)[spread[k]]) for k, z, d in (("x", x, dx), ("w", w, dw)))
        y = forward(kind)(x_, w_, bias, epilogue, aux=aux, **options)
        counted = RANK == 0 or kind != "allreduce"  # every rank has all of y then
        return float(COMM.allreduce((y * dy_).sum() if counted else 0.0))

    aux = np.empty((*np.zeros((T, O))[spread["y"]].shape,))
    loss(0.0, aux)
    assert np.allclose(aux, (x @ w.T)[spread["y"]] + bias, atol=1e-12)
    x_, w_ = (np.ascontiguousarray(z[spread[k]]) for k, z in (("x", x), ("w", w)))
    gradients = backward(kind)(dy_, x_, w_, epilogue, aux=aux, **options)
    along = COMM.allreduce(float((gradients.x * dx[spread["x"]]).sum() + (gradients.weight * dw[spread["w"]]).sum()))
    assert abs(along - (loss(h) - loss(-h)) / (2 * h)) < 1e-5 * (1 + abs(along))


@pytest.mark.parametrize("mode_ctx", MODES, indirect=True)
def test_epilogues_follow_the_product(mode_ctx: pblas.Context) -> None:
    """Expressions with operands, applied after the bias."""
    spread, ctx = SPREAD["reduce_scatter"](), mode_ctx
    x, w, residual = matrices(np.float64)
    bias, weight, s = np.arange(1.0, O + 1), np.linspace(1, 2, O), 0.5
    z = x @ w.T + bias
    options: dict[str, Any] = {"features": I, "ctx": ctx}
    x_, w_ = np.ascontiguousarray(x[spread["x"]]), np.ascontiguousarray(w[spread["w"]])
    for epilogue in (
        Epilogue("silu(x) * s + r", s=s, r=residual[spread["y"]]),
        Epilogue("tanh(x + bias)", bias=weight),
    ):
        y = tp.linear_reduce_scatter(x_, w_, bias, epilogue, **options)
        assert epilogue.tree is not None
        whole = {"s": s, "r": residual, "bias": weight}
        assert np.allclose(y, evaluate(epilogue.tree, z, whole)[spread["y"]], rtol=1e-12, atol=1e-12)
    passing = np.zeros_like(y)
    tp.linear_reduce_scatter(x_, w_, bias, Epilogue("x + passing", passing=passing), **options)
    followed = weakref.ref(passing)
    del passing
    assert followed() is None, "a plan that is kept for the next call keeps no operands"


@pytest.mark.mpi(min_size=2)  # nothing is added up on one rank
@pytest.mark.parametrize("step", ["collective_run.fold", "collective_run.Gathering.run"])
def test_an_error_in_a_layer_names_the_layer(step: str) -> None:
    """Also if the error is raised by the collective with which the layer begins or ends."""
    adding = tp.linear_allreduce, tp.linear_reduce_scatter
    for function in adding if step == "collective_run.fold" else (tp.allgather_linear,):
        with pblas.Context(transport="shared") as ctx:
            layer: Any = partial(function, np.ones((P, 3)), np.ones((4, 3)), ctx=ctx)
            text = check_broken_half_way(layer, f"pblas.collectives.{step}")
            assert f"{function.__name__}: KeyboardInterrupt" in text


@pytest.mark.parametrize("setting", SETTINGS)
def test_an_all_reduce_after_the_product_is_the_same_layer(
    contexts: Contexts, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few tokens each rank multiplies alone, and the epilogue is fused into the all-reduce where possible."""
    ctx, K = contexts[setting], 2 * P
    x, w, bias, h = (entries(shape, np.dtype(float), i) for i, shape in enumerate([(T, K), (O, K), (1, O), (T, O)]))
    x_, w_ = (np.ascontiguousarray(z[:, own_slice(K)]) for z in (x, w))
    seen: list[Any] = []

    def results() -> list[Array]:
        aux, residual = np.zeros((2, T, O)), h.copy()
        norm = Epilogue("rmsnorm", weight=bias[0], residual=residual)
        call = partial(tp.linear_allreduce, x_, w_, ctx=ctx)
        plain = [call(), call(bias[0]), call(bias[0], "silu"), call(bias[0], norm), call(None, "swiglu")]
        return [*plain, call(bias[0], "gelu", aux=aux[0]), call(None, "swiglu", aux=aux[1]), aux, residual]

    def noted(x: Array, out: Array, *, epilogue: Any, stream: Any) -> Array:
        seen.append(epilogue and epilogue.expression)
        return pblas.Context.allreduce(ctx, x, out, epilogue=epilogue, stream=stream)

    def noted_here(*arguments: Any) -> Sum:
        seen.append(arguments[4] and arguments[4].expression)
        return Sum(*arguments)

    monkeypatch.setattr("pblas.tp.products.Caller.repeat", lambda *_: None)
    monkeypatch.setattr("pblas.tp.products.Caller.is_apart", lambda *_: False)
    expected = results()
    monkeypatch.setattr("pblas.tp.products.Caller.is_apart", lambda *_: True)
    monkeypatch.setattr(ctx, "allreduce", noted)
    monkeypatch.setattr("pblas.tp.products.Sum", noted_here)
    for result, exact in zip(results(), expected, strict=True):
        assert np.allclose(result, exact, rtol=1e-12, atol=1e-12)
    expected_seen = [None, "x + bias", "silu((x + bias))", "x + bias", None, "x + bias", None]
    assert seen == (expected_seen if P > 1 or setting == "push" else [])


def cancelling() -> tuple[Array, Array, Array]:
    """A (T x 2P) and B (2P x O) of bfloat16, and A B; rank r has columns 2r and 2r + 1 of A, and these rows of B.

    Its partial product is s + 2^-10 times powers of two, with s = 1, or 1 - P on rank 0: In 16 bits it is
    rounded to s times these powers. The sum, P 2^-10 times the powers, has no rounding error in 16 bits.
    """
    rows, columns = 2.0 ** (np.arange(T) % 3), 2.0 ** -(np.arange(O) % 4)
    terms = np.full((P, 2), (1.0, 2.0**-10))
    terms[0, 0] = 1 - P
    a, b = np.outer(rows, terms), np.outer(np.ones(2 * P), columns)
    return a.astype(dtype_of("bfloat16")), b.astype(dtype_of("bfloat16")), a @ b


@pytest.mark.mpi(min_size=2)  # nothing travels on one rank
@pytest.mark.parametrize(("kind", "setting"), [*itertools.product(LAYERS, SETTINGS), ("allreduce", "push, apart")])
def test_partial_products_that_travel_in_32_bits_are_not_rounded(
    contexts: Contexts, kind: Any, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one that is loses 2^-10 times powers of two, and at least one of two ranks' is; of y, or a gather's dx."""
    setting, _, apart = setting.partition(", ")
    if apart:  # as with few tokens, where a collective would add products in their own dtype
        monkeypatch.setattr("pblas.tp.products.Caller.is_apart", lambda *_: True)
        monkeypatch.setattr("pblas.tp.products.Caller.repeat", lambda *_: None)
    ctx, (a, b, exact) = contexts[setting], cancelling()
    a_, b_ = np.ascontiguousarray(a[:, 2 * RANK : 2 * RANK + 2]), b[2 * RANK : 2 * RANK + 2]
    gathers = kind == "allgather"
    weight, tokens = (b_, {"tokens": T}) if gathers else (np.ascontiguousarray(b_.T), {})
    x, needs = np.zeros_like(exact[own_slice(T)], a.dtype), (True, False, False)

    def results(**options: Any) -> list[Any]:
        layer = tp.Linear(weight, kind, max_tokens=T, ctx=ctx, **options)
        options |= tokens | {"ctx": ctx}
        if gathers:
            of_function = tp.allgather_linear_backward(a_, x, weight, needs=needs, **options)
            return [of_function.x, layer.backward(a_, x, needs=needs, **tokens).x]
        return [forward(kind)(a_, weight, **options), layer(a_)]

    rows = WHOLE if kind == "allreduce" else own_slice(T)
    lost = (exact / P)[rows]
    sums = results(wire_dtype="float32"), results(), results(wire_dtype="bfloat16")
    for wide, narrow, same in zip(*sums, strict=True):
        assert np.array_equal(wide.astype(float), exact[rows])
        assert (exact[rows] - narrow.astype(float) >= lost).all()
        assert narrow.tobytes() == same.tobytes()


@pytest.mark.parametrize("mode_ctx", MODES, indirect=True)
@pytest.mark.parametrize("kind", LAYERS)
def test_wire_dtype_changes_nothing_where_nothing_is_added(mode_ctx: pblas.Context, kind: str) -> None:
    spread, dtype = SPREAD[kind](), dtype_of("bfloat16")
    x, w, dy = (np.ascontiguousarray(z[spread[key]]) for key, z in zip("xwy", matrices(dtype), strict=True))
    options = COUNTS[kind] | {"ctx": mode_ctx}

    def results(wire_dtype: Any) -> list[Array]:
        gradients = backward(kind)(dy, x, w, wire_dtype=wire_dtype, **options)
        gathered = forward(kind)(x, w, wire_dtype=wire_dtype, **options) if kind == "allgather" else gradients.x
        return [gathered, gradients.weight, gradients.bias]

    for wide, plain in zip(results("float32"), results(None), strict=True):
        assert wide.tobytes() == plain.tobytes()


@pytest.mark.parametrize("setting", ["shared", "push"])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_wire_dtype_that_does_not_fit_is_refused_on_every_rank(contexts: Contexts, kind: Any, setting: str) -> None:
    """The error is that of pmatmul; a layer raises it in its first call, also if only one rank is wrong."""
    spread, ctx = SPREAD[kind](), contexts[setting]
    options = COUNTS[kind] | {"ctx": ctx}
    for name, wires in (("bfloat16", ("float64", "float16")), ("float32", ("float64",)), ("float64", ("float32",))):
        x, w, dy = (
            np.ascontiguousarray(z[spread[key]]) for key, z in zip("xwy", matrices(dtype_of(name)), strict=True)
        )
        for wire, wrong in itertools.product((*wires, "f4,,", np.ones(3)), [frozenset(range(P)), *some_wrong()]):
            if setting == "push" and len(wrong) < P:  # without an agreement the others have begun
                continue
            wire_options: dict[str, Any] = {"wire_dtype": wire if RANK in wrong else None}
            text = f"wire_dtype must be None or {name}"
            layer = tp.Linear(w, kind, features=COUNTS[kind].get("features"), ctx=ctx, **wire_options)
            tokens: dict[str, Any] = {"tokens": T} if kind == "allgather" else {}
            for call in (
                partial(forward(kind), x, w, **options, **wire_options),
                partial(backward(kind), dy, x, w, **options, **wire_options),
                partial(layer, x, **tokens),
                partial(layer.backward, dy, x, **tokens),
            ):
                raises_on_all_ranks(errors.DTypeError, text, call)
    x, w = (z.astype(dtype_of("bfloat16")) for z in (x, np.vstack([w, w])))  # sizes that no test has planned
    for wrong in some_wrong():
        call = partial(forward(kind), x, w, wire_dtype="float32" if RANK in wrong else None, **options)
        raises_on_all_ranks(errors.MismatchError, "wire_dtype differs between ranks", call)


def test_a_result_belongs_to_the_library_of_x(contexts: Contexts) -> None:
    spread, ctx = SPREAD["allgather"](), contexts["shared"]
    x, w, _ = matrices(np.float64)
    x_, w_ = (Foreign(np.ascontiguousarray(z[spread[k]])) for k, z in (("x", x), ("w", w)))
    y = tp.allgather_linear(x_, w_, tokens=T, ctx=ctx)
    assert isinstance(y, Foreign)
    assert np.allclose(y.x, (x @ w.T)[spread["y"]])
    out = np.zeros(y.shape)
    assert tp.allgather_linear(x_, w_, out=out, tokens=T, ctx=ctx) is out
    assert np.array_equal(out, y.x)


@pytest.mark.torch
@pytest.mark.parametrize("mode_ctx", MODES, indirect=True)
@pytest.mark.parametrize("name", ["float64", "bfloat16"])
@pytest.mark.parametrize("kind", LAYERS)
def test_tensors_have_the_values_and_gradients_of_torchs_own_layer(
    mode_ctx: pblas.Context, kind: str, name: str
) -> None:
    """Also with padded rows; a tensor that requires a gradient, or has integers, is refused on every rank."""
    torch: Any = import_module("torch")
    spread, options = SPREAD[kind](), COUNTS[kind] | {"ctx": mode_ctx}
    x, w, dy = (torch.from_numpy(z).to(getattr(torch, name)) for z in matrices(np.float64))
    bias = torch.linspace(-1, 1, O).to(x.dtype)
    wide = [z.clone().double().requires_grad_() for z in (x, w, bias)]
    z = torch.nn.functional.linear(*wide)
    expected = torch.nn.functional.gelu(z)
    expected.backward(dy.double())
    x_, w_, dy_, bias_ = x[spread["x"]], w[spread["w"]].clone(), dy[spread["y"]], bias[spread["y"][1]]
    aux, dweight = torch.empty_like(dy_), torch.ones_like(w_)
    y = forward(kind)(x_, w_, bias_, "gelu", aux=aux, **options)
    results = backward(kind)(dy_, x_, w_, "gelu", aux=aux, dweight=dweight, **options)
    assert results.weight is dweight
    arrays = [y, aux, results.x, results.weight - 1, results.bias]
    exact = (
        expected[spread["y"]],
        z[spread["y"]],
        *(tensor.grad[place] for tensor, place in zip(wide, (spread["x"], spread["w"], spread["y"][1]), strict=True)),
    )
    for own_rows, whole in zip(arrays, exact, strict=True):
        assert own_rows.dtype == x.dtype
        close(own_rows.double().numpy(), whole.detach().numpy(), dtype_of(name))
    refused = partial(forward(kind), x_.requires_grad_(), w_, **options)
    raises_on_all_ranks(errors.ArgumentError, "the tensor requires a gradient", refused)
    with torch.no_grad():
        plain = forward(kind)(x_, w_, bias_, **options)
        close(plain.double().numpy(), z[spread["y"]].detach().numpy(), dtype_of(name))
        raises_on_all_ranks(
            errors.DTypeError, "or a tensor with .double()", partial(refused.func, x_.int(), w_, **options)
        )


@pytest.mark.parametrize("mode_ctx", ["shared", "shared, planned", "push"], indirect=True)
def test_a_call_whose_sizes_were_seen_plans_nothing(mode_ctx: pblas.Context, monkeypatch: Any) -> None:
    """A layer also refuses more tokens than it has memory for, and allocates nothing for fewer."""
    ctx, is_pushed = mode_ctx, mode_ctx.runtime.backend.push
    w = entries((2 * O, O // P), np.dtype(float), 1)
    layer = tp.Linear(w, "reduce_scatter", None, "silu", max_tokens=64, ctx=ctx)
    reserved = engine_memory(ctx.runtime)
    assert all(workspace is not None for workspace, *_ in reserved) or P == 1
    assert bool(reserved) == is_pushed
    for tokens in (64, 5, 1):
        x = entries((tokens, O // P), np.dtype(float), tokens)
        layer(x)
    assert list(map(id, sum(engine_memory(ctx.runtime), ()))) == list(map(id, sum(reserved, ())))
    monkeypatch.setattr("pblas.tp.products.plan_matmul", None)
    for tokens in (5, 64, 1):
        x = entries((tokens, O // P), np.dtype(float), tokens + RANK)
        total = COMM.allreduce(x @ w.T)
        assert np.allclose(layer(x), evaluate(parse(NAMED["silu"]), total, {})[own_slice(tokens)])
    with pytest.raises(errors.ArgumentError, match="65 tokens are more than max_tokens=64; make the layer for as many"):
        layer(np.zeros((65, O // P)))


def engine_memory(runtime: Any) -> list[tuple[Any, ...]]:
    """Workspaces and scratch of the engines of a context; only ranks that push have one."""
    return [
        (*map(engine._workspaces.get, (2, 1)), getattr(engine, "_scratch", None))
        for engine in runtime.backend.engines()
    ]


def blocks(runtime: Any) -> list[int]:
    """The memory that a context has allocated besides operands."""
    memory = runtime.staging, *sum(engine_memory(runtime), ())
    return [id(block) for block in (*memory, *runtime.workspace_pool.held.values())]


@pytest.mark.mpi(min_size=2)  # nothing travels on one rank
@pytest.mark.parametrize("setting", MODES)
@pytest.mark.parametrize("kind", LAYERS)
def test_a_trained_layer_reserves_the_memory_of_its_gradients(
    kind: Any, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Added to others or not; a layer that is not takes no more."""
    transport, _, planned = setting.partition(", ")
    if planned:
        monkeypatch.setattr("pblas.tp.products.Caller.is_apart", lambda *_: False)
    w, most = np.ones((8 * P, 2)), 32 * P
    reserved = {}
    for training in (False, True):
        with open_context(transport) as ctx:
            runtime: Any = ctx.runtime
            layer = tp.Linear(w, kind, np.ones(8 * P), "gelu", max_tokens=most, training=training, ctx=ctx)
            before = blocks(runtime)
            reserved[training] = sum(block.nbytes for block in runtime.workspace_pool.held.values())
            if not training:
                continue
            x = np.ones((most // P if kind == "allgather" else most, 2))
            aux = np.ones((most // P if kind == "reduce_scatter" else most, 8 * P))
            y = layer(x, aux=aux)
            for dweight in (None, np.zeros_like(w)):
                layer.backward(y, x, aux=aux, dweight=dweight)
            assert blocks(runtime) == before
    assert reserved[False] <= reserved[True]


@pytest.mark.parametrize("mode_ctx", ["shared, planned", "message, planned"], indirect=True)
@pytest.mark.parametrize("kind", LAYERS)
def test_plans_for_other_numbers_of_tokens_take_no_memory_of_their_own(mode_ctx: pblas.Context, kind: Any) -> None:
    """They allocate none for messages, and none for sums that are rounded later."""
    wide, narrow = 128 * P, 32
    w = np.ones((wide // P if kind == "allgather" else wide, narrow), np.float16)
    layer, counts = tp.Linear(w, kind, ctx=mode_ctx), range(500 * P, 509 * P, P)

    def step(tokens: int) -> None:
        x = np.ones((tokens // P if kind == "allgather" else tokens, narrow), np.float16)
        layer.backward(layer(x), x, needs=(True, True, False))

    warm = 5  # one of the first plans finds the memory too small and doubles it
    for tokens in counts[:warm]:
        step(tokens)
    gc.collect()
    tracemalloc.start()
    try:
        for tokens in counts[warm:]:
            step(tokens)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < (len(counts) - warm) * 120_000, "less than any rank's part of y"


@pytest.mark.parametrize("mode_ctx", ["shared, planned"], indirect=True)
def test_plans_of_many_numbers_of_tokens_are_kept(mode_ctx: pblas.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    make: Any = partial(
        tp.Linear, np.ones((5, 7)), ctx=mode_ctx
    )  # sizes that no other test has, as plans outlive this one
    layers = [make(kind=kind) for kind in LAYERS]
    for again in (False, True):
        if again:
            monkeypatch.setattr("pblas.tp.products.plan_matmul", None)
        for tokens, layer in itertools.product(range(1, 41), layers):
            x = np.full((tokens, 7), tokens)
            assert (layer(x.astype(float)) == 7 * tokens * (1 if layer.kind == "allgather" else P)).all()


@pytest.mark.parametrize("mode_ctx", ["shared", "shared, planned", "message", "message, planned"], indirect=True)
@pytest.mark.parametrize("name", ["float64", "float16"])
@pytest.mark.parametrize("kind", LAYERS)
def test_fewer_tokens_multiply_in_the_memory_of_the_largest_plan(
    mode_ctx: pblas.Context, kind: Any, name: str, request: pytest.FixtureRequest
) -> None:
    """Forwards and backwards, in any order of sizes; earlier contents do not matter."""
    ctx, dtype, setting = mode_ctx, dtype_of(name), request.node.callspec.params["mode_ctx"]
    w = entries((2 * P, 3), dtype, 1)
    whole = w if kind == "allgather" else np.hstack([w] * P)
    layer = tp.Linear(w, kind, max_tokens=8 * P, ctx=ctx)

    def step(tokens: int) -> None:
        x, dy = (entries((tokens, n), dtype, tokens + n) for n in (whole.shape[1], 2 * P))
        total = x.astype(float) @ whole.T.astype(float)
        rows: dict[str, Any] = {"tokens": tokens} if kind == "allgather" else {}
        x_ = x[own_slice(tokens)] if kind == "allgather" else np.ascontiguousarray(x[:, 3 * RANK : 3 * RANK + 3])
        own = own_slice(tokens) if kind == "reduce_scatter" else WHOLE
        y = layer(x_, **rows)
        assert np.allclose(y.astype(float), total[own], rtol=0, atol=32 * eps_of(dtype) * np.abs(total).max(initial=1))
        layer.backward(np.ascontiguousarray(dy[own]), x_, **rows)

    staging = ctx.runtime.staging
    assert staging is not None or P == 1 or "planned" in setting
    step(8 * P)
    held = dict(ctx.runtime.workspace_pool.held)
    assert held or P == 1 or "planned" not in setting or (kind == "allreduce" and setting == "shared, planned")
    for tokens in (5, 8 * P, 1, 7, P, 5):
        step(tokens)
        assert all(ctx.runtime.workspace_pool.held[key] is block for key, block in held.items())
        assert ctx.runtime.workspace_pool.held.keys() == held.keys()
        assert ctx.runtime.staging is staging


@pytest.mark.parametrize("mode_ctx", ["shared", "shared, planned", "push"], indirect=True)
def test_arguments_that_do_not_fit_are_refused_on_every_rank(mode_ctx: pblas.Context) -> None:
    ctx = mode_ctx
    x, w, bias = np.zeros((3, 4)), np.zeros((2, 4)), np.zeros(2)

    def refused(kind: type[Exception], text: str, *arrays: Any, **options: Any) -> None:
        raises_on_all_ranks(kind, text, partial(tp.allgather_linear, *arrays, **options, ctx=ctx))

    refused(errors.ArgumentError, "features in; make them agree", x, w[:, :3])
    refused(errors.ArgumentError, "x must have 2 dimensions", x[0], w)
    refused(errors.ArgumentError, "tf32 must be True or False, got array", x, w, tf32=np.ones(3))
    refused(errors.ArgumentError, "tf32 must be True or False, got 'no'", x, w, tf32="no")
    refused(errors.ArgumentError, "no list can be made of a result", x.tolist(), w)
    refused(errors.LayoutError, "tokens is 6.0, a float; expected an integer >= 0; found on rank 0", x, w, tokens=6.0)
    for many in (1 << 50, 1 << 100):
        raises_on_all_ranks(
            errors.WorkspaceError, "no memory", partial(tp.Linear, w, "allreduce", max_tokens=many, ctx=ctx)
        )
    refused(errors.ArgumentError, "must be stored by rows", x, np.zeros((4, 2)).T)
    refused(errors.DTypeError, "weight is float32", x, w.astype(np.float32))
    refused(errors.DTypeError, "x: dtype must be one of", x.astype(int), w)
    for odd in (2.0, np.float64(2.0), np.array(2.0), np.zeros((2, 1)), np.zeros((3 * P, 2)), np.zeros(3), [0.0, 0.0]):
        refused(errors.ArgumentError, "allgather_linear: bias must be an array of shape (2,) on rank 0", x, w, odd)
    refused(errors.ArgumentError, "'x * s': s must be a number or", x, w, None, Epilogue("x * s", s=np.array(2.0)))
    refused(errors.ArgumentError, "there is no operand gate", x, w, bias, Epilogue("swiglu"))
    refused(
        errors.ArgumentError,
        "needs pairs of columns, gate and up; the product has 3",
        x,
        np.zeros((3, 4)),
        None,
        "swiglu",
    )
    refused(errors.ArgumentError, "leave it out", x, w, aux=np.zeros((3 * P, 2)))
    refused(errors.ArgumentError, "out is 1 x 1", x, w, out=np.zeros((1, 1)))
    if P > 1:
        refused(errors.ArgumentError, "it may follow linear_reduce_scatter", x, w, None, "rmsnorm")
    call = partial(tp.allgather_linear_backward, np.zeros((3 * P, 2)), x, w, ctx=ctx)
    raises_on_all_ranks(errors.ArgumentError, "gradients are known of", partial(call, "x * 2"))
    raises_on_all_ranks(errors.ArgumentError, "needs aux", partial(call, "gelu"))
    for wrong in [] if ctx.runtime.backend.push else some_wrong()[:1]:  # without an agreement the others have begun
        refused(errors.ArgumentError, "which must have 3 x 4", np.zeros((3 + (RANK in wrong), 4)), w, tokens=3 * P)
        refused(errors.MismatchError, "tokens differs between ranks", np.zeros((3 + (RANK in wrong), 4)), w)
        refused(errors.MismatchError, "linear: tf32 differs between ranks", x, w, tf32=RANK in wrong)
        refused(errors.MismatchError, "linear: bias is given differs", x, w, bias if RANK in wrong else None)
        factor = Epilogue("x * s", s=1.0 + (RANK in wrong))
        refused(errors.MismatchError, "linear: epilogue's s differs between ranks", x, w, None, factor)
        needs = RANK in wrong, RANK not in wrong, False
        refused_: Any = partial(call, needs=needs)
        raises_on_all_ranks(errors.MismatchError, "linear_backward: needs differs between ranks", refused_)
        kind = np.float32 if RANK in wrong else np.float64
        refused(errors.MismatchError, "linear: dtype differs between ranks", x.astype(kind), w.astype(kind))
        odd = int(RANK in wrong)
        differing = (
            ("tokens differs", {"x": np.zeros((3 + odd, 4))}),
            ("features in differs", {"x": x[:, odd:], "weight": w[:, odd:]}),
            ("features out differs", {"weight": np.zeros((2 + odd, 4))}),
            ("dtype differs", {"x": x.astype(kind), "weight": w.astype(kind)}),
            ("tf32 differs", {"tf32": bool(odd)}),
        )
        for text, changed in differing:
            summed: Any = partial(tp.linear_allreduce, **({"x": x, "weight": w} | changed), ctx=ctx)
            raises_on_all_ranks(errors.MismatchError, f"linear_allreduce: {text} between ranks", summed)
        other = partial(tp.linear_reduce_scatter if odd else tp.linear_allreduce, x, w, ctx=ctx)
        raises_on_all_ranks(errors.MismatchError, "ranks made different calls: linear_", other)
    layers: tuple[Any, ...] = (tp.allgather_linear, tp.linear_reduce_scatter, tp.linear_allreduce)
    for layer in layers:
        refused = partial(layer, x, w, stream=0, ctx=ctx)
        raises_on_all_ranks(errors.ArgumentError, f"{layer.__name__}: stream is for ", refused)
    assert tp.allgather_linear(x, w, ctx=ctx).shape == (3 * P, 2)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("mode_ctx", ["shared", "shared, planned", "message, planned"], indirect=True)
@pytest.mark.parametrize("kind", LAYERS)
def test_differences_between_ranks_are_named_for_known_plans(mode_ctx: pblas.Context, kind: str) -> None:
    """The error uses the layer's names: all ranks know two plans, and one rank makes the other call."""
    spread, name = SPREAD[kind](), forward(kind).__name__
    x, w, dy = matrices(np.float64)
    x_, w_, dy_ = (np.ascontiguousarray(value[spread[key]]) for key, value in (("x", x), ("w", w), ("y", dy)))
    few, few_dy = (z[:1] if spread[key][0] == own_slice(T) else z[:P] for key, z in (("x", x_), ("y", dy_)))
    tokens = {"tokens": P} if kind == "allgather" else {}
    bias, aux, dweight = np.ones(w_.shape[0]), np.zeros_like(dy_), np.zeros_like(w_)
    layer, gradient = (partial(value, **COUNTS[kind], ctx=mode_ctx) for value in (forward(kind), backward(kind)))
    by_s = [partial(layer, x_, w_, None, Epilogue("x * s", s=s)) for s in (2.0, 3.0)]
    kept = [partial(value, aux=aux) for value in by_s]
    cases: list[tuple[str, Any, Any]] = [
        ("epilogue's s", by_s[0], by_s[1]),
        ("epilogue's s", kept[0], kept[1]),
        ("aux is given", by_s[0], kept[0]),
        ("bias is given", partial(layer, x_, w_), partial(layer, x_, w_, bias)),
        ("epilogue", partial(layer, x_, w_, None, "relu"), partial(layer, x_, w_, None, "silu")),
        ("epilogue", partial(layer, x_, w_, None, None), partial(layer, x_, w_, None, "swiglu")),
        ("tokens", partial(layer, x_, w_), partial(layer, few, w_, **tokens)),
        ("dweight is given", partial(gradient, dy_, x_, w_), partial(gradient, dy_, x_, w_, dweight=dweight)),
        ("tokens", partial(gradient, dy_, x_, w_), partial(gradient, few_dy, few, w_, **tokens)),
    ]
    several = [(True, False, False), (False, True, False), (False, False, True), (False, False, False)]
    needs = [partial(gradient, dy_, x_, w_, needs=value) for value in several]
    cases += [("needs", first, second) for first, second in itertools.permutations(needs, 2)]
    for text, *calls in cases:
        for call in calls:
            call()
        operation = name if calls[0].func is forward(kind) else f"{name}_backward"
        raises_on_all_ranks(errors.MismatchError, f"{operation}: {text} differs between ranks: ", calls[RANK == P - 1])
    close(layer(x_, w_), (x @ w.T)[spread["y"]], np.float64)


@pytest.mark.mpi(min_size=2)
def test_tokens_that_are_not_cut_are_equal_on_all_ranks(contexts: Contexts) -> None:
    x, w, _ = matrices(np.float64)
    x[0, 0] += RANK == P - 1
    call = partial(tp.replicated_linear, x, w[own_slice(O)], features=O, ctx=contexts["shared"])
    raises_on_all_ranks(errors.MismatchError, "replicated_linear: the array x differs between ranks", call)


@pytest.mark.parametrize("kind", ["reduce_scatter", "allreduce"])
def test_a_layer_that_reserves_memory_stores_no_sums(contexts: Contexts, kind: Any) -> None:
    """The reservation stores no sums in the residual, and an epilogue that does not read x does not take the bias."""
    ctx, w, bias = contexts["shared"], np.ones((O, I)), np.arange(1.0, O + 1)
    residual = np.ones((4 * P, O))[own_slice(4 * P) if kind == "reduce_scatter" else WHOLE]
    layer = tp.Linear(w, kind, bias, Epilogue("rmsnorm", residual=residual), max_tokens=4 * P, ctx=ctx)
    assert (residual == 1).all()
    layer(np.ones((4 * P, I)))
    assert (residual == 1 + I * P + bias).all()
    assert (tp.linear_allreduce(np.ones((4, I)), w, bias, Epilogue("s", s=2.0), ctx=ctx) == 2).all()


@pytest.mark.parametrize("setting", ["shared", "push"])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_with_reserved_memory_takes_fewer_tokens(contexts: Contexts, kind: Any, setting: str) -> None:
    """A residual of each call's own; the one that the layer was made with says its dtype, and is left alone."""
    ctx, w, first, most = contexts[setting], entries((O, 3), np.dtype(float), 1), np.ones((1, O)), 4 * P
    weight, name = np.arange(1.0, O + 1), "x * weight + r" if kind == "allgather" else "rmsnorm"
    operands = {"r" if kind == "allgather" else "residual": first}
    layer = tp.Linear(w, kind, epilogue=Epilogue(name, weight=weight, **operands), max_tokens=most, ctx=ctx)
    whole = w if kind == "allgather" else np.hstack([w] * P)
    for tokens in (most, P, most - 1 if kind != "allgather" else P):
        x, r = entries((tokens, whole.shape[1]), np.dtype(float), 2), entries((tokens, O), np.dtype(float), 3)
        total = x @ whole.T
        x_ = x[own_slice(tokens)] if kind == "allgather" else np.ascontiguousarray(x[:, 3 * RANK : 3 * RANK + 3])
        rows = own_slice(tokens) if kind == "reduce_scatter" else WHOLE
        r_ = r[rows].copy()
        y = layer(x_, operands=dict.fromkeys(operands, r_))
        if kind == "allgather":
            assert np.allclose(y, total * weight + r)
            continue
        total += r
        assert np.allclose(r_, total[rows])
        assert np.allclose(y, (total / np.sqrt((total**2).mean(1, keepdims=True) + 1e-6) * weight)[rows])
    assert (first == 1).all()
    call = partial(layer, np.ones((P, 3)))
    raises_on_all_ranks(errors.ArgumentError, "operands must be a dict", partial(call, operands={"s": 1.0}))
    plain = tp.Linear(w, kind, epilogue="relu", ctx=ctx)
    raises_on_all_ranks(errors.ArgumentError, "which has none", partial(plain, np.ones((P, 3)), operands={"s": 1.0}))


def test_an_impossible_layer_is_refused_on_every_rank(contexts: Contexts) -> None:
    """Also if only one rank is wrong; calls that do not fit the layer are refused too."""
    ctx, w = contexts["shared"], np.zeros((2, 3))
    wrong_layers: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (errors.ArgumentError, "kind must be one of", {"kind": "gather"}),
        (errors.LayoutError, "max_tokens is 0", {"max_tokens": 0}),
        (errors.ArgumentError, "training=True reserves memory", {"training": True, "max_tokens": None}),
        (errors.ArgumentError, "training must be True or False", {"training": np.ones(3)}),
        (errors.ArgumentError, "weight must have 2 dimensions, got None", {"weight": None}),
        (errors.ArgumentError, "weight must have 2 dimensions, got shape ()", {"weight": np.zeros(())}),
        (errors.DTypeError, "weight: dtype must be one of", {"weight": w.astype(int)}),
    ]
    for kind, text, arguments in wrong_layers:
        for wrong in [frozenset(range(P)), *some_wrong()]:
            options: dict[str, Any] = {"weight": w, "kind": "allreduce", "max_tokens": 4} | (
                arguments if RANK in wrong else {}
            )
            raises_on_all_ranks(kind, f"Linear: {text}", partial(tp.Linear, ctx=ctx, **options))
    nothing: Any = COMM
    raises_on_all_ranks(
        errors.ArgumentError, "ctx must be None or a pblas.Context", partial(tp.Linear, w, "allreduce", ctx=nothing)
    )
    layer = tp.Linear(w, "allreduce", max_tokens=4, ctx=ctx)
    for wrong in some_wrong():
        call: Any = partial(tp.Linear, w, "allreduce", max_tokens=4, training=RANK in wrong, ctx=ctx)
        raises_on_all_ranks(errors.MismatchError, "Linear: training differs between ranks", call)
        x = np.zeros((5 if RANK in wrong else 4, 3))
        raises_on_all_ranks(errors.ArgumentError, "5 tokens are more than max_tokens=4", partial(layer, x))
    raises_on_all_ranks(errors.ArgumentError, "x must have 2 dimensions", partial(layer, np.zeros(())))
    assert layer(np.zeros((4, 3))).shape == (4, 2)


def test_results_go_to_memory_that_can_be_written_in_place(contexts: Contexts) -> None:
    """A list would be copied, and the result lost."""
    ctx, x, w = contexts["shared"], np.ones((4, 3)), np.ones((2, 3))
    rows: Any = [[0.0, 0.0]] * 4
    call: Any = partial(tp.linear_allreduce, x, w, ctx=ctx)
    raises_on_all_ranks(
        errors.ArgumentError, "out must be an array that can be written in place, got list", partial(call, out=rows)
    )
    raises_on_all_ranks(errors.ArgumentError, "aux must be an array", partial(call, None, "relu", aux=rows))
    out = Foreign(np.zeros((4, 2)))
    assert call(out=out) is out
    assert (out.x == 3 * P).all()


@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_tanh", "silu"])
def test_a_gradient_is_known_however_the_epilogue_is_given(contexts: Contexts, name: str) -> None:
    x, w, dy = matrices(np.float64)
    aux, ctx = np.linspace(-2, 2, T * O).reshape(T, O), contexts["shared"]
    results: list[Any] = [
        tp.linear_allreduce_backward(dy, x, w, epilogue, aux=aux, needs=(False, False, True), ctx=ctx).bias
        for epilogue in (name, NAMED[name], Epilogue(name))
    ]
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


def test_results_that_overlap_operands_or_each_other_are_refused(contexts: Contexts) -> None:
    """The error has the names of the arguments, on any rank: the product would overwrite its operands."""
    x, w, y, aux, both = (np.ones((rows, 4)) for rows in (4, 4, 4, 4, 5))
    layer = partial(tp.linear_allreduce, x, w, ctx=contexts["shared"])
    gradients = partial(tp.linear_allreduce_backward, y, x, w, ctx=contexts["shared"])
    cases: list[tuple[str, Any, dict[str, Any], dict[str, Any]]] = [
        *((f"out overlaps {name}", layer, {"out": z}, {"out": y}) for name, z in (("x", x), ("weight", w))),
        *((f"aux overlaps {name}", layer, {"aux": z}, {"aux": y}) for name, z in (("x", x), ("weight", w))),
        *(
            (f"dweight overlaps {name}", gradients, {"dweight": z}, {"dweight": aux})
            for name, z in (("dy", y), ("x", x))
        ),
        ("f overlaps aux", layer, {"epilogue": Epilogue("x * f", f=aux)}, {"epilogue": Epilogue("x * f", f=y)}),
        ("aux overlaps out", layer, {"out": aux}, {"out": y}),
        ("aux overlaps out", layer, {"aux": both[1:], "out": both[:4]}, {"aux": both[1:], "out": y}),
    ]
    for wrong, (text, call, bad, good) in itertools.product(some_wrong(), cases):
        options = ({"epilogue": "relu", "aux": aux} if "aux" in text else {}) | (bad if RANK in wrong else good)
        text = f"{call.func.__name__}: {text}"  # noqa: PLW2901
        raises_on_all_ranks(errors.ArgumentError, text, partial(call, **options))


@pytest.mark.parametrize("needs", [True, (True, False), (True, np.ones(2), True)])
def test_needs_has_three_entries(contexts: Contexts, needs: Any) -> None:
    backward: Any = partial(tp.linear_allreduce_backward, np.ones((4, O)), np.ones((4, I)), np.ones((O, I)))
    for wrong in some_wrong():
        call = partial(backward, needs=needs if RANK in wrong else (True, True, True), ctx=contexts["shared"])
        raises_on_all_ranks(errors.ArgumentError, "needs must", call)


AGREEMENTS = {"allgather": (1, 2), "reduce_scatter": (1, 1), "allreduce": (1, 1)}
"""Of a layer, and of its gradients, dy being gathered once where it is."""


@pytest.mark.parametrize("setting", ["shared", "message"])
@pytest.mark.parametrize("kind", LAYERS)
def test_few_tokens_agree_once_per_collective_and_plan_nothing(
    contexts: Contexts, kind: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That holds for small messages, forwards and backwards."""
    ctx, spread = contexts[setting], SPREAD[kind]()
    x, w, dy = (np.ascontiguousarray(z[spread[key]]) for key, z in zip("xwy", matrices(np.float64), strict=True))
    options, counted = COUNTS[kind] | {"ctx": ctx}, ctx.runtime.backend.agreement
    calls = partial(forward(kind), x, w, **options), partial(backward(kind), dy, x, w, **options)
    traffic = {"allgather": (T * I, T * I), "reduce_scatter": (T * O, T * O), "allreduce": (T * O, 0)}[kind]
    planned: list[Any] = []
    run_planned = Caller._run_planned
    monkeypatch.setattr(Caller, "repeat", lambda *_: None)

    def counted_run(*arguments: Any) -> None:
        planned.append(arguments)
        run_planned(*arguments)

    forward(kind)(x, w, **options)  # takes the memory of collectives
    for call, agreements, nelements in zip(calls, AGREEMENTS[kind], traffic, strict=True):
        with monkeypatch.context() as patched:
            patched.setattr(Caller, "_run_planned", counted_run)
            patched.setattr("pblas.tp.products.APART_NBYTES", 8 * nelements)
            before, planned[:] = counted.ncalls, []
            call()
            assert counted.ncalls - before == (agreements if P > 1 else 1)
            assert not planned
            patched.setattr("pblas.tp.products.APART_NBYTES", 8 * nelements - 1)
            if P > 1 and nelements:
                call()
                assert planned


@pytest.mark.parametrize("mode_ctx", ["shared", "shared, planned", "message"], indirect=True)
@pytest.mark.parametrize("kind", LAYERS)
def test_operands_may_be_overwritten_after_a_layer_returns(mode_ctx: pblas.Context, kind: str) -> None:
    """For any late rank and any memory of the operands."""
    ctx, spread = mode_ctx, SPREAD[kind]()
    x, w, dy = matrices(np.float64)
    places = {"x": x[spread["x"]].shape, "y": dy[spread["y"]].shape}
    largest = pblas.MatrixDescriptor.replicated(max(T, I, O), max(T, I, O), P, order="C")
    shared = {key: ctx.zeros(largest).local[:m, :n] for key, (m, n) in places.items()}
    w_, options = np.ascontiguousarray(w[spread["w"]]), COUNTS[kind] | {"ctx": ctx}
    for turn, own in itertools.product(range(2 * P), (shared, {key: np.empty(shape) for key, shape in places.items()})):
        own["x"][...], own["y"][...] = x[spread["x"]], dy[spread["y"]]
        if turn % P == RANK:
            time.sleep(0.002)
        y = forward(kind)(own["x"], w_, **options)
        own["x"][...] = np.nan
        close(y, (x @ w.T)[spread["y"]], np.float64)
        own["x"][...] = x[spread["x"]]
        results = backward(kind)(own["y"], own["x"], w_, **options)
        own["x"][...] = own["y"][...] = np.nan
        for value, exact in zip(
            results, ((dy @ w)[spread["x"]], (dy.T @ x)[spread["w"]], dy.sum(0)[spread["y"][1]]), strict=True
        ):
            close(value, exact, np.float64)
    shared.clear()


@pytest.mark.mpi(min_size=2)  # nothing travels on one rank
@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_for_many_tokens_reserves_the_memory_for_few(kind: Any) -> None:
    with pblas.Context(transport="shared") as ctx:
        layer = tp.Linear(np.ones((2 * P, 3)), kind, max_tokens=1 << 17, ctx=ctx)
        held = {id(block) for block in (ctx.runtime.staging, *ctx.runtime.workspace_pool.held.values())}
        assert ctx.runtime.staging is not None
        layer(np.ones((P, 3)))
        assert held == {id(block) for block in (ctx.runtime.staging, *ctx.runtime.workspace_pool.held.values())}


@pytest.mark.parametrize("mode_ctx", ["shared", "shared, planned"], indirect=True)
@pytest.mark.parametrize("kind", LAYERS)
def test_the_dtype_of_out_is_that_of_one_call(mode_ctx: pblas.Context, kind: str) -> None:
    """Calls of the same shapes without and with an array for y, which may have 32 bits."""
    x, w, _ = matrices("bfloat16")
    places = SPREAD[kind]()
    x, w = (np.ascontiguousarray(z[places[name]]) for name, z in (("x", x), ("w", w)))
    for _ in range(2):
        y = forward(kind)(x, w, ctx=mode_ctx, **COUNTS[kind])
        assert y.dtype == x.dtype
        out = np.empty(y.shape, "float32")
        assert forward(kind)(x, w, out=out, ctx=mode_ctx, **COUNTS[kind]) is out
        close(out, y.astype(float), "bfloat16")


@pytest.mark.parametrize("mode_ctx", MODES, indirect=True)
@pytest.mark.parametrize("kind", LAYERS)
def test_calls_with_the_same_arrays_check_nothing_and_read_their_new_elements(
    mode_ctx: pblas.Context, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the plans are closed, and only if all options are the same."""
    spread, options, checked = SPREAD[kind](), COUNTS[kind] | {"ctx": mode_ctx}, list[str]()
    x, w, dy = (np.ascontiguousarray(z[spread[key]]) for key, z in zip("xwy", matrices(np.float64), strict=True))
    operands, y, aux, dw = Caller.operands, np.empty_like(dy), np.empty_like(dy), np.zeros_like(w)
    bias = entries((1, len(w)), np.dtype(float), 3)[0]

    def noted(caller: Caller, *arguments: Any, **named: Any) -> Any:
        checked.append(caller.opname)
        return operands(caller, *arguments, **named)

    def results(x: Array, **outs: Array) -> list[Array]:
        dw[...] = 0
        with_bias = forward(kind)(x, w, bias, "silu", aux=aux, **outs, **options)
        gradients = backward(kind)(dy, x, w, needs=(False, True, False), dweight=dw, **options)
        return [z.copy() for z in (with_bias, aux, gradients.weight)]

    monkeypatch.setattr(Caller, "operands", noted)
    results(x, out=y)
    for factor in (1, 2, -1):
        x *= factor
        checked.clear()
        repeated = results(x, out=y)
        assert not checked
        for again, new in zip(repeated, results(x.copy()), strict=True):
            assert np.array_equal(again, new)
    mode_ctx.runtime.close_plans()
    checked.clear()
    for again, before in zip(results(x, out=y), repeated, strict=True):
        assert np.array_equal(again, before)
    assert checked
    wrong = partial(forward(kind), x, w, bias, "silu", aux=aux, out=y, tf32="no", **options)
    raises_on_all_ranks(errors.ArgumentError, "tf32", wrong)


@pytest.mark.parametrize("mode_ctx", MODES, indirect=True)
@pytest.mark.parametrize("kind", LAYERS)
def test_ranks_that_repeat_a_call_use_its_plans_in_the_order_of_the_others(mode_ctx: pblas.Context, kind: str) -> None:
    spread, options = SPREAD[kind](), COUNTS[kind] | {"ctx": mode_ctx}
    x, w, dy = (np.ascontiguousarray(z[spread[key]]) for key, z in zip("xwy", matrices(np.float64), strict=True))
    for copied in [x.copy() for _ in range(4)]:
        own = copied if RANK else x
        forward(kind)(own, w, **options)
        backward(kind)(dy, own, w, **options)
    plans = mode_ctx.runtime.kept._plans.values()
    uses = COMM.allgather([(type(plan).__name__, plan.last_use) for plan in plans])
    assert uses == [uses[0]] * P


@pytest.mark.parametrize("mode_ctx", MODES, indirect=True)
@pytest.mark.parametrize("kind", LAYERS)
def test_calls_that_may_be_repeated_keep_no_arrays_and_return_what_is_needed(
    mode_ctx: pblas.Context, kind: str
) -> None:
    spread, options = SPREAD[kind](), COUNTS[kind] | {"ctx": mode_ctx}
    x, w, dy = (np.ascontiguousarray(z[spread[key]]) for key, z in zip("xwy", matrices(np.float64), strict=True))
    bias, aux, added = entries((1, len(w)), np.dtype(float), 3)[0], np.empty_like(dy), np.ones_like(dy)
    forward(kind)(x, w, bias, Epilogue("x + r", r=added), aux=aux, **options)
    seen = weakref.ref(added)
    del added
    gc.collect()
    assert seen() is None
    dweight = np.zeros_like(w)
    for _ in range(3):
        results = backward(kind)(dy, x, w, needs=(True, False, True), dweight=dweight, **options)
        assert results.weight is None


def test_sums_of_repeated_calls_hold_no_memory_and_follow_the_others_into_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0 repeats a call in memory that was shared, and the others make a new one."""
    firsts: list[Any] = []

    class Noted(Sum):
        def own(self) -> Array:
            array = super().own()
            firsts.append(weakref.ref(array))
            return array

    monkeypatch.setattr("pblas.tp.products.Sum", Noted)
    x, w, out = np.full((4, 3), RANK + 1.0), np.ones((5, 3)), np.empty((4, 5))
    total = 3 * P * (P + 1) / 2
    with open_context() as ctx:
        tp.linear_allreduce(x, w, out=out, ctx=ctx)
        gc.collect()
        assert len(firsts) == int(P > 1)
        assert all(first() is None for first in firsts)
        for is_given_up in (False, True):
            if is_given_up:
                ctx.runtime.give_up_shared_memory()
            for _ in range(2):
                own = x.copy() if RANK else x
                assert np.all(tp.linear_allreduce(own, w, out=out, ctx=ctx) == total)

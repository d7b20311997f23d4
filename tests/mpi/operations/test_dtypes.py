"""Laws of products whose matrices have several dtypes: 8 bits with scales, 16 bits with a float32 result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import MatrixDescriptor, blas, errors, tp
from pblas.backends.dtypes import E4M3, E5M2, FLOAT8, FLOAT32
from pblas.matmul.choose import choose
from pblas.matmul.choose_granularity import PlanningContext
from pblas.simulation.hardware import Topology
from tests.common.gauge import BFLOAT16, THRESHOLD, Array, entries, eps_of
from tests.common.ranks import COMM, culprits, few, open_context, raises_on_all_ranks
from tests.mpi.operations.test_matmul import LAYOUTS, Dimension, descriptor

pytestmark = pytest.mark.mpi

FLOAT16 = np.dtype(np.float16)
KINDS = (
    (E4M3, E4M3, BFLOAT16, BFLOAT16),
    (E4M3, E5M2, FLOAT32, FLOAT16),
    (E5M2, E4M3, FLOAT16, FLOAT16),
    (BFLOAT16, BFLOAT16, FLOAT32, BFLOAT16),
    (FLOAT16, FLOAT16, FLOAT32, FLOAT32),
    (E4M3, E4M3, FLOAT32, FLOAT32),
)
"""dtypes of A, B, D and C."""
SIZES = ((33, 27, 41), (32, 64, 48), (7, 9, 16))
SHORT_EPS = 2.0**-13
"""Precision in which Hopper's tensor cores add products of 8 bits."""


@pytest.fixture(scope="module")
def contexts() -> Iterator[dict[str, pblas.Context]]:
    with open_context() as shared, open_context("message") as message, open_context("push") as push:
        yield {"shared": shared, "message": message, "push": push}


@pytest.fixture(scope="module")
def ctx(contexts: dict[str, pblas.Context]) -> pblas.Context:
    return contexts["shared"]


def scalar(ctx: pblas.Context, value: float) -> Any:
    """An array of one float32 in the memory of the matrices."""
    x = ctx.runtime.backend.new((1,), FLOAT32)
    with ctx.runtime.backend.writing(x.reshape(1, 1)) as host:
        host[...] = value
    return x


def number(ctx: pblas.Context, x: Any) -> float:
    """The element of such an array."""
    return float(ctx.runtime.backend.reading(x.reshape(1, 1))[0, 0])


def placed(ctx: pblas.Context, x: Array, kind: str, order: str) -> pblas.DistMatrix:
    desc, _ = descriptor(kind, Dimension(x.shape[0]), Dimension(x.shape[1]), order, ctx.nprocs)  # type: ignore[arg-type]
    return ctx.from_global(x, desc)


def whole(x: pblas.DistMatrix) -> Array:
    result: Any = x.to_global(root=None)
    return result


def wide(x: Array) -> Array:
    return x.astype(np.float64)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_are_those_of_float64(contexts: dict[str, pblas.Context], layout: str) -> None:
    """Of the quantized operands; dtypes, orders, scales, epilogues and wires in turn, others for each transport."""
    for turn, ctx in enumerate(contexts.values(), 5 * list(LAYOUTS).index(layout)):
        a_dtype, b_dtype, d_dtype, c_dtype = KINDS[turn % len(KINDS)]
        (m, n, k), orders = SIZES[turn % 3], ("CFC", "FFF", "CFF", "FCC", "CCC")[turn % 5]
        alpha, beta = ((1.0, 0.0), (2.0, 0.5), (-0.5, 1.0), (0.0, 1.0))[turn % 4]
        kinds = LAYOUTS[layout]
        a, b, c = entries((m, k), a_dtype, turn), entries((k, n), b_dtype, turn + 1), entries((m, n), c_dtype, turn + 2)
        x, y = (placed(ctx, z, kind, order) for z, kind, order in zip((a, b), kinds, orders, strict=False))
        z = placed(ctx, c, kinds[2], orders[2]) if beta else None
        scales: dict[str, Any] = {}
        factor = scale_d = 1.0
        amax = scalar(ctx, -1.0)
        if a_dtype in FLOAT8:
            factor, scale_d = 0.25 * 3.0, 0.5
            scales = {"scale_a": 0.25, "scale_b": scalar(ctx, 3.0), "scale_d": scalar(ctx, 0.5), "amax": amax}
        options: dict[str, Any] = {"alpha": alpha, "beta": beta, "epilogue": (None, "relu(x)")[turn % 2]}
        options["wire_dtype"] = (None, "float32")[turn % 2]
        options["out"] = placed(ctx, entries((m, n), d_dtype, turn), kinds[2], orders[2])
        with pblas.plan_matmul(x, y, z, **options, **scales) as planned:
            result = [planned.execute(x, y, z, out=options["out"]) for _ in range(2)][-1]
            d = whole(result)
        exact = scale_d * (alpha * factor * (wide(a) @ wide(b)) + beta * wide(c))
        size = scale_d * (abs(alpha * factor) * (abs(wide(a)) @ abs(wide(b))) + abs(beta) * abs(wide(c)))
        if options["epilogue"]:
            exact = np.maximum(exact, 0)
        eps = eps_of(d_dtype)
        if a_dtype in FLOAT8 and ctx.runtime.backend.gpus:
            eps = max(eps, SHORT_EPS)
        assert result.dtype == d_dtype
        error = np.abs(wide(d) - exact)
        assert (error <= THRESHOLD * eps * size).all(), (a_dtype, b_dtype, d_dtype, (error / size).max() / eps)
        if scales:
            local = ctx.runtime.backend.reading(result.local)
            assert number(ctx, amax) == (np.abs(wide(local)).max() if local.size else 0.0)


def test_all_gathers_move_8_bits_and_reductions_16() -> None:
    """A plan's bytes are those of the dtype that travels."""
    rows, columns = MatrixDescriptor.row_wise(64, 64, 4), MatrixDescriptor.column_wise(64, 64, 4)
    gathered = {name: pblas.plan_matmul(rows, rows, out=rows, dtype=name) for name in ("bfloat16", "float8_e4m3fn")}
    assert gathered["bfloat16"].plan.max_received_nbytes == 2 * gathered["float8_e4m3fn"].plan.max_received_nbytes
    assert "float8_e4m3fn -> bfloat16" in gathered["float8_e4m3fn"].explain()
    reduced = {
        wire: pblas.plan_matmul(columns, rows, out=rows, dtype=E4M3, out_dtype="float16", wire_dtype=wire).plan
        for wire in ("float16", None, "float32")
    }
    count = 3 * 64 * 16
    assert [plan.max_received_nbytes for plan in reduced.values()] == [2 * count, 4 * count, 4 * count]
    narrow = pblas.plan_matmul(columns, rows, out=rows, dtype="bfloat16").plan
    assert narrow.max_received_nbytes == 2 * count
    mixed = pblas.plan_matmul(columns, rows, out=rows, dtype="bfloat16", out_dtype="float32").plan
    assert mixed.max_received_nbytes == 4 * count
    gpus = Topology(4, push=True, gpus=True)
    cases: Any = ((64, "CF", ""), (64, "FF", "op(A) is copied"), (60, "CF", "make k a multiple of 16"))
    for k, orders, text in cases:
        descs = MatrixDescriptor.row_wise(64, k, 4, order=orders[0]), MatrixDescriptor.column_wise(k, 64, 4)
        plan = choose("float8_e4m3fn", *descs, rows, context=PlanningContext(gpus, 4, others=("", "bfloat16")))
        assert any(line.strip().startswith("gemm") and text in line for line in plan.explain().splitlines())
        assert ("copied" in plan.explain()) == bool(text)
    assert mixed.simulate("nvlink").received_nbytes == mixed.max_received_nbytes


@pytest.mark.parametrize("dtype", FLOAT8)
def test_matrices_of_8_bits_are_moved_and_converted_exactly(ctx: pblas.Context, dtype: Any) -> None:
    m, n = 19, 23
    bits = np.arange(m * n, dtype=np.uint32).astype(np.uint8).reshape(m, n)
    x = bits.view(dtype)
    rows, columns = MatrixDescriptor.row_wise(m, n, ctx.nprocs), MatrixDescriptor(m, n, 2, 3, pblas.Grid(1, ctx.nprocs))
    a = ctx.from_global(x, rows)
    moved = a.redistribute(columns)
    assert np.array_equal(whole(moved).view(np.uint8), bits)
    assert np.array_equal(whole(a.T), x.T, equal_nan=True)
    assert np.array_equal(whole(ctx.from_local(a.local, a.desc)).view(np.uint8), bits)
    assert np.array_equal(whole(moved.astype("float32")), x.astype(np.float32), equal_nan=True)
    values = np.linspace(-500, 500, m * n).reshape(m, n).astype(np.float32)
    values[0, :6] = 1e-3, 1.7e-5, -(2.0**-9), 448, 464.1, np.inf
    converted = whole(ctx.from_global(values, columns).astype(dtype))
    expected = values.astype(dtype)
    assert np.array_equal(converted, expected, equal_nan=True)
    drawn = whole(ctx.random(rows, dtype.name, seed=3))
    assert np.array_equal(drawn, whole(ctx.random(columns, dtype.name, seed=3)))
    assert not whole(ctx.zeros(rows, dtype)).any()


@few
@pytest.mark.parametrize("wrong", culprits()[-2:])
def test_what_is_not_defined_is_refused_on_all_ranks(ctx: pblas.Context, wrong: frozenset[int]) -> None:
    m = n = 8
    desc = MatrixDescriptor.row_wise(m, n, ctx.nprocs)
    a, b = (ctx.random(desc, E4M3, seed=seed) for seed in (1, 2))
    half, double, other = ctx.zeros(desc, BFLOAT16), ctx.zeros(desc, "float64"), ctx.random(desc, E5M2, seed=3)
    is_wrong = COMM.rank in wrong

    def refused(text: str, call: Any, kind: Any = errors.DTypeError) -> None:
        raises_on_all_ranks(kind, text, call)

    refused("of which pblas has products and conversions", lambda: a + b)
    refused("of which pblas has products and conversions", lambda: 2.0 * a)
    for call in (a.norm, a.sum, lambda: pblas.redistribute(a, desc, alpha=2.0), lambda: a @ np.ones(n, np.float32)):
        refused("float8_e4m3fn", call)
    refused("cuBLASLt does not multiply", lambda: pblas.pmatmul(other, other))
    refused("they must have one dtype", lambda: pblas.pmatmul(a, half))
    refused("out_dtype is float64, A is float8_e4m3fn", lambda: pblas.pmatmul(a, b, out_dtype="float64"))
    refused("out_dtype= says", lambda: pblas.pmatmul(a, b, out=half, out_dtype="float32"))
    refused("C is float64", lambda: pblas.pmatmul(a, b, double, out_dtype="float32"))
    refused("is for matrices of 8 bits", lambda: pblas.pmatmul(half, half, scale_a=2.0))
    refused("scale_a", lambda: pblas.pmatmul(a, b, scale_a="x" if is_wrong else 2.0), errors.ArgumentError)
    refused("amax", lambda: pblas.pmatmul(a, b, amax=3.0 if is_wrong else scalar(ctx, 0.0)), errors.ArgumentError)
    if len(wrong) < ctx.nprocs:
        refused(
            "differs between ranks", lambda: pblas.pmatmul(a, b, scale_b=2.0 if is_wrong else 1.0), errors.MismatchError
        )
    refused("'rmsnorm'", lambda: pblas.pmatmul(a, b, epilogue="rmsnorm", scale_d=2.0), errors.ArgumentError)
    assert pblas.pmatmul(a, b).dtype == BFLOAT16


def test_scales_are_replaced_in_an_execution(ctx: pblas.Context) -> None:
    """Numbers and arrays; arrays are read when the product runs."""
    desc = MatrixDescriptor.row_wise(32, 32, ctx.nprocs, order="C")
    a, b = (
        ctx.random(desc, E4M3, seed=1),
        ctx.random(desc.T, E4M3, seed=2).redistribute(MatrixDescriptor.row_wise(32, 32, ctx.nprocs)),
    )
    product, scale = wide(whole(a)) @ wide(whole(b)), scalar(ctx, 1.0)
    with pblas.plan_matmul(a, b, scale_a=1.0, scale_b=scale, scale_d=1.0, out_dtype="float32") as planned:
        for factors in ((1.0, 1.0, 1.0), (2.0, 0.5, 4.0), (0.5, 8.0, 1.0), (2.0, 0.5, 4.0)):
            with ctx.runtime.backend.writing(scale.reshape(1, 1)) as host:
                host[...] = factors[1]
            d = planned.execute(a, b, scale_a=factors[0], scale_d=factors[2])
            assert np.allclose(whole(d), np.prod(factors) * product, rtol=1e-2, atol=1e-2 * np.prod(factors))
        raises_on_all_ranks(
            errors.ArgumentError, "planned was a number", lambda: planned.execute(a, b, scale_d=scalar(ctx, 1.0))
        )


def test_layers_take_8_bits(ctx: pblas.Context) -> None:
    """Those of pblas.tp, again and again, with scales in arrays, a bias and an epilogue."""
    p, backend = ctx.nprocs, ctx.runtime.backend
    t, i, o = 16 * p, 32 * p, 16 * p
    x, w, bias = entries((t, i), E4M3, 1), entries((o, i), E5M2, 2), entries((1, o), FLOAT16, 3)[0]
    exact = np.maximum(0.5 * (wide(x) @ wide(w).T) + wide(bias), 0) * 2
    size = abs(wide(x)) @ abs(wide(w)).T + 2 * abs(wide(bias))

    def here(z: Array) -> Any:
        array = backend.new(z.shape, z.dtype)
        with backend.writing(array if z.ndim > 1 else array.reshape(1, -1)) as host:
            host[...] = z
        return array

    tokens, inner, outer = (slice(n // p * ctx.rank, n // p * (ctx.rank + 1)) for n in (t, i, o))
    calls: Any = (
        (tp.allgather_linear, x[tokens], w[outer], bias[outer], (slice(None), outer)),
        (tp.linear_reduce_scatter, x[:, inner], w[:, inner], bias, (tokens, slice(None))),
        (tp.linear_allreduce, x[:, inner], w[:, inner], bias, (slice(None), slice(None))),
    )
    for layer, x_loc, w_loc, b_loc, place in calls:
        options: dict[str, Any] = {"scale_a": scalar(ctx, 0.25), "scale_b": 2.0, "scale_d": 2.0, "ctx": ctx}
        amax, arrays = scalar(ctx, 0.0), [here(z) for z in (x_loc, w_loc, b_loc)]
        for _ in range(4 if backend.gpus else 2):
            result = layer(*arrays, "relu(x)", out_dtype="float16", amax=amax, **options)
        y = wide(backend.reading(result))
        assert (abs(y - exact[place]) <= THRESHOLD * eps_of(FLOAT16) * size[place]).all(), layer
        assert number(ctx, amax) == abs(y).max()
    first = tp.Linear(here(w[outer]), "allgather", max_tokens=t, out_dtype="float16", scale_b=2.0, ctx=ctx)
    y = wide(backend.reading(first(here(x[tokens]), scale_a=0.25)))
    assert np.allclose(y, 0.5 * (wide(x) @ wide(w).T)[:, outer], atol=1e-2 * size.max())
    raises_on_all_ranks(errors.DTypeError, "dtype must be one of", lambda: first.backward(here(y), here(x[tokens])))


def test_partial_products_of_float16_do_not_overflow(ctx: pblas.Context) -> None:
    """Halves of K whose products are +inf and -inf in float16, and whose sum is 0."""
    p = COMM.size
    n, k = 6 * p, 20 * p
    values = np.full((n, k), 200.0)
    sign = np.where(np.arange(k) < k // 2, 1, -1)
    across, along = MatrixDescriptor.column_wise(n, k, p), MatrixDescriptor.row_wise(k, n, p)
    a, c = (ctx.from_global(x, across, root=None, dtype="float16") for x in (values, values * sign))
    b = ctx.from_global((values * sign).T, along, root=None, dtype="float16")
    full = ctx.full(MatrixDescriptor.column_wise(k, k, p), 200.0, dtype="float16")
    w = np.ascontiguousarray((values * sign)[:, across.global_ranges(ctx.rank)[1][0][0] :][:, :20]).astype("float16")
    results: dict[str, Any] = {
        **{
            kind: pblas.pmatmul(a, b, out=getattr(MatrixDescriptor, kind)(n, n, p))
            for kind in ("row_wise", "replicated")
        },
        "syr2k": blas.syr2k(a, c),
        "symm": blas.symm(full, b),
        "linear_allreduce": tp.linear_allreduce(values[:, :20].astype("float16"), w, ctx=ctx),
    }
    for name, x in results.items():
        assert not np.any(x.local if isinstance(x, pblas.DistMatrix) else x), name

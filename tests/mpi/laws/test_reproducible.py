"""Reproducible products: each rank's part has the bits that one rank alone computes."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import Grid, MatrixDescriptor
from pblas.backends.cpu import reproducible
from tests.common.gauge import applied, dtype_of, entries
from tests.common.ranks import COMM, Contexts, collected, open_context, raises_on_all_ranks

SETTINGS = "shared", "message", "mixed"
P = COMM.size
DTYPES = "float64", "float32", "complex64", "complex128", "float16", "bfloat16"
SIZES = (5, 3, 7), (65, 70, 513), (9, 100, 2050), (1100, 9, 2100), (13, 14, 4097), (1, 1, 1200), (70, 3, 0)
EXACT = (5, 3, 7), (65, 70, 513), (600, 9, 1100), (3, 4, 16500), (3, 2, 33000), (70, 3, 0)
TRANS: tuple[Any, ...] = ("N", "T", "C")
ROUNDS = int(os.environ.get("PBLAS_ROUNDS", "1"))  # random products of each test on each transport
KINDS = "rows", "columns", "all", "grid", "ragged", "small blocks"


def layout(kind: str, shape: tuple[int, ...], order: Any, choice: random.Random) -> MatrixDescriptor:
    m, n = shape
    if kind == "rows":
        return MatrixDescriptor.row_wise(m, n, P, order=order)
    if kind == "columns":
        return MatrixDescriptor.column_wise(m, n, P, order=order)
    if kind == "all":
        return MatrixDescriptor.replicated(m, n, P, order=order)
    if kind == "ragged":  # one rank has most rows, or all
        return MatrixDescriptor(m, n, max(1, 3 * m // 4), max(1, n), Grid(P, 1), choice.randrange(P), 0, order)
    nprow = choice.choice([p for p in range(1, P + 1) if P % p == 0])
    mb, nb = (5, 3) if kind == "small blocks" else (max(1, m // 3), max(1, n // 2))
    return MatrixDescriptor(m, n, mb, nb, Grid(nprow, P // nprow), 0, choice.randrange(P // nprow), order)


def product(
    ctx: pblas.Context,
    one: pblas.Context,
    choice: random.Random,
    dtype: str,
    size: tuple[int, int, int],
    reproducible: Any = True,
) -> tuple[str, bytes, bytes]:
    """**Collective.** A random call, its bits, and those of one rank."""
    m, n, k = size
    x, y, z = (entries(shape, dtype_of(dtype), seed) for seed, shape in enumerate(((m, k), (k, n), (m, n))))
    transa, transb = choice.choice(TRANS), choice.choice(TRANS)
    alpha: complex
    beta: complex
    alpha, beta = choice.choice([(1, 0), (1, 1), (-0.3, 0.7), (1.1, 0), (0, 0.7)])
    if dtype.startswith("complex") and choice.random() < 0.5:
        alpha, beta = alpha * (0.8 - 0.6j), beta * (1.1 + 0.3j)
    options: dict[str, Any] = {"alpha": alpha, "beta": beta, "reproducible": reproducible}
    if choice.random() < 0.3:
        options["epilogue"] = "x * 0.3 + 1" if dtype.startswith("complex") else "silu(x)"
    expected = pblas.pmatmul(*(one.from_global(array) for array in (x, y, z)), **options)
    kinds = [choice.choice(KINDS) for _ in range(3)]
    orders = [choice.choice("FC") for _ in range(3)]
    a, b, c = (
        ctx.from_global(array, layout(kind, array.shape, order, choice))
        for array, kind, order in zip((applied(transa, x), applied(transb, y), z), kinds, orders, strict=True)
    )
    options |= {"overlap": choice.random() < 0.7, "chunks": choice.choice([None, None, 1, 3]), "out": c.desc}
    with pblas.plan_matmul(a, b, c, transa=transa, transb=transb, **options) as planned:
        result = planned.execute(a, b, c)
        assert planned.workspace_nbytes <= planned.plan.workspace_nbytes, planned.explain()
    text = f"{planned.plan.name}, {transa}{transb}, {kinds}, {orders}, {options}"
    return text, collected(result).tobytes(), collected(expected).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_any_ranks_and_layouts_give_the_bits_of_one_rank(
    contexts: Contexts, one: pblas.Context, dtype: str, size: tuple[int, int, int]
) -> None:
    choice = random.Random(f"{dtype} {size} {P}")
    for name in SETTINGS * ROUNDS:
        text, bits, expected = product(contexts[name], one, choice, dtype, size)
        assert bits == expected, f"{name}: {text}"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("size", EXACT, ids=str)
def test_exact_products_have_the_bits_of_one_rank(
    contexts: Contexts, one: pblas.Context, dtype: str, size: tuple[int, int, int]
) -> None:
    choice = random.Random(f"exact {dtype} {size} {P}")
    for name in SETTINGS * ROUNDS:
        text, bits, expected = product(contexts[name], one, choice, dtype, size, "exact")
        assert bits == expected, f"{name}: {text}"


def test_exact_products_are_of_real_matrices_of_32_or_64_bits(ctx: pblas.Context) -> None:
    for dtype in ("float16", "complex128"):
        a = ctx.zeros((4, 4), dtype=dtype)
        with pytest.raises(pblas.DTypeError, match=f"is for float64 and float32, got {dtype}"):
            pblas.pmatmul(a, a, reproducible="exact")
    a = ctx.zeros((4, 4))
    with pytest.raises(pblas.ArgumentError, match="must be True, False or 'exact', got 'exactly'"):
        pblas.pmatmul(a, a, reproducible="exactly")  # type: ignore[arg-type]
    if P > 1:
        raises_on_all_ranks(
            pblas.MismatchError,
            "reproducible",
            lambda: pblas.pmatmul(a, a, reproducible=True if ctx.rank else "exact"),
        )


def test_layers_of_k_and_gathered_operands_are_planned(ctx: pblas.Context) -> None:
    """The law above reaches all kinds of plans."""
    m, k = 64, 4096
    rows, columns = MatrixDescriptor.row_wise, MatrixDescriptor.column_wise
    deep = pblas.plan_matmul(columns(m, k, 4), rows(k, m, 4), dtype="float64", reproducible=True)
    assert deep.plan.cuboids.k.nprocs == 4  # type: ignore[attr-defined]
    wide = pblas.plan_matmul(rows(k, m, 4), columns(m, k, 4), dtype="float64", reproducible=True)
    assert wide.plan.name == "AllGatherGemm"
    odd = pblas.plan_matmul(columns(m, k, 3), rows(k, m, 3), dtype="float64", reproducible=True)
    assert odd.plan.cuboids.k.nprocs == 1  # type: ignore[attr-defined]
    assert "K in 4 pieces of 1024" in odd.explain()
    exact = pblas.plan_matmul(columns(m, 16 * k, 4), rows(16 * k, m, 4), dtype="float64", reproducible="exact")
    assert exact.plan.cuboids.k.nprocs == 4  # type: ignore[attr-defined]
    assert "K in 8 pieces of 8192" in exact.explain()


def test_a_context_makes_all_products_reproducible(one: pblas.Context) -> None:
    x, y = entries((40, 1111), np.dtype("float64"), 1), entries((1111, 30), np.dtype("float64"), 2)
    expected = pblas.pmatmul(one.from_global(x), one.from_global(y), reproducible=True)
    with open_context(reproducible=True) as ctx:
        a, b = ctx.from_global(x), ctx.from_global(y)
        products = [a @ b, pblas.pmatmul(a, b), pblas.plan_matmul(a, b).execute(a, b)]
        for product in products:
            assert np.array_equal(collected(product), collected(expected))
        assert "bits" not in pblas.plan_matmul(a, b, reproducible=False).explain()


def test_a_plan_of_a_rank_update_names_both_of_its_products() -> None:
    with open_context(reproducible=True) as ctx:
        a = ctx.zeros(MatrixDescriptor.row_wise(12, 8, P), "complex128")
        b = ctx.zeros(MatrixDescriptor.column_wise(12, 8, P), "complex128")
        text = pblas.blas.plan_her2k(a, b).explain()
        assert "her2k: lower triangle of D = op(A) op(B)^H + op(B) op(A)^H" in text
        moves = next(line for line in text.splitlines() if line.startswith("  moves"))
        assert P == 1 or ("op(A)^H" in moves and "op(B)^H" in moves)
        text = pblas.blas.plan_syrk(a, uplo="U").explain()
        assert "syrk: upper triangle of D = op(A) op(A)^T" in text
        assert "op(B)" not in text


def test_a_wire_dtype_that_rounds_is_refused(ctx: pblas.Context) -> None:
    a = ctx.zeros((4, 4), dtype="float16")
    text = "partial products travel in float32"
    raises_on_all_ranks(pblas.DTypeError, text, lambda: pblas.pmatmul(a, a, wire_dtype="float16", reproducible=True))


def test_a_flag_that_differs_is_a_mismatch(ctx: pblas.Context) -> None:
    if P > 1:
        a = ctx.zeros((4, 4))
        raises_on_all_ranks(
            pblas.MismatchError, "reproducible", lambda: pblas.pmatmul(a, a, reproducible=ctx.rank == 0)
        )


def test_processors_that_add_otherwise_are_a_mismatch(ctx: pblas.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    if P > 1:
        a = ctx.zeros((4, 4))
        with monkeypatch.context() as patch:
            patch.setattr("pblas.backends.cpu.arrays.fingerprint", lambda _: str(ctx.rank))
            raises_on_all_ranks(
                pblas.MismatchError,
                "reproducible sums differs between ranks",
                lambda: pblas.pmatmul(a, a, reproducible=True),
            )


def test_a_blas_that_cannot_is_an_error_on_all_ranks(ctx: pblas.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    a = ctx.zeros((4, 6))
    b = ctx.zeros((6, 4))
    reproducible.kernel.cache_clear()
    with monkeypatch.context() as patch:
        if ctx.rank == P - 1:
            patch.setattr(reproducible, "is_uniform", lambda *_: False)
        raises_on_all_ranks(
            pblas.BackendError, "another order than others", lambda: pblas.pmatmul(a, b, reproducible=True)
        )
    reproducible.kernel.cache_clear()
    assert not collected(pblas.pmatmul(a, b, reproducible=True)).any()

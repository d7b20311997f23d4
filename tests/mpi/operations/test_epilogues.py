"""Laws of the epilogues of pmatmul: D is the expression for every plan and transport; nothing else is touched."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import Epilogue, MatrixDescriptor, errors
from pblas.matmul.one_dimensional_plan import AllGatherGemm, GemmReduceScatter
from pblas.matrices.scatter_gather import part_of
from tests.common.gauge import Array, dtype_of, entries, eps_of
from tests.common.ranks import COMM, NO_DIFFERENT, Contexts, check_product, collected, raises_on_all_ranks, some_wrong

SETTINGS = ("shared", "message", "push")
KINDS = {
    "AG": ("rows", "rows", "rows"),
    "RS": ("columns", "rows", "columns"),
    "AR": ("columns", "rows", "all"),
    "Local": ("all", "columns", "columns"),
    "grid": ("grid", "grid", "grid"),
}
TRANSPORTS: dict[str, list[tuple[str, int | None]]] = {
    "AG": [("shared", None), ("push", None), ("push", 2)],
    "RS": [("shared", None), ("push", None), ("push", 2)],
    "AR": [("message", None), ("push", None), ("push", 2)],
    "Local": [("push", None)],
    "grid": [("shared", None)],
}
"""Of each kind, with the number of chunks: of pushes, one kernel or copies."""
P, RANK = COMM.size, COMM.rank
M, N, K = 9, 7, 8
pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2, 3, 4, reason=NO_DIFFERENT)]


def described(kind: str, m: int, n: int, order: Any) -> MatrixDescriptor:
    if kind == "grid":
        grid = pblas.Grid(2, P // 2) if P % 2 == 0 else pblas.Grid(1, P)
        return MatrixDescriptor(m, n, 2, 3, grid, order=order)
    make: Any = {"rows": MatrixDescriptor.row_wise, "columns": MatrixDescriptor.column_wise}
    return make.get(kind, MatrixDescriptor.replicated)(m, n, P, order=order)


def local_columns(x: Array, desc: MatrixDescriptor) -> Array:
    """The elements of a row that belong to this rank's columns."""
    values: Array = np.concatenate([x[a:b] for a, b in desc.global_ranges(RANK)[1]] or [x[:0]])
    return values


@pytest.mark.parametrize(("name", "order"), [("float64", "F"), ("bfloat16", "C")])
@pytest.mark.parametrize("kind", KINDS)
def test_an_epilogue_is_the_expression_of_d(contexts: Contexts, kind: str, name: str, order: str) -> None:
    """With numbers, rows, matrices and DistMatrices as operands, given with the plan or with the execution."""
    dtype = dtype_of(name)
    a, b, c, full = (entries(shape, dtype, seed) for seed, shape in enumerate([(M, K), (K, N), (M, N), (M, N)]))
    row = entries((1, N), dtype, 9)[0]
    d = 0.5 * (a.astype(float) @ b.astype(float)) - c.astype(float)
    expected = np.maximum(d * 0.25 + row.astype(float), 0) * full.astype(float)
    bound = (3 if name == "bfloat16" else 16) * eps_of(dtype) * (K + 4)
    for setting, chunks in TRANSPORTS[kind] if P > 1 else TRANSPORTS[kind][:1]:
        ctx = contexts[setting]
        descs = [described(k, m, n, order) for k, m, n in zip(KINDS[kind], (M, K, M), (K, N, N), strict=True)]
        A, B, C = (ctx.from_global(x, desc, None) for x, desc in zip((a, b, c), descs, strict=True))
        bias, whole = local_columns(row, descs[2]), ctx.from_global(full, descs[2], None)
        epilogue = Epilogue("relu(x * s + bias) * f", s=0.25, bias=bias, f=whole)
        options: dict[str, Any] = {"alpha": 0.5, "beta": -1.0, "chunks": chunks}
        result = collected(pblas.pmatmul(A, B, C, **options, epilogue=epilogue))
        assert np.abs(result - expected).max() <= bound
        with pblas.plan_matmul(A, B, C, **options, epilogue=epilogue) as mm:
            where = "in one more pass over D"
            if isinstance(mm.plan, GemmReduceScatter):
                where = "in the reduction"
            elif isinstance(mm.plan, AllGatherGemm) and name == "bfloat16":  # several GEMMs add in 32 bits
                where = "where D is rounded"
            assert f"relu(x * s + bias) * f, {where}" in mm.explain()
            others = {"s": 0.25, "bias": np.zeros_like(bias), "f": part_of(full, descs[2], RANK)}
            result = collected(mm.execute(A, B, C, out=C, operands=others))
        assert np.abs(result - np.maximum(d * 0.25, 0) * full.astype(float)).max() <= bound


@pytest.mark.parametrize("setting", ["shared", "push"])
def test_operands_are_bound_by_their_names(contexts: Contexts, setting: str) -> None:
    """Each rank may pass them in another order; a DistMatrix instead of a bias is refused with a reason."""
    ctx, desc = contexts[setting], MatrixDescriptor.row_wise(M, M, P, order="C")
    a, b = ((np.arange(M * M, dtype=np.float32).reshape(M, M) * step) % 5 - 2 for step in (1, 3))
    A, B = (ctx.from_global(x, desc, None) for x in (a, b))
    f, g = {"f": A}, {"g": B}
    with pblas.plan_matmul(A, B, epilogue=Epilogue("x * f - g", **(f | g if RANK else g | f))) as mm:
        for operands in (f | g, {"g": A, "f": B}, g | f, {"f": B, "g": A}):
            result = collected(mm.execute(A, B, operands=operands))
            p, q = (a, b) if operands["f"] is A else (b, a)
            assert np.array_equal(result, (a @ b) * p - q)
    keys = [mm._epilogue.operands("", ctx.runtime, operands, None).keys() for operands in (f | g, g | f)]  # type: ignore[union-attr]
    assert list(keys[0]) == list(keys[1])
    numbers = {"s": 2.0, "t": -3.0}
    with pblas.plan_matmul(
        A, B, epilogue=Epilogue("x * s + t", **dict(sorted(numbers.items(), reverse=RANK > 0)))
    ) as mm:
        result = collected(mm.execute(A, B))
        assert np.array_equal(result, (a @ b) * 2 - 3)
    replicated = ctx.from_global(a, described("all", M, M, "C"), None)
    with pblas.plan_matmul(replicated, replicated, epilogue=Epilogue("x + f", f=replicated)) as mm:
        assert "x + f, in one more pass over D" in mm.explain()


def test_whole_rows_are_normalised_and_the_residual_is_stored(contexts: Contexts) -> None:
    a, b, residual = (entries(shape, np.dtype(float), seed) for seed, shape in enumerate([(M, K), (K, N), (M, N)]))
    weight, total = np.arange(1.0, N + 1), a @ b + residual
    expected = total / np.sqrt(np.mean(total**2, axis=1, keepdims=True) + 1e-3) * weight
    for setting, last in (("shared", "rows"), ("push", "all")):
        ctx, kinds = contexts[setting], ("columns", "rows", last)
        descs = [described(k, m, n, "C") for k, m, n in zip(kinds, (M, K, M), (K, N, N), strict=True)]
        A, B = (ctx.from_global(x, desc, None) for x, desc in zip((a, b), descs[:2], strict=True))
        local = part_of(residual, descs[2], RANK).copy()
        epilogue = Epilogue("rmsnorm", weight=weight, eps=1e-3, residual=local)
        result = collected(pblas.pmatmul(A, B, out=descs[2], epilogue=epilogue))
        assert np.allclose(result, expected, rtol=1e-13, atol=1e-13)
        assert np.allclose(local, part_of(total, descs[2], RANK), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("setting", ["shared", "push"])
def test_an_invalid_epilogue_of_d_is_refused_on_every_rank(contexts: Contexts, setting: str) -> None:
    ctx = contexts[setting]
    A = ctx.random(MatrixDescriptor.row_wise(M, M, P))
    Z = ctx.random(MatrixDescriptor.row_wise(M, M, P), "complex128")
    columns = MatrixDescriptor.column_wise(M, M, P)

    def refused(kind: type[Exception], text: str, epilogue: Any, X: pblas.DistMatrix = A, **options: Any) -> None:
        raises_on_all_ranks(kind, text, lambda: pblas.pmatmul(X, X, **options, epilogue=epilogue))

    refused(errors.ArgumentError, "there is no operator @", "x @ x")
    refused(errors.ArgumentError, "Epilogue('swiglu', gate=...)", "swiglu")
    if P > 1:
        refused(errors.ArgumentError, "needs whole rows", "rmsnorm", out=columns)
    refused(errors.ArgumentError, "relu is for real", "relu", Z)
    refused(errors.ArgumentError, "'x * s': s must be a number, got '2'", Epilogue("x * s", s="2"))
    call_args = f"'x * s': s must be a number or an array of shape ({M},) or an array of shape "
    refused(errors.ArgumentError, call_args, Epilogue("x * s", s=np.array(2.0)))
    for wrong in some_wrong()[:1]:
        refused(errors.ArgumentError, "bias must be", Epilogue("bias", bias=np.zeros(M + (RANK in wrong))))
        refused(errors.MismatchError, "epilogue", "x * 2" if RANK in wrong else "x * 3")
        if setting != "push":  # otherwise the other ranks may have begun, and the context breaks
            with pblas.plan_matmul(A, A, epilogue=Epilogue("bias", bias=np.zeros(M))) as mm:
                unnamed: Any = [np.zeros(M)]
                call = partial(mm.execute, A, A, operands=unnamed if RANK in wrong else {"bias": np.zeros(M)})
                raises_on_all_ranks(errors.ArgumentError, "operands must be a dict", call)
                for operand, text in ((np.zeros(M, np.float32), "bias is float32"), (2.0, "planned as float64")):
                    operands = {"bias": operand if RANK in wrong else np.zeros(M)}
                    raises_on_all_ranks(errors.DTypeError, text, partial(mm.execute, A, A, operands=operands))
            with pblas.plan_matmul(A, A, epilogue=Epilogue("x * s", s=2.0)) as mm:
                mm.execute(A, A)
                call = partial(mm.execute, A, A, operands={"s": 3.0} if RANK in wrong else None)
                raises_on_all_ranks(errors.MismatchError, "epilogue's s differs between ranks", call)
                result = collected(mm.execute(A, A, operands={"s": 0.0}))
                assert (result == 0).all()
    check_product(ctx)

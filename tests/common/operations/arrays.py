"""Elementwise operations, redistribution, reductions, stacking, creation and collectives as operations."""

from __future__ import annotations

from typing import Any

import numpy as np

import pblas
from tests.common.gauge import Array, applied
from tests.common.operations.level3 import NEW, OUTS, SCALARS, TRANS, called, method, planned
from tests.common.operations.operation import Layout, Operand, Operation
from tests.common.ranks import COMM

A, B = Operand(), Operand(layout="grid")
NUMBERS = (2.0, 3.0, 1j)


def by_numpy(expression: str, out: Any = None, **operands: Any) -> Array:
    """An expression of arrays."""
    result: Array = eval(expression, {"conj": np.conj, "abs": np.abs, **operands})
    return result


def moved(
    a: Array,
    desc: Any = None,
    out: Any = None,
    trans: str = "N",
    alpha: complex = 1.0,
    beta: complex = 0.0,
    uplo: str | None = None,
    diagonal: int = 0,
) -> Array:
    """B = alpha op(A) + beta B by NumPy, in a trapezoid."""
    inside = np.ones(a.shape, bool)
    if uplo is not None:
        inside = (np.triu if uplo == "U" else np.tril)(inside, diagonal)
    old = np.zeros_like(a) if out is None else out
    return np.where(inside, alpha * applied(trans, a) + (beta * old if beta else 0), old)


def plan_elementwise(expression: str, **values: Any) -> Any:
    return pblas.plan_elementwise(expression, **values)


def abs_of(a: Array) -> Array:
    return np.asarray(abs(a))


def tril(a: Array, k: int) -> Array:
    return np.tril(a, k)


def triu(a: Array, k: int) -> Array:
    return np.triu(a, k)


def norm(a: Array, axis: int | None, **named: Any) -> Any:
    """A norm of the matrix, or of its columns or rows."""
    order = named["ord"]
    return np.linalg.norm(a, 2 if axis is not None and order == "fro" else order, axis=axis)


MOVES = {"trans": TRANS, "alpha": SCALARS, "uplo": ("U", "L"), "desc": (*NEW, Layout("whole"))}
ELEMENTWISE = [
    Operation(
        "elementwise",
        called(pblas.elementwise, "expression"),
        by_numpy,
        values={"expression": "x * s + y", "x": A, "y": B, "s": 1.0},
        options={
            "expression": ("x * s - y", "x + s * y", "conj(x) * s + y"),
            "s": (*NUMBERS, A),
            "out": (*OUTS, Operand("new general", layout="columns")),
            "y": (Operand("column"), Operand("row"), 1.0, 2.0),
        },
        views=("x", "y"),
        shares=(("y", "x"), ("out", "x"), ("out", "y")),
    ),
    Operation(
        "plan_elementwise",
        planned(plan_elementwise, "expression"),
        by_numpy,
        values={"expression": "x * s + y", "x": A, "y": B, "s": 1.0},
        options={"s": NUMBERS, "expression": ("x - s * y",), "out": OUTS[:1]},
        views=("x",),
    ),
    Operation(
        "DistMatrix.__add__",
        lambda _, a, b: a + b,
        lambda a, b: a + b,
        values={"a": A, "b": B},
        options={"b": NUMBERS},
        views=("a", "b"),
    ),
    Operation(
        "DistMatrix.__sub__", lambda _, a, b: a - b, lambda a, b: a - b, values={"a": A, "b": B}, options={"b": NUMBERS}
    ),
    Operation(
        "DistMatrix.__mul__", lambda _, a, b: a * b, lambda a, b: a * b, values={"a": A, "b": B}, options={"b": NUMBERS}
    ),
    Operation(
        "DistMatrix.__truediv__",
        lambda _, a, b: a / b,
        lambda a, b: a / b,
        values={"a": A, "b": 4.0},
        options={"b": (2.0, 8.0)},
    ),
    Operation(
        "DistMatrix.__pow__", lambda _, a, b: a**b, lambda a, b: a**b, values={"a": A, "b": 2}, options={"b": (3, 1)}
    ),
    Operation(
        "DistMatrix.__radd__",
        lambda _, a, b: b + a,
        lambda a, b: b + a,
        values={"a": A, "b": 1.0},
        options={"b": NUMBERS},
    ),
    Operation(
        "DistMatrix.__rsub__",
        lambda _, a, b: b - a,
        lambda a, b: b - a,
        values={"a": A, "b": 1.0},
        options={"b": NUMBERS},
    ),
    Operation(
        "DistMatrix.__rmul__",
        lambda _, a, b: b * a,
        lambda a, b: b * a,
        values={"a": A, "b": 1.0},
        options={"b": NUMBERS},
    ),
    Operation(
        "DistMatrix.__rtruediv__",
        lambda _, a, b: b / (a + 8),
        lambda a, b: b / (a + 8),
        values={"a": A, "b": 1.0},
        options={"b": NUMBERS},
    ),
    Operation(
        "DistMatrix.__rpow__",
        lambda _, a, b: b**a,
        lambda a, b: b**a,
        values={"dtype": "float64", "a": A, "b": 2.0},
        options={"b": (4.0,)},
        dtypes=("float32",),
    ),
    *(
        Operation(
            f"DistMatrix.{name}",
            lambda _, a, b, name=name: getattr(a + 8, name)(b),
            lambda a, b, name=name: getattr(a + 8, name)(b),
            values={"dtype": "float64", "a": A, "b": 2.5},
            options={"b": (4.0,)},
            dtypes=("float32",),
        )
        for name in ("__floordiv__", "__rfloordiv__", "__ifloordiv__", "__mod__", "__rmod__", "__imod__")
    ),
    Operation(
        "DistMatrix.__and__",
        lambda _, a, b: a & b,
        lambda a, b: (a != 0) & (b != 0),
        values={"a": A, "b": B},
        views=("a",),
    ),
    Operation(
        "DistMatrix.__or__",
        lambda _, a, b: a | b,
        lambda a, b: (a != 0) | (b != 0),
        values={"a": A, "b": B},
        views=("b",),
    ),
    Operation("DistMatrix.__invert__", lambda _, a: ~a, lambda a: a == 0, values={"a": A}, views=("a",)),
    Operation(
        "where",
        called(pblas.where),
        lambda condition, x, y: np.where(condition != 0, x, y),
        values={"condition": A, "x": B, "y": 1.0},
        options={"x": NUMBERS, "y": (*NUMBERS, A), "condition": (B,)},
        views=("condition", "x"),
    ),
    Operation("DistMatrix.__neg__", lambda _, a: -a, lambda a: -a, values={"a": A}, views=("a",)),
    Operation("DistMatrix.__pos__", lambda _, a: +a, lambda a: a, values={"a": A}, views=("a",)),
    Operation("DistMatrix.__abs__", lambda _, a: abs(a), abs_of, values={"a": A}, views=("a",)),
    *(
        Operation(
            f"DistMatrix.__i{name}__",
            lambda _, a, b, name=name: getattr(a, f"__i{name}__")(b),
            lambda a, b, name=name: getattr(a, f"__{name}__")(b),
            values={"a": A, "b": other},
            options={"b": options},
            shares=() if name in ("truediv", "pow") else (("b", "a"),),
        )
        for name, other, options in (
            ("add", B, NUMBERS),
            ("sub", B, NUMBERS),
            ("mul", B, NUMBERS),
            ("truediv", 4.0, (2.0, 8.0)),
            ("pow", 2, (3,)),
        )
    ),
    Operation(
        "DistMatrix.__setitem__",
        lambda _, a, b, i, j: a.__setitem__(np.s_[i : i + 3, j : j + 2], b[1:4, 2:4]) or a,
        lambda a, b, i, j: _assigned(a, i, j, b[1:4, 2:4]),
        least=5,
        values={"a": A, "b": B, "i": 0, "j": 1},
        options={"i": (1, 2), "j": (0, 2)},
        views=("b",),
        shares=(("b", "a"),),
    ),
    Operation(
        "DistMatrix.__setitem__: of a row",
        lambda _, a, b, i, j: a.__setitem__(np.s_[i : i + 5, j : j + 3], b[1:2, 2:5]) or a,  # on several ranks
        lambda a, b, i, j: _assigned(a, i, j, b[1:2, 2:5], 5),
        least=5,
        values={"a": A, "b": B, "i": 0, "j": 1},
        options={"i": (1, 2), "j": (0,)},
        views=("b",),
        shares=(("b", "a"),),
    ),
    Operation(
        "DistMatrix.__setitem__: of a number",
        lambda _, a, value: a.__setitem__(np.s_[1:3, 1:4], value) or a,
        lambda a, value: _assigned(a, 1, 1, np.full((2, 3), value)),
        least=5,
        values={"a": A, "value": 1.0},
        options={"value": NUMBERS},
    ),
    Operation(
        "DistMatrix.__setitem__: by a mask",
        lambda _, a, mask, value: a.__setitem__(mask, value) or a,
        lambda a, mask, value: np.where(mask != 0, value, a),
        values={"a": A, "mask": B, "value": 1.0},
        options={"value": NUMBERS},
        views=("mask",),
        shares=(("mask", "a"),),
    ),
    Operation(
        "DistMatrix.__setitem__: of lists",
        lambda _, a, b, rows: a.__setitem__((rows, np.s_[::2]), b[: len(rows), ::2]) or a,
        lambda a, b, rows: _listed(a, rows, b),
        least=5,
        values={"a": A, "b": B, "rows": [4, 0]},
        options={"rows": ([0, 4], [1, 2, 3])},
        views=("b",),
        shares=(("b", "a"),),
    ),
    Operation(
        "DistMatrix.__getitem__: of lists",
        lambda _, a, rows, columns: a[np.ix_(rows, columns)],
        lambda a, rows, columns: a[np.ix_(rows, columns)],
        least=5,
        values={"a": A, "rows": [4, 0, 0], "columns": [1, 2]},
        options={"rows": ([0, 4, 0],), "columns": ([2, 1], [3])},
        views=("a",),
    ),
    Operation(
        "DistMatrix.__getitem__: by a mask",
        lambda _, a, mask: a[mask],
        lambda a, mask: a[mask != 0],
        values={"a": A, "mask": B},
        views=("a", "mask"),
        shares=(("mask", "a"),),
    ),
]


def _listed(a: Array, rows: list[int], b: Array) -> Array:
    result = a.copy()
    result[rows, ::2] = b[: len(rows), ::2]
    return result


def _assigned(a: Array, i: int, j: int, block: Array, rows: int = 0) -> Array:
    result = a.copy()
    result[i : i + (rows or len(block)), j : j + block.shape[1]] = block
    return result


MOVING = [
    Operation(
        "redistribute",
        called(pblas.redistribute),
        moved,
        values={"a": A, "desc": Layout("columns"), "trans": "N", "alpha": 1.0, "uplo": None, "diagonal": 0},
        options=MOVES,
        views=("a",),
    ),
    Operation(
        "redistribute: to out",
        called(pblas.redistribute),
        moved,
        values={"a": A, "out": B, "alpha": 1.0, "beta": 0.0, "uplo": "L", "diagonal": 0},
        options={"beta": (1.0, 2.0, 1j), "diagonal": (1, -2), "uplo": ("U", None), "alpha": (2.0, 0.0)},
        views=("a",),
    ),
    Operation(
        "redistribute: of a trapezoid",
        called(pblas.redistribute),
        moved,
        values={"a": A, "desc": Layout("columns"), "alpha": 1.0, "uplo": "U", "diagonal": 0},
        options={"alpha": (2.0, 0.0), "diagonal": (1, -2)},
    ),
    Operation(
        "plan_redistribution",
        planned(pblas.plan_redistribution, "desc", "trans", "alpha", "uplo"),
        moved,
        values={"a": A, "desc": Layout("columns"), "trans": "N", "alpha": 1.0, "uplo": None},
        options=MOVES,
        views=("a",),
    ),
    Operation(
        "DistMatrix.redistribute",
        method("redistribute"),
        lambda a, **_: a,
        values={"a": A, "desc": Layout("columns")},
        options={"desc": MOVES["desc"]},
        views=("a",),
    ),
    Operation("DistMatrix.copy", method("copy"), lambda a: a, values={"a": A}, views=("a",)),
    Operation(
        "DistMatrix.astype",
        lambda _, a, to: a.astype(to),
        lambda a, to: a.astype(to),
        values={"a": A, "to": "complex64"},
        options={"to": ("complex128",)},
        views=("a",),
    ),
    Operation("DistMatrix.real", lambda _, a: a.real, lambda a: a.real, values={"a": A}, views=("a",)),
    Operation("DistMatrix.imag", lambda _, a: a.imag, lambda a: a.imag, values={"a": A}, views=("a",)),
    Operation(
        "DistMatrix.to_global", method("to_global"), lambda a, **_: a, values={"a": A, "root": None}, views=("a",)
    ),
    Operation(
        "tril",
        called(pblas.tril),
        tril,
        values={"a": A, "k": 0},
        options={"k": (1, -2)},
        views=("a",),
    ),
    Operation(
        "triu",
        called(pblas.triu),
        triu,
        values={"a": A, "k": 0},
        options={"k": (1, -2)},
        views=("a",),
    ),
    Operation(
        "hstack",
        lambda _, a, b: pblas.hstack([a, b]),
        lambda a, b: np.hstack([a, b]),
        values={"a": A, "b": B},
        views=("a", "b"),
        shares=(("b", "a"),),
    ),
    Operation(
        "vstack",
        lambda _, a, b: pblas.vstack([a, b]),
        lambda a, b: np.vstack([a, b]),
        values={"a": A, "b": B},
        views=("a", "b"),
        shares=(("b", "a"),),
    ),
]
AXES: Any = {"axis": (0, 1), "keepdims": (True,)}
REDUCING = [
    *(
        Operation(
            f"DistMatrix.{name}",
            method(name),
            lambda a, axis, keepdims, name=name: getattr(np, name)(a, axis=axis, keepdims=keepdims),
            values={"dtype": "float64", "a": A, "axis": None, "keepdims": False},
            options=AXES,
            dtypes=("float32",) if name.startswith(("arg", "max", "min")) else ("float32", "complex128"),
        )
        for name in ("sum", "mean", "max", "min", "argmax", "argmin")
    ),
    *(
        Operation(
            f"DistMatrix.{name}",
            method(name),
            lambda a, axis, keepdims, name=name: getattr(np, name)(a, axis=axis, keepdims=keepdims),
            values={"a": A, "axis": None, "keepdims": False},
            options=AXES,
            dtypes=("float32",),
            views=("a",),
        )
        for name in ("any", "all")
    ),
    *(
        Operation(
            f"DistMatrix.{name}",
            method(name),
            lambda a, name=name, **named: getattr(np, name)(a, **named),
            values={"a": A, "axis": None, "ddof": 0, "keepdims": False},
            options={**AXES, "ddof": (1,)},
            dtypes=("float32",),
            views=("a",),
            least=2,
        )
        for name in ("var", "std")
    ),
    Operation(
        "DistMatrix.matvec",
        lambda _, a: a.matvec(np.arange(a.shape[1])),
        lambda a: a @ np.arange(a.shape[1]),
        values={"a": A},
        views=("a",),
    ),
    Operation(
        "DistMatrix.rmatvec",
        lambda _, a: a.rmatvec(np.arange(a.shape[0])),
        lambda a: a.conj().T @ np.arange(a.shape[0]),
        values={"a": A},
        views=("a",),
    ),
    Operation(
        "DistMatrix.norm",
        method("norm"),
        norm,
        values={"a": A, "ord": "fro", "axis": None},
        options={"ord": (1, np.inf), "axis": (0, 1)},
        views=("a",),
    ),
    Operation("DistMatrix.trace", method("trace"), np.trace, values={"a": A}, views=("a",)),
    Operation("DistMatrix.diagonal", method("diagonal"), np.diagonal, values={"a": A}, views=("a",)),
    Operation(
        "vdot",
        called(pblas.vdot),
        lambda a, b: (a.conj() * b).sum(),
        values={"a": A, "b": B},
        views=("a", "b"),
        shares=(("b", "a"),),
    ),
    Operation(
        "vdot: of a replicated matrix",
        called(pblas.vdot),
        lambda a, b: (a.conj() * b).sum(),
        values={"a": Operand(layout="whole"), "b": B},
        views=("a", "b"),
    ),
]
ROWS = Layout("rows")
PLACES = (Layout("columns"), Layout("grid"), Layout("whole"), Layout("rows", gap=3))


def square(desc: Any) -> tuple[int, int]:
    return desc.m, desc.n


MAKING = [
    Operation(
        "Context.eye",
        pblas.Context.eye,
        lambda desc, k: np.eye(*square(desc), k=k),
        values={"desc": ROWS, "k": 0},
        options={"desc": PLACES, "k": (1, -1)},
        dtypes=(),
    ),
    Operation(
        "Context.full",
        pblas.Context.full,
        lambda desc, value: np.full(square(desc), value),
        values={"desc": ROWS, "value": 1.0},
        options={"desc": PLACES, "value": NUMBERS},
        dtypes=(),
    ),
    *(
        Operation(
            f"Context.{name}",
            getattr(pblas.Context, name),
            lambda desc, name=name: getattr(np, name)(square(desc)),
            values={"desc": ROWS},
            options={"desc": PLACES},
            dtypes=(),
        )
        for name in ("zeros", "ones")
    ),
    Operation("Context.zeros_like", lambda ctx, a: ctx.zeros_like(a), np.zeros_like, values={"a": A}, dtypes=()),
    Operation(
        "Context.from_function",
        lambda ctx, desc, f: ctx.from_function(lambda i, j: f * i + j, desc),
        lambda desc, f: np.fromfunction(lambda i, j: f * i + j, square(desc)),
        values={"desc": ROWS, "f": 1.0},
        options={"desc": PLACES, "f": (2.0,)},
        dtypes=(),
    ),
    Operation(
        "Context.from_global",
        lambda ctx, desc, f, root: ctx.from_global(f * np.arange(desc.m * desc.n).reshape(desc.m, desc.n), desc, root),
        lambda desc, f, **_: f * np.arange(desc.m * desc.n).reshape(desc.m, desc.n),
        values={"desc": ROWS, "f": 1.0, "root": None},
        options={"desc": PLACES, "f": (2.0,), "root": (0, COMM.size - 1)},
        dtypes=(),
    ),
    Operation(
        "Context.from_parts",
        lambda ctx, axis, n: ctx.from_parts(_piece(axis, n, ctx.rank), axis),
        lambda axis, n: np.concatenate([_piece(axis, n, rank) for rank in range(COMM.size)], axis),
        values={"axis": 0, "n": 2},
        options={"axis": (1,), "n": (3,)},
        dtypes=(),
    ),
    Operation(
        "Context.replicate",
        lambda ctx, N: ctx.replicate(np.eye(N)),
        np.eye,
        values={"N": 3},
        options={"N": (4,)},
        dtypes=(),
    ),
]


def _piece(axis: int, n: int, rank: int) -> Array:
    """A rank's part of a matrix: n + rank rows, or columns."""
    piece = np.arange(5.0 * (n + rank)).reshape(n + rank, 5) + rank
    return piece if axis == 0 else piece.T


def _term(n: int, kind: str, rank: int = COMM.rank) -> Array:
    """A rank's array for a collective."""
    return np.arange(1, 2 * n + 1).reshape(n, 2).astype(kind) + rank


def _combined(n: int, op: str, kind: str) -> Array:
    terms = np.array([_term(n, kind, rank) for rank in range(COMM.size)])
    result: Array = getattr(np, op)(terms, axis=0)
    return result


def _epilogue(x: Array, epilogue: str | None) -> Array:
    return x if epilogue is None else 2 * x + 1 if epilogue == "2 * x + 1" else np.maximum(x, 0)


COLLECTIVES = [
    Operation(
        "Context.allreduce",
        lambda ctx, n, kind, op, **options: ctx.allreduce(_term(n, kind), op=op, **options),
        lambda n, kind, op, epilogue, **_: _epilogue(_combined(n, op, kind), epilogue),
        values={"n": 3, "kind": "float64", "op": "sum", "algorithm": "auto", "epilogue": None},
        options={
            "n": (4,),
            "kind": ("float32",),
            "op": ("max", "min", "prod"),
            "algorithm": ("naive", "one_shot", "two_shot"),
            "epilogue": ("2 * x + 1", "relu(x)"),
        },
        dtypes=(),
    ),
    Operation(
        "Context.reduce_scatter",
        lambda ctx, n, kind, op, epilogue: ctx.reduce_scatter(_term(n, kind), op=op, epilogue=epilogue),
        lambda n, kind, op, epilogue: np.array_split(_epilogue(_combined(n, op, kind), epilogue), COMM.size)[COMM.rank],
        values={"n": 7, "kind": "float64", "op": "sum", "epilogue": None},
        options={"n": (8,), "kind": ("float32",), "op": ("max", "min"), "epilogue": ("2 * x + 1", "relu(x)")},
        dtypes=(),
    ),
    Operation(
        "Context.allgather",
        lambda ctx, n, kind: ctx.allgather(_term(n + ctx.rank, kind)),
        lambda n, kind: np.concatenate([_term(n + rank, kind, rank) for rank in range(COMM.size)]),
        values={"n": 2, "kind": "float64"},
        options={"n": (3,), "kind": ("float32",)},
        dtypes=(),
    ),
]

"""Levels 1 and 2 as operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pblas import blas
from tests.common.gauge import Array, applied, gauge
from tests.common.operations.level3 import SCALARS, TRANS, called, half, hermitian, plus, symmetric, triangle
from tests.common.operations.operation import Operand, Operation

A, X, TRIANGULAR, DEFINITE = Operand(), Operand("column"), Operand("triangular"), Operand("definite")
ROW, GRID = Operand("row"), Operand("column", layout="grid")
REAL: Any = {"dtype": "float64"}
OUTS = (Operand("new column"), Operand("new column", gap=3), Operand("new column", own=True), Operand("new row"))
BETAS = (None, 2.0, 1j, 0.0)


def sizes(x: Array) -> Array:
    """|Re x| + |Im x|, as BLAS measures complex numbers."""
    return np.abs(x.real) + np.abs(x.imag)


LEVEL1 = [
    Operation(
        "blas.dot", called(blas.dot), lambda x, y: (x * y).sum(), values=REAL | {"x": X, "y": GRID}, dtypes=("float32",)
    ),
    Operation(
        "blas.dotu", called(blas.dotu), lambda x, y: (x * y).sum(), values={"x": X, "y": GRID}, shares=(("y", "x"),)
    ),
    Operation("blas.dotc", called(blas.dotc), lambda x, y: (x.conj() * y).sum(), values={"x": X, "y": GRID}),
    Operation("blas.nrm2", called(blas.nrm2), np.linalg.norm, values={"x": X}, views=("x",)),
    Operation("blas.asum", called(blas.asum), lambda x: sizes(x).sum(), values={"x": X}, views=("x",)),
    Operation(
        "blas.amax",
        called(blas.amax),
        lambda x: (x.ravel()[sizes(x).argmax()], sizes(x).argmax()),
        values={"x": X},
        views=("x",),
    ),
    Operation(
        "blas.scal",
        called(blas.scal),
        lambda alpha, x: alpha * x,
        values={"alpha": 1.0, "x": X},
        options={"alpha": SCALARS},
    ),
    Operation(
        "blas.axpy",
        called(blas.axpy),
        lambda alpha, x, y: alpha * x + y,
        values={"alpha": 1.0, "x": X, "y": GRID},
        options={"alpha": SCALARS},
        views=("x",),
    ),
    Operation("blas.copy", called(blas.copy), lambda x, **_: x, values={"x": X, "y": GRID}, views=("x",)),
    Operation("blas.swap", called(blas.swap), lambda x, y: (y, x), values={"x": X, "y": GRID}),
]


def product(structured: Callable[..., Array] | None = None) -> Callable[..., Array]:
    """alpha A x + beta y by NumPy, where `structured` makes A of its triangle."""

    def expected(
        a: Array,
        x: Array,
        y: Any = None,
        uplo: str = "L",
        trans: str = "N",
        alpha: complex = 1.0,
        beta: Any = None,
        out: Any = None,
        **_: Any,
    ) -> Array:
        full = applied(trans, a) if structured is None else structured(a, uplo)
        result = plus(alpha * full @ x.reshape(-1, 1), None if y is None else y.reshape(-1, 1), beta)
        return result if (x if out is None else out).shape[1] == 1 else result.T

    return expected


def updated(structured: Callable[..., Array]) -> Callable[..., Array]:
    """A rank-1 or rank-2 update by NumPy: the terms that `structured` adds to A."""
    return lambda a, x, y=None, alpha=1.0, **_: a + structured(alpha, x.reshape(-1, 1), y)


def transposed(x: Array) -> Array:
    return x.T


def of_matrix(name: str, structured: Callable[..., Array] | None, **options: tuple[Any, ...]) -> list[Operation]:
    """The entries of gemv, symv or hemv: with and without y."""
    function, values = called(getattr(blas, name)), {"a": A, "x": X, "alpha": 1.0}
    options = {"alpha": SCALARS, "out": OUTS, **options}
    scaled = {"beta": BETAS, "out": OUTS, "y": (ROW, Operand("column", conj=True))}
    views = ("a", "x") if structured is None else ("x",)
    return [
        Operation(f"blas.{name}", function, product(structured), values=values, options=options, views=views),
        Operation(
            f"blas.{name}: with y",
            function,
            product(structured),
            values={**values, "y": GRID, "beta": 1.0},
            options=scaled,
            views=(*views, "y"),
            shares=(("out", "y"), ("out", "x"), ("y", "x")),
        ),
    ]


def residual(x: Array, A: Array, b: Array, uplo: str = "L", trans: str = "N", diag: str = "N", **_: Any) -> float:
    """The residual of op(A) X = B."""
    return gauge(b, applied(trans, triangle(A, uplo, diag)), x)


TRIANGLES = {"uplo": ("U",), "trans": TRANS, "diag": ("U",), "out": OUTS[:3]}
RANK1: dict[str, Callable[..., Array]] = {
    "geru": lambda alpha, x, y: alpha * x @ y.T,
    "gerc": lambda alpha, x, y: alpha * x @ y.conj().T,
    "syr": lambda alpha, x, _: alpha * x @ x.T,
    "her": lambda alpha, x, _: alpha * x @ x.conj().T,
    "syr2": lambda alpha, x, y: alpha * (x @ y.T + y @ x.T),
    "her2": lambda alpha, x, y: alpha * x @ y.conj().T + np.conj(alpha) * y @ x.conj().T,
}
LEVEL2 = [
    *of_matrix("gemv", None, trans=TRANS),
    *of_matrix("symv", symmetric, uplo=("U",)),
    *of_matrix("hemv", hermitian, uplo=("U",)),
    Operation(
        "blas.trmv",
        called(blas.trmv),
        lambda a, x, uplo, trans, diag, **_: applied(trans, triangle(a, uplo, diag)) @ x,
        values={"a": TRIANGULAR, "x": X, "uplo": "L", "trans": "N", "diag": "N"},
        options=TRIANGLES,
        shares=(("out", "x"),),
    ),
    Operation(
        "blas.trsv",
        called(blas.trsv),
        residual=lambda result, x, a, **options: residual(result, a, x, **options),
        values={"a": TRIANGULAR, "x": X, "uplo": "L", "trans": "N", "diag": "N"},
        options=TRIANGLES,
        shares=(("out", "x"),),
    ),
    Operation(
        "blas.ger",
        called(blas.ger),
        updated(RANK1["geru"]),
        values=REAL | {"x": X, "y": GRID, "a": A, "alpha": 1.0},
        options={"alpha": (2.0, 0.0)},
        shares=(("y", "x"),),
        dtypes=("float32",),
    ),
    *(
        Operation(
            f"blas.{name}",
            called(getattr(blas, name)),
            updated(RANK1[name]),
            values={"x": X, "a": A, "alpha": 1.0} | ({"y": GRID} if two else {}),
            options={"alpha": SCALARS},
            views=("x",),
            shares=(("y", "x"),) if two else (),
        )
        for name, two in (("geru", True), ("gerc", True))
    ),
    *(
        Operation(
            f"blas.{name}",
            called(getattr(blas, name)),
            updated(RANK1[name]),
            values={"x": X, "a": DEFINITE, "alpha": 1.0, "uplo": "L"} | ({"y": GRID} if name.endswith("2") else {}),
            options={"alpha": (2.0, 0.0) if name == "her" else SCALARS, "uplo": ("U",)},
            shares=(("y", "x"),) if name.endswith("2") else (),
            mask=half,
        )
        for name in ("syr", "her", "syr2", "her2")
    ),
]

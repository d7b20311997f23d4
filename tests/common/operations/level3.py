"""Products, updates and triangular solves as operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import pblas
from pblas import Epilogue, blas, linalg
from tests.common.gauge import Array, applied, gauge
from tests.common.operations.operation import Layout, Operand, Operation

A, OUT = Operand(), Operand("new general")
TRIANGULAR, DEFINITE = Operand("triangular"), Operand("definite")
SCALARS = (2.0, -1.0, 1j, 0.0)
TRANS = ("T", "C")


def triangle(x: Array, uplo: str, diag: str = "N") -> Array:
    """The triangle of a matrix; with diag="U" ones on its diagonal."""
    t: Array = (np.tril if uplo == "L" else np.triu)(x)
    return t if diag == "N" else t - np.diag(t.diagonal()) + np.eye(len(t), dtype=x.dtype)


def symmetric(x: Array, uplo: str) -> Array:
    """The symmetric matrix of which x has one triangle."""
    t = triangle(x, uplo)
    return t + t.T - np.diag(t.diagonal())


def hermitian(x: Array, uplo: str) -> Array:
    """The Hermitian matrix of which x has one triangle; imaginary parts of its diagonal are not read."""
    t = triangle(x, uplo)
    return t + t.conj().T - np.diag(t.diagonal().real)


def half(uplo: str = "L", **values: Any) -> Array:
    """The elements of a triangle, as a mask."""
    first = next(x for name in ("a",) for x in (values.get(name),) if x is not None)
    return triangle(np.ones(first.shape[:1] * 2, bool), uplo)


def plus(d: Array, c: Array | None, beta: complex | None) -> Array:
    """D + beta C, with the default of beta."""
    return d if c is None or beta == 0 else d + (1.0 if beta is None else beta) * c


def called(function: Callable[..., Any], *positional: str) -> Callable[..., Any]:
    """A function without a context among its arguments; some of these passed by position."""

    def call(_: pblas.Context, **values: Any) -> Any:
        first = [values.pop(name) for name in positional]
        return function(*first, **values)

    return call


def method(name: str) -> Callable[..., Any]:
    """A method of the argument a."""
    return lambda _, a, **values: getattr(a, name)(**values)


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


EPILOGUES: dict[str | None, Callable[[Array], Array]] = {
    None: lambda x: x,
    "relu(x)": relu,
    "x * s + t, s=2.0, t=1.0": lambda x: 2 * x + 1,
    "x * s + t, s=3.0, t=1.0": lambda x: 3 * x + 1,
}


def with_epilogue(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose epilogue is named by a key of EPILOGUES."""

    def call(_: pblas.Context, epilogue: str | None = None, **values: Any) -> Any:
        made: Any = epilogue
        if epilogue and "," in epilogue:
            expression, *numbers = epilogue.split(", ")
            made = Epilogue(expression, **{name: float(x) for name, x in (text.split("=") for text in numbers)})
        return function(**values, epilogue=made)

    return call


def product(
    a: Array,
    b: Array,
    c: Array | None = None,
    transa: str = "N",
    transb: str = "N",
    alpha: complex = 1.0,
    beta: complex | None = None,
    epilogue: str | None = None,
    scale_a: float = 1.0,
    scale_b: float = 1.0,
    scale_d: float = 1.0,
    **_: Any,
) -> Array:
    """D = epilogue(alpha op(A) op(B) + beta C)."""
    wide = "complex128" if a.dtype.kind == "c" else "float64"
    x = alpha * scale_a * scale_b * (applied(transa, a).astype(wide) @ applied(transb, b).astype(wide))
    return scale_d * EPILOGUES[epilogue](plus(x, c, beta))


def planned(function: Callable[..., Any], *of_plan: str) -> Callable[..., Any]:
    """Plan, and execute twice; `of_plan` are the arguments that `execute` does not take."""

    def call(_: pblas.Context, **values: Any) -> Any:
        again = {name: x for name, x in values.items() if name not in of_plan}
        with function(**values) as handle:
            if "out" not in values:
                handle.execute(**again)
            return handle.execute(**again)

    return call


OPTIONS = (
    "transa",
    "transb",
    "alpha",
    "beta",
    "overlap",
    "chunks",
    "tf32",
    "fast_accumulate",
    "strict",
    "reproducible",
)
PRODUCT_OPTIONS = {
    "alpha": SCALARS,
    "transa": TRANS,
    "transb": TRANS,
    "overlap": (False,),
    "chunks": (2,),
    "out": (
        OUT,
        Operand("new general", gap=3),
        Operand("new general", own=True),
        Operand("new general", offset=(1, 2)),
    ),
}
PRODUCTS = (
    Operation(
        "pmatmul",
        called(pblas.pmatmul),
        product,
        values={"a": A, "b": A, "alpha": 1.0, "transa": "N", "transb": "N", "overlap": True, "chunks": None},
        options={
            **PRODUCT_OPTIONS,
            "out": (
                *PRODUCT_OPTIONS["out"],
                *(Layout("rows"), Layout("rows", gap=1), Layout("rows", gap=3), Layout("grid"), Layout("whole")),
            ),
            "c": (A,),
        },
        views=("a", "b"),
        shares=(("b", "a"),),
        dtypes=("complex64", "float64"),
    ),
    Operation(
        "pmatmul: with C",
        called(pblas.pmatmul),
        product,
        values={"a": A, "b": A, "c": A, "alpha": 1.0, "beta": 1.0},
        options={"beta": (None, 2.0, 1j, 0.0), "alpha": (2.0,), "out": (OUT, Operand("new general", gap=3))},
        views=("a", "b"),
        shares=(("c", "a"), ("out", "c")),
    ),
    Operation(
        "pmatmul: of real matrices",
        with_epilogue(pblas.pmatmul),
        product,
        values={"dtype": "float32", "a": A, "b": A, "tf32": False, "strict": False, "fast_accumulate": False}
        | {"reproducible": False},
        options={
            "reproducible": (True, "exact"),
            "epilogue": tuple(filter(None, EPILOGUES)),
            "tf32": (True,),
            "strict": (True,),
            "fast_accumulate": (True,),
            "out_dtype": ("float32",),
        },
        dtypes=("float64", "bfloat16"),
    ),
    Operation(
        "pmatmul: of 16 bits",
        called(pblas.pmatmul),
        product,
        values={"dtype": "bfloat16", "a": Operand(layout="columns"), "b": A, "out_dtype": None, "wire_dtype": None},
        options={"out_dtype": ("float32",), "wire_dtype": ("float32",)},
        dtypes=("float16",),
    ),
    Operation(
        "pmatmul: of 8 bits",
        called(pblas.pmatmul),
        product,
        values={"dtype": "float8_e4m3fn", "a": A, "b": A, "scale_a": 1.0, "scale_b": 1.0},
        options={
            **dict.fromkeys(("scale_a", "scale_b", "scale_d"), (2.0, 0.5)),
            "out_dtype": ("float32", "float16"),
            "b": (Operand(dtype="float8_e5m2"),),
        },
        dtypes=(),
    ),
    Operation(
        "plan_matmul",
        planned(pblas.plan_matmul, *OPTIONS),
        product,
        values={"a": A, "b": A, "alpha": 1.0, "transa": "N", "transb": "N", "overlap": True},
        options=PRODUCT_OPTIONS,
        views=("a", "b"),
        shares=(("b", "a"),),
    ),
    Operation(
        "DistMatrix.__matmul__", lambda _, a, b: a @ b, lambda a, b: a @ b, values={"a": A, "b": A}, views=("a", "b")
    ),
    Operation(
        "DistMatrix.__matmul__: with an array",
        lambda _, a, n: a @ np.arange(a.shape[1] * n, dtype=a.dtype).reshape(a.shape[1], n),
        lambda a, n: a @ np.arange(a.shape[1] * n, dtype=a.dtype).reshape(a.shape[1], n),
        values={"a": A, "n": 2},
        options={"n": (1, 3)},
        views=("a",),
    ),
    Operation(
        "DistMatrix.__rmatmul__",
        lambda _, a: np.arange(2 * len(a), dtype=a.dtype).reshape(2, len(a)) @ a,
        lambda a: np.arange(2 * len(a), dtype=a.dtype).reshape(2, len(a)) @ a,
        values={"a": A},
        views=("a",),
    ),
)


def updated(routine: str) -> Callable[..., Array]:
    """syrk, herk, syr2k or her2k by NumPy."""

    def turned(x: Array) -> Array:
        return x.conj().T if routine.startswith("he") else x.T

    def expected(
        a: Array, b: Any = None, c: Any = None, trans: str = "N", alpha: complex = 1.0, beta: Any = None, **_: Any
    ) -> Array:
        x, y = (x if x is None or trans == "N" else turned(x) for x in (a, b))
        if y is None:
            return plus(alpha * x @ turned(x), c, beta)
        other = np.conj(alpha) if routine == "her2k" else alpha
        return plus(alpha * x @ turned(y) + other * y @ turned(x), c, beta)

    return expected


def of_side(structured: Callable[..., Array]) -> Callable[..., Array]:
    """symm, hemm or trmm by NumPy, where `structured` makes the matrix of one triangle."""

    def expected(
        a: Array,
        b: Array,
        c: Any = None,
        side: str = "L",
        uplo: str = "L",
        trans: str = "N",
        diag: str = "N",
        alpha: complex = 1.0,
        beta: Any = None,
        **_: Any,
    ) -> Array:
        x = applied(trans, structured(a, uplo, diag) if structured is triangle else structured(a, uplo))
        return plus(alpha * (x @ b if side == "L" else b @ x), c, beta)

    return expected


def solution(
    x: Array,
    a: Array,
    b: Array,
    side: str = "L",
    uplo: str = "L",
    trans: str = "N",
    diag: str = "N",
    alpha: complex = 1.0,
    **_: Any,
) -> float:
    """The residual of op(A) X = alpha B, or X op(A) = alpha B."""
    t = applied(trans, triangle(a, uplo, diag))
    right = np.asarray(alpha * b, x.dtype)
    return gauge(right, t, x) if side == "L" else gauge(right, x, t)


OUTS = PRODUCT_OPTIONS["out"]
NEW = (Layout("rows"), Layout("rows", gap=3), Layout("grid"))
ALPHAS: dict[str, tuple[Any, ...]] = {"herk": (2.0, -1.0, 0.0)}
BETAS: dict[str, tuple[Any, ...]] = {"herk": (2.0, 0.0, None), "her2k": (2.0, 0.0, None)}


def structured(routine: str, expected: Callable[..., Array], names: str, **options: tuple[Any, ...]) -> list[Operation]:
    """The entries of a routine of level 3: without C, planned, and with C."""
    values = {**dict.fromkeys(names, A), "alpha": 1.0, "uplo": "L", "overlap": True}
    common: dict[str, Any] = {
        "expected": expected,
        "views": tuple(names),
        "mask": half if routine.startswith(("sy", "he")) and not routine.endswith("mm") else None,
        "dtypes": ("complex64",) if routine.startswith("he") else ("complex64", "float64"),
    }
    options = {
        "alpha": ALPHAS.get(routine, SCALARS),
        "uplo": ("U",),
        "overlap": (False,),
        "out": (*OUTS, *NEW),
    } | options
    of_plan = tuple(name for name in options if name != "out")
    shares = (("b", "a"),) if "b" in names else ()
    entries = [
        Operation(
            f"blas.{routine}", called(getattr(blas, routine)), values=values, options=options, shares=shares, **common
        ),
        Operation(
            f"blas.plan_{routine}",
            planned(getattr(blas, f"plan_{routine}"), *of_plan),
            values=values,
            options={"alpha": (2.0,), "out": OUTS[:1]},
            **common,
        ),
    ]
    if routine != "trmm":
        c = DEFINITE if routine.startswith("he") else A
        entries.append(
            Operation(
                f"blas.{routine}: with C",
                called(getattr(blas, routine)),
                values={**dict.fromkeys(names, A), "c": c, "beta": 1.0},
                options={"beta": BETAS.get(routine, (2.0, 1j, 0.0, None)), "out": OUTS[:1]},
                shares=(("out", "c"),),
                **common,
            )
        )
    return entries


STRUCTURED = [
    *structured("syrk", updated("syrk"), "a", trans=("T",)),
    *structured("herk", updated("herk"), "a", trans=("C",)),
    *structured("syr2k", updated("syr2k"), "ab", trans=("T",)),
    *structured("her2k", updated("her2k"), "ab", trans=("C",)),
    *structured("symm", of_side(symmetric), "ab", side=("R",)),
    *structured("hemm", of_side(hermitian), "ab", side=("R",)),
    *structured("trmm", of_side(triangle), "ab", side=("R",), trans=TRANS, diag=("U",)),
]
SOLVE_OPTIONS = {"side": ("R",), "uplo": ("U",), "trans": TRANS, "diag": ("U",), "alpha": SCALARS, "out": OUTS}
SOLVES = [
    Operation(
        "blas.trsm",
        called(blas.trsm),
        residual=solution,
        values={"a": TRIANGULAR, "b": A, "side": "L", "uplo": "L", "trans": "N", "diag": "N", "alpha": 1.0},
        options=SOLVE_OPTIONS,
        views=("a", "b"),
        shares=(("out", "b"),),
        dtypes=("complex64", "float64"),
    ),
    Operation(
        "blas.plan_trsm",
        planned(blas.plan_trsm, "side", "uplo", "trans", "diag", "alpha"),
        residual=solution,
        values={"a": TRIANGULAR, "b": A, "alpha": 1.0},
        options={"alpha": (2.0,), "out": OUTS[:1]},
        views=("a", "b"),
    ),
    Operation(
        "linalg.solve_triangular",
        called(linalg.solve_triangular),
        residual=lambda x, a, b, lower, trans, unit_diagonal: solution(
            x, a, b, uplo="L" if lower else "U", trans=trans, diag="U" if unit_diagonal else "N"
        ),
        values={"a": TRIANGULAR, "b": A, "lower": False, "trans": "N", "unit_diagonal": False},
        options={"lower": (True,), "trans": TRANS, "unit_diagonal": (True,)},
        views=("a", "b"),
    ),
]

"""Factorizations and solvers as operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg

from pblas import linalg
from pblas.spectral.newton_schulz import MUON
from tests.common.gauge import Array, applied, eps_of, gauge
from tests.common.operations.level3 import called
from tests.common.operations.operation import Operand, Operation

DEFINITE, GENERAL, TALL, B = Operand("definite"), Operand("triangular"), Operand("tall"), Operand("tall", layout="grid")
OUTS = (Operand("new definite"), Operand("new definite", gap=3), Operand("new definite", own=True))
ALGORITHMS = {"algorithm": ("blocked",)}
OVERWRITE = {"overwrite_a": (True,)}


def identity(q: Array) -> float:
    """The error of Q^H Q as the identity, in units of eps."""
    one = np.eye(q.shape[1])
    return float(np.abs(q.conj().T @ q - one).max(initial=0.0) / (eps_of(q.dtype) * max(len(q), 1)))


def solves(x: Array, a: Array, b: Array, trans: str = "N", **_: Any) -> float:
    """The residual of op(A) X = B."""
    return gauge(np.asarray(b, x.dtype), applied(trans, a), x)


def inverts(x: Array, a: Array, **_: Any) -> float:
    """The residual of A X = I."""
    return gauge(np.eye(len(a), dtype=x.dtype), a, x) / len(a)


def cholesky(x: Array, a: Array, upper: bool = False, **_: Any) -> float:
    other = x.conj().T
    return gauge(np.asarray(a, x.dtype), *((other, x) if upper else (x, other))) + float(
        np.abs(np.tril(x, -1) if upper else np.triu(x, 1)).sum()
    )


def qr(*factors: Array, a: Array, **_: Any) -> float:
    """The largest relative error of a column of Q R, and the error of Q; of R alone, the residual of R^H R."""
    r = factors[-1]
    if len(factors) == 1:
        return gauge(np.asarray(a.conj().T @ a, r.dtype), r.conj().T, r) / float(np.sqrt(max(1, len(r))))
    error, size = (np.linalg.norm(x, axis=0) for x in (factors[0] @ r - a, a))
    return max(float((error / np.maximum(size, 1e-30)).max(initial=0.0)) / eps_of(r.dtype), identity(factors[0]))


def lstsq(x: Array, a: Array, b: Array, **_: Any) -> float:
    """The residual of the normal equations."""
    return gauge(np.asarray(a.conj().T @ b, x.dtype), a.conj().T @ a, x)


def cg(x: Array, a: Array, b: Array, tol: float, **_: Any) -> float:
    residuals = np.linalg.norm(b - a @ x, axis=0) / np.linalg.norm(b, axis=0)
    return 0.0 if (residuals <= 2 * tol).all() else float("inf")


def orth(q: Array, a: Array) -> float:
    """The error of Q as a basis of the columns of A."""
    return max(
        identity(q), float(np.abs(a - q @ (q.conj().T @ a)).max(initial=0.0) / eps_of(q.dtype) / (1 + np.abs(a).sum()))
    )


def applies(x: Array, c: Array, **_: Any) -> float:
    """The norm of Q C or C Q, which is that of C; the result itself is compared with Q by test_qr."""
    return float(abs(np.linalg.norm(x) - np.linalg.norm(c)) / eps_of(x.dtype) / np.linalg.norm(c))


def estimates(x: Any, a: Array, norm: float | None = None, **_: Any) -> float:
    """Whether a number is at least the reciprocal condition, and at most ten times that: LAPACK's xGECON."""
    right = 1 / np.linalg.norm(np.linalg.inv(a), 1) / (np.linalg.norm(a, 1) if norm is None else norm)
    return 0.0 if right * (1 - 1e-3) <= x <= 10 * right else float("inf")


def eigh(w: Array, v: Array, a: Array, **_: Any) -> float:
    """The residual of A V = V diag(w), and that of V."""
    return max(float(np.abs(a @ v - v * w).max(initial=0.0) / eps_of(v.dtype) / np.abs(a).sum()), identity(v))


def generalized(w: Array, v: Array, *errors: float, a: Array, b: Array, type: int = 1, **_: Any) -> float:  # noqa: A002
    """The residual of A V = B V diag(w), A B V = V diag(w) or B A V = V diag(w)."""
    left = a @ v if type == 1 else a @ b @ v if type == 2 else b @ a @ v
    error = np.abs(left - (b @ v if type == 1 else v) * w).max(initial=0.0) / (1 if type == 1 else np.abs(b).max())
    return max(float(error / eps_of(v.dtype) / np.abs(a).sum()), *(x / eps_of(v.dtype) / len(a) for x in errors), 0.0)


def eigenvalues(w: Array, a: Array, subset_by_index: list[int] | None = None, **_: Any) -> float:
    """The error of eigenvalues, as multiples of eps times the largest."""
    right = np.linalg.eigvalsh(a)
    first, last = subset_by_index or (0, len(a) - 1)
    if len(w) != last - first + 1:
        return float("inf")
    return float(np.abs(w - right[first : last + 1]).max() / eps_of(w.dtype) / np.abs(right).max())


def polar(u: Array, p: Array, a: Array, side: str = "right", **_: Any) -> float:
    """The residual of A = U P or P U, and that of U."""
    error = (
        np.abs((u @ p if side == "right" else p @ u) - a).max(initial=0.0) / eps_of(u.dtype) / (np.abs(a).sum() or 1)
    )
    return max(float(error), identity(u))


def exponential(x: Array, a: Array, **_: object) -> float:
    right = scipy.linalg.expm(a.astype("c16"))
    if np.abs(right).max() > np.finfo(x.dtype).max / 2:  # for large definite matrices of single precision
        return 0.0
    return float(np.abs(x - right).max() / eps_of(x.dtype) / np.abs(a).sum() / np.abs(right).max())


def powers(x: Array, a: Array, power: int, p: int | None = None) -> float:
    """The error of X^power as A, or with a negative power of A X^-power as I."""
    power = power if p is None else -p
    y = np.linalg.matrix_power(x, abs(power))
    right = a if power > 0 else np.eye(len(a))
    return float(np.abs((y if power > 0 else a @ y) - right).max() / eps_of(x.dtype) / np.abs(a).sum())


def pinv(x: Array, a: Array, **_: Any) -> float:
    """The residual of A X A = A, in units of the norms: small elements of X have the error of large ones."""
    size = np.abs(a).sum() * np.abs(x).sum() * np.abs(a).sum()
    return float(np.abs(a @ x @ a - a).max() / eps_of(x.dtype) / size)


def svd(u: Array, s: Array, vh: Array, a: Array, **_: Any) -> float:
    """The residual of A = U diag(S) Vh, and those of U and V."""
    error = np.abs((u[:, : len(s)] * s) @ vh[: len(s)] - a).max(initial=0.0) / eps_of(u.dtype) / (np.abs(a).sum() or 1)
    return max(float(error), identity(u), identity(vh.conj().T))


def svdvals(s: Array, a: Array, **_: Any) -> float:
    """The error of singular values, as multiples of eps times the largest."""
    right = np.linalg.svd(a, compute_uv=False)
    return float(np.abs(s - right).max() / eps_of(s.dtype) / right[0])


def lu_of(_: Any, a: Any, **options: Any) -> Any:
    factor = linalg.lu_factor(a, **options)
    return factor.lu(), factor.pivots


def lu(x: Array, pivots: Array, a: Array, **_: Any) -> float:
    """The residual of P A = L U."""
    rows = a.astype(x.dtype)
    for i, k in enumerate(pivots):
        rows[[i, k]] = rows[[k, i]]
    return gauge(rows, np.tril(x, -1) + np.eye(len(x), dtype=x.dtype), np.triu(x))


def of_factor(factor: Callable[..., Any], name: str, *names: str) -> Callable[..., Any]:
    """Factor A, and call a method with the arguments named."""

    def call(_: Any, a: Any, **values: Any) -> Any:
        given = {name: values.pop(name) for name in names if name in values}
        return getattr(factor(a, **values), name)(**given)

    return call


def newton_schulz(y: Array, x: Array, steps: int, coefficients: tuple[float, ...] = MUON, **_: Any) -> float:
    """The distance from the same steps in twice as many digits; a step amplifies small errors by a."""
    z = x.astype("complex128") / np.linalg.norm(x)
    a, b, c = coefficients
    for _step in range(steps):
        g = z @ z.conj().T
        z = a * z + (b * g + c * g @ g) @ z
    return float(np.abs(y - z).max() / eps_of(y.dtype) / a**steps / np.abs(z).max())


def close(function: Callable[..., Any]) -> Callable[..., float]:
    """The relative error of a number."""

    def error(x: Any, a: Array, **values: Any) -> float:
        right = function(a.astype("complex128" if np.iscomplexobj(a) else "float64"), **values)
        if not abs(right) <= np.finfo(np.asarray(x).dtype).max:  # of a determinant
            return 0.0 if np.isinf(abs(x)) else float("inf")
        if x == right:
            return 0.0
        return float(np.abs(x - right) / eps_of(np.asarray(x).dtype) / np.abs(right) / len(a))

    return error


FACTORS = [
    Operation(
        "linalg.cholesky",
        called(linalg.cholesky),
        residual=cholesky,
        values={"a": DEFINITE, "upper": False},
        options={"upper": (True,), "out": OUTS, **ALGORITHMS, **OVERWRITE},
        views=("a",),
        shares=(("out", "a"),),
        dtypes=("complex64", "float64"),
    ),
    Operation(
        "linalg.plan_cholesky",
        lambda _, a, **options: linalg.plan_cholesky(a, **options).execute(a),
        residual=cholesky,
        values={"a": DEFINITE, "upper": False},
        options={"upper": (True,), **ALGORITHMS},
    ),
    *(
        Operation(
            f"linalg.cho_factor: {name}",
            of_factor(linalg.cho_factor, name, "b"),
            residual=residual,
            values={"a": DEFINITE, "lower": True, "check": True} | ({"b": B} if name == "solve" else {}),
            options={"lower": (False,), "check": (False,), **ALGORITHMS, **OVERWRITE},
            views=("a", "b") if name == "solve" else ("a",),
        )
        for name, residual in (
            ("solve", solves),
            ("inv", inverts),
            ("det", close(lambda a, **_: np.linalg.det(a))),
            ("logdet", close(lambda a, **_: np.linalg.slogdet(a)[1])),
        )
    ),
    *(
        Operation(
            f"linalg.lu_factor: {name}",
            of_factor(linalg.lu_factor, name, "b", "trans", "norm", "check"),
            residual=residual,
            values={"a": GENERAL, **values},
            options={**options, **ALGORITHMS, **OVERWRITE},
            views=("a", "b") if name == "solve" else ("a",),
        )
        for name, residual, values, options in (
            ("solve", solves, {"b": B, "trans": "N", "check": True}, {"trans": ("T", "C"), "check": (False,)}),
            ("inv", inverts, {}, {}),
            ("det", close(lambda a, **_: np.linalg.det(a)), {}, {}),
            ("rcond", estimates, {"norm": None}, {"norm": (8.0,)}),
        )
    ),
    Operation(
        "linalg.lu_factor: slogdet",
        lambda _, a, **options: linalg.lu_factor(a, **options).slogdet()[1],
        residual=close(lambda a: np.linalg.slogdet(a)[1]),
        values={"a": GENERAL},
    ),
    Operation(
        "linalg.lu_factor: lu",
        lu_of,
        residual=lu,
        values={"a": GENERAL},
        options={"algorithm": ("blocked", "grid"), "pivoting": ("tournament", None), **OVERWRITE},
        views=("a",),
    ),
    Operation(
        "linalg.plan_lu",
        lambda _, a, b, **options: linalg.plan_lu(a, **options).execute(a).solve(b),
        residual=solves,
        values={"a": GENERAL, "b": B},
        options={"algorithm": ("blocked", "grid"), "pivoting": ("tournament",)},
    ),
    Operation(
        "linalg.inv",
        called(linalg.inv),
        residual=inverts,
        values={"a": GENERAL},
        options={"check": (False,), **OVERWRITE},
        views=("a",),
    ),
    Operation(
        "linalg.solve",
        called(linalg.solve),
        residual=solves,
        values={"a": DEFINITE, "b": B, "assume_a": "gen"},
        options={"assume_a": ("pos",), "check": (False,), **OVERWRITE},
        views=("a", "b"),
        dtypes=("complex64", "float64"),
    ),
    Operation(
        "linalg.solve: refined",
        called(linalg.solve),
        residual=solves,
        values={"a": DEFINITE, "b": B, "dtype": "float64", "assume_a": "gen", "refine": "float32"},
        options={"assume_a": ("pos",), "refine": ("tf32", "float16")},
        dtypes=("complex128",),
    ),
    Operation(
        "linalg.det",
        called(linalg.det),
        residual=close(np.linalg.det),
        values={"a": GENERAL},
        views=("a",),
    ),
    Operation(
        "linalg.slogdet",
        lambda _, a: linalg.slogdet(a)[1],
        residual=close(lambda a: np.linalg.slogdet(a)[1]),
        values={"a": DEFINITE},
        views=("a",),
    ),
    Operation(
        "linalg.cond",
        called(linalg.cond),
        residual=close(np.linalg.cond),
        values={"a": DEFINITE, "p": 1},
        options={"p": (np.inf, 2, -2, None)},
        views=("a",),
    ),
    Operation(
        "linalg.matrix_norm",
        called(linalg.matrix_norm),
        residual=close(np.linalg.norm),
        values={"a": GENERAL, "ord": "fro"},
        options={"ord": (1, np.inf, 2, -2, "nuc")},
        views=("a",),
    ),
    Operation(
        "linalg.qr",
        called(linalg.qr),
        residual=qr,
        values={"a": TALL, "mode": "reduced"},
        options={"mode": ("r", "complete"), "algorithm": ("blocked", "grid", "tsqr"), **OVERWRITE},
        views=("a",),
    ),
    Operation(
        "linalg.qr: pivoting",
        called(linalg.qr),
        residual=lambda q, r, order, a, **_: qr(q, r, a=a[:, order]),
        values={"a": TALL, "pivoting": True},
        views=("a",),
    ),
    Operation(
        "linalg.plan_rsvd",
        lambda _, a, k, **options: linalg.plan_rsvd(a, k, **options).execute(a)[:3],
        residual=svd,
        values={"a": Operand("column"), "k": 1, "oversample": 0, "power": 1, "seed": 0},
        options={"power": (0,), "oversample": (2,), "seed": (3,)},
    ),
    Operation(
        "linalg.rsvd",
        lambda _, a, **options: linalg.rsvd(a, **options)[:3],
        residual=svd,
        values={"a": Operand("column"), "k": 1, "oversample": 0, "power": 1, "seed": 0},
        options={"power": (0,), "oversample": (2,), "seed": (3,)},
        views=("a",),
    ),
    *(
        Operation(
            f"linalg.qr_factor: {name}",
            of_factor(linalg.qr_factor, name, *names),
            residual=residual,
            values={"a": TALL} | values,
            options={**options, "algorithm": ("blocked", "grid"), **OVERWRITE},
        )
        for name, names, residual, values, options in (
            ("q", ("mode",), lambda x, **_: identity(x), {"mode": "reduced"}, {"mode": ("complete",)}),
            ("r", ("mode",), qr, {"mode": "reduced"}, {"mode": ("complete",)}),
            (
                "apply_q",
                ("c", "side", "trans"),
                applies,
                {"c": Operand(), "side": "L", "trans": "N"},
                {"side": ("R",), "trans": ("C",)},
            ),
        )
    ),
    Operation(
        "linalg.plan_qr",
        lambda _, a, **options: linalg.plan_qr(a, **options).execute(a).r(),
        residual=qr,
        values={"a": TALL},
        options={"algorithm": ("blocked", "grid")},
    ),
    Operation(
        "linalg.lstsq",
        lambda _, a, b, **options: linalg.lstsq(a, b, **options)[0],
        residual=lstsq,
        values={"a": TALL, "b": Operand(layout="grid")},
        options={"rcond": (1e-6,), **OVERWRITE},
        views=("a", "b"),
    ),
    Operation(
        "linalg.plan_pinv",
        lambda _, a, **options: linalg.plan_pinv(a, **options).execute(a),
        residual=pinv,
        values={"a": DEFINITE, "rtol": None},
        options={"rtol": (1e-6,)},
    ),
    Operation(
        "linalg.pinv",
        called(linalg.pinv),
        residual=pinv,
        values={"a": DEFINITE, "rtol": None, "hermitian": False},
        options={"rtol": (1e-6,), "hermitian": (True,)},
        views=("a",),
    ),
    Operation(
        "linalg.matrix_rank",
        called(linalg.matrix_rank),
        expected=lambda a, **_: len(a),
        values={"a": DEFINITE, "rtol": None, "hermitian": False},
        options={"rtol": (1e-6,), "hermitian": (True,)},
        views=("a",),
    ),
    Operation(
        "linalg.eigh",
        called(linalg.eigh),
        residual=eigh,
        values={"a": DEFINITE, "lower": True, "subset_by_index": None, "subset_by_value": None},
        options={
            "lower": (False,),
            "subset_by_index": ([0, 0],),
            "subset_by_value": ([-1e3, 1e3],),
            "algorithm": ("blocked", "local"),
            **OVERWRITE,
        },
        views=("a",),
        dtypes=("complex64", "float64"),
    ),
    Operation(
        "linalg.eigh: generalized",
        called(linalg.eigh),
        residual=generalized,
        values={"a": DEFINITE, "b": Operand("definite", layout="grid"), "type": 1, "check": False},
        options={"type": (2, 3), "check": (True,)},
        views=("a", "b"),
        shares=(("b", "a"),),
    ),
    Operation(
        "linalg.eigvalsh",
        called(linalg.eigvalsh),
        residual=eigenvalues,
        values={"a": DEFINITE, "lower": True, "subset_by_index": None, "subset_by_value": None},
        options={
            "lower": (False,),
            "subset_by_index": ([1, 2],),
            "subset_by_value": ([-1e3, 1e3],),
            "algorithm": ("blocked", "local"),
        },
        views=("a",),
        least=3,
    ),
    Operation(
        "linalg.plan_eigh",
        lambda _, a, **options: linalg.plan_eigh(a, **options).execute(a),
        residual=eigh,
        values={"a": DEFINITE, "lower": True},
        options={"lower": (False,), "algorithm": ("blocked",)},
    ),
    Operation(
        "linalg.svd",
        called(linalg.svd),
        residual=svd,
        values={"a": TALL, "full_matrices": False},
        options={"a": (DEFINITE,), "full_matrices": (True,), "algorithm": ("blocked", "local", "polar"), **OVERWRITE},
        views=("a",),
        least=2,
    ),
    Operation(
        "linalg.svdvals",
        called(linalg.svdvals),
        residual=svdvals,
        values={"a": DEFINITE},
        options={"algorithm": ("blocked", "local", "polar")},
        views=("a",),
    ),
    Operation(
        "linalg.plan_svd",
        lambda _, a, **options: linalg.plan_svd(a, **options).execute(a),
        residual=svd,
        values={"a": TALL, "full_matrices": False},
        options={"full_matrices": (True,), "algorithm": ("blocked",)},
    ),
    Operation(
        "linalg.plan_polar",
        lambda _, a, **options: linalg.plan_polar(a, **options).execute(a),
        residual=polar,
        values={"a": TALL, "side": "right"},
        options={"side": ("left",)},
    ),
    Operation(
        "linalg.polar",
        called(linalg.polar),
        residual=polar,
        values={"a": TALL, "side": "right"},
        options={"a": (DEFINITE,), "side": ("left",), "algorithm": ("newton", "qdwh", "svd")},
        views=("a",),
        least=2,
    ),
    Operation(
        "linalg.newton_schulz",
        called(linalg.newton_schulz),
        residual=newton_schulz,
        values={"x": DEFINITE, "steps": 5},
        options={"steps": (6,), "coefficients": ((1.5, -0.5, 0.0),)},
        views=("x",),
        dtypes=("complex64", "float32"),
    ),
    Operation(
        "linalg.orthogonalize_many",
        lambda _, a, b, **options: linalg.orthogonalize_many([a, b], **options)[0],
        residual=lambda y, a, function, p, steps, coefficients, **_: (
            newton_schulz(y, a, steps, coefficients)
            if function == "newton_schulz"
            else powers(y, a, -p)
            if function == "inverse_root"
            else polar(y, (p := y.conj().T @ a), a)
            + float(np.abs(p - p.conj().T).max() / eps_of(y.dtype) / np.abs(a).sum())
        ),
        values={"a": DEFINITE, "b": DEFINITE, "function": "newton_schulz", "p": 3, "steps": 5, "coefficients": MUON},
        options={
            "function": ("polar", "inverse_root"),
            "p": (2,),
            "steps": (6,),
            "coefficients": ((1.5, -0.5, 0.0),),
        },
        views=("a", "b"),
        shares=(("b", "a"),),
    ),
    *(
        Operation(
            f"linalg.{function.__name__}",
            called(function),
            residual=lambda x, a, power=power, **values: powers(x, a, power, **values),
            values={"a": DEFINITE, **values},
            views=("a",),
        )
        for function, power, values in (
            (linalg.sqrtm, 2, {}),
            (linalg.invsqrtm, -2, {}),
            (linalg.inverse_root, -3, {"p": 3}),
        )
    ),
    Operation("linalg.signm", called(linalg.signm), residual=lambda x, **_: identity(x), values={"a": DEFINITE}),
    Operation(
        "linalg.expm",
        called(linalg.expm),
        residual=exponential,
        values={"a": DEFINITE, "hermitian": False},
        options={"hermitian": (True,)},
        views=("a",),
    ),
    Operation("linalg.orth", called(linalg.orth), residual=orth, values={"a": TALL}, views=("a",)),
    Operation(
        "linalg.cg",
        lambda _, a, b, **options: linalg.cg(a, b, **options)[0],
        residual=cg,
        values={"a": DEFINITE, "b": B, "tol": 1e-5, "maxiter": 50},
        options={"tol": (1e-2,), "maxiter": (60,), "preconditioner": (Operand("definite"),)},
        views=("a",),
    ),
]

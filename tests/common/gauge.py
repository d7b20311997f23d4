"""The scaled residual of the PBLAS testing programs (their "gauge"), which all numerical tests use; and test matrices.

The error of an entry is counted in units of eps times the sum of the absolute values of its terms; more than 16 units
is a failure.

Source: ScaLAPACK PBLAS/TESTING, PDMMCH.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from pblas.backends.dtypes import dtype_of_name

Array = np.ndarray[Any, np.dtype[Any]]

THRESHOLD = 16.0
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
NAMES = ("float32", "float64", "complex64", "complex128", "float16", "bfloat16")
"""Every dtype that pblas multiplies."""


def dtype_of(name: str) -> np.dtype[Any]:
    return dtype_of_name(name)


def eps_of(dtype: np.dtype[Any]) -> float:
    finfo: Any = ml_dtypes.finfo
    return float(finfo(dtype).eps)


def entries(shape: tuple[int, int], dtype: np.dtype[Any], seed: int) -> Array:
    """A matrix with entries from (-1, 1), real and imaginary parts independent and none of them 0."""
    rng = np.random.default_rng(seed)
    signs = rng.choice([-1.0, 1.0], shape)
    values: Array = signs * rng.uniform(0.1, 1.0, shape)
    if dtype.kind == "c":
        values = values + 1j * rng.choice([-1.0, 1.0], shape) * rng.uniform(0.1, 1.0, shape)
    return values.astype(dtype)


def applied(trans: str, x: Array) -> Array:
    """op(x), by its definition."""
    return {"N": x, "T": x.T, "C": x.conj().T}[trans]


def gauge(
    result: Array, a: Array, b: Array, c: Array | None = None, *, alpha: complex = 1.0, beta: complex = 0.0
) -> float:
    """Largest error of `result` as alpha a b + beta c, in units of eps times the sum of the terms' absolute values.

    Args:
        result: m x n; its dtype determines eps.
        a: op(A), m x k.
        b: op(B), k x n.
        c: C, m x n; not read when beta is 0.
        alpha: scalar; a and b are not read when it is 0.
        beta: scalar.
    """
    assert result.shape == (a.shape[0], b.shape[1])
    assert a.shape[1] == b.shape[0]
    wide: Any = np.clongdouble if result.dtype.kind == "c" else np.longdouble
    exact: Array = np.zeros(result.shape, wide)
    size: Array = np.zeros(result.shape, np.longdouble)
    if alpha != 0:
        exact += wide(alpha) * (a.astype(wide) @ b.astype(wide))
        size += _size(alpha) * (_sizes(a) @ _sizes(b))
    if beta != 0:
        assert c is not None
        exact += wide(beta) * c.astype(wide)
        size += _size(beta) * _sizes(c)
    error = np.abs(result.astype(wide) - exact)
    assert not np.isnan(error).any(), "NaN in the result"
    assert (error[size == 0] == 0).all(), "entries without terms must be exactly 0"
    inside = size != 0
    return float((error[inside] / (eps_of(result.dtype) * size[inside])).max(initial=0.0))


def _size(z: complex) -> float:
    return abs(complex(z).real) + abs(complex(z).imag)


def _sizes(x: Array) -> Array:
    """|Re x| + |Im x|, as PBLAS measures complex numbers."""
    if x.dtype.kind == "c":
        wide = x.astype(np.clongdouble)
        return np.asarray(np.abs(wide.real) + np.abs(wide.imag))
    return np.abs(x.astype(np.longdouble))

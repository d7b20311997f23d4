"""The accuracy of a product: the gauge, which is the scaled residual of the PBLAS tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array

LIMIT = 16.0


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of the reference: a more precise one, if NumPy multiplies it fast."""
    if dtype.itemsize == 2:
        return np.dtype(np.float32)
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def magnitude(a: Array) -> Array:
    """|a|, for complex numbers |Re a| + |Im a|."""
    return np.abs(a.real) + np.abs(a.imag) if a.dtype.kind == "c" else np.abs(a)


def gauge(d: Array, reference: Array, growth: Array) -> float:
    """max |D - reference| / (eps G), with the machine epsilon of D's dtype.

    Source: PBLAS TESTING, pblastst.f, PZMMCH, with eps = numpy.finfo(dtype).eps.

    >>> one = np.ones((1, 1))
    >>> gauge(one + 2**-52, one, one)
    1.0
    """
    if not d.size:
        return 0.0
    eps = float(ml_dtypes.finfo(d.dtype).eps)  # type: ignore[no-untyped-call]
    error = np.abs(d.astype(reference.dtype) - reference)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0, 0.0, error / (eps * growth))
    return float(ratio.max())

"""Element types: the dtypes that pblas multiplies, and the dtype in which each is added."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

FLOAT16, FLOAT32 = np.dtype(np.float16), np.dtype(np.float32)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = (FLOAT32, np.dtype(np.float64), np.dtype(np.complex64), np.dtype(np.complex128), FLOAT16, BFLOAT16)
"""Every dtype that pblas multiplies."""


def accumulator_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """dtype in which products of `dtype` are added: float32 for the 16-bit ones, else `dtype` itself.

    >>> accumulator_dtype(np.dtype("float16")), accumulator_dtype(np.dtype("complex64"))
    (dtype('float32'), dtype('complex64'))
    """
    return FLOAT32 if dtype.itemsize == FLOAT16.itemsize else dtype

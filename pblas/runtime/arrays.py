"""The conversion of arrays that every call takes: integers and bools too, and elements are never rounded silently."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pblas import errors
from pblas.backends.dtypes import STORED

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype
    from pblas.runtime.runtime import Runtime


def checked_array(opname: str, name: str, value: object, runtime: Runtime) -> Array:
    """An array of numbers, or a number, as an array in the memory of the backend or of the host (local)."""
    if hasattr(value, "toarray"):  # SciPy's and CuPy's sparse matrices
        raise errors.ArgumentError(
            f"{opname}: expected a dense array, got a sparse {type(value).__name__}; pass its .toarray()"
        )
    try:
        array = runtime.backend.as_array(float(value) if type(value) is int else value)
    except OverflowError:
        raise errors.ArgumentError(f"{opname}: {name} is too large for any dtype of pblas") from None
    except errors.ArgumentError as caught:
        raise errors.ArgumentError(f"{opname}: {name}: {caught}") from None
    except (TypeError, ValueError) as caught:
        raise errors.ArgumentError(f"{opname}: {name} is not an array: {caught}") from None
    if array.dtype.kind not in "biufc" and array.dtype not in STORED:
        raise errors.DTypeError(
            f"{opname}: {name} has elements of dtype {array.dtype}, not numbers; convert with .astype('float64')"
        )
    return array


def converted_array(opname: str, name: str, x: Array, dtype: Dtype, *, rounds: bool = False) -> Array:
    """An array in the dtype of a matrix, which holds its elements, or `rounds` them as an assignment does (local)."""
    if x.dtype.kind == "c" and dtype.kind != "c":
        raise errors.DTypeError(
            f"{opname}: {name} is {x.dtype.name}, the matrix {dtype.name}; pass its real part, or a complex matrix"
        )
    converted = x.astype(dtype, copy=False)
    if rounds or x.dtype == dtype or np.can_cast(x.dtype, dtype):
        return converted
    if x.dtype.kind in "iu" and bool((converted.real.astype(np.float64) == x).all()):
        return converted
    raise errors.DTypeError(
        f"{opname}: {name} is {x.dtype.name}, the matrix {dtype.name}, in which elements would be rounded; pass "
        f"np.asarray({name}, {dtype.name!r}), or convert the matrix with .astype"
    )

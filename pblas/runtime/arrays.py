"""The conversion of arrays that every call takes: integers and bools too, and elements are never rounded silently."""

from __future__ import annotations

import zlib

import numpy as np

from pblas import errors
from pblas.backends.agreement import CHECKSUM
from pblas.backends.dtypes import STORED, Array, Dtype
from pblas.runtime.runtime import Runtime, name_of

COMPARED_NBYTES = 16 << 10
"""Bytes of an array that all ranks compare without Context(debug=True): 4 us for their checksum, at 4 GB/s."""


def equal_array(opname: str, name: str, value: object, runtime: Runtime) -> Array:
    """An array or a number in host memory that all ranks have: the next agreement compares it (local)."""
    array = runtime.backend.reading(checked_array(opname, name, value, runtime))
    compare_array(name, array, runtime)
    return array


def compare_array(name: str, x: Array, runtime: Runtime) -> None:
    """Let the next agreement compare an array that must be equal on all ranks, bit by bit (local).

    Of an array of more than `COMPARED_NBYTES` it compares some rows or columns, and nothing of an array in the memory
    of a GPU, unless the context has debug=True.
    """
    backend = runtime.backend
    if backend.size == 1 or (backend.gpus and backend.is_here(x) and not runtime.debug):
        return
    if x.nbytes > COMPARED_NBYTES and not runtime.debug:
        longest = x if x.shape[0] >= x.shape[-1] else x.T
        sample = longest[:: -(-x.nbytes // COMPARED_NBYTES)]
    else:
        sample = x
    elements = backend.reading(sample)
    if x.ndim:
        text = f"{name_of(x.dtype)} of shape {x.shape} with {CHECKSUM} {zlib.crc32(elements.tobytes()):08x}"
    else:
        text = repr(elements.item())
    backend.compared += f"\n{name if ' ' in name else f'the array {name}'}={text}"


def checked_array(opname: str, name: str, value: object, runtime: Runtime) -> Array:
    """An array of numbers, or a number, as an array in the memory of the backend or of the host (local)."""
    if hasattr(value, "toarray"):  # SciPy's and CuPy's sparse matrices
        raise errors.ArgumentError(
            f"{opname}: expected a dense array, got a sparse {type(value).__name__}; pass its .toarray()"
        )
    if value is None:
        raise errors.ArgumentError(f"{opname}: {name} is None; pass an array")
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
        f"np.asarray({name if name.isidentifier() else 'x'}, {dtype.name!r}), or convert the matrix with .astype"
    )

"""Element types: the dtypes that pblas stores, multiplies and adds, and the combinations that a product may have."""

from __future__ import annotations

from ctypes import c_size_t
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeVar

import ml_dtypes
import numpy as np

from pblas import errors

Dtype = np.dtype[Any]
Array = np.ndarray[tuple[Any, ...], Dtype]
Vector = np.ndarray[tuple[int], Dtype]
Table = np.ndarray[tuple[int, int], Dtype]
Index = slice | Array  # of elements along one dimension
Places = tuple[Index, Index]  # of elements of a matrix: its rows, and its columns
Real = np.floating[Any]
Number = np.inexact[Any]
Scalar = complex | np.number[Any]

_pointer_at = c_size_t.from_address
Order = Literal["F", "C"]  # storage order: by columns or by rows
ArrayT = TypeVar("ArrayT")  # an array of any library, whose functions give arrays of the same library
FLOAT16, FLOAT32 = np.dtype(np.float16), np.dtype(np.float32)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
BYTE = np.dtype(np.uint8)
E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
DTYPES = (FLOAT32, np.dtype(np.float64), np.dtype(np.complex64), np.dtype(np.complex128), FLOAT16, BFLOAT16)
"""Every dtype that pblas computes with."""
FLOAT8 = (E4M3, E5M2)  # dtypes of 8 bits: matrices of them are moved, converted and multiplied, but not added
STORED = DTYPES + FLOAT8  # every dtype that a matrix may have
_NAMED = {dtype.name: dtype for dtype in (BFLOAT16, *FLOAT8)}  # dtypes that NumPy does not find by their names

RESULTS: dict[Dtype, tuple[Dtype, ...]] = {
    **{dtype: (dtype,) for dtype in DTYPES[:4]},
    **{dtype: (dtype, FLOAT32) for dtype in (FLOAT16, BFLOAT16)},
    **dict.fromkeys(FLOAT8, (BFLOAT16, FLOAT16, FLOAT32)),
}
"""The dtypes that D = op(A) op(B) may have, by the dtype of A; the first is the default.

Products of up to 32 bits are added in float32. A and B have one dtype, or both have 8 bits and one of them is E4M3.
Source: cuBLAS documentation, cublasLtMatmul, table of supported data types.
"""


def dtype_of_name(name: Any) -> Dtype:
    """A dtype by its name, also of those that NumPy lacks; TypeError or ValueError if there is none.

    >>> dtype_of_name("bfloat16"), dtype_of_name("f4"), dtype_of_name("float8_e5m2")
    (dtype(bfloat16), dtype('float32'), dtype(float8_e5m2))
    """
    return _NAMED[name] if isinstance(name, str) and name in _NAMED else np.dtype(name)


def accumulator_dtype(dtype: Dtype) -> Dtype:
    """dtype in which products of `dtype` are added: float32 for those of 8 and 16 bits, else `dtype` itself.

    >>> accumulator_dtype(np.dtype("float16")), accumulator_dtype(np.dtype("complex64"))
    (dtype('float32'), dtype('complex64'))
    """
    return FLOAT32 if dtype.itemsize < FLOAT32.itemsize else dtype


def address_of(x: Array) -> int:
    """Address of the first element of a NumPy array: 0.1 us, where `x.__array_interface__` takes 1.7 us (local).

    Source: NumPy C API, PyArrayObject: the member after the head of every object is `char *data`.

    >>> x = np.arange(4)[1:]
    >>> address_of(x) == x.ctypes.data
    True
    """
    return _pointer_at(id(x) + object.__basicsize__).value


def index_at(places: Places) -> Any:
    """The index of NumPy for some rows and columns of a matrix; a view if both are slices.

    >>> np.arange(9).reshape(3, 3)[index_at((np.array([0, 2]), np.array([1, 2])))].tolist()
    [[1, 2], [7, 8]]
    """
    rows, columns = places
    return places if isinstance(rows, slice) or isinstance(columns, slice) else np.ix_(rows, columns)


def strided(x: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """The memory from the start of x under another shape and strides: NumPy's `as_strided`, also for 8 bits.

    NumPy does not find the dtype float8_e5m2 by the name that arrays publish.
    """
    words = x.view(np.uint8) if x.dtype in FLOAT8 else x
    return np.lib.stride_tricks.as_strided(words, shape, strides).view(x.dtype)


class GpuArray(Protocol):
    """What pblas uses of a CuPy array, since CuPy has no types; every `Array` is one to a type checker."""

    @property
    def data(self) -> Any:
        """The memory from the first element on: a `cupy.cuda.MemoryPointer`."""

    @property
    def shape(self) -> tuple[Any, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Dtype: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def flags(self) -> Any: ...
    @property
    def T(self) -> Self: ...
    def view(self, dtype: object, /) -> Any: ...
    def conj(self) -> Any: ...
    def __iter__(self) -> Any: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...
    def __setitem__(self, index: Any, value: Any, /) -> None: ...


def wire_of(dtype: Dtype) -> Dtype:
    """The dtype in which partial products travel by default.

    That of float16 is float32: products of numbers above 200 overflow in part where their sum does not.

    >>> wire_of(FLOAT16)
    dtype('float32')
    """
    return FLOAT32 if dtype == FLOAT16 else dtype


class ProductDtypes(NamedTuple):
    """dtypes of D = op(A) op(B) + C, or of the product that a plan sees, whose A may be the user's B^T."""

    a: Dtype  # of A (global)
    b: Dtype  # of B: that of A, or another one of 8 bits (global)
    c: Dtype  # of C: that of D, or a narrower one (global)
    d: Dtype  # of D (global)
    wire: Dtype  # in which partial products travel: that of D, or float32 (global)

    @classmethod
    def of(cls, dtype: Dtype, wire: Dtype | None = None) -> ProductDtypes:
        """All matrices of one dtype."""
        return cls(dtype, dtype, dtype, dtype, wire_of(dtype) if wire is None else wire)

    @property
    def T(self) -> ProductDtypes:
        """Those of the transposed product."""
        return self if self.a is self.b else self._replace(a=self.b, b=self.a)

    @property
    def total(self) -> Dtype:
        """dtype in which products are added."""
        return accumulator_dtype(self.d)

    def check(self, opname: str, source: str = "D") -> None:
        """Raise DTypeError unless the dtypes may be combined (global).

        >>> ProductDtypes(E4M3, E5M2, FLOAT32, FLOAT32, FLOAT32).check("pmatmul")
        >>> ProductDtypes(E5M2, E5M2, FLOAT32, FLOAT32, FLOAT32).check("pmatmul")
        Traceback (most recent call last):
            ...
        pblas.errors.DTypeError: pmatmul: A and B are float8_e5m2, which cuBLASLt does not multiply; make one of them \
float8_e4m3fn, with .astype("float8_e4m3fn")
        """
        a, b, c, d = self.a, self.b, self.c, self.d
        if a == b == E5M2:
            raise errors.DTypeError(
                f"{opname}: A and B are {E5M2.name}, which cuBLASLt does not multiply; make one of them {E4M3.name}, "
                f'with .astype("{E4M3.name}")'
            )
        if a != b and not (a in FLOAT8 and b in FLOAT8):
            raise errors.DTypeError(
                f"{opname}: B is {b.name}, A is {a.name}; they must have one dtype, or 8 bits each: "
                f'convert one, as with B.astype("{a.name}")'
            )
        if d not in RESULTS[a]:
            names = " or ".join(dtype.name for dtype in RESULTS[a])
            raise errors.DTypeError(
                f"{opname}: {source} is {d.name}, A is {a.name}; D can be {names} then: pass such an out= or out_dtype="
            )
        if c != d and not (d == FLOAT32 and c in RESULTS[a]):
            raise errors.DTypeError(
                f"{opname}: C is {c.name}, D is {d.name}; C must have the dtype of D, or with a float32 D also 16 bits "
                f'that products of A may have: convert with C.astype("{d.name}")'
            )

"""Operators of matrices, as A @ B.

Each one calls an operation, which stands in a package above this one; `pblas/_operators.py` registers them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, overload

from pblas.errors import ArgumentError
from pblas.runtime.calls import collective

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

    from pblas.backends.dtypes import Array, Number, Real, Table, Vector
    from pblas.layouts.descriptor import MatrixDescriptor

Ord = Literal["fro", "inf", "max"] | float  # the norms of a matrix; as numbers 1 and inf


class Operations(NamedTuple):
    """The operations that the operators call; each takes the matrix first."""

    pmatmul: Callable[..., object]
    product_with_array: Callable[..., object]
    combined: Callable[..., object]
    redistribute: Callable[..., object]
    assign: Callable[..., None]
    reduction: Callable[..., object]
    trace: Callable[..., Any]
    diagonal: Callable[..., Any]
    norm: Callable[..., object]


def _ndim(x: Any) -> int | None:
    """The number of dimensions of an array; None of anything else, and of an object whose attributes raise (local)."""
    try:
        return getattr(x, "ndim", None)
    except Exception:  # noqa: BLE001 - a property of another library
        return None


class Operators:
    """Operators and methods of `DistMatrix` that call an operation."""

    __slots__ = ()

    _operations: ClassVar[Operations]

    @staticmethod
    def register(operations: Operations) -> None:
        """Set the operations behind the operators of all matrices."""
        Operators._operations = operations

    @overload
    def __matmul__(self, other: Vector) -> Vector: ...
    @overload
    def __matmul__(self, other: Self | Table) -> Self: ...
    def __matmul__(self, other: object) -> Any:
        """**Collective.** The product with a matrix or an array.

        Args:
            other: k x n matrix: `pmatmul(self, other)`; or an array that is equal on all ranks: of k elements, or
                k x n, of integers, bools, or numbers that the dtype of this matrix holds (global).

        Returns:
            The product: a matrix, or for an array of one dimension an array of m elements, equal on all ranks.

        Raises:
            ArgumentError: neither a matrix nor an array.
            DescriptorError: inner dimensions that differ.
            DTypeError: two matrices of different dtypes, or an array whose elements would be rounded.

        >>> import numpy as np, pblas
        >>> with pblas.Context() as ctx:
        ...     (ctx.eye(3) @ np.arange(3)).tolist()
        [0.0, 1.0, 2.0]
        """
        if isinstance(other, Operators):
            return self._operations.pmatmul(self, other)
        if _ndim(other) is None and hasattr(type(other), "__rmatmul__"):  # an object that multiplies matrices
            return NotImplemented
        self._check_factor(other, "right")
        return self._operations.product_with_array(self, other)

    def _check_factor(self, other: object, side: str) -> None:
        """Raise ArgumentError for a factor that is neither a matrix nor an array. **Collective** for that (local)."""
        if _ndim(other) not in (1, 2):
            text = f"@: expected a DistMatrix or an array of one or two dimensions on the {side}, got "
            runtime: Any = getattr(self, "runtime")  # noqa: B009 - the attribute of a DistMatrix
            with runtime.call("@"):
                runtime.fail("@", ArgumentError(text + type(other).__name__))

    __array_ufunc__ = None  # NumPy's arrays and numbers leave v + A to A

    def _combined(
        self, expression: str, out: object = None, dtype: DTypeLike | None = None, **operands: object
    ) -> Self:
        """**Collective.** `pblas.elementwise`, with a dtype of the new result."""
        result: Any = self._operations.combined(expression, operands, out, dtype)
        return result

    def __add__(self, other: object) -> Self:
        """**Collective.** `pblas.elementwise("x + y", x=self, y=other)`; other operators have other expressions."""
        return self._combined("x + y", x=self, y=other)

    def __radd__(self, other: object) -> Self:
        return self._combined("y + x", x=self, y=other)

    def __iadd__(self, other: object) -> Self:
        return self._combined("x + y", self, x=self, y=other)

    def __sub__(self, other: object) -> Self:
        return self._combined("x - y", x=self, y=other)

    def __rsub__(self, other: object) -> Self:
        return self._combined("y - x", x=self, y=other)

    def __isub__(self, other: object) -> Self:
        return self._combined("x - y", self, x=self, y=other)

    def __mul__(self, other: object) -> Self:
        return self._combined("x * y", x=self, y=other)

    def __rmul__(self, other: object) -> Self:
        return self._combined("y * x", x=self, y=other)

    def __imul__(self, other: object) -> Self:
        return self._combined("x * y", self, x=self, y=other)

    def __truediv__(self, other: object) -> Self:
        return self._combined("x / y", x=self, y=other)

    def __rtruediv__(self, other: object) -> Self:
        return self._combined("y / x", x=self, y=other)

    def __itruediv__(self, other: object) -> Self:
        return self._combined("x / y", self, x=self, y=other)

    def __pow__(self, other: object) -> Self:
        return (
            self._combined("x ** 2", x=self)
            if type(other) in (int, float) and other == 2
            else self._combined("x ** y", x=self, y=other)
        )

    def __rpow__(self, other: object) -> Self:
        return self._combined("y ** x", x=self, y=other)

    def __ipow__(self, other: object) -> Self:
        return self._combined("x ** y", self, x=self, y=other)

    def __neg__(self) -> Self:
        return self._combined("-x", x=self)

    def __pos__(self) -> Self:
        return self._combined("x", x=self)

    def __abs__(self) -> Self:
        return self._combined("abs(x)", x=self)

    @property
    def real(self) -> Self:
        """**Collective.** The real parts of the elements, a copy."""
        return self._combined("real(x)", x=self)

    @property
    def imag(self) -> Self:
        """**Collective.** The imaginary parts of the elements, a copy; zeros for a real matrix."""
        return self._combined("imag(x)", x=self)

    def copy(self) -> Self:
        """**Collective.** A new matrix of the same elements, in the same layout; for a conjugated view, conjugated."""
        return self._combined("x", x=self)

    def astype(self, dtype: DTypeLike) -> Self:
        """**Collective.** A new matrix of the same elements, converted, in the same layout.

        Args:
            dtype: of the new matrix (global).

        Raises:
            DTypeError: a dtype that pblas does not multiply, or complex elements as real ones.
        """
        return self._combined("x", dtype=dtype, x=self)

    def redistribute(self, desc: MatrixDescriptor | None = None, out: Self | None = None) -> Self:
        """**Collective.** The same matrix under another descriptor; `pblas.redistribute` can do more.

        Args:
            desc: distribution of the new matrix, of the same shape; None if `out` is given (global).
            out: a matrix of the same shape and dtype, in any layout, that shares no memory with this one; None for a
                new matrix (global).

        Returns:
            `out` itself, or the new matrix.
        """
        result: Any = self._operations.redistribute(self, desc, out=out)
        return result

    # Reductions and elements

    @overload
    def __rmatmul__(self, other: Vector) -> Vector: ...
    @overload
    def __rmatmul__(self, other: Table) -> Self: ...
    def __rmatmul__(self, other: object) -> Any:
        """**Collective.** An array that is equal on all ranks times this matrix; see `__matmul__`."""
        self._check_factor(other, "left")
        return self._operations.product_with_array(self, other, left=True)

    @collective
    def __setitem__(self, key: object, value: object) -> None:
        """**Collective.** A[i0:i1, j0:j1] = value, where an index may take the place of a slice.

        Args:
            key: as in `__getitem__` (global).
            value: a matrix or an array of the shape of the submatrix, or of a shape that NumPy would broadcast to it; a
                scalar. Arrays and scalars are equal on all ranks. If a matrix shares memory with this one, the result
                is as if it had been copied first (global).

        Raises:
            ArgumentError: not integers and slices with step 1, or no matrix, array or number.
            DescriptorError: a value of another shape.
            DTypeError: complex values for a real matrix.
            OutOfRangeError: an index out of range.
        """
        self._operations.assign(self, key, value)

    @overload
    def sum(self, axis: None = None, keepdims: Literal[False] = False) -> Number: ...
    @overload
    def sum(self, axis: int, keepdims: bool = False) -> Array: ...
    @overload
    def sum(self, axis: int | None = None, keepdims: bool = False) -> Number | Array: ...
    def sum(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """**Collective.** The sum of the elements, or of each column or row.

        A replicated matrix counts once. 16-bit elements are added in 32 bits; the sum is rounded once. The order of
        additions depends on the layout alone.

        Args:
            axis: None for all elements, 0 for the sum of each column, 1 for that of each row (global).
            keepdims: give the result two dimensions: 1 x 1, 1 x n or m x 1 (global).

        Returns:
            A NumPy scalar, or an array of n or m elements, of the matrix's dtype and equal on all ranks. 0 for no
            elements.

        Raises:
            ArgumentError: another axis.

        >>> import pblas
        >>> with pblas.Context() as ctx:
        ...     a = ctx.from_function(lambda i, j: 10.0 * i + j, (2, 3))
        ...     float(a.sum()), a.sum(axis=0).tolist(), a.sum(axis=1, keepdims=True).shape
        (36.0, [10.0, 12.0, 14.0], (2, 1))
        """
        return self._operations.reduction(self, "sum", axis, keepdims)

    @overload
    def mean(self, axis: None = None, keepdims: Literal[False] = False) -> Number: ...
    @overload
    def mean(self, axis: int, keepdims: bool = False) -> Array: ...
    @overload
    def mean(self, axis: int | None = None, keepdims: bool = False) -> Number | Array: ...
    def mean(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """**Collective.** The mean of the elements, or of each column or row; arguments as in `sum`, NaN if empty."""
        return self._operations.reduction(self, "mean", axis, keepdims)

    @overload
    def max(self, axis: None = None, keepdims: Literal[False] = False) -> Real: ...
    @overload
    def max(self, axis: int, keepdims: bool = False) -> Array: ...
    @overload
    def max(self, axis: int | None = None, keepdims: bool = False) -> Real | Array: ...
    def max(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """**Collective.** The largest element, or that of each column or row; NaN if one of them is NaN.

        Arguments and result are those of `sum`.

        Raises:
            ArgumentError: another axis, or no elements.
            DTypeError: complex elements, which have no order.
        """
        return self._operations.reduction(self, "max", axis, keepdims)

    @overload
    def min(self, axis: None = None, keepdims: Literal[False] = False) -> Real: ...
    @overload
    def min(self, axis: int, keepdims: bool = False) -> Array: ...
    @overload
    def min(self, axis: int | None = None, keepdims: bool = False) -> Real | Array: ...
    def min(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """**Collective.** The least element, or that of each column or row; see `max`."""
        return self._operations.reduction(self, "min", axis, keepdims)

    @overload
    def argmax(self, axis: None = None, keepdims: Literal[False] = False) -> np.intp: ...
    @overload
    def argmax(self, axis: int, keepdims: bool = False) -> Array: ...
    @overload
    def argmax(self, axis: int | None = None, keepdims: bool = False) -> np.intp | Array: ...
    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """**Collective.** The index of the largest element, of the first one if there are several, or of the first NaN.

        Args:
            axis: None: the index is i * n + j for element (i, j) of an m x n matrix; 0: the row index in each column;
                1: the column index in each row (global).
            keepdims: as in `sum` (global).

        Returns:
            An integer, or an array of n or m integers, equal on all ranks.

        Raises:
            as `max`.

        >>> import pblas
        >>> with pblas.Context() as ctx:
        ...     a = ctx.from_function(lambda i, j: 10.0 * i - j, (2, 3))
        ...     int(a.argmax()), a.argmin(axis=1).tolist()
        (3, [2, 2])
        """
        return self._operations.reduction(self, "argmax", axis, keepdims)

    @overload
    def argmin(self, axis: None = None, keepdims: Literal[False] = False) -> np.intp: ...
    @overload
    def argmin(self, axis: int, keepdims: bool = False) -> Array: ...
    @overload
    def argmin(self, axis: int | None = None, keepdims: bool = False) -> np.intp | Array: ...
    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """**Collective.** The index of the least element, of the first one if there are several; see `argmax`."""
        return self._operations.reduction(self, "argmin", axis, keepdims)

    def trace(self) -> Number:
        """**Collective.** The sum of the diagonal, as a NumPy scalar of the matrix's dtype, equal on all ranks."""
        return self._operations.trace(self)

    def diagonal(self) -> Vector:
        """**Collective.** The elements A[i, i] as an array of min(m, n) elements, equal on all ranks."""
        return self._operations.diagonal(self)

    @overload
    def norm(self, ord: Ord = "fro", axis: None = None, keepdims: Literal[False] = False) -> Real: ...
    @overload
    def norm(self, ord: Ord = "fro", *, axis: int, keepdims: bool = False) -> Array: ...
    @overload
    def norm(self, ord: Ord, axis: int, keepdims: bool = False) -> Array: ...
    @overload
    def norm(self, ord: Ord = "fro", axis: int | None = None, keepdims: bool = False) -> Real | Array: ...
    def norm(self, ord: object = "fro", axis: int | None = None, keepdims: bool = False) -> Any:  # noqa: A002
        """**Collective.** A norm of the matrix, or of each of its columns or rows; it neither overflows nor underflows.

        Args:
            ord: "fro", the root of the sum of squares; 1, the largest sum of absolute values of a column; inf, that of
                a row; "max", the largest absolute value. With an axis: the root of the sum of squares, the sum, and for
                inf and "max" the maximum of absolute values (global).
            axis: None for the matrix, 0 for a norm of each column, 1 for one of each row (global).
            keepdims: as in `sum` (global).

        Returns:
            A NumPy scalar, or an array of n or m elements, equal on all ranks: float64 for float64 and complex128
            matrices, otherwise float32. 0 for no elements.

        Raises:
            ArgumentError: another axis or ord.

        Source: LAPACK xLANGE, xLASSQ.

        >>> import pblas
        >>> with pblas.Context() as ctx:
        ...     a = ctx.full((3, 3), 1e200)
        ...     float(a.norm()), float(a.norm(1)), a.norm("max", axis=0).shape
        (3e+200, 3e+200, (3,))
        """
        return self._operations.norm(self, ord, axis, keepdims)

"""Operators of matrices, as A @ B.

Each one calls an operation, which stands in a package above this one; `pblas/_operators.py` registers them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeVar, overload

import numpy as np

from pblas.errors import ArgumentError
from pblas.runtime.calls import collective
from pblas.runtime.runtime import checked_dtype, checked_flag, name_of

if TYPE_CHECKING:
    from numpy.typing import DTypeLike
    from scipy.sparse.linalg import LinearOperator

    from pblas.backends.dtypes import Array, Number, Real, Table, Vector
    from pblas.layouts.descriptor import MatrixDescriptor

Ord = Literal["fro", "inf", "max"] | float  # the norms of a matrix; as numbers 1 and inf
AND = "where(x != 0, where(y != 0, 1, 0), 0)"
OR = "where(x != 0, 1, where(y != 0, 1, 0))"
NOT = "where(x == 0, 1, 0)"


class Operations(NamedTuple):
    """The operations that the operators call; each takes the matrix first."""

    pmatmul: Callable[..., object]
    product_with_array: Callable[..., object]
    combined: Callable[..., object]
    ufunc: Callable[..., object]
    numpy_function: Callable[..., object]
    namespace: Callable[..., Any]
    redistribute: Callable[..., object]
    select: Callable[..., Any]
    assign: Callable[..., None]
    reduction: Callable[..., Any]
    save: Callable[..., None]
    plot: Callable[..., None]


def _ndim(x: Any) -> int | None:
    """The number of dimensions of an array; None of anything else, and of an object whose attributes raise (local)."""
    try:
        return getattr(x, "ndim", None)
    except Exception:  # noqa: BLE001 - a property of another library
        return None


OperatorsT = TypeVar("OperatorsT", bound="Operators")


def _operator(expression: str, *, in_place: bool = False) -> Callable[[OperatorsT, object], OperatorsT]:
    """The operator of an expression of the matrix x and the other operand y; `in_place`: x receives the result."""

    def operator(self: OperatorsT, other: object) -> OperatorsT:
        return self._combined(expression, self if in_place else None, x=self, y=other)

    out = ", out=self" * in_place
    operator.__doc__ = f'**Collective.** `pblas.elementwise("{expression}", x=self, y=other{out})`.'
    return operator


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

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **kwargs: object) -> object:
        """**Collective.** np.exp(A), np.add(v, A, out=B), v + A: the elementwise operation of the same name."""
        return self._operations.ufunc(self, ufunc, method, *inputs, **kwargs)

    def __array_function__(self, func: Any, types: object, args: Any, kwargs: Any) -> object:
        """**Collective.** np.sum(A), np.linalg.solve(A, b): the function of pblas of the same name."""
        return self._operations.numpy_function(self, func, args, kwargs)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The namespace of the array API standard for the matrices of this context (local).

        Args:
            api_version: a version of the standard; None for any (global).

        Raises:
            ArgumentError: a version that there is not.

        >>> import pblas
        >>> with pblas.Context() as ctx:
        ...     A = ctx.eye(3)
        ...     xp = A.__array_namespace__()
        ...     xp.sum(xp.ones((3, 2)) + A[:, :1], axis=0).tolist()
        [4.0, 4.0]
        """
        return self._operations.namespace(self, api_version)

    def _combined(
        self, expression: str, out: object = None, dtype: DTypeLike | None = None, **operands: object
    ) -> Self:
        """**Collective.** `pblas.elementwise`, with a dtype of the new result."""
        opname = "elementwise" if dtype is None else "astype"
        result: Any = self._operations.combined(expression, operands, out, dtype, opname)
        return result

    # Comparisons give matrices of ones and zeros. All ranks call them, as all operators.

    __lt__ = _operator("where(x < y, 1, 0)")
    __le__ = _operator("where(x <= y, 1, 0)")
    __gt__ = _operator("where(x > y, 1, 0)")
    __ge__ = _operator("where(x >= y, 1, 0)")
    __eq__ = _operator("where(x == y, 1, 0)")  # type: ignore[assignment]  # as in NumPy
    __ne__ = _operator("where(x != y, 1, 0)")  # type: ignore[assignment]
    __hash__ = object.__hash__

    __and__, __or__ = _operator(AND), _operator(OR)
    __add__, __radd__, __iadd__ = _operator("x + y"), _operator("y + x"), _operator("x + y", in_place=True)
    __sub__, __rsub__, __isub__ = _operator("x - y"), _operator("y - x"), _operator("x - y", in_place=True)
    __mul__, __rmul__, __imul__ = _operator("x * y"), _operator("y * x"), _operator("x * y", in_place=True)
    __truediv__, __rtruediv__, __itruediv__ = _operator("x / y"), _operator("y / x"), _operator("x / y", in_place=True)
    __floordiv__, __rfloordiv__ = _operator("x // y"), _operator("y // x")
    __ifloordiv__ = _operator("x // y", in_place=True)
    __mod__, __rmod__, __imod__ = _operator("x % y"), _operator("y % x"), _operator("x % y", in_place=True)
    __rpow__, __ipow__ = _operator("y ** x"), _operator("x ** y", in_place=True)

    def __pow__(self, other: object) -> Self:
        if type(other) in (int, float) and other == 2:
            return self._combined("x ** 2", x=self)
        return self._combined("x ** y", x=self, y=other)

    def __invert__(self) -> Self:
        return self._combined(NOT, x=self)

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

    def astype(self, dtype: DTypeLike, copy: bool = True) -> Self:
        """**Collective.** A new matrix of the same elements, converted, in the same layout.

        Args:
            dtype: of the new matrix (global).
            copy: False: if the matrix has this dtype, it is the result itself (global).

        Raises:
            ArgumentError: copy is not a bool.
            DTypeError: a dtype that pblas does not multiply, or complex elements as real ones.
        """
        if copy is not True and self._has_dtype(dtype, copy):
            return self
        return self._combined("x", dtype=dtype, x=self)

    @collective
    def _has_dtype(self, dtype: DTypeLike, copy: object) -> bool:
        """**Collective.** Whether the matrix has this dtype, for a result that need be no copy."""
        matrix: Any = self
        runtime = matrix.runtime
        with runtime.local_step("astype"):
            may_be_same = not checked_flag("astype", "copy", copy)
            wanted = checked_dtype("astype", dtype, is_argument=True, stored=True)
        runtime.agree("astype", {"copy": copy, "to": name_of(wanted), **matrix.signature()})
        return may_be_same and matrix.dtype == wanted

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
        """**Collective.** A[key] = value, for all keys of `__getitem__`.

        Args:
            key: as in `__getitem__`. If a list repeats an index, the last value counts (global).
            value: a matrix or an array of the shape of the submatrix, or of a shape that NumPy would broadcast to it; a
                scalar; with a mask only a scalar. Arrays and scalars are equal on all ranks. If a matrix shares memory
                with this one, the result is as if it had been copied first (global).

        Raises:
            ArgumentError: a key that `__getitem__` does not take, or no matrix, array or number.
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
    def var(self, axis: None = None, ddof: float = 0, keepdims: Literal[False] = False) -> Real: ...
    @overload
    def var(self, axis: int, ddof: float = 0, keepdims: bool = False) -> Array: ...
    @overload
    def var(self, axis: int | None = None, ddof: float = 0, keepdims: bool = False) -> Real | Array: ...
    @collective
    def var(self, axis: int | None = None, ddof: float = 0, keepdims: bool = False) -> Any:
        """**Collective.** The variance of the elements, or of each column or row: the mean of abs(x - mean)^2.

        Args:
            axis: as in `sum` (global).
            ddof: the sum of squares of n elements is divided by n - ddof (global).
            keepdims: as in `sum` (global).

        Returns:
            As `mean`, and real.

        Raises:
            ArgumentError: another axis.

        >>> import pblas
        >>> with pblas.Context() as ctx:
        ...     a = ctx.from_function(lambda i, j: 10.0 * i + j, (2, 3))
        ...     a.var(axis=0).tolist(), float(a.std(axis=1, ddof=1)[0])
        ([25.0, 25.0, 25.0], 1.0)
        """
        return self._variance(axis, ddof, keepdims, root=False)

    @overload
    def std(self, axis: None = None, ddof: float = 0, keepdims: Literal[False] = False) -> Real: ...
    @overload
    def std(self, axis: int, ddof: float = 0, keepdims: bool = False) -> Array: ...
    @overload
    def std(self, axis: int | None = None, ddof: float = 0, keepdims: bool = False) -> Real | Array: ...
    @collective
    def std(self, axis: int | None = None, ddof: float = 0, keepdims: bool = False) -> Any:
        """**Collective.** The standard deviation of the elements, or of each column or row: the root of `var`."""
        return self._variance(axis, ddof, keepdims, root=True)

    def _variance(self, axis: int | None, ddof: float, keepdims: bool, *, root: bool) -> Any:
        """**Collective.** The variance, or its root; of 16-bit elements in 32 bits, rounded once."""
        matrix: Any = self
        wide = matrix.astype("float32") if matrix.dtype.itemsize < 4 else matrix
        mean = wide.mean(axis, keepdims=True)
        count = matrix.size if axis is None else matrix.shape[axis]
        if isinstance(ddof, int | float | np.integer | np.floating):
            ddof = min(ddof, count)  # then NaN or infinite, as in NumPy
        squares = self._combined("abs(x - m) ** 2 * (n / (n - ddof))", x=wide, m=mean, n=count, ddof=ddof)
        variance = squares.mean(axis, keepdims)
        with np.errstate(all="ignore"):
            result = np.sqrt(variance) if root else variance
            return result if wide is matrix else result.astype(matrix.dtype)

    @overload
    def any(self, axis: None = None, keepdims: Literal[False] = False) -> np.bool_: ...
    @overload
    def any(self, axis: int, keepdims: bool = False) -> Array: ...
    @overload
    def any(self, axis: int | None = None, keepdims: bool = False) -> np.bool_ | Array: ...
    @collective
    def any(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """**Collective.** Whether an element is not 0, of the matrix or of each column or row; NaN is not 0.

        Arguments are those of `sum`.

        Returns:
            A NumPy bool, or an array of n or m bools, equal on all ranks.

        Raises:
            ArgumentError: another axis.

        >>> import pblas
        >>> with pblas.Context() as ctx:
        ...     a = ctx.eye(3)
        ...     bool((a > 0).any()), bool((a > 0).all()), (a == 1).any(axis=0).tolist()
        (True, False, [True, True, True])
        """
        return (self != 0).sum(axis, keepdims) != 0

    @overload
    def all(self, axis: None = None, keepdims: Literal[False] = False) -> np.bool_: ...
    @overload
    def all(self, axis: int, keepdims: bool = False) -> Array: ...
    @overload
    def all(self, axis: int | None = None, keepdims: bool = False) -> np.bool_ | Array: ...
    @collective
    def all(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """**Collective.** Whether no element is 0, in the matrix or in each column or row; as `any`."""
        return (self == 0).sum(axis, keepdims) == 0

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
        return self._operations.reduction(self, "trace")

    def diagonal(self) -> Vector:
        """**Collective.** The elements A[i, i] as an array of min(m, n) elements, equal on all ranks."""
        return self._operations.reduction(self, "diagonal")

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
        return self._operations.reduction(self, "norm", axis, keepdims, ord)

    # SciPy's linear operators

    def linear_operator(self) -> LinearOperator:
        """This matrix as a `scipy.sparse.linalg.LinearOperator`, for eigsh, svds, lsqr, gmres, cg and others (local).

        SciPy's function is called on all ranks, with arguments that are equal on all of them. Each product that it
        forms is one collective call, and all ranks get the same result. `scipy.sparse.linalg.aslinearoperator(A)` makes
        the same operator, and SciPy's functions take A itself, too.

        Returns:
            The operator, of A's shape and dtype. Vectors of another precision are rounded to A's dtype, so give the
            functions vectors and tolerances of that dtype.

        >>> import numpy as np, pblas
        >>> from scipy.sparse.linalg import eigsh
        >>> with pblas.Context() as ctx:
        ...     A = ctx.from_function(lambda i, j: (i + 1.0) * (i == j), (9, 9))
        ...     eigsh(A.linear_operator(), k=2, v0=np.ones(9), return_eigenvectors=False).round(6).tolist()
        [8.0, 9.0]
        """
        from scipy.sparse.linalg import LinearOperator

        matrix: Any = self
        return LinearOperator(matrix.shape, self.matvec, rmatvec=self.rmatvec, matmat=self._matmat, dtype=matrix.dtype)

    def matvec(self, x: Array) -> Vector:
        """**Collective.** A x for a vector that is equal on all ranks, rounded to A's dtype: for SciPy.

        Args:
            x: n elements, in one or two dimensions, of any dtype (global).

        Returns:
            An array of m elements, equal on all ranks.
        """
        return self._rounded_product(lambda v: self @ v, np.ravel(x))

    def rmatvec(self, x: Array) -> Vector:
        """**Collective.** A^H x; as `matvec`."""
        matrix: Any = self
        return matrix.H.matvec(x)

    def _matmat(self, x: Array) -> Array:
        """**Collective.** A X for an array that is equal on all ranks, as an array on all ranks."""
        return self._rounded_product(lambda v: (self @ v).to_global(root=None), x)

    def _rounded_product(self, product: Callable[[Any], Array], x: Array) -> Any:
        """**Collective.** The product with an array of any dtype, whose parts are multiplied apart if A is real."""
        dtype: Any = getattr(self, "dtype")  # noqa: B009 - the attribute of a DistMatrix
        if x.dtype.kind == "c" and dtype.kind != "c":
            return self._rounded_product(product, x.real) + 1j * self._rounded_product(product, x.imag)
        with np.errstate(all="ignore"):
            return product(x.astype(dtype, copy=False) if x.dtype.kind in "fc" else x)


for _name, _function in vars(Operators).items():
    if getattr(_function, "__name__", "") == "operator":  # in tracebacks and profiles
        _function.__name__, _function.__qualname__ = _name, f"Operators.{_name}"

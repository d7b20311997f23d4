"""Operators of matrices, as A @ B: each one calls an operation, and only its import points to a package above."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Self

from pblas.errors import ArgumentError

if TYPE_CHECKING:
    from pblas.layouts.descriptor import MatrixDescriptor


class Operators:
    """Operators and methods of `DistMatrix` that call an operation."""

    __slots__ = ()

    def __matmul__(self, other: Self) -> Self:
        """**Collective.** `pmatmul(self, other)`."""
        if not isinstance(other, Operators):
            return NotImplemented
        from pblas.operations.matmul import pmatmul

        multiply: Any = pmatmul  # this module cannot name the types of a package above it
        return multiply(self, other)

    __array_ufunc__ = None
    """NumPy's arrays and numbers leave v + A to A."""

    def _combined(self, expression: str, out: Any = None, dtype: Any = None, **operands: Any) -> Self:
        """**Collective.** `pblas.elementwise`, with a dtype of the new result."""
        from pblas.operations.elementwise import combined

        result: Any = combined(expression, operands, out, dtype)
        return result

    def __add__(self, other: Any) -> Self:
        """**Collective.** `pblas.elementwise("x + y", x=self, y=other)`; the other operators likewise."""
        return self._combined("x + y", x=self, y=other)

    def __radd__(self, other: Any) -> Self:
        return self._combined("y + x", x=self, y=other)

    def __iadd__(self, other: Any) -> Self:
        return self._combined("x + y", self, x=self, y=other)

    def __sub__(self, other: Any) -> Self:
        return self._combined("x - y", x=self, y=other)

    def __rsub__(self, other: Any) -> Self:
        return self._combined("y - x", x=self, y=other)

    def __isub__(self, other: Any) -> Self:
        return self._combined("x - y", self, x=self, y=other)

    def __mul__(self, other: Any) -> Self:
        return self._combined("x * y", x=self, y=other)

    def __rmul__(self, other: Any) -> Self:
        return self._combined("y * x", x=self, y=other)

    def __imul__(self, other: Any) -> Self:
        return self._combined("x * y", self, x=self, y=other)

    def __truediv__(self, other: Any) -> Self:
        return self._combined("x / y", x=self, y=other)

    def __rtruediv__(self, other: Any) -> Self:
        return self._combined("y / x", x=self, y=other)

    def __itruediv__(self, other: Any) -> Self:
        return self._combined("x / y", self, x=self, y=other)

    def __pow__(self, other: Any) -> Self:
        return (
            self._combined("x ** 2", x=self)
            if type(other) in (int, float) and other == 2
            else self._combined("x ** y", x=self, y=other)
        )

    def __rpow__(self, other: Any) -> Self:
        return self._combined("y ** x", x=self, y=other)

    def __ipow__(self, other: Any) -> Self:
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

    def astype(self, dtype: Any) -> Self:
        """**Collective.** A new matrix of the same elements, converted, in the same layout.

        Args:
            dtype: of the new matrix (global).

        Raises:
            DTypeError: a dtype that pblas does not multiply, or complex elements as real ones.
        """
        return self._combined("x", dtype=dtype, x=self)

    def __rmatmul__(self, other: object) -> NoReturn:
        """Refuse v @ A for anything but a matrix, with the call that helps (local)."""
        raise ArgumentError(
            f"@: expected a DistMatrix on the left, got {type(other).__name__}; ctx.from_global(v, desc, root=None) "
            f"makes one of an array with two dimensions that is equal on all ranks"
        )

    def redistribute(self, desc: MatrixDescriptor) -> Self:
        """**Collective.** The same matrix under another descriptor; `pblas.redistribute` can do more.

        Args:
            desc: distribution of the new matrix, of the same shape (global).
        """
        from pblas.operations.redistribution import redistribute

        redistributed: Any = redistribute
        return redistributed(self, desc)

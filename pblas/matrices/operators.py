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

    def _refuse_elementwise(self, other: object) -> NoReturn:
        """Refuse A + B and the like, with the calls that help (local)."""
        del other
        raise ArgumentError(
            "DistMatrix: there are no elementwise operators; pblas.redistribute(A, out=B, beta=1.0) adds A to B, and "
            "where A and B have one layout, A.local and B.local can be combined on every rank"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __pow__ = _refuse_elementwise

    def redistribute(self, desc: MatrixDescriptor) -> Self:
        """**Collective.** The same matrix under another descriptor; `pblas.redistribute` can do more.

        Args:
            desc: distribution of the new matrix, of the same shape (global).
        """
        from pblas.operations.redistribution import redistribute

        redistributed: Any = redistribute
        return redistributed(self, desc)

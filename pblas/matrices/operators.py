"""Operators of matrices, as A @ B: each is one lazy call of an operation, and only these imports point upwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pblas.layouts.descriptor import MatrixDescriptor


class Operators:
    """Operators and methods of `DistMatrix` that are operations under another name."""

    __slots__ = ()

    def __matmul__(self, other: Self) -> Self:
        """**Collective.** `pmatmul(self, other)`."""
        if not isinstance(other, Operators):
            return NotImplemented
        from pblas.operations.matmul import pmatmul

        multiply: Any = pmatmul  # its types are those of a module above
        return multiply(self, other)

    def redistribute(self, desc: MatrixDescriptor) -> Self:
        """**Collective.** The same matrix under another descriptor; `pblas.redistribute` can do more.

        Args:
            desc: distribution of the new matrix, of the same shape (global).
        """
        from pblas.operations.redistribution import redistribute

        redistributed: Any = redistribute
        return redistributed(self, desc)

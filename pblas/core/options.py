"""Types of arguments that many calls share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.matrices.matrix import DistMatrix

Trans = Literal["N", "T", "C"]  # the operand as it is, transposed, or conjugate transposed
Uplo = Literal["L", "U"]  # the lower or the upper triangle
Side = Literal["L", "R"]  # the side of the product on which the triangular or symmetric matrix stands
Diag = Literal["N", "U"]  # whether the diagonal is general, or all ones and not read
MatrixOrArray = TypeVar("MatrixOrArray", "DistMatrix", "Array")
"""An operand that is a matrix or an array, and whose result is of the same kind."""

"""The type of operands that are matrices or arrays, and whose results are of the same kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.matrices.matrix import DistMatrix

MatrixOrArray = TypeVar("MatrixOrArray", "DistMatrix", "Array")

"""FactoredMatrix: the base of factor objects, which hold a factor in memory of their context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.matrices.matrix import DistMatrix
    from pblas.runtime.runtime import Runtime


class FactoredMatrix:
    """A factored matrix.

    Args:
        w: the memory of the factor (global).
        desc: layout of the matrix (global).
    """

    def __init__(self, w: DistMatrix, desc: MatrixDescriptor) -> None:
        self._w = w
        self._desc = desc

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the factored matrix (global)."""
        return self._desc.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the factored matrix (global)."""
        return self._w.dtype

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shape[0]} x {self.shape[1]} {self.dtype.name}>"

    @property
    def _runtime(self) -> Runtime:
        return self._w.runtime

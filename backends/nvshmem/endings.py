"""What the kernels of collectives are compiled for: an operation, and an expression behind the last one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pblas.backends.cuda import pointwise
from pblas.backends.nvshmem import kernels
from pblas.epilogues import RESULT, Name

if TYPE_CHECKING:
    import numpy as np

    from pblas.epilogues import Node

OPERATIONS = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}
"""What an operation is called in pointwise.cuh."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What the kernels of a collective are compiled for, beside the dtype.

    Args:
        op: a key of `OPERATIONS`.
        tree: of the epilogue's expression.
        dtypes: of its operands that are arrays, None for numbers.
        weight: of rows that are normalised behind it; None if none are. What they are multiplied with has this dtype.
    """

    op: str
    tree: Node
    dtypes: tuple[np.dtype[Any] | None, ...] = ()
    weight: np.dtype[Any] | None = None

    def source(self, dtype: np.dtype[Any]) -> str:
        """CUDA C++ of the kernels."""
        folder = Path(kernels.__file__).parent
        pointwise.check_count(len(self.dtypes))
        return "\n".join([
            kernels.expanded(pointwise.FOLDER / "pointwise.cuh"),
            kernels.expanded(folder / "all_reduce.cuh"),
            f"#define OPERATION {OPERATIONS[self.op]}",
            f"#define NORMALISED {int(self.weight is not None)}",
            f"typedef {pointwise.type_name(dtype if self.weight is None else self.weight)} Weight;",
            pointwise.printed(self.tree, self.dtypes, self.first_term),
            kernels.expanded(folder / "collective.cuh"),
            f"ALL_REDUCE(all, {', '.join([pointwise.type_name(dtype)] * 2)}, Operation, Finished)",
        ])  # fmt: skip

    @property
    def first_term(self) -> int:
        """The number of the first operand: rows that are normalised need a number before."""
        return int(self.weight is not None)

    @property
    def is_plain(self) -> bool:
        """Sums, and nothing behind them."""
        return self.op == "sum" and self.tree == Name(RESULT) and self.weight is None

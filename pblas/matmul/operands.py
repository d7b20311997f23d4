"""The local arrays of one execution, in the plan's orientation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array
    from pblas.backends.push_engine import Finish


@dataclass(frozen=True, slots=True)
class Orders:
    """Storage orders, "F" or "C", of the operands as the plan sees them."""

    right: Literal["F", "C"]
    result: Literal["F", "C"]
    left: Literal["F", "C"] = "F"


@dataclass(slots=True)
class Operands:
    """Local arrays of D = alpha op(A) op(B) + beta C, in the plan's orientation.

    Args:
        left: op(A), or op(B)^T if the plan is transposed (local).
        right: op(B), or op(A)^T (local).
        result: D, or D^T (local).
        old: C, or C^T, None when beta is 0; it may be `result` itself (local).
        conj: conjugate left, right (global).
        alpha: scalar (global).
        beta: scalar (global).
        finish: epilogue, with operands like `result`; None without one (local).
        scales: arrays of one element, by which left and right are multiplied in addition to alpha; None: 1 (local).
    """

    left: Array
    right: Array
    result: Array
    old: Array | None
    conj: tuple[bool, bool]
    alpha: complex
    beta: complex
    finish: Finish | None = None
    scales: tuple[Array | None, Array | None] = (None, None)

    @property
    def unfinished(self) -> Operands:
        """The same operands without the epilogue (local)."""
        return self if self.finish is None else replace(self, finish=None)

    def finish_of(self, view: Callable[[Any], Any]) -> Finish | None:
        """The epilogue of a view of `result` (local)."""
        return None if self.finish is None else self.finish.of(view)

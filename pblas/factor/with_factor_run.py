"""Base of executors that apply a factor: B is brought to X, X is changed in place, and leaves for its owners.

X := B                        (or other elements, where there is no B)
X := f(W) X                   (columns, or rows, of this rank's own)
result := X
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import chain, starmap
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from pblas.factor.block_columns import BlockColumns, Part
from pblas.layouts.placement import Placement
from pblas.redistribution.packing import Scaling
from pblas.redistribution.transfer import SourceMatrix
from pblas.triangular.trsm_run import RightHandSides

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.with_factor_plan import WithFactorPlan
    from pblas.layouts.descriptor import MatrixDescriptor


@dataclass(frozen=True, slots=True)
class FactorOperands:
    """Local arrays of one execution.

    Args:
        w: the factor (local).
        right: B, or its transpose if the factor stands on the right; None if there is no B (local).
        result: the result, or its transpose (local).
        in_place: `right` and `result` are the same memory (global).
        conj: B is conjugated on its way to X, and X on its way to the result (global).
        progress: called with the done part of the work (local).
    """

    w: Array
    right: Array | None
    result: Array
    in_place: bool
    conj: tuple[bool, bool]
    progress: Callable[[float], None] | None


OperandsT = TypeVar("OperandsT", bound=FactorOperands)


class RunWithFactor(ABC, Generic[OperandsT]):
    """**Collective.** Runs a plan with a factor on one rank.

    Args:
        plan: what to run (global).
        backend: ranks, memory and messages (global).
        dtype: of the matrices (global).
        parts: of the factor, which ranks read one after the other (global).
    """

    def __init__(self, plan: WithFactorPlan, backend: HostRanks, dtype: np.dtype[Any], parts: Sequence[Part]) -> None:
        self._backend, self._arrays, self._rank, self._plan_name = backend, backend.arrays, backend.rank, plan.name
        self._home = SourceMatrix(backend, Placement.of(plan.w), dtype, "F")
        place, right = Placement.of(plan.x), Placement.of(plan.right)
        self._right = RightHandSides(
            *(backend, right if plan.reads else None, right, dtype, (plan.right.order, "F")),
            target=place,
            solved=None if plan.stays else place,
            lld=plan.x.lld,
        )
        self.peers_read: bool = plan.stays and bool(plan.reads or parts)
        """Whether peers read this rank's arrays until the closing agreement, not until X leaves (global)."""
        self._columns: BlockColumns = BlockColumns(self._home, parts)

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of this rank's workspace."""
        return self._right.workspace_nbytes + self._columns.workspace_nbytes

    def publish(self, x: OperandsT) -> bool:
        """Publish the locations of B and of the factor, which the context made; true if B must be staged first."""
        self._home.publish(x.w)
        return self._right.publish(x.right)

    def prepare(self, *, scratch: bool) -> bool:
        """Stage B if any rank must."""
        return self._right.prepare(scratch=scratch)

    def run(self, x: OperandsT) -> None:
        """Result := f(W) B."""
        columns = x.result if self._right.x is None else self._right.x
        if x.right is None:
            self.begin(x, columns)
        elif not (x.in_place and self._right.x is None):
            self._right.bring(columns, Scaling(1.0, 0.0, x.conj[0]))
        self.change(x, columns)
        self._columns.sent()
        self._home.release()
        self._right.deliver(x.result, self._plan_name, Scaling(1.0, 0.0, x.conj[1]))

    # Each plan's executor defines these

    @abstractmethod
    def begin(self, x: OperandsT, columns: Array) -> None:
        """X := its elements at first, without a B (local)."""

    @abstractmethod
    def change(self, x: OperandsT, columns: Array) -> None:
        """X := f(W) X, for this rank's columns, or rows."""

    def fetch(self, s: int) -> Array:
        """Part s of the factor, after its arrival; the next one begins to arrive."""
        part = self._columns.fetch(s)
        with self._arrays.on_side_lane():
            arrived = self._arrays.mark()
        self._arrays.follow(arrived)
        self._columns.request(s + 1)
        return part


def global_indices(desc: MatrixDescriptor, rank: int) -> tuple[Array, Array]:
    """The global rows, and columns, that a rank has, in the order of its local ones."""
    rows, columns = (
        np.fromiter(chain.from_iterable(starmap(range, ends)), np.intp) for ends in desc.global_ranges(rank)
    )
    return rows, columns

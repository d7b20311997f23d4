"""roll: the rows of a matrix, cyclically shifted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from examples.roll.roll_plan import RollPlan
from examples.roll.roll_run import RollOperands, RunRoll
from pblas import errors
from pblas.core.call import call
from pblas.core.checks import common_dtype, not_a_matrix
from pblas.core.operation import Bound, Operation
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.packing import Scaling

if TYPE_CHECKING:
    from pblas.backends.host_ranks import HostRanks
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.runtime.runtime import Runtime
    from pblas.simulation.hardware import Topology


@dataclass(frozen=True, eq=False)
class Roll(Operation[DistMatrix]):
    """B[(i + shift) mod m, :] = A[i, :]. The fields are the form: they decide the plan, and are its key."""

    noun: ClassVar[str] = "roll"

    a: MatrixDescriptor
    shift: int
    dtype: np.dtype[Any]
    conjugated: bool

    @classmethod
    def bind(cls, opname: str, runtime: Runtime, a: Any, shift: Any) -> Bound[DistMatrix]:
        """The arguments, checked on this rank. An error here reaches all ranks by the agreement."""
        if not isinstance(a, DistMatrix):
            raise not_a_matrix(opname, "a", a)
        if isinstance(shift, bool) or not isinstance(shift, int | np.integer):
            raise errors.ArgumentError(f"{opname}: shift must be an integer, got {shift!r}; pass roll(A, 1)")
        dtype = common_dtype(opname, {"A": a}, None, stored=True)
        form = a.desc.without_lld, int(shift) % max(a.desc.m, 1), dtype, a.conjugated
        return Bound(cls, form, scalars={}, reads={"A": a}, out=None)

    @property
    def result(self) -> tuple[MatrixDescriptor, np.dtype[Any]]:
        return self.a, self.dtype

    def plan(self, nprocs: int, topology: Topology) -> RollPlan:
        return RollPlan(self.a, self.shift, self.dtype.name, nprocs, topology.transport(nprocs))

    def executor(self, plan: RollPlan, backend: HostRanks) -> RunRoll:
        return RunRoll(plan, backend, self.dtype)

    def arrays(
        self, opname: str, runtime: Runtime, executor: Any, bound: Bound[DistMatrix], result: DistMatrix
    ) -> RollOperands:
        return RollOperands(bound.reads["A"].stored(opname), result.stored(opname), Scaling(conj=self.conjugated))


def roll(a: DistMatrix, shift: int) -> DistMatrix:
    """**Collective.** numpy.roll(A, shift, axis=0): row i of A becomes row (i + shift) mod m of B.

    Args:
        a: m x n matrix (global).
        shift: any integer (global).

    Returns:
        B, a new matrix distributed as A. When the call returns, a may be overwritten.

    Raises:
        ArgumentError, DTypeError: wrong arguments; the same error on every rank.
        MismatchError: ranks that passed different arguments.
    """
    return call("roll", Roll.bind, {"a": a}, a, shift)

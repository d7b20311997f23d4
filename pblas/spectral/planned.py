"""Calls of one matrix that are planned: `plan_eigh`, `plan_svd`, `plan_polar` and others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pblas import errors
from pblas.core.checks import check_like_planned
from pblas.core.planned import PlanHandle
from pblas.factor import arguments
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix

if TYPE_CHECKING:
    import numpy as np

    from pblas.plans.base import Plan
    from pblas.runtime.runtime import Runtime
    from pblas.simulation.hardware import Hardware

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Request(Generic[ResultT]):
    """A call of one matrix, with checked options (global)."""

    noun: str  # name of the call
    check: Callable[[MatrixDescriptor], dict[str, Any]]  # checks all arguments but the matrix, and gives the options
    plan: Callable[..., Plan]  # of a descriptor, the name of a dtype, a number of ranks, a topology, and the options
    call: Callable[..., ResultT]  # of a matrix, and the options
    on_gpus: bool = False  # whether there is a plan for GPUs

    def planned(
        self,
        kind: Callable[..., PlannedT],
        a: DistMatrix | MatrixDescriptor,
        dtype: object,
        nprocs: object,
        hardware: Hardware | str | None = None,
    ) -> PlannedT:
        """**Collective** with a matrix. The planned call, after checks of the arguments."""
        opname = f"plan_{self.noun}"
        if isinstance(a, MatrixDescriptor):
            real, ranks, topology = arguments.of_descriptor(opname, a, dtype, nprocs, hardware)
            options, desc = self.check(a), a.without_lld
            plan = self.plan(desc, real.name, ranks, topology, **options)
            return kind(self, options, plan, desc, real, None)
        runtime = arguments.runtime_of(opname, a)
        with runtime.call(opname):
            with runtime.local_step(opname):
                arguments.check_planned(opname, a, runtime, dtype, nprocs=nprocs, hardware=hardware)
                if runtime.backend.gpus and not self.on_gpus:
                    text = "singular values on GPUs have no plan, since their steps depend on A"
                    raise errors.BackendError(f"{opname}: {text}; call {self.noun}")
                options = self.check(a.desc)
            runtime.agree(opname, {**options, **a.signature()})
            desc = a.desc.without_lld
            plan = self.plan(desc, a.dtype.name, runtime.nprocs, runtime.topology, **options)
            return kind(self, options, plan, desc, a.dtype, runtime)


class PlannedOfMatrix(PlanHandle, Generic[ResultT]):
    """A planned call of one matrix: `execute(A)`."""

    def __init__(
        self,
        request: Request[ResultT],
        options: dict[str, Any],
        plan: Plan,
        desc: MatrixDescriptor,
        dtype: np.dtype[Any],
        runtime: Runtime | None,
    ) -> None:
        self.noun, self.plan, self._runtime, self._is_closed = request.noun, plan, runtime, False
        self._desc, self._dtype, self._call, self._options = desc, dtype, request.call, options

    def execute(self, a: DistMatrix) -> ResultT:
        """**Collective.** The call, of a matrix like the planned one.

        Args:
            a: A, with the descriptor and the dtype that were planned (global).

        Returns:
            The result of the planned call.

        Raises:
            as the planned call; ArgumentError for a plan made from a descriptor only.
        """
        runtime = self._runtime
        if runtime is None:
            raise self._no_context_error("execute")
        with runtime.call("execute"):
            with runtime.local_step("execute"):
                if self._is_closed:
                    raise errors.ContextError(f"execute: the planned {self.noun} is closed")
                check_like_planned("A", a, runtime, self._dtype, self._desc, exact=True)
            runtime.agree("execute", {"planned": self.noun, **self._options, **a.signature()})
            return self._call(a, **self._options)

    def close(self) -> None:
        """Drop the plan (local)."""
        self._is_closed = True


PlannedT = TypeVar("PlannedT", bound=PlannedOfMatrix[Any])

"""QR with column pivoting, as ScaLAPACK's p?geqpf asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pblas.operations.factorization import PlannedFactorization
from pblas.planner.choose_factorization import block_columns
from pblas.plans.qr import PivotedQrPlan

if TYPE_CHECKING:
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.simulation.hardware import Transport


class PlannedPivotedQr(PlannedFactorization):
    """A planned QR factorization with column pivoting, kept by the context."""

    @classmethod
    def check(cls, verb: str, desc: MatrixDescriptor, algorithm: Any, *, gpus: bool) -> None:
        """Nothing is wrong: the arguments are checked before (local)."""
        assert algorithm == "auto", (verb, desc, gpus)

    @classmethod
    def choose(
        cls,
        a: MatrixDescriptor,
        dtype: str,
        nprocs: int,
        transport: Transport,
        *,
        returns: bool,
        uplo: Literal["L", "U"],
        algorithm: Any,
        gpus: bool = False,
    ) -> PivotedQrPlan:
        """Block columns, as for QR without pivoting on CPUs, which do the work for GPUs too."""
        w, why = block_columns(a, nprocs, algorithm)
        return PivotedQrPlan(a, w, why, dtype, nprocs, transport, returns, on_copies=gpus)

"""ScaLAPACK's REDIST, with its arguments in its order: copies of submatrices from one grid to another."""

from __future__ import annotations

import hashlib
import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pblas.core.call import step
from pblas.core.operation import Bound, Operation
from pblas.errors import PblasArgumentError
from pblas.layouts.placement import Placement
from pblas.layouts.trapezoid import Trapezoid
from pblas.redistribution.redistribution_run import RedistributionOperands, RunRedistribution
from pblas.scalapack import descriptors, routines
from pblas.scalapack.arguments import Call, Findings, of_types
from pblas.scalapack.descriptors import Entries
from pblas.scalapack.grids import OUTSIDE, ProcessGrid, find, meant

if TYPE_CHECKING:
    from pblas.backends.dtypes import Dtype
    from pblas.backends.host_ranks import HostRanks
    from pblas.runtime.runtime import Runtime
    from pblas.scalapack.routines import Operand
    from pblas.simulation.hardware import Topology

_OUTSIDER = 1 << 60  # digest on a process outside the grid of a matrix; greater than all other digests


class _Relocation(Call):
    """A call with two matrices on different grids. The ranks of a third grid, that of ICTXT, agree on it."""

    def _agreement_grid(self, findings: Findings) -> ProcessGrid:
        """The grid of ICTXT."""
        ictxt = self._values["ICTXT"]
        if grid := find(ictxt):
            return grid
        text = f"ICTXT must be the handle of a grid that this process is in, got {reprlib.repr(ictxt)}"
        findings.add(text, len(self._values))
        if grid := meant(ictxt):
            return grid
        raise findings.error

    def _is_outside(self, operand: Operand) -> bool:
        """Whether this process is outside the operand's grid: it passes a context of -1."""
        return bool(descriptors.handle(self._values[f"DESC{operand.name}"]) == OUTSIDE)

    def _grid_for(self, operand: Operand, ictxt: int, findings: Findings) -> ProcessGrid | None:
        """The grid of an operand; all of its processes must be in the grid of ICTXT."""
        grid = find(ictxt)
        if grid is None:
            text = f"DESC{operand.name}(CTXT_) must be the handle of a grid that this process is in, or -1 outside"
            findings.add(f"{text}, got {ictxt!r}", operand.position + 3, descriptors.CTXT)
        elif not set(grid.world) <= set(self.grid.world):
            text = f"ICTXT must be the handle of a grid that has all processes of that of DESC{operand.name}"
            findings.add(text, len(self._values))
        return grid

    def _shared(self) -> dict[str, object]:
        """Sizes and options only: processes outside a matrix's grid do not know the matrix."""
        return {name: self[name] for name in self._values if name in ("UPLO", "DIAG", "M", "N")}

    def _agree(self, findings: Findings, reads: list[int]) -> tuple[int, ...]:
        """**Collective.** As `Call._agree`; also compares the descriptions of both matrices on all processes."""
        digest, opposite = _OUTSIDER, 0
        if not findings:
            self._described = {operand.name: self._describe(operand.name) for operand in self.routine.operands}
            if None not in self._described.values():
                text = repr(self._described)
                digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")
                opposite = -digest
        *agreed, largest, least = super()._agree(findings, [*reads, digest, opposite])
        self._all_know = largest == -least
        return tuple(agreed)

    def run(self, trapezoid: Trapezoid | None) -> None:
        """**Collective.** sub(B) := sub(A), all of it or a trapezoid."""
        if self.is_empty:
            return
        descriptions: dict[str, Any] = self._described if self._all_know else self._collect_descriptions()

        with self.local_step():
            arrays = self.runtime.backend.arrays
            source, target = (_placed(description, self["M"], self["N"]) for description in descriptions.values())
            nothing = arrays.array(arrays.empty(1), (0, 0), self.dtype)  # the part of a process outside a matrix's grid
            parts = [self.local(name) if name in self._grids else nothing for name in descriptions]
            form = source, target, self._orders["A"], trapezoid, self.dtype
        step(self.opname, self.runtime, lambda: Bound(_Transfer, form, {}, {}, None, local=parts))

    def _collect_descriptions(self) -> dict[str, Any]:
        """**Collective.** Descriptions of both matrices, also for processes outside their grids.

        Raises:
            PblasArgumentError: no process passes the handle of a matrix's grid, or a process of that grid passes -1.
            MismatchError: processes that describe the same matrix differently.
        """
        runtime, descriptions, error = self.runtime, {}, None
        have = tuple(
            0 if description is None else runtime.nprocs - runtime.rank for description in self._described.values()
        )
        nearest = runtime.agree(self.opname, {}, None, have)
        for operand, near in zip(self.routine.operands, nearest, strict=False):
            own, what = self._described[operand.name], f"DESC{operand.name}(CTXT_)"
            info = -100 * (operand.position + 3) - descriptors.CTXT
            if not near:
                text = f"{self.opname}: {what} is -1 on all processes; those of its grid pass its handle"
                runtime.fail(self.opname, PblasArgumentError(text, info))
            received = runtime.backend.broadcast_object(own, runtime.nprocs - near)
            descriptions[operand.name] = received if own is None else own
            if own is None and runtime.rank in received[2]:
                error = error or PblasArgumentError(f"{self.opname}: {what} is -1 on a process of its grid", info)
        runtime.agree(self.opname, descriptions, error)
        return descriptions

    def _describe(self, name: str) -> tuple[object, ...] | None:
        """Description of an operand: descriptor, grid, ranks of the grid, and first row and column of the submatrix."""
        if name not in self._grids:
            return None
        grid, number = self._grids[name], {world: rank for rank, world in enumerate(self.grid.world)}
        ranks = tuple(number[world] for world in grid.world)
        return self._entries[name].values[2:10], grid.grid, ranks, self._values[f"I{name}"], self._values[f"J{name}"]


@of_types(routines.GEMR2D, call=_Relocation)
def pxgemr2d(call: _Relocation) -> None:
    """**Collective** over the grid of `ictxt`. sub(B) := sub(A), each on a grid of its own.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid of `ictxt`.
        MismatchError: ranks of a grid that passed different arguments.

    Source: ScaLAPACK REDIST, p?gemr2d.
    """
    call.run(None)


@of_types(routines.TRMR2D, call=_Relocation)
def pxtrmr2d(call: _Relocation) -> None:
    """**Collective** over the grid of `ictxt`. sub(B) := sub(A) in one trapezoid, which ends in a corner of sub(A).

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid of `ictxt`.
        MismatchError: ranks of a grid that passed different arguments.

    Source: ScaLAPACK REDIST, p?trmr2d.
    """
    m, n, without = call["M"], call["N"], int(call["DIAG"] == "U")
    if call["UPLO"] == "U":
        call.run(Trapezoid("U", without - max(0, m - n)))
    else:
        call.run(Trapezoid("L", max(0, n - m) - without))


def _placed(described: tuple[Any, ...], m: int, n: int) -> Placement:
    """Placement of the m x n submatrix of a description from `_describe`."""
    values, grid, ranks, i, j = described
    whole = Entries((descriptors.BLOCK_CYCLIC_2D_INB, 0, *values, 1)).matrix(grid)
    part = (i - 1, i - 1 + m, j - 1, j - 1 + n) if m and n else (0, 0, 0, 0)
    return Placement.of(whole, ranks).part(*part)


class _Placements(NamedTuple):
    """The plan of a transfer: placements of sub(A) and sub(B), storage order of A, and the elements that move."""

    source: Placement
    target: Placement
    order: Literal["F", "C"]
    trapezoid: Trapezoid | None

    @property
    def choice(self) -> str:
        """The transfer in one line, for the log."""
        m, n = (axis.n for axis in (self.target.rows, self.target.columns))
        return f"sub(B) := sub(A), {m} x {n}: each process receives only elements that it lacks"

    @property
    def overlaps_messages(self) -> bool:
        """Whether ranks compute while messages are under way: see `Plan`."""
        return False


@dataclass(frozen=True, eq=False)
class _Transfer(Operation[None]):
    """The transfer of one call between two grids: sub(B) := sub(A)."""

    noun: ClassVar[str] = "transfer"

    source: Placement
    target: Placement
    order: Literal["F", "C"]
    trapezoid: Trapezoid | None
    dtype: Dtype

    @property
    def result(self) -> None:
        """None: sub(B) is an array of the caller."""

    def plan(self, nprocs: int, topology: Topology) -> Any:
        return _Placements(self.source, self.target, self.order, self.trapezoid)

    def executor(self, plan: _Placements, backend: HostRanks) -> RunRedistribution:
        return RunRedistribution(backend, plan.source, plan.target, self.dtype, plan.order, plan.trapezoid)

    def arrays(self, opname: str, runtime: Runtime, executor: Any, bound: Bound[None], result: Any) -> Any:
        return RedistributionOperands(*bound.local)

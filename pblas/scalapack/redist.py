"""REDIST, with its arguments in its order: submatrices from one grid to another."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pblas.errors import PblasArgumentError, WorkspaceError
from pblas.execute.redistribution.transfer import Movement, SourceMatrix
from pblas.layouts.placement import Placement
from pblas.layouts.trapezoid import Trapezoid
from pblas.scalapack import descriptors, routines
from pblas.scalapack.arguments import Call, Findings
from pblas.scalapack.descriptors import Entries
from pblas.scalapack.grids import OUTSIDE, ProcessGrid, find
from pblas.scalapack.types import of_types

if TYPE_CHECKING:
    import numpy as np

    from pblas.backends.dtypes import Array
    from pblas.runtime.runtime import Runtime
    from pblas.scalapack.routines import Operand, Routine

Desc = Sequence[int]

_OUTSIDER = 1 << 60
"""The digest of a process that does not have parts of both matrices; greater than all digests."""


def pxgemr2d(
    routine: Routine,
    letter: str,
    m: int,
    n: int,
    a: Array,
    ia: int,
    ja: int,
    desca: Desc,
    b: Array,
    ib: int,
    jb: int,
    descb: Desc,
    ictxt: int,
) -> None:
    """**Collective** over the grid of `ictxt`. sub(B) := sub(A), each on a grid of its own.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid of `ictxt`.
        MismatchError: ranks of a grid that passed different arguments.

    Source: ScaLAPACK REDIST, p?gemr2d.
    """
    _Relocation(routine, letter, m, n, a, ia, ja, desca, b, ib, jb, descb, ictxt).run(None)


def pxtrmr2d(
    routine: Routine,
    letter: str,
    uplo: str,
    diag: str,
    m: int,
    n: int,
    a: Array,
    ia: int,
    ja: int,
    desca: Desc,
    b: Array,
    ib: int,
    jb: int,
    descb: Desc,
    ictxt: int,
) -> None:
    """**Collective** over the grid of `ictxt`. sub(B) := sub(A) in one trapezoid, which ends in a corner of sub(A).

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid of `ictxt`.
        MismatchError: ranks of a grid that passed different arguments.

    Source: ScaLAPACK REDIST, p?trmr2d.
    """
    call = _Relocation(routine, letter, uplo, diag, m, n, a, ia, ja, desca, b, ib, jb, descb, ictxt)
    without = int(call["DIAG"] == "U")
    if call["UPLO"] == "U":
        call.run(Trapezoid("U", without - max(0, m - n)))
    else:
        call.run(Trapezoid("L", max(0, n - m) - without))


class _Relocation(Call):
    """A call with two matrices on different grids; the ranks of the grid of ICTXT agree on it."""

    def _agreement_grid(self, findings: Findings) -> ProcessGrid:
        """The grid of ICTXT."""
        grid = find(self._values["ICTXT"])
        if grid is None:
            text = f"ICTXT must be the handle of a grid that this process is in, got {self._values['ICTXT']!r}"
            findings.add(text, len(self._values))
            raise findings.error
        return grid

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

    def _shared(self) -> dict[str, Any]:
        """Sizes and options only: processes outside a matrix's grid do not know the matrix."""
        return {name: self[name] for name in self._values if name in ("UPLO", "DIAG", "M", "N")}

    def _agree(self, findings: Findings, reads: list[int]) -> tuple[int, ...]:
        """**Collective.** As for all calls; also whether all processes know equal descriptions of both matrices."""
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
        if self["M"] == 0 or self["N"] == 0:
            return
        descriptions: dict[str, Any] = self._described if self._all_know else self._collect_descriptions()

        def make() -> _Transfer:
            source, target = (_placed(description, self["M"], self["N"]) for description in descriptions.values())
            return _Transfer(self.runtime, source, target, self.dtype, self._orders["A"], trapezoid)

        x, z = (self.local(name) if name in self._grids else self._empty_part() for name in descriptions)
        self.runtime.plans.get((*self.key, *descriptions.values()), make).run(self.verb, x, z)
        if "B" in self._grids:
            self.deliver()

    def _collect_descriptions(self) -> dict[str, Any]:
        """**Collective.** Descriptions of both matrices, also for processes outside their grids.

        Raises:
            PblasArgumentError: no process passes the handle of a matrix's grid.
            MismatchError: processes that describe the same matrix differently.
        """
        runtime, descriptions, error = self.runtime, {}, None
        have = tuple(
            0 if description is None else runtime.nprocs - runtime.rank for description in self._described.values()
        )
        nearest = runtime.agree(self.verb, {}, None, have)
        for operand, near in zip(self.routine.operands, nearest, strict=False):
            own, what = self._described[operand.name], f"DESC{operand.name}(CTXT_)"
            info = -100 * (operand.position + 3) - descriptors.CTXT
            if not near:
                text = f"{self.verb}: {what} is -1 on all processes; those of its grid pass its handle"
                raise PblasArgumentError(text, info)
            received = runtime.backend.broadcast_object(own, runtime.nprocs - near)
            descriptions[operand.name] = received if own is None else own
            if own is None and runtime.rank in received[2]:
                error = error or PblasArgumentError(f"{self.verb}: {what} is -1 on a process of its grid", info)
        runtime.agree(self.verb, descriptions, error)
        return descriptions

    def _describe(self, name: str) -> tuple[Any, ...] | None:
        """Description of an operand: its descriptor, its grid, the ranks of the grid, and the corner."""
        if name not in self._grids:
            return None
        grid, number = self._grids[name], {world: rank for rank, world in enumerate(self.grid.world)}
        ranks = tuple(number[world] for world in grid.world)
        return self._entries[name].values[2:10], grid.grid, ranks, self._values[f"I{name}"], self._values[f"J{name}"]

    def _empty_part(self) -> Array:
        """The empty part of a matrix on a process outside its grid."""
        arrays = self.runtime.backend.arrays
        part: Array = arrays.array(arrays.empty(1), (0, 0), self.dtype)
        return part


def _placed(described: tuple[Any, ...], m: int, n: int) -> Placement:
    """Placement of the m x n elements from the corner on."""
    values, grid, ranks, i, j = described
    whole = Entries((descriptors.BLOCK_CYCLIC_2D_INB, 0, *values, 1)).matrix(grid)
    part = (i - 1, i - 1 + m, j - 1, j - 1 + n) if m and n else (0, 0, 0, 0)
    return Placement.of(whole, ranks).part(*part)


class _Transfer:
    """**Collective.** The movement of one call, and its memory.

    Args:
        runtime: of the grid of ICTXT (global).
        source: placement of sub(A) (global).
        target: placement of sub(B) (global).
        dtype: of both (global).
        order: of the local arrays of A (global).
        trapezoid: the elements that move; None for all (global).
    """

    def __init__(
        self,
        runtime: Runtime,
        source: Placement,
        target: Placement,
        dtype: np.dtype[Any],
        order: Literal["F", "C"],
        trapezoid: Trapezoid | None,
    ) -> None:
        self._runtime, self._what = runtime, (source, target, dtype, order, trapezoid)
        self._prepare()

    def _prepare(self) -> None:
        """**Collective.** Build source and movement; fall back to messages if shared memory does not suffice."""
        source, target, dtype, order, trapezoid = self._what
        try:
            source_matrix = SourceMatrix(self._runtime.backend, source, dtype, order)
        except WorkspaceError:
            if not self._runtime.give_up_shared_memory():
                raise
            source_matrix = SourceMatrix(self._runtime.backend, source, dtype, order)
        self._shared = self._runtime.backend.shared
        self._movement: Movement | None = Movement(source_matrix, target, trapezoid=trapezoid)

    def run(self, verb: str, x: Array, z: Array) -> None:
        """**Collective.** z := x, each this rank's part."""
        runtime = self._runtime
        try:
            if self._shared != runtime.backend.shared:  # the context has given up shared memory since
                self._prepare()
            in_place = self._publish(verb, x)
        except WorkspaceError:
            if not runtime.give_up_shared_memory():
                raise
            self._prepare()
            in_place = self._publish(verb, x)
        movement = self._movement
        assert movement is not None, "it is not closed"
        with runtime.collective_section(verb):
            movement.begin()
            movement.finish(z)
            runtime.backend.arrays.settle()
        movement.home.release()
        if in_place and runtime.backend.shared:
            runtime.agree(f"end of {verb}", {})

    def _publish(self, verb: str, x: Array) -> bool:
        """**Collective.** Publish x, or a copy that peers can read; whether peers read any rank's x in place.

        Peers may read a copy until the agreement of the next call; it is not overwritten before.
        """
        assert self._movement is not None, "it is not closed"
        source_matrix = self._movement.home
        self._runtime.backend.arrays.begin()
        unstaged = source_matrix.publish(x)
        in_place = x.size > 0 and not source_matrix.staged
        first, read = self._runtime.agree(verb, {}, None, (int(unstaged), int(in_place)))
        if first:
            source_matrix.stage()
            self._runtime.agree(f"{verb}: staged", {})
        return bool(read)

    def close(self) -> None:
        """Drop the memory (local)."""
        self._movement = None


psgemr2d, pdgemr2d, pcgemr2d, pzgemr2d = of_types("sdcz", routines.GEMR2D, pxgemr2d)
pstrmr2d, pdtrmr2d, pctrmr2d, pztrmr2d = of_types("sdcz", routines.TRMR2D, pxtrmr2d)

"""Base of executors that apply a factor: B is brought to X, X is changed in place, and leaves for its owners.

X := B                        (or other elements, where there is no B)
X := f(W) X                   (columns, or rows, of this rank's own)
result := X
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import chain, starmap
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import numpy as np

from pblas.factor.factorization_run import BlockColumns, Part
from pblas.factor.qr_run import apply_block
from pblas.layouts.placement import Placement
from pblas.redistribution.scaling import Scaling
from pblas.redistribution.transfer import SourceMatrix, own_memory
from pblas.triangular.right_hand_sides import RightHandSides

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.factorization_plan import Panel
    from pblas.factor.qr_run import Tree
    from pblas.factor.with_factor_plan import (
        PanelReflectorsPlan,
        ReflectorsPlan,
        SubstitutionPlan,
        Sweep,
        TreeReflectorsPlan,
        WithFactorPlan,
    )
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
        self.lends: bool = plan.stays and bool(plan.reads or parts)
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


@dataclass(frozen=True, slots=True)
class SubstitutionOperands(FactorOperands):
    """Local arrays of one execution.

    Args:
        array: B, if all ranks have its elements (global).
        pivots: exchanges of rows, in LU, as `RunLu.pivots` (global).
        backward: undo the exchanges after the solves, instead of making them before (global).
    """

    array: Array | None
    pivots: Array | None
    backward: bool


class RunSubstitution(RunWithFactor[SubstitutionOperands]):
    """Runs a SubstitutionPlan on one rank.

    The columns of the identity, whose rows have been exchanged, begin with zeros, as does their solution with L. On
    CPUs each rank sorts its columns by the number of these zeros, so that it computes with the others only: 1/3 of the
    operations of this sweep, as LAPACK's xGETRI needs.
    """

    def __init__(self, plan: SubstitutionPlan, backend: HostRanks, dtype: np.dtype[Any]) -> None:
        n, readers = plan.w.m, [rank for rank in range(plan.nprocs) if plan.needs(rank)]
        self._steps, self._solves, self._sorts = list(plan.parts()), plan.needs(backend.rank), plan.begins == "sorted"
        parts = [
            Part(panel, *sweep.rows(panel, n), [rank for rank in readers if rank != panel.owner])
            for sweep, panel in self._steps
        ]
        super().__init__(plan, backend, dtype, parts)
        self._mine = global_indices(plan.x, backend.rank)[1]
        """The global columns of X that this rank has (local)."""
        self._order = self._starts = np.arange(0)
        """The order of sorted columns, and the rows of their first elements that are not 0, ascending (local)."""

    def begin(self, x: SubstitutionOperands, columns: Array) -> None:
        """X := B, or the identity, if it is sorted with its rows exchanged."""
        if x.array is not None:
            self._backend.copy(x.array[:, self._mine], columns)
            return
        rows = self._mine
        if self._sorts:
            starts = first_rows(len(columns), x.pivots)[rows]
            self._order = np.argsort(starts)
            rows = self._starts = starts[self._order]
        self._backend.clear(columns)
        self._arrays.fill(columns, rows, np.arange(len(rows)), 1)

    def change(self, x: SubstitutionOperands, columns: Array) -> None:
        """X := op(A)^-1 X."""
        pivots = None if self._sorts else x.pivots  # P B, unless the identity's columns begin as those of P
        if pivots is not None and not x.backward:
            self._arrays.swap_rows(columns, pivots)
        self._backend.sync()
        for s, (_, panel) in enumerate(self._steps):
            if panel.owner == self._rank:
                self._columns.offer(s)
        if self._solves:
            self._columns.request(0)
            for s, (sweep, panel) in enumerate(self._steps):
                part, count = self.fetch(s), columns.shape[1]
                if self._sorts and sweep is self._steps[0][0]:
                    count = int(np.searchsorted(self._starts, panel.stop))  # the others are 0 down to this panel
                self._solve(sweep, panel, part, columns[:, :count])
                if x.progress is not None and s + 1 < len(self._steps):
                    x.progress((s + 1) / len(self._steps))
        if pivots is not None and x.backward:
            self._arrays.swap_rows(columns, pivots, backward=True)
        if self._sorts:
            _move_columns(self._arrays, columns, np.argsort(self._order))

    def _solve(self, sweep: Sweep, panel: Panel, part: Array, x: Array) -> None:
        """The rows of X that belong to a panel are solved; with trans = "N" the rows after them are updated."""
        block = x[panel.start : panel.stop]
        if sweep.uplo == "L":
            diagonal, beside, rest = part[: panel.width], part[panel.width :], x[panel.stop :]
        else:
            diagonal, beside, rest = part[panel.start :], part[: panel.start], x[: panel.start]
        if sweep.trans != "N":  # X[k] -= op(T[i, k]) X[i]
            self._arrays.gemm(-1, beside.T, rest, 1, block, conj=(sweep.trans == "C", False))
        # X[k] = op(T[k, k])^-1 X[k]
        if sweep.trans == "N":
            self._arrays.trsm(diagonal, block, uplo=sweep.uplo, unit=sweep.unit)
        else:
            uplo: Literal["L", "U"] = "U" if sweep.uplo == "L" else "L"
            self._arrays.trsm(diagonal.T, block, uplo=uplo, unit=sweep.unit, conj=sweep.trans == "C")
        if sweep.trans == "N":  # X[i] -= T[i, k] X[k]
            self._arrays.gemm(-1, beside, block, 1, rest)


def first_rows(n: int, pivots: Array | None) -> Array:
    """Of each column of the identity, the row of its 1 after exchanges of rows.

    >>> first_rows(3, np.array([3, 3, 3])).tolist()  # the rows are e_2, e_0, e_1
    [1, 2, 0]
    """
    rows = list(range(n))
    for i, pivot in enumerate(() if pivots is None else pivots.tolist()):
        rows[i], rows[pivot - 1] = rows[pivot - 1], rows[i]
    return np.argsort(rows)


def _move_columns(arrays: Any, x: Array, sources: Array) -> None:
    """Column sources[j] of X becomes column j, in place and by the memory of one column (local)."""
    arrays.begin()
    kept, left = arrays.like(x[:, :1], x.dtype), dict(enumerate(sources.tolist()))
    while left:
        start, source = left.popitem()
        if source != start:
            place = start
            arrays.assign(x[:, place : place + 1], kept)
            while source != start:  # along a cycle
                arrays.assign(x[:, source : source + 1], x[:, place : place + 1])
                place, source = source, left.pop(source)
            arrays.assign(kept, x[:, place : place + 1])
    arrays.synchronize()


TAG_ROWS = 1043


@dataclass(frozen=True, slots=True)
class ReflectorsOperands(FactorOperands):
    """Local arrays of one execution.

    Args:
        tree: the rest of Q in TSQR; None for block columns (local).
    """

    tree: Tree | None


class RunReflectors(RunWithFactor[ReflectorsOperands]):
    """Runs a ReflectorsPlan on one rank; without a C, X begins as the first columns of the identity."""

    plan: ReflectorsPlan

    def begin(self, x: ReflectorsOperands, columns: Array) -> None:
        """X := the first columns of the identity."""
        rows, mine = global_indices(self.plan.x, self._rank)
        _, i_loc, j_loc = np.intersect1d(rows, mine, assume_unique=True, return_indices=True)
        self._backend.clear(columns)
        self._arrays.fill(columns, i_loc, j_loc, 1)


class RunPanelReflectors(RunReflectors):
    """Runs a PanelReflectorsPlan on one rank."""

    def __init__(self, plan: PanelReflectorsPlan, backend: HostRanks, dtype: np.dtype[Any]) -> None:
        self.plan: PanelReflectorsPlan = plan
        self._steps, ranks = plan.parts(), range(plan.nprocs)
        parts = [
            Part(panel, panel.start, plan.w.m, [p for p in ranks if p != panel.owner and plan.columns(panel, p)])
            for panel in self._steps
        ]
        super().__init__(plan, backend, dtype, parts)

    def change(self, x: ReflectorsOperands, columns: Array) -> None:
        """X := H[0] H[1] ... X, or X := ... H[1]^H H[0]^H X."""
        plan, (m, n_loc) = self.plan, columns.shape
        self._backend.sync()
        for s, panel in enumerate(self._steps):
            if panel.owner == self._rank:
                self._columns.offer(s)
        mine = [s for s, panel in enumerate(self._steps) if plan.columns(panel, self._rank)]
        if mine:
            self._columns.request(mine[0])
        for s in mine:
            panel, part = self._steps[s], self.fetch(s)
            c, k = columns[panel.start :, n_loc - plan.columns(panel, self._rank) :], min(panel.stop, m) - panel.start
            apply_block(self._arrays, part, k, c, adjoint=plan.adjoint, conj=plan.conj)
            if x.progress is not None and s != mine[-1]:
                x.progress((s + 1) / len(self._steps))


class RunTreeReflectors(RunReflectors):
    """Runs a TreeReflectorsPlan on one rank."""

    def __init__(self, plan: TreeReflectorsPlan, backend: HostRanks, dtype: np.dtype[Any]) -> None:
        self.plan: TreeReflectorsPlan = plan
        self._dtype = dtype
        self._chunks = plan.factorization.chunks(backend.rank)
        self._merges = plan.factorization.merges(backend.rank)
        self._buffer: Any = None
        if any(merge.receives for merge in self._merges):
            self._buffer = own_memory(backend, dtype.itemsize * plan.w.n * plan.x.n)
        super().__init__(plan, backend, dtype, [])

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of this rank's workspace."""
        return self._right.workspace_nbytes + (0 if self._buffer is None else int(self._buffer.nbytes))

    def change(self, x: ReflectorsOperands, columns: Array) -> None:
        """Q^H begins with the chunks and goes up the tree; Q goes down the tree and ends with the chunks."""
        if self.plan.conj:  # conj(Q) X = conj(Q conj(X))
            self._arrays.conjugate(columns)
        if self.plan.adjoint:
            self._multiply_chunks(x, columns)
        self._backend.sync()
        self._pass_through(x, columns)
        if not self.plan.adjoint:
            self._multiply_chunks(x, columns)
        if self.plan.conj:
            self._arrays.conjugate(columns)

    def _multiply_chunks(self, x: ReflectorsOperands, columns: Array) -> None:
        """X := Q[0] Q[1] ... X, or X := ... Q[1]^H Q[0]^H X, for the chunks of this rank."""
        n, adjoint, tree = self.plan.w.n, self.plan.adjoint, x.tree
        assert tree is not None, "the factor is a tree"
        chunks = list(enumerate(self._chunks))
        for i, (start, stop) in chunks if adjoint else reversed(chunks):
            v, c, t = x.w[start:stop], columns[start:stop], tree.t[:, i * n : (i + 1) * n]
            if i:
                self._arrays.multiply_q_stacked(v, t, columns[:n], c, adjoint=adjoint)
            else:
                self._arrays.multiply_q(v, t, c, adjoint=adjoint)

    def _pass_through(self, x: ReflectorsOperands, columns: Array) -> None:
        """The first rows of two ranks are multiplied on one of them, for each step of the tree."""
        n, adjoint, channel, tree = self.plan.w.n, self.plan.adjoint, self._backend.channel, x.tree
        assert tree is not None, "the factor is a tree"
        top = columns[:n]
        received = iter(zip(tree.v, tree.tv, strict=True) if adjoint else zip(tree.v[::-1], tree.tv[::-1], strict=True))
        for merge in self._merges if adjoint else reversed(self._merges):
            if not top.size:
                continue
            if merge.receives:
                v, t = next(received)
                other = self._arrays.array(self._buffer, top.shape, self._dtype, "F")
                self._wait(channel.receive(other, merge.peer, TAG_ROWS).done, merge.peer)
                self._arrays.multiply_q_stacked(v, t, top, other, adjoint=adjoint, triangular=True)
                self._wait(channel.send(other, merge.peer, TAG_ROWS).done, merge.peer)
            else:
                self._wait(channel.send(top, merge.peer, TAG_ROWS).done, merge.peer)
                self._wait(channel.receive(top, merge.peer, TAG_ROWS).done, merge.peer)

    def _wait(self, done: Any, peer: int) -> None:
        """Return when a message between this rank and a peer has arrived or left."""
        self._backend.wait(done, f"rows of Q with rank {peer}")

"""Executors that apply a factor: solves with its triangles, and products with the Q of a QR factorization.

X := B               (or other elements, where there is no B)
X := f(W) X          (columns, or rows, of this rank's own, panel after panel of W; see `apply`)
result := X
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import numpy as np

from pblas.factor.panel_broadcast import PanelBroadcast, PanelRows
from pblas.factor.qr_run import Tree, apply_block
from pblas.factor.with_factor_plan import (
    FactorStep,
    PanelReflectorsPlan,
    ReflectorsPlan,
    SubstitutionPlan,
    TreeReflectorsPlan,
    WithFactorPlan,
    WithPanelsPlan,
)
from pblas.layouts.placement import Placement
from pblas.matrices.scatter_gather import diagonal_places, global_indices
from pblas.redistribution.packing import Scaling
from pblas.redistribution.transfer import SourceMatrix, own_memory
from pblas.triangular.trsm_run import RightHandSides

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pblas.backends.device import Device
    from pblas.backends.dtypes import Array, Dtype
    from pblas.backends.host_ranks import HostRanks
    from pblas.layouts.descriptor import MatrixDescriptor

TAG_ROWS = 1043


@dataclass(frozen=True, slots=True)
class FactorOperands:
    """The factor, and B and the result, or their transposes if the factor stands on the right (local).

    If `in_place`, both are the same memory. `conj`: B is conjugated on its way to X, X on that to the result (global).
    """

    w: Array
    right: Array | None
    result: Array
    in_place: bool
    conj: tuple[bool, bool]
    progress: Callable[[float], None] | None


OperandsT = TypeVar("OperandsT", bound=FactorOperands)


class RunWithFactor(ABC, Generic[OperandsT]):
    """**Collective.** Runs a plan with a factor on one rank."""

    def __init__(self, plan: WithFactorPlan, backend: HostRanks, dtype: Dtype) -> None:
        self._backend, self._arrays, self._rank, self._plan_name = backend, backend.arrays, backend.rank, plan.name
        self._source = SourceMatrix(backend, Placement.of(plan.w), dtype, "F")
        place, right = Placement.of(plan.x), Placement.of(plan.right)
        self._right = RightHandSides(
            *(backend, right if plan.reads else None, right, dtype, (plan.right.order, "F")),
            target=place,
            solved=None if plan.stays else place,
            lld=plan.x.lld,
        )
        panels: list[PanelRows] = []
        if isinstance(plan, WithPanelsPlan):
            panels = [PanelRows(panel, i0, i1, plan.readers(panel)) for panel, i0, i1, _ in plan.steps]
        self.peers_read: bool = plan.stays and bool(plan.reads or panels)
        """Whether peers read this rank's arrays until the closing agreement, not until X leaves (global)."""
        self._panels: PanelBroadcast = PanelBroadcast(self._source, panels)

    @property
    def workspace_nbytes(self) -> int:
        return self._right.workspace_nbytes + self._panels.workspace_nbytes

    def publish(self, x: OperandsT) -> bool:
        """Publish the locations of B and of the factor, which the context made; true if B must be staged first."""
        self._source.publish(x.w)
        return self._right.publish(x.right)

    def prepare(self, *, scratch: bool) -> bool:
        """Stage B if any rank must."""
        return self._right.prepare(scratch=scratch)

    def run(self, x: OperandsT) -> None:
        """Result := f(W) B."""
        columns = x.result if self._right.x is None else self._right.x
        # X := B
        if x.right is None:
            self.fill(x, columns)
        elif not (x.in_place and self._right.x is None):
            self._right.bring(columns, Scaling(1.0, 0.0, x.conj[0]))
        # X := f(W) X
        self.apply(x, columns)
        self._panels.wait_sent()
        self._source.release()
        # result := X
        self._right.deliver(x.result, self._plan_name, Scaling(1.0, 0.0, x.conj[1]))

    # Each plan's executor defines these

    @abstractmethod
    def fill(self, x: OperandsT, columns: Array) -> None:
        """X := its elements at first, without a B (local)."""

    @abstractmethod
    def apply(self, x: OperandsT, columns: Array) -> None:
        """X := f(W) X, for this rank's columns, or rows."""

    # They share these

    def broadcast(self, steps: Sequence[FactorStep]) -> None:
        """Start to send this rank's panels to the far ranks that read them."""
        self._backend.sync()
        for k, step in enumerate(steps):
            if step.panel.owner == self._rank:
                self._panels.send(k)

    def fetch(self, k: int) -> Array:
        """Panel k of the factor, after its arrival; the next one begins to arrive."""
        panel = self._panels.fetch(k)
        with self._arrays.on_side_lane():
            arrived = self._arrays.mark()
        self._arrays.follow(arrived)
        self._panels.receive(k + 1)
        return panel


def set_identity(backend: HostRanks, desc: MatrixDescriptor, local: Array) -> None:
    """This rank's elements of a matrix := those of the identity (local)."""
    backend.fill(local)
    backend.arrays.fill(local, *diagonal_places(desc, backend.rank), 1)


@dataclass(frozen=True, slots=True)
class SubstitutionOperands(FactorOperands):
    """Local arrays of a solve: B if all ranks have its elements, and exchanges of rows, before the solves or after."""

    array: Array | None
    pivots: Array | None
    backward: bool


class RunSubstitution(RunWithFactor[SubstitutionOperands]):
    """Runs a SubstitutionPlan on one rank: X := op(T)^-1 X for one triangle T after the other.

    The columns of the identity, whose rows have been exchanged, begin with zeros, as does their solution with L. On
    CPUs each rank sorts its columns by the number of these zeros, so that it computes with the others only: 1/3 of the
    operations with this triangle, as LAPACK's xGETRI needs.
    """

    def __init__(self, plan: SubstitutionPlan, backend: HostRanks, dtype: Dtype) -> None:
        super().__init__(plan, backend, dtype)
        self._steps, self._sorts = plan.steps, plan.begins == "sorted"
        self._mine = global_indices(plan.x, backend.rank)[1]  # the global columns of X that this rank has (local)
        self._order = self._starts = np.arange(0)
        """The order of sorted columns, and the rows of their first elements that are not 0, ascending (local)."""

    def fill(self, x: SubstitutionOperands, columns: Array) -> None:
        """X := B, or the identity, if it is sorted with its rows exchanged."""
        if x.array is not None:
            self._backend.copy(x.array[:, self._mine], columns)
            return
        rows = self._mine
        if self._sorts:
            starts = first_rows(len(columns), x.pivots)[rows]
            self._order = np.argsort(starts)
            rows = self._starts = starts[self._order]
        self._backend.fill(columns)
        self._arrays.fill(columns, rows, np.arange(len(rows)), 1)

    def apply(self, x: SubstitutionOperands, columns: Array) -> None:
        """X := op(A)^-1 X."""
        pivots = None if self._sorts else x.pivots  # P B, unless the identity's columns begin as those of P
        if pivots is not None and not x.backward:
            self._arrays.swap_rows(columns, pivots)
        self.broadcast(self._steps)
        if self._mine.size:
            self._panels.receive(0)
            for k, step in enumerate(self._steps):
                # T[:, k], from its owner   (T[:, k+1] begins to arrive)
                t, count = self.fetch(k), columns.shape[1]
                if self._sorts and step.triangle is self._steps[0].triangle:
                    count = int(np.searchsorted(self._starts, step.panel.stop))  # the others are 0 down to this panel
                # X[k] = T[k, k]^-1 X[k], X[i] -= T[i, k] X[k] for the rows i that follow
                self._solve(step, t, columns[:, :count])
                if x.progress is not None and k + 1 < len(self._steps):
                    x.progress((k + 1) / len(self._steps))
        if pivots is not None and x.backward:
            self._arrays.swap_rows(columns, pivots, backward=True)
        if self._sorts:
            _move_columns(self._arrays, columns, np.argsort(self._order))

    def _solve(self, step: FactorStep, t: Array, x: Array) -> None:
        """Solve for the rows of X that belong to panel k of T."""
        panel, _, _, triangle = step
        assert triangle is not None, "of a substitution"
        trans, x_k, arrays = triangle.trans, x[panel.start : panel.stop], self._arrays
        if triangle.uplo == "L":
            t_kk, t_ik, x_i = t[: panel.width], t[panel.width :], x[panel.stop :]
        else:
            t_kk, t_ik, x_i = t[panel.start :], t[: panel.start], x[: panel.start]
        if trans == "N":
            # X[k] = T[k, k]^-1 X[k]
            arrays.trsm(t_kk, x_k, uplo=triangle.uplo, unit=triangle.unit)
            # X[i] -= T[i, k] X[k]
            arrays.gemm(-1, t_ik, x_k, 1, x_i)
        else:
            # X[k] -= op(T[i, k]) X[i]
            arrays.gemm(-1, t_ik.T, x_i, 1, x_k, conj=(trans == "C", False))
            # X[k] = op(T[k, k])^-1 X[k]
            uplo: Literal["L", "U"] = "U" if triangle.uplo == "L" else "L"
            arrays.trsm(t_kk.T, x_k, uplo=uplo, unit=triangle.unit, conj=trans == "C")


def first_rows(n: int, pivots: Array | None) -> Array:
    """Of each column of the identity, the row of its 1 after exchanges of rows.

    >>> first_rows(3, np.array([3, 3, 3])).tolist()  # the rows are e_2, e_0, e_1
    [1, 2, 0]
    """
    rows = list(range(n))
    for i, pivot in enumerate(() if pivots is None else pivots.tolist()):
        rows[i], rows[pivot - 1] = rows[pivot - 1], rows[i]
    return np.argsort(rows)


def _move_columns(arrays: Device, x: Array, sources: Array) -> None:
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


@dataclass(frozen=True, slots=True)
class ReflectorsOperands(FactorOperands):
    """Local arrays of a product with Q; `tree` is the rest of Q in TSQR, and `t` or `tau` that of Q on a grid."""

    tree: Tree | None
    t: Array | None
    tau: Array | None


class RunReflectors(RunWithFactor[ReflectorsOperands]):
    """Runs a ReflectorsPlan on one rank."""

    plan: ReflectorsPlan

    def fill(self, x: ReflectorsOperands, columns: Array) -> None:
        """X := the first columns of the identity."""
        set_identity(self._backend, self.plan.x, columns)


class RunPanelReflectors(RunReflectors):
    """Runs a PanelReflectorsPlan on one rank."""

    def __init__(self, plan: PanelReflectorsPlan, backend: HostRanks, dtype: Dtype) -> None:
        self.plan: PanelReflectorsPlan = plan
        self._steps = plan.steps
        super().__init__(plan, backend, dtype)

    def apply(self, x: ReflectorsOperands, columns: Array) -> None:
        """X := H[0] H[1] ... X, or X := ... H[1]^H H[0]^H X."""
        plan, (m, n_loc) = self.plan, columns.shape
        self.broadcast(self._steps)
        mine = [k for k, step in enumerate(self._steps) if plan.columns(step.panel, self._rank)]
        if mine:
            self._panels.receive(mine[0])
        for k in mine:
            # V and T of H[k], from their owner   (those of the next panel begin to arrive)
            panel, vt = self._steps[k].panel, self.fetch(k)
            c = columns[panel.start :, n_loc - plan.columns(panel, self._rank) :]
            # X[k:] = H[k] X[k:], or H[k]^H X[k:]
            count = min(panel.stop, m) - panel.start
            apply_block(self._arrays, vt, count, c, adjoint=plan.adjoint, conj=plan.conj)
            if x.progress is not None and k != mine[-1]:
                x.progress((k + 1) / len(self._steps))


class RunTreeReflectors(RunReflectors):
    """Runs a TreeReflectorsPlan on one rank."""

    def __init__(self, plan: TreeReflectorsPlan, backend: HostRanks, dtype: Dtype) -> None:
        self.plan: TreeReflectorsPlan = plan
        self._dtype = dtype
        self._chunks = plan.factorization.chunks(backend.rank)
        self._merges = plan.factorization.merges(backend.rank)
        self._buffer: Any = None
        if any(merge.receives for merge in self._merges):
            self._buffer = own_memory(backend, dtype.itemsize * plan.w.n * plan.x.n)
        super().__init__(plan, backend, dtype)

    @property
    def workspace_nbytes(self) -> int:
        return self._right.workspace_nbytes + (0 if self._buffer is None else int(self._buffer.nbytes))

    def apply(self, x: ReflectorsOperands, columns: Array) -> None:
        """Q^H begins with the chunks and goes up the tree; Q goes down the tree and ends with the chunks."""
        assert x.tree is not None, "the factor is a tree"
        if self.plan.conj:  # conj(Q) X = conj(Q conj(X))
            self._arrays.conjugate(columns)
        if self.plan.adjoint:
            self._multiply_chunks(x.w, x.tree, columns)
        self._backend.sync()
        self._multiply_tree(x.tree, columns[: self.plan.w.n])
        if not self.plan.adjoint:
            self._multiply_chunks(x.w, x.tree, columns)
        if self.plan.conj:
            self._arrays.conjugate(columns)

    def _multiply_chunks(self, w: Array, tree: Tree, columns: Array) -> None:
        """X := Q[0] Q[1] ... X, or X := ... Q[1]^H Q[0]^H X, for the chunks of this rank."""
        n, adjoint = self.plan.w.n, self.plan.adjoint
        chunks = list(enumerate(self._chunks))
        for i, (start, stop) in chunks if adjoint else reversed(chunks):
            v, c, t = w[start:stop], columns[start:stop], tree.t[:, i * n : (i + 1) * n]
            if i:  # [X[0]; X[i]] = Q[i] [X[0]; X[i]]
                self._arrays.multiply_q_stacked(v, t, columns[:n], c, adjoint=adjoint)
            else:  # X[0] = Q[0] X[0]
                self._arrays.multiply_q(v, t, c, adjoint=adjoint)

    def _multiply_tree(self, tree: Tree, top: Array) -> None:
        """The first rows of two ranks are multiplied on one of them, for each step of the tree."""
        channel, order = self._backend.channel, slice(None, None, 1 if self.plan.adjoint else -1)
        reflectors = iter(zip(tree.v[order], tree.tv[order], strict=True))
        for merge in self._merges[order] if top.size else ():
            if merge.receives:
                v, t = next(reflectors)
                other = self._arrays.array(self._buffer, top.shape, self._dtype, "F")
                self._wait(channel.receive(other, merge.peer, TAG_ROWS).done, merge.peer)
                # [X; X of the peer] = Q [X; X of the peer], or with Q^H
                self._arrays.multiply_q_stacked(v, t, top, other, adjoint=self.plan.adjoint, triangular=True)
                self._wait(channel.send(other, merge.peer, TAG_ROWS).done, merge.peer)
            else:
                self._wait(channel.send(top, merge.peer, TAG_ROWS).done, merge.peer)
                self._wait(channel.receive(top, merge.peer, TAG_ROWS).done, merge.peer)

    def _wait(self, done: Any, peer: int) -> None:
        """Return when a message between this rank and a peer has arrived or left."""
        self._backend.wait(done, f"rows of Q with rank {peer}")

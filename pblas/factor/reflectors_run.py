"""Executors of products with Q: X := op(Q) X, with Q in block columns, or as the tree of TSQR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.factor.block_columns import Part
from pblas.factor.qr_run import apply_block
from pblas.factor.with_factor_run import FactorOperands, RunWithFactor, global_indices
from pblas.redistribution.transfer import own_memory

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.reflectors_plan import PanelReflectorsPlan, ReflectorsPlan, TreeReflectorsPlan
    from pblas.factor.tsqr_run import Tree

TAG = 1043


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
                self._wait(channel.receive(other, merge.peer, TAG).done, merge.peer)
                self._arrays.multiply_q_stacked(v, t, top, other, adjoint=adjoint, triangular=True)
                self._wait(channel.send(other, merge.peer, TAG).done, merge.peer)
            else:
                self._wait(channel.send(top, merge.peer, TAG).done, merge.peer)
                self._wait(channel.receive(top, merge.peer, TAG).done, merge.peer)

    def _wait(self, done: Any, peer: int) -> None:
        """Return when a message between this rank and a peer has arrived or left."""
        self._backend.wait(done, f"rows of Q with rank {peer}")

"""Executors of products with Q: X := op(Q) X, with Q in block columns, or as the tree of TSQR."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pblas.execute.factorization.block_columns import BlockColumns, Part
from pblas.execute.factorization.qr import apply_block
from pblas.execute.redistribution.transfer import SourceMatrix, own_memory
from pblas.layouts.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.execute.factorization.tsqr import Tree
    from pblas.plans.reflectors import PanelReflectorsPlan, TreeReflectorsPlan

TAG = 1043


class ReflectorsOperands(NamedTuple):
    """Local arrays of one execution.

    Args:
        w: the factor (local).
        x: X, which is multiplied in place (local).
        tree: the rest of Q in TSQR; None for block columns (local).
    """

    w: Array
    x: Array
    tree: Tree | None


class RunPanelReflectors:
    """Runs a PanelReflectorsPlan on one rank.

    Args:
        plan: what to run (global).
        backend: ranks, memory and messages (global).
        dtype: of the matrices (global).
    """

    lends = True
    """Peers read this rank's panels until the closing agreement (global)."""

    def __init__(self, plan: PanelReflectorsPlan, backend: HostRanks, dtype: np.dtype[Any]) -> None:
        self._plan, self._arrays, self._rank = plan, backend.arrays, backend.rank
        self._home = SourceMatrix(backend, Placement.of(plan.w), dtype, "F")
        self._steps, ranks = plan.parts(), range(plan.nprocs)
        self._columns = BlockColumns(
            self._home,
            [
                Part(panel, panel.start, plan.w.m, [p for p in ranks if p != panel.owner and plan.columns(panel, p)])
                for panel in self._steps
            ],
        )
        self.progress: Callable[[float], None] | None = None
        """Called with the done part of the work after each panel; None for no calls (local)."""

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of this rank's workspace."""
        return self._columns.workspace_nbytes

    def publish(self, x: ReflectorsOperands) -> bool:
        """Publish the location of the factor, which is in a window if ranks share memory: false."""
        return self._home.publish(x.w)

    def prepare(self, *, scratch: bool) -> bool:
        """Nothing is staged: the factor was made by the context."""
        assert not scratch, "the factor is in a window"
        return False

    def run(self, x: ReflectorsOperands) -> None:
        """X := H[0] H[1] ... X, or X := ... H[1]^H H[0]^H X."""
        plan, (m, n_loc) = self._plan, x.x.shape
        self._home.backend.sync()
        for s, panel in enumerate(self._steps):
            if panel.owner == self._rank:
                self._columns.offer(s)
        mine = [s for s, panel in enumerate(self._steps) if plan.columns(panel, self._rank)]
        if mine:
            self._columns.request(mine[0])
        for s in mine:
            panel = self._steps[s]
            part = self._columns.fetch(s)
            with self._arrays.on_side_lane():
                arrived = self._arrays.mark()
            self._arrays.follow(arrived)
            self._columns.request(s + 1)
            c, k = x.x[panel.start :, n_loc - plan.columns(panel, self._rank) :], min(panel.stop, m) - panel.start
            apply_block(self._arrays, part, k, c, adjoint=plan.adjoint, conj=plan.conj)
            if self.progress is not None and s != mine[-1]:
                self.progress((s + 1) / len(self._steps))
        self._columns.sent()
        self._home.release()


class RunTreeReflectors:
    """Runs a TreeReflectorsPlan on one rank.

    Args:
        plan: what to run (global).
        backend: ranks, memory and messages (global).
        dtype: of the matrices (global).
    """

    lends = False
    """No peer reads this rank's memory: rows are messages (global)."""

    def __init__(self, plan: TreeReflectorsPlan, backend: HostRanks, dtype: np.dtype[Any]) -> None:
        self._plan, self._backend, self._arrays, self._dtype = plan, backend, backend.arrays, dtype
        self._chunks = plan.factorization.chunks(backend.rank)
        self._merges = plan.factorization.merges(backend.rank)
        self.progress: Callable[[float], None] | None = None
        """Unused: it has one step, whose end the caller reports (local)."""
        self._buffer: Any = None
        if any(merge.receives for merge in self._merges):
            self._buffer = own_memory(backend, dtype.itemsize * plan.w.n * plan.x.n)

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of this rank's workspace."""
        return 0 if self._buffer is None else int(self._buffer.nbytes)

    def publish(self, x: ReflectorsOperands) -> bool:
        """Nothing is published."""
        assert x.tree is not None, "the factor is a tree"
        return False

    def prepare(self, *, scratch: bool) -> bool:
        """Nothing is staged."""
        assert not scratch, "no array is published"
        return False

    def run(self, x: ReflectorsOperands) -> None:
        """Q^H begins with the chunks and goes up the tree; Q goes down the tree and ends with the chunks."""
        if self._plan.conj:  # conj(Q) X = conj(Q conj(X))
            self._arrays.conjugate(x.x)
        if self._plan.adjoint:
            self._multiply_chunks(x)
        self._backend.sync()
        self._pass_through(x)
        if not self._plan.adjoint:
            self._multiply_chunks(x)
        if self._plan.conj:
            self._arrays.conjugate(x.x)

    def _multiply_chunks(self, x: ReflectorsOperands) -> None:
        """X := Q[0] Q[1] ... X, or X := ... Q[1]^H Q[0]^H X, for the chunks of this rank."""
        n, adjoint, tree = self._plan.w.n, self._plan.adjoint, x.tree
        assert tree is not None, "the factor is a tree"
        chunks = list(enumerate(self._chunks))
        for i, (start, stop) in chunks if adjoint else reversed(chunks):
            v, c, t = x.w[start:stop], x.x[start:stop], tree.t[:, i * n : (i + 1) * n]
            if i:
                self._arrays.multiply_q_stacked(v, t, x.x[:n], c, adjoint=adjoint)
            else:
                self._arrays.multiply_q(v, t, c, adjoint=adjoint)

    def _pass_through(self, x: ReflectorsOperands) -> None:
        """The first rows of two ranks are multiplied on one of them, for each step of the tree."""
        n, adjoint, channel, tree = self._plan.w.n, self._plan.adjoint, self._backend.channel, x.tree
        assert tree is not None, "the factor is a tree"
        top = x.x[:n]
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

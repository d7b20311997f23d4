"""Executor of TSQR: each rank factors its rows of a tall matrix, then pairs of ranks factor their R."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.qr_plan import TsqrPlan

TAG = 1042


class Tree(NamedTuple):
    """The parts of Q that are beside W on one rank.

    Args:
        t: T of each chunk of rows, side by side (local).
        v: V of each R that this rank received, n x n, upper triangular (local).
        tv: their T (local).
    """

    t: Array
    v: list[Array]
    tv: list[Array]


class RunTsqr:
    """Runs a TsqrPlan on one rank: W is factored in place, and `tree` is the rest of Q.

    Args:
        plan: what to run (global).
        backend: ranks, memory and messages (global).
        dtype: of the matrix (global).
    """

    peers_read = False
    """No peer reads this rank's memory: R is a message (global)."""
    info = 0
    """LAPACK's INFO (global)."""
    workspace_nbytes = 0
    """All memory belongs to the factor (local)."""

    def __init__(self, plan: TsqrPlan, backend: HostRanks, dtype: np.dtype[Any]) -> None:
        self._plan, self._backend, self._arrays, self._dtype = plan, backend, backend.arrays, dtype
        self._chunks, self._merges = plan.chunks(backend.rank), plan.merges(backend.rank)
        self.progress: Callable[[float], None] | None = None
        """Called with the done part of the work; it has one step, whose end the caller reports (local)."""
        self.tree: Tree
        """The rest of Q of the last execution (local)."""

    def publish(self, w: Array) -> bool:
        """Allocate the memory of the tree; nothing is published."""
        assert w.shape == self._plan.w.local_shape(self._backend.rank), "W is as planned"
        n, inner = self._plan.w.n, self._plan.inner
        received = [merge for merge in self._merges if merge.receives]
        self.tree = Tree(
            self._new(inner, n * len(self._chunks)),
            [self._new(n, n) for _ in received],
            [self._new(inner, n) for _ in received],
        )
        return False

    def prepare(self, *, scratch: bool) -> bool:
        """Nothing is staged."""
        assert not scratch, "no array is published"
        return False

    def run(self, w: Array) -> None:
        """Factor W."""
        n, channel = self._plan.w.n, self._backend.channel
        for i, (start, stop) in enumerate(self._chunks):
            t = self.tree.t[:, i * n : (i + 1) * n]
            if i == 0:  # W[0] = Q[0] R
                self._arrays.qr(w[start:stop], t)
            else:  # [R; W[i]] = Q[i] [R'; 0]
                self._arrays.qr_stacked(w[:n], w[start:stop], t)
        self._backend.sync()
        pairs = iter(zip(self.tree.v, self.tree.tv, strict=True))
        for merge in self._merges:
            if merge.receives:
                v, t = next(pairs)
                arrived = channel.receive(v, merge.peer, TAG)
                self._backend.wait(arrived.done, f"R of rank {merge.peer}")
                self._arrays.qr_stacked(w[:n], v, t, triangular=True)
            else:
                left = channel.send(w[:n], merge.peer, TAG)
                self._backend.wait(left.done, "sending R")

    def finish(self) -> None:
        """Nothing remains to be done."""

    def taken_tree(self) -> Tree:
        """The rest of Q, which the executor forgets (local)."""
        tree = self.tree
        del self.tree
        return tree

    def _new(self, m: int, n: int) -> Array:
        """New memory of this rank, in Fortran order (local)."""
        x: Array = self._arrays.array(self._arrays.empty(self._dtype.itemsize * m * n), (m, n), self._dtype)
        return x

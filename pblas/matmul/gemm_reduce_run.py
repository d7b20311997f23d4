"""GemmReduceScatter and GemmAllReduce: partial products of other ranks' columns first, the own columns last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.backends.cpu.pointwise import evaluate_into
from pblas.matmul.index_runs import IndexRuns, gemm_runs
from pblas.matmul.reduce_run import Reduction

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, ProductDtypes
    from pblas.matmul.one_dimensional_plan import GemmReduceScatter, ReduceStep
    from pblas.matmul.operands import Operands, Orders


class RunGemmReduce:
    """Runs a GemmReduceScatter or GemmAllReduce plan on one rank."""

    def __init__(self, plan: GemmReduceScatter, backend: Any, dtypes: ProductDtypes, orders: Orders) -> None:
        self._plan, self._rank, self._total = plan, backend.rank, dtypes.total
        self._arrays = backend.arrays
        self._reduction = Reduction(backend, plan, dtypes.wire, self._total, dtypes.d, orders.result)
        self._contributes = plan.contributes(backend.rank)
        self._m, self._k = IndexRuns.whole(plan.oriented.m), IndexRuns.of_inner(plan, backend.rank)
        self._steps = [
            (step, IndexRuns.global_to_local(plan.shards.ranges(step.owner), step.c0, step.c1))
            for step in plan.steps(backend.rank)
        ]
        self._width = plan.shards.nb if plan.replicates else None  # of pieces of a replicated D

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of this rank's workspace."""
        return self._reduction.workspace_nbytes

    @property
    def peers_read(self) -> bool:
        """See `RunLocalGemm`: peers read sums that all ranks get, and workspace that other plans use too (global).

        A rank has all partial products when it returns. Its own workspace is overwritten only after an agreement.
        """
        return self._reduction.peers_read

    def publish(self, operands: Operands) -> bool:
        """Publish the location of the own shard of D; true if other ranks cannot add there."""
        self._apart = self._total != operands.result.dtype or operands.beta != 0
        return self._reduction.publish(operands.result, apart=self._apart)

    def prepare(self, *, scratch: bool) -> bool:
        """Note whether sums are formed in scratch memory, not in D. No agreement is needed."""
        self._in_scratch = scratch or self._apart
        return False

    def run(self, x: Operands) -> None:
        """D[:, j] = alpha op(A) op(B)[:, j] + beta C[:, j] for this rank's columns j, and a share of the others'."""
        self._reduction.begin(lambda *columns: self._columns(x.result, *columns), scratch=self._in_scratch)
        for step, n in self._steps:
            if step.owner != self._rank:
                part = self._reduction.outgoing(step)
                # partial D[:, j] = alpha op(A)[:, k] op(B)[k, j]   (columns j of rank step.owner, k of this rank)
                self._partial(x, part, n)
                self._reduction.send(step, part)
            else:
                self._finish(x, step, n)
                if self._plan.replicates:
                    self._reduction.share(step)
        self._reduction.end()

    def _partial(self, x: Operands, part: Array, n: IndexRuns) -> None:
        total = part if part.dtype == self._total else np.empty(part.shape, self._total)
        self._multiply(x, 0.0, total, n)
        if total is not part:
            self._arrays.assign(total, part)

    def _finish(self, x: Operands, step: ReduceStep, n: IndexRuns) -> None:
        """D[:, j] = (beta C[:, j] + others' partial products) + alpha op(A)[:, k] op(B)[k, j], then the epilogue."""
        columns, arrays = (step.owner, step.piece, step.c0, step.c1), self._arrays
        own = self._columns(x.result, *columns)
        others = self._reduction.collect(step)
        total = own if own.dtype == self._total else np.empty(own.shape, self._total)
        beta = x.beta
        if x.old is not None and (x.old is not x.result or total is not own):
            arrays.assign(self._columns(x.old, *columns), total)
        if others:
            parts = self._reduction.accumulator(step)
            if x.old is not None:
                arrays.add_scaled(1.0, parts, beta, total)
            elif parts is not total:
                arrays.assign(parts, total)
            beta = 1.0
        if self._contributes:
            self._multiply(x, beta, total, n)
        else:
            arrays.scale(beta, total)
        finish = x.finish_of(lambda z: self._columns(z, *columns))
        if finish is not None:
            evaluate_into(finish.tree, total, finish.operands, own)
        elif total is not own:
            arrays.assign(total, own)

    def _multiply(self, x: Operands, beta: complex, z: Array, n: IndexRuns) -> None:
        """Z := alpha op(A) op(B)[:, n] + beta Z over this rank's part of K."""
        arrays = self._arrays
        gemm_runs(
            x.alpha, x.left, x.right, beta, z, self._m, n, self._k, x.conj, arrays.gemm, arrays.traits.packs_blocks
        )

    def _columns(self, d: Array, owner: int, piece: int, c0: int, c1: int) -> Array:
        """Columns of D on this rank: those of any owner in a replicated D, otherwise of this rank only."""
        if self._width is None:
            return d[:, c0:c1]
        first = (piece * self._plan.product.nprocs + owner) * self._width
        return d[:, first : first + c1 - c0]

"""AllGatherGemm: a rank multiplies the shards of the right operand one after the other, its own first."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pblas.backends.cpu.pointwise import evaluate_into
from pblas.matmul.gather_run import Gather
from pblas.matmul.index_runs import IndexRuns, gemm_runs, side_by_side
from pblas.matmul.local_gemm_run import widened

if TYPE_CHECKING:
    from pblas.backends.dtypes import ProductDtypes
    from pblas.matmul.one_dimensional_plan import AllGatherGemm
    from pblas.matmul.operands import Operands, Orders


class RunAllGatherGemm:
    """Runs an AllGatherGemm plan on one rank."""

    peers_read = True
    """See `RunLocalGemm`: peers read an operand, or a copy of it made before an agreement (global)."""

    def __init__(self, plan: AllGatherGemm, backend: Any, dtypes: ProductDtypes, orders: Orders) -> None:
        self._along_k, self._total = plan.along_k, dtypes.total
        self._arrays = backend.arrays
        self._gather = Gather(backend, plan, dtypes.b, orders.right)
        self._m = IndexRuns.of_rows(plan.oriented, backend.rank)
        self._steps = []
        for step in plan.steps(backend.rank):
            shard = plan.shards.ranges(step.source)
            if plan.along_k:
                n, k = IndexRuns([(0, step.c0, step.c1 - step.c0)]), IndexRuns.global_to_local(shard)
            else:
                n, k = IndexRuns.global_to_local(shard, step.c0, step.c1).flipped(), IndexRuns.whole(plan.oriented.k)
            self._steps.append((step, n, k))
        self._pieces = Counter(step.source for step, *_ in self._steps)

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of this rank's workspace."""
        return self._gather.workspace_nbytes

    def publish(self, operands: Operands) -> bool:
        """Publish the location of the own shard; true if it must be staged first."""
        return self._gather.publish(operands.right)

    def prepare(self, *, scratch: bool) -> bool:
        """**Collective.** Stage the shards if any rank must; true if the ranks must then agree once more."""
        if scratch:
            self._gather.stage()
        return scratch

    def run(self, x: Operands) -> None:
        """D[i, :] = alpha op(A)[i, :] op(B) + beta C[i, :] for the rows i of this rank."""
        self._gather.begin()
        arrays, beta = self._arrays, x.beta
        total = widened(x, self._total, arrays)
        left, inner, source = x.left, IndexRuns.whole(0), -1
        for step, n, k in self._steps:
            right = self._gather.fetch(step)
            if step.source != source:
                if self._along_k and source >= 0:
                    beta = 1.0
                # All pieces of a shard are multiplied with the same columns of op(A): they are packed once.
                packs = self._along_k and arrays.traits.packs_blocks and self._pieces[step.source] > 1
                packs = packs and self._m.runs == IndexRuns.whole(len(x.left)).runs
                (left, inner), source = side_by_side(x.left, k) if packs else (x.left, k), step.source
            # D[:, j] += alpha op(A)[:, k] op(B)[k, j]   (op(B)[k, j] is on, or arrived from, rank step.source)
            gemm_runs(
                x.alpha, left, right, beta, total, self._m, n, inner, x.conj, arrays.gemm, arrays.traits.packs_blocks
            )
        if x.finish is not None:
            evaluate_into(x.finish.tree, total, x.finish.operands, x.result)
        elif total is not x.result:
            arrays.assign(total, x.result)
        self._gather.end()

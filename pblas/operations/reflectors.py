"""Products with the Q of a QR factorization: C goes to the ranks that hold Q, is multiplied, and comes back."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from pblas.core.call import step
from pblas.core.operation import Bound, Operation
from pblas.core.options import Side, Trans
from pblas.execute.factorization.reflectors import ReflectorsOperands, RunPanelReflectors, RunTreeReflectors
from pblas.matrices.matrix import DistMatrix
from pblas.operations.progress import StageReport
from pblas.operations.redistribution import redistributed
from pblas.plans.reflectors import PanelReflectorsPlan, ReflectorsPlan, TreeReflectorsPlan

if TYPE_CHECKING:
    from pblas.backends.host_ranks import HostRanks
    from pblas.execute.factorization.tsqr import Tree
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.runtime.runtime import Runtime
    from pblas.simulation.hardware import Topology


class Reflectors(NamedTuple):
    """Q in memory of its context.

    Args:
        w: V and R, and T in block columns (global).
        tree: the rest of Q in TSQR; None for block columns (local).
        is_tree: whether Q is that of TSQR (global).
    """

    w: DistMatrix
    tree: Tree | None
    is_tree: bool


@dataclass(frozen=True, eq=False)
class ProductWithQ(Operation[DistMatrix]):
    """X := op(Q) X, in place; the arguments are checked before.

    Args:
        chosen: the plan (global).
        dtype: of the matrices (global).
    """

    noun: ClassVar[str] = "product with Q"
    keeps_workspace: ClassVar[bool] = True

    chosen: ReflectorsPlan
    dtype: np.dtype[Any]

    @property
    def result(self) -> tuple[MatrixDescriptor, np.dtype[Any]]:
        return self.chosen.x, self.dtype

    def plan(self, nprocs: int, topology: Topology) -> ReflectorsPlan:
        return self.chosen

    def executor(self, plan: ReflectorsPlan, backend: HostRanks) -> RunPanelReflectors | RunTreeReflectors:
        if isinstance(plan, TreeReflectorsPlan):
            return RunTreeReflectors(plan, backend, self.dtype)
        assert isinstance(plan, PanelReflectorsPlan), "there are two kinds"
        return RunPanelReflectors(plan, backend, self.dtype)

    def arrays(
        self, verb: str, runtime: Runtime, executor: Any, bound: Bound[DistMatrix], result: DistMatrix
    ) -> ReflectorsOperands:
        tree, executor.progress = bound.local
        return ReflectorsOperands(bound.reads["Q"].stored(verb), result.stored(verb), tree)


def multiplied(
    verb: str,
    q: Reflectors,
    c: DistMatrix | MatrixDescriptor,
    *,
    side: Side = "L",
    trans: Trans = "N",
    out: DistMatrix | None = None,
    progress: StageReport = None,
) -> DistMatrix:
    """**Collective.** op(Q) C or C op(Q), in the layout of C; arguments are checked.

    Args:
        verb: name of the call (global).
        q: Q (global).
        c: C; a descriptor for as many columns of Q itself, with side "L" (global).
        side: "L" for op(Q) C, "R" for C op(Q) (global).
        trans: op: "N", "T" or "C" (global).
        out: matrix in the layout of C for the result, which may be C; None for a new one (global).
        progress: called with the done part of the work (local).
    """
    runtime, dtype = q.w.runtime, q.w.dtype
    desc = (c.desc if isinstance(c, DistMatrix) else c).without_lld
    is_real = dtype.kind != "c"
    # (C Q)^H = Q^H C^H, (C Q^T)^H = conj(Q) C^H and (C Q^H)^H = Q C^H
    adjoint = (trans != "N") == (side == "L")
    conj = trans == "T" and not is_real
    kind = TreeReflectorsPlan if q.is_tree else PanelReflectorsPlan
    plan = kind(
        *(q.w.desc.without_lld, desc, dtype.name, runtime.nprocs, side, adjoint, conj),
        makes_q=not isinstance(c, DistMatrix),
        transport=runtime.topology.transport(runtime.nprocs),
    )

    turn: Literal["N", "C"] = "N" if side == "L" else "C"
    x = redistributed(verb, c, plan.x, trans=turn) if isinstance(c, DistMatrix) else identity(verb, plan.x, q.w)
    local = q.tree, progress
    step(verb, runtime, lambda: Bound(ProductWithQ, (plan, dtype), {}, {"Q": q.w}, x, local=local))
    if progress is not None:
        progress(1.0)
    if out is not None:
        return redistributed(verb, x, out=out, trans=turn, is_temporary=True)
    return in_layout(verb, x, desc) if side == "L" else redistributed(verb, x, desc, trans=turn, is_temporary=True)


def in_layout(verb: str, x: DistMatrix, desc: MatrixDescriptor) -> DistMatrix:
    """**Collective.** X in another layout: in its own memory if each rank has the same elements, in the same order."""
    if x.desc.order == desc.order and x.desc.same_distribution(desc):
        return DistMatrix(desc, x.stored(verb), x.runtime)
    return redistributed(verb, x, desc, is_temporary=True)


def identity(verb: str, desc: MatrixDescriptor, like: DistMatrix) -> DistMatrix:
    """**Collective.** The first columns of the identity, of the dtype of another matrix."""
    runtime = like.runtime
    x = DistMatrix(desc, runtime.empty(runtime.place(desc, like.dtype)), runtime)
    with runtime.local_step(verb):
        local, backend = x.stored(verb), runtime.backend
        rows, columns = (
            np.concatenate([np.arange(0), *itertools.starmap(np.arange, ranges)])
            for ranges in desc.global_ranges(runtime.rank)
        )
        _, i_loc, j_loc = np.intersect1d(rows, columns, assume_unique=True, return_indices=True)
        backend.clear(local)
        backend.arrays.fill(local, i_loc, j_loc, 1)
    return x

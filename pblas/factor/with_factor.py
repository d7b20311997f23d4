"""Steps that apply a factor: solves with the triangles of a matrix, and products with the Q of a QR factorization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from pblas.core.call import step
from pblas.core.operation import Bound, Operation
from pblas.core.options import Side, Trans
from pblas.core.progress import StageReport
from pblas.factor.with_factor_plan import PanelReflectorsPlan, SubstitutionPlan, Sweep, TreeReflectorsPlan
from pblas.factor.with_factor_run import (
    ReflectorsOperands,
    RunPanelReflectors,
    RunSubstitution,
    RunTreeReflectors,
    SubstitutionOperands,
    global_indices,
)
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.qr_run import Tree
    from pblas.runtime.runtime import Runtime
    from pblas.simulation.hardware import Topology


@dataclass(frozen=True, eq=False)
class WithFactor(Operation[DistMatrix]):
    """Result = f(W) B; the arguments are checked before.

    Args:
        w: distribution of the factor (global).
        b: distribution of B, and of the result (global).
        dtype: of the matrices (global).
        conjugated: whether B is a conjugated view (global).
        begins: see `WithFactorPlan` (global).
    """

    may_overlap: ClassVar[bool] = True  # the result may be B, or take the memory of an inverted factor
    keeps_workspace: ClassVar[bool] = True

    w: MatrixDescriptor
    b: MatrixDescriptor
    dtype: np.dtype[Any]
    conjugated: bool
    begins: Literal["B", "array", "identity"]

    @property
    def result(self) -> tuple[MatrixDescriptor, np.dtype[Any]]:
        return self.b, self.dtype


@dataclass(frozen=True, eq=False)
class Substitution(WithFactor):
    """X = op(A)^-1 B, or A^-1, with a factor of A in block columns.

    Args:
        sweeps: the triangular solves, in order (global).
    """

    noun: ClassVar[str] = "solve"

    sweeps: tuple[Sweep, ...]

    def plan(self, nprocs: int, topology: Topology) -> SubstitutionPlan:
        begins = "sorted" if self.begins == "identity" and not topology.gpus else self.begins
        transport = topology.transport(nprocs)
        return SubstitutionPlan(self.w, self.b, self.dtype.name, nprocs, transport, begins, sweeps=self.sweeps)

    def executor(self, plan: SubstitutionPlan, backend: HostRanks) -> RunSubstitution:
        return RunSubstitution(plan, backend, self.dtype)

    def arrays(
        self, verb: str, runtime: Runtime, executor: Any, bound: Bound[DistMatrix], result: DistMatrix
    ) -> SubstitutionOperands:
        progress, array, pivots, backward = bound.local
        w, b = (x.stored(verb) for x in (bound.reads["W"], bound.reads.get("B", result)))
        right, conj = (b if self.begins == "B" else None), self.conjugated and self.dtype.kind == "c"
        return SubstitutionOperands(
            w, right, result.stored(verb), False, (conj, False), progress, array, pivots, backward
        )


def substituted(
    verb: str,
    w: DistMatrix,
    b: DistMatrix | Array,
    sweeps: tuple[Sweep, ...],
    pivots: Array | None,
    *,
    backward: bool = False,
    progress: StageReport = None,
    agrees: str = "",
) -> DistMatrix:
    """**Collective.** The solution for all columns of B, in its layout; arguments are checked."""

    def bind() -> Bound[DistMatrix]:
        if isinstance(b, DistMatrix):
            form = w.desc, b.desc.without_lld, w.dtype, b.conjugated, "B", sweeps
            return Bound(Substitution, form, {}, {"W": w, "B": b}, None, local=(progress, None, pivots, backward))
        form = (
            w.desc,
            MatrixDescriptor.replicated(b.shape[0], b.shape[1], w.runtime.nprocs),
            w.dtype,
            False,
            "array",
            sweeps,
        )
        return Bound(Substitution, form, {}, {"W": w}, None, local=(progress, b, pivots, backward))

    return _reported(step(verb, w.runtime, bind, agrees=agrees), progress)


def inverted(
    verb: str,
    w: DistMatrix,
    desc: MatrixDescriptor,
    sweeps: tuple[Sweep, ...],
    pivots: Array | None,
    *,
    out: DistMatrix | None = None,
    progress: StageReport = None,
    agrees: str = "",
) -> DistMatrix:
    """**Collective.** A^-1 in the layout of A, `desc`, from a factor of A whose first sweep is that with L.

    `out`, which may be in the memory of the factor, is a matrix in this layout for the result; see `substituted`.
    """

    def bind() -> Bound[DistMatrix]:
        form = w.desc, desc.without_lld, w.dtype, False, "identity", sweeps
        return Bound(Substitution, form, {}, {"W": w}, out, local=(progress, None, pivots, False))

    return _reported(step(verb, w.runtime, bind, agrees=agrees), progress)


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
class ProductWithQ(WithFactor):
    """op(Q) C, or C op(Q), or the first columns of Q.

    Args:
        side: "L" for op(Q) C, "R" for C op(Q) (global).
        trans: op: "N", "T" or "C" (global).
        is_tree: see `Reflectors` (global).
    """

    noun: ClassVar[str] = "product with Q"

    side: Side
    trans: Trans
    is_tree: bool

    def plan(self, nprocs: int, topology: Topology) -> PanelReflectorsPlan | TreeReflectorsPlan:
        # (C Q)^H = Q^H C^H, (C Q^T)^H = conj(Q) C^H and (C Q^H)^H = Q C^H
        return (TreeReflectorsPlan if self.is_tree else PanelReflectorsPlan)(
            *(self.w, self.b, self.dtype.name, nprocs, topology.transport(nprocs), self.begins, self.side),
            adjoint=(self.trans != "N") == (self.side == "L"),
            conj=self.trans == "T" and self.dtype.kind == "c",
        )

    def executor(
        self, plan: PanelReflectorsPlan | TreeReflectorsPlan, backend: HostRanks
    ) -> RunPanelReflectors | RunTreeReflectors:
        if isinstance(plan, TreeReflectorsPlan):
            return RunTreeReflectors(plan, backend, self.dtype)
        return RunPanelReflectors(plan, backend, self.dtype)

    def arrays(
        self, verb: str, runtime: Runtime, executor: Any, bound: Bound[DistMatrix], result: DistMatrix
    ) -> ReflectorsOperands:
        c, (tree, progress) = bound.reads.get("C"), bound.local
        x, right = result.stored(verb), None if c is None else c.stored(verb)
        is_turned, is_complex = self.side == "R", self.dtype.kind == "c"
        if is_turned:  # X = C^H
            x, right = x.T, None if right is None else right.T
        conj = is_complex and self.conjugated != is_turned, is_complex and is_turned
        return ReflectorsOperands(bound.reads["Q"].stored(verb), right, x, result is c, conj, progress, tree)


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
    """**Collective.** op(Q) C or C op(Q), in the layout of C; arguments are checked."""

    def bind() -> Bound[DistMatrix]:
        options, local = (side, trans, q.is_tree), (q.tree, progress)
        if isinstance(c, DistMatrix):
            form = q.w.desc.without_lld, c.desc.without_lld, q.w.dtype, c.conjugated, "B", *options
            return Bound(ProductWithQ, form, {}, {"Q": q.w, "C": c}, out, local=local)
        form = q.w.desc.without_lld, c.without_lld, q.w.dtype, False, "identity", *options
        return Bound(ProductWithQ, form, {}, {"Q": q.w}, out, local=local)

    return _reported(step(verb, q.w.runtime, bind), progress)


def identity(verb: str, desc: MatrixDescriptor, like: DistMatrix) -> DistMatrix:
    """**Collective.** The first columns of the identity, of the dtype of another matrix."""
    runtime = like.runtime
    x = DistMatrix(desc, runtime.empty(runtime.place(desc, like.dtype)), runtime)
    with runtime.local_step(verb):
        local, backend = x.stored(verb), runtime.backend
        _, i_loc, j_loc = np.intersect1d(*global_indices(desc, runtime.rank), assume_unique=True, return_indices=True)
        backend.clear(local)
        backend.arrays.fill(local, i_loc, j_loc, 1)
    return x


def _reported(x: DistMatrix, progress: StageReport) -> DistMatrix:
    """A result, after the report of the end of its stage (local)."""
    if progress is not None:
        progress(1.0)
    return x

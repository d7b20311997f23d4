"""Steps that apply a factor: solves with the triangles of a matrix, and products with the Q of a QR factorization."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from pblas.arrays.elementwise import elementwise
from pblas.core.call import step
from pblas.core.operation import Bound, Operation
from pblas.core.options import Diag, Side, Trans
from pblas.factor import arguments
from pblas.factor.grid_qr_run import RunGridReflectors
from pblas.factor.grid_reflectors_plan import GridReflectorsPlan
from pblas.factor.grid_substitution_plan import GridSubstitutionPlan, stays_on_grid
from pblas.factor.grid_substitution_run import RunGridSubstitution
from pblas.factor.with_factor_plan import (
    PanelReflectorsPlan,
    ReflectorsPlan,
    SubstitutionPlan,
    TreeReflectorsPlan,
    Triangle,
)
from pblas.factor.with_factor_run import (
    ReflectorsOperands,
    RunPanelReflectors,
    RunReflectors,
    RunSubstitution,
    RunTreeReflectors,
    SubstitutionOperands,
    set_identity,
)
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistributed
from pblas.runtime.progress import StageReport
from pblas.triangular.trsm import triangle_solved

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype, Real
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.qr_run import Tree
    from pblas.runtime.runtime import Runtime
    from pblas.simulation.hardware import Topology


@dataclass(frozen=True, eq=False)
class WithFactor(Operation[DistMatrix]):
    """Result = f(W) B; the arguments are checked before."""

    may_overlap: ClassVar[bool] = True  # the result may be B, or take the memory of an inverted factor
    keeps_workspace: ClassVar[bool] = True

    w: MatrixDescriptor
    b: MatrixDescriptor
    dtype: Dtype
    conjugated: bool
    begins: Literal["B", "array", "identity"]

    @property
    def result(self) -> tuple[MatrixDescriptor, Dtype]:
        return self.b, self.dtype


@dataclass(frozen=True, eq=False)
class Substitution(WithFactor):
    """X = op(A)^-1 B, or A^-1, with a factor of A in block columns."""

    noun: ClassVar[str] = "solve"

    triangles: tuple[Triangle, ...]

    def plan(self, nprocs: int, topology: Topology) -> SubstitutionPlan:
        begins = "sorted" if self.begins == "identity" and not topology.gpus else self.begins
        transport = topology.transport(nprocs)
        return SubstitutionPlan(self.w, self.b, self.dtype.name, nprocs, transport, begins, triangles=self.triangles)

    def executor(self, plan: SubstitutionPlan, backend: HostRanks) -> RunSubstitution:
        return RunSubstitution(plan, backend, self.dtype)

    def arrays(
        self, opname: str, runtime: Runtime, executor: Any, bound: Bound[DistMatrix], result: DistMatrix
    ) -> SubstitutionOperands:
        progress, array, pivots, backward = bound.local
        w, b = (x.stored(opname) for x in (bound.reads["W"], bound.reads.get("B", result)))
        right, conj = (b if self.begins == "B" else None), self.conjugated and self.dtype.kind == "c"
        return SubstitutionOperands(
            w, right, result.stored(opname), False, (conj, False), progress, array, pivots, backward
        )


@dataclass(frozen=True, eq=False)
class GridSubstitution(Substitution):
    """X = op(A)^-1 B with a factor of A that stays on its grid."""

    def plan(self, nprocs: int, topology: Topology) -> GridSubstitutionPlan:  # type: ignore[override]
        ranks = self.dtype.name, nprocs, topology.transport(nprocs)
        return GridSubstitutionPlan(self.w, self.b, *ranks, triangles=self.triangles)

    def executor(self, plan: GridSubstitutionPlan, backend: HostRanks) -> RunGridSubstitution:  # type: ignore[override]
        return RunGridSubstitution(plan, backend, self.dtype)


def substituted(
    opname: str,
    w: DistMatrix,
    b: DistMatrix | MatrixDescriptor | Array,
    triangles: tuple[Triangle, ...],
    pivots: Array | None,
    *,
    backward: bool = False,
    out: DistMatrix | None = None,
    progress: StageReport = None,
    agrees: str = "",
) -> DistMatrix:
    """**Collective.** op(A)^-1 B in the layout of B, or A^-1 in the layout `b`, with checked arguments.

    `out`, which may be in the memory of the factor, is a matrix for A^-1, whose first triangle must be L.
    """
    if w.desc.grid.nprow > 1:
        options = out, agrees, progress
        return reported(_solved_on_grid(opname, w, b, triangles, pivots, *options, backward=backward), progress)

    def bind() -> Bound[DistMatrix]:
        reads, array = {"W": w}, None
        if isinstance(b, DistMatrix):
            reads["B"] = b
            form = w.desc, b.desc.without_lld, w.dtype, b.conjugated, "B", triangles
        elif isinstance(b, MatrixDescriptor):
            form = w.desc, b.without_lld, w.dtype, False, "identity", triangles
        else:
            array, desc = b, MatrixDescriptor.replicated(b.shape[0], b.shape[1], w.runtime.nprocs)
            form = w.desc, desc, w.dtype, False, "array", triangles
        return Bound(Substitution, form, {}, reads, out, local=(progress, array, pivots, backward))

    return reported(step(opname, w.runtime, bind, agrees=agrees), progress)


def _solved_on_grid(
    opname: str,
    w: DistMatrix,
    b: DistMatrix | MatrixDescriptor | Array,
    triangles: tuple[Triangle, ...],
    pivots: Array | None,
    out: DistMatrix | None,
    agrees: str,
    progress: StageReport,
    *,
    backward: bool,
) -> DistMatrix:
    """**Collective.** `substituted` with a factor on a grid: exchanges of rows, and triangular solves."""
    runtime = w.runtime
    runtime.agree(opname + agrees, {})
    new: MatrixDescriptor | None = None
    if isinstance(b, DistMatrix):
        x, new = b, b.desc.without_lld
    elif isinstance(b, MatrixDescriptor):
        x = identity(opname, b, w)
    else:
        x = empty(MatrixDescriptor.replicated(b.shape[0], b.shape[1], runtime.nprocs), w)
        with runtime.local_step(opname):
            runtime.backend.copy(b, x.stored(opname))
    if pivots is not None and not backward:
        if new is None:
            exchange_rows(opname, x, pivots)
        else:
            x = rows_exchanged(opname, x, pivots)
    if stays_on_grid(w.desc.without_lld, x.desc.without_lld, w.dtype.name, runtime.nprocs, triangles):

        def bind() -> Bound[DistMatrix]:
            form = w.desc.without_lld, x.desc.without_lld, w.dtype, x.conjugated, "B", triangles
            local = progress, None, None, False
            return Bound(GridSubstitution, form, {}, {"W": w, "B": x}, None if x is b else x, local=local)

        x = step(opname, runtime, bind)
        if new is not None and not x.desc.same_distribution(new):
            x = redistributed(opname, x, new, is_temporary=True)
    else:
        for uplo, trans, unit in triangles:
            diag: Diag = "U" if unit else "N"
            x = triangle_solved(opname, w, x, uplo=uplo, trans=trans, diag=diag, out=new or x)
            new = None
    if pivots is not None and backward:
        exchange_rows(opname, x, pivots, backward=True)
    return x if out is None else redistributed(opname, x, out=out, is_temporary=True)


def exchange_rows(opname: str, a: DistMatrix, pivots: Array, *, backward: bool = False) -> None:
    """**Collective.** Exchange row i of A with row pivots[i], one after the other: A moves twice.

    Source: LAPACK xLASWP.
    """
    redistributed(opname, rows_exchanged(opname, a, pivots, backward=backward), out=a, is_temporary=True)


def rows_exchanged(opname: str, a: DistMatrix, pivots: Array, *, backward: bool = False) -> DistMatrix:
    """**Collective.** A copy of A with exchanged rows, of which each rank gets whole columns."""
    runtime, arrays = a.runtime, a.runtime.backend.arrays
    with runtime.local_step(opname):
        arguments.check_matrix(opname, "A", a, runtime)
    x = redistributed(opname, a, MatrixDescriptor.column_wise(*a.shape, runtime.nprocs))
    with runtime.local_step(opname):
        arrays.begin()
        arrays.swap_rows(x.stored(opname), pivots, backward=backward)
        arrays.synchronize()
    return x


class Reflectors(NamedTuple):
    """Q in memory of its context: V and R, and T in block columns, are in W.

    The rest of Q in TSQR is the `tree`; on a grid it is `t`, T of the panels of this rank's process column (local), or
    `tau`, the scalars of all reflectors (global).
    """

    w: DistMatrix
    tree: Tree | None = None
    t: Array | None = None
    tau: Array | None = None

    @property
    def plan(self) -> type[ReflectorsPlan]:
        """The plan of a product with Q (global)."""
        if self.tree is not None:
            return TreeReflectorsPlan
        return PanelReflectorsPlan if self.t is None and self.tau is None else GridReflectorsPlan


_RUNNERS: dict[type[ReflectorsPlan], Any] = {
    PanelReflectorsPlan: RunPanelReflectors,
    TreeReflectorsPlan: RunTreeReflectors,
    GridReflectorsPlan: RunGridReflectors,
}


@dataclass(frozen=True, eq=False)
class ProductWithQ(WithFactor):
    """op(Q) C, or C op(Q), or the first columns of Q."""

    noun: ClassVar[str] = "product with Q"

    side: Side
    trans: Trans
    kind: type[ReflectorsPlan]

    def plan(self, nprocs: int, topology: Topology) -> ReflectorsPlan:
        # (C Q)^H = Q^H C^H, (C Q^T)^H = conj(Q) C^H and (C Q^H)^H = Q C^H
        return self.kind(
            *(self.w, self.b, self.dtype.name, nprocs, topology.transport(nprocs), self.begins, self.side),
            adjoint=(self.trans != "N") == (self.side == "L"),
            conj=self.trans == "T" and self.dtype.kind == "c",
        )

    def executor(self, plan: ReflectorsPlan, backend: HostRanks) -> RunReflectors:
        runner: RunReflectors = _RUNNERS[type(plan)](plan, backend, self.dtype)
        return runner

    def arrays(
        self, opname: str, runtime: Runtime, executor: Any, bound: Bound[DistMatrix], result: DistMatrix
    ) -> ReflectorsOperands:
        c, (tree, t, tau, progress) = bound.reads.get("C"), bound.local
        x, right = result.stored(opname), None if c is None else c.stored(opname)
        is_transposed, is_complex = self.side == "R", self.dtype.kind == "c"
        if is_transposed:  # X = C^H
            x, right = x.T, None if right is None else right.T
        conj = is_complex and self.conjugated != is_transposed, is_complex and is_transposed
        return ReflectorsOperands(bound.reads["Q"].stored(opname), right, x, result is c, conj, progress, tree, t, tau)


def multiplied(
    opname: str,
    q: Reflectors,
    c: DistMatrix | MatrixDescriptor,
    *,
    side: Side = "L",
    trans: Trans = "N",
    out: DistMatrix | None = None,
    progress: StageReport = None,
) -> DistMatrix:
    """**Collective.** op(Q) C or C op(Q) in the layout of C, or the first columns of Q in the layout `c`."""

    def bind() -> Bound[DistMatrix]:
        reads = {"Q": q.w}
        if isinstance(c, DistMatrix):
            reads["C"] = c
            right = c.desc.without_lld, q.w.dtype, c.conjugated, "B"
        else:
            right = c.without_lld, q.w.dtype, False, "identity"
        form = q.w.desc.without_lld, *right, side, trans, q.plan
        return Bound(ProductWithQ, form, {}, reads, out, local=(q.tree, q.t, q.tau, progress))

    return reported(step(opname, q.w.runtime, bind), progress)


def empty(desc: MatrixDescriptor, like: DistMatrix) -> DistMatrix:
    """**Collective.** A new matrix of the dtype of another one; an agreement is before it."""
    memory = like.runtime.local_memory(desc, like.dtype, desc.max_stored_nelements)
    return DistMatrix(desc, like.runtime.empty(memory), like.runtime)


def zeros(opname: str, desc: MatrixDescriptor, like: DistMatrix) -> DistMatrix:
    """**Collective.** A new matrix of zeros, of the dtype of another one."""
    x = empty(desc, like)
    with x.runtime.local_step(opname):
        x.runtime.backend.fill(x.stored(opname))
    return x


def identity(opname: str, desc: MatrixDescriptor, like: DistMatrix) -> DistMatrix:
    """**Collective.** The first columns of the identity, of the dtype of another matrix."""
    x = empty(desc, like)
    with x.runtime.local_step(opname):
        set_identity(x.runtime.backend, desc, x.stored(opname))
    return x


def in_range(x: DistMatrix) -> tuple[DistMatrix, float]:
    """**Collective.** A multiple of X whose elements are far enough from the limits of the dtype, and the factor."""
    scale = range_scale(x.norm("max"))
    return (x if scale == 1 else elementwise("x * s", x=x, s=scale)), scale


def range_scale(size: Real, power: float = 1.0) -> float:
    """The power of 2 for elements of this size: 1, or it moves them away from the limits, as LAPACK's xGELS does.

    `power` 1/2 leaves room for squares, as LAPACK's xSYEVD does.
    """
    limits = np.finfo(size.dtype)
    least = (limits.smallest_normal / limits.eps) ** power
    if not 0 < size < inf or least <= size <= 1 / least:
        return 1.0
    bound = least if size < least else 1 / least
    return float(np.ldexp(1.0, np.frexp(bound)[1] - np.frexp(size)[1]))


def reported(x: DistMatrix, progress: StageReport) -> DistMatrix:
    """A result, after the report of the end of its stage (local)."""
    if progress is not None:
        progress(1.0)
    return x

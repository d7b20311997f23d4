"""Planned factorizations: A is redistributed to an internal layout, mostly block columns, and factored in place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np

from pblas import errors
from pblas.backends.local_step import agreed
from pblas.backends.push_engine import EXACT, GemmModes
from pblas.core.call import made, step
from pblas.core.checks import check_like_planned, is_writeable
from pblas.core.linalg_errors import not_positive_definite
from pblas.core.operation import Bound, Operation
from pblas.core.planned import Planned
from pblas.factor import arguments
from pblas.factor.cholesky_run import RunCholesky
from pblas.factor.choose import Kind, choose_factorization, choose_qr
from pblas.factor.factorization_plan import CholeskyPlan, FactorizationPlan, LuPlan
from pblas.factor.grid_cholesky_plan import GridCholeskyPlan
from pblas.factor.grid_cholesky_run import RunGridCholesky
from pblas.factor.grid_lu_plan import GridLuPlan
from pblas.factor.grid_lu_run import RunGridLu
from pblas.factor.grid_qr_plan import GridQrPlan
from pblas.factor.grid_qr_run import RunGridQr
from pblas.factor.lu_run import RunLu
from pblas.factor.qr_plan import CholeskyQrPlan, PivotedQrPlan, QrPlan, TsqrPlan
from pblas.factor.qr_run import RunCholeskyQr, RunPivotedQr, RunQr, RunTsqr, Tree
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistributed
from pblas.runtime.progress import StageReport
from pblas.runtime.runtime import Runtime, checked_flag, shared_descriptor, spelled
from pblas.simulation.hardware import Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pblas.backends.dtypes import Array, Dtype
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.factorization_run import RunFactorization
    from pblas.runtime.calls import CollectiveCall
    from pblas.simulation.hardware import Hardware

_RUNNERS: dict[type[FactorizationPlan], Any] = {
    CholeskyPlan: RunCholesky,
    GridCholeskyPlan: RunGridCholesky,
    LuPlan: RunLu,
    GridLuPlan: RunGridLu,
    QrPlan: RunQr,
    GridQrPlan: RunGridQr,
    TsqrPlan: RunTsqr,
    CholeskyQrPlan: RunCholeskyQr,
    PivotedQrPlan: RunPivotedQr,
}


class Factored(NamedTuple):
    """W with its factor, INFO, and the rest: pivots, from 1, of LU; the tree of TSQR; T of QR on a grid; tau and order.

    The last two are of pivoted QR.

    INFO of LU is the first k, from 1, for which U[k, k] is 0; that of Cholesky is 0, since a failure raises, or a
    function that looks at it later (global). `order` has the column of A, from 0, that each column was.
    """

    w: DistMatrix
    info: int | Callable[[], int] = 0
    pivots: Array | None = None
    tree: Tree | None = None
    t: Array | None = None
    tau: Array | None = None
    order: Array | None = None


_INTERNAL = frozenset(
    (
        "applied",
        "condition",
        "determinant",
        "formed",
        "inverse",
        "local_pivots",
        "solution",
        "taken",
        "triangle",
        "upper",
    )
)
"""Names of factors that are for other modules of the package."""


class FactoredMatrix:
    """The base of factor objects: W is the memory of the factor, and `desc` the layout of the matrix."""

    def __init__(self, w: DistMatrix, desc: MatrixDescriptor) -> None:
        self._w = w
        self._desc = desc

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the factored matrix (global)."""
        return self._desc.shape

    @property
    def dtype(self) -> Dtype:
        """Dtype of the factored matrix (global)."""
        return self._w.dtype

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INTERNAL]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shape[0]} x {self.shape[1]} {self.dtype.name}>"

    @property
    def _runtime(self) -> Runtime:
        return self._w.runtime

    @cached_property
    def _signature(self) -> dict[str, object]:
        """The properties that must be equal on all ranks, for agreements."""
        of_w = {f"factor's {name}": value for name, value in self._w.signature().items()}
        return {"factor": type(self).__name__, "layout of A": shared_descriptor(self._desc), **of_w}


@dataclass(frozen=True, eq=False)
class Factorization(Operation[Factored]):
    """W := its factor, in place."""

    noun: ClassVar[str] = "factorization"
    keeps_workspace: ClassVar[bool] = True

    chosen: FactorizationPlan
    dtype: Dtype
    modes: GemmModes = EXACT

    @property
    def result(self) -> tuple[MatrixDescriptor, Dtype]:
        return self.chosen.w, self.dtype

    @property
    def closes(self) -> bool:
        return type(self.chosen) is LuPlan and self.chosen.w.nprocs > 1  # rows of panels are exchanged at the end

    def plan(self, nprocs: int, topology: Topology) -> FactorizationPlan:
        # The layouts stay, which the other steps of the call have: only the transport may have changed.
        return replace(self.chosen, transport=topology.transport(nprocs))

    def executor(self, plan: FactorizationPlan, backend: HostRanks) -> RunFactorization:
        runner: RunFactorization = _RUNNERS[type(plan)](plan, backend, self.dtype)
        return runner

    def arrays(
        self, opname: str, runtime: Runtime, executor: RunFactorization, bound: Bound[Factored], result: DistMatrix
    ) -> Array:
        executor.progress, _ = bound.local
        runtime.backend.arrays.begin(modes=self.modes)
        return result.stored(opname)

    def finish(
        self, opname: str, runtime: Runtime, executor: Any, bound: Bound[Factored], result: DistMatrix
    ) -> Factored:
        _, check = bound.local
        if runtime.backend.dry is not None:
            return self._unknown(result)
        executor.finish()
        executor.progress = None  # an exception in it keeps frames alive
        if isinstance(executor, RunCholesky | RunGridCholesky):
            if check and executor.info:
                raise agreed(not_positive_definite(opname, executor.info))
            return Factored(result, 0 if check else executor.deferred_info())
        if isinstance(executor, RunLu | RunGridLu):
            return Factored(result, executor.info, executor.pivots.copy())
        if isinstance(executor, RunTsqr):
            return Factored(result, tree=executor.taken_tree())
        if isinstance(executor, RunGridQr):
            return Factored(result, t=executor.taken_t())
        if isinstance(executor, RunPivotedQr):
            return Factored(result, tau=executor.tau.copy(), order=executor.order)
        return Factored(result)

    def _unknown(self, w: DistMatrix) -> Factored:
        """W in a dry run: without pivoting, of full rank (global)."""
        numbers = np.arange(min(w.shape))
        if isinstance(self.chosen, LuPlan):
            return Factored(w, 0, numbers + 1)
        if isinstance(self.chosen, TsqrPlan):
            return Factored(w, tree=Tree(np.empty(0), [], []))
        if isinstance(self.chosen, GridQrPlan):
            return Factored(w, t=np.empty((0, 0), self.dtype))
        if isinstance(self.chosen, PivotedQrPlan):
            return Factored(w, tau=np.zeros(len(numbers), self.dtype), order=np.arange(w.shape[1]))
        return Factored(w)


class PlannedFactorization(Planned[Factored]):
    """A planned factorization. Made by `plan_cholesky`, `plan_lu` and `plan_qr`; usable as a `with` block."""

    kind: ClassVar[Kind]
    operation: Factorization
    plan: FactorizationPlan

    def factoring(self, a: Any, out: Any = None) -> Factoring:
        """**Collective.** An execution, of matrices on which the ranks have agreed, and which are as planned."""
        runtime = self._runtime
        assert runtime is not None, "it runs"
        with runtime.local_step(self._call):
            if self._executor is None:
                raise errors.ContextError(f"execute: the planned {self.noun} is closed")
            check_like_planned("A", a, runtime, self.operation.dtype, self.plan.a, exact=True)
            arguments.check_matrix("execute", "A", a, runtime)
            if out is not None:
                arguments.check_out("execute", out, a)
        runtime.agree(self._call, {"out": None if out is None else out.signature(), **a.signature()})
        return Factoring("execute", self.plan, planned=self)

    def executing(self) -> CollectiveCall:
        """A with block around the public `execute`; ArgumentError for a plan made from a descriptor only."""
        if self._runtime is None:
            raise self._no_context_error("execute")
        return self._runtime.call("execute")


PlannedT = TypeVar("PlannedT", bound=PlannedFactorization)


class Overwriting(NamedTuple):
    """The use of the memory of A, if it may be overwritten: for the result, or to factor A in place (global)."""

    result: bool
    in_place: bool


KEPT = Overwriting(result=False, in_place=False)


class Factoring(NamedTuple):
    """A factorization whose arguments are checked, and agreed on unless the text for the first step is in `agrees`.

    `planned` is an operation of the user that runs it; without `check` nobody looks at INFO at the end. `modes`
    says how GPUs multiply.
    """

    opname: str
    plan: FactorizationPlan
    overwriting: Overwriting = KEPT
    planned: PlannedFactorization | None = None
    agrees: str = ""
    progress: StageReport = None
    check: bool = True
    modes: GemmModes = EXACT

    def agreed(self, runtime: Runtime) -> Factoring:
        """**Collective.** Agree on the arguments, and on the use of the memory of A."""
        maxima = tuple([int(not may) for may in self.overwriting])
        lacks = runtime.backend.agree(f"{self.opname}{self.agrees}", maxima=maxima).maxima
        return self._replace(agrees="", overwriting=Overwriting(*(not lack for lack in lacks)))

    def factored(self, a: DistMatrix) -> Factored:
        """**Collective.** A copy of A in the internal layout, or A itself, factored."""
        plan, agrees = self.plan, self.agrees
        if self.overwriting.in_place:
            w = DistMatrix(plan.w, a.stored(self.opname), a.runtime)
        else:
            uplo = None if plan.trapezoid is None else plan.trapezoid.uplo
            w = redistributed(self.opname, a, plan.w, trans=plan.trans, uplo=uplo, agrees=agrees)
            agrees = ""
        return self.run(w, agrees)

    def run(self, w: DistMatrix, agrees: str = "") -> Factored:
        """**Collective.** W := its factor."""

        def bind() -> Bound[Factored]:
            form = self.plan, w.dtype, self.modes
            return Bound(Factorization, form, {}, {}, w, local=(self.progress, self.check))

        if self.planned is None:
            result = step(self.opname, w.runtime, bind, agrees=agrees)
        else:
            result = self.planned.perform(self.opname, w.runtime, bind, closes=False)
        if self.progress is not None:
            self.progress(1.0)
        return result


def _overwriting(opname: str, a: DistMatrix, plan: FactorizationPlan) -> Overwriting:
    """What may become of this rank's part of A, if A may be overwritten (local)."""
    backend, x = a.runtime.backend, a.stored(opname)
    is_writable = is_writeable(x) and not a.conjugated
    fits = plan.uplo == "L" and a.desc.same_distribution(plan.w)
    fits = fits and x.shape == plan.w.local_shape(backend.rank)  # a rank without elements may have some rows
    if x.size:
        has_readers = any(map(backend.is_near, range(backend.size)))
        by_columns = x.strides[0] == x.itemsize and x.strides[1] >= x.itemsize * len(x)
        fits = fits and by_columns and not (has_readers and backend.arena.locate(backend.address(x))[0] < 0)
    return Overwriting(is_writable, is_writable and fits)


def planned(
    cls: type[PlannedT],
    opname: str,
    a: Any,
    *,
    dtype: object,
    nprocs: object,
    algorithm: object,
    upper: Any = False,
    pivoting: object = None,
    returns: bool = False,
    hardware: Hardware | str | None = None,
) -> PlannedT:
    """A new planned factorization: **collective** with a matrix; with a descriptor it needs no MPI."""
    if isinstance(a, MatrixDescriptor):
        checked, ranks, topology = arguments.of_descriptor(opname, a, dtype, nprocs, hardware)
        options = algorithm, upper, pivoting
        plan, _ = _chosen(cls.kind, opname, a, checked, ranks, topology, *options, returns=returns)
        bound: Bound[Factored] = Bound(Factorization, (plan, checked), {}, {}, None)
        return cls(Factorization(plan, checked), None, ranks, topology, bound)
    runtime = arguments.runtime_of(opname, a)
    with runtime.call(opname):
        with runtime.local_step(opname):
            arguments.check_planned(opname, a, runtime, dtype, nprocs=nprocs, hardware=hardware)
        call = prepared(cls, opname, a, upper=upper, pivoting=pivoting, returns=returns, algorithm=algorithm)
        call = call.agreed(runtime)
        return made(opname, runtime, Bound(Factorization, (call.plan, a.dtype), {}, {}, None), cls)


def prepared(
    cls: type[PlannedFactorization],
    opname: str,
    a: DistMatrix,
    *,
    algorithm: object = "auto",
    upper: object = False,
    pivoting: object = None,
    out: Any = None,
    returns: bool = False,
    overwrite_a: object = False,
    check: object = True,
    square: bool = False,
    progress: StageReport = None,
    others: Mapping[str, object] | None = None,
) -> Factoring:
    """A factorization after the checks of its arguments; its first step agrees on them and on `others`.

    **Collective** where A may be overwritten: the ranks agree on that at once.
    """
    runtime = a.runtime
    with runtime.local_step(opname):
        arguments.check_matrix(opname, "A", a, runtime)
        if square:
            arguments.check_square(opname, a.desc)
        overwrite_a, check = checked_flag(opname, "overwrite_a", overwrite_a), checked_flag(opname, "check", check)
        if out is not None:
            arguments.check_out(opname, out, a)
        desc = a.desc.without_lld
        of_ranks = runtime.nprocs, runtime.topology
        plan, uplo = _chosen(cls.kind, opname, desc, a.dtype, *of_ranks, algorithm, upper, pivoting, returns=returns)
        mine = _overwriting(opname, a, plan) if overwrite_a else KEPT
        signature = None if out is None else out.signature()
        options = {"uplo": uplo, "algorithm": algorithm, "out": signature, "overwrite_a": overwrite_a, "check": check}
        if cls.kind == "lu":
            options["pivoting"] = pivoting
        agrees = spelled({**(others or {}), **options, **a.signature()})
    factoring = Factoring(opname, plan, mine, None, agrees, progress, check)
    return factoring.agreed(runtime) if overwrite_a else factoring


def _chosen(
    kind: Kind,
    opname: str,
    desc: MatrixDescriptor,
    dtype: Dtype,
    nprocs: int,
    topology: Topology,
    algorithm: object,
    upper: object,
    pivoting: object,
    *,
    returns: bool,
) -> tuple[FactorizationPlan, Literal["L", "U"]]:
    """The plan of a factorization, and the triangle that is read, after checks (local)."""
    gpus = topology.gpus
    arguments.check_algorithm(opname, kind, desc, algorithm, gpus=gpus)
    uplo: Literal["L", "U"] = "U" if checked_flag(opname, "upper", upper) else "L"
    rows = arguments.checked_pivoting(opname, pivoting)
    ranks = dtype.name, nprocs, topology.transport(nprocs)
    if kind == "qr":
        return choose_qr(desc, *ranks, algorithm, returns=returns, gpus=gpus, alone=topology.alone), uplo
    plan = choose_factorization(
        *(kind, desc, *ranks),
        returns=returns,
        uplo=uplo,
        algorithm=algorithm,
        pivoting=rows,
        gpus=gpus,
        alone=topology.alone,
        alike=topology.alike,
    )
    return plan, uplo

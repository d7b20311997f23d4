"""Planned factorizations: A is redistributed to an internal layout, mostly block columns, and factored in place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar, get_args

from pblas import errors
from pblas.backends.local_step import agreed
from pblas.collectives.arguments import is_writeable
from pblas.core.call import made, step
from pblas.core.checks import check_like_planned, enough_ranks
from pblas.core.linalg_errors import not_positive_definite
from pblas.core.operation import Bound, Operation
from pblas.core.planned import Planned
from pblas.core.progress import StageReport
from pblas.factor import arguments
from pblas.factor.cholesky_qr_run import RunCholeskyQr
from pblas.factor.cholesky_run import RunCholesky
from pblas.factor.choose import FactorizationAlgorithm, choose_factorization
from pblas.factor.factorization_plan import CholeskyPlan, FactorizationPlan, LuPlan
from pblas.factor.lu_run import RunLu
from pblas.factor.pivoted_qr_run import RunPivotedQr
from pblas.factor.qr_plan import CholeskyQrPlan, PivotedQrPlan, QrPlan, TsqrPlan
from pblas.factor.qr_run import RunQr
from pblas.factor.tsqr_run import RunTsqr
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistributed
from pblas.runtime.runtime import checked_dtype, checked_flag, shared_descriptor, spelled
from pblas.simulation.hardware import Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.factorization_run import RunFactorization
    from pblas.factor.tsqr_run import Tree
    from pblas.runtime.calls import CollectiveCall
    from pblas.runtime.runtime import Runtime
    from pblas.simulation.hardware import Transport

_RUNNERS: dict[type[FactorizationPlan], Any] = {
    CholeskyPlan: RunCholesky,
    LuPlan: RunLu,
    QrPlan: RunQr,
    TsqrPlan: RunTsqr,
    CholeskyQrPlan: RunCholeskyQr,
    PivotedQrPlan: RunPivotedQr,
}


class Factored(NamedTuple):
    """A factored matrix.

    Args:
        w: the factor, in the internal layout (global).
        info: of LU: 0, or the first k, counted from 1, for which U[k, k] is 0; of Cholesky: 0, since a
            failure raises; a function that looks at it, if the look is deferred (global).
        pivots: of LU: row i was exchanged with row pivots[i], with indices that begin with 1 (global).
        tree: of TSQR: the rest of Q (local).
        tau: of QR with pivoting (global).
        order: of QR with pivoting: the column of A that each column was, from 0 (global).
    """

    w: DistMatrix
    info: int | Callable[[], int] = 0
    pivots: Array | None = None
    tree: Tree | None = None
    tau: Array | None = None
    order: Array | None = None


class FactoredMatrix:
    """The base of factor objects, which hold a factor in memory of their context.

    Args:
        w: the memory of the factor (global).
        desc: layout of the matrix (global).
    """

    def __init__(self, w: DistMatrix, desc: MatrixDescriptor) -> None:
        self._w = w
        self._desc = desc

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the factored matrix (global)."""
        return self._desc.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the factored matrix (global)."""
        return self._w.dtype

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shape[0]} x {self.shape[1]} {self.dtype.name}>"

    @property
    def _runtime(self) -> Runtime:
        return self._w.runtime

    @cached_property
    def _signature(self) -> dict[str, Any]:
        """The properties that must be equal on all ranks, for agreements."""
        of_w = {f"factor's {name}": value for name, value in self._w.signature().items()}
        return {"factor": type(self).__name__, "layout of A": shared_descriptor(self._desc), **of_w}


class _Options(NamedTuple):
    """Of one execution: the report of its progress, and whether to look at INFO at its end and raise its error."""

    progress: StageReport
    check: bool


@dataclass(frozen=True, eq=False)
class Factorization(Operation[Factored]):
    """W := its factor, in place.

    Args:
        chosen: the plan (global).
        dtype: of the matrix (global).
    """

    noun: ClassVar[str] = "factorization"
    keeps_workspace: ClassVar[bool] = True

    chosen: FactorizationPlan
    dtype: np.dtype[Any]

    @classmethod
    def bound(
        cls, w: DistMatrix, plan: FactorizationPlan, progress: StageReport = None, *, check: bool = True
    ) -> Bound[Factored]:
        """The arguments of an execution."""
        return Bound(cls, (plan, w.dtype), {}, {}, w, local=_Options(progress, check))

    @property
    def result(self) -> tuple[MatrixDescriptor, np.dtype[Any]]:
        return self.chosen.w, self.dtype

    @property
    def closes(self) -> bool:
        return isinstance(self.chosen, LuPlan) and self.chosen.w.nprocs > 1  # rows of panels are exchanged at the end

    def plan(self, nprocs: int, topology: Topology) -> FactorizationPlan:
        # The layouts stay, which the other steps of the call have: only the transport may have changed.
        return replace(self.chosen, transport=topology.transport(nprocs))

    def executor(self, plan: FactorizationPlan, backend: HostRanks) -> RunFactorization:
        runner: RunFactorization = _RUNNERS[type(plan)](plan, backend, self.dtype)
        return runner

    def arrays(
        self, verb: str, runtime: Runtime, executor: RunFactorization, bound: Bound[Factored], result: DistMatrix
    ) -> Array:
        executor.progress = bound.local.progress
        return result.stored(verb)

    def finish(
        self, verb: str, runtime: Runtime, executor: Any, bound: Bound[Factored], result: DistMatrix
    ) -> Factored:
        check = bound.local.check
        executor.finish()
        executor.progress = None  # an exception in it keeps frames alive
        if isinstance(executor, RunCholesky):
            if check and executor.info:
                raise agreed(not_positive_definite(verb, executor.info))
            return Factored(result, 0 if check else executor.taken_info())
        if isinstance(executor, RunLu):
            return Factored(result, executor.info, executor.pivots.copy())
        if isinstance(executor, RunTsqr):
            return Factored(result, tree=executor.taken_tree())
        if isinstance(executor, RunPivotedQr):
            return Factored(result, tau=executor.tau.copy(), order=executor.order)
        return Factored(result)


class PlannedFactorization(Planned[Factored]):
    """A planned factorization. Made by `plan_cholesky`, `plan_lu` and `plan_qr`; usable as a `with` block."""

    kind: ClassVar[Literal["cholesky", "lu"]]
    """The factorization, unless a subclass has its own `choose` (global)."""
    operation: Factorization
    plan: FactorizationPlan

    @classmethod
    def check(cls, verb: str, desc: MatrixDescriptor, algorithm: Any, *, gpus: bool) -> None:  # for QR
        """Raise an error if a matrix cannot be factored so (local)."""
        if algorithm not in get_args(FactorizationAlgorithm):
            names = ", ".join(map(repr, get_args(FactorizationAlgorithm)))
            raise errors.ArgumentError(f"{verb}: algorithm must be one of {names}, got {algorithm!r}")
        if cls.kind == "cholesky":
            arguments.check_square(verb, desc)

    @classmethod
    def choose(
        cls,
        a: MatrixDescriptor,
        dtype: str,
        nprocs: int,
        transport: Transport,
        *,
        returns: bool,
        uplo: Literal["L", "U"],
        algorithm: Any,
        gpus: bool = False,
    ) -> FactorizationPlan:
        """The plan of a factorization; see `choose_factorization`."""
        return choose_factorization(
            *(cls.kind, a, dtype, nprocs, transport), returns=returns, uplo=uplo, algorithm=algorithm, gpus=gpus
        )

    def factoring(self, a: Any, out: Any = None) -> Factoring:
        """**Collective.** An execution, of matrices on which the ranks have agreed, and which are as planned."""
        runtime = self._runtime
        assert runtime is not None, "it runs"
        with runtime.local_step(self._call):
            if self._executor is None:
                raise errors.ContextError(f"execute: the planned {self.noun} is closed")
            check_like_planned("A", a, runtime, self.operation.dtype, self.plan.a, remedy="use one context", exact=True)
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
    """The use of the memory of A by a call with overwrite_a=True.

    Args:
        result: the result may be written to A (global).
        in_place: A has the layout of W in memory that LAPACK and the peers can use, so A is factored in place (global).
    """

    result: bool
    in_place: bool


KEPT = Overwriting(result=False, in_place=False)
"""A is not overwritten (global)."""


class Factoring(NamedTuple):
    """A factorization whose arguments are checked, and agreed on unless `agrees` is left.

    Args:
        verb: name of the call (global).
        plan: the plan (global).
        overwriting: the use of the memory of A (global).
        planned: a planned operation of the user that runs it; None for the one that the context keeps.
        agrees: arguments on which the first step agrees, as text (global).
        progress: called with the done part of the work (local).
        check: look at INFO at the end, and raise an error (global).
    """

    verb: str
    plan: FactorizationPlan
    overwriting: Overwriting = KEPT
    planned: PlannedFactorization | None = None
    agrees: str = ""
    progress: StageReport = None
    check: bool = True

    def agreed(self, runtime: Runtime) -> Factoring:
        """**Collective.** Agree on the arguments, and on the use of the memory of A."""
        maxima = tuple([int(not may) for may in self.overwriting])
        lacks = runtime.backend.agree(f"{self.verb}{self.agrees}", maxima=maxima).maxima
        return self._replace(agrees="", overwriting=Overwriting(*(not lack for lack in lacks)))

    def factored(self, a: DistMatrix) -> Factored:
        """**Collective.** A copy of A in the internal layout, or A itself, factored."""
        copy, agrees = self.plan.copy, self.agrees
        if self.overwriting.in_place:
            w = DistMatrix(self.plan.w, a.stored(self.verb), a.runtime)
        else:
            uplo = None if copy.trapezoid is None else copy.trapezoid.uplo
            w = redistributed(self.verb, a, self.plan.w, trans=copy.trans, uplo=uplo, agrees=agrees)
            agrees = ""
        return self.run(w, agrees)

    def run(self, w: DistMatrix, agrees: str = "") -> Factored:
        """**Collective.** W := its factor."""

        def bind() -> Bound[Factored]:
            return Factorization.bound(w, self.plan, self.progress, check=self.check)

        if self.planned is None:
            result = step(self.verb, w.runtime, bind, agrees=agrees)
        else:
            result = self.planned.perform(self.verb, w.runtime, bind, closes=False)
        if self.progress is not None:
            self.progress(1.0)
        return result


def _overwriting(verb: str, a: DistMatrix, plan: FactorizationPlan) -> Overwriting:
    """What may become of this rank's part of A, if A may be overwritten (local)."""
    backend, x = a.runtime.backend, a.stored(verb)
    is_writable = is_writeable(x) and not a.conjugated
    fits = plan.uplo == "L" and a.desc.same_distribution(plan.w)
    if x.size:
        has_readers = any(map(backend.is_near, range(backend.size)))
        by_columns = x.strides[0] == x.itemsize and x.strides[1] >= x.itemsize * len(x)
        fits = fits and by_columns and not (has_readers and backend.arena.locate(backend.address(x))[0] < 0)
    return Overwriting(is_writable, is_writable and fits)


def planned(
    cls: type[PlannedT],
    verb: str,
    a: Any,
    *,
    dtype: Any,
    nprocs: Any,
    algorithm: Any,
    upper: Any = False,
    returns: bool = False,
) -> PlannedT:
    """A new planned factorization: **collective** with a matrix; with a descriptor it needs no MPI."""
    if isinstance(a, MatrixDescriptor):
        if dtype is None:
            raise errors.DTypeError(f"{verb}: descriptors have no dtype; pass dtype='float64'")
        checked = arguments.check_dtype(verb, "dtype", dtype)
        ranks, uplo = enough_ranks(verb, nprocs, (a,)), _checked(cls, verb, a, upper, algorithm)
        topology = Topology(ranks, shared=True)
        transport = topology.transport(ranks)
        plan = cls.choose(a, checked.name, ranks, transport, returns=returns, uplo=uplo, algorithm=algorithm)
        bound: Bound[Factored] = Bound(Factorization, (plan, checked), {}, {}, None)
        return cls(Factorization(plan, checked), None, ranks, topology, bound)
    runtime = arguments.runtime_of(verb, a)
    with runtime.call(verb):
        with runtime.local_step(verb):
            arguments.check_matrix(verb, "A", a, runtime, None if dtype is None else checked_dtype(verb, dtype))
        call = prepared(cls, verb, a, upper=upper, returns=returns, algorithm=algorithm).agreed(runtime)
        return made(verb, runtime, Bound(Factorization, (call.plan, a.dtype), {}, {}, None), cls)


def prepared(
    cls: type[PlannedFactorization],
    verb: str,
    a: DistMatrix,
    *,
    algorithm: Any = "auto",
    upper: Any = False,
    out: Any = None,
    returns: bool = False,
    overwrite_a: Any = False,
    check: Any = True,
    progress: StageReport = None,
    others: Mapping[str, object] | None = None,
) -> Factoring:
    """A factorization after the checks of its arguments; its first step agrees on them and on `others`.

    **Collective** where A may be overwritten: the ranks agree on that at once.
    """
    runtime, topology = a.runtime, a.runtime.topology
    with runtime.local_step(verb):
        arguments.check_matrix(verb, "A", a, runtime)
        uplo = _checked(cls, verb, a.desc, upper, algorithm, gpus=runtime.backend.gpus)
        overwrite_a, check = checked_flag(verb, "overwrite_a", overwrite_a), checked_flag(verb, "check", check)
        if out is not None:
            arguments.check_out(verb, out, a)
        plan = cls.choose(
            *(a.desc.without_lld, a.dtype.name, runtime.nprocs, topology.transport(runtime.nprocs)),
            returns=returns,
            uplo=uplo,
            algorithm=algorithm,
            gpus=topology.gpus,
        )
        mine = _overwriting(verb, a, plan) if overwrite_a else KEPT
        signature = None if out is None else out.signature()
        options = {"uplo": uplo, "algorithm": algorithm, "out": signature, "overwrite_a": overwrite_a, "check": check}
        agrees = spelled({**(others or {}), **options, **a.signature()})
    factoring = Factoring(verb, plan, mine, None, agrees, progress, check)
    return factoring.agreed(runtime) if overwrite_a else factoring


def _checked(
    cls: type[PlannedFactorization],
    verb: str,
    desc: MatrixDescriptor,
    upper: Any,
    algorithm: Any,
    *,
    gpus: bool = False,
) -> Literal["L", "U"]:
    """The triangle that is read, after checks (local)."""
    cls.check(verb, desc, algorithm, gpus=gpus)
    return "U" if checked_flag(verb, "upper", upper) else "L"

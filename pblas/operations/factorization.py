"""Planned factorizations: A is redistributed to an internal layout, mostly block columns, and factored in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar, get_args

from pblas import errors
from pblas.backends.local_step import agreed
from pblas.core.checks import check_like_planned, enough_ranks
from pblas.execute.factorization.cholesky import RunCholesky
from pblas.execute.factorization.cholesky_qr import RunCholeskyQr
from pblas.execute.factorization.lu import RunLu
from pblas.execute.factorization.pivoted_qr import RunPivotedQr
from pblas.execute.factorization.qr import RunQr
from pblas.execute.factorization.tsqr import RunTsqr
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.operations.arguments import factorization as arguments
from pblas.operations.arguments.collective import is_writeable
from pblas.operations.linalg_errors import not_positive_definite
from pblas.operations.planned import PlannedOperation
from pblas.operations.progress import StageReport
from pblas.operations.redistribution import redistribute
from pblas.planner.choose_factorization import FactorizationAlgorithm, choose_factorization
from pblas.plans.cholesky_qr import CholeskyQrPlan
from pblas.plans.factorization import CholeskyPlan, FactorizationPlan, LuPlan
from pblas.plans.pivoted_qr import PivotedQrPlan
from pblas.plans.plan import Topology
from pblas.plans.qr import QrPlan, TsqrPlan
from pblas.runtime.runtime import checked_dtype, checked_flag

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from pblas.backends.dtypes import Array
    from pblas.execute.factorization.factorization import RunFactorization
    from pblas.plans.base import Transport
    from pblas.runtime.runtime import Runtime

_RUNNERS: dict[type[FactorizationPlan], Any] = {
    CholeskyPlan: RunCholesky,
    LuPlan: RunLu,
    QrPlan: RunQr,
    TsqrPlan: RunTsqr,
    CholeskyQrPlan: RunCholeskyQr,
    PivotedQrPlan: RunPivotedQr,
}


class Factored(NamedTuple):
    """A factored matrix, by LU or Cholesky.

    Args:
        w: the factor, in block columns (global).
        info: of LU: 0, or the first k, counted from 1, for which U[k, k] is 0; of Cholesky: 0, since a
            failure raises; a function that looks at it, if the look is deferred (global).
        pivots: row i was exchanged with row pivots[i], with indices that begin with 1; None for Cholesky (global).
    """

    w: DistMatrix
    info: int | Callable[[], int]
    pivots: Array | None


class Execution(NamedTuple):
    """The arguments of one execution: W, which is `out` because it is factored in place.

    Args:
        check: look at INFO at the end, and raise an error; otherwise `Factored.info` looks at it (global).
    """

    verb: str
    out: DistMatrix
    progress: StageReport
    check: bool = True


class PlannedFactorization(PlannedOperation[Execution]):
    """A planned factorization. Made by `plan_cholesky`, `plan_lu` and `plan_qr`; usable as a `with` block.

    Args:
        plan: plan of the factorization (global).
        dtype: of the matrix (global).
        runtime: runtime of the context; None for an operation planned from descriptors, which cannot run (global).
    """

    noun = "factorization"
    kind: ClassVar[Literal["cholesky", "lu"]]
    """The factorization, unless a subclass has its own `choose` (global)."""
    plan: FactorizationPlan
    _executor: Any = None

    def __init__(self, plan: FactorizationPlan, dtype: np.dtype[Any], runtime: Runtime | None) -> None:
        super().__init__(plan, None, dtype, runtime)

    @classmethod
    def check(cls, verb: str, desc: MatrixDescriptor, algorithm: Any, *, gpus: bool) -> None:
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

    def factored(
        self, verb: str, a: DistMatrix, *, in_place: bool = False, progress: StageReport = None, check: bool = True
    ) -> Factored:
        """**Collective.** A copy of A in block columns, factored.

        Args:
            verb: name of the call, in which the ranks are (global).
            a: the matrix, checked (global).
            in_place: factor A itself: see `Overwriting` (global).
            progress: called with the done part of the work (local).
            check: see `Execution` (global).

        Raises:
            NotPositiveDefiniteError: in Cholesky, a leading block that is not positive definite; on all ranks.
        """
        copy = self.plan.copy
        uplo = None if copy.trapezoid is None else copy.trapezoid.uplo
        if in_place:
            w = DistMatrix(self.plan.w, a.stored(verb), a.runtime)
        else:
            w = redistribute(a, self.plan.w, trans=copy.trans, uplo=uplo)
        self.run(Execution(verb, w, progress, check))
        if progress is not None:
            progress(1.0)
        executor = self._executor
        assert executor is not None, "it has run"
        has_raised = check and self.plan.operation == "cholesky"
        info = executor.taken_info() if not check else 0 if has_raised else executor.info
        return Factored(w, info, executor.pivots.copy() if isinstance(executor, RunLu) else None)

    def check_execution(self, runtime: Runtime, a: Any, out: Any = None) -> None:
        """**Collective.** Agree on the matrices of an execution, which must be as planned."""
        with runtime.local_step(self._call):
            check_like_planned("A", a, runtime, self._dtype, self.plan.a, remedy="use one context", exact=True)
            arguments.check_matrix("execute", "A", a, runtime)
            if out is not None:
                arguments.check_out("execute", out, a)
        runtime.agree(self._call, {"out": None if out is None else out.signature(), **a.signature()})

    def _build(self, runtime: Runtime) -> RunFactorization:
        runner: RunFactorization = _RUNNERS[type(self.plan)](self.plan, runtime.backend, self._dtype)
        return runner

    def _checked(self, runtime: Runtime, execution: Execution) -> Execution:
        runtime.backend.arrays.begin()  # `factored` made W
        return execution

    def _operands(self, execution: Execution, result: DistMatrix) -> Array:
        assert self._executor is not None, "it is prepared"
        self._executor.progress = execution.progress
        return result.stored(execution.verb)

    def _finish(self, runtime: Runtime, execution: Execution, result: DistMatrix) -> None:
        executor = self._executor
        assert executor is not None, "it has run"
        executor.finish()
        if execution.check and self.plan.operation == "cholesky" and executor.info:
            raise agreed(not_positive_definite(execution.verb, executor.info))


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
    """A new planned factorization: **collective** with a matrix; with a descriptor it needs no MPI.

    Args:
        cls: its class (global).
        verb: name of the call (global).
        a: the matrix, or its descriptor (global).
        dtype: dtype of the matrix, needed with a descriptor (global).
        nprocs: number of ranks, when planning from a descriptor; None for its grid (global).
        algorithm: as in `cholesky` (global).
        upper: as in `cholesky` (global).
        returns: whether the factor is brought back to the layout of A (global).
    """
    if isinstance(a, MatrixDescriptor):
        if dtype is None:
            raise errors.DTypeError(f"{verb}: descriptors have no dtype; pass dtype='float64'")
        checked = arguments.check_dtype(verb, "dtype", dtype)
        ranks, uplo = enough_ranks(verb, nprocs, (a,)), _checked(cls, verb, a, upper, algorithm)
        transport = Topology(ranks, shared=True).transport(ranks)
        plan = cls.choose(a, checked.name, ranks, transport, returns=returns, uplo=uplo, algorithm=algorithm)
        return cls(plan, checked, None)
    runtime = arguments.runtime_of(verb, a)
    with runtime.call(verb):
        with runtime.local_step(verb):
            arguments.check_matrix(verb, "A", a, runtime, None if dtype is None else checked_dtype(verb, dtype))
        plan, _ = _agreed(cls, verb, a, upper, None, returns, algorithm)
        return _made(cls, verb, plan, a)


def prepared(
    cls: type[PlannedT],
    verb: str,
    a: DistMatrix,
    *,
    algorithm: Any = "auto",
    upper: Any = False,
    out: Any = None,
    returns: bool = False,
    overwrite_a: Any = False,
    check: Any = True,
) -> tuple[PlannedT, Overwriting]:
    """**Collective.** The planned factorization of a call with checked and agreed arguments; the context keeps it.

    Args:
        cls: its class (global).
        verb: name of the call (global).
        a: the matrix (global).
        algorithm: as in `cholesky` (global).
        upper: as in `cholesky` (global).
        out: as in `cholesky` (global).
        returns: whether the factor is brought back to the layout of A (global).
        overwrite_a: as in `cholesky` (global).
        check: as in `cho_factor` (global).
    """
    plan, overwriting = _agreed(cls, verb, a, upper, out, returns, algorithm, overwrite_a, check)
    return planned_with(cls, verb, plan, a), overwriting


def planned_with(cls: type[PlannedT], verb: str, plan: FactorizationPlan, a: DistMatrix) -> PlannedT:
    """**Collective.** The planned factorization of a plan on which the ranks have agreed; the context keeps it."""
    made: PlannedT = a.runtime.plans.get(plan, lambda: _made(cls, verb, plan, a))
    return made


def _agreed(
    cls: type[PlannedT],
    verb: str,
    a: DistMatrix,
    upper: Any,
    out: Any,
    returns: bool,
    algorithm: Any,
    overwrite_a: Any = False,
    check: Any = True,
) -> tuple[FactorizationPlan, Overwriting]:
    """**Collective.** The plan of a factorization, after all checks, and what becomes of the memory of A."""
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
    lacks = runtime.agree(verb, {**options, **a.signature()}, maxima=tuple(int(not may) for may in mine))
    return plan, Overwriting(*(not lack for lack in lacks))


def _made(cls: type[PlannedT], verb: str, plan: FactorizationPlan, a: DistMatrix) -> PlannedT:
    """**Collective.** A new planned factorization of a plan on which the ranks have agreed."""
    with a.runtime.building(verb):
        made = cls(plan, a.dtype, a.runtime)
    a.runtime.agree(f"{verb}: workspace", {})
    return made


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

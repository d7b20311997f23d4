"""Steps of eigenvalue calls: the reduction to a tridiagonal matrix, and its eigenvalues and eigenvectors."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from pblas import errors
from pblas.backends.cpu import lapack
from pblas.backends.local_step import agreed
from pblas.core.call import step
from pblas.core.linalg_errors import ConvergenceError
from pblas.core.operation import Bound, Operation, ResultT
from pblas.factor.with_factor import empty
from pblas.layouts.descriptor import MatrixDescriptor, resized
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.progress import StageReport
from pblas.spectral.band_run import Band, RunBandReduction
from pblas.spectral.divide_and_conquer_run import RunDivideAndConquer, Tridiagonal
from pblas.spectral.eigh_plan import EighPlan
from pblas.spectral.tridiagonalization_run import RunTridiagonalization, largest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.runtime.runtime import Runtime
    from pblas.simulation.hardware import Topology


class Reduced(NamedTuple):
    """T of a multiple of A, equal on all ranks: its diagonal, the one below, and the power of 2 (global)."""

    d: Array
    e: Array
    scale: float

    def values(self, opname: str, runtime: Runtime) -> Array:
        """**Collective.** The eigenvalues of T, ascending, by LAPACK on rank 0."""
        values, info = self.d.copy(), 0
        if runtime.backend.dry is not None:
            return values
        with runtime.agreed_step(opname, "eigenvalues"):
            if runtime.rank == 0:
                info = lapack.sterf(values, self.e.copy())
        values, info = runtime.backend.broadcast_object((values, info), 0)
        if info:
            raise agreed(_not_converged(opname, info))
        return values


def _not_converged(opname: str, info: int) -> ConvergenceError:
    """The error of LAPACK's INFO, equal on all ranks."""
    text = (
        f"{opname}: LAPACK did not find all eigenvalues of a tridiagonal matrix, INFO={info}; scale A, or add a "
        f"multiple of the identity"
    )
    return ConvergenceError(text, info)


def _not_finite(opname: str, plan: EighPlan) -> errors.ArgumentError:
    """The error of a matrix with NaN or infinite elements."""
    triangle = "lower" if plan.uplo == "L" else "upper"
    return errors.ArgumentError(f"{opname}: A has NaN or infinite elements in its {triangle} triangle; replace them")


def _scale(plan: EighPlan, size: float, real: np.dtype[Any]) -> float:
    """The power of 2 by which elements of at most this size get as large as squares of their sums allow.

    cuSOLVER has no scale of its own. The columns that it reduces may become smaller by eps each, as those of a constant
    matrix do; where their squares underflow, reflectors are not orthogonal.
    """
    limits = np.finfo(real)
    most = int(np.frexp(limits.eps / limits.smallest_normal)[1]) // 2 - plan.a.n.bit_length()
    return float(np.ldexp(1.0, min(most - int(np.frexp(size)[1]), limits.maxexp - 1)))


def _least_scale(real: np.dtype[Any]) -> float:
    """The power of 2 by which the least positive number becomes the least one whose square has all digits."""
    limits = np.finfo(real)
    return float(np.ldexp(1.0, (limits.minexp + limits.nmant) // 2 - limits.minexp + limits.nmant))


def solved(opname: str, plan: EighPlan, w: DistMatrix, progress: StageReport) -> Array:
    """**Collective.** The eigenvalues of the lower triangle of W, by one routine on rank 0; W := V, or is lost."""
    runtime, values, info = w.runtime, np.zeros(0), 0
    with runtime.agreed_step(opname, "eigenvalues"):
        if runtime.rank == 0:
            arrays, a = runtime.backend.arrays, w.stored(opname)
            arrays.begin()
            arrays.lower(a)
            arrays.synchronize()
            size = largest(arrays, a)
            if not np.isfinite(size):
                raise _not_finite(opname, plan)
            scale, least = _scale(plan, size, a.real.dtype), _least_scale(a.real.dtype)
            for factor in (scale, 1 / least, least):  # elements whose squares would underflow become 0
                arrays.scale(factor, a)
            values, info = arrays.eigh(a, vectors=plan.vectors)
            values /= values.dtype.type(scale)
    values, info = runtime.backend.broadcast_object((values, info), 0)
    if info:
        raise agreed(_not_converged(opname, info))
    if progress is not None:
        progress(1.0)
    return values


@dataclass(frozen=True, eq=False)
class Step(Operation[ResultT]):
    """A step with the plan of the call, which is chosen before, and which reports its progress."""

    keeps_workspace: ClassVar[bool] = True  # none

    chosen: Any
    dtype: np.dtype[Any]

    @property
    def result(self) -> tuple[MatrixDescriptor, np.dtype[Any]]:
        return self.chosen.w, self.dtype

    def plan(self, nprocs: int, topology: Topology) -> Any:
        return replace(self.chosen, transport=topology.transport(nprocs))

    def arrays(self, opname: str, runtime: Runtime, executor: Any, bound: Bound[ResultT], result: DistMatrix) -> Any:
        executor.progress = bound.local[0]
        return result.stored(opname)


def taken(
    kind: type[Step[ResultT]],
    opname: str,
    plan: Any,
    w: DistMatrix,
    progress: StageReport,
    *others: object,
    new: MatrixDescriptor | None = None,
) -> ResultT:
    """**Collective.** The result of a step with other objects: in W, or in a new matrix of its dtype."""
    form, out, local = (plan, w.dtype), w if new is None else None, (progress, *others)
    result = step(opname, w.runtime, lambda: Bound(kind, form, {}, {}, out, new=new, local=local))
    if progress is not None:
        progress(1.0)
    return result


class Reduction(Step[Reduced]):
    """W := V and T of the reflectors that make A tridiagonal: T = Q^H W Q."""

    noun: ClassVar[str] = "reduction"

    def executor(self, plan: EighPlan, backend: HostRanks) -> RunTridiagonalization:
        return RunTridiagonalization(plan, backend, self.dtype)

    def finish(
        self, opname: str, runtime: Runtime, executor: Any, bound: Bound[Reduced], result: DistMatrix
    ) -> Reduced:
        if runtime.backend.dry is not None:
            n = self.chosen.w.n
            known = runtime.backend.dry.known
            real = np.zeros(0, self.dtype).real.dtype
            return Reduced(known(runtime.called, np.zeros(n, real)), np.zeros(max(n - 1, 0), real), 1.0)
        executor.progress = None  # an exception in it keeps frames alive
        if np.isnan(executor.scale):
            raise agreed(_not_finite(opname, self.chosen))
        return Reduced(executor.d, executor.e, executor.scale)


class BandReduction(Step["Band | None"]):
    """The band of A, and T of the band, on every rank with columns of W."""

    noun: ClassVar[str] = "reduction to a band"

    def executor(self, plan: EighPlan, backend: HostRanks) -> RunBandReduction:
        return RunBandReduction(plan, backend, self.dtype)

    def finish(
        self, opname: str, runtime: Runtime, executor: Any, bound: Bound[Any], result: DistMatrix
    ) -> Band | None:
        executor.finish()
        executor.progress = None  # an exception in it keeps frames alive
        if np.isnan(executor.scale):
            raise agreed(_not_finite(opname, self.chosen))
        band: Band | None = executor.taken_band()
        return band


def by_way_of_a_band(
    opname: str,
    plan: EighPlan,
    wanted: Callable[[Callable[[], Array]], tuple[int, int]],
    w: DistMatrix,
    stage: Callable[[str], StageReport],
) -> tuple[Array, DistMatrix | None]:
    """**Collective.** The wanted eigenvalues of the Hermitian matrix in W, and their vectors, by way of a band.

    `wanted` gives their numbers (start, stop), by a function that returns all eigenvalues if they are needed.
    """
    runtime, n = w.runtime, plan.a.n
    band = taken(BandReduction, opname, plan, w, stage("reduce"))
    stages = runtime.backend.arrays.band_stages(plan.bandwidth)

    def solved(what: str, compute: Callable[[Band], tuple[Array, int]]) -> Array:
        """**Collective.** All eigenvalues, of which GPUs have equal bits."""
        values, info = np.zeros(0, w.dtype).real, 0
        with runtime.agreed_step(opname, what):
            if band is not None:
                runtime.backend.arrays.begin()
                values, info = compute(band)
                stages.release()
                values = values / values.dtype.type(band.scale)
        sums = runtime.backend.gather(zlib.crc32(values.tobytes()))[: plan.members]
        if len(set(sums)) > 1:
            raise agreed(errors.BackendError(f"{opname}: GPUs computed different bits; use GPUs of one model"))
        values, info = runtime.backend.broadcast_object((values, info), 0)
        if info:
            raise agreed(_not_converged(opname, info))
        return values

    def bisected() -> Array:
        return solved("bisection", lambda x: (stages.values(x.t), 0))

    first, last = wanted(bisected)
    if not plan.vectors:
        values, z = bisected(), None
    else:
        runtime.end_reading(opname)
        k = last - first
        z = empty(plan.z if plan.z.n == k else resized(plan.z, (n, k)), w)
        columns = z.stored(opname)
        start, stop = plan.shares(k, 0, plan.members)[runtime.rank] if band is not None else (0, 0)
        values = solved(
            "vectors", lambda x: stages.vectors(x.a, x.triangles, x.t, (first + start, first + stop), columns)
        )
    report = stage("solve")
    if report is not None:
        report(1.0)
    return values[first:last], z


class TridiagonalVectors(Step[tuple["Array", DistMatrix]]):
    """Z := the wanted eigenvectors of T."""

    noun: ClassVar[str] = "divide and conquer"

    @property
    def result(self) -> tuple[MatrixDescriptor, np.dtype[Any]]:
        return self.chosen.z, self.dtype

    def executor(self, plan: EighPlan, backend: HostRanks) -> RunDivideAndConquer:
        return RunDivideAndConquer(plan, backend, self.dtype)

    def arrays(
        self, opname: str, runtime: Runtime, executor: Any, bound: Bound[Any], result: DistMatrix
    ) -> Tridiagonal:
        executor.progress, d, e, wanted = bound.local
        return Tridiagonal(d, e, wanted, result.stored(opname))

    def finish(
        self, opname: str, runtime: Runtime, executor: Any, bound: Bound[Any], result: DistMatrix
    ) -> tuple[Array, DistMatrix]:
        if runtime.backend.dry is not None:
            _, d, _, wanted = bound.local
            return d[slice(*wanted)], result
        executor.progress = None  # an exception in it keeps frames alive
        if executor.info:
            raise agreed(_not_converged(opname, executor.info))
        return executor.values, result

"""Steps of eigenvalue calls: the reduction to a tridiagonal matrix, and its eigenvalues and eigenvectors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from pblas import errors
from pblas.backends.cpu import lapack
from pblas.backends.local_step import agreed
from pblas.core.call import step
from pblas.core.linalg_errors import ConvergenceError
from pblas.core.operation import Bound, Operation, ResultT
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.progress import StageReport
from pblas.spectral.divide_and_conquer_run import RunDivideAndConquer, Tridiagonal
from pblas.spectral.eigh_plan import EighPlan
from pblas.spectral.tridiagonalization_run import RunTridiagonalization, largest

if TYPE_CHECKING:
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
        with runtime.local_step(opname):
            if runtime.rank == 0:
                info = lapack.sterf(values, self.e.copy())
        runtime.agree(f"{opname}: eigenvalues", {})
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
    matrix do; where their squares underflow, reflectors are not orthogonal. The way by a band leaves such columns out,
    for elements of about 1.
    """
    limits = np.finfo(real)
    most = 0 if plan.bandwidth else int(np.frexp(limits.eps / limits.smallest_normal)[1]) // 2 - plan.a.n.bit_length()
    return float(np.ldexp(1.0, min(most - int(np.frexp(size)[1]), limits.maxexp - 1)))


def solved(opname: str, plan: EighPlan, w: DistMatrix, progress: StageReport) -> Array:
    """**Collective.** The eigenvalues of the lower triangle of W, by one routine on rank 0; W := V, or is lost."""
    runtime, values, info = w.runtime, np.zeros(0), 0
    with runtime.local_step(opname):
        if runtime.rank == 0:
            arrays, a = runtime.backend.arrays, w.stored(opname)
            arrays.begin()
            arrays.lower(a)
            arrays.synchronize()
            size = largest(arrays, a)
            if not np.isfinite(size):
                raise _not_finite(opname, plan)
            scale = _scale(plan, size, a.real.dtype)
            arrays.scale(scale, a)
            values, info = arrays.eigh(a, vectors=plan.vectors, bandwidth=plan.bandwidth)
            values /= values.dtype.type(scale)
    runtime.agree(f"{opname}: eigenvalues", {})
    values, info = runtime.backend.broadcast_object((values, info), 0)
    if info:
        raise agreed(_not_converged(opname, info))
    if progress is not None:
        progress(1.0)
    return values


@dataclass(frozen=True, eq=False)
class _Step(Operation[ResultT]):
    """A step with the plan of the call, which is chosen before."""

    keeps_workspace: ClassVar[bool] = True  # none

    chosen: EighPlan
    dtype: np.dtype[Any]

    def plan(self, nprocs: int, topology: Topology) -> EighPlan:
        return replace(self.chosen, transport=topology.transport(nprocs))


class Reduction(_Step[Reduced]):
    """W := V and T of the reflectors that make A tridiagonal."""

    noun: ClassVar[str] = "reduction"

    @property
    def result(self) -> tuple[MatrixDescriptor, np.dtype[Any]]:
        return self.chosen.w, self.dtype

    def executor(self, plan: EighPlan, backend: HostRanks) -> RunTridiagonalization:
        return RunTridiagonalization(plan, backend, self.dtype)

    def arrays(self, opname: str, runtime: Runtime, executor: Any, bound: Bound[Reduced], result: DistMatrix) -> Array:
        executor.progress = bound.local
        return result.stored(opname)

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


def reduced(opname: str, plan: EighPlan, w: DistMatrix, progress: StageReport) -> Reduced:
    """**Collective.** T = Q^H W Q of the Hermitian matrix in W; the reflectors of Q take its place."""
    result = step(opname, w.runtime, lambda: Bound(Reduction, (plan, w.dtype), {}, {}, w, local=progress))
    if progress is not None:
        progress(1.0)
    return result


class TridiagonalVectors(_Step[tuple["Array", DistMatrix]]):
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
            return bound.local[1], result
        executor.progress = None  # an exception in it keeps frames alive
        if executor.info:
            raise agreed(_not_converged(opname, executor.info))
        return executor.values, result


def solved_tridiagonal(
    opname: str, plan: EighPlan, t: Reduced, wanted: tuple[int, int], like: DistMatrix, progress: StageReport
) -> tuple[Array, DistMatrix]:
    """**Collective.** All eigenvalues of T, and a new matrix of the wanted eigenvectors, of the dtype of `like`."""
    form, local = (plan, like.dtype), (progress, t.d, t.e, wanted)
    result = step(opname, like.runtime, lambda: Bound(TridiagonalVectors, form, {}, {}, None, new=plan.z, local=local))
    if progress is not None:
        progress(1.0)
    return result

"""svd, svdvals and plan_svd: singular values and vectors of any matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pblas import errors
from pblas.factor import arguments
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.progress import Progress, ProgressTarget
from pblas.runtime.runtime import Runtime, checked_flag, is_one_of
from pblas.simulation.hardware import Topology
from pblas.spectral.choose import EighAlgorithm
from pblas.spectral.planned import PlannedOfMatrix, Request
from pblas.spectral.svd_plan import SvdAlgorithm, SvdPlan, choose_svd
from pblas.spectral.svd_steps import SingularSystem, singular_system

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from pblas.backends.dtypes import Array


class SvdResult(NamedTuple):
    """U, S and Vh with A = U diag(S) Vh, as of numpy.linalg.svd.

    Args:
        U: m x k with orthonormal columns, k = min(m, n); m x m with full_matrices=True (global).
        S: k real numbers, descending, equal on all ranks (global).
        Vh: k x n with orthonormal rows; n x n with full_matrices=True (global).
    """

    U: DistMatrix
    S: Array
    Vh: DistMatrix

    @classmethod
    def of(cls, system: SingularSystem) -> SvdResult:
        """The result of a call with vectors."""
        assert system.u is not None and system.vh is not None, "with vectors"  # noqa: PT018
        return cls(system.u, system.s, system.vh)


def _check_matrix(opname: str, a: Any, runtime: Runtime, algorithm: Any) -> None:
    """Check the matrix and the algorithm (local)."""
    arguments.check_matrix(opname, "A", a, runtime)
    _check_algorithm(opname, algorithm, "polar")


def _check_algorithm(opname: str, algorithm: Any, *others: str) -> None:
    """Raise ArgumentError for an algorithm that is neither planned nor one of the others."""
    names = "auto", "blocked", "local", *others
    if not is_one_of(algorithm, *names):
        text = f"{', '.join(map(repr, names[:-1]))} or {names[-1]!r}"
        raise errors.ArgumentError(f"{opname}: algorithm must be {text}, got {algorithm!r}")


def svd(
    a: DistMatrix,
    *,
    full_matrices: bool = False,
    algorithm: SvdAlgorithm = "auto",
    overwrite_a: bool = False,
    progress: ProgressTarget = False,
) -> SvdResult:
    """**Collective.** U, S and Vh with A = U diag(S) Vh, the singular values in S descending.

    The result has the same bits on all ranks. In each row of Vh the first of the largest elements is positive, and of a
    complex matrix real and positive; if m < n, in each column of U.

    Args:
        a: m x n matrix of any layout, which may be a view (global).
        full_matrices: compute all m columns of U and all n rows of Vh; by default the first min(m, n) of them. NumPy's
            default is True (global).
        algorithm: "local" reduces A to a bidiagonal matrix on rank 0, with the cores of all ranks of its host;
            "blocked" on all ranks; "auto" takes the one that is expected to be faster. "polar" takes the eigenvalues of
            the H of A = U H, and is the only one on GPUs (global).
        overwrite_a: A is not needed any more. If it is not square, the QR factorization takes its memory where
            `qr_factor` does so (global).
        progress: True: rank 0 prints the finished share of the work to standard error, a few times a second. A
            function: rank 0 calls it instead, with the name of the stage, "factor" (if A is not square), "reduce" or
            "transform", and that share, 0 to 1. By way of H, "iterate" is followed by the stages of `eigh` (global).

    Returns:
        U, new, in the layout of A or on its grid; S, a real NumPy array equal on all ranks; Vh, new, as U.

    Raises:
        ConvergenceError: a singular value was not found; `info` is that of LAPACK.
        ArgumentError: a wrong argument; NaN or infinite elements.
        BackendError, DTypeError: wrong arguments; the same error on every rank.
        MismatchError: ranks that passed different arguments.

    Source: LAPACK xGESDD; ScaLAPACK p?gesvd; numpy.linalg.svd.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     U, S, Vh = pblas.linalg.svd(ctx.from_global(np.array([[3.0, 0.0], [4.0, 0.0], [0.0, 1.0]])))
    ...     S.round(9).tolist(), U.shape, abs(Vh.to_global().round(9)).tolist()
    ([5.0, 1.0], (3, 2), [[1.0, 0.0], [0.0, 1.0]])
    """
    opname, runtime = "svd", arguments.runtime_of("svd", a)
    with runtime.call(opname), Progress(opname, runtime, progress) as reports:
        with runtime.local_step(opname):
            _check_matrix(opname, a, runtime, algorithm)
            full = checked_flag(opname, "full_matrices", full_matrices)
            overwrite_a = checked_flag(opname, "overwrite_a", overwrite_a)
        options = {"full_matrices": full, "algorithm": algorithm, "overwrite_a": overwrite_a}
        runtime.agree(opname, {**options, **a.signature()})
        system = singular_system(
            *(opname, a), full=full, algorithm=algorithm, overwrite_a=overwrite_a, stage=reports.stage
        )
        return SvdResult.of(system)


def svdvals(a: DistMatrix, *, algorithm: SvdAlgorithm = "auto", progress: ProgressTarget = False) -> Array:
    """**Collective.** The singular values of a matrix, descending.

    Args:
        a: m x n matrix of any layout, which may be a view (global).
        algorithm: as in `svd`; "polar" takes the eigenvalues of [0 A^H; A 0], up to some order (global).
        progress: as in `svd`; the stages are "factor" and "reduce" (global).

    Returns:
        A real NumPy array of min(m, n) elements, equal on all ranks.

    Raises:
        as `svd`.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.linalg.svdvals(ctx.from_global(np.array([[3.0, 0.0], [4.0, 0.0]]))).tolist()
    [5.0, 0.0]
    """
    opname, runtime = "svdvals", arguments.runtime_of("svdvals", a)
    with runtime.call(opname), Progress(opname, runtime, progress) as reports:
        with runtime.local_step(opname):
            _check_matrix(opname, a, runtime, algorithm)
        runtime.agree(opname, {"algorithm": algorithm, **a.signature()})
        return singular_system(opname, a, vectors=False, algorithm=algorithm, stage=reports.stage).s


class PlannedSvd(PlannedOfMatrix[SvdResult]):
    """Planned singular values and vectors: `execute(A)`. Made by `plan_svd`."""

    plan: SvdPlan


def plan_svd(
    a: DistMatrix | MatrixDescriptor,
    *,
    full_matrices: bool = False,
    algorithm: EighAlgorithm = "auto",
    dtype: DTypeLike | None = None,
    nprocs: int | None = None,
) -> PlannedSvd:
    """Plan singular values and vectors. **Collective** with a matrix; with a descriptor it needs no MPI.

    Args:
        a: the m x n matrix, or its descriptor (global).
        full_matrices: as in `svd` (global).
        algorithm: as in `svd`, without "polar" (global).
        dtype: dtype of the matrix, needed with a descriptor (global).
        nprocs: number of ranks, when planning from a descriptor; None for its grid (global).

    Returns:
        The planned call: `print(p.explain())`, `p.execute(a)`, `p.plan.simulate("fat-tree")`.

    Raises:
        as `svd`.

    >>> plan_svd(MatrixDescriptor.row_wise(100000, 256, 4), dtype="float64").plan.factor.name
    'TsqrPlan'
    """

    def check(_: MatrixDescriptor) -> dict[str, Any]:
        _check_algorithm("plan_svd", algorithm)
        full = checked_flag("plan_svd", "full_matrices", full_matrices)
        return {"full_matrices": full, "algorithm": algorithm}

    def plan(
        a: MatrixDescriptor, dtype: str, nprocs: int, topology: Topology, *, full_matrices: bool, **options: Any
    ) -> SvdPlan:
        return choose_svd(a, dtype, nprocs, topology.transport(nprocs), full=full_matrices, **options)

    def call(a: DistMatrix, *, full_matrices: bool, **options: Any) -> SvdResult:
        return SvdResult.of(singular_system("execute", a, full=full_matrices, **options))

    return Request("svd", check, plan, call).planned(PlannedSvd, a, dtype, nprocs)

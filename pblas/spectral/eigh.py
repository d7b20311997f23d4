"""eigh, eigvalsh and plan_eigh: eigenvalues and eigenvectors of symmetric and Hermitian matrices."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np

from pblas import errors
from pblas.core.checks import is_writeable
from pblas.factor import arguments
from pblas.factor.with_factor import Reflectors, empty, multiplied, zeros
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistributed
from pblas.runtime.progress import Progress, ProgressTarget, StageReport
from pblas.runtime.runtime import Runtime, checked_flag, is_one_of
from pblas.simulation.hardware import Hardware, Topology
from pblas.spectral.choose import EighAlgorithm, choose_eigh
from pblas.spectral.generalized import Pencil, completed, pencil_of
from pblas.spectral.planned import PlannedOfMatrix, Request
from pblas.spectral.steps import Reduced, Reduction, TridiagonalVectors, by_way_of_a_band, solved, taken

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pblas.backends.dtypes import Array
    from pblas.spectral.eigh_plan import EighPlan


class EighResult(NamedTuple):
    """Eigenvalues, ascending, and eigenvectors, as of numpy.linalg.eigh.

    Args:
        eigenvalues: k real numbers, equal on all ranks (global).
        eigenvectors: n x k, orthonormal; column i belongs to eigenvalue i (global).
    """

    eigenvalues: Array
    eigenvectors: DistMatrix


class CheckedEighResult(NamedTuple):
    """The result of `eigh` with check=True.

    Args:
        eigenvalues: as in `EighResult` (global).
        eigenvectors: as in `EighResult` (global).
        residual: norm(A V - V diag(w)) sqrt(k) / (norm(A) norm(V)), in Frobenius norms; with B of type 1 that of
            A V - B V diag(w), and of types 2 and 3 that of A B V or B A V, over trace(B) / sqrt(n) too (global).
        orthogonality: norm(V^H V - I); with B of types 1 and 2 norm(V^H B V - I), and of type 3 with B^-1 (global).
    """

    eigenvalues: Array
    eigenvectors: DistMatrix
    residual: float
    orthogonality: float


class Options(NamedTuple):
    """The options of a call, checked (global)."""

    uplo: Literal["L", "U"]
    subset_by_index: tuple[int, int] | None
    subset_by_value: tuple[float, float] | None
    vectors: bool
    algorithm: EighAlgorithm

    @classmethod
    def checked(
        cls,
        opname: str,
        n: int,
        lower: Any,
        subset_by_index: Any,
        subset_by_value: Any,
        *,
        vectors: bool,
        algorithm: Any,
    ) -> Options:
        """The options of a call with an n x n matrix; ArgumentError for a wrong one."""
        uplo: Literal["L", "U"] = "L" if checked_flag(opname, "lower", lower) else "U"
        if not is_one_of(algorithm, "auto", "blocked", "local"):
            raise errors.ArgumentError(f"{opname}: algorithm must be 'auto', 'blocked' or 'local', got {algorithm!r}")
        if subset_by_index is not None and subset_by_value is not None:
            raise errors.ArgumentError(f"{opname}: subset_by_index and subset_by_value were given; pass one of them")
        if subset_by_index is not None:
            first, last = _pair(opname, "subset_by_index", subset_by_index, (int, np.integer))
            if not 0 <= first <= last < n:
                raise errors.ArgumentError(
                    f"{opname}: subset_by_index must be [first, last] with 0 <= first <= last < {n}, got "
                    f"{subset_by_index!r}"
                )
            subset_by_index = int(first), int(last)
        if subset_by_value is not None:
            low, high = _pair(opname, "subset_by_value", subset_by_value, (int, float, np.integer, np.floating))
            if not low < high:
                raise errors.ArgumentError(
                    f"{opname}: subset_by_value must be [low, high] with low < high, got {subset_by_value!r}"
                )
            subset_by_value = float(low), float(high)
        return cls(uplo, subset_by_index, subset_by_value, vectors, algorithm)

    def plan(
        self,
        a: MatrixDescriptor,
        dtype: np.dtype[Any],
        nprocs: int,
        topology: Topology,
        count: int | None = None,
        *,
        bands: bool = True,
    ) -> EighPlan:
        """The plan for `count` vectors, or as many as there are by index."""
        if self.subset_by_index is not None:
            count = self.subset_by_index[1] + 1 - self.subset_by_index[0]
        return choose_eigh(
            *(a.without_lld, dtype.name, nprocs, topology.transport(nprocs)),
            uplo=self.uplo,
            count=count,
            vectors=self.vectors,
            algorithm=self.algorithm,
            gpus=topology.gpus,
            bands=bands,
        )

    def wanted(self, n: int, values: Callable[[], Array]) -> tuple[int, int]:
        """The numbers (start, stop) of the wanted ones of n eigenvalues, which `values` gives if they are needed."""
        if self.subset_by_index is not None:
            return self.subset_by_index[0], self.subset_by_index[1] + 1
        if self.subset_by_value is None:
            return 0, n
        low, high = np.searchsorted(values(), self.subset_by_value, "right")
        return int(low), int(high)


def _pair(opname: str, name: str, value: Any, types: tuple[type, ...]) -> tuple[Any, Any]:
    """A value as two numbers; ArgumentError for any other value."""
    numbers = list(value) if isinstance(value, list | tuple | np.ndarray) else []
    if len(numbers) != 2 or not all(isinstance(x, types) and not isinstance(x, bool) for x in numbers):
        kind = "integers" if float not in types else "numbers"
        raise errors.ArgumentError(f"{opname}: {name} must be two {kind}, got {value!r}")
    return numbers[0], numbers[1]


def _check_matrix(opname: str, a: Any, runtime: Runtime) -> None:
    """Check the matrix (local)."""
    arguments.check_matrix(opname, "A", a, runtime)
    arguments.check_square(opname, a.desc)


def eigensystem(
    opname: str,
    a: DistMatrix,
    options: Options,
    stage: Callable[[str], StageReport] = lambda _: None,
    pencil: Pencil | None = None,
    *,
    out: DistMatrix | None = None,
    overwrite_a: bool = False,
) -> tuple[Array, DistMatrix | None]:
    """**Collective.** The eigenvalues of a checked matrix, and V if it is wanted, with checked arguments.

    The first columns of `out` get V. `stage` gives the reports of a stage's progress.
    """
    runtime = a.runtime
    plan = options.plan(a.desc, a.dtype, runtime.nprocs, runtime.topology)
    with runtime.local_step(opname):
        lacks = int(not overwrite_a or a.conjugated or not is_writeable(a.stored(opname)))
        stages = runtime.backend.arrays.band_stages(plan.bandwidth) if plan.bandwidth else None
        is_too_long = int(stages is not None and not stages.holds(a.desc.n, a.dtype))
        placed = None if out is None else out.signature()
        agrees = {**options._asdict(), "overwrite_a": overwrite_a, "out": placed, **a.signature()}
    lacks, is_too_long = runtime.agree(opname, agrees, None, (lacks, is_too_long))
    if is_too_long:
        plan = options.plan(a.desc, a.dtype, runtime.nprocs, runtime.topology, bands=False)
    # W := A
    w = empty(plan.w, a) if plan.is_split or plan.direct or plan.bandwidth else zeros(opname, plan.w, a)
    for copy in plan.copies:
        trapezoid = copy.trapezoid
        assert trapezoid is not None, "of one triangle"
        redistributed(opname, a, out=w[: a.desc.m], trans=copy.trans, uplo=trapezoid.uplo, diagonal=trapezoid.diagonal)
    if plan.bandwidth:
        values, z = by_way_of_a_band(opname, plan, partial(options.wanted, a.desc.n), w, stage)
    else:
        values, z = (_directly if plan.direct else _in_stages)(opname, plan, options, a, w, stage)
    del w
    if runtime.backend.dry is not None:
        values = runtime.backend.dry.known(runtime.called, values)
    if z is None:
        return values, None
    if pencil is not None:
        z = pencil.vectors(z)
    runtime.end_reading(opname)
    with runtime.local_step(opname):
        runtime.backend.arrays.begin()
        runtime.backend.arrays.fix_signs(z.stored(opname))
        runtime.backend.arrays.synchronize()
    # V := Z
    if out is not None:
        out = out[:, : z.shape[1]]
    elif not lacks and z.shape == a.shape:
        out = a
    desc = options.plan(a.desc, a.dtype, runtime.nprocs, runtime.topology, z.shape[1]).v
    if out is None and z.desc == desc:
        return values, z
    return values, redistributed(opname, z, None if out is not None else desc, out=out, is_temporary=True)


def _directly(
    opname: str, plan: EighPlan, options: Options, a: DistMatrix, w: DistMatrix, stage: Callable[[str], StageReport]
) -> tuple[Array, DistMatrix | None]:
    """**Collective.** The wanted eigenvalues, and their vectors in W, by one routine on rank 0."""
    values = solved(opname, plan, w, stage("solve"))
    first, last = options.wanted(a.desc.n, lambda: values)
    z = w if last - first == a.desc.n else w[:, first:last]
    return values[first:last], z if options.vectors else None


def _in_stages(
    opname: str, plan: EighPlan, options: Options, a: DistMatrix, w: DistMatrix, stage: Callable[[str], StageReport]
) -> tuple[Array, DistMatrix | None]:
    """**Collective.** The wanted eigenvalues, and their vectors, by way of a tridiagonal matrix."""
    n, runtime = a.desc.n, a.runtime
    # T := Q^H W Q
    reduction = taken(Reduction, opname, plan, w, stage("reduce"))
    first, last = options.wanted(n, lambda: _scaled(reduction.values(opname, runtime), reduction))
    if not options.vectors:
        return _scaled(reduction.values(opname, runtime)[first:last], reduction), None
    # S, w of T
    plan = options.plan(a.desc, a.dtype, runtime.nprocs, runtime.topology, last - first)
    t, progress = (reduction.d, reduction.e, (first, last)), stage("divide and conquer")
    values, z = taken(TridiagonalVectors, opname, plan, a, progress, *t, new=plan.z)
    # Z := Q S
    if n > 1:
        below = z[1:]
        multiplied(opname, Reflectors(w[1:, : n - 1]), below, out=below, progress=stage("transform"))
    return _scaled(values, reduction), z


def _scaled(values: Array, reduction: Reduced) -> Array:
    """The eigenvalues of A, from those of its multiple."""
    scaled: Array = values / values.dtype.type(reduction.scale)
    return scaled


@overload
def eigh(
    a: DistMatrix,
    b: DistMatrix | None = None,
    *,
    lower: bool = True,
    type: Literal[1, 2, 3] = 1,
    subset_by_index: Sequence[int] | None = None,
    subset_by_value: Sequence[float] | None = None,
    algorithm: EighAlgorithm = "auto",
    overwrite_a: bool = False,
    check: Literal[False] = False,
    progress: ProgressTarget = False,
) -> EighResult: ...
@overload
def eigh(
    a: DistMatrix,
    b: DistMatrix | None = None,
    *,
    lower: bool = True,
    type: Literal[1, 2, 3] = 1,
    subset_by_index: Sequence[int] | None = None,
    subset_by_value: Sequence[float] | None = None,
    algorithm: EighAlgorithm = "auto",
    overwrite_a: bool = False,
    check: Literal[True],
    progress: ProgressTarget = False,
) -> CheckedEighResult: ...
def eigh(
    a: DistMatrix,
    b: DistMatrix | None = None,
    *,
    lower: bool = True,
    type: Literal[1, 2, 3] = 1,  # noqa: A002 - SciPy's name
    subset_by_index: Sequence[int] | None = None,
    subset_by_value: Sequence[float] | None = None,
    algorithm: EighAlgorithm = "auto",
    overwrite_a: bool = False,
    check: bool = False,
    progress: ProgressTarget = False,
) -> EighResult | CheckedEighResult:
    """**Collective.** w and V with A V = V diag(w), of a symmetric or Hermitian matrix; with B with A V = B V diag(w).

    The result has the same bits on all ranks. In each column of V the first of the largest elements is positive, and of
    a complex one real and positive.

    Args:
        a: n x n matrix of any layout, which may be a view. One triangle is read, and only the real part of its diagonal
            (global).
        b: B, a Hermitian positive definite matrix of the shape and dtype of A, in any layout, of which the same
            triangle is read; None for the identity (global).
        lower: read the lower triangle, else the upper one (global).
        type: with B, 1 for A V = B V diag(w), 2 for A B V = V diag(w), 3 for B A V = V diag(w) (global).
        subset_by_index: [first, last]: the eigenvalues with these numbers, from 0 in ascending order, both included;
            None for all (global).
        subset_by_value: [low, high]: the eigenvalues greater than low and at most high; None for all (global).
        algorithm: "local" reduces A to a tridiagonal matrix on rank 0, with the cores of all ranks of its host;
            "blocked" on all ranks; "auto" takes the one that is expected to be faster. All ranks share the rest of the
            work in any case. On GPUs cuSOLVER solves a small A on rank 0. A larger one becomes a band: on the GPU of
            rank 0 with "local", on all with "blocked", and with "auto" on all from 24576 columns on; from 12288 on all
            compute vectors of the band (global).
        overwrite_a: A is not needed any more: V takes its memory if all vectors are wanted, unless there is a B, or A
            is conjugated or read-only (global).
        check: compute by products how far w and V are from eigenvalues and eigenvectors (global).
        progress: True: rank 0 prints the finished share of the work to standard error, a few times a second. A
            function: rank 0 calls it instead, with the name of the stage, "reduce", "divide and conquer" or
            "transform", and that share, 0 to 1. For a matrix of a few rows, and on GPUs after "reduce", there is one
            stage, "solve" (global).

    Returns:
        The eigenvalues, ascending, a real NumPy array equal on all ranks; V, a new n x k matrix in the layout of A, or
        on its grid if k < n. With check=True also the residual and the loss of orthogonality: see `CheckedEighResult`.

    Raises:
        ConvergenceError: an eigenvalue was not found; `info` is that of LAPACK.
        NotPositiveDefiniteError: B is not positive definite.
        ArgumentError: a wrong argument; NaN or infinite elements.
        BackendError, DescriptorError, DTypeError: wrong arguments; the same error on every rank.
        MismatchError: ranks that passed different arguments.

    Source: LAPACK xSYEVD, xHEEVD; ScaLAPACK p?syevd, p?heevd; scipy.linalg.eigh.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     w, V = pblas.linalg.eigh(ctx.from_global(np.array([[2.0, 1.0], [1.0, 2.0]])))
    ...     w.round(9).tolist(), V.to_global().round(3).tolist()
    ([1.0, 3.0], [[0.707, 0.707], [-0.707, 0.707]])
    """
    opname, runtime = "eigh", arguments.runtime_of("eigh", a)
    with runtime.call(opname), Progress(opname, runtime, progress) as reports:
        with runtime.local_step(opname):
            _check_matrix(opname, a, runtime)
            options = Options.checked(
                *(opname, a.desc.n, lower, subset_by_index, subset_by_value), vectors=True, algorithm=algorithm
            )
            overwrite_a = checked_flag(opname, "overwrite_a", overwrite_a)
            check = checked_flag(opname, "check", check)
            if b is not None:
                arguments.check_matrix(opname, "B", b, runtime, a.dtype)
                if b.shape != a.shape:
                    sizes = " and ".join(f"{m} x {n}" for m, n in (a.shape, b.shape))
                    raise errors.DescriptorError(f"{opname}: A and B are {sizes}; make them agree")
            if not is_one_of(type, 1, 2, 3) or isinstance(type, bool):
                raise errors.ArgumentError(f"{opname}: type must be 1, 2 or 3, got {type!r}")
        given = {"B": None if b is None else b.signature(), "type": type, "check": check}
        runtime.agree(opname, {**given, **a.signature(), "lower": options.uplo == "L"})
        if b is None and not check:
            values, v = eigensystem(opname, a, options, reports.stage, overwrite_a=overwrite_a)
            assert v is not None, "with vectors"
            return EighResult(values, v)
        full = completed(opname, a, options.uplo)
        pencil = Pencil(opname) if b is None else pencil_of(opname, b, options.uplo, type)
        values, v = eigensystem(opname, pencil.standard(full), options._replace(uplo="L"), reports.stage, pencil)
        assert v is not None, "with vectors"
        return CheckedEighResult(values, v, *pencil.errors(full, values, v)) if check else EighResult(values, v)


def eigvalsh(
    a: DistMatrix,
    *,
    lower: bool = True,
    subset_by_index: Sequence[int] | None = None,
    subset_by_value: Sequence[float] | None = None,
    algorithm: EighAlgorithm = "auto",
    progress: ProgressTarget = False,
) -> Array:
    """**Collective.** The eigenvalues of a symmetric or Hermitian matrix, ascending.

    Args:
        a: n x n matrix of any layout, as in `eigh` (global).
        lower: as in `eigh` (global).
        subset_by_index: as in `eigh` (global).
        subset_by_value: as in `eigh` (global).
        algorithm: as in `eigh` (global).
        progress: as in `eigh`; the stage is "reduce" or "solve" (global).

    Returns:
        A real NumPy array, equal on all ranks.

    Raises:
        as `eigh`.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.linalg.eigvalsh(ctx.from_global(np.array([[2.0, 1.0], [1.0, 2.0]]))).round(9).tolist()
    [1.0, 3.0]
    """
    opname, runtime = "eigvalsh", arguments.runtime_of("eigvalsh", a)
    with runtime.call(opname), Progress(opname, runtime, progress) as reports:
        with runtime.local_step(opname):
            _check_matrix(opname, a, runtime)
            options = Options.checked(
                *(opname, a.desc.n, lower, subset_by_index, subset_by_value), vectors=False, algorithm=algorithm
            )
        return eigensystem(opname, a, options, reports.stage)[0]


class PlannedEigh(PlannedOfMatrix[EighResult]):
    """Planned eigenvalues and eigenvectors: `execute(A)`. Made by `plan_eigh`."""

    plan: EighPlan


def plan_eigh(
    a: DistMatrix | MatrixDescriptor,
    *,
    lower: bool = True,
    subset_by_index: Sequence[int] | None = None,
    algorithm: EighAlgorithm = "auto",
    dtype: Any = None,
    nprocs: int | None = None,
    hardware: Hardware | str | None = None,
) -> PlannedEigh:
    """Plan eigenvalues and eigenvectors. **Collective** with a matrix; with a descriptor it needs no MPI.

    Args:
        a: the n x n matrix, or its descriptor (global).
        lower: as in `eigh` (global).
        subset_by_index: as in `eigh` (global).
        algorithm: as in `eigh` (global).
        dtype: dtype of the matrix, needed with a descriptor (global).
        nprocs: number of ranks, when planning from a descriptor; None for its grid (global).
        hardware: machine to plan for, when planning from a descriptor, as in `plan_matmul`; None for one node of CPUs
            (global).

    Returns:
        The planned call: `print(p.explain())`, `p.execute(a)`, `p.plan.simulate("fat-tree")`.

    Raises:
        as `eigh`.

    >>> plan_eigh(MatrixDescriptor.row_wise(4096, 4096, 4), dtype="float64").plan.members
    4
    """

    def check(desc: MatrixDescriptor) -> dict[str, Any]:
        opname = "plan_eigh"
        arguments.check_square(opname, desc)
        options = Options.checked(opname, desc.n, lower, subset_by_index, None, vectors=True, algorithm=algorithm)
        return options._asdict()

    def plan(a: MatrixDescriptor, dtype: str, nprocs: int, topology: Topology, **options: Any) -> EighPlan:
        return Options(**options).plan(a, np.dtype(dtype), nprocs, topology)

    def call(a: DistMatrix, **options: Any) -> EighResult:
        values, v = eigensystem("execute", a, Options(**options))
        assert v is not None, "with vectors"
        return EighResult(values, v)

    return Request("eigh", check, plan, call, on_gpus=True).planned(PlannedEigh, a, dtype, nprocs, hardware)

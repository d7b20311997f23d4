"""Updates of a matrix by products of vectors: ger, geru, gerc, syr, her, syr2, her2. Only vectors move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from pblas import errors
from pblas.core.call import call
from pblas.core.checks import check_not_conjugated, check_writable, checked_letter
from pblas.core.operation import Bound, Operation, WithoutMemory
from pblas.layouts.triangle import Part, blocks_of
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.runtime import Runtime, checked_scalar, name_of
from pblas.vectors.checks import Columns, GpuColumns, VectorKind, check_size, checked_vector, is_in_blocks
from pblas.vectors.matrix_vector import checked_matrix, real_of
from pblas.vectors.matrix_vector_plan import LocalPlan
from pblas.vectors.matrix_vector_run import LocalUpdate, update

if TYPE_CHECKING:
    from pblas.backends.device import Uplo
    from pblas.backends.dtypes import Array, Dtype, Real, Scalar
    from pblas.backends.host_ranks import HostRanks
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.simulation.hardware import Topology


def geru(x: object, y: object, a: DistMatrix, *, alpha: Scalar = 1.0) -> DistMatrix:
    """**Collective.** A := alpha x y^T + A, in place.

    Every rank receives both vectors and updates its own elements.

    Args:
        x: vector of m elements: an m x 1 or 1 x m matrix in any layout, or an array of one dimension that is equal on
            all ranks (global).
        y: vector of n elements (global).
        a: m x n matrix in any layout (global).
        alpha: scalar; with alpha = 0 the vectors are not read (global).

    Returns:
        A.

    Raises:
        ArgumentError, DescriptorError, DTypeError: arguments that do not fit, the same on every rank.
        MismatchError: ranks that passed different arguments.

    Source: BLAS, xGERU.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     A = ctx.zeros((2, 3))
    ...     pblas.blas.geru(np.array([1.0, 2.0]), np.array([1.0, 0.0, -1.0]), A).to_global(None).tolist()
    [[1.0, 0.0, -1.0], [2.0, 0.0, -2.0]]
    """
    return _update("geru", (x, y), a, alpha, None)


def gerc(x: object, y: object, a: DistMatrix, *, alpha: Scalar = 1.0) -> DistMatrix:
    """**Collective.** A := alpha x y^H + A, in place; see `geru`.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     A = ctx.zeros((2, 1), complex)
    ...     pblas.blas.gerc(np.array([1.0, 1.0j]), np.array([1.0j]), A).to_global(None).tolist()
    [[-1j], [(1+0j)]]
    """
    return _update("gerc", (x, y), a, alpha, None)


def ger(x: object, y: object, a: DistMatrix, *, alpha: Scalar = 1.0) -> DistMatrix:
    """**Collective.** A := alpha x y^T + A for real matrices, in place; see `geru`.

    Raises:
        DTypeError: complex matrices.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.blas.ger(np.array([1.0, 2.0]), np.ones(2), ctx.zeros((2, 2)), alpha=3.0).to_global(None).tolist()
    [[3.0, 3.0], [6.0, 6.0]]
    """
    return _update("ger", (x, y), a, alpha, None)


def syr(x: object, a: DistMatrix, *, uplo: str = "L", alpha: Scalar = 1.0) -> DistMatrix:
    """**Collective.** A := alpha x x^T + A in one triangle, in place; the other one is neither read nor written.

    Args:
        x: vector of n elements, as in `geru` (global).
        a: n x n symmetric matrix in any layout (global).
        uplo: the triangle that is updated, "L" or "U"; both have the diagonal (global).
        alpha: scalar; with alpha = 0 x is not read (global).

    Returns:
        A.

    Raises:
        as `geru`.

    Source: BLAS, xSYR.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.blas.syr(np.array([1.0, 2.0]), ctx.zeros((2, 2))).to_global(None).tolist()
    [[1.0, 0.0], [2.0, 4.0]]
    """
    return _update("syr", (x,), a, alpha, uplo)


def her(x: object, a: DistMatrix, *, uplo: str = "L", alpha: float | Real = 1.0) -> DistMatrix:
    """**Collective.** A := alpha x x^H + A in one triangle of a Hermitian A, in place; see `syr`.

    Alpha is real. Imaginary parts of the diagonal are not read, and become 0.

    Source: BLAS, xHER.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.blas.her(np.array([1.0, 2.0j]), ctx.zeros((2, 2), complex), uplo="U").to_global(None).tolist()
    [[(1+0j), -2j], [0j, (4+0j)]]
    """
    return _update("her", (x,), a, alpha, uplo)


def syr2(x: object, y: object, a: DistMatrix, *, uplo: str = "L", alpha: Scalar = 1.0) -> DistMatrix:
    """**Collective.** A := alpha x y^T + alpha y x^T + A in one triangle, in place; see `syr`.

    Source: BLAS, xSYR2.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.blas.syr2(np.array([1.0, 2.0]), np.ones(2), ctx.zeros((2, 2))).to_global(None).tolist()
    [[2.0, 0.0], [3.0, 4.0]]
    """
    return _update("syr2", (x, y), a, alpha, uplo)


def her2(x: object, y: object, a: DistMatrix, *, uplo: str = "L", alpha: Scalar = 1.0) -> DistMatrix:
    """**Collective.** A := alpha x y^H + conj(alpha) y x^H + A in one triangle of a Hermitian A, in place; see `syr`.

    Imaginary parts of the diagonal are not read, and become 0.

    Source: BLAS, xHER2.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.blas.her2(np.array([1.0, 1.0j]), np.ones(2), ctx.zeros((2, 2), complex)).to_global(None).tolist()
    [[(2+0j), 0j], [(1+1j), 0j]]
    """
    return _update("her2", (x, y), a, alpha, uplo)


class _Operands(NamedTuple):
    """The local arrays of a call, and alpha (local)."""

    runtime: Runtime
    opname: str
    vectors: list[Array]
    a: Array
    alpha: complex


@dataclass(frozen=True, eq=False)
class RankUpdate(Operation[DistMatrix]):
    """A := A + X Y in a part of A, where X and Y are made of one or two vectors."""

    noun: ClassVar[str] = "update"
    may_overlap: ClassVar[bool] = True
    needs_agreement: ClassVar[bool] = True
    derived: ClassVar[frozenset[str]] = frozenset(("name", "reads"))

    name: str  # of the routine (global)
    part: Part  # the part of A that is updated (global)
    matrix: MatrixDescriptor
    dtype: Dtype
    x: VectorKind  # the first vector (global)
    y: VectorKind | None  # the second vector; None if there is one only (global)
    reads: bool  # whether alpha is not 0 (global)

    @classmethod
    def bind(
        cls, opname: str, runtime: Runtime, matrix: object, names: Mapping[str, object], uplo: object, scalar: object
    ) -> Bound[DistMatrix]:
        is_general = opname.startswith("ge")
        a = checked_matrix(opname, matrix, runtime, square=not is_general)
        part: Part = "all" if is_general else checked_letter(opname, "uplo", uplo, "LU")
        if a.dtype.itemsize <= 2:
            raise errors.DTypeError(f"{opname}: A is {a.dtype.name}; use pblas.elementwise, or .astype('float32')")
        if opname == "ger" and a.dtype.kind == "c":
            raise errors.DTypeError(f"ger: A is {a.dtype.name}; use geru (transposed) or gerc (conjugated y)")
        check_not_conjugated(opname, "A", a)
        check_writable(opname, a, "A")
        vectors = [checked_vector(opname, name, value, runtime, a.dtype) for name, value in names.items()]
        for name, vector, size in zip(names, vectors, a.shape, strict=False):
            check_size(opname, name, vector, size, f"A is {a.shape[0]} x {a.shape[1]} and takes")
        alpha = checked_scalar(opname, "alpha", scalar, real_of(a.dtype) if opname == "her" else a.dtype)
        y = vectors[1].kind if len(vectors) > 1 else None
        reads = {name: v.column for name, v in zip(names, vectors, strict=True) if v.column is not None}
        form = opname, part, a.desc.without_lld, a.dtype, vectors[0].kind, y, alpha != 0
        return Bound(cls, form, {"alpha": alpha}, reads, a, local=vectors)

    @property
    def vectors(self) -> tuple[VectorKind, ...]:
        """x, or x and y (global)."""
        return (self.x,) if self.y is None else (self.x, self.y)

    @property
    def result(self) -> tuple[MatrixDescriptor, Dtype]:
        return self.matrix, self.dtype

    @property
    def is_local(self) -> bool:
        return True

    def plan(self, nprocs: int, topology: Topology) -> LocalPlan:
        columns = tuple(kind.column for kind in self.vectors if kind.column is not None) if self.reads else ()
        transport = topology.transport(nprocs)
        return LocalPlan("update by vectors", self.matrix, name_of(self.dtype), nprocs, transport, columns)

    def executor(self, plan: LocalPlan, backend: HostRanks) -> RunRankUpdate:
        return RunRankUpdate(plan, backend, self)

    def in_order(self, executor: RunRankUpdate) -> bool:
        return executor.takes_whole or executor.is_on_gpus

    def arrays(
        self, opname: str, runtime: Runtime, executor: Any, bound: Bound[DistMatrix], result: DistMatrix
    ) -> _Operands:
        vectors = [vector.stored(opname) for vector in bound.local]
        return _Operands(runtime, opname, vectors, result.stored(opname), bound.scalars["alpha"])


class RunRankUpdate(WithoutMemory):
    """The executor of an update: one exchange of the vectors."""

    def __init__(self, plan: LocalPlan, backend: HostRanks, operation: RankUpdate) -> None:
        self._operation = operation
        self._updates = operation.reads and 0 not in operation.matrix.shape
        self._rank = backend.rank
        self._moved = [i for i, kind in enumerate(operation.vectors) if kind.column is not None and self._updates]
        kinds = [operation.vectors[i] for i in self._moved]
        conjugates = operation.dtype.kind == "c" and operation.name in ("gerc", "her", "her2")
        self._is_of_blas = "update_whole" not in backend.arrays.traits.lacks and (
            operation.matrix.order == "F" or not conjugates
        )
        are_there = all(kind.column is not None and not kind.conjugated for kind in operation.vectors)
        self.takes_whole: bool = plan.nprocs == 1 and self._updates and self._is_of_blas and are_there
        """Whether one call of a device that has the whole matrix and the vectors updates it (global)."""
        self.is_on_gpus: bool = self._updates and not self.takes_whole and self._goes_on_gpus(plan, backend)
        if self.takes_whole or self.is_on_gpus:
            self._columns = None
            return
        self._columns = Columns(kinds, plan.nprocs, backend.rank) if kinds else None
        self._local = LocalUpdate(plan.a, operation.part, backend.rank)

    def _goes_on_gpus(self, plan: LocalPlan, backend: HostRanks) -> bool:
        """Whether vectors stay on the GPUs, as in a product of a matrix with a vector (global). Makes the exchange."""
        kinds = self._operation.vectors
        nbytes = prod(plan.a.shape) * self._operation.dtype.itemsize
        if not (self._is_of_blas and is_in_blocks(plan.a)):
            return False
        if not GpuColumns.serves(plan.nprocs, kinds, nbytes, push=backend.push):
            return False
        self._everywhere = GpuColumns(kinds, backend)
        return True

    def _run_on_gpus(self, x: _Operands) -> None:
        """**Collective.** Update this rank's elements by BLAS: a square on the diagonal, and blocks beside it."""
        operation, arrays = self._operation, x.runtime.backend.arrays
        self._everywhere.collect(x.runtime, x.vectors)
        if not x.a.size:
            return
        first, last = (self._everywhere.elements[i][:, None] for i in (0, -1))
        name = operation.name
        uplo: Uplo = "U" if operation.part == "U" else "L"
        desc = operation.matrix
        (i0,), (j0,) = ((start for start, _ in ranges) for ranges in desc.global_ranges(self._rank))
        for block in blocks_of(desc, self._rank, operation.part):
            i, j = (slice(*bounds) for bounds in (block.rows, block.columns))
            part = x.a[i.start - i0 : i.stop - i0, j.start - j0 : j.stop - j0]
            # A[i, j] += alpha x[i] y[j]^T
            if block.meets_diagonal or operation.part == "all":
                arrays.update_whole(name, x.alpha, first[i], last[j], part, uplo=uplo)
                continue
            of_block = "gerc" if name.startswith("he") else "geru"
            arrays.update_whole(of_block, x.alpha, first[i], last[j], part, uplo=uplo)
            if operation.y is not None:
                opposite = np.conj(x.alpha) if name == "her2" else x.alpha
                arrays.update_whole(of_block, opposite, last[i], first[j], part, uplo=uplo)

    def publish(self, x: _Operands) -> bool:
        if self._columns is not None:
            self._columns.lay_out(x.runtime, x.opname, [x.vectors[i] for i in self._moved])
        return False

    def prepare(self, *, scratch: bool) -> bool:
        return self._columns is not None and self._columns.stage()

    def run(self, x: _Operands) -> None:
        """**Collective.** Update this rank's elements."""
        if not self._updates:
            return
        if self.takes_whole:
            name, first, last = self._operation.name, x.vectors[0], x.vectors[-1]
            uplo: Uplo = "U" if self._operation.part == "U" else "L"
            x.runtime.backend.arrays.update_whole(name, x.alpha, first, last, x.a, uplo=uplo)
            return
        if self.is_on_gpus:
            self._run_on_gpus(x)
            return
        elements = list(x.vectors)
        for i, column in zip(self._moved, self._columns.collect() if self._columns else (), strict=True):
            elements[i] = column
        # A_r += X[rows] Y[:, columns]
        left, right = _factors(self._operation.name, x.alpha, elements)
        hermitian = self._operation.name.startswith("he")
        update(self._local, x.runtime.backend, x.a, left, right, hermitian=hermitian)


def _update(opname: str, given: tuple[object, ...], matrix: object, scalar: object, uplo: object) -> DistMatrix:
    """**Collective.** The update of a call; its vectors are x, or x and y."""
    names = dict(zip("xy", given, strict=False))
    return call(opname, RankUpdate.bind, {"a": matrix, **names}, matrix, names, uplo, scalar)


def _factors(opname: str, alpha: Any, elements: list[Any]) -> tuple[Any, Any]:
    """X (m x k) and Y (k x n) whose product is added."""
    x, y = elements[0], elements[-1]
    dtype = x.dtype
    factor, opposite = dtype.type(alpha), dtype.type(np.conj(alpha))
    right = [np.conj(v) if opname in ("gerc", "her", "her2") else v for v in (y, x)]
    if opname in ("syr2", "her2"):
        second = opposite if opname == "her2" else factor
        return np.stack([factor * x, second * y], axis=1), np.stack(right)
    return (factor * x)[:, None], right[0][None, :]

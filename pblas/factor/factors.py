"""Factors of matrices, which solve equations: `cho_factor` and `lu_factor` make them."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from math import frexp, inf, isfinite
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from pblas import errors
from pblas.backends.local_step import agreed
from pblas.core.checks import checked_trans
from pblas.core.linalg_errors import SingularMatrixError, not_positive_definite
from pblas.core.options import MatrixOrArray, Trans
from pblas.factor import arguments
from pblas.factor.factorization import Factored, FactoredMatrix
from pblas.factor.with_factor import substituted
from pblas.factor.with_factor_plan import Triangle
from pblas.matrices.matrix import DistMatrix
from pblas.matrices.scatter_gather import diagonal_places
from pblas.redistribution.api import redistributed
from pblas.runtime.progress import Progress, ProgressTarget, StageReport
from pblas.runtime.runtime import Runtime, checked_flag, checked_scalar, spelled
from pblas.triangular.trsm import first_zero, trsv

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype, Number, Real
    from pblas.layouts.descriptor import MatrixDescriptor

Operator = Callable[[Any, Trans], Any]  # operator(b, trans) for an array b: with "C" its adjoint; equal on all ranks
_NO_PIVOT = -(1 << 20)  # in place of an exponent, on ranks without pivots
_MOST_STEPS = 5  # as in LAPACK
_ADJOINT: dict[Trans, Trans] = {"N": "C", "C": "N"}


def reciprocal_condition(solve: Operator, n: int, dtype: Dtype, norm: float, p: float = 1) -> float:
    """**Collective.** An estimate of 1 / (norm(A) norm(A^-1)), by about five solves with A and A^H.

    Source: LAPACK xGECON, xLACN2; Higham, FORTRAN codes for estimating the one-norm, 1988.

    >>> a = np.diag([1.0, 4.0])
    >>> reciprocal_condition(lambda b, trans: np.linalg.solve(a, b), 2, a.dtype, 4.0)
    0.25
    """
    if not n:
        return 1.0
    if norm == 0:
        return 0.0
    # The inf-norm of A^-1 is the 1-norm of its adjoint
    chosen: Operator = (lambda b, trans: solve(b, _ADJOINT[trans])) if p == inf else solve
    condition = norm * estimated_one_norm(chosen, n, dtype)
    return 1 / condition if isfinite(condition) and condition > 0 else 0.0


def are_suspicious(opname: str, runtime: Runtime, pivots: tuple[int, int], dtype: Dtype) -> bool:
    """**Collective.** Whether pivots differ by 3/4 of the dtype's digits; agrees, so that peers read no more."""
    smallest, largest = runtime.end_reading(opname, pivots)
    return smallest + largest > 0.75 * np.finfo(dtype).nmant


def warn_if_small(opname: str, rcond: float, dtype: Dtype, stacklevel: int = 3) -> None:
    """Warn, outside of the call, of a reciprocal condition number below eps, which is equal on all ranks."""
    eps = np.finfo(dtype).eps
    if rcond < eps:
        warnings.warn(
            f"{opname}: A is ill-conditioned: its reciprocal condition number is {rcond:.2g}, less than eps = "
            f"{eps:.2g} of {dtype.name}, so the result may have no correct digit; check=False leaves out this check",
            errors.PblasWarning,
            stacklevel=stacklevel,
        )


def condition_of_factor(a: DistMatrix, triangles: tuple[Triangle, ...], norm: float, p: float = 1) -> float:
    """**Collective.** `reciprocal_condition` of a product of triangles of one matrix, which has the factor of A."""
    is_singular = not all(triangle.unit for triangle in triangles) and first_zero(a) > 0
    return reciprocal_condition(solver(a, triangles), a.shape[0], a.dtype, 0 if is_singular else norm, p)


def solver(a: DistMatrix, triangles: tuple[Triangle, ...], routine: Callable[..., Array] = trsv) -> Operator:
    """The inverse of a product of triangles of one matrix, in the order in which they are solved with.

    With `trmv` for the routine it is the product of the triangles, the first of which is on the right.
    """

    def solve(b: Array, trans: Trans) -> Array:
        for triangle in triangles if trans == "N" else reversed(triangles):
            op = triangle.trans if trans == "N" else _ADJOINT[triangle.trans]
            b = routine(a, b, uplo=triangle.uplo, trans=op, diag="U" if triangle.unit else "N")
        return b

    return solve


def estimated_one_norm(apply: Operator, n: int, dtype: Dtype) -> float:
    """A lower bound, which is seldom far off, of the 1-norm of an operator, n >= 1."""
    y = apply(np.full(n, 1 / n, dtype), "N")
    estimate, last = float(np.abs(y).sum()), -1
    for _ in range(_MOST_STEPS if n > 1 else 0):
        size, signs = np.abs(y)[:, None], np.ones_like(y)
        parts = [x.view(size.dtype).reshape(n, -1) for x in (y, signs)]  # a complex quotient takes 1 / size
        np.divide(parts[0], size, out=parts[1], where=size > 0)
        z = np.abs(apply(signs, "C"))
        j = int(z.argmax())
        if last >= 0 and not z[j] > z[last]:
            break
        unit = np.zeros(n, dtype)
        unit[j] = 1
        y = apply(unit, "N")
        larger = float(np.abs(y).sum())
        if not larger > estimate:
            break
        estimate, last = larger, j
    i = np.arange(n)
    slowly_growing = ((-1.0) ** i * (1 + i / max(n - 1, 1))).astype(dtype)
    return max(estimate, float(2 * np.abs(apply(slowly_growing, "N")).sum() / (3 * n)))


class SlogdetResult(NamedTuple):
    """Sign and logarithm of the absolute value of a determinant, as of numpy.linalg.slogdet."""

    sign: Number
    logabsdet: Real


_FACTORS = 512
"""Mantissas, whose sizes are from 1/2 to sqrt(2), that are multiplied before the exponent is taken out again."""


class Determinant(NamedTuple):
    """A determinant, mantissa times 2^exponent, of a matrix of a dtype (global)."""

    mantissa: np.inexact[Any]
    exponent: int
    dtype: Dtype

    @classmethod
    def of(cls, sign: int, pivots: Array) -> Determinant:
        """The product of a sign and pivots: 0 if one of them is 0; nothing overflows or underflows on the way.

        >>> Determinant.of(1, np.array([1e200, 1e200, 1e-200, 1e-200])).value
        np.float64(1.0)
        """
        x = np.append(sign, pivots)  # in 64 bits at least
        if not x.all():
            return cls(x.dtype.type(0), 0, pivots.dtype)
        exponent = 0
        while True:
            parts = x.view(np.float64).reshape(len(x), -1)  # real, or real and imaginary
            exponents = np.frexp(np.abs(parts).max(axis=1))[1]
            x = np.ldexp(parts, -exponents[:, None]).view(x.dtype)[:, 0]
            exponent += int(exponents.sum())
            if len(x) == 1:
                return cls(x[0], exponent, pivots.dtype)
            x = np.multiply.reduceat(x, np.arange(0, len(x), _FACTORS))

    @property
    def value(self) -> Number:
        """The determinant in the dtype of the matrix; inf or 0 if it is out of range."""
        return self._number(np.ldexp(self._parts, self.exponent))

    @property
    def slogdet(self) -> SlogdetResult:
        """The sign and the logarithm of the size; (0, -inf) if the determinant is 0."""
        size, parts = np.abs(self.mantissa), self._parts
        sign = parts / size if 0 < size < inf else np.sign(parts)
        logarithm = np.log(size) + self.exponent * np.log(2)
        return SlogdetResult(self._number(sign), np.zeros(0, self.dtype).real.dtype.type(logarithm))

    @property
    def _parts(self) -> Array:
        """The real part of the mantissa, and the imaginary part if it is complex."""
        return np.array([self.mantissa]).view(np.float64)

    def _number(self, parts: Array) -> Number:
        number: Number = parts.view(self.mantissa.dtype).astype(self.dtype)[0]
        return number


class Factor(FactoredMatrix, ABC):
    """A factored matrix in memory of its context. It keeps no reference to the matrix, unless that was overwritten."""

    _pivot_power: ClassVar[int] = 1  # power of the factor's diagonal that the pivots of elimination are

    def __init__(self, factored: Factored, desc: MatrixDescriptor) -> None:
        super().__init__(factored.w, desc)
        self._condition: float | None = None  # the result of `condition` for solves, after the first one (global)
        self._info = factored.info
        self._pivots = factored.pivots

    @property
    def info(self) -> int:
        """LAPACK's INFO, equal on all ranks.

        0; of LU the least k, from 1, for which U[k, k] is 0: then A is singular; of `cho_factor(check=False)` the order
        of the first leading block that is not positive definite.
        """
        if not isinstance(self._info, int):
            self._info = self._info()
        return self._info

    @abstractmethod
    def _triangles(self, trans: Trans) -> tuple[Triangle, ...]:
        """The triangular solves that give op(A)^-1 B, in order (global)."""

    def _solved(self, b: MatrixOrArray, trans: object, check: object, progress: ProgressTarget) -> MatrixOrArray:
        """**Collective.** op(A)^-1 B; see `LuFactor.solve`."""
        opname, runtime = "solve", self._runtime
        with runtime.call(opname), Progress(opname, runtime, progress) as reports:
            with runtime.local_step(opname):
                trans, check = checked_trans(opname, "trans", trans), checked_flag(opname, "check", check)
                self._order(opname)
                b, signature = arguments.checked_right(opname, b, self.shape, self.dtype, runtime)
                options = {"trans": trans, "B": signature, "check of the condition": check}
                agrees = spelled(options | self._signature)
            if self.info:  # otherwise the first step agrees on the arguments
                runtime.agree(opname + agrees, {})
            x = self.solution(opname, b, trans, reports.stage("solve"), agrees)
            if check and self._condition is None:
                suspicious = are_suspicious(opname, runtime, self.local_pivots(), self.dtype)
                self._condition = self.condition(opname) if suspicious else 1.0
        if check and self._condition is not None:
            warn_if_small(opname, self._condition, self.dtype, 4)
        return x

    def _norm_of_matrix(self) -> float:
        """**Collective.** An estimate of the 1-norm of A, by products with its factors: exchanged rows do not count."""
        from pblas.vectors.matrix_vector import trmv

        n, dtype, limits = self.shape[0], self.dtype, np.finfo(self.dtype)
        multiplied = solver(self._w, self._triangles("N")[::-1], trmv)
        size = estimated_one_norm(multiplied, n, dtype)
        if self._runtime.backend.dry is not None:
            return 1.0  # not known; the solves are counted
        if limits.smallest_normal <= size < inf:
            return size
        # Sums of elements close to the limits overflow or vanish: those of a multiple of the vectors do not
        scale = dtype.type(2.0 ** (limits.maxexp // 2 * (1 if size < 1 else -1)))
        return estimated_one_norm(lambda b, trans: multiplied(scale * b, trans), n, dtype) / float(scale.real)

    def solution(
        self, opname: str, b: MatrixOrArray, trans: Trans = "N", progress: StageReport = None, agrees: str = ""
    ) -> MatrixOrArray:
        """**Collective.** `solve` inside another call, of checked arguments."""
        self._check_invertible(opname)
        right: DistMatrix | Array = b
        if not isinstance(b, DistMatrix):
            right = np.asfortranarray(arguments.columns_of(b))
        triangles, backward = self._triangles(trans), trans != "N"
        options = self._w, right, triangles, self._pivots
        x = substituted(opname, *options, backward=backward, progress=progress, agrees=agrees)
        if isinstance(b, DistMatrix):
            return x
        return self._runtime.backend.reading(x.stored(opname)).reshape(b.shape).copy()

    def inv(self, *, progress: ProgressTarget = False) -> DistMatrix:
        """**Collective.** The inverse, a new matrix in the layout of A.

        Args:
            progress: as in `lu_factor` (global).

        Raises:
            DescriptorError: A is not square.
            SingularMatrixError: A is singular.
        """
        opname, runtime = "inv", self._runtime
        with runtime.call(opname), Progress(opname, runtime, progress) as reports:
            with runtime.local_step(opname):
                self._order(opname)
                agrees = spelled(self._signature)
            if self.info:  # otherwise the first step agrees on the arguments
                runtime.agree(opname + agrees, {})
            return self.inverse(opname, None, reports.stage("invert"), agrees)

    def inverse(
        self, opname: str, out: DistMatrix | None = None, progress: StageReport = None, agrees: str = ""
    ) -> DistMatrix:
        """**Collective.** `inv` inside another call; the inverse may go to `out`, which may be the overwritten A."""
        self._check_invertible(opname)
        options = self._w, self._desc if out is None else out.desc, self._triangles("N"), self._pivots
        return substituted(opname, *options, out=out, progress=progress, agrees=agrees)

    def condition(self, opname: str) -> float:
        """**Collective.** 1 / (norm(A) norm(A^-1)) in the 1-norm, estimated inside another call."""
        n = self.shape[0]
        size = self._norm_of_matrix() if n else 0.0
        if not 0 < size < inf:  # NaN and infinities are seen in the result
            return 1.0
        return reciprocal_condition(partial(self.solution, opname), n, self.dtype, size)

    def local_pivots(self) -> tuple[int, int]:
        """-e and f, if this rank's elements on the diagonal of the factor are 2^e to 2^f in size (local)."""
        desc, rank = self._w.desc, self._runtime.rank
        places = diagonal_places(desc, rank)
        if not len(places[0]):
            return _NO_PIVOT, _NO_PIVOT
        sizes = np.abs(self._runtime.backend.arrays.take(self._w.local, *places))
        least, most = float(sizes.min()), float(sizes.max())
        if not 0 < least <= most < inf:  # a singular matrix, or NaN and infinities, which are seen in the result
            return _NO_PIVOT, _NO_PIVOT
        return -self._pivot_power * frexp(least)[1], self._pivot_power * frexp(most)[1]

    def _order(self, opname: str) -> int:
        """The order of the matrix; DescriptorError if it is not square."""
        m, n = self.shape
        if m != n:
            raise errors.DescriptorError(f"{opname}: A is {m} x {n}; it must be square")
        self._w.stored(opname)
        return n

    def _check_invertible(self, opname: str) -> None:
        """Raise SingularMatrixError, on all ranks, if U has a zero on its diagonal."""
        if self.info:
            k = self.info
            text = (
                f"{opname}: A is singular: element {k} of the diagonal of U, counted from 1, is 0; the equations have "
                f"no unique solution"
            )
            raise agreed(SingularMatrixError(text, k))

    def _check_factored(self, opname: str) -> None:
        """Raise an error, on all ranks, if the factorization did not reach its end."""

    def _diagonal(self, opname: str) -> Array:
        """**Collective.** The diagonal of the factor of a square matrix, equal on all ranks."""
        with self._runtime.local_step(opname):
            self._order(opname)
        self._check_factored(opname)
        diagonal: Array = self._w.diagonal()
        return diagonal


class CholeskyFactor(Factor):
    """A = L L^H of a Hermitian positive definite matrix; made by `cho_factor`."""

    _pivot_power = 2  # A = L L^H

    def solve(self, b: MatrixOrArray, *, check: bool = True, progress: ProgressTarget = False) -> MatrixOrArray:
        """**Collective.** X with A X = B.

        Args:
            b: n x k matrix of the dtype of A, in any layout; or an array of n elements or n x k, equal on all ranks
                (global).
            check: as in `LuFactor.solve` (global).
            progress: as in `cholesky` (global).

        Returns:
            X, a new matrix in the layout of B; for an array an array of its shape, equal on all ranks.

        Raises:
            ArgumentError, DescriptorError, DTypeError: a wrong B; the same error on every rank.

        Warns:
            PblasWarning: as `solve`.

        Source: LAPACK xPOTRS.
        """
        return self._solved(b, "N", check, progress)

    def logdet(self) -> Real:
        """**Collective.** The logarithm of the determinant, a NumPy scalar equal on all ranks."""
        with self._runtime.call("logdet"):
            return 2 * np.log(self._diagonal("logdet").real).sum()

    def det(self) -> Real:
        """**Collective.** The determinant, a NumPy scalar equal on all ranks; inf or 0 if it is out of range."""
        with self._runtime.call("det"):
            diagonal = self._diagonal("det").real
            return Determinant.of(1, np.concatenate([diagonal, diagonal])).value.real

    def _check_factored(self, opname: str) -> None:
        """Raise NotPositiveDefiniteError, on all ranks, if `cho_factor` has not looked at INFO."""
        if self.info:
            raise agreed(not_positive_definite(opname, self.info))

    _check_invertible = _check_factored

    def _triangles(self, trans: Trans) -> tuple[Triangle, ...]:
        return Triangle("L"), Triangle("L", "C")


class LuFactor(Factor):
    """P A = L U; made by `lu_factor`."""

    @property
    def pivots(self) -> Array:
        """Row i was exchanged with row pivots[i], one after the other: min(m, n) indices from 0 (global).

        With partial pivoting the same as `piv` of scipy.linalg.lu_factor.
        """
        assert self._pivots is not None, "LU has pivots"
        return self._pivots - 1

    def lu(self) -> DistMatrix:
        """**Collective.** U, and below its diagonal L without the diagonal of ones: a new matrix in the layout of A."""
        with self._runtime.call("lu"):
            return redistributed("lu", self._w, self._desc, agrees=spelled(self._signature))

    def solve(
        self, b: MatrixOrArray, trans: Trans = "N", *, check: bool = True, progress: ProgressTarget = False
    ) -> MatrixOrArray:
        """**Collective.** X with op(A) X = B.

        Args:
            b: n x k matrix of the dtype of A, in any layout; or an array of n elements or n x k, equal on all ranks
                (global).
            trans: op: "N" for A, "T" for its transpose, "C" for its conjugate transpose (global).
            check: warn of an ill-conditioned A; as in `linalg.solve`, but only the first solve computes it (global).
            progress: as in `lu_factor` (global).

        Returns:
            X, a new matrix in the layout of B; for an array an array of its shape, equal on all ranks.

        Raises:
            ArgumentError, DescriptorError, DTypeError: a wrong argument; the same error on every rank.
            SingularMatrixError: A is singular; `info` is the first zero on the diagonal of U.

        Warns:
            PblasWarning: as `linalg.solve`.

        Source: LAPACK xGETRS.
        """
        return self._solved(b, trans, check, progress)

    def det(self) -> Number:
        """**Collective.** The determinant, a NumPy scalar equal on all ranks; inf or 0 if it is out of range."""
        with self._runtime.call("det"):
            return self.determinant("det").value

    def slogdet(self) -> SlogdetResult:
        """**Collective.** (sign, log of the absolute value) of the determinant; (0, -inf) if it is 0.

        If elements of U are infinite or NaN, which of a finite A they are if they overflow, both may be inf or NaN:
        `linalg.slogdet` scales such a matrix.
        """
        with self._runtime.call("slogdet"):
            return self.determinant("slogdet").slogdet

    def determinant(self, opname: str) -> Determinant:
        """**Collective.** The determinant inside another call."""
        diagonal = self._diagonal(opname)
        exchanges = np.count_nonzero(self.pivots != np.arange(len(self.pivots)))
        return Determinant.of(-1 if exchanges % 2 else 1, diagonal)

    def rcond(self, norm: float | Real | None = None) -> float:
        """**Collective.** An estimate of 1 / (norm(A) norm(A^-1)) in the 1-norm. It takes about five solves.

        Args:
            norm: the 1-norm of A; None for an estimate by about five products with L and U, which is too large if
                elements grew so much in the elimination that L U is not A (global).

        Returns:
            A Python number equal on all ranks, seldom above three times the true value; 0 for a singular matrix.

        Raises:
            ArgumentError: norm is not a number >= 0.
            DescriptorError: A is not square.

        Source: LAPACK xGECON, xLACN2; Higham, FORTRAN codes for estimating the one-norm, 1988.

        >>> import numpy as np, pblas
        >>> with pblas.Context() as ctx:
        ...     pblas.linalg.lu_factor(ctx.from_global(np.diag([1.0, 4.0]))).rcond()
        0.25
        """
        opname, runtime = "rcond", self._runtime
        with runtime.call(opname):
            with runtime.local_step(opname):
                n = self._order(opname)
                size = None if norm is None else abs(checked_scalar(opname, "norm", norm, self.dtype))
            runtime.agree(opname, {"norm": size, **self._signature})
            if self.info or not n:
                return 0.0 if n else 1.0
            solve: Operator = partial(self.solution, opname)
            return reciprocal_condition(solve, n, self.dtype, self._norm_of_matrix() if size is None else size)

    def _triangles(self, trans: Trans) -> tuple[Triangle, ...]:
        if trans == "N":
            return Triangle("L", unit=True), Triangle("U")
        return Triangle("U", trans), Triangle("L", trans, unit=True)

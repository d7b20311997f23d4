"""Conjugate gradients for several right-hand sides at once, each with step lengths of its own."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn

import numpy as np

from pblas import errors
from pblas.arrays.elementwise import elementwise
from pblas.backends.local_step import agreed
from pblas.core.checks import check_context, matrix_remedy, not_a_matrix
from pblas.core.linalg_errors import ConvergenceError
from pblas.core.options import MatrixOrArray
from pblas.factor.arguments import check_dtype, check_rows, check_square, checked_right, columns_of
from pblas.factor.with_factor import in_range
from pblas.matmul.api import plan_matmul
from pblas.matmul.with_arrays import replicated_matrix
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.runtime import Runtime, fail_without_context

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array, Dtype

_ITERATIONS = 10  # iterations for each row of A at most, if the caller sets no limit: SciPy's default


@dataclass(frozen=True, slots=True)
class CgArguments:
    """The checked arguments of one call: the right-hand sides are `b`, or the array `vectors` (global)."""

    a: Any
    b: DistMatrix | None
    vectors: Array | None
    tol: float
    maxiter: int
    preconditioner: object

    @classmethod
    def checked(
        cls, opname: str, runtime: Runtime, a: Any, b: Any, tol: Any, maxiter: Any, preconditioner: Any
    ) -> CgArguments:
        """The arguments of a call, after all checks of this rank (local)."""
        if isinstance(b, DistMatrix):
            matrix, vectors, n, dtype = b, None, b.shape[0], check_dtype(opname, "B", b.dtype)
            check_context(opname, b, runtime)
        else:
            assert isinstance(a, DistMatrix), "one of them is"
            matrix, n, dtype = None, a.shape[0], check_dtype(opname, "A", a.dtype)
            vectors, _ = checked_right(opname, b, a.shape, dtype, runtime)
        for name, x in (("A", a), ("preconditioner", preconditioner)):
            if isinstance(x, DistMatrix):
                _check_operator(opname, name, x, runtime, n, dtype)
            elif not callable(x) and not (x is None and name == "preconditioner"):
                raise errors.ArgumentError(
                    f"{opname}: {name.lower()} must be a DistMatrix or a function of one, got {type(x).__name__}; "
                    f"{matrix_remedy(x)}"
                )
        if not _is_number(tol) or not 0 <= tol <= sys.float_info.max:
            raise errors.ArgumentError(f"{opname}: tol must be a number of at least 0, got {tol!r}")
        if maxiter is None:
            maxiter = _ITERATIONS * n
        elif not _is_number(maxiter) or not 0 <= maxiter < np.inf or int(maxiter) != maxiter:
            raise errors.ArgumentError(f"{opname}: maxiter must be an integer of at least 0, or None, got {maxiter!r}")
        return cls(a, matrix, vectors, float(tol), int(maxiter), preconditioner)

    def agreed(self) -> dict[str, object]:
        """The arguments that must be equal on all ranks."""
        operands = {"A": self.a, "B": self.b, "preconditioner": self.preconditioner}
        return {
            **{name: x.signature() if isinstance(x, DistMatrix) else x is None for name, x in operands.items()},
            "vectors": None if self.vectors is None else self.vectors.shape,
            "tol": self.tol,
            "maxiter": self.maxiter,
        }


def check_product(opname: str, name: str, q: object, x: DistMatrix) -> DistMatrix:
    """The value of a user's function: a matrix of the shape and dtype of its argument (local)."""
    if not isinstance(q, DistMatrix):
        raise errors.ArgumentError(f"{opname}: {name} must return a DistMatrix, got {type(q).__name__}")
    check_context(opname, q, x.runtime)
    if q.shape != x.shape:
        sizes = " x ".join(map(str, q.shape))
        raise errors.DescriptorError(
            f"{opname}: {name} returned {sizes} of {x.shape[0]} x {x.shape[1]}; keep the shape"
        )
    if q.dtype != x.dtype:
        raise errors.DTypeError(f"{opname}: {name} returned {q.dtype.name} of {x.dtype.name}; keep the dtype")
    return q


def _check_operator(opname: str, name: str, x: DistMatrix, runtime: Runtime, n: int, dtype: Dtype) -> None:
    """Raise an error unless a matrix is n x n, of this context and of this dtype."""
    check_context(opname, x, runtime)
    if name == "A":
        check_square(opname, x.desc)
        check_rows(opname, x.shape, n, "rows")
    elif x.shape != (n, n):
        raise errors.DescriptorError(f"{opname}: {name} is {x.shape[0]} x {x.shape[1]}; it must be {n} x {n}, as A")
    if x.dtype != dtype:
        raise errors.DTypeError(
            f"{opname}: {name} is {x.dtype.name}, B is {dtype.name}; both must have one dtype: convert with .astype"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


_VERB = "cg"
_PROGRESS = 0.5
"""A restart must make the residual smaller by this factor; otherwise rounding errors keep it where it is."""


class CgResult(NamedTuple, Generic[MatrixOrArray]):
    """A solution by conjugate gradients, and how it was approached.

    Args:
        x: the solution, as B (global).
        residuals: norm(B - A X) / norm(B) of each column before the first iteration and after each one:
            (iterations + 1) x k, or one dimension if B is an array (global).
    """

    x: MatrixOrArray
    residuals: Array

    @property
    def iterations(self) -> int:
        """Number of iterations."""
        return len(self.residuals) - 1


def cg(
    a: DistMatrix | Callable[[DistMatrix], DistMatrix],
    b: MatrixOrArray,
    *,
    tol: float = 1e-5,
    maxiter: int | None = None,
    preconditioner: DistMatrix | Callable[[DistMatrix], DistMatrix] | None = None,
) -> CgResult[MatrixOrArray]:
    """**Collective.** X with A X = B for a Hermitian positive definite A, by conjugate gradients.

    Each column has step lengths of its own; one product with A serves all of them. Columns that have converged wait for
    the others. The residual that decides at the end is computed from X, so it is true within rounding errors.

    Args:
        a: n x n matrix of any layout; or a function that gives A P, of any layout, for an n x k matrix P with the
            layout and dtype of B, on which it may make collective calls (global).
        b: n x k matrix in any layout; or an array of n elements or n x k, equal on all ranks, if A is a matrix
            (global).
        tol: largest norm(B - A X) / norm(B) of a column (global).
        maxiter: largest number of iterations; None for 10 n, as in SciPy (global).
        preconditioner: an approximation of the inverse of A, Hermitian positive definite: a matrix, or a function as
            for A. `F.solve` of a factor is one; None for none (global).

    Returns:
        (x, residuals): the solution, a new matrix in the layout of B, or an array equal on all ranks if B is one; and
        the relative residuals of all iterations, equal on all ranks.

    Raises:
        ConvergenceError: more than `maxiter` iterations; rounding errors that keep the residual above `tol`; a matrix
            or a preconditioner that is found not to be positive definite; NaN or infinite elements. `info` is the
            number of iterations done, and `residuals` are those of the result.
        ArgumentError, DescriptorError, DTypeError: wrong arguments; the same error on every rank. 16-bit dtypes are
            refused: convert with `astype`.
        MismatchError: ranks that passed different arguments.

    Source: Hestenes, Stiefel, Methods of conjugate gradients for solving linear systems, 1952; scipy.sparse.linalg.cg.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     A = ctx.from_global(np.array([[4.0, 1.0], [1.0, 3.0]]))
    ...     x, residuals = pblas.linalg.cg(A, np.array([9.0, 5.0]), tol=1e-12)
    ...     x.round(9).tolist(), len(residuals)
    ([2.0, 1.0], 3)
    """
    runtime = next((x.runtime for x in (a, b) if isinstance(x, DistMatrix)), None)
    if runtime is None:
        name, x = ("b", b) if callable(a) else ("a", a)
        fail_without_context(_VERB, not_a_matrix(_VERB, name, x))
    with runtime.call(_VERB):
        with runtime.local_step(_VERB):
            args = CgArguments.checked(_VERB, runtime, a, b, tol, maxiter, preconditioner)
        runtime.agree(_VERB, args.agreed())
        matrix = args.b
        if matrix is None:
            assert isinstance(a, DistMatrix), "B is an array"
            assert args.vectors is not None
            matrix = replicated_matrix(_VERB, a, columns_of(args.vectors))
        with ExitStack() as stack:
            solution, residuals = _Iteration(args, matrix, stack).run()
        if args.vectors is not None:
            array: Any = runtime.backend.reading(solution.local).reshape(args.vectors.shape).copy()
            return CgResult(array, residuals[:, 0] if args.vectors.ndim == 1 else residuals)
        matrix_solution: Any = solution
        return CgResult(matrix_solution, residuals)


class _Operator:
    """P -> A P for n x k matrices with one layout: a product that is planned once, or the user's function."""

    def __init__(self, name: str, a: Any, p: DistMatrix, stack: ExitStack) -> None:
        self._name, self._a = name, a
        self._result: DistMatrix | None = None
        self._planned = None
        if isinstance(a, DistMatrix):
            self._planned = stack.enter_context(plan_matmul(a, p, out=p.desc))

    def __call__(self, p: DistMatrix) -> DistMatrix:
        """**Collective.** A P; the next call may overwrite it."""
        if self._planned is not None:
            self._result = self._planned.execute(self._a, p, out=self._result)
            return self._result
        with p.runtime.local_step(_VERB):
            return check_product(_VERB, self._name, self._a(p), p)
        raise AssertionError("an agreement with an error raises")


class _Iteration:
    """The iteration for right-hand sides of length 1, whose squares neither overflow nor underflow."""

    def __init__(self, args: CgArguments, b: DistMatrix, stack: ExitStack) -> None:
        self._tol, self._maxiter, self._b = args.tol, args.maxiter, b
        self._attainable = max(args.tol, float(np.finfo(b.dtype).eps) / 8)
        lengths = np.asarray(b.norm(axis=0))
        self._history: list[Array] = []
        self._check_finite(lengths, "B has")
        self._lengths = np.where(lengths > 0, lengths, 1).astype(lengths.dtype)
        limits = np.finfo(lengths.dtype)  # b * t / s: the quotient of a complex and a subnormal number is NaN
        exponents = np.clip(np.frexp(self._lengths)[1], limits.minexp + 4, limits.maxexp - 4)
        self._units = np.ldexp(lengths.dtype.type(1), -exponents)
        self._r = elementwise("b * t / s", b=b, t=self._units, s=self._lengths * self._units)
        self._x, self._p, self._terms = (elementwise("r * 0", r=self._r) for _ in range(3))
        a, m, scale = args.a, args.preconditioner, 1.0
        if isinstance(a, DistMatrix):
            a, scale = in_range(a)
        if isinstance(m, DistMatrix):
            m, _ = in_range(m)  # any multiple gives the same steps
        self._scale = self._lengths * scale
        self._a = _Operator("A", a, self._p, stack)
        self._m = None if m is None else _Operator("preconditioner", m, self._p, stack)

    def run(self) -> tuple[DistMatrix, Array]:
        """**Collective.** X, and the relative residuals."""
        x, p, r = self._x, self._p, self._r
        self._history.append(self._residuals())
        active, last = self._above(self._history[-1]), np.full(len(self._lengths), np.inf)
        before = np.zeros_like(last)  # r^H z of the iteration before; 0 to begin anew
        while True:
            if not active.any():
                self._restart()
                active = self._above(self._history[-1])
                if not active.any():
                    return elementwise("x * s", x=x, s=self._scale, out=x), np.array(self._history)
                self._check_progress(active, last)
                last, before = self._history[-1], np.zeros_like(last)
            if self._iterations >= self._maxiter:
                self._fail_at_limit()
            z, rz = r, self._history[-1] ** 2
            if self._m is not None:
                z = self._m(r)
                rz = self._dots(r, z)
                self._check_positive(rz, active, "r^H M r", "the preconditioner M")
            elementwise("z + p * s", z=z, p=p, s=self._ratio(rz, before, active & (before > 0)), out=p)
            q = self._a(p)
            pq = self._dots(p, q)
            self._check_positive(pq, active, "p^H A p", "A")
            steps = self._ratio(rz, pq, active)
            elementwise("x + p * s", x=x, p=p, s=steps, out=x)
            elementwise("r - q * s", r=r, q=q, s=steps, out=r)
            before = rz
            self._history.append(self._residuals())
            active &= self._history[-1] > self._attainable  # below it the recurrence says nothing about B - A X

    @property
    def _iterations(self) -> int:
        return max(0, len(self._history) - 1)

    def _residuals(self) -> Array:
        """**Collective.** The norm of each column of R."""
        norms = np.asarray(self._r.norm(axis=0), np.float64)
        self._check_finite(norms, "A, B or the preconditioner has")
        return norms

    def _above(self, residuals: Array) -> Array:
        """Whether each residual is above the tolerance."""
        above: Array = residuals > self._tol
        return above

    def _restart(self) -> None:
        """**Collective.** R = B - A X, without the rounding errors of the recurrence."""
        lengths, q = self._lengths * self._units, self._a(self._x)
        elementwise("b * t / s - q", b=self._b, q=q, t=self._units, s=lengths, out=self._r)
        self._history[-1] = self._residuals()

    def _dots(self, x: DistMatrix, y: DistMatrix) -> Array:
        """**Collective.** x^H y of each column."""
        terms = elementwise("conj(x) * y", x=x, y=y, out=self._terms)
        return np.asarray(terms.sum(axis=0).real, np.float64)

    def _ratio(self, x: Array, y: Array, where: Array) -> Array:
        """x / y where asked for, otherwise 0, in the precision of B."""
        ratio = np.divide(x, y, out=np.zeros_like(x), where=where)
        return ratio.astype(self._lengths.dtype)

    # Failures: all ranks have the same numbers, so all raise the same error

    def _check_finite(self, values: Array, what: str) -> None:
        for j in np.flatnonzero(~np.isfinite(values))[:1]:
            self._fail(
                f"the residual of column {j} is {values[j]} after {self._iterations} iterations: {what} elements that "
                f"are NaN, infinite, or too large or too small for the dtype"
            )

    def _check_positive(self, values: Array, active: Array, what: str, name: str) -> None:
        self._check_finite(np.where(active, values, 0), "A, B or the preconditioner has")
        for j in np.flatnonzero(active & (values <= 0))[:1]:
            self._fail(
                f"{what} is {values[j]:.3g} for column {j} in iteration {self._iterations + 1}, so {name} is not "
                f"positive definite; solve by linalg.solve(A, B)"
            )

    def _check_progress(self, active: Array, last: Array) -> None:
        now = self._history[-1]
        for j in np.flatnonzero(active & (now > _PROGRESS * last))[:1]:
            self._fail(
                f"rounding errors keep the relative residual of column {j} at {now[j]:.3g}, above tol={self._tol:g}; "
                f"pass a larger tol, or matrices of a wider dtype"
            )

    def _fail_at_limit(self) -> NoReturn:
        now = self._history[-1]
        j = int(now.argmax())
        self._fail(
            f"the relative residual of column {j} is {now[j]:.3g} after {self._iterations} iterations, above "
            f"tol={self._tol:g}; pass a larger maxiter, or a preconditioner"
        )

    def _fail(self, text: str) -> NoReturn:
        raise agreed(ConvergenceError(f"{_VERB}: {text}", self._iterations, np.array(self._history)))

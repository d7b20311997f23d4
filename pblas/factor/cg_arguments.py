"""Arguments of conjugate gradients, checked on one rank: the first wrong one raises."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas.core.checks import check_context, matrix_remedy
from pblas.factor.arguments import check_dtype, check_rows, check_square, checked_vector
from pblas.matrices.matrix import DistMatrix

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.runtime.runtime import Runtime

_ITERATIONS = 10
"""Iterations for each row of A at most, if the caller sets no limit: SciPy's default."""


@dataclass(frozen=True, slots=True)
class CgArguments:
    """The checked arguments of one call.

    Args:
        a: A, a matrix or a function (global).
        b: the right-hand sides; None if they are `vector` (global).
        vector: one right-hand side as an n x 1 array, equal on all ranks; None if there is a matrix (global).
        tol: largest relative residual of a column (global).
        maxiter: largest number of iterations (global).
        preconditioner: a matrix, a function or None (global).
    """

    a: Any
    b: DistMatrix | None
    vector: Array | None
    tol: float
    maxiter: int
    preconditioner: Any

    @classmethod
    def checked(
        cls, verb: str, runtime: Runtime, a: Any, b: Any, tol: Any, maxiter: Any, preconditioner: Any
    ) -> CgArguments:
        """The arguments of a call, after all checks of this rank (local)."""
        if isinstance(b, DistMatrix):
            matrix, vector, n, dtype = b, None, b.shape[0], check_dtype(verb, "B", b.dtype)
            check_context(verb, b, runtime)
        else:
            assert isinstance(a, DistMatrix), "one of them is"
            matrix, n, dtype = None, a.shape[0], check_dtype(verb, "A", a.dtype)
            vector = checked_vector(verb, b, n, dtype, runtime)
        for name, x in (("A", a), ("preconditioner", preconditioner)):
            if isinstance(x, DistMatrix):
                _check_operator(verb, name, x, runtime, n, dtype)
            elif not callable(x) and not (x is None and name == "preconditioner"):
                raise errors.ArgumentError(
                    f"{verb}: {name.lower()} must be a DistMatrix or a function of one, got {type(x).__name__}; "
                    f"{matrix_remedy(x)}"
                )
        if not _is_number(tol) or not 0 <= tol < math.inf:
            raise errors.ArgumentError(f"{verb}: tol must be a number of at least 0, got {tol!r}")
        if maxiter is None:
            maxiter = _ITERATIONS * n
        elif not _is_number(maxiter) or int(maxiter) != maxiter or maxiter < 0:
            raise errors.ArgumentError(f"{verb}: maxiter must be an integer of at least 0, or None, got {maxiter!r}")
        return cls(a, matrix, vector, float(tol), int(maxiter), preconditioner)

    def agreed(self) -> dict[str, Any]:
        """The arguments that must be equal on all ranks."""
        operands = {"A": self.a, "B": self.b, "preconditioner": self.preconditioner}
        return {
            **{name: x.signature() if isinstance(x, DistMatrix) else x is None for name, x in operands.items()},
            "vector": None if self.vector is None else self.vector.shape,
            "tol": self.tol,
            "maxiter": self.maxiter,
        }


def check_product(verb: str, name: str, q: Any, x: DistMatrix) -> DistMatrix:
    """The value of a user's function: a matrix of the shape and dtype of its argument (local)."""
    if not isinstance(q, DistMatrix):
        raise errors.ArgumentError(f"{verb}: {name} must return a DistMatrix, got {type(q).__name__}")
    check_context(verb, q, x.runtime)
    if q.shape != x.shape:
        sizes = " x ".join(map(str, q.shape))
        raise errors.DescriptorError(f"{verb}: {name} returned {sizes} of {x.shape[0]} x {x.shape[1]}; keep the shape")
    if q.dtype != x.dtype:
        raise errors.DTypeError(f"{verb}: {name} returned {q.dtype.name} of {x.dtype.name}; keep the dtype")
    return q


def _check_operator(verb: str, name: str, x: DistMatrix, runtime: Runtime, n: int, dtype: np.dtype[Any]) -> None:
    """Raise an error unless a matrix is n x n, of this context and of this dtype."""
    check_context(verb, x, runtime)
    if name == "A":
        check_square(verb, x.desc)
        check_rows(verb, x.shape[0], n, "rows")
    elif x.shape != (n, n):
        raise errors.DescriptorError(f"{verb}: {name} is {x.shape[0]} x {x.shape[1]}; it must be {n} x {n}, as A")
    if x.dtype != dtype:
        raise errors.DTypeError(
            f"{verb}: {name} is {x.dtype.name}, B is {dtype.name}; both must have one dtype: convert with .astype"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)

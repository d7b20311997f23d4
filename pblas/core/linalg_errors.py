"""Errors of factorizations and solvers: each is a `PblasError` and a `numpy.linalg.LinAlgError`.

Their `info` counts from 1, as LAPACK's INFO does, and is equal on all ranks. They are no part of `pblas.errors`, which
imports no NumPy. All ranks know `info` from an agreement, and then each of them raises the error by itself:

    raise agreed(SingularMatrixError(text, info))       # `pblas.backends.local_step.agreed`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pblas import errors

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array


class _LinAlgError(errors.PblasError, np.linalg.LinAlgError):
    """Base class of the errors of this module."""

    def __init__(self, text: str, info: int = 0) -> None:
        super().__init__(text)
        self.info = info  # LAPACK's INFO: the first index, from 1, at which the operation failed; or 0 (global)


class NotPositiveDefiniteError(_LinAlgError):
    """A matrix that is not positive definite: `info` is the order of the first leading block that is not.

    >>> NotPositiveDefiniteError("cholesky: the leading 3 x 3 block is not positive definite", 3).info
    3
    """


def not_positive_definite(opname: str, k: int) -> NotPositiveDefiniteError:
    """The error of a call that factored a matrix whose leading k x k block is not positive definite."""
    text = (
        f"{opname}: A is not positive definite: its leading {k} x {k} block is not; factor it with lu_factor, or add a "
        f"multiple of the identity"
    )
    return NotPositiveDefiniteError(text, k)


class SingularMatrixError(_LinAlgError):
    """A matrix that is exactly singular: `info` is the first diagonal element, from 1, of a triangle that is 0.

    In `lstsq` and `orth`, a matrix without full rank: the element is negligible.
    """


class ConvergenceError(_LinAlgError):
    """An iteration that did not reach its tolerance: `info` is the number of iterations done.

    Args:
        text: the message (global).
        info: the number of iterations (global).
        residuals: the relative residuals of all iterations, one row for each; None if there are none (global).
    """

    def __init__(self, text: str, info: int = 0, residuals: Array | None = None) -> None:
        super().__init__(text, info)
        self.residuals = residuals

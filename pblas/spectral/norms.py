"""matrix_norm, cond and matrix_rank: numbers that singular values or an inverse tell."""

from __future__ import annotations

import sys
from math import inf
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pblas import errors
from pblas.factor import arguments
from pblas.factor.solvers import lu_factored
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.runtime import Runtime, checked_flag, is_one_of, spelled
from pblas.spectral.eigh import Options, eigensystem
from pblas.spectral.svd_steps import singular_system

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Real
    from pblas.matrices.operators import Ord


def spectrum(opname: str, a: DistMatrix, *, hermitian: bool = False) -> Array:
    """**Collective.** The singular values of A, descending; of a Hermitian A by its eigenvalues."""
    if not hermitian:
        return singular_system(opname, a, vectors=False).s
    options = Options("L", None, None, vectors=False, algorithm="auto")
    return np.sort(np.abs(eigensystem(opname, a, options)[0]))[::-1]


def check_rank_arguments(opname: str, a: Any, runtime: Runtime, rtol: Any, hermitian: Any, name: str = "rtol") -> bool:
    """`hermitian`, after the checks of the arguments of a call that finds the rank of A (local)."""
    arguments.check_matrix(opname, "A", a, runtime)
    check_tolerance(opname, name, rtol)
    if checked_flag(opname, "hermitian", hermitian):
        arguments.check_square(opname, a.desc)
        return True
    return False


def check_tolerance(opname: str, name: str, rtol: Any) -> None:
    """Check a relative size below which singular values count as 0 (local)."""
    is_real = isinstance(rtol, int | float | np.integer | np.floating) and not isinstance(rtol, bool)
    if rtol is not None and not (is_real and 0 <= rtol <= sys.float_info.max):
        raise errors.ArgumentError(f"{opname}: {name} must be None or a number >= 0, got {rtol!r}")


def least_value(s: Array, shape: tuple[int, int], rtol: float | None) -> float:
    """The size at or below which singular values count as 0; rtol=None for eps max(m, n)."""
    relative = float(np.finfo(s.dtype).eps) * max(shape) if rtol is None else float(rtol)
    return relative * float(s.max(initial=0))


def matrix_norm(a: DistMatrix, *, ord: Ord | Literal["nuc"] = "fro") -> Real:  # noqa: A002 - the array API's name
    """**Collective.** A norm of a matrix.

    Args:
        a: m x n matrix (global).
        ord: "fro", 1, inf or "max", as `DistMatrix.norm`; 2, the largest singular value; -2, the least one; "nuc", the
            sum of all (global).

    Returns:
        A NumPy scalar, equal on all ranks.

    Raises:
        ArgumentError: another ord; NaN or infinite elements, if singular values are computed.
        ConvergenceError, BackendError, DTypeError: as `svd`, if singular values are computed.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     float(pblas.linalg.matrix_norm(ctx.from_global(np.diag([3.0, 4.0])), ord=2))
    4.0
    """
    opname, runtime = "matrix_norm", arguments.runtime_of("matrix_norm", a)
    with runtime.call(opname):
        with runtime.local_step(opname):
            arguments.check_matrix(opname, "A", a, runtime)
        runtime.agree(opname, lambda: spelled({"ord": ord, **a.signature()}))
        if not _is_spectral(ord):
            kind: Any = ord
            return a.norm(kind)
        s = spectrum(opname, a)
        size: Real = s.sum() if ord == "nuc" else s.max(initial=0) if ord == 2 else s.min(initial=inf if s.size else 0)
        return size


def _is_spectral(x: object) -> bool:
    """Whether a norm is one of singular values."""
    return x in ("nuc",) if isinstance(x, str) else isinstance(x, int | float | np.number) and x in (2, -2)


def cond(a: DistMatrix, p: float | None = None) -> Real:
    """**Collective.** The condition number of a matrix; inf if it is singular.

    Args:
        a: m x n matrix of any layout, which may be a view; with p = 1 or inf n x n. It is not changed (global).
        p: None or 2 for the largest singular value over the least one, -2 for the inverse of that; 1 or inf for
            norm(A) norm(A^-1), computed from the inverse in that norm (global).

    Returns:
        A NumPy scalar equal on all ranks; inf too if the inverse overflows, and NaN if A has a NaN.

    Raises:
        ArgumentError: another norm; infinite elements, if singular values are computed.
        BackendError, ConvergenceError, DescriptorError, DTypeError: the same error on every rank.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     float(pblas.linalg.cond(ctx.from_global(np.diag([2.0, 8.0]))))
    4.0
    """
    opname, runtime = "cond", arguments.runtime_of("cond", a)
    with runtime.call(opname):
        with runtime.local_step(opname):
            if not is_one_of(p, None, 1, 2, -2, inf):
                raise errors.ArgumentError(f"{opname}: p must be None, 1, 2, -2 or inf, got {p!r}")
            arguments.check_matrix(opname, "A", a, runtime)
        runtime.agree(opname, {"p": p})
        if p in (1, inf):
            return _by_inverse(opname, a, p)
        size = a.norm("max")
        if np.isnan(size):
            return size
        s = spectrum(opname, a)
        if not s.size:
            return s.dtype.type(0)
        large, small = (s[0], s[-1]) if p != -2 else (s[-1], s[0])
        condition: Real = large / small if small else s.dtype.type(inf)
        return condition


def _by_inverse(opname: str, a: DistMatrix, p: Any) -> Real:
    """**Collective.** norm(A) norm(A^-1) in the 1-norm or the inf-norm."""
    factor, norm = lu_factored(opname, a), a.norm(p)
    if np.isnan(norm):
        return norm
    if factor.info:
        return norm.dtype.type(inf)
    condition = norm * factor.inv().norm(p)
    # The inverse of a finite matrix has a NaN if it overflows
    return norm.dtype.type(inf) if np.isfinite(norm) and np.isnan(condition) else condition


def matrix_rank(a: DistMatrix, *, rtol: float | None = None, hermitian: bool = False) -> int:
    """**Collective.** The number of singular values above rtol times the largest.

    Args:
        a: m x n matrix of any layout, which may be a view; it is not changed (global).
        rtol: None for eps max(m, n) (global).
        hermitian: A is Hermitian: its eigenvalues are computed, which is faster, and the lower triangle is read
            (global).

    Raises:
        as `svd`.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.linalg.matrix_rank(ctx.ones((4, 3)))
    1
    """
    opname, runtime = "matrix_rank", arguments.runtime_of("matrix_rank", a)
    with runtime.call(opname):
        with runtime.local_step(opname):
            hermitian = check_rank_arguments(opname, a, runtime, rtol, hermitian)
        runtime.agree(opname, {"rtol": rtol, "hermitian": hermitian, **a.signature()})
        s = spectrum(opname, a, hermitian=hermitian)
        return int((s > least_value(s, a.shape, rtol)).sum())

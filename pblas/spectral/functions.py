"""sqrtm, invsqrtm, signm, inverse_root and expm: functions of matrices."""

from __future__ import annotations

from math import ceil, log2
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas.arrays.elementwise import elementwise
from pblas.backends.local_step import agreed
from pblas.core.checks import is_integer
from pblas.core.linalg_errors import NotPositiveDefiniteError
from pblas.factor import arguments
from pblas.factor.solvers import solve
from pblas.factor.with_factor import identity
from pblas.matmul.api import pmatmul
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.runtime import checked_flag
from pblas.spectral.eigh import Options, eigensystem
from pblas.spectral.svd_steps import finite_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array

_PADE = (
    *(64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000, 10559470521600),
    *(670442572800, 33522128640, 1323241920, 40840800, 960960, 16380, 182, 1),
)
"""Coefficients of the numerator of the [13/13] Pade approximant of exp."""
_LARGEST = {np.dtype(np.float64): 5.371920351148152, np.dtype(np.float32): 3.925724783138660}
"""1-norms up to which an approximant of degree 13, in 32 bits of degree 7, is accurate."""


def _of_hermitian(
    opname: str, a: DistMatrix, function: Callable[[Array], Array], form: dict[str, object] | None = None
) -> DistMatrix:
    """**Collective.** V f(w) V^H in the layout of A, for the eigenvalues w and eigenvectors V of a Hermitian A."""
    runtime = arguments.runtime_of(opname, a)
    with runtime.call(opname):
        with runtime.local_step(opname):
            arguments.check_matrix(opname, "A", a, runtime)
            arguments.check_square(opname, a.desc)
        runtime.agree(opname, {**(form or {}), **a.signature()})
        w, v = eigensystem(opname, a, Options("L", None, None, vectors=True, algorithm="auto"))
        assert v is not None, "with vectors"
        f = pmatmul(elementwise("x * w", x=v, w=function(w)), v.H, out=a.desc.without_lld)
        return elementwise("(x + y) / 2", x=f, y=f.H)


def _not_negative(opname: str, w: Array) -> Array:
    """Eigenvalues, those that are negative by rounding set to 0; NotPositiveDefiniteError for others (global)."""
    limit = _least_positive(w)
    if w.size and w[0] < -limit:
        count = int((w < -limit).sum())
        text = f"{opname}: A has {count} negative eigenvalues, the least is {w[0]:.3g}, so its root is not Hermitian"
        raise agreed(NotPositiveDefiniteError(text, count))
    return np.maximum(w, 0)


def not_positive(w: Array) -> int:
    """The number of eigenvalues that are not positive beyond rounding (global)."""
    return int((w <= _least_positive(w)).sum())


def _least_positive(w: Array) -> float:
    """The largest eigenvalue that may be a rounded 0 (global)."""
    return len(w) * float(np.finfo(w.dtype).eps) * float(np.abs(w).max(initial=0))


def _positive(opname: str, w: Array) -> Array:
    """Eigenvalues; NotPositiveDefiniteError unless all are positive beyond rounding (global)."""
    count = not_positive(w)
    if count:
        text = (
            f"{opname}: A is not positive definite: {count} eigenvalues are at most {_least_positive(w):.3g}; add a "
            f"multiple of the identity"
        )
        raise agreed(NotPositiveDefiniteError(text, count))
    return w


def sqrtm(a: DistMatrix) -> DistMatrix:
    """**Collective.** The Hermitian positive semidefinite X with X X = A.

    Args:
        a: n x n Hermitian positive semidefinite matrix of any layout, whose lower triangle is read (global).

    Returns:
        A new matrix in the layout of A.

    Raises:
        NotPositiveDefiniteError: A has negative eigenvalues, `info` of them.
        ArgumentError, BackendError, ConvergenceError, DescriptorError, DTypeError: as `eigh`.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.linalg.sqrtm(ctx.from_global(np.diag([4.0, 9.0]))).to_global().round(9).tolist()
    [[2.0, 0.0], [0.0, 3.0]]
    """
    return _of_hermitian("sqrtm", a, lambda w: np.sqrt(_not_negative("sqrtm", w)))


def invsqrtm(a: DistMatrix) -> DistMatrix:
    """**Collective.** The Hermitian positive definite X with X A X = I.

    Args:
        a: n x n Hermitian positive definite matrix of any layout, whose lower triangle is read (global).

    Returns:
        A new matrix in the layout of A.

    Raises:
        NotPositiveDefiniteError: `info` eigenvalues of A are not positive, or not beyond rounding.
        ArgumentError, BackendError, ConvergenceError, DescriptorError, DTypeError: as `eigh`.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.linalg.invsqrtm(4 * ctx.eye(2)).to_global(None).round(12).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    return _of_hermitian("invsqrtm", a, lambda w: 1 / np.sqrt(_positive("invsqrtm", w)))


def inverse_root(a: DistMatrix, p: int) -> DistMatrix:
    """**Collective.** A^(-1/p), the Hermitian positive definite X with X^p A = I, as the optimizer Shampoo takes.

    Args:
        a: as in `invsqrtm` (global).
        p: the root, an integer >= 1 (global).

    Returns:
        A new matrix in the layout of A.

    Raises:
        as `invsqrtm`.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.linalg.inverse_root(ctx.from_global(np.diag([16.0, 81.0])), 4).to_global().round(4).tolist()
    [[0.5, 0.0], [0.0, 0.3333]]
    """
    opname, runtime = "inverse_root", arguments.runtime_of("inverse_root", a)
    with runtime.call(opname):
        with runtime.local_step(opname):
            if not is_integer(p, 1):
                raise errors.ArgumentError(f"{opname}: p must be an integer >= 1, got {p!r}")
        return _of_hermitian(opname, a, lambda w: _positive(opname, w) ** w.dtype.type(-1 / p), {"p": int(p)})


def signm(a: DistMatrix) -> DistMatrix:
    """**Collective.** V sign(w) V^H, for the eigenvalues w and eigenvectors V of A.

    Args:
        a: n x n Hermitian matrix of any layout, whose lower triangle is read (global).

    Returns:
        A new matrix in the layout of A. The sign of an eigenvalue 0 is 0.

    Raises:
        ArgumentError, BackendError, ConvergenceError, DescriptorError, DTypeError: as `eigh`.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     A = ctx.from_global(np.array([[0.0, 3.0], [3.0, 0.0]]))
    ...     pblas.linalg.signm(A).to_global(None).round(12).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    return _of_hermitian("signm", a, np.sign)


def expm(a: DistMatrix, *, hermitian: bool = False) -> DistMatrix:
    """**Collective.** The exponential of a square matrix.

    Args:
        a: n x n matrix of any layout, which may be a view; it is not changed (global).
        hermitian: A is Hermitian: its eigenvalues and eigenvectors are computed, and the lower triangle is read.
            Otherwise the exponential is a Pade approximant of A / 2^s, squared s times (global).

    Returns:
        A new matrix in the layout of A.

    Raises:
        ArgumentError: a wrong argument; NaN or infinite elements.
        BackendError, ConvergenceError, DescriptorError, DTypeError: as `eigh` and `solve`.

    Source: N. J. Higham, The scaling and squaring method for the matrix exponential revisited, 2005; scipy.linalg.expm.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.linalg.expm(ctx.from_global(np.array([[0.0, 1.0], [0.0, 0.0]]))).to_global().round(9).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    opname, runtime = "expm", arguments.runtime_of("expm", a)
    with runtime.call(opname):
        with runtime.local_step(opname):
            arguments.check_matrix(opname, "A", a, runtime)
            arguments.check_square(opname, a.desc)
            hermitian = checked_flag(opname, "hermitian", hermitian)
        runtime.agree(opname, {"hermitian": hermitian, **a.signature()})
        finite_size(opname, a)
        if hermitian:
            return _of_hermitian(opname, a, np.exp)
        size = float(a.norm(1))
        most = _LARGEST[np.zeros(0, a.dtype).real.dtype]
        squarings = max(0, ceil(log2(size / most))) if size > most else 0
        x = _pade(opname, elementwise("x * s", x=a, s=2.0**-squarings))
        for _ in range(squarings):
            x = pmatmul(x, x)
        return x


def _pade(opname: str, a: DistMatrix) -> DistMatrix:
    """**Collective.** The [13/13] Pade approximant (V - U)^-1 (V + U) of exp(A)."""
    b: Any = _PADE
    one = identity(opname, a.desc.without_lld, a)
    a2 = pmatmul(a, a)
    a4 = pmatmul(a2, a2)
    a6 = pmatmul(a4, a2)

    def combined(first: int, constant: float) -> DistMatrix:
        """b[first + 6] A^6 + b[first + 4] A^4 + b[first + 2] A^2 + constant I."""
        r, s, t = (float(b[first + k]) for k in (6, 4, 2))
        u = float(constant)
        return elementwise("r * x + s * y + t * z + u * w", x=a6, y=a4, z=a2, w=one, r=r, s=s, t=t, u=u)

    # U := A (A^6 (b13 A^6 + b11 A^4 + b9 A^2) + b7 A^6 + b5 A^4 + b3 A^2 + b1 I), V with the even coefficients
    u = pmatmul(a, pmatmul(a6, combined(7, 0), combined(1, b[1]), beta=1))
    v = pmatmul(a6, combined(6, 0), combined(0, b[0]), beta=1)
    x = solve(elementwise("x - y", x=v, y=u), elementwise("x + y", x=v, y=u), overwrite_a=True, check=False)
    assert isinstance(x, DistMatrix), "of a matrix"
    return x

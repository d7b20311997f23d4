"""rsvd: the leading singular values and vectors, from products with random vectors."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pblas import errors
from pblas.arrays.elementwise import elementwise
from pblas.core.checks import is_integer
from pblas.factor import arguments
from pblas.factor.qr_matrices import qr
from pblas.factor.with_factor import empty
from pblas.layouts.descriptor import resized
from pblas.matmul.api import pmatmul
from pblas.matrices.matrix import DistMatrix
from pblas.matrices.scatter_gather import global_indices
from pblas.spectral.svd_steps import finite_size, singular_system

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array


class RsvdResult(NamedTuple):
    """U, S and Vh with A ~ U diag(S) Vh, and how far they are from A.

    Args:
        U: m x k with orthonormal columns (global).
        S: k real numbers, descending, equal on all ranks (global).
        Vh: k x n with orthonormal rows (global).
        residual: norm(A - U diag(S) Vh) / norm(A) in the Frobenius norm (global).
    """

    U: DistMatrix
    S: Array
    Vh: DistMatrix
    residual: float


def rsvd(a: DistMatrix, k: int, *, oversample: int = 10, power: int = 2, seed: int = 0) -> RsvdResult:
    """**Collective.** An approximation of rank k: the k leading singular values and vectors, by products and QR.

    A is multiplied with k + oversample random vectors, and `power` times with A^H and A, each time after a QR
    factorization. The singular vectors are those of A in the space that the products span. The error is close to that
    of the best approximation if the singular values decay; `residual` tells.

    Args:
        a: m x n matrix of any layout, which may be a view; it is not changed (global).
        k: number of singular values, 1 <= k <= min(m, n) (global).
        oversample: number of further random vectors, >= 0 (global).
        power: number of further products with A^H and A, >= 0; more of them for values that decay slowly (global).
        seed: seed of the random vectors, an integer (global).

    Returns:
        U, S, Vh and the residual; U and Vh are on the grid of A, and signs are as of `svd`.

    Raises:
        as `svd`.

    Source: Halko, Martinsson, Tropp, Finding structure with randomness, 2011, algorithms 4.4 and 5.1.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     result = pblas.linalg.rsvd(ctx.from_global(np.diag([4.0, 3.0, 0.0, 0.0])), 1)
    ...     result.S.round(6).tolist(), round(result.residual, 6)
    ([4.0], 0.6)
    """
    opname, runtime = "rsvd", arguments.runtime_of("rsvd", a)
    with runtime.call(opname):
        with runtime.local_step(opname):
            arguments.check_matrix(opname, "A", a, runtime)
            check_counts(opname, a.shape, k, oversample, power, seed)
        counts = {"k": k, "oversample": oversample, "power": power, "seed": int(seed)}
        runtime.agree(opname, {**counts, **a.signature()})
        finite_size(opname, a)
        (m, n), l = a.shape, min(k + oversample, *a.shape)
        # Q spans A Omega, then A (A^H Q)
        long, short = resized(a.desc, (m, l)), resized(a.desc, (n, l))
        q = qr(pmatmul(a, _normal(opname, a, (n, l), int(seed)), out=long)).Q
        for _ in range(power):
            q = qr(pmatmul(a, qr(pmatmul(a.H, q, out=short)).Q, out=long)).Q
        # A ~ Q (Q^H A), Q^H A = U diag(S) Vh
        system = singular_system(opname, pmatmul(q.H, a, out=resized(a.desc, (l, n))))
        assert system.u is not None and system.vh is not None, "with vectors"  # noqa: PT018
        s, vh = system.s[:k], system.vh[:k].copy()
        u = pmatmul(q, system.u[:, :k], out=resized(a.desc, (m, k)))
        return RsvdResult(u, s, vh, _residual(a, u, s, vh))


def check_counts(opname: str, shape: tuple[int, int], k: Any, oversample: Any, power: Any, seed: Any) -> None:
    """Check the arguments that are integers (local)."""
    if not is_integer(k, 1) or k > min(shape):
        raise errors.ArgumentError(f"{opname}: k must be an integer from 1 to min(m, n) = {min(shape)}, got {k!r}")
    for name, value in (("oversample", oversample), ("power", power)):
        if not is_integer(value, 0):
            raise errors.ArgumentError(f"{opname}: {name} must be an integer >= 0, got {value!r}")
    if not isinstance(seed, int | np.integer):
        raise errors.ArgumentError(f"{opname}: seed must be an integer, got {seed!r}")


def _normal(opname: str, a: DistMatrix, shape: tuple[int, int], seed: int) -> DistMatrix:
    """**Collective.** A matrix of normal numbers that depend on their place and the seed only, on the grid of A."""
    x = empty(resized(a.desc, shape), a)
    with a.runtime.agreed_step(opname, "random vectors"):
        local = x.stored(opname)
        if local.size:
            a.runtime.backend.arrays.randomize(local, *global_indices(x.desc, a.runtime.rank), seed, normal=True)
    return x


def _residual(a: DistMatrix, u: DistMatrix, s: Array, vh: DistMatrix) -> float:
    """**Collective.** norm(A - U diag(S) Vh) / norm(A): by the norms, unless digits cancel."""
    size = float(a.norm())
    if not size:
        return 0.0
    square = 1 - float(((s.astype(np.float64) / size) ** 2).sum())
    if square >= sqrt(float(np.finfo(s.dtype).eps)):
        return sqrt(square)
    product = pmatmul(elementwise("x * s", x=u, s=s), vh, out=a.desc.without_lld)
    return float(elementwise("x - y", x=a, y=product, out=product).norm()) / size

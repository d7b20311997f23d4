"""Updates of a matrix by products of vectors: ger, geru, gerc, syr, her, syr2, her2. Only vectors move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas.core.checks import check_not_conjugated
from pblas.execute.matrix_vector import LocalUpdate, update
from pblas.layouts.triangle import Part
from pblas.matrices.matrix import DistMatrix
from pblas.operations.matrix_vector import check_writeable, checked_matrix, checked_uplo, real_of
from pblas.operations.vectors import all_on_all_ranks, check_size, checked_vector, runtime_of
from pblas.runtime.runtime import checked_scalar

if TYPE_CHECKING:
    from pblas.backends.dtypes import Real, Scalar


def geru(x: Any, y: Any, a: DistMatrix, *, alpha: Scalar = 1.0) -> DistMatrix:
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


def gerc(x: Any, y: Any, a: DistMatrix, *, alpha: Scalar = 1.0) -> DistMatrix:
    """**Collective.** A := alpha x y^H + A, in place; see `geru`."""
    return _update("gerc", (x, y), a, alpha, None)


def ger(x: Any, y: Any, a: DistMatrix, *, alpha: Scalar = 1.0) -> DistMatrix:
    """**Collective.** A := alpha x y^T + A for real matrices, in place; see `geru`.

    Raises:
        DTypeError: complex matrices.
    """
    return _update("ger", (x, y), a, alpha, None)


def syr(x: Any, a: DistMatrix, *, uplo: str = "L", alpha: Scalar = 1.0) -> DistMatrix:
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
    """
    return _update("syr", (x,), a, alpha, uplo)


def her(x: Any, a: DistMatrix, *, uplo: str = "L", alpha: float | Real = 1.0) -> DistMatrix:
    """**Collective.** A := alpha x x^H + A in one triangle of a Hermitian A, in place; see `syr`.

    Alpha is real. Imaginary parts of the diagonal are not read, and become 0.

    Source: BLAS, xHER.
    """
    return _update("her", (x,), a, alpha, uplo)


def syr2(x: Any, y: Any, a: DistMatrix, *, uplo: str = "L", alpha: Scalar = 1.0) -> DistMatrix:
    """**Collective.** A := alpha x y^T + alpha y x^T + A in one triangle, in place; see `syr`.

    Source: BLAS, xSYR2.
    """
    return _update("syr2", (x, y), a, alpha, uplo)


def her2(x: Any, y: Any, a: DistMatrix, *, uplo: str = "L", alpha: Scalar = 1.0) -> DistMatrix:
    """**Collective.** A := alpha x y^H + conj(alpha) y x^H + A in one triangle of a Hermitian A, in place; see `syr`.

    Imaginary parts of the diagonal are not read, and become 0.

    Source: BLAS, xHER2.
    """
    return _update("her2", (x, y), a, alpha, uplo)


def _update(verb: str, given: tuple[Any, ...], matrix: Any, scalar: Any, uplo: Any) -> DistMatrix:
    """**Collective.** The update of a call; its vectors are x, or x and y."""
    names = dict(zip("xy", given, strict=False))
    runtime = runtime_of(verb, {"a": matrix, **names})
    is_general, is_hermitian = verb.startswith("ge"), verb.startswith("he")
    with runtime.call(verb):
        with runtime.local_step(verb):
            a = checked_matrix(verb, matrix, runtime, square=not is_general)
            part: Part = "all" if is_general else checked_uplo(verb, uplo)
            if a.dtype.itemsize <= 2:
                raise errors.DTypeError(f"{verb}: A is {a.dtype.name}; use pblas.elementwise, or .astype('float32')")
            if verb == "ger" and a.dtype.kind == "c":
                raise errors.DTypeError(f"ger: A is {a.dtype.name}; use geru (transposed) or gerc (conjugated y)")
            check_not_conjugated(verb, "A", a)
            check_writeable(verb, "A", a)
            vectors = [checked_vector(verb, name, value, runtime, a.dtype) for name, value in names.items()]
            for name, vector, size in zip(names, vectors, a.shape, strict=False):
                check_size(verb, name, vector, size, f"A is {a.shape[0]} x {a.shape[1]} and takes")
            alpha = checked_scalar(verb, "alpha", scalar, real_of(a.dtype) if verb == "her" else a.dtype)
        described = {name: vector.described() for name, vector in zip(names, vectors, strict=True)}
        call_args = {**described, "alpha": alpha, "part": part, **a.signature()}
        if alpha == 0 or 0 in a.shape:
            runtime.agree(verb, call_args)
            return a
        elements = all_on_all_ranks(runtime, verb, call_args, vectors)
        with runtime.local_step(verb), np.errstate(all="ignore"):
            left, right = _factors(verb, alpha, elements)
            key = "update", a.desc, part
            local: LocalUpdate = runtime.prepared.get(key, lambda: LocalUpdate(a.desc, part, runtime.rank))
            update(local, runtime.backend, a.computed(verb), left, right, hermitian=is_hermitian)
        runtime.agree(f"{verb}: update", {})
    return a


def _factors(verb: str, alpha: Any, elements: list[Any]) -> tuple[Any, Any]:
    """X (m x k) and Y (k x n) whose product is added."""
    x, y = elements[0], elements[-1]
    dtype = x.dtype
    factor, opposite = dtype.type(alpha), dtype.type(np.conj(alpha))
    right = [np.conj(v) if verb in ("gerc", "her", "her2") else v for v in (y, x)]
    if verb in ("syr2", "her2"):
        second = opposite if verb == "her2" else factor
        return np.stack([factor * x, second * y], axis=1), np.stack(right)
    return (factor * x)[:, None], right[0][None, :]

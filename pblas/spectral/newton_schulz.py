"""newton_schulz: an approximate polar factor by products alone, as the optimizer Muon takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas.arrays.elementwise import elementwise
from pblas.core.checks import check_matrix, is_integer
from pblas.factor import arguments
from pblas.factor.with_factor import empty
from pblas.matmul.api import pmatmul
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistributed
from pblas.spectral.generalized import completed
from pblas.symmetric.api import hemm, herk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pblas.backends.device import Device
    from pblas.backends.dtypes import Array

MUON = (3.4445, -4.7750, 2.0315)
"""Weights that bring singular values between 0.01 and 1 into about 0.7 to 1.2 in five steps."""


def newton_schulz(
    x: DistMatrix, *, steps: int = 5, coefficients: Sequence[float] | Sequence[Sequence[float]] = MUON
) -> DistMatrix:
    """**Collective.** X := X / norm(X), then X := a X + (b G + c G^2) X with G = X X^H, several times.

    Each step takes each singular value x of X to a x + b x^3 + c x^5. With (1.5, -0.5, 0) they converge to 1, slowly if
    they are small. G and its square are symmetric: on CPUs 4 n^3 operations for a square matrix in place of 6 n^3.

    Args:
        x: m x n matrix of any layout, also of float16 or bfloat16, which may be a view; it is not changed (global).
        steps: number of steps, >= 0 (global).
        coefficients: (a, b, c) of all steps, or `steps` of these, one for each (global).

    Returns:
        A new matrix in the layout of X.

    Raises:
        ArgumentError: wrong arguments.

    Source: K. Jordan et al., Muon: an optimizer for hidden layers in neural networks, 2024; N. J. Higham, Functions of
        Matrices, 2008, section 8.3.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     x = ctx.from_global(np.diag([3.0, -4.0]))
    ...     pblas.linalg.newton_schulz(x, steps=10, coefficients=(1.5, -0.5, 0)).to_global().round(3).tolist()
    [[1.0, 0.0], [0.0, -1.0]]
    """
    opname, runtime = "newton_schulz", arguments.runtime_of("newton_schulz", x)
    with runtime.call(opname):
        with runtime.local_step(opname):
            check_matrix(opname, "x", x, runtime)
            weights = checked_weights(opname, steps, coefficients)
        runtime.agree(opname, {"steps": int(steps), "coefficients": weights, **x.signature()})
        return iterated(opname, x, weights)


def iterated(opname: str, x: DistMatrix, weights: list[tuple[float, ...]]) -> DistMatrix:
    """**Collective.** The steps, one for each (a, b, c)."""
    size, backend = float(x.norm()), x.runtime.backend
    y = elementwise("x / s", x=x, s=size) if size else x.copy()
    if backend.size == 1 and backend.dry is None:
        result = empty(y.desc, y)
        with x.runtime.local_step(opname):
            backend.arrays.begin()
            is_other = iterated_alone(backend.arrays, y.stored(opname), result.stored(opname), weights)
        return result if is_other else y
    is_tall = x.shape[0] > x.shape[1]
    if is_tall:
        y = redistributed(opname, y, x.desc.without_lld.T, trans="C")
    other: Any = None
    for a, b, c in weights:
        # G := X X^H, W := b G + c G^2, X := a X + W X
        if backend.gpus:  # whole products take less time than the completion of triangles
            g = pmatmul(y, y.H)
            w = pmatmul(g, g, g, alpha=c, beta=b) if c else elementwise("s * x", x=g, s=b)
            y, other = pmatmul(w, y, y, beta=a, out=y.desc if other is None else other), y
            continue
        g = herk(y)
        w = herk(completed(opname, g, "L"), g, alpha=c, beta=b, out=g) if c else elementwise("s * x", x=g, s=b)
        y, other = hemm(w, y, y, beta=a, out=y.desc if other is None else other), y
    return redistributed(opname, y, x.desc.without_lld, trans="C") if is_tall else y


def iterated_alone(arrays: Device, x: Array, y: Array, weights: list[tuple[float, ...]]) -> bool:
    """The steps of a matrix that one rank has, in the memory of X and Y by turns; whether Y has the result (local)."""
    (x, y), dtype = ((x, y) if x.shape[0] <= x.shape[1] else (x.T, y.T)), x.dtype
    m = len(x)
    g, w = (arrays.array(arrays.empty(m * m * dtype.itemsize), (m, m), dtype) for _ in range(2))
    for a, b, c in weights if x.size else ():
        # G := X X^H, W := b G + c G^2, X := a X + W X
        arrays.multiply_add(1, x, None, 0, None, g)
        if c:
            arrays.multiply_add(c, g, None, b, g, w)
        arrays.multiply_add(1 if c else b, w if c else g, x, a, x, y)
        x, y = y, x
    arrays.synchronize()
    return len(weights) % 2 == 1


def checked_weights(opname: str, steps: Any, coefficients: Any) -> list[tuple[float, ...]]:
    """Three weights for each step; ArgumentError for other values."""
    if not is_integer(steps, 0):
        raise errors.ArgumentError(f"{opname}: steps must be an integer >= 0, got {steps!r}")
    try:
        array = np.asarray(coefficients, np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.shape == (3,):
        array = np.tile(array, (steps, 1))
    if array.shape != (steps, 3) or not np.isfinite(array).all():
        raise errors.ArgumentError(
            f"{opname}: coefficients must be three finite numbers, or {steps} times three, got {coefficients!r}"
        )
    return [tuple(row) for row in array.tolist()]

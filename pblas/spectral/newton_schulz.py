"""newton_schulz: an approximate polar factor by products alone, as the optimizer Muon takes."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas.arrays.elementwise import elementwise
from pblas.backends.dtypes import BFLOAT16, FLOAT16, FLOAT32, Array, accumulator_dtype
from pblas.core.checks import check_matrix, is_integer
from pblas.epilogues import parse
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

MUON = (3.4445, -4.7750, 2.0315)
"""Weights that bring singular values between 0.01 and 1 into about 0.7 to 1.2 in five steps."""
_MOST_STEPS, _MOST_GROWTH = 3, 150
"""Most steps of a segment, and most growth of the rounding errors of its G. Three and two steps of `MUON` in 16 bits
have 0.7 to 2.2 times the error of single steps in the same dtype (512 x 1792 and 1024 x 2560, seven spectra; 8 times
for 48 x 150), two and three up to 3.6 times, one and four up to 12 times."""
_MOST_FACTOR = 40
"""Most values of X and P in float16: the product of three P is at most 64000."""
_MOST_GROWN = 1 << 16
"""Most growth of small elements in float16: those that it rounds to 0, of 2^-25 at most, would become 2^-9."""
_SCALED, _SHIFTED = parse("s * x"), parse("x + s")


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
    backend = x.runtime.backend
    if backend.size == 1 and backend.dry is None:
        x = x.copy() if x.conjugated else x
        result = empty(x.desc.without_lld, x)
        with x.runtime.local_step(opname):
            backend.arrays.begin()
            iterated_alone(backend.arrays, x.stored(opname), result.stored(opname), weights)
            backend.arrays.synchronize()
        return result
    size, limits = float(x.norm()), np.finfo(accumulator_dtype(x.dtype))
    if size and not limits.smallest_normal <= size <= limits.max:  # its elements may be numbers all the same
        x = elementwise("x * s", x=x, s=2.0 ** (limits.maxexp // 2 * (-1 if size > 1 else 1)))
        size = float(x.norm())
    y = elementwise("x / s", x=x, s=size) if size else x.copy()
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


def segments(m: int, n: int, weights: Sequence[Sequence[float]], *, halves: bool) -> tuple[int, ...]:
    """Numbers of consecutive steps whose polynomials of G are multiplied before X, of which n >= m.

    Each step multiplies the rounding errors of the G before it by a^2, so few steps share a G that is not X X^H.
    `halves`: the product of two matrices that commute takes half of the operations, as X X^H does anywhere.

    >>> steps = [MUON] * 5
    >>> [segments(4, n, steps, halves=halves) for n, halves in ((4, True), (6, True), (6, False), (12, False))]
    [(1, 1, 1, 1, 1), (3, 2), (1, 1, 1, 1, 1), (3, 2)]
    """
    lengths, growth, before = list[int](), 1.0, 0.0
    for a, *_ in weights:
        growth *= before**2
        if lengths and lengths[-1] < _MOST_STEPS and growth <= _MOST_GROWTH:
            lengths[-1] += 1
        else:
            lengths.append(1)
            growth = 1.0
        before = max(1.0, abs(a))
    half = 1 if halves else 2

    def work(lengths: Sequence[int]) -> int:
        return sum(3 * m * m * n + (length + 3 * half * (length - 1)) * m**3 for length in lengths)

    return min((1,) * len(weights), tuple(lengths), key=work)


def workspace(arrays: Device, shapes: Sequence[tuple[int, int]], itemsize: int) -> list[Array]:
    """Memory for `iterated_alone` of matrices of these shapes: four squares, and a matrix (local)."""
    square = max((min(shape) ** 2 for shape in shapes), default=0)
    whole = max((m * n for m, n in shapes), default=0)
    return [arrays.empty(count * itemsize) for count in (*[square] * 4, whole)]


def iterated_alone(
    arrays: Device, x: Array, out: Array, weights: list[tuple[float, ...]], memory: list[Array] | None = None
) -> None:
    """OUT := the steps of X / norm(X), for a matrix that one rank has; OUT may be X. It is launched only (local).

    A matrix of bfloat16 is iterated in float16: a norm of 1 needs little range, and rounding errors are an eighth. A
    segment of several steps computes Q := P_k ... P_1 with P := a I + b G + c G^2, and G := P G P, which
    commute with each other; then X := Q X.

    Source: J. Zhang, N. Amsel, B. Chen, T. Dao, Gram Newton-Schulz, dao-lab.ai, 2026.
    """
    if not x.size:
        return
    dtype = FLOAT16 if x.dtype == BFLOAT16 and _fit_float16(weights) else x.dtype
    *squares, whole = memory or workspace(arrays, [x.shape], dtype.itemsize)
    m, n = sorted(x.shape)
    lengths = segments(m, n, weights, halves=arrays.traits.gpu)
    y = arrays.array(whole, out.shape, dtype, "F" if abs(out.strides[0]) < abs(out.strides[1]) else "C")
    source, target = y, out.view(dtype)
    if dtype == x.dtype and len(lengths) % 2 == 0:  # so that the last step is to OUT
        source, target = target, source
    arrays.normalize(x, source)
    if x.shape[0] > x.shape[1]:
        source, target, out = source.T, target.T, out.T
    g, *others = (arrays.array(square, (m, m), dtype) for square in squares)
    steps = iter(weights)
    for length in lengths:
        # G := X X^H, then X := a X + W X, or X := Q X
        arrays.multiply_add(1, source, None, 0, None, g)
        factor, a = _factor(arrays, g, others, list(islice(steps, length)))
        arrays.multiply_add(1, factor, source, a, source if a else None, target)
        source, target = target, source
    if dtype != x.dtype:
        arrays.evaluate(_SCALED, {"x": source, "s": 1.0}, FLOAT32, out)


def _factor(arrays: Device, g: Array, others: Sequence[Array], weights: list[tuple[float, ...]]) -> tuple[Array, float]:
    """The matrix F and the number a of a segment of steps, X := F X + a X; F is one of three other squares (local)."""
    (w, q, t), total, last = others, accumulator_dtype(g.dtype), len(weights) - 1
    for step, (a, b, c) in enumerate(weights):
        # W := b G + c G^2
        if c:
            arrays.multiply_add(c, g, None, b, g, w)
        else:
            arrays.evaluate(_SCALED, {"x": g, "s": b}, total, w)
        if not last:
            return w, a
        if step:
            # Q := a Q + Q W
            arrays.multiply_add(1, q, w, a, q, t, symmetric=True)
            q, t = t, q
        if step < last:
            # G := (a I + W) G (a I + W)
            arrays.multiply_add(1, w, g, a, g, t, symmetric=True)
            arrays.multiply_add(1, w, t, a, t, g, symmetric=True)
        if not step:
            # Q := a I + W
            q, w = w, q
            diagonal = q.T.reshape(-1)[:: len(q) + 1, None]
            arrays.evaluate(_SHIFTED, {"x": diagonal, "s": a}, total, diagonal)
    return q, 0.0


def _fit_float16(weights: Sequence[Sequence[float]]) -> bool:
    """Whether float16 has the range of X, whose norm was 1, and of Q, with more bits than bfloat16 (global)."""
    x, growth = np.linspace(0, 1, 1000), 1.0
    for a, b, c in weights:
        growth *= max(1.0, abs(a))
        p = a + b * x**2 + c * x**4
        x = p * x
        if not max(np.abs(p).max(), np.abs(x).max()) <= _MOST_FACTOR:
            return False
    return growth <= _MOST_GROWN


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

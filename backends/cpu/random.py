"""Random numbers that depend on their place in the matrix, a seed and the dtype only.

Every operation is exact or rounded once, by IEEE 754, so that GPUs compute the same bits (backends/cuda/random.cu).
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from pblas.backends.dtypes import Array, Dtype

GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_ELEMENTS = 1 << 15  # computed at a time, so that they stay in cache
_CENTRAL = 0.425
"""Distance from 1/2 up to which a probability belongs to the centre of the normal distribution."""

# Numerators and denominators of Wichura's rational approximations: the centre, up to 5 and beyond 5 square roots of
# the logarithm; the highest power first.
# fmt: off
CENTRE = (
    (2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
     1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0),
    (5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
     5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0),
)
MIDDLE = (
    (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0,
     3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
     6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0),
)
FAR = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
     2.96560571828504891230e-1, 1.78482653991729133580e0, 5.46378491116411436990e0, 6.65790464350110377720e0),
    (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
     1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0),
)
# fmt: on
SERIES = tuple(1.0 / (2 * k + 1) for k in range(11, -1, -1))
"""Coefficients of artanh(s) / s as a polynomial in s^2, the highest power first."""


def fill(x: Array, rows: Array, columns: Array, seed: int, *, normal: bool) -> None:
    """X := the random numbers at global rows and columns; X may be of any strides."""
    if not x.size:
        return
    if x.strides[0] > x.strides[1]:  # walk along memory
        width = max(1, _ELEMENTS // len(columns))
        for start in range(0, len(rows), width):
            part = slice(start, start + width)
            x[part] = entries(rows[part, None], columns[None], seed, x.dtype, normal=normal)
        return
    width = max(1, _ELEMENTS // len(rows))
    for start in range(0, len(columns), width):
        part = slice(start, start + width)
        x[:, part] = entries(rows[:, None], columns[None, part], seed, x.dtype, normal=normal)


def entries(i: Array, j: Array, seed: int, dtype: Dtype, *, normal: bool = False) -> Array:
    """The random numbers at global indices: uniform in [-1, 1), or normal.

    >>> a = entries(np.arange(3)[:, None], np.arange(4)[None], 7, np.dtype("float64"))
    >>> bool(np.all(a[1:] == entries(np.arange(1, 3)[:, None], np.arange(4)[None], 7, np.dtype("float64"))))
    True
    """
    with np.errstate(over="ignore"):
        row = _mixed(i.astype(np.uint64) * np.uint64(GOLDEN) + np.uint64(start_of(seed)))
        bits = _mixed(row + (j.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN))
        numbers = _normal if normal else _uniform
        if dtype.kind != "c":
            return numbers(bits, dtype)
        z = np.empty(bits.shape, dtype)
        z.real, z.imag = numbers(bits, z.real.dtype), numbers(_mixed(bits + np.uint64(GOLDEN)), z.real.dtype)
        return z


def start_of(seed: int) -> int:
    """64 bits that depend on all bits of a seed.

    >>> hex(start_of(0)), start_of(-1) == start_of(2**64 - 1)
    ('0xe220a8397b1dcdaf', True)
    """
    with np.errstate(over="ignore"):
        return int(_mixed(np.array([(seed * GOLDEN + GOLDEN) & _MASK], np.uint64))[0])


def _mixed(x: Array) -> Array:
    """A bijection of 64-bit integers in which every input bit influences every output bit.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, with the constants of
    Stafford's variant 13.
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def largest_uniform(dtype: Dtype) -> float:
    """The largest number of a dtype below 1, to which a number is not rounded up: it would leave the interval."""
    return 1.0 - 2.0 ** -(ml_dtypes.finfo(dtype).nmant + 1)  # type: ignore[no-untyped-call]


def _uniform(bits: Array, dtype: Dtype) -> Array:
    x = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0
    return rounded(np.minimum(x, largest_uniform(dtype)), dtype)


def rounded(x: Array, dtype: Dtype) -> Array:
    """Float64 numbers in a dtype; a shorter one than float32 is rounded from float32, as by ml_dtypes."""
    return (x if dtype.itemsize >= 4 else x.astype(np.float32)).astype(dtype)


def _normal(bits: Array, dtype: Dtype) -> Array:
    """The quantile of the normal distribution at a probability of 52 random bits.

    Source: Wichura, "Algorithm AS 241: The percentage points of the normal distribution", Applied Statistics 37, 1988.
    """
    p = ((bits >> np.uint64(12)) * np.uint64(2) + np.uint64(1)).astype(np.float64) * 2.0**-53
    q = p - 0.5
    x = _ratio(CENTRE, _CENTRAL * _CENTRAL - q * q) * q
    outside = np.abs(q) > _CENTRAL
    r = np.sqrt(-_logarithm(np.minimum(p[outside], 1.0 - p[outside])))
    tail = np.where(r <= 5.0, _ratio(MIDDLE, r - 1.6), _ratio(FAR, r - 5.0))
    x[outside] = np.copysign(tail, q[outside])
    return rounded(x, dtype)


def _ratio(polynomials: tuple[tuple[float, ...], tuple[float, ...]], r: Array) -> Array:
    numerator, denominator = (_polynomial(coefficients, r) for coefficients in polynomials)
    numerator /= denominator
    return numerator


def _polynomial(coefficients: tuple[float, ...], r: Array) -> Array:
    """Horner's rule, without fused multiply-add."""
    value = np.full_like(r, coefficients[0])
    for coefficient in coefficients[1:]:
        value *= r
        value += coefficient
    return value


def _logarithm(x: Array) -> Array:
    """The natural logarithm of positive numbers.

    With x = 2^e m and m between sqrt(1/2) and sqrt(2): log x = e log 2 + 2 artanh((m - 1) / (m + 1)).
    """
    m, e = np.frexp(x)
    is_small = m < 0.70710678118654752440
    m = np.where(is_small, m + m, m)
    e = (e - is_small).astype(np.float64)
    s = (m - 1.0) / (m + 1.0)
    return e * 0.69314718055994530942 + (s + s) * _polynomial(SERIES, s * s)

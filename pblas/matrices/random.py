"""Random matrix entries that depend on their global indices and a seed only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _mix(x: Array) -> Array:
    """A bijection of 64-bit integers in which every input bit influences every output bit.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, with the constants of
    Stafford's variant 13.
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def random_entries(i: Array, j: Array, seed: int, dtype: np.dtype[Any], distribution: str = "uniform") -> Array:
    """Random entries at global indices i, j.

    >>> a = random_entries(np.arange(3)[:, None], np.arange(4)[None, :], 7, np.dtype("float64"))
    >>> bool(np.all(a[1:] == random_entries(np.arange(1, 3)[:, None], np.arange(4)[None, :], 7, np.dtype("float64"))))
    True
    """
    with np.errstate(over="ignore"):
        start = _mix(np.array([(seed * _GOLDEN + _GOLDEN) & _MASK], np.uint64))
        row = _mix(i.astype(np.uint64) * np.uint64(_GOLDEN) + start)
        bits = _mix(row + (j.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN))
        if distribution == "normal":
            return _normal(bits, dtype)
        real = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0
        # A shorter dtype would round a value close to 1 to 1, which is outside the interval.
        largest = 1.0 - 2.0 ** -(ml_dtypes.finfo(dtype).nmant + 1)  # type: ignore[no-untyped-call]
        real = np.minimum(real, largest)
        if dtype.kind != "c":
            return real.astype(dtype)
        imaginary = (_mix(bits + np.uint64(_GOLDEN)) >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0
        return (real + 1j * np.minimum(imaginary, largest)).astype(dtype)


def _normal(bits: Array, dtype: np.dtype[Any]) -> Array:
    """Normal entries from independent random bits: two independent ones from each 64 bits and their successor.

    Source: Box and Muller, "A note on the generation of random normal deviates", 1958.
    """
    uniform = ((bits >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53  # in (0, 1]
    angle = (_mix(bits + np.uint64(_GOLDEN)) >> np.uint64(11)).astype(np.float64) * (2.0**-53 * 2.0 * np.pi)
    radius = np.sqrt(-2.0 * np.log(uniform))
    real = radius * np.cos(angle)
    if dtype.kind != "c":
        return real.astype(dtype)
    return (real + 1j * (radius * np.sin(angle))).astype(dtype)

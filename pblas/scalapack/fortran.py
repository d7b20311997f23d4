"""Numbers as Fortran's edit descriptors Dw.d and Ew.d write them."""

from __future__ import annotations

import math

_MOST = 100  # the exponents of two digits, and the letter, end below this


def edited(x: float, letter: str, width: int, digits: int) -> str:
    """A number as 0.ddd and a power of ten.

    Args:
        x: the number.
        letter: "D" or "E", between the digits and the exponent; left out if the exponent has three digits.
        width: characters, filled with blanks on the left.
        digits: digits after the point.

    Source: Fortran 2018, 13.7.2.3.3; infinities and NaN as GNU Fortran writes them.

    >>> edited(53.0, "D", 30, 18), edited(-1e100, "E", 16, 8)
    ('      0.530000000000000000D+02', ' -0.10000000+101')
    """
    if not math.isfinite(x):
        return ("NaN" if math.isnan(x) else "Infinity" if x > 0 else "-Infinity").rjust(width)
    mantissa, _, exponent = f"{abs(x):.{digits - 1}e}".partition("e")
    power = int(exponent) + (x != 0)
    tail = f"{letter}{power:+03d}" if abs(power) < _MOST else f"{power:+04d}"
    sign = "-" * (math.copysign(1.0, x) < 0)
    return f"{sign}0.{mantissa.replace('.', '')}{tail}".rjust(width)

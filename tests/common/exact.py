"""Exact products by fractions: what reproducible="exact" must give, bit by bit."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from tests.common.gauge import Array

BITS = {"float64": 61, "float32": 40}


def integers(x: Array) -> tuple[list[list[int]], list[Fraction]]:
    """The integers to which rows are rounded, to nearest and even, and their units."""
    rows, units = [], []
    for row in x:
        exponent = int(np.frexp(abs(row).max())[1])
        unit = Fraction(2) ** (exponent - BITS[x.dtype.name])
        rows.append([round(Fraction(float(element)) / unit) for element in row])
        units.append(unit)
    return rows, units


def nearest(value: Fraction, dtype: Any) -> Any:
    """The element next to a number, even if two are: float() rounds a fraction right, to 64 bits."""
    if dtype == np.float64:
        return float(value)
    guess = np.float32(float(value))
    others = guess, np.nextafter(guess, np.float32(-np.inf)), np.nextafter(guess, np.float32(np.inf))
    return min(others, key=lambda z: (abs(Fraction(float(z)) - value), int(z.view(np.int32)) & 1))


def expected(x: Array, y: Array) -> Array:
    (rows, units), (columns, others) = integers(x), integers(y.T)
    z = np.empty((len(rows), len(columns)), x.dtype)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            total = sum(a * b for a, b in zip(row, column, strict=True))
            z[i, j] = nearest(total * units[i] * others[j], x.dtype)
    return z

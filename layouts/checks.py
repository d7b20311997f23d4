"""Argument checks that all classes and functions of this package share."""

from __future__ import annotations

import operator
from typing import Any

from pblas.errors import LayoutError


def checked_int(where: str, name: str, value: Any, low: int, high: int | None = None, *, why: str = "") -> int:
    """`value` as an int, after checking that it is an integer in low..high; NumPy integers count, bool does not.

    >>> checked_int("Split", "nb", 4, 1)
    4
    >>> checked_int("Split", "src", 2, -1, 1, why="nprocs - 1")
    Traceback (most recent call last):
    pblas.errors.LayoutError: Split: src is 2; expected an integer in -1..1 (nprocs - 1).
    """
    if type(value) is not int:
        try:
            number = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = None
        if number is None:
            raise LayoutError(
                f"{where}: {name} is {value!r}, a {type(value).__name__}; expected {_range(low, high, why)}."
            )
        value = number
    if value < low or (high is not None and value > high):
        raise LayoutError(f"{where}: {name} is {value}; expected {_range(low, high, why)}.")
    return int(value)


def checked_index(where: str, name: str, value: object, stop: int | None = None) -> None:
    """Check an index: an int in 0..stop-1, or an array of signed integers.

    The elements of an array are not checked: that would need the array's library, and a wait for a GPU that holds them.

    >>> checked_index("owner", "i", 3, 4)
    >>> checked_index("owner", "i", 1.0)
    Traceback (most recent call last):
    pblas.errors.LayoutError: owner: i is 1.0, a float; expected an integer >= 0, or an array of signed integers.
    """
    if type(value) is int:
        if value < 0 or (stop is not None and value >= stop):
            limit = ">= 0" if stop is None else f"in 0..{stop - 1}" if stop > 0 else "in an empty range"
            raise LayoutError(f"{where}: {name} is {value}; expected an integer {limit}.")
        return
    dtype = getattr(value, "dtype", None)
    if dtype is not None and getattr(dtype, "kind", "i") == "i":
        if getattr(value, "ndim", 1) == 0 and hasattr(value, "__index__"):
            checked_index(where, name, operator.index(value), stop)
        return
    expected = "an integer >= 0, or an array of signed integers"
    if dtype is not None:
        raise LayoutError(f"{where}: {name} has dtype {dtype}; expected {expected}.")
    raise LayoutError(f"{where}: {name} is {value!r}, a {type(value).__name__}; expected {expected}.")


def _range(low: int, high: int | None, why: str) -> str:
    """The range low..high in words."""
    if high is None:
        return f"an integer >= {low}"
    return f"an integer in {low}..{high}" + (f" ({why})" if why else "")

"""Numbers that a dry run does not compute, and what a program does with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pblas import errors
from pblas.backends.allocator import call_site
from pblas.backends.dtypes import Array

_MOST_READS = 10_000
"""Most readings in one line of a program: more are a loop that waits for a value."""


class Values:
    """The values of a dry run's stand-ins, and the lines that read them.

    Args:
        given: a number for each name of a call, or a list of numbers for one call after the other; other values are 0.
    """

    def __init__(self, given: Mapping[str, float | Sequence[float]]) -> None:
        self._given = {name: list(np.ravel(np.asarray(value, np.float64))) for name, value in given.items()}
        self.reads: Counter[str] = Counter()
        """Number of readings by the line of the program, as file:line."""

    def of(self, name: str, x: Any) -> Any:
        """X as the stand-in of a call's value, with the value that was given for the call."""
        array = np.asarray(x)
        given = self._given.get(name)
        if given:
            array = np.full(array.shape, given[0] if len(given) == 1 else given.pop(0)).astype(array.dtype)
        return StandIn.of(array, self)

    def zeros(self, shape: tuple[int, ...], dtype: Any, name: str = "") -> Any:
        """A stand-in of any size, whose elements are one number in memory."""
        element = self.of(name, np.zeros(1, dtype))
        return np.lib.stride_tricks.as_strided(element, shape, (0,) * len(shape), subok=True)

    def read(self) -> None:
        """Note that the program takes a stand-in for a number; ArgumentError if one line does so all the time."""
        site = call_site()
        self.reads[site] += 1
        if self.reads[site] >= _MOST_READS:
            raise errors.ArgumentError(
                f"dry_run: {site} has read values {_MOST_READS} times that a dry run does not compute, as a loop does "
                f"that waits for one; pass the value that ends it by the name of its call, as values={{'norm': 1e-9}}"
            )


class StandIn(np.ndarray[Any, Any]):
    """An array of numbers that are not known, or with 0 dimensions one such number.

    NumPy's functions of it are stand-ins too. Wherever Python needs a number, as in `if x < 1` or `float(x)`, it is the
    number in memory, and the line of the program is noted. What is not finite becomes 0.
    """

    values: Values | None

    @staticmethod
    def of(x: Array, values: Values | None) -> StandIn:
        """An array as a stand-in, in the same memory."""
        view = x.view(StandIn)
        view.values = values
        return view

    def __array_finalize__(self, source: object) -> None:
        self.values = getattr(source, "values", None)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        options = {name: _plain(x) for name, x in options.items()}  # as `where`
        if out is not None:
            options["out"] = tuple(map(_plain, out))
        with np.errstate(all="ignore"):
            result = getattr(ufunc, method)(*map(_plain, inputs), **options)
        if out is not None:
            return out[0] if len(out) == 1 else out
        return self._known_as(result)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        with np.errstate(all="ignore"):
            return self._known_as(function(*map(_plain, args), **{name: _plain(x) for name, x in options.items()}))

    def _known_as(self, result: Any) -> Any:
        """A result of NumPy, with stand-ins for its numbers."""
        if isinstance(result, tuple | list):
            parts = map(self._known_as, result)
            return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
        if not isinstance(result, np.ndarray | np.generic | bool | float | complex):
            return result
        array = np.asarray(result)
        if array.dtype.kind in "fc" and array.size:
            array = np.where(np.isfinite(array), array, 0).astype(array.dtype, copy=False)
        return StandIn.of(array, self.values)

    def __getitem__(self, key: Any) -> Any:
        item = super().__getitem__(_plain(key))
        return item if isinstance(item, np.ndarray) else StandIn.of(np.asarray(item), self.values)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    # Python's numbers

    def _number(self) -> Array:
        if self.values is not None:
            self.values.read()
        return self.view(np.ndarray)

    def __bool__(self) -> bool:
        return bool(self._number())

    def __float__(self) -> float:
        return float(self._number())

    def __int__(self) -> int:
        return int(self._number())

    def __complex__(self) -> complex:
        return complex(self._number())

    def __index__(self) -> int:
        return self._number().__index__()

    def item(self, *index: Any) -> Any:
        return self._number().item(*index)

    def tolist(self) -> Any:
        return self._number().tolist()

    def __format__(self, spec: str) -> str:
        return "?" if self.ndim == 0 else repr(self)

    def __repr__(self) -> str:
        shape = "" if self.ndim == 0 else " of shape " + " x ".join(map(str, self.shape))
        return f"<unknown {self.dtype.name}{shape}>"

    __str__ = __repr__


def _plain(x: Any) -> Any:
    """X, with NumPy's arrays in place of stand-ins."""
    if isinstance(x, StandIn):
        return x.view(np.ndarray)
    if isinstance(x, tuple | list):
        return type(x)(map(_plain, x)) if not hasattr(x, "_fields") else x
    return x

"""Calls like earlier ones: with the same arrays and options a call checks nothing, and runs the steps of the first."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pblas.backends.interop import identity
from pblas.epilogues import Epilogue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pblas.backends.dtypes import Dtype
    from pblas.runtime.kept_plans import Kept

_MAX_LAYOUTS, _MAX_CALLS = 256, 512
"""Memory layouts of arrays that a context remembers, and sets of addresses of each: a model has many like weights."""
_PLAIN = bool, int, str, type, np.dtype


class Steps(NamedTuple):
    """What a call does after its checks."""

    steps: list[Callable[[Any], object]]  # functions of the stream, in order (local)
    uses: list[Kept]  # plans that it uses (global)
    end: Callable[[], None]  # drops the arrays that the steps have made (local)

    @property
    def is_current(self) -> bool:
        """Whether all plans are still kept (global)."""
        return all(kept.last_use for kept in self.uses)


class Likes:
    """Calls with arrays of one memory layout, and with equal options."""

    def __init__(self, new: list[tuple[str, tuple[int, ...], Dtype]]) -> None:
        self.new = new  # name, shape and dtype of each array that a call makes (local)
        self._calls: OrderedDict[tuple[int, ...], Steps] = OrderedDict()

    def get(self, addresses: tuple[int, ...]) -> Steps | None:
        """The steps of a call with arrays at these addresses (local)."""
        steps = self._calls.get(addresses)
        if steps is not None:
            self._calls.move_to_end(addresses)
        return steps

    def add(self, addresses: tuple[int, ...], steps: Steps) -> None:
        """Remember the steps of a call (local)."""
        self._calls[addresses] = steps
        if len(self._calls) > _MAX_CALLS:
            self._calls.popitem(last=False)


class Repeats:
    """The calls of a context that can be repeated. No other rank knows which: the steps are those of a new call."""

    def __init__(self) -> None:
        self._likes: OrderedDict[tuple[object, ...], Likes] = OrderedDict()

    def get(self, key: tuple[object, ...]) -> Likes | None:
        """Calls with this key, see `add_key` (local)."""
        likes = self._likes.get(key)
        if likes is not None:
            self._likes.move_to_end(key)
        return likes

    def add(self, key: tuple[object, ...], likes: Likes) -> None:
        """Remember calls with this key (local)."""
        self._likes[key] = likes
        if len(self._likes) > _MAX_LAYOUTS:
            self._likes.popitem(last=False)

    def detach(self) -> None:
        """Forget all of them; the context calls this when it ends (local)."""
        self._likes.clear()


def add_key(values: Iterable[object], key: list[object], addresses: list[int]) -> bool:
    """Add the key of options and arrays, and addresses of the arrays; False for objects that must be checked (local).

    >>> key, addresses = [], []
    >>> add_key((np.zeros((2, 3)), Epilogue("x * s", s=-0.0), None), key, addresses), len(addresses)
    (True, 1)
    """
    for value in values:
        if value is None:  # most of them
            key.append(None)
        elif isinstance(value, _PLAIN):
            key += value, type(value)  # True == 1
        elif isinstance(value, float | complex):
            key.append(repr(value))  # 0.0 == -0.0
        elif isinstance(value, Epilogue):
            key += Epilogue, value.expression, *value.operands
            if not add_key(value.operands.values(), key, addresses):
                return False
        elif isinstance(value, tuple):
            key += tuple, len(value)
            if not add_key(value, key, addresses):
                return False
        else:
            known = identity(value)
            if known is None:
                return False
            addresses.append(known[0])
            key.append(known[1])
    return True

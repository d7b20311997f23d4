"""Conditions of one rank's memory: what a call may meet on one rank only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import pblas
from pblas import DistMatrix
from tests.common.gauge import Array
from tests.common.operations.operation import Operand, padded, placed


def read_only(x: Array) -> Array:
    view = x[...]
    view.flags.writeable = False
    return view


CONDITIONS: dict[str, Callable[[Array], Array]] = {
    "outside the window": lambda x: padded(x, "F", 0),
    "another leading dimension": lambda x: padded(x, "F", 3),
    "read-only": read_only,
}


class Placed:
    """As `placed`, but one rank's memory of one operand meets a condition."""

    def __init__(self, which: str, wrong: int, condition: str) -> None:
        self._which, self._wrong, self._condition = which, wrong, condition
        self._memory = self._before = np.empty(0)

    def __call__(self, ctx: pblas.Context, name: str, x: Array, operand: Operand) -> DistMatrix:
        """**Collective.**"""
        matrix = placed(ctx, name, x, operand)
        if name != self._which:
            return matrix
        local = CONDITIONS[self._condition](matrix.local) if ctx.rank == self._wrong else matrix.local
        self._memory, self._before = local, local.copy()
        return ctx.from_local(local, matrix.desc)

    def written(self) -> bool:
        """Whether read-only memory has changed."""
        return not self._memory.flags.writeable and not np.array_equal(self._memory, self._before, equal_nan=True)

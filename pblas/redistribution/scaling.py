"""Elementwise updates of a destination: copy, conjugate, scale, add."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.backends.dtypes import accumulator_dtype

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array

Put = Callable[["Array", "Array"], None]
"""A function put(x, out) that updates the elements of `out` by those of `x`, which has the same shape.

A `Scaling` is one: out := alpha conj?(x) + beta out. On GPUs every such function is a `Scaling`, because a kernel takes
its scalars as arguments.
"""


@dataclass(frozen=True, slots=True)
class Scaling:
    """out := alpha conj?(x) + beta out, elementwise, where conj?(x) is conj(x) if `conj` is set, else x.

    With alpha = 0 it does not read x; with beta = 0 it does not read out. If the elements of out have 16 bits, it
    computes in a 32-bit accumulator and rounds each result once.

    Args:
        alpha: scalar (global).
        beta: scalar (global).
        conj: conjugate x (global).

    >>> out = np.array([1.0, np.nan]); Scaling(2.0)(np.array([3.0, 4.0]), out); out.tolist()
    [6.0, 8.0]
    """

    alpha: complex = 1.0
    beta: complex = 0.0
    conj: bool = False

    def __call__(self, x: Array, out: Array) -> None:
        """out := alpha conj?(x) + beta out (local)."""
        alpha, beta = self.alpha, self.beta
        if alpha == 1 and beta == 0:
            if self.conj:
                np.conjugate(x, out=out)
            else:
                out[...] = x
            return
        wide = accumulator_dtype(out.dtype)
        if self.conj and alpha != 0:
            x = np.conjugate(x)
        if alpha == 0 and beta == 0:
            out[...] = 0
        elif wide != out.dtype:
            total: Any = 0 if alpha == 0 else wide.type(alpha) * x.astype(wide)
            out[...] = total if beta == 0 else total + wide.type(beta) * out.astype(wide)
        elif beta == 0:
            np.multiply(x, wide.type(alpha), out=out)
        else:
            if beta != 1:
                np.multiply(out, wide.type(beta), out=out)
            if alpha != 0:
                np.add(out, x if alpha == 1 else x * wide.type(alpha), out=out)


COPY = Scaling()
ADD = Scaling(1.0, 1.0)

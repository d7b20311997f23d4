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
"""put(x, out): update out by the elements of x; both have one shape and any number of dimensions.

On GPUs it is a `Scaling`, whose scalars are arguments of a kernel.
"""


@dataclass(frozen=True, slots=True)
class Scaling:
    """out := alpha conj?(x) + beta out, elementwise; x is not read when alpha is 0, out not when beta is 0.

    16-bit elements are combined in 32 bits and rounded once.

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
        """Update out by x, of the same shape; x may have 16-bit elements if out has 32-bit sums (local)."""
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

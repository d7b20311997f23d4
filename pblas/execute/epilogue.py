"""An epilogue as one pass over a product or any 2-D array: an expression, or normalised rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.backends.cpu.pointwise import PIECE_NBYTES, evaluate_into, rms_normalised
from pblas.backends.dtypes import accumulator_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pblas.backends.dtypes import Array
    from pblas.epilogues import Epilogue


def finish(
    backend: Any, epilogue: Epilogue, x: Array, operands: Mapping[str, Any], out: Array, stream: Any = None
) -> None:
    """Out := the epilogue of x, in the precision in which x's elements are added, rounded once.

    Args:
        backend: owner of the arrays (local).
        epilogue: a valid one (global).
        x: m x n (local).
        operands: numbers, and arrays of n elements or m x n, by name (local).
        out: m x n, of x's dtype; may be x, or an operand (local).
        stream: on GPUs, the stream of the launch; None for the library's current one (local).
    """
    if not out.size:
        return
    if backend.gpus:
        backend.arrays.finish(epilogue, x, operands, out, stream)
        return
    if epilogue.tree is not None:
        evaluate_into(epilogue.tree, x, operands, out)
        return
    total = accumulator_dtype(x.dtype)
    weight = operands["weight"].astype(total, copy=False) if "weight" in operands else None
    step = max(1, PIECE_NBYTES // (x.shape[1] * total.itemsize))
    with np.errstate(all="ignore"):  # as in `Runtime.collective_section`
        for start in range(0, x.shape[0], step):
            rows = slice(start, start + step)
            added = x[rows].astype(total, copy=False)
            if "residual" in operands:
                added = added + operands["residual"][rows].astype(total, copy=False)
                operands["residual"][rows] = added
            out[rows] = rms_normalised(added, weight, operands["eps"])

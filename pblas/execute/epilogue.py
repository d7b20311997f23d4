"""One pass over a product, or any array of two dimensions: an expression, or rows normalised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.backends.gemm import accumulator_dtype
from pblas.backends.pointwise import evaluate, rms_normalised

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pblas.backends.gemm import Array
    from pblas.epilogues import Epilogue

_PIECE_NBYTES = 128 << 10
"""Rows are taken so many bytes at a time: what an expression makes on the way stays in a cache."""


def finish(
    backend: Any, epilogue: Epilogue, x: Array, operands: Mapping[str, Any], out: Array, stream: Any = None
) -> None:
    """Out := the epilogue of x, in the precision in which x's elements are added, rounded once.

    Args:
        backend: whose arrays they are (local).
        epilogue: a good one (global).
        x: m x n (local).
        operands: numbers, and arrays of n elements or m x n, by name (local).
        out: m x n, of x's dtype; may be x, or an operand (local).
        stream: on GPUs, where to launch it; None for the library's current one (local).
    """
    if not out.size:
        return
    if backend.gpus:
        backend.arrays.finish(epilogue, x, operands, out, stream)
        return
    arrays = {name: np.broadcast_to(z, x.shape) for name, z in operands.items() if isinstance(z, np.ndarray)}
    if epilogue.tree is not None and abs(out.strides[0]) < abs(out.strides[1]):  # columns are what lies together
        x, out, arrays = x.T, out.T, {name: z.T for name, z in arrays.items()}
    total = accumulator_dtype(x.dtype)
    step = max(1, _PIECE_NBYTES // (x.shape[1] * total.itemsize))
    for start in range(0, x.shape[0], step):
        rows = slice(start, start + step)
        given = {name: z[rows].astype(total, copy=False) for name, z in arrays.items()}
        if epilogue.tree is not None:
            out[rows] = evaluate(epilogue.tree, x[rows].astype(total, copy=False), {**operands, **given})
            continue
        added = x[rows].astype(total, copy=False)
        if "residual" in given:
            added = added + given["residual"]
            operands["residual"][rows] = added
        weight = given["weight"][0] if "weight" in given else None
        out[rows] = rms_normalised(added, weight, operands["eps"])

"""One pass over a product, or any array of two dimensions: an expression, or rows normalised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.execute.finish import OPERATIONS, Normalised, Pointwise, fold
from pblas.execute.flat import Flat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pblas.backends.gemm import Array
    from pblas.epilogues import Epilogue


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
    step, turned = 1, not out.flags.c_contiguous and abs(out.strides[0]) < abs(out.strides[1])
    sinks = [out]
    if epilogue.tree is None:
        step, turned, residual = x.shape[1], False, operands.get("residual")
        sinks += [] if residual is None else [residual]
        job: Any = Normalised(operands.get("weight"), operands["eps"], residual, step, 0)
    else:
        spread = {
            name: np.broadcast_to(value, x.shape) if isinstance(value, np.ndarray) else value
            for name, value in operands.items()
        }
        spread = {name: _turned(value) for name, value in spread.items()} if turned else spread
        job = Pointwise(epilogue.tree, spread, 0)
    x, sinks = (x.T, [sink.T for sink in sinks]) if turned else (x, sinks)
    fold(OPERATIONS["sum"], [Flat(x)], (0, x.size), step, job, [[Flat(sink)] for sink in sinks])


def _turned(value: Any) -> Any:
    return value.T if isinstance(value, np.ndarray) else value

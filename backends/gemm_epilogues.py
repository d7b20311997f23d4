"""The epilogues that cuBLASLt fuses into a GEMM. This module imports no GPU library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas.epilogues import NAMED, RESULT, Name, nodes, parse, substituted

if TYPE_CHECKING:
    from pblas.epilogues import Node

_FUNCTIONS = {"relu": NAMED["relu"], "gelu": NAMED["gelu_tanh"]}
"""Functions that cuBLASLt can apply to a product; its gelu is the tanh approximation."""
_HALVES = ("float16", "bfloat16")


def fused_epilogue(tree: Node, dtype: str) -> tuple[str, str | None] | None:
    """cuBLASLt's name of an epilogue, and the name of its bias operand or None; None if cuBLASLt cannot fuse it.

    >>> [fused_epilogue(parse(text), "float32") for text in ("relu(x + b)", "x + b", "relu(x)", "silu(x)")]
    [('RELU_BIAS', 'b'), ('BIAS', 'b'), ('RELU', None), None]
    """
    if dtype not in (*_HALVES, "float32"):
        return None
    functions = {name: text for name, text in _FUNCTIONS.items() if name != "gelu" or dtype in _HALVES}
    names = {node.name for node in nodes(tree) if isinstance(node, Name)} - {RESULT}
    if not names:
        matching = (name for name, function in functions.items() if tree == parse(function))
        return next(((name.upper(), None) for name in matching), None)
    bias, functions = names.pop(), {"bias": RESULT} | {f"{name}_bias": text for name, text in functions.items()}
    for added in (f"{RESULT} + {bias}", f"{bias} + {RESULT}") if not names else ():
        for name, function in functions.items():
            if tree == parse(substituted(function, added)):
                return name.upper(), bias
    return None

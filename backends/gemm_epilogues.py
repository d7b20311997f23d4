"""Which epilogues the GEMMs of a GPU's library apply before they round, by names and expressions only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas.epilogues import NAMED, RESULT, Name, nodes, parse, substituted

if TYPE_CHECKING:
    from pblas.epilogues import Node

_FUNCTIONS = {"relu": NAMED["relu"], "gelu": NAMED["gelu_tanh"]}
"""What cuBLASLt can apply to a product; its gelu is the one with the hyperbolic tangent."""
_HALVES = ("float16", "bfloat16")


def spoken(tree: Node, dtype: str) -> tuple[str, str | None] | None:
    """What cuBLASLt calls an expression of a product, and the operand that is its bias; None for what it does not do.

    Args:
        tree: from `pblas.epilogues.parse`.
        dtype: of the product; gelu is left to 16 bits, where its approximation does not show.

    >>> [spoken(parse(text), "float32") for text in ("relu(x + b)", "x + b", "relu(x)", "silu(x)")]
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

"""Public functions that share an implementation, as symm and hemm do: they differ in a name, which decides the rest."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def variant(implementation: Callable[Concatenate[str, P], R], name: str, text: str) -> Callable[P, R]:
    """The function `name`, which calls an implementation with its name as the first argument.

    Its docstring is `text`, and after it all paragraphs of the implementation's but the first.

    >>> def _root(name: str, x: float) -> float:
    ...     "A root of x."
    >>> sqrt = variant(_root, "sqrt", "The square root of x.")
    >>> list(inspect.signature(sqrt).parameters), sqrt.__doc__
    (['x'], 'The square root of x.')
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return implementation(name, *args, **kwargs)

    signature = inspect.signature(implementation)
    first, *others = signature.parameters.values()
    shown: Any = call
    shown.__name__ = shown.__qualname__ = name
    shown.__module__ = implementation.__module__
    shown.__doc__ = "\n\n".join((inspect.cleandoc(text), *(inspect.getdoc(implementation) or "").split("\n\n")[1:]))
    shown.__signature__ = signature.replace(parameters=others)
    shown.__annotations__ = {key: kind for key, kind in implementation.__annotations__.items() if key != first.name}
    return call

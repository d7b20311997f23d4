"""One routine, four types: p?gemm written once becomes psgemm, pdgemm, pcgemm and pzgemm."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def of_types(letters: str, routine: Callable[Concatenate[str, P], R]) -> tuple[Callable[P, R], ...]:
    """The routine for each letter of `letters`, which it takes as its first argument.

    >>> def px(prefix: str, n: int) -> str: return prefix * n
    >>> [f(2) for f in of_types("sd", px)]
    ['ss', 'dd']
    """
    return tuple(_of_type(letter, routine) for letter in letters)


def _of_type(letter: str, routine: Callable[Concatenate[str, P], R]) -> Callable[P, R]:
    @functools.wraps(routine)
    def typed(*args: P.args, **kwargs: P.kwargs) -> R:
        return routine(letter, *args, **kwargs)

    shown: Any = typed
    shown.__name__ = shown.__qualname__ = routine.__name__.replace("x", letter, 1)
    del shown.__wrapped__
    parameters = list(inspect.signature(routine).parameters.values())[1:]
    shown.__signature__ = inspect.signature(routine).replace(parameters=parameters)
    return typed

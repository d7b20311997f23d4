"""The four types of a routine: one function for p?gemm becomes psgemm, pdgemm, pcgemm and pzgemm."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from pblas.scalapack.arguments import Call
from pblas.scalapack.routines import RETURNED, WORKSPACES

if TYPE_CHECKING:
    from pblas.scalapack.routines import Routine

P = ParamSpec("P")
R = TypeVar("R")


def of_types(
    letters: Iterable[str], routine: Routine, body: Callable[Concatenate[Routine, str, P], R]
) -> tuple[Callable[P, R], ...]:
    """The function for each type letter in `letters`, with the docstring of `body` and the arguments of `routine`.

    >>> from pblas.scalapack.routines import GEADD
    >>> def px(routine: Routine, letter: str, n: int) -> str: return n * letter + routine.name
    >>> psgeadd, pdgeadd = of_types("sd", GEADD, px)
    >>> psgeadd(2), pdgeadd.__name__
    ('ssgeadd', 'pdgeadd')
    """
    first, *others = (inspect.getdoc(body) or "").split("\n\n")
    signature = inspect.signature(body)

    def of_type(letter: str) -> Callable[P, R]:
        def typed(*args: P.args, **kwargs: P.kwargs) -> R:
            return body(routine, letter, *args, **kwargs)

        shown: Any = typed
        shown.__name__ = shown.__qualname__ = f"p{letter}{routine.name}"
        shown.__module__ = body.__module__
        shown.__doc__ = "\n\n".join((first, routine.described(), *others))
        shown.__signature__ = signature.replace(parameters=list(signature.parameters.values())[2:])
        return typed

    return tuple(map(of_type, letters))


def from_calls(
    letters: Iterable[str], routine: Routine, body: Callable[[Any], R], kind_of_call: type[Call] = Call
) -> tuple[Callable[..., R], ...]:
    """The function for each of `letters`, whose arguments are those of `routine`.

    `body` gets the checked call, a `kind_of_call`; workspaces and their sizes may be left out.

    >>> from pblas.scalapack.routines import NRM2
    >>> def nrm2(call): "The norm."
    >>> (pdznrm2,) = from_calls(["dz"], NRM2, nrm2)
    >>> pdznrm2.__name__, str(inspect.signature(pdznrm2))
    ('pdznrm2', '(n, x, ix, jx, descx, incx)')
    """
    first, *others = (inspect.getdoc(body) or "").split("\n\n")
    kind, empty = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    optional = {*WORKSPACES, *(f"L{name}" for name in WORKSPACES)}
    signature = inspect.Signature(
        [
            inspect.Parameter(name.lower(), kind, default=None if name in optional else empty)
            for name in routine.arguments
            if name not in RETURNED
        ]
    )

    def of_type(letter: str) -> Callable[..., R]:
        def typed(*args: Any, **kwargs: Any) -> R:
            given = signature.bind(*args, **kwargs).arguments
            with kind_of_call(routine, letter, *(given.get(name.lower()) for name in routine.arguments)) as call:
                return body(call)

        shown: Any = typed
        shown.__name__ = shown.__qualname__ = f"p{letter}{routine.name}"
        shown.__module__ = body.__module__
        shown.__doc__ = "\n\n".join((first, routine.described(), *others))
        shown.__signature__ = signature
        return typed

    return tuple(map(of_type, letters))

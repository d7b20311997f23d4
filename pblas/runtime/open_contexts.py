"""The open contexts of a process: in one of them the ranks agree on an error of a call whose arguments have none."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn
from weakref import WeakSet

if TYPE_CHECKING:
    from pblas import errors
    from pblas.runtime.runtime import Runtime

OPEN: WeakSet[Runtime] = WeakSet()
"""Runtimes of the contexts that this process has made and not dropped; closed ones may be among them (local)."""


def fail_without_context(verb: str, error: errors.PblasError) -> NoReturn:
    """Raise an error of a collective call whose arguments belong to no context. **Collective** if one is open.

    Other ranks may have called with matrices. If this process has one usable context, all ranks raise the error there.
    If it has several, nothing says which one the others are in, and this rank raises the error alone, as without any.
    """
    usable = [runtime for runtime in OPEN if not runtime.closed and runtime.backend.agreement.broken is None]
    if len(usable) == 1:
        with usable[0].call(verb):
            usable[0].fail(verb, error)
    raise error

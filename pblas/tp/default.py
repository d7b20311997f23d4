"""The context that tensor-parallel calls use if they are given none."""

from __future__ import annotations

from pblas.context import Context

_default: list[Context] = []
"""The default context, if there is one: calls without `ctx=` share it, and it ends with MPI."""


def default_context() -> Context:
    """The context over COMM_WORLD of calls without `ctx=`; **collective** when it is made, by the first of them.

    It is closed when the program ends, or calls MPI.Finalize.
    """
    if not _default or _default[0].runtime.closed:
        first, _default[:] = not _default, [Context()]  # its error says what to do without MPI
        if first:
            _default[0].runtime.backend.peers.before_end(_end)
    return _default[0]


def _end() -> None:
    _default[0].close()

"""The context that tensor-parallel calls use if they are given none."""

from __future__ import annotations

from pblas.context import Context

_made: list[Context] = []
"""The one module of the front door that holds a context: calls without one share it, and it ends with MPI."""


def default_context() -> Context:
    """The context over COMM_WORLD of calls without `ctx=`; **collective** when it is made, by the first of them.

    It is closed when the program ends, or calls MPI.Finalize.
    """
    if not _made or _made[0].runtime.closed:
        first, _made[:] = not _made, [Context()]  # which says what helps where there is no MPI
        if first:
            _made[0].runtime.backend.peers.before_end(_end)
    return _made[0]


def _end() -> None:
    _made[0].close()

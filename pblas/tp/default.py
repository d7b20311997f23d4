"""The context that tensor-parallel calls use if they are given none."""

from __future__ import annotations

from pblas.context import Context

_default: list[Context] = []
"""The default context, or nothing before the first call without `ctx=`. MPI's end closes it."""


def default_context() -> Context:
    """The context over COMM_WORLD that calls without `ctx=` use; **collective** in the first call, which makes it.

    It is closed when the program ends, or calls MPI.Finalize.
    """
    if not _default or _default[0].runtime.closed:
        first, _default[:] = not _default, [Context()]  # its error says what to do without MPI
        if first:
            _default[0].runtime.backend.peers.before_end(_end)
    return _default[0]


def _end() -> None:
    _default[0].close()

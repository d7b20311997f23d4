"""The log of pblas: the logger "pblas" of Python's `logging`, whose records have the rank.

INFO: plans and algorithms that were chosen, fallbacks, files that were read or written. DEBUG: agreements of the ranks,
and the time of each call. Nothing is printed unless the program adds a handler and sets a level. A record has the field
`rank`, the rank in the context, for format strings and filters; its message begins with the rank too.

Code that composes a message asks `is_on(INFO)` first. That costs about 50 ns, and all of the cost while the log is off.
"""

from __future__ import annotations

import logging
from typing import Any

DEBUG, INFO = logging.DEBUG, logging.INFO

_LOGGER = logging.getLogger("pblas")
_LOGGER.addHandler(logging.NullHandler())  # no record goes to stderr by itself

is_on = _LOGGER.isEnabledFor  # whether records of a level are wanted (local)


def write(level: int, rank: int, text: str, *args: object) -> None:
    """Log a message of a rank (local).

    >>> with_rank = []
    >>> handler = logging.Handler()
    >>> handler.emit = lambda record: with_rank.append((record.rank, record.getMessage()))
    >>> _LOGGER.addHandler(handler), _LOGGER.setLevel(INFO)
    (None, None)
    >>> write(INFO, 3, "load: %s", "a.npy"), write(DEBUG, 3, "not wanted")
    (None, None)
    >>> _LOGGER.removeHandler(handler), _LOGGER.setLevel(logging.NOTSET)
    (None, None)
    >>> with_rank
    [(3, 'rank 3: load: a.npy')]
    """
    if _LOGGER.isEnabledFor(level):
        _LOGGER.log(level, f"rank %d: {text}", rank, *args, extra={"rank": rank}, stacklevel=2)


def planned(rank: int, noun: str, plan: Any) -> None:
    """Log the plan of an operation, with its `choice` (local)."""
    if _LOGGER.isEnabledFor(INFO):
        write(INFO, rank, "planned %s: %s", noun, plan.choice)

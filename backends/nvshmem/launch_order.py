"""In which order the executions of a process run: handles of events, behind the last of each queue."""

from __future__ import annotations


class Order:
    """What the next execution of this process waits for, whatever its context.

    Executions of a queue follow each other and run beside those of other queues. Those without a queue run alone: after
    all that were launched before, and before all that are launched later.

    >>> order = Order()
    >>> order.launched(None, 1)
    >>> order.launched(0, 2)
    >>> order.launched(1, 3)
    >>> order.before(0), order.before(1), order.before(2), order.before(None)
    ((2,), (3,), (1,), (2, 3))
    >>> order.launched(None, 4)
    >>> order.before(0), order.last
    ((4,), (4,))
    """

    def __init__(self) -> None:
        self._alone: int | None = None
        self._beside: dict[int, int] = {}  # of the queues that came behind it
        self._recorded = (-1, -1, -1)  # capture, stream and event of the last that was recorded

    @property
    def last(self) -> tuple[int, ...]:
        """Events behind which all executions have ended."""
        if self._beside:  # each came behind the one that ran alone
            return tuple(self._beside.values())
        return () if self._alone is None else (self._alone,)

    def before(self, queue: int | None) -> tuple[int, ...]:
        """Events that the next execution of a queue waits for; None: of those that run alone."""
        if queue is None:
            return self.last
        found = self._beside.get(queue, self._alone)
        return () if found is None else (found,)

    def launched(self, queue: int | None, event: int) -> None:
        """An execution was launched, with this event behind it."""
        if queue is None:
            self._alone, self._beside = event, {}
        else:
            self._beside[queue] = event

    def recorded(self, capture: int, stream: int, event: int) -> int | None:
        """The event that an execution in a graph of the caller's waits for, whatever its queue; its own comes next.

        Branches of one graph begin in an order that CUDA chooses, perhaps another on another rank.

        >>> order = Order()
        >>> [order.recorded(*call) for call in ((7, 1, 10), (7, 1, 10), (7, 2, 11), (8, 1, 10))]
        [None, None, 10, None]
        """
        (before, last, found), self._recorded = self._recorded, (capture, stream, event)
        return found if before == capture and last != stream else None

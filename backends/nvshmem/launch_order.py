"""The order in which the executions of a process run: an event after the last execution of each queue."""

from __future__ import annotations


class Order:
    """The events that the next execution of this process waits for, in any context.

    Executions of one queue run one after the other, and concurrently with those of other queues. An execution without a
    queue runs alone: after all earlier launches, and before all later ones.

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
        self._beside: dict[int, int] = {}  # last event of each queue since the last execution that ran alone
        self._recorded = (-1, -1, -1)  # capture, stream and event of the last recorded execution

    @property
    def last(self) -> tuple[int, ...]:
        """All executions have ended after these events."""
        if self._beside:  # each of them follows the execution that ran alone
            return tuple(self._beside.values())
        return () if self._alone is None else (self._alone,)

    def before(self, queue: int | None) -> tuple[int, ...]:
        """Events that the next execution of a queue waits for; None: an execution that runs alone."""
        if queue is None:
            return self.last
        event = self._beside.get(queue, self._alone)
        return () if event is None else (event,)

    def launched(self, queue: int | None, event: int) -> None:
        """An execution was launched, and this event was recorded after it."""
        if queue is None:
            self._alone, self._beside = event, {}
        else:
            self._beside[queue] = event

    def recorded(self, capture: int, stream: int, event: int) -> int | None:
        """The event that an execution in a graph of the caller's waits for, in any queue; `event` is its own.

        CUDA chooses the order in which branches of one graph begin, and other ranks may get another order.

        >>> order = Order()
        >>> [order.recorded(*call) for call in ((7, 1, 10), (7, 1, 10), (7, 2, 11), (8, 1, 10))]
        [None, None, 10, None]
        """
        (last_capture, last_stream, last_event), self._recorded = self._recorded, (capture, stream, event)
        return last_event if last_capture == capture and last_stream != stream else None

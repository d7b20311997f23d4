"""All ranks' shards of a matrix on each rank, put there by copy engines beside executions that need none of them."""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from pblas.matmul.push.schedules.operations import send_order
from pblas.plans.partition import padded
from pblas.runtime.kept_plans import Kept

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pblas.backends.dtypes import Array, Dtype
    from pblas.backends.engine_limits import Lane
    from pblas.runtime.runtime import Runtime

_FREE, _ARRIVED = range(2)  # phases: the memory of a rank may be written, and the shard of a rank is there
_LANES: tuple[Lane, ...] = ("beside", "copy")


class Gathering(Kept):
    """**Collective.** The memory of a gathered matrix, and calls that fill it: `begin`, other executions, `end`.

    All gatherings of a context share the memory, so what reads it runs before the next `begin`. A rank puts its shard
    into a peer's memory once the peer has begun, too: what ran before has read the memory.
    """

    def __init__(self, runtime: Runtime, counts: Sequence[int], columns: int, dtype: Dtype) -> None:
        self._engine: Any = runtime.backend.engine()
        self._rank, self._peers = runtime.rank, tuple(send_order(runtime.rank, runtime.nprocs))
        *first, total = accumulate(counts, initial=0)
        self.own: slice = slice(first[self._rank], first[self._rank] + counts[self._rank])
        """The rows of this rank's shard (local)."""
        self._offset = first[self._rank] * columns * dtype.itemsize
        self._memory = self._engine.reserve(padded(total * columns * dtype.itemsize), len((_FREE, _ARRIVED)), 1)
        with self._engine.call(self._memory):
            self.whole: Any = self._engine.array(0, (total, columns), dtype, "C")
            """The matrix, from `end` to the next `begin` (global)."""
        runtime.matrices.add(self)

    def close(self) -> None:
        self.whole = self._memory = self._engine = None

    def detach(self) -> None:
        """Called by a closing context (local)."""
        self.close()

    def begin(self, shard: Array, stream: object) -> None:
        """**Collective.** Start to put this rank's shard into the memory of all ranks (local)."""
        self._run(partial(self._put, shard), stream)

    def end(self, stream: object) -> None:
        """**Collective.** Let what follows on the stream wait for all shards (local)."""
        self._run(self._await, stream)

    def _run(self, operations: Callable[[], None], stream: object) -> None:
        def body() -> None:
            with self._engine.call(self._memory):
                operations()

        self._engine.run(self._engine.program(joins=False), body, stream)

    def _put(self, shard: Array) -> None:
        engine, peers = self._engine, self._peers
        engine.put("copy", shard, self._rank, self._offset, "C")
        engine.signal("beside", peers, _FREE)
        engine.wait("beside", _FREE, peers, "all-gather: the beginning of")
        for peer in peers:
            engine.put("beside", shard, peer, self._offset, "C")
        engine.signal("beside", peers, _ARRIVED)
        for lane in _LANES:
            engine.mark(lane, ("gathering", lane))

    def _await(self) -> None:
        engine = self._engine
        engine.wait("main", _ARRIVED, self._peers, "all-gather: the shard of")
        engine.follow("main", [("gathering", lane) for lane in _LANES])

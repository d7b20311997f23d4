"""Several matrices that change places between two agreements: each is copied to memory that peers read at one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas.layouts.placement import Placement
from pblas.redistribution.transfer import Buffers, Movement, SourceMatrix
from pblas.runtime.kept_plans import Kept

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pblas.backends.device import Mark
    from pblas.backends.dtypes import Array, Dtype
    from pblas.backends.host_ranks import HostRanks
    from pblas.layouts.descriptor import MatrixDescriptor


class Exchange(Kept):
    """Moves matrices, known by their numbers, from one layout each to another one.

    x, = exchange.allocate([number])   # then the caller writes there, and all ranks agree
    exchange.move(number, out)         # for all matrices in one order; all ranks agree before X is overwritten
    """

    def __init__(
        self, backend: HostRanks, moves: Mapping[int, tuple[MatrixDescriptor, MatrixDescriptor, Dtype]]
    ) -> None:
        self._backend, self._buffers = backend, Buffers(backend)
        self._movements = {
            number: Movement(
                SourceMatrix(backend, Placement.of(source), dtype, source.order, symmetric=True),
                Placement.of(target),
                buffers=self._buffers,
            )
            for number, (source, target, dtype) in moves.items()
        }

    def allocate(self, numbers: Collection[int]) -> list[Array]:
        """**Collective.** New memory for this rank's parts of matrices before they move (provisional).

        They are in the same memory: each rank has elements of one of these matrices at most.
        """
        sources = [self._movements[number].source_matrix for number in numbers]
        block = self._backend.allocate(max(1, *(source.most_nbytes for source in sources)))
        return [source.put_in(block) for source in sources]

    def move(self, number: int, out: Array) -> Mark:
        """**Collective.** Put this rank's part of a matrix after it has moved to `out`; a mark after the copies.

        The work may still run on the side lane, if no message was needed (local).
        """
        movement = self._movements[number]
        movement.begin()
        movement.finish(out)
        with self._backend.arrays.on_side_lane():
            return self._backend.arrays.mark()

    def release(self) -> None:
        """Forget all memory; all ranks do so (local)."""
        for movement in self._movements.values():
            movement.source_matrix.release()
        self._buffers.drop()

"""Panels of one operand, one after the other: the next travels while this one is multiplied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pblas.backends.gemm import Array
    from pblas.execute.movement import Home, Movement
    from pblas.layouts.placement import Placement


class Panels:
    """The panels of an operand that this rank multiplies, and what it sends of those of the other layers.

    Args:
        home: where the operand lies (global).
        steps: for each step the movements of all layers in which this rank takes part (local).
        mine: for each step the placement of this rank's own panel, and its movement; None without one (local).
    """

    def __init__(
        self, home: Home, steps: Sequence[Sequence[Movement]], mine: Sequence[tuple[Placement, Movement] | None]
    ) -> None:
        self._home, self._steps = home, steps
        rank = home.backend.rank
        self._mine = [None if own is None else (own[0].local_shape(rank), own[1]) for own in mine]
        self._buffers: list[Array | None] = [None, None]
        self._multiplied: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes of panels that did not lie in one piece (local)."""
        return sum(buffer.nbytes for buffer in self._buffers if buffer is not None)

    def begin(self, step: int) -> None:
        """Start to move the panels of a step."""
        for movement in self._steps[step]:
            movement.begin()

    def fetch(self, step: int) -> Array | None:
        """This rank's panel when it has arrived, valid until the next but one is fetched; None without one.

        What was sent two steps before has left then.
        """
        own, arrays = self._mine[step], self._home.backend.arrays
        panel: Array | None = None
        before, self._multiplied = self._multiplied, arrays.mark()
        if own is not None:
            shape, movement = own
            panel = movement.in_place()
            if panel is None:
                panel = self._buffer(step, shape)
                with arrays.beside():
                    arrays.follow(before)  # the products with what was there
                    movement.receive(panel)
                    arrived = arrays.mark()
                arrays.follow(arrived)
        if step:
            self._sent(step - 1)
        return panel

    def progress(self, step: int) -> None:
        """Let MPI move the panels of a step."""
        for movement in self._steps[step]:
            movement.progress()

    def end(self) -> None:
        """Return when everything that this rank sent has left."""
        self._multiplied = None
        if self._steps:
            self._sent(len(self._steps) - 1)

    def _sent(self, step: int) -> None:
        for movement in self._steps[step]:
            movement.sent()

    def _buffer(self, step: int, shape: tuple[int, int]) -> Array:
        """Memory for a panel, in the operand's order: what BLAS is told of it is the same as in place."""
        home, i = self._home, step % 2
        arrays = home.backend.arrays
        nbytes = shape[0] * shape[1] * home.dtype.itemsize
        buffer = self._buffers[i]
        if buffer is None or buffer.nbytes < nbytes:
            widest = max(m * n for m, n in (own[0] for own in self._mine if own is not None))
            buffer = self._buffers[i] = arrays.empty(widest * home.dtype.itemsize)
        panel: Array = arrays.array(buffer, shape, home.dtype, home.order)
        return panel

"""Panels of one operand, one after the other: the next panel is transferred while the current one is multiplied."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any

from pblas.redistribution.transfer import own_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pblas.backends.dtypes import Array
    from pblas.layouts.placement import Placement
    from pblas.redistribution.transfer import Movement, SourceMatrix

_WHAT = "bring a panel"
SLOTS = 3
"""Panels that use relay memory at a time: near ranks have read a panel when the next one is fetched, and by then the
panel after that has begun to arrive."""


class Panels:
    """The panels of an operand that this rank multiplies, and its messages for panels of other ranks.

    Args:
        source_matrix: the operand (global).
        steps: for each step, the movements in which this rank takes part (local).
        own_panels: for each step, the placement of this rank's panel and its movement; None without a panel (local).
        offered: movements in which this rank only sends. Receivers need them in different orders, so this rank
            starts all of them with the first step and waits for them at the end (local).
    """

    def __init__(
        self,
        source_matrix: SourceMatrix,
        steps: Sequence[Sequence[Movement]],
        own_panels: Sequence[tuple[Placement, Movement] | None],
        offered: Sequence[Movement] = (),
    ) -> None:
        self._home, rank = source_matrix, source_matrix.backend.rank
        self._steps = [[movement for movement in step if movement.has_messages] for step in steps]
        self._offered = [movement for movement in offered if movement.has_messages]
        self._own_panels = [None if own is None else (own[0].local_shape(rank), own[1]) for own in own_panels]
        self._buffers: list[Array | None] = [None, None]
        self._multiplied: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes of copied panels (local)."""
        return sum(buffer.nbytes for buffer in self._buffers if buffer is not None)

    @property
    def has_messages(self) -> bool:
        """Whether this rank sends or receives messages (local)."""
        return bool(self._offered) or any(self._steps)

    def places(self) -> list[tuple[int, ...]]:
        """Published locations of the arrays that this rank reads (local)."""
        near = {peer for own in self._own_panels if own is not None for peer in own[1].near}
        return [self._home.address(peer) for peer in sorted(near)]

    def is_own(self, step: int) -> bool:
        """Whether this rank holds its panel of a step, or needs none (local)."""
        own = self._own_panels[step]
        return own is None or own[1].is_own

    def begin(self, step: int) -> None:
        """Start the transfers of a step."""
        if not step:
            self._home.backend.sync()  # near ranks have published their arrays
        for movement in self._steps[step] if step else (*self._offered, *self._steps[step]):
            movement.begin()

    def fetch(self, step: int) -> Array | None:
        """This rank's panel after its arrival; None without one. It stays valid for one more `fetch`.

        The messages of the step before have left when this returns.
        """
        panel, arrived = self.fetch_columns(step, [slice(None)])
        self._home.backend.arrays.follow(next(arrived))
        return panel

    def fetch_columns(self, step: int, parts: Sequence[slice]) -> tuple[Array | None, Iterator[Any]]:
        """`fetch`, with an iterator of marks: a product with a part of the columns must follow the part's mark.

        A near rank's block is copied part after part, each when the iterator reaches its mark.
        """
        own, arrays = self._own_panels[step], self._home.backend.arrays
        before, self._multiplied = self._multiplied, arrays.mark()
        panel: Array | None = None
        arrived: Iterator[Any] = repeat(None)
        if own is not None:
            shape, movement = own
            block = panel = movement.in_place()
            if block is None or not (arrays.traits.reads_peers or movement.is_own):
                panel = self._buffer(step, shape)
                with arrays.on_side_lane(_WHAT):
                    arrays.follow(before)  # earlier products read the buffer
                    if block is None:
                        movement.receive(panel)
                        arrived = repeat(arrays.mark())
                if block is not None:
                    arrived = self._copied(block, panel, parts)
        if step:
            self._sent(step - 1)
        return panel, arrived

    def _copied(self, block: Array, panel: Array, parts: Sequence[slice]) -> Iterator[Any]:
        """Copy a block to this rank's panel, part after part, with a mark after each."""
        arrays = self._home.backend.arrays
        for part in parts:
            with arrays.on_side_lane(_WHAT):
                arrays.assign(block[:, part], panel[:, part])
                mark = arrays.mark()
            yield mark

    def end(self) -> None:
        """Return when all messages of this rank have left."""
        self._multiplied = None
        if self._steps:
            self._sent(len(self._steps) - 1)
        for movement in self._offered:
            movement.sent()

    def _sent(self, step: int) -> None:
        for movement in self._steps[step]:
            movement.sent()

    def _buffer(self, step: int, shape: tuple[int, int]) -> Array:
        """Memory for a panel, in the operand's order, so that BLAS gets the same arguments as in place."""
        source_matrix, i = self._home, step % 2
        arrays = source_matrix.backend.arrays
        nbytes = shape[0] * shape[1] * source_matrix.dtype.itemsize
        buffer = self._buffers[i]
        if buffer is None or buffer.nbytes < nbytes:
            widest = max(m * n for m, n in (own[0] for own in self._own_panels if own is not None))
            buffer = self._buffers[i] = own_memory(source_matrix.backend, widest * source_matrix.dtype.itemsize)
        panel: Array = arrays.array(buffer, shape, source_matrix.dtype, source_matrix.order)
        return panel


class RunSumma:
    """Base class of executors whose ranks read panels of their peers' operands."""

    peers_read = True
    """See `RunLocalGemm` (global)."""
    _source_matrices: Sequence[SourceMatrix]
    """The operands that move."""

    def prepare(self, *, scratch: bool) -> bool:
        """**Collective.** Stage the operands that move if any rank must; true if the ranks must then agree again."""
        for source_matrix in self._source_matrices:
            source_matrix.prepare(scratch=scratch)
        return scratch

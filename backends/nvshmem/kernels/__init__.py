"""The kernels: sums, pushes, all-reduces, a barrier. They are compiled for the current GPU and launched on any stream.

The sources include nothing but their own common files, so a GPU machine needs no CUDA headers.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pblas.backends.nvshmem.kernels.arguments import (
    ABORTED,
    LATE,
    LONGEST,
    MAX_CTAS,
    MAX_PARTS,
    MAX_RANKS,
    NO_STEP,
    PART_ALIGNMENT,
    RECORD,
    Block,
    EpilogueTerms,
    Slots,
    Watch,
)
from pblas.backends.nvshmem.kernels.collectives import Collectives, Reduction
from pblas.backends.nvshmem.kernels.sizes import (
    all_reduce_flags_nbytes,
    barrier_flags_nbytes,
    pulling_ctas,
    push_counter_nbytes,
    sending_ctas,
)
from pblas.backends.nvshmem.kernels.sources import FOLDER, KINDS, kernel_name, source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pblas.backends.cuda.recordable import Stream

    Dtype = np.dtype[Any]

__all__ = [
    "ABORTED", "COPY_THREADS", "FOLDER", "KINDS", "LATE", "LONGEST", "MAX_CTAS", "MAX_PARTS", "MAX_RANKS", "NO_STEP",
    "PART_ALIGNMENT", "RECORD", "Block", "EpilogueTerms", "Kernels", "Reduction", "Slots", "Strided", "Watch",
    "all_reduce_flags_nbytes", "barrier_flags_nbytes", "pulling_ctas", "push_counter_nbytes", "sending_ctas", "source",
]  # fmt: skip

COPY_THREADS = 128
"""Threads of a CTA that copies concurrently with a GEMM."""

_PACK_NBYTES = 16  # the widest load
_THREADS = 256  # of kernels that stream memory
_CTAS_PER_SM = 64  # of kernels that stream memory, at most: beyond, threads take a second round
_COPY_CTAS_PER_SM = 8  # for multiprocessors that fit more than one
_PUSH_THREADS, _PUSH_CTAS = 512, 112  # on 8 H200, more CTAs pushed no faster
_PUSH_NBYTES = 8192  # least bytes of a CTA


class Strided(NamedTuple):
    """A block in memory: its address, and its leading dimension in elements."""

    address: int
    ld: int


class Kernels(Collectives):
    """All kernels, compiled for the current GPU and launched on it.

    Addresses are those of device memory, streams are handles (cudaStream_t); every launch returns at once, allocates
    nothing and may be captured. Blocks are `columns` lines of `rows` contiguous elements, a leading dimension apart: in
    C-order, rows and columns change places.
    """

    def sum(
        self,
        stream: Stream,
        dtype: Dtype,
        shape: tuple[int, int],
        parts: Sequence[Strided],
        out: Strided,
        *,
        old: Strided | None = None,
        beta: complex = 0.0,
        wire: Dtype | None = None,
        epilogue: EpilogueTerms | None = None,
    ) -> None:
        """out := parts[0] + parts[1] + ... + beta old, in this order, rounded to dtype once.

        16-bit elements are added in float32.
        """
        wire, beta, (rows, columns) = wire or dtype, complex(beta), shape
        if rows == 0 or columns == 0:
            return
        if old is None or beta == 0:  # it is not read
            old, beta = out, 0j
        if all(block.ld == rows for block in (*parts, out, old)):  # without gaps between their lines: one line
            rows, columns = rows * columns, 1
        pitched = int(columns > 1)
        places, results = 0, out.address | old.address | pitched * (out.ld | old.ld) * dtype.itemsize
        for part in parts:
            places |= part.address | pitched * part.ld * wire.itemsize
        length = max(_PACK_NBYTES // wire.itemsize, 1)
        if places % _PACK_NBYTES or results % (length * dtype.itemsize):
            kind, length = "sum_scalar", 1
        else:
            kind = "sum_2" if len(parts) <= 2 else "sum_4" if len(parts) <= 4 else "sum_8"
        line, terms = (1, ()) if epilogue is None else epilogue[1:]
        scalars = (out.address, old.address, rows, columns, out.ld, old.ld, beta.real, beta.imag, len(parts), line)
        name, ctas = kernel_name(kind, dtype, wire, epilogue), self._ctas(rows, columns, length)
        self._launch(name, stream, ctas, _THREADS, "sum", scalars, (terms, *zip(*parts, strict=True)))

    def scale(self, stream: Stream, dtype: Dtype, beta: complex, block: Block) -> None:
        """target := beta source; if beta is 0 the source is not read, if it is 1 this is a copy."""
        if beta == 0:  # the source's address and pitch do not matter
            block = block._replace(source=block.target, source_pitch=block.target_pitch)
        self._elementwise(f"scale_{dtype.name}", stream, dtype, beta, block)

    def conjugate(self, stream: Stream, dtype: Dtype, block: Block) -> None:
        """target := conj(source), complex dtypes only; the two may be the same."""
        self._elementwise(f"conjugate_{dtype.name}", stream, dtype, 1, block)

    def copy(self, stream: Stream, block: Block) -> None:
        """Copy a block within this GPU, also during a GEMM: its CTAs fit next to those of the Hopper kernel."""
        assert block.is_in_packets
        source, target, nbytes, _, lines, source_pitch, target_pitch = block
        scalars = (target, source, nbytes, lines, target_pitch, source_pitch)
        self._launch("copy", stream, _COPY_CTAS_PER_SM * self._sms, COPY_THREADS, "copy", scalars)

    def push(self, stream: Stream, blocks: Sequence[Block], flags: Sequence[int], counter: int) -> None:
        """Copy blocks into memory of peers, or from it, and set each flag to 1 after all blocks with its index.

        The kernel never waits. It also sets a flag without blocks.
        """
        blocks = [block.flat() for block in blocks if block.nbytes and block.lines]
        named = [block.signal for block in blocks]
        signals = [word for i, flag in enumerate(flags) for word in (flag, named.count(i))]
        members = ctas = 1
        if blocks:
            largest = max(block.nbytes * block.lines for block in blocks)
            members = max(min(-(-largest // _PUSH_NBYTES), _PUSH_CTAS // len(blocks)), 1)
            ctas = members * len(blocks)
        scalars, tables = (len(blocks), members, len(flags), counter), ([*chain.from_iterable(blocks)], signals)
        self._launch("push", stream, ctas, _PUSH_THREADS, "push", scalars, tables)

    def barrier(self, stream: int, rank: int, flags: Sequence[int], epoch: int, *, watch: Watch) -> None:
        """A barrier of all ranks: wait until all have called it as often as this rank."""
        scalars = (epoch, rank, len(flags), watch.abort, watch.record, watch.timeout, NO_STEP)
        self._launch("barrier", stream, 1, MAX_RANKS, "barrier", scalars, (flags,))

    def wait(
        self,
        stream: Stream,
        flags: Sequence[int],
        sources: Sequence[int],
        *,
        watch: Watch,
        step: int = NO_STEP,
        signals: Sequence[int] = (),
    ) -> None:
        """Set flags in peers' memory, wait until this rank's flags are 1, and reset them to 0.

        Products end sooner than with waiting streams (docs/decisions/0006-waiting-by-kernel.md).
        """
        scalars = (len(flags), len(signals), watch.abort, watch.record, watch.timeout, step)
        self._launch("wait", stream, 1, MAX_RANKS, "wait", scalars, (flags, sources, signals))

    def delay(self, stream: int, nanoseconds: int) -> None:
        """Delay the stream, by a second at most."""
        self._launch("delay", stream, 1, 1, "delay", (nanoseconds,))

    def _elementwise(self, name: str, stream: Stream, dtype: Dtype, beta: complex, block: Block) -> None:
        source, target, nbytes, _, columns, *pitches = block.flat()
        if nbytes == 0 or columns == 0:
            return
        rows, (source_ld, target_ld) = nbytes // dtype.itemsize, (pitch // dtype.itemsize for pitch in pitches)
        beta = complex(beta)
        scalars = (target, source, rows, columns, target_ld, source_ld, beta.real, beta.imag)
        ctas = self._ctas(rows, columns, _PACK_NBYTES // dtype.itemsize)
        self._launch(name, stream, ctas, _THREADS, "elementwise", scalars)

    def _ctas(self, rows: int, columns: int, length: int) -> int:
        """CTAs of a kernel whose threads take a pack of `length` elements each."""
        packs = -(-rows // length) * columns
        return min(-(-packs // _THREADS), _CTAS_PER_SM * self._sms)

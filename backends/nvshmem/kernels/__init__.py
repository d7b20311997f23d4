"""The kernels: sums, pushes, all-reduces, a barrier. Compiled for the GPU at hand, launched on any stream.

The sources include nothing but their own common files, so a GPU machine needs no CUDA headers.
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.backends.nvshmem.kernels.arguments import (
    ABORTED,
    LATE,
    LONGEST,
    MAX_CTAS,
    MAX_PARTS,
    MAX_RANKS,
    PART_ALIGNMENT,
    RECORD,
    Behind,
    Block,
    Slots,
    Watch,
    all_reduce_arguments,
)
from pblas.backends.nvshmem.kernels.loaded import Loaded, Ready
from pblas.backends.nvshmem.kernels.sizes import (
    all_reduce_flags_nbytes,
    barrier_flags_nbytes,
    one_shot_slot_nbytes,
    pulling_ctas,
    push_counter_nbytes,
    sending_ctas,
)
from pblas.backends.nvshmem.kernels.sources import FOLDER, KINDS, NAMES, expanded, source

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from pblas.backends.cuda.launches import Stream

    Dtype = np.dtype[Any]

__all__ = [
    "ABORTED", "FOLDER", "KINDS", "LATE", "LONGEST", "MAX_CTAS", "MAX_PARTS", "MAX_RANKS", "PART_ALIGNMENT", "RECORD",
    "Behind", "Block", "Kernels", "Ready", "Slots", "Watch", "all_reduce_flags_nbytes", "barrier_flags_nbytes",
    "expanded", "one_shot_slot_nbytes", "pulling_ctas", "push_counter_nbytes", "sending_ctas", "source",
]  # fmt: skip

_PACK_NBYTES = 16  # the widest load
_THREADS = 256  # of kernels that stream memory
_CTAS_PER_SM = 64  # of kernels that stream memory, at most: beyond, threads take a second round
_PUSH_THREADS, _PUSH_CTAS = 512, 112  # on 8 H200, more CTAs pushed no faster
_PUSH_NBYTES = 8192  # a CTA copies no less
_ALL_REDUCE_THREADS, _ROWS_THREADS = 384, 512  # the latter where rows are normalised


def _flat(rows: int, columns: int, lds: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of blocks, taken as one line where nothing lies between their lines."""
    return (rows * columns, 1) if columns == 1 or all(ld == rows for ld in lds) else (rows, columns)


def _name(kind: str, dtype: Dtype, wire: Dtype, behind: Behind | None) -> Any:
    """What a kernel is asked for by."""
    return f"{kind}_{NAMES[dtype, wire]}" if behind is None else (kind, behind.key)


class Kernels(Loaded):
    """All kernels, compiled for the current GPU, on which they are launched.

    Addresses are those of device memory, streams are handles (cudaStream_t); every launch returns at once, allocates
    nothing and may be captured. Blocks are `columns` lines of `rows` contiguous elements, a leading dimension apart: in
    C-order, rows and columns change places.
    """

    def sum(
        self,
        stream: Stream,
        dtype: Dtype,
        rows: int,
        columns: int,
        parts: Sequence[int],
        part_lds: Sequence[int],
        out: int,
        out_ld: int,
        *,
        old: int = 0,
        old_ld: int = 0,
        beta: complex = 0.0,
        wire: Dtype | None = None,
        behind: Behind | None = None,
    ) -> None:
        """out := parts[0] + parts[1] + ... + beta old, in this order, rounded to dtype once.

        16-bit elements are added in float32.

        Args:
            stream: handle.
            dtype: of out and old.
            rows: contiguous elements of each line.
            columns: lines.
            parts: addresses of the terms, at most MAX_PARTS.
            part_lds: their leading dimensions, elements.
            out: address; may be one of the terms or old.
            out_ld: its leading dimension.
            old: address; not read if beta is 0.
            old_ld: its leading dimension.
            beta: scalar.
            wire: dtype of the terms: float32 or, by default, `dtype`.
            behind: what follows, before it is rounded; out of kernels that were added for such sums.
        """
        wire = wire or dtype
        beta = complex(beta)
        if rows == 0 or columns == 0:
            return
        if beta == 0:
            old, old_ld = out, out_ld
        rows, columns = _flat(rows, columns, (*part_lds, out_ld, old_ld))
        places, results = 0, out | old
        for address in parts:
            places |= address
        if columns > 1:
            for ld in part_lds:
                places |= ld * wire.itemsize
            results |= (out_ld | old_ld) * dtype.itemsize
        length = max(_PACK_NBYTES // wire.itemsize, 1)
        if places % _PACK_NBYTES or results % (length * dtype.itemsize):
            kind, length = "sum_scalar", 1
        else:
            kind = "sum_2" if len(parts) <= 2 else "sum_4" if len(parts) <= 4 else "sum_8"
        line, terms = (1, ()) if behind is None else behind[1:]
        scalars = (out, old, rows, columns, out_ld, old_ld, beta.real, beta.imag, len(parts), line)
        name, ctas = _name(kind, dtype, wire, behind), self._ctas(rows, columns, length)
        self._launch(name, stream, ctas, _THREADS, "sum", scalars, (terms, parts, part_lds))

    def scale(
        self,
        stream: Stream,
        dtype: Dtype,
        rows: int,
        columns: int,
        beta: complex,
        source: int,
        source_ld: int,
        target: int,
        target_ld: int,
    ) -> None:
        """target := beta source; zeros without a look at the source if beta is 0, a copy if it is 1."""
        self._elementwise(
            f"scale_{dtype.name}", stream, dtype, rows, columns, beta, source, source_ld, target, target_ld
        )

    def conjugate(
        self,
        stream: Stream,
        dtype: Dtype,
        rows: int,
        columns: int,
        source: int,
        source_ld: int,
        target: int,
        target_ld: int,
    ) -> None:
        """target := conj(source), complex dtypes only; the two may be the same."""
        name = f"conjugate_{dtype.name}"
        self._elementwise(name, stream, dtype, rows, columns, 1, source, source_ld, target, target_ld)

    def push(self, stream: Stream, blocks: Sequence[Block], flags: Sequence[int], counter: int) -> None:
        """Copy blocks into memory of peers, or from it, and set each flag to 1 when all blocks that name it are there.

        It never waits. A flag that no block names is set too.

        Args:
            stream: handle.
            blocks: at most MAX_RANKS.
            flags: addresses on the peers, as mapped here, at most MAX_RANKS.
            counter: address of push_counter_nbytes() that no push on another stream uses meanwhile.
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

    def one_shot(
        self,
        stream: Stream,
        dtype: Dtype,
        count: int,
        source: int,
        out: int,
        *,
        rank: int,
        slots: Slots,
        watch: Watch,
        step: int = 0,
        old: int = 0,
        beta: complex = 0.0,
        wire: Dtype | None = None,
        contributing: Sequence[int] | None = None,
        behind: Behind | None = None,
    ) -> None:
        """out := the sum of all ranks' partial products + beta old, on every rank for itself.

        Every rank sends its partial product to all, and adds those of 1, 2, ..., 0 and, last, beta times its own old.
        All ranks must call it with the same count and dtype.

        Args:
            stream: handle.
            dtype: of out and old (global).
            count: elements (global).
            source: address of this rank's partial product, contiguous.
            out: address; may be old or source.
            rank: this one.
            slots: for `count` elements each.
            watch: when to give up.
            step: what is recorded then.
            old: address; not read if beta is 0.
            beta: scalar (global).
            wire: dtype of the partial products: float32 or, by default, `dtype` (global).
            contributing: ranks that have a partial product; None: all (global).
            behind: what follows the last addition; out of kernels that were added for it (global).
        """
        wire, nranks = wire or dtype, len(slots.addresses)
        self._send(
            _name("one_shot", dtype, wire, behind),
            stream,
            sending_ctas(count * wire.itemsize),
            slots,
            out=out,
            source=source,
            first=[0] * nranks,
            stop=[count] * nranks,
            rank=rank,
            watch=watch,
            step=step,
            old=old,
            beta=beta,
            contributing=contributing,
            behind=behind,
        )

    def two_shot(
        self,
        stream: Stream,
        dtype: Dtype,
        first: Sequence[int],
        source: int,
        out: int,
        *,
        rank: int,
        slots: Slots,
        watch: Watch,
        step: int = 0,
        old: int = 0,
        beta: complex = 0.0,
        wire: Dtype | None = None,
        contributing: Sequence[int] | None = None,
        behind: Behind | None = None,
    ) -> None:
        """out := the sum of all ranks' partial products + beta old, the same bits on every rank.

        Each element belongs to a rank r, which gets it from all, adds that of r+1, r+2, ..., r (cyclic) and, last, beta
        times its old, and sends the sum to all.

        Args:
            stream: handle.
            dtype: of out and old (global).
            first: element with which each rank's share begins, and their number (global).
            source: address of this rank's partial product, contiguous.
            out: address; may be old or source.
            rank: this one.
            slots: for the largest share each, and for sums.
            watch: when to give up.
            step: what is recorded then.
            old: address; not read if beta is 0.
            beta: scalar (global).
            wire: dtype of the partial products: float32 or, by default, `dtype` (global).
            contributing: ranks that have a partial product; None: all (global).
            behind: what follows the last addition; out of kernels that were added for it (global).
        """
        wire = wire or dtype
        self._send(
            _name("two_shot", dtype, wire, behind),
            stream,
            sending_ctas(first[-1] * wire.itemsize),
            slots,
            out=out,
            source=source,
            first=first[:-1],
            stop=first[1:],
            rank=rank,
            watch=watch,
            step=step,
            old=old,
            beta=beta,
            contributing=contributing,
            behind=behind,
        )

    def pulled(
        self,
        stream: Stream,
        dtype: Dtype,
        first: Sequence[int],
        out: int,
        *,
        rank: int,
        partials: Sequence[int],
        flags: Sequence[int],
        results: Sequence[int],
        watch: Watch,
        step: int = 0,
        old: int = 0,
        beta: complex = 0.0,
        wire: Dtype | None = None,
        contributing: Sequence[int] | None = None,
        behind: Behind | None = None,
    ) -> None:
        """The same as `two_shot`, but that ranks read partial products in the memory of all.

        When the kernel has ended, all have read this rank's partial product, so that it may be overwritten; and a call
        that follows may use the same flags and results. Flags that were waited for are 0 again.

        Args:
            stream: handle; what wrote this rank's partial product precedes the kernel on it.
            dtype: of out and old (global).
            first: element with which each rank's share begins, a multiple of PART_ALIGNMENT, and their number (global).
            out: address; may be old.
            rank: this one.
            partials: of each rank, as mapped here: the address of its partial product, contiguous, a multiple of 16; up
                to the next multiple behind its end it is read too.
            flags: of each rank, as mapped here: the address of all_reduce_flags_nbytes().
            results: of each rank, as mapped here: the address of as many elements for the sums. Where peers can write
                into it, that of this rank is `out` itself, on all ranks.
            watch: when to give up.
            step: what is recorded then.
            old: address; not read if beta is 0.
            beta: scalar (global).
            wire: dtype of the partial products: float32 or, by default, `dtype` (global).
            contributing: ranks that have a partial product; None: all (global).
            behind: what follows the last addition; out of kernels that were added for it (global).
        """
        assert not any(address % _PACK_NBYTES for address in partials)
        assert not any(start % PART_ALIGNMENT for start in first if start < first[-1])
        wire = wire or dtype
        self._reduce(
            _name("pulled", dtype, wire, behind),
            stream,
            pulling_ctas(first[-1] * wire.itemsize),
            out=out,
            first=first[:-1],
            stop=first[1:],
            rank=rank,
            partials=partials,
            flags=flags,
            results=results,
            watch=watch,
            step=step,
            old=old,
            beta=beta,
            contributing=contributing,
            behind=behind,
        )

    def reduce_scatter(
        self,
        stream: Stream,
        dtype: Dtype,
        first: Sequence[int],
        source: int,
        out: int,
        *,
        rank: int,
        slots: Slots,
        watch: Watch,
        step: int = 0,
        old: int = 0,
        beta: complex = 0.0,
        wire: Dtype | None = None,
        contributing: Sequence[int] | None = None,
        behind: Behind | None = None,
    ) -> None:
        """out := the sum of all ranks' partial products of this rank's part + beta old.

        Every rank sends the others their parts, and adds its own in the order r+1, r+2, ..., r (cyclic).

        Args:
            stream: handle.
            dtype: of out and old (global).
            first: element of `source` with which each rank's part begins, and their number (global).
            source: address of this rank's partial product, contiguous.
            out: address of this rank's part of the result, contiguous; may be old.
            rank: this one.
            slots: for the largest part each.
            watch: when to give up.
            step: what is recorded then.
            old: address of this rank's part; not read if beta is 0.
            beta: scalar (global).
            wire: dtype of the partial products: float32 or, by default, `dtype` (global).
            contributing: ranks that have a partial product; None: all (global).
            behind: what follows the last addition; out of kernels that were added for it (global).
        """
        wire = wire or dtype
        largest = max(stop - start for start, stop in pairwise(first))
        self._send(
            _name("scatter", dtype, wire, behind),
            stream,
            sending_ctas(largest * (len(first) - 2) * wire.itemsize),
            slots,
            out=out - first[rank] * dtype.itemsize,
            source=source,
            first=first[:-1],
            stop=first[1:],
            rank=rank,
            watch=watch,
            step=step,
            old=old,
            beta=beta,
            contributing=contributing,
            behind=behind,
            base=-first[rank],
        )

    def gather(
        self,
        stream: Stream,
        nbytes: int,
        first: Sequence[int],
        source: int,
        out: int,
        *,
        rank: int,
        slots: Slots,
        watch: Watch,
        step: int = 0,
    ) -> None:
        """out := the parts of all ranks, one after the other. NaNs stay NaNs, but not always with the same bits.

        Args:
            stream: handle.
            nbytes: of a number, 2, 4 or 8 (global).
            first: number with which each rank's part begins, and how many there are in all (global).
            source: address of this rank's part, contiguous; that of its place in `out` if it is there.
            out: address of the whole.
            rank: this one.
            slots: one for the largest part of each rank.
            watch: when to give up.
            step: what is recorded then.
        """
        nranks, largest = len(first) - 1, max(stop - start for start, stop in pairwise(first))
        sums = [address - nranks * slots.nbytes for address in slots.addresses]  # there are no slots before them
        self._send(
            f"gather_{nbytes}",
            stream,
            sending_ctas(largest * (nranks - 1) * nbytes),
            slots._replace(addresses=sums),
            out=out,
            source=source - first[rank] * nbytes,
            first=first[:-1],
            stop=first[1:],
            rank=rank,
            watch=watch,
            step=step,
            behind=None,
        )

    def ready(self, kind: str, key: Hashable, ctas: int, **arguments: Any) -> Ready:
        """A launch of a kernel of a collective, one that was added or is always there.

        Args:
            kind: one of the kernels of all_reduce.cuh, or "all_gather".
            key: of the kernels; a dtype: its sums, with nothing behind them; of an all-gather the bytes of an element.
            ctas: how many (global).
            arguments: those of `_reduce`, which all_reduce.cuh describes.
        """
        name = f"{kind}_{key.name if isinstance(key, np.dtype) else key}"
        function = self._functions[name if name in self._functions else (kind, key)]
        threads = _ROWS_THREADS if (kind, key) in self._rows else _ALL_REDUCE_THREADS
        return self._ready(function, ctas, threads, "all_reduce", *all_reduce_arguments(**arguments))

    def _send(self, name: Any, stream: Stream, ctas: int, slots: Slots, **arguments: Any) -> None:
        """Launch a kernel of all_reduce.cuh that sends."""
        arguments |= {"partials": slots.addresses, "slot_nbytes": slots.nbytes, "epoch": slots.epoch}
        self._reduce(name, stream, ctas, pitches=(slots.pitch, 0, 0), **arguments)

    def _reduce(self, name: Any, stream: Stream, ctas: int, *, behind: Behind | None, **arguments: Any) -> None:
        """Launch a kernel of all_reduce.cuh."""
        if behind is not None:
            arguments |= {"length": behind.length, "terms": behind.terms}
        scalars, tables = all_reduce_arguments(**arguments)
        self._launch(name, stream, ctas, _ALL_REDUCE_THREADS, "all_reduce", scalars, tables)

    def barrier(self, stream: int, rank: int, flags: Sequence[int], epoch: int, *, watch: Watch, step: int = 0) -> None:
        """Wait until all ranks have come here as often as this one.

        Args:
            stream: handle.
            rank: this one.
            flags: of each rank, as mapped here: the address of barrier_flags_nbytes().
            epoch: address of this rank's count of calls, 0 at first: the kernel counts, so that a captured launch can
                be replayed.
            watch: when to give up.
            step: what is recorded then.
        """
        scalars = (epoch, rank, len(flags), watch.abort, watch.record, watch.timeout, step)
        self._launch("barrier", stream, 1, MAX_RANKS, "barrier", scalars, (flags,))

    def wait(
        self,
        stream: Stream,
        flags: Sequence[int],
        sources: Sequence[int],
        *,
        watch: Watch,
        step: int = 0,
        told: Sequence[int] = (),
    ) -> None:
        """Set flags at peers, wait until all those of this rank are 1, and make them 0.

        Products end sooner than with streams that wait by themselves (docs/decisions/0006-waiting-by-kernel.md).

        Args:
            stream: handle.
            flags: addresses of words of this rank, at most MAX_RANKS.
            sources: ranks that set them.
            watch: when to give up.
            step: what is recorded then.
            told: addresses of the peers' flags, as mapped here, at most MAX_RANKS.
        """
        scalars = (len(flags), len(told), watch.abort, watch.record, watch.timeout, step)
        self._launch("wait", stream, 1, MAX_RANKS, "wait", scalars, (flags, sources, told))

    def delay(self, stream: int, nanoseconds: int) -> None:
        """Keep the stream busy for some time, a second at most."""
        self._launch("delay", stream, 1, 1, "delay", (nanoseconds,))

    def _elementwise(
        self,
        name: str,
        stream: Stream,
        dtype: Dtype,
        rows: int,
        columns: int,
        beta: complex,
        source: int,
        source_ld: int,
        target: int,
        target_ld: int,
    ) -> None:
        if rows == 0 or columns == 0:
            return
        beta = complex(beta)
        rows, columns = _flat(rows, columns, (source_ld, target_ld) if beta else (target_ld,))
        scalars = (target, source, rows, columns, target_ld, source_ld, beta.real, beta.imag)
        ctas = self._ctas(rows, columns, _PACK_NBYTES // dtype.itemsize)
        self._launch(name, stream, ctas, _THREADS, "elementwise", scalars)

    def _ctas(self, rows: int, columns: int, length: int) -> int:
        """CTAs of a kernel whose threads take a pack of `length` elements each."""
        packs = -(-rows // length) * columns
        return min(-(-packs // _THREADS), _CTAS_PER_SM * self._sms)

"""The kernels of all_reduce.cuh and all_gather.cu: reductions and gathers that communicate with peers."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.backends.nvshmem.kernels.arguments import PART_ALIGNMENT, all_reduce_arguments
from pblas.backends.nvshmem.kernels.module import Loaded
from pblas.backends.nvshmem.kernels.sizes import pulling_ctas, sending_ctas
from pblas.backends.nvshmem.kernels.sources import kernel_name

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from pblas.backends.cuda.kernels.module import Ready
    from pblas.backends.cuda.recordable import Stream
    from pblas.backends.nvshmem.kernels.arguments import EpilogueTerms, Slots, Watch

    Dtype = np.dtype[Any]

_PACK_NBYTES = 16
_THREADS, _ROWS_THREADS = 384, 512  # the latter where rows are normalised


class Collectives(Loaded):
    """Launches these kernels; `Kernels` describes addresses, streams and captures."""

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
        old: int = 0,
        beta: complex = 0.0,
        wire: Dtype | None = None,
        contributing: Sequence[int] | None = None,
        behind: EpilogueTerms | None = None,
    ) -> None:
        """out := the sum of all ranks' partial products + beta old, computed by every rank.

        Every rank sends its partial product to all, and adds those of ranks 1, 2, ..., 0 and, last, beta times its old.
        All ranks must call it with the same count and dtype.

        Args:
            stream: handle.
            dtype: of out and old (global).
            count: elements (global).
            source: address of this rank's partial product, contiguous.
            out: address; may be old or source.
            rank: this rank.
            slots: for `count` elements each.
            watch: when to give up.
            old: address; not read if beta is 0.
            beta: scalar (global).
            wire: dtype of the partial products: float32 or, by default, `dtype` (global).
            contributing: ranks that have a partial product; None: all (global).
            behind: epilogue after the last addition; `add` has compiled its kernels (global).
        """
        wire, nranks = wire or dtype, len(slots.addresses)
        self._send(
            kernel_name("one_shot", dtype, wire, behind),
            stream,
            sending_ctas(count * wire.itemsize),
            slots,
            out=out,
            source=source,
            first=[0] * nranks,
            stop=[count] * nranks,
            rank=rank,
            watch=watch,
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
        old: int = 0,
        beta: complex = 0.0,
        wire: Dtype | None = None,
        contributing: Sequence[int] | None = None,
        behind: EpilogueTerms | None = None,
    ) -> None:
        """out := the sum of all ranks' partial products + beta old, the same bits on every rank.

        Each element has an owner r, which gets it from all ranks. The owner adds those of r+1, r+2, ..., r (cyclic)
        and, last, beta times its old, and sends the sum to all.

        Args:
            stream: handle.
            dtype: of out and old (global).
            first: element with which each rank's share begins, and their number (global).
            source: address of this rank's partial product, contiguous.
            out: address; may be old or source.
            rank: this rank.
            slots: for the largest share each, and for sums.
            watch: when to give up.
            old: address; not read if beta is 0.
            beta: scalar (global).
            wire: dtype of the partial products: float32 or, by default, `dtype` (global).
            contributing: ranks that have a partial product; None: all (global).
            behind: epilogue after the last addition; `add` has compiled its kernels (global).
        """
        wire = wire or dtype
        self._send(
            kernel_name("two_shot", dtype, wire, behind),
            stream,
            sending_ctas(first[-1] * wire.itemsize),
            slots,
            out=out,
            source=source,
            first=first[:-1],
            stop=first[1:],
            rank=rank,
            watch=watch,
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
        old: int = 0,
        beta: complex = 0.0,
        wire: Dtype | None = None,
        contributing: Sequence[int] | None = None,
        behind: EpilogueTerms | None = None,
    ) -> None:
        """Like `two_shot`, but owners read the partial products in their peers' memory.

        When the kernel has ended, all ranks have read this rank's partial product, so it may be overwritten, and the
        next call may use the same flags and results. The kernel resets the flags to 0.

        Args:
            stream: handle; the partial product is complete in stream order.
            dtype: of out and old (global).
            first: element with which each rank's share begins, a multiple of PART_ALIGNMENT, and their number (global).
            out: address; may be old.
            rank: this rank.
            partials: of each rank, as mapped here: the address of its partial product, contiguous, a multiple of 16;
                the kernel also reads up to the next multiple after its end.
            flags: of each rank, as mapped here: the address of all_reduce_flags_nbytes().
            results: of each rank, as mapped here: the address of as many elements for the sums. Where peers can write
                into it, that of this rank is `out` itself, on all ranks.
            watch: when to give up.
            old: address; not read if beta is 0.
            beta: scalar (global).
            wire: dtype of the partial products: float32 or, by default, `dtype` (global).
            contributing: ranks that have a partial product; None: all (global).
            behind: epilogue after the last addition; `add` has compiled its kernels (global).
        """
        assert not any(address % _PACK_NBYTES for address in partials)
        assert not any(start % PART_ALIGNMENT for start in first if start < first[-1])
        wire = wire or dtype
        self._reduce(
            kernel_name("pulled", dtype, wire, behind),
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
        old: int = 0,
        beta: complex = 0.0,
        wire: Dtype | None = None,
        contributing: Sequence[int] | None = None,
        behind: EpilogueTerms | None = None,
    ) -> None:
        """out := the sum of all ranks' partial products of this rank's shard + beta old.

        Every rank r sends the peers their shards, and adds its own in the order r+1, r+2, ..., r (cyclic).

        Args:
            stream: handle.
            dtype: of out and old (global).
            first: element of `source` with which each rank's part begins, and their number (global).
            source: address of this rank's partial product, contiguous.
            out: address of this rank's part of the result, contiguous; may be old.
            rank: this rank.
            slots: for the largest part each.
            watch: when to give up.
            old: address of this rank's part; not read if beta is 0.
            beta: scalar (global).
            wire: dtype of the partial products: float32 or, by default, `dtype` (global).
            contributing: ranks that have a partial product; None: all (global).
            behind: epilogue after the last addition; `add` has compiled its kernels (global).
        """
        wire = wire or dtype
        largest = max(stop - start for start, stop in pairwise(first))
        self._send(
            kernel_name("scatter", dtype, wire, behind),
            stream,
            sending_ctas(largest * (len(first) - 2) * wire.itemsize),
            slots,
            out=out - first[rank] * dtype.itemsize,
            source=source,
            first=first[:-1],
            stop=first[1:],
            rank=rank,
            watch=watch,
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
    ) -> None:
        """out := the shards of all ranks, one after the other. NaNs stay NaNs, but not always with the same bits.

        Args:
            stream: handle.
            nbytes: of a number, 2, 4 or 8 (global).
            first: number with which each rank's part begins, and how many there are in all (global).
            source: address of this rank's part, contiguous; may be its place in `out`.
            out: address of the whole.
            rank: this rank.
            slots: one for the largest part of each rank.
            watch: when to give up.
        """
        nranks, largest = len(first) - 1, max(stop - start for start, stop in pairwise(first))
        sums = [address - nranks * slots.nbytes for address in slots.addresses]  # a gather needs no slots before them
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
            behind=None,
        )

    def ready(self, kind: str, key: Hashable, ctas: int, **arguments: Any) -> Ready:
        """A prepared launch of a collective's kernel, either built in or from `add`.

        Args:
            kind: one of the kernels of all_reduce.cuh, or "all_gather".
            key: key of the kernels; a dtype for sums without an epilogue; bytes of an element for an all-gather.
            ctas: number of CTAs (global).
            arguments: arguments of `_reduce`; all_reduce.cuh describes them.
        """
        name = f"{kind}_{key.name if isinstance(key, np.dtype) else key}"
        function = self._functions[name if name in self._functions else (kind, key)]
        threads = _ROWS_THREADS if (kind, key) in self._rows else _THREADS
        return self._ready(function, ctas, threads, "all_reduce", *all_reduce_arguments(**arguments))

    def _send(self, name: Any, stream: Stream, ctas: int, slots: Slots, **arguments: Any) -> None:
        """Launch a kernel of all_reduce.cuh that sends."""
        arguments |= {"partials": slots.addresses, "slot_nbytes": slots.nbytes, "epoch": slots.epoch}
        self._reduce(name, stream, ctas, pitches=(slots.pitch, 0, 0), **arguments)

    def _reduce(self, name: Any, stream: Stream, ctas: int, *, behind: EpilogueTerms | None, **arguments: Any) -> None:
        """Launch a kernel of all_reduce.cuh."""
        if behind is not None:
            arguments |= {"length": behind.length, "terms": behind.terms}
        scalars, tables = all_reduce_arguments(**arguments)
        self._launch(name, stream, ctas, _THREADS, "all_reduce", scalars, tables)

"""The kernels of all_reduce.cuh and all_gather.cu: reductions and gathers that communicate with peers."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

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


class Reduction(NamedTuple):
    """A reduction of all ranks' partial products by one kernel.

    Args:
        dtype: of out and old (global).
        wire: dtype of the partial products: float32 or `dtype` (global).
        bounds: first element of each rank's shard, then the number of elements (global).
        out: address of the result, contiguous: of this rank's shard in a reduce-scatter; may be old or the source.
        rank: this rank.
        watch: when to give up.
        old: address of as many elements; not read if beta is 0.
        beta: scalar (global).
        contributing: ranks that have a partial product; None: all (global).
        epilogue: epilogue after the last addition; `add` has compiled its kernels (global).
    """

    dtype: Dtype
    wire: Dtype
    bounds: Sequence[int]
    out: int
    rank: int
    watch: Watch
    old: int = 0
    beta: complex = 0.0
    contributing: Sequence[int] | None = None
    epilogue: EpilogueTerms | None = None


class Collectives(Loaded):
    """Launches these kernels; `Kernels` describes addresses, streams and captures."""

    def reduce(
        self,
        stream: Stream,
        kind: Literal["one_shot", "two_shot", "reduce_scatter"],
        call: Reduction,
        source: int,
        slots: Slots,
    ) -> None:
        """out := the epilogue of the sum of all ranks' partial products + beta old, which ranks send to each other.

        All ranks must call it with the same global arguments. Beta times old is added last.

        "one_shot": every rank sends its partial product to all ranks, and adds those of ranks 1, 2, ..., 0. "two_shot":
        each element has an owner r, to which all ranks send it. The owner adds those of r+1, r+2, ..., r (cyclic), and
        sends the sum to all ranks. Both give the same bits on every rank. "reduce_scatter": as two_shot, but the owners
        keep the sums.
        """
        bounds, nranks = call.bounds, len(slots.addresses)
        first, stop = bounds[:-1], bounds[1:]
        nelements, base = bounds[-1], 0
        if kind == "one_shot":
            first, stop = [0] * nranks, [nelements] * nranks
        elif kind == "reduce_scatter":
            nelements = max(b - a for a, b in pairwise(bounds)) * (nranks - 1)
            base = bounds[call.rank]
        self._reduce(
            kind, stream, call, sending_ctas(nelements * call.wire.itemsize), **_sent(slots), source=source,
            first=first, stop=stop, out=call.out - base * call.dtype.itemsize, base=-base,
        )  # fmt: skip

    def two_shot_pull(
        self, stream: Stream, call: Reduction, partials: Sequence[int], flags: Sequence[int], results: Sequence[int]
    ) -> None:
        """Like a two-shot `reduce`, but owners read the partial products in their peers' memory.

        When the kernel has ended, all ranks have read this rank's partial product, so it may be overwritten, and the
        next call may use the same flags and results. The kernel resets the flags to 0.
        """
        first, stop = call.bounds[:-1], call.bounds[1:]
        assert not any(address % _PACK_NBYTES for address in partials)
        assert not any(start % PART_ALIGNMENT for start in first if start < stop[-1])
        self._reduce(
            "two_shot_pull", stream, call, pulling_ctas(stop[-1] * call.wire.itemsize), partials=partials, flags=flags,
            results=results, first=first, stop=stop, out=call.out,
        )  # fmt: skip

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
        """out := the shards of all ranks, one after the other. NaNs stay NaNs, but not always with the same bits."""
        nranks, largest = len(first) - 1, max(stop - start for start, stop in pairwise(first))
        sums = [address - nranks * slots.nbytes for address in slots.addresses]  # a gather needs no slots before them
        arguments = all_reduce_arguments(
            **_sent(slots._replace(addresses=sums)), source=source - first[rank] * nbytes, out=out, first=first[:-1],
            stop=first[1:], rank=rank, watch=watch,
        )  # fmt: skip
        ctas = sending_ctas(largest * (nranks - 1) * nbytes)
        self._launch(f"all_gather_ll_{nbytes}", stream, ctas, _THREADS, "all_reduce", *arguments)

    def ready(self, kind: str, key: Hashable, ctas: int, **arguments: Any) -> Ready:
        """A prepared launch of a collective's kernel, either built in or from `add`."""
        name = f"{kind}_{key.name if isinstance(key, np.dtype) else key}"
        function = self._functions[name if name in self._functions else (kind, key)]
        threads = _ROWS_THREADS if (kind, key) in self._rows else _THREADS
        return self._ready(function, ctas, threads, "all_reduce", *all_reduce_arguments(**arguments))

    def _reduce(self, kind: str, stream: Stream, call: Reduction, ctas: int, **arguments: Any) -> None:
        """Launch a kernel of all_reduce.cuh for a reduction."""
        arguments |= {"rank": call.rank, "watch": call.watch, "contributing": call.contributing}
        arguments |= {"old": call.old, "beta": call.beta}
        if call.epilogue is not None:
            arguments |= {"length": call.epilogue.length, "terms": call.epilogue.terms}
        name = kernel_name(kind, call.dtype, call.wire, call.epilogue)
        self._launch(name, stream, ctas, _THREADS, "all_reduce", *all_reduce_arguments(**arguments))


def _sent(slots: Slots) -> dict[str, Any]:
    """The arguments of kernels that send to slots."""
    return {
        "partials": slots.addresses,
        "slot_nbytes": slots.nbytes,
        "epoch": slots.epoch,
        "pitches": (slots.pitch, 0, 0),
    }

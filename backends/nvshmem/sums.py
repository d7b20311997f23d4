"""Sums by kernels: of local partial products, and of all ranks' partial products, for which the kernels wait."""

from __future__ import annotations

import functools
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from pblas.backends.nvshmem.copies import common_order, extents, is_tight, leading, orders
from pblas.backends.nvshmem.kernels import Reduction, Strided
from pblas.backends.nvshmem.kernels.sources import file_of
from pblas.backends.nvshmem.reduction_epilogues import compiled_epilogue, compiling

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from pblas.backends.cuda.recordable import Stream
    from pblas.backends.nvshmem.copies import Copies
    from pblas.backends.nvshmem.graph_launch import Executions
    from pblas.backends.nvshmem.kernels import EpilogueTerms, Slots
    from pblas.backends.nvshmem.shared import EngineResources
    from pblas.backends.push_engine import Output


class Sums:
    """The reduction kernels on operands of plans; the arguments are those of the engine's methods.

    Args:
        common: resources of the context's engines (local).
        executions: executions of the queue, whose sink takes the launches (local).
        copies: copies that make C and D tight and of the right order (local).
    """

    def __init__(self, common: EngineResources, executions: Executions, copies: Copies) -> None:
        self._kernels, self._rank, self._watch = common.kernels, common.rank, common.watch
        self._executions, self._copies = executions, copies

    def add(self, lane: str, parts: list[Any], output: Output) -> None:
        """Store the sum of the parts, added in their order, in an output that is not empty."""
        out, old, wire = output.out, output.old, parts[0].dtype
        order = common_order(out, parts[0])
        epilogue = self._epilogue_terms(lane, output, order, wire=wire, scaled=False, family="sum")

        def start(stream: Stream) -> None:
            c = old if old is None or order in orders(old) else self._copies.reordered(lane, old, order)
            blocks = [Strided(x.data.ptr, leading(x, order)) for x in (*parts, out)]
            addend = None if c is None else Strided(c.data.ptr, leading(c, order))
            options: dict[str, Any] = {"old": addend, "beta": output.beta, "wire": wire, "epilogue": epilogue}
            self._kernels.sum(stream, out.dtype, extents(out, order), blocks[:-1], blocks[-1], **options)

        self._executions.sink.launch(lane, start)

    def reduce_scatter(
        self, lane: str, parts: list[Any], order: Any, slots: Slots, contributing: list[int], output: Output
    ) -> None:
        """Reduce-scatter with one kernel, which sends shards to their owners and adds the received shards."""
        bounds = list(accumulate((part.size for part in parts), initial=0))
        kernel = functools.partial(self._kernels.reduce, kind="reduce_scatter", source=parts[0].data.ptr, slots=slots)
        self._reduce(lane, kernel, order, parts[self._rank].dtype, bounds, contributing, output)

    def one_shot(self, lane: str, partial: Any, slots: Slots, contributing: list[int], output: Output) -> None:
        """All-reduce with one kernel, which sends the whole partial product to all ranks."""
        kernel = functools.partial(self._kernels.reduce, kind="one_shot", source=partial.data.ptr, slots=slots)
        self._reduce(lane, kernel, "F", partial.dtype, [0, partial.size], contributing, output)

    def two_shot(
        self,
        lane: str,
        wire: np.dtype[Any],
        first: list[int],
        source: int,
        slots: Slots,
        contributing: list[int],
        output: Output,
    ) -> None:
        """All-reduce with one kernel, which sends shards of the partial product at `source`, then its sums."""
        kernel = functools.partial(self._kernels.reduce, kind="two_shot", source=source, slots=slots)
        self._reduce(lane, kernel, "F", wire, first, contributing, output)

    def pulled(
        self,
        lane: str,
        wire: np.dtype[Any],
        first: list[int],
        places: dict[str, Any],
        contributing: list[int],
        output: Output,
    ) -> None:
        """All-reduce with one kernel, which reads the peers' partial products and stores sums there, at `places`."""
        kernel = functools.partial(self._kernels.two_shot_pull, **places)
        self._reduce(lane, kernel, "F", wire, first, contributing, output)

    def _reduce(
        self,
        lane: str,
        kernel: Callable[..., None],
        order: Any,
        wire: np.dtype[Any],
        bounds: list[int],
        contributing: list[int],
        output: Output,
    ) -> None:
        """Launch kernel(stream, call=reduction), which takes C and D tight and in this order."""
        out, old = output.out, output.old
        epilogue = self._epilogue_terms(lane, output, order, wire=wire, scaled=old is not None, family="all_reduce")

        def start(stream: Stream) -> None:
            c, beta = (0, 0.0) if old is None else (self._copies.tight(lane, old, order).data.ptr, output.beta)
            result = out if is_tight(out, order) else self._copies.packed(("result",), out, order)
            places = bounds, result.data.ptr, self._rank, self._watch, c
            kernel(stream, call=Reduction(out.dtype, wire, *places, beta, contributing, epilogue))
            if result is not out:
                self._copies.copy(lane, result, out)

        self._executions.sink.launch(lane, start)

    def _epilogue_terms(
        self, lane: str, output: Output, order: str, *, wire: np.dtype[Any], scaled: bool, family: str
    ) -> EpilogueTerms | None:
        """The epilogue as an argument of kernels; rehearsals of products compile the kernels."""
        stream, out = self._executions.sink.stream(lane), output.out
        if output.finish is None:
            with compiling():
                self._kernels.require(stream, file_of(family, out.dtype, wire))
            return None
        return compiled_epilogue(
            self._kernels, stream, output.finish, out, order, wire=wire, scaled=scaled, family=family
        )

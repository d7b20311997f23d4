"""Collectives of plain arrays on the GPUs of a node: one kernel for each round, which waits for its peers itself.

Each context has memory for them, in two halves that kernels use alternately. The kernels count calls on the GPU and so
find their half. A launch is therefore the same in any call, and in a graph of the caller's. The first call with some
arguments prepares its launches (`Prepared`).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import cupy
import numpy as np
from cupy.cuda import runtime

from pblas.backends.allocator import call_site
from pblas.backends.cuda import pointwise, streams
from pblas.backends.nvshmem.kernels.arguments import Slots, all_reduce_flags_nbytes, pulling_ctas, sending_ctas
from pblas.backends.nvshmem.workspace import FLAG_NBYTES, padded

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from pblas.backends.cuda.kernels import Ready
    from pblas.backends.dtypes import Array, Dtype, GpuArray
    from pblas.backends.nvshmem.kernels import Kernels
    from pblas.backends.nvshmem.shared import EngineResources
    from pblas.collectives.collective_plan import Rounds

LEAST_NBYTES, MOST_NBYTES = 4 << 20, 128 << 20
"""Bytes of the slots of one half: the least suffices for one-shot calls; larger calls take several rounds."""


class Halves:
    """**Collective.** Symmetric memory of collectives: each half has flags, slots, and a buffer that peers read."""

    def __init__(self, common: EngineResources, nbytes: int) -> None:
        stream = common.origin.ptr  # not in a capture
        self.nbytes: int = nbytes
        self.left_nbytes: int = nbytes // 2
        flags = padded(all_reduce_flags_nbytes(common.size))
        self.pitch: int = flags + self.nbytes + self.left_nbytes
        self._block = common.heap.allocate(2 * self.pitch, call_site)
        self.flags: list[int] = common.heap.addresses(self._block)
        self._slots = [address + flags for address in self.flags]
        self.left: list[int] = [address + nbytes for address in self._slots]
        self._epoch = cupy.cuda.Memory(FLAG_NBYTES)
        self.epoch: int = self._epoch.ptr
        for event in common.nvshmem.order.last:  # the memory may have been an array's
            runtime.streamWaitEvent(stream, event, 0)
        runtime.memsetAsync(self.epoch, 0, FLAG_NBYTES, stream)
        for half in range(2):
            start = self.flags[common.rank] + half * self.pitch
            runtime.memsetAsync(start, 0, flags, stream)
            runtime.memsetAsync(start + flags, 0xFF, nbytes, stream)
        runtime.streamSynchronize(stream)
        common.ranks.agree("make memory for collectives")  # nothing is sent before all are ready

    def slots(self, nbytes: int) -> Slots:
        """The memory as slots of `nbytes` bytes each, a multiple of 16 (global)."""
        return Slots(self._slots, nbytes, self.epoch, self.pitch)


@dataclass(frozen=True, slots=True)
class Plan:
    """Agreed parameters for calls of one kind.

    Args:
        kind: "one_shot", "two_shot", "two_shot_pull", "reduce_scatter" or "all_gather" (global).
        key: key of its kernels (global).
        rounds: partition of the elements (global).
        unit: elements that stay together (global).
        itemsize: bytes of an element of the rounds (global).
        halves: memory (global).
        slots: slots of this memory to which ranks send; None if they pull (global).
        rows: "inside": the reduction kernel normalises rows; "after": a second kernel does; "": neither (global).
        reversed: elements are numbered down the columns (global).
        sources: address of x on every rank, if x is pulled (global, as mapped here).
        targets: address of the result on every rank, if sums are stored there (global, as mapped here).
    """

    kind: str
    key: Hashable
    rounds: Rounds
    unit: int
    itemsize: int
    halves: Halves
    slots: Slots | None = None
    rows: Literal["", "inside", "after"] = ""
    reversed: bool = False
    sources: tuple[int, ...] | None = None
    targets: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Arrays:
    """The arrays of one call on this rank, all of them on the GPU (local)."""

    x: GpuArray  # input of the reduction or gather
    out: GpuArray  # result of the last kernel: the normalised rows, if rows are normalised
    sums: GpuArray  # result of the reduction: `out`, or the residual if rows are normalised
    base: int = 0  # number of the first element of `out` and `sums`
    x_base: int = 0  # number of the first element of x
    # of the epilogue's expression, in the order of its terms; arrays have the shape of `out`, or of its last dimension
    operands: tuple[Any, ...] = ()
    weight: Any = None  # weight of the normalised rows, or None
    eps: float = 0.0  # added to the mean square of a row


class Prepared:
    """A prepared call: its launches, with copies of arrays that are not tight before and after them."""

    def __init__(self, plan: Plan, arrays: Arrays, common: EngineResources, options: object) -> None:
        self._plan, self._options = plan, options
        self._copies: list[Any] = []
        self._before: list[tuple[Any, Any]] = []
        self._after: list[tuple[Any, Any]] = []
        itemsize = plan.itemsize
        out = self._tight(arrays.out, writes=True)
        sums = out if arrays.sums is arrays.out else self._tight(arrays.sums, reads=True, writes=True)
        weight = 0 if arrays.weight is None else self._tight(arrays.weight, reads=True)
        needs_row_pass = plan.rows == "after" and arrays.out.size > 0
        self._rows = _row_pass(common, arrays, sums, out, weight) if needs_row_pass else None
        arguments = {
            "source": self._tight(arrays.x, reads=True) - arrays.x_base * itemsize,
            "out": sums - arrays.base * itemsize,
            "normalised": out - arrays.base * itemsize if plan.rows == "inside" else 0,
            "columns": arrays.out.shape[-1] if plan.rows == "inside" else 0,
            "weight": weight,
            "base": -arrays.base,
            "rank": common.rank,
            "watch": common.watch,
            "epoch": plan.halves.epoch,
            **self._terms(arrays),
        }
        self._launches = [self._launch(common.kernels, number, arguments) for number in range(len(plan.rounds))]

    def launch(self, stream: int) -> None:
        """Launch the call on a stream (local)."""
        for source, target in self._before:
            _copy(stream, source, target)
        for launch in self._launches:
            launch.launch(stream)
        if self._rows is not None:
            self._rows(stream)
        for source, target in self._after:
            _copy(stream, source, target)

    def _tight(self, x: GpuArray, *, reads: bool = False, writes: bool = False) -> int:
        """Address of an array's elements in consecutive order: of the array itself, or of a tight copy."""
        view = x.T if self._plan.reversed else x
        if view.flags.c_contiguous:
            return int(x.data.ptr)
        memory = cupy.cuda.MemoryPointer(cupy.cuda.Memory(x.nbytes), 0)
        tight = cupy.ndarray(view.shape, x.dtype, memory)
        original, packed = _unowned(view), _unowned(tight)
        self._copies.append(tight)
        if reads:
            self._before.append((original, packed))
        if writes:
            self._after.append((packed, original))
        return int(memory.ptr)

    def _terms(self, arrays: Arrays) -> dict[str, object]:
        """Operands of the epilogue. Lines are rows, or columns where elements are numbered down them."""
        shape, size = arrays.out.shape, arrays.out.size
        columns = max(1, shape[-1] if shape else 1)
        length = max(1, size // columns) if self._plan.reversed else columns
        row = (0, 1) if self._plan.reversed else (1, 0)
        words: list[int] = []
        if self._plan.rows == "inside":
            words += pointwise.number_term(arrays.eps)
        for value in arrays.operands:
            if not isinstance(value, cupy.ndarray):
                words += pointwise.number_term(value)
            elif value.shape == shape:
                words += (self._tight(value, reads=True), 1, length)
            else:
                words += (self._tight(value, reads=True), *row)
        return {"terms": words, "length": length}

    def _launch(self, kernels: Kernels, number: int, arguments: dict[str, Any]) -> Ready:
        """The kernel of a round."""
        plan, halves = self._plan, self._plan.halves
        pieces = [plan.rounds.piece(rank, number) for rank in range(len(halves.flags))]
        first, stop = ([piece[i] for piece in pieces] for i in (0, 1))
        largest = max(b - a for a, b in pieces)
        ctas, where = self._where(first, largest * plan.itemsize)
        arguments = arguments | {"first": first, "stop": stop, "flags": halves.flags} | where
        return kernels.ready(plan.kind, plan.key, max(1, min(ctas, -(-largest // plan.unit))), **arguments)

    def _where(self, first: list[int], nbytes: int) -> tuple[int, dict[str, object]]:
        """CTAs for shards of `nbytes` bytes, and the addresses that the kernel of a round writes or reads."""
        plan, pitch, size = self._plan, self._plan.halves.pitch, len(first)
        if plan.slots is not None:
            sent = nbytes * {"one_shot": 1, "two_shot": size, "reduce_scatter": size - 1}[plan.kind]
            where = {"partials": plan.slots.addresses, "slot_nbytes": plan.slots.nbytes}
            return sending_ctas(sent), where | {"pitches": (pitch, 0, 0)}
        ctas = pulling_ctas(nbytes * size)
        if plan.kind == "two_shot_pull":
            return ctas, {"partials": plan.sources, "results": plan.targets, "pitches": (0, pitch, 0)}
        left, starts = plan.halves.left, first
        if plan.sources is not None:
            left, starts = list(plan.sources), [plan.rounds.part(rank)[0] for rank in range(size)]
        results = [address - start * plan.itemsize for address, start in zip(left, starts, strict=True)]
        pitches = (0, pitch, 0 if plan.sources is not None else pitch)
        return ctas, {"partials": results, "results": results, "pitches": pitches}


class DeviceCollectives:
    """Shared state of the collectives of a context."""

    def __init__(self, common: EngineResources) -> None:
        self.resources = common
        self._halves: list[Halves] = []
        self.plans: dict[Hashable, Plan] = {}
        """Agreed plans by the signature of their calls; all ranks have the same (global)."""
        self.prepared: OrderedDict[Hashable, Prepared] = OrderedDict()
        """The last prepared calls by their arrays and options, the most recent one at the end (local)."""

    def reserve(self, nbytes: int, least: int = 0) -> Halves:
        """**Collective.** Memory with slots of `nbytes` bytes in each half, or fewer if several rounds are possible.

        Graphs of earlier calls still use earlier memory, so all of it lives as long as this object.
        """
        wanted = max(min(max(nbytes, LEAST_NBYTES), MOST_NBYTES), least)
        if not self._halves or self._halves[-1].nbytes < wanted:
            with streams.relaxed():
                self._halves.append(Halves(self.resources, 1 << (wanted - 1).bit_length()))
        return self._halves[-1]


def _row_pass(common: EngineResources, arrays: Arrays, x: int, out: int, weight: int) -> Callable[[int], None]:
    """A function that normalises tight rows on a stream; the addresses may be those of tight copies (local)."""
    columns, weights, dtype = arrays.out.shape[-1], arrays.weight, arrays.out.dtype
    shape = arrays.out.size // columns, columns
    return partial(
        common.ranks.arrays.pointwise.normalise,
        x=_array_at(x, shape, dtype),
        out=_array_at(out, shape, dtype),
        weight=None if weights is None else _array_at(weight, weights.shape, weights.dtype),
        eps=arrays.eps,
    )


def _array_at(address: int, shape: tuple[int, ...], dtype: Dtype, strides: object = None) -> GpuArray:
    """An array in memory that the caller keeps alive."""
    memory = cupy.cuda.UnownedMemory(address, max(1, int(np.prod(shape)) * dtype.itemsize), None)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0), strides)


def _unowned(x: GpuArray) -> GpuArray:
    """The same elements as words that CuPy can copy; the caller keeps the memory alive."""
    word = np.dtype(f"u{x.itemsize}") if x.itemsize <= 8 else x.dtype
    return _array_at(x.data.ptr, x.shape, word, x.strides)


def _copy(stream: int, source: Array, target: Array) -> None:
    """Target := source, with a kernel."""
    with cupy.cuda.Stream.from_external(streams.Handle(stream)):
        cupy.copyto(target, source)

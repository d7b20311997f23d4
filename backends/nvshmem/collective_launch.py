"""Collectives of plain arrays on GPUs that access each other's memory: agree on new kinds of calls, prepare, launch.

The ranks agree once on each combination of shapes, dtypes and options. A later call like it is launched without any
communication between the hosts, on the caller's stream or into a graph that it captures. If the arrays are known too,
the call costs one look-up.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import cupy

from pblas.backends.cuda import streams
from pblas.backends.nvshmem.collectives import Arrays, Plan, Prepared
from pblas.backends.nvshmem.kernels import ReductionEpilogue, compiling
from pblas.backends.nvshmem.kernels.sources import file_of
from pblas.epilogues import RESULT, Epilogue, Name, Node, operand_names, parse

if TYPE_CHECKING:
    from collections.abc import Hashable

    from pblas.backends.dtypes import GpuArray
    from pblas.backends.nvshmem.stream_engine import StreamEngine
    from pblas.collectives.arguments import GatherArguments, ReduceArguments

_WORD_NBYTES, _PACK_NBYTES = 8, 16
"""Bytes of the widest element of an all-gather's kernels, and bytes that a thread moves at a time."""
PULLED_NBYTES = 8 << 20
"""Peers read arrays of at least this size in place, if they are in symmetric memory. On 2 H200, in us, sent and pulled:
4 MiB 17.6 and 18.4, 16 MiB 57.2 and 55.4, 64 MiB 204 and 202."""
_BY_ROWS = 1 << 60  # beyond all offsets
_MAX_PREPARED = 64
_OFFSET_BITS = 44  # of an address in a window

Addresses = tuple[int, ...] | None


class CollectiveLaunch:
    """Launches collectives of plain arrays."""

    def __init__(self, engine: StreamEngine) -> None:
        self._engine, self._state = engine, engine.collectives
        self._resources = self._state.resources

    def repeat(self, operation: str, x: object, out: object, options: tuple[object, ...], stream: object) -> bool:
        """Launch a call that was prepared before, with the same x, out and options; whether there was one (local)."""
        key = _key(operation, x, out, options)
        prepared = None if None in key[1:3] else self._state.prepared.get(key)
        if prepared is None:
            return False
        self._state.prepared.move_to_end(key)
        self._engine.collect(prepared, stream)
        return True

    def reduce(self, call: ReduceArguments, options: tuple[object, ...], stream: object) -> Any:
        """**Collective** for a new kind of call: an all-reduce or a reduce-scatter."""
        plan, shape = self._reduction(call), call.place.shape
        order: Literal["C", "F"] = "F" if plan.reversed else "C"
        target = call.target(shape, lambda: _empty(shape, call.dtype, order, stream), order)
        if call.x.size:
            arrays = Arrays(
                call.x,
                target.array,
                target.array if call.residual is None else call.residual,
                base=0 if call.shares else plan.rounds.part(self._resources.rank)[0],
                operands=tuple(call.operands[name] for name in operand_names(_tree(call))),
                weight=call.operands.get("weight") if call.form.is_rmsnorm else None,
                eps=call.operands["eps"] if call.form.is_rmsnorm else 0.0,
            )
            self._launch(call.name, plan, arrays, options, stream)
        return target.result

    def gather(self, call: GatherArguments, options: tuple[object, ...], stream: object) -> Any:
        """**Collective** for a new kind of call, or if `call.counts` is None: an all-gather.

        Without counts the ranks exchange the lengths of their arrays in every call.
        """
        code = self._code(call.x, by_columns=False)
        counts, extremes = (call.counts, ()) if call.counts is not None else call.agreed_counts(code)
        signature = call.name, call.x.shape[1:], call.dtype.name, tuple(counts), code
        plan = self._state.plans.get(signature)
        if not extremes and (plan is None or call.runtime.debug):
            extremes = call.agree((code, -code))
        if plan is None:
            sources = self._peer_addresses(code, *extremes)
            plan = self._state.plans[signature] = self._new_gather(call, counts, sources)
        shape = sum(counts), *call.x.shape[1:]
        target = call.target(shape, lambda: _empty(shape, call.dtype, "C", stream))
        if target.array.size:
            arrays = Arrays(call.x, target.array, target.array, x_base=plan.rounds.part(self._resources.rank)[0])
            self._launch(call.name, plan, arrays, options, stream)
        return target.result

    def _launch(self, operation: str, plan: Plan, arrays: Arrays, options: tuple[object, ...], stream: Any) -> None:
        """Prepare a call, keep it for `repeat`, and launch it (local)."""
        calls = self._state.prepared
        with streams.relaxed():
            prepared = Prepared(plan, arrays, self._resources, options)
        calls[_key(operation, arrays.x, arrays.out, options)] = prepared
        while len(calls) > _MAX_PREPARED:
            calls.popitem(last=False)
        self._engine.collect(prepared, stream)

    def _reduction(self, call: ReduceArguments) -> Plan:
        """**Collective** for a new kind of call: the plan of calls like this one."""
        target, form = call.out if call.residual is None else call.residual, call.form
        pulls = call.shares and form.algorithm == "two_shot" and not form.is_rmsnorm and call.x.nbytes >= PULLED_NBYTES
        codes = [self._code(array if pulls else None, by_columns=call.by_columns) for array in (call.x, target)]
        signature = (call.signature(), *codes)
        plan = self._state.plans.get(signature)
        if plan is None or call.runtime.debug:
            maxima = call.agree((codes[0], -codes[0], codes[1], -codes[1]))
        if plan is None:
            addresses = [
                self._peer_addresses(code, high, low)
                for code, high, low in zip(codes, maxima[::2], maxima[1::2], strict=True)
            ]
            plan = self._new_reduction(call, addresses, by_columns=maxima[0] < _BY_ROWS)
            self._state.plans[signature] = plan
        return plan

    def _new_reduction(self, call: ReduceArguments, addresses: list[Addresses], *, by_columns: bool) -> Plan:
        """**Collective.** Cut the elements, reserve memory, compile."""
        nprocs, itemsize = self._resources.size, call.x.itemsize
        kind = call.form.algorithm if call.shares else "reduce_scatter"
        rows: Literal["", "inside", "after"] = ""
        if call.form.is_rmsnorm:  # one kernel can add and normalise whole rows of whole packs
            rows = "inside" if kind == "one_shot" and call.form.unit * itemsize % _PACK_NBYTES == 0 else "after"
        key = self._compiled(call, rows)
        unit = call.form.unit if rows == "inside" else call.form.line
        rounds = call.form.rounds(unit)
        largest = max(b - a for a, b in pairwise(rounds.bounds))
        if kind == "two_shot" and None not in addresses:  # no slots between the arrays
            rounds, halves = replace(rounds, width=max(1, largest)), self._state.reserve(0)
            return Plan("two_shot_pull", key, rounds, unit, itemsize, halves, None, "", by_columns, *addresses)
        nslots, least = nprocs * (2 if kind == "two_shot" else 1), -(-unit * itemsize // _PACK_NBYTES) * _PACK_NBYTES
        halves = self._state.reserve(nslots * (largest * itemsize + least), nslots * least)
        slots = halves.slots(halves.nbytes // nslots // _PACK_NBYTES * _PACK_NBYTES)
        rounds = replace(rounds, width=slots.nbytes // itemsize // unit * unit)
        return Plan(kind, key, rounds, unit, itemsize, halves, slots, rows, by_columns)

    def _compiled(self, call: ReduceArguments, rows: str) -> Hashable:
        """**Collective.** Load the kernels of a reduction, and return the key of the adding kernels."""
        tree, common = _tree(call), self._resources
        dtypes = tuple(getattr(call.operands[name], "dtype", None) for name in operand_names(tree))
        weight = getattr(call.operands.get("weight"), "dtype", call.dtype)
        epilogue = ReductionEpilogue(call.form.op, tree, dtypes, weight if rows == "inside" else None)
        keys: list[Hashable] = [call.dtype]

        def load() -> None:
            if epilogue.is_plain:
                with compiling():
                    common.kernels.require(common.origin.ptr, file_of("all_reduce", call.dtype, call.dtype))
            else:
                keys.append(epilogue.load(common.kernels, common.origin.ptr, call.dtype))
            if rows == "after":
                with compiling():
                    common.ranks.arrays.pointwise.load_rows(call.dtype, weight)

        common.prepare(f"{call.name}: compile", load)
        return keys[-1]

    def _new_gather(self, call: GatherArguments, counts: Any, sources: Addresses) -> Plan:
        """**Collective.** Cut the elements, reserve memory, compile."""
        common = self._resources

        def load() -> None:
            with compiling():
                common.kernels.require(common.origin.ptr, "all_gather")

        common.prepare(f"{call.name}: compile", load)
        itemsize = min(call.x.itemsize, _WORD_NBYTES)
        rounds, words = call.rounds(counts), call.x.itemsize // itemsize
        bounds = tuple(words * bound for bound in rounds.bounds)
        halves = self._state.reserve(2 * max(b - a for a, b in pairwise(bounds)) * itemsize)
        width = max(1, bounds[-1]) if sources else halves.left_nbytes // itemsize
        rounds = replace(rounds, bounds=bounds, width=width)
        return Plan("all_gather", itemsize, rounds, _PACK_NBYTES // itemsize, itemsize, halves, sources=sources)

    def _code(self, x: GpuArray | None, *, by_columns: bool) -> int:
        """An array's place in symmetric memory, 0 if it is elsewhere or not tight, and its element order (local)."""
        code = 0 if by_columns else _BY_ROWS
        if x is None or not x.size or x.data.ptr % _PACK_NBYTES or not (x.T if by_columns else x).flags.c_contiguous:
            return code
        window, offset = self._resources.heap.locate(x.data.ptr)
        return code if window < 0 else code + (window << _OFFSET_BITS | offset) + 1

    def _peer_addresses(self, code: int, high: int, low: int) -> Addresses:
        """Addresses of all ranks' arrays on this GPU; None unless all are at one place of symmetric memory (local)."""
        place, heap = code % _BY_ROWS, self._resources.heap
        if not place or high != -low:
            return None
        window, offset = divmod(place - 1, 1 << _OFFSET_BITS)
        return tuple(heap.place_address(window, offset, rank) for rank in range(self._resources.size))


def _key(operation: str, x: object, out: object, options: tuple[object, ...]) -> tuple[object, ...]:
    """Key of a prepared call: its checked arrays and its options (local)."""
    return operation, _identity(x), _identity(out), *map(_named, options)


def _identity(x: Any) -> tuple[object, ...] | None:
    """Key of an array on a GPU; None for an object that must be checked (local)."""
    pointer = getattr(getattr(x, "data", None), "ptr", None)
    return None if pointer is None else (pointer, x.shape, x.strides, x.dtype)


def _named(option: object) -> Any:
    """Key of an option. An epilogue operand that is neither a number nor a CuPy array counts by its id."""
    if isinstance(option, str | None):
        return option or ""
    if isinstance(option, Epilogue):
        operands = (
            (name, _identity(z) or (repr(z) if isinstance(z, complex | float | int) else id(z)))
            for name, z in option.operands.items()
        )
        return option.expression, *operands
    return tuple(option) if isinstance(option, list | tuple) else object()


def _tree(call: ReduceArguments) -> Node:
    """The expression applied after the last addition; rows are normalised after it."""
    epilogue = call.epilogue
    if isinstance(epilogue, Epilogue) and epilogue.tree is not None:
        return epilogue.tree
    return Name(RESULT) if call.residual is None else parse(f"{RESULT} + residual")


def _empty(shape: tuple[int, ...], dtype: object, order: str, stream: object) -> Any:
    """A new array in CuPy's memory of a stream (local)."""
    if stream is None:
        return cupy.empty(shape, dtype, order)
    with cupy.cuda.Stream.from_external(streams.Handle(streams.handle_of(stream))):
        return cupy.empty(shape, dtype, order)

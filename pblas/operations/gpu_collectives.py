"""Collectives of plain arrays on GPUs: agree on new kinds of calls, check the arguments, launch.

The ranks agree once on each combination of shapes, dtypes and options. A later call like it is launched without any
communication between the hosts, on the caller's stream or into a graph that it captures. If the arrays are known too,
the call costs one look-up.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pblas.epilogues import RESULT, Epilogue, Name, Node, operand_names, parse
from pblas.execute.collective.collective import Steps, run_naive
from pblas.execute.collective.flat import Flat
from pblas.operations.arguments.collective import GatherArguments, ReduceArguments
from pblas.plans.collective import Rounds, aligned, shares

if TYPE_CHECKING:
    from collections.abc import Hashable

    from pblas.backends.dtypes import Array
    from pblas.backends.local_step import LocalStep
    from pblas.operations.arguments.collective import Reduction
    from pblas.runtime.runtime import Runtime

_WORD_NBYTES, _PACK_NBYTES = 8, 16
"""Bytes of the widest element of an all-gather's kernels, and bytes that a thread moves at a time."""
PULLED_NBYTES = 8 << 20
"""Peers read arrays of at least this size in place, if they are in symmetric memory. On 2 H200, in us, sent and pulled:
4 MiB 17.6 and 18.4, 16 MiB 57.2 and 55.4, 64 MiB 204 and 202."""
_BY_ROWS, _WRONG = 1 << 60, 1 << 61  # beyond all offsets


def reduce(runtime: Runtime, verb: str, x: Any, out: Any, options: Reduction, stream: Any) -> Any:
    """**Collective.** An all-reduce or a reduce-scatter."""
    engine = _begin(runtime)
    key = verb, _identity(x), _identity(out), *map(_named, options)
    if _again(runtime, engine, key, stream):
        return out
    with _checking(runtime, verb):
        spec = ReduceArguments(verb, runtime, x, out, options)
        runtime.backend.arrays.check_stream(verb, stream, waits=spec.algorithm == "naive")
    if engine is None or spec.algorithm == "naive":
        return _reduce_naively(spec)
    plan, shape = _reduction(runtime, engine.collectives, spec), spec.place.shape
    order: Literal["C", "F"] = "F" if plan.reversed else "C"
    target = spec.target(shape, lambda: engine.collectives.empty(shape, spec.dtype, order, stream), order)
    result: Any = target.array
    if spec.x.size:
        key = (verb, _identity(spec.x), _identity(result), *key[3:])
        prepared = engine.collectives.prepare(
            *(key, plan, spec.x, result, spec.residual),
            base=0 if spec.shares else plan.rounds.part(runtime.rank)[0],
            operands=tuple(spec.operands[name] for name in operand_names(_tree(spec))),
            weight=spec.operands.get("weight") if spec.is_rmsnorm else None,
            eps=spec.operands["eps"] if spec.is_rmsnorm else 0.0,
            keep=options.epilogue,
        )
        engine.collect(prepared, stream)
    return target.result


def gather(runtime: Runtime, x: Any, out: Any, counts: Any, stream: Any) -> Any:
    """**Collective.** An all-gather."""
    engine, verb = _begin(runtime), "allgather"
    key = verb, _identity(x), _identity(out), _named(counts)
    if counts is not None and _again(runtime, engine, key, stream):
        return out
    with _checking(runtime, verb):
        spec = GatherArguments(runtime, x, out, counts)
        runtime.backend.arrays.check_stream(verb, stream, waits=engine is None)
    if engine is None:
        return _gather_naively(spec)
    collectives = engine.collectives
    code = _code(collectives, spec.x, by_columns=False)
    known, extremes = (spec.counts, ()) if spec.counts is not None else _counts(spec, code)
    signature = verb, spec.x.shape[1:], spec.dtype.name, known, code
    plan = collectives.plan(signature)
    if not extremes and (plan is None or runtime.debug):
        extremes = runtime.agree(verb, spec.arguments(), None, (code, -code))
    if plan is None:
        plan = _gathering(signature, collectives, spec, known, _peer_addresses(collectives, code, *extremes))
    shape = sum(known), *spec.x.shape[1:]
    target = spec.target(shape, lambda: collectives.empty(shape, spec.dtype, "C", stream))
    result: Any = target.array
    if result.size:
        key = verb, _identity(spec.x), _identity(result), _named(counts)
        prepared = collectives.prepare(key, plan, spec.x, result, x_base=plan.rounds.part(runtime.rank)[0])
        engine.collect(prepared, stream)
    return target.result


def _begin(runtime: Runtime) -> Any:
    """The engine that launches collectives; None where GPUs cannot access each other's memory."""
    if not runtime.backend.push:
        return None
    runtime.backend.agreement.nexecutions += 1
    return runtime.backend.engine()


def _again(runtime: Runtime, engine: Any, key: tuple[Any, ...], stream: Any) -> bool:
    """Launch a call that was prepared before, with the same x, out and options; whether there was one (local)."""
    if engine is None or runtime.debug or None in key[1:3]:
        return False
    prepared = engine.collectives.prepared(key)
    if prepared is not None:
        engine.collect(prepared, stream)
    return prepared is not None


def _checking(runtime: Runtime, verb: str) -> LocalStep:
    """A with block in which this rank checks its arguments; others may launch or agree meanwhile (local)."""
    return runtime.rejecting(verb) if runtime.backend.push else runtime.local_step(verb)


def _identity(x: Any) -> Any:
    """Key of an array that was checked before; None for an object that must be checked (local)."""
    data = getattr(x, "data", None)
    pointer = getattr(data, "ptr", None)
    return None if pointer is None else (pointer, x.shape, x.strides, x.dtype)


def _named(option: Any) -> Any:
    """Key of an option. An epilogue operand that is neither a number nor a CuPy array counts by its id."""
    if isinstance(option, str | None):
        return option or ""
    if isinstance(option, Epilogue):
        operands = ((name, _identity(value) or _number_or_id(value)) for name, value in option.operands.items())
        return option.expression, *operands
    return tuple(option) if isinstance(option, list | tuple) else object()


def _code(collectives: Any, x: Array | None, *, by_columns: bool) -> int:
    """An array's offset in symmetric memory, 0 if it is elsewhere, combined with its element order (local)."""
    tight = x is not None and (x.T if by_columns else x).flags.c_contiguous
    return (collectives.place(x) if tight else 0) + (0 if by_columns else _BY_ROWS)


def _peer_addresses(collectives: Any, code: int, high: int, low: int) -> tuple[int, ...] | None:
    """Addresses of an array on every rank, given the highest code and the negated lowest one; None if they differ."""
    place = code % _BY_ROWS
    return collectives.homes(place) if place and high == -low else None


def _number_or_id(value: Any) -> Any:
    return repr(value) if isinstance(value, complex | float | int) else id(value)


# Reductions


def _reduction(runtime: Runtime, collectives: Any, spec: ReduceArguments) -> Any:
    """**Collective** for a new kind of call: the plan of calls like this one."""
    target = spec.out if spec.residual is None else spec.residual
    pulls = spec.shares and spec.algorithm == "two_shot" and not spec.is_rmsnorm and spec.x.nbytes >= PULLED_NBYTES
    codes = [_code(collectives, array if pulls else None, by_columns=spec.by_columns) for array in (spec.x, target)]
    signature = (spec.signature(), *codes)
    plan = collectives.plan(signature)
    if plan is None or runtime.debug:
        maxima = runtime.agree(spec.verb, spec.arguments(), None, (codes[0], -codes[0], codes[1], -codes[1]))
    if plan is not None:
        return plan
    addresses = [
        _peer_addresses(collectives, code, high, low)
        for code, high, low in zip(codes, maxima[::2], maxima[1::2], strict=True)
    ]
    return _new_reduction(signature, runtime, collectives, spec, addresses, by_columns=maxima[0] < _BY_ROWS)


def _new_reduction(
    signature: Hashable,
    runtime: Runtime,
    collectives: Any,
    spec: ReduceArguments,
    addresses: list[tuple[int, ...] | None],
    *,
    by_columns: bool,
) -> Any:
    """**Collective.** Cut the elements, reserve memory, compile."""
    tree, nprocs, itemsize = _tree(spec), runtime.nprocs, spec.x.itemsize
    dtypes = tuple(getattr(spec.operands[name], "dtype", None) for name in operand_names(tree))
    weight = getattr(spec.operands.get("weight"), "dtype", spec.dtype)
    kind = spec.algorithm if spec.shares else "scatter"
    rows: Literal["", "inside", "behind"] = ""
    if spec.is_rmsnorm:  # one kernel can add and normalise whole rows of whole packs
        rows = "inside" if kind == "one_shot" and spec.unit * itemsize % _PACK_NBYTES == 0 else "behind"
    with runtime.local_step(f"{spec.verb}: compile"):
        key = collectives.compile(spec.op, tree, dtypes, spec.dtype, weight if rows == "inside" else None)
        if rows == "behind":
            collectives.compile_rows(spec.dtype, weight)
    runtime.agree(f"{spec.verb}: compile", {})
    size, unit = spec.x.size, spec.unit if rows == "inside" else aligned(itemsize)
    if kind == "one_shot":
        bounds: tuple[int, ...] = (0, size)
    elif spec.shares:
        bounds = shares(size, nprocs, unit)
    else:
        row = size // max(1, spec.x.shape[0])
        bounds = tuple(row * count for count in accumulate(spec.counts, initial=0))
    largest = max(b - a for a, b in pairwise(bounds))
    if kind == "two_shot" and None not in addresses:  # no slots between the arrays
        rounds = Rounds(bounds, max(1, largest))
        halves = collectives.reserve(0)
        return collectives.learn(
            signature, "pulled", key, rounds, unit, itemsize, halves, None, "", by_columns, *addresses
        )
    nslots, least = nprocs * (2 if kind == "two_shot" else 1), -(-unit * itemsize // _PACK_NBYTES) * _PACK_NBYTES
    halves = collectives.reserve(nslots * (largest * itemsize + least), nslots * least)
    slots = halves.slots(halves.nbytes // nslots // _PACK_NBYTES * _PACK_NBYTES)
    rounds = Rounds(bounds, slots.nbytes // itemsize // unit * unit, whole=kind == "one_shot")
    return collectives.learn(signature, kind, key, rounds, unit, itemsize, halves, slots, rows, by_columns)


def _tree(spec: ReduceArguments) -> Node:
    """The expression applied after the last addition; rows are normalised after it."""
    epilogue = spec.epilogue
    if isinstance(epilogue, Epilogue) and epilogue.tree is not None:
        return epilogue.tree
    return Name(RESULT) if spec.residual is None else parse(f"{RESULT} + residual")


# All-gathers


def _counts(spec: GatherArguments, code: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """**Collective.** Rows of each rank, and the highest code and the negated lowest one."""
    runtime, nrows = spec.runtime, len(spec.x)
    counts = [nrows] * runtime.nprocs  # the most frequent case
    checked_code = code + (_WRONG if spec.error_of(counts) is not None else 0)
    high, low, *codes = runtime.agree(spec.verb, spec.arguments(), None, (nrows, -nrows, checked_code, -code))
    if high != -low or codes[0] >= _WRONG:
        counts = runtime.gathered(nrows)
        codes = list(runtime.agree(f"{spec.verb}: lengths", {}, spec.error_of(counts), (code, -code)))
    return tuple(counts), tuple(codes)


def _gathering(
    signature: Hashable,
    collectives: Any,
    spec: GatherArguments,
    counts: tuple[int, ...],
    sources: tuple[int, ...] | None,
) -> Any:
    """**Collective.** Cut the elements, reserve memory."""
    itemsize = min(spec.x.itemsize, _WORD_NBYTES)
    row = int(np.prod(spec.x.shape[1:], dtype=np.int64)) * (spec.x.itemsize // itemsize)
    bounds = tuple(row * count for count in accumulate(counts, initial=0))
    halves = collectives.reserve(2 * row * max(counts) * itemsize)
    width = max(1, bounds[-1]) if sources else halves.left_nbytes // itemsize
    unit = _PACK_NBYTES // itemsize
    rounds = Rounds(bounds, width)
    return collectives.learn(signature, "all_gather", itemsize, rounds, unit, itemsize, halves, sources=sources)


# Through the hosts


def _reduce_naively(spec: ReduceArguments) -> Any:
    """**Collective.** Through the hosts' memory and MPI."""
    runtime = spec.runtime
    runtime.agree(spec.verb, spec.arguments())
    target = spec.target(spec.place.shape, lambda: runtime.backend.new(spec.place.shape, spec.dtype))
    host = spec.with_arrays(runtime.backend.arrays.download)
    rounds = host.rounds(by_messages=True)
    base = 0 if spec.shares else rounds.part(runtime.rank)[0]
    outs = [np.empty(spec.place.shape, spec.dtype)] + ([] if host.residual is None else [host.residual])
    steps = Steps(spec.verb, spec.op, spec.shares, rounds, spec.unit)
    flats = [Flat(out, base) for out in outs]
    run_naive(runtime.backend, steps, Flat(host.x), flats, host.finish(by_columns=False, base=base))
    for host_result, place in zip(outs, (target.array, spec.residual), strict=False):
        runtime.backend.arrays.upload(host_result, place)
    return target.result


def _gather_naively(spec: GatherArguments) -> Any:
    """**Collective.** Through the hosts' memory and MPI."""
    runtime, (counts, _) = spec.runtime, _counts(spec, 0)
    shape = sum(counts), *spec.x.shape[1:]
    target = spec.target(shape, lambda: runtime.backend.new(shape, spec.dtype))
    rounds, gathered = spec.rounds(list(counts), by_messages=True), np.empty(shape, spec.dtype)
    steps = Steps(spec.verb, None, shares=True, rounds=rounds)
    x = Flat(runtime.backend.arrays.download(spec.x), rounds.part(runtime.rank)[0])
    run_naive(runtime.backend, steps, x, [Flat(gathered)], None)
    runtime.backend.arrays.upload(gathered, target.array)
    return target.result

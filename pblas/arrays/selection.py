"""A[rows, columns] and A[mask] by lists, steps and masks: reading; and assignment of every kind, A[key] = value."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pblas import errors
from pblas.arrays.elementwise import Elementwise
from pblas.arrays.elementwise_arguments import is_number
from pblas.arrays.reductions import described
from pblas.core.call import call, step
from pblas.core.checks import check_context, check_writable, shares_memory
from pblas.layouts.descriptor import MatrixDescriptor, resized
from pblas.matrices.indexing import Lists, Selection, all_of, is_listed, lists, plain_selection, selection
from pblas.matrices.matrix import DistMatrix
from pblas.matrices.scatter_gather import PeerArrays, global_indices, holds_first_copy, part_of
from pblas.plans.partition import padded
from pblas.redistribution.api import redistributed
from pblas.runtime.arrays import compare_array, converted_array, equal_array
from pblas.runtime.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array, Dtype, Vector
    from pblas.core.operation import Bound
    from pblas.layouts.split import Split

_TAG = 1012
_READ = "DistMatrix[...]"
_WRITE = "DistMatrix[...] = value"
_MOST_UNORDERED = 256  # rows and columns that get a number in the order of their list
_LEAST_SPARSE = 16  # indices up to this many times their number are marked in an array of all, without sorting


def is_mask(key: object) -> bool:
    """Whether a key is a mask of the matrix's elements."""
    return isinstance(key, DistMatrix) or (isinstance(key, np.ndarray) and key.ndim == 2)


def select(a: DistMatrix, key: Any) -> DistMatrix | Vector:
    """**Collective.** A[key] for lists, steps and masks; see `DistMatrix.__getitem__`."""
    runtime = a.runtime
    with runtime.call(_READ):
        if is_mask(key):
            return _masked(a, key)
        with runtime.local_step(_READ):
            a.stored(_READ)
            chosen = lists(a.shape, key)
            desc = resized(a.desc, chosen.shape)
        runtime.agree(_READ, lambda: chosen.text + described(A=a))
        out = DistMatrix(desc, runtime.empty(runtime.local_memory(desc, a.dtype)), runtime)
        if runtime.nprocs == 1 and runtime.backend.dry is None:
            _place(runtime, a.stored(_READ), out, of=chosen, conj=a.conjugated)
        else:
            _copy(_READ, a, chosen, out, Lists(*map(all_of, desc.shape)))
        return out


def _masked(a: DistMatrix, mask: Any) -> Vector:
    """**Collective.** The elements of A where a mask is not 0, in the order of rows, on all ranks."""
    runtime = a.runtime
    with runtime.local_step(_READ):
        a.stored(_READ)
        _check_mask(_READ, a, mask)
        is_matrix = isinstance(mask, DistMatrix)
        if is_matrix:
            check_context(_READ, mask, runtime)
            mask.stored(_READ)
        else:
            compare_array("the mask", mask, runtime)
        text = described(A=a, mask=mask) if is_matrix else described(A=a)
    if is_matrix and mask.desc.without_lld != a.desc.without_lld:
        mask = redistributed(_READ, mask, a.desc.without_lld, agrees=text)
        text = ""
    runtime.agree(_READ, text)
    in_blocks = a.desc.is_row_wise and a.desc.rsrc == 0 and a.desc.rows.nblocks <= a.desc.rows.nprocs
    is_sorted = runtime.nprocs == 1 or a.desc.is_replicated or in_blocks  # in the order of ranks
    with runtime.agreed_step(_READ, "the elements of each rank"):
        elements, arrays = a.stored(_READ), runtime.backend.arrays
        places, values = np.empty(0, np.int64), np.empty(0, a.dtype)
        if elements.size and holds_first_copy(a.desc, runtime.rank):
            flags = mask.stored(_READ) if is_matrix else part_of(mask, a.desc, runtime.rank)
            arrays.begin()
            local, values = arrays.select(elements, flags, with_places=not is_sorted)
            if local is not None:
                rows, columns = global_indices(a.desc, runtime.rank)
                places = rows[local[0]] * a.shape[1] + columns[local[1]]
    if runtime.nprocs == 1:
        return np.conj(values) if a.conjugated else values
    counts, parts = runtime.gathered(values.size), [values] if is_sorted else [values, places]
    with runtime.agreed_step(_READ, "memory"):
        gathered = [np.empty(sum(counts), x.dtype) for x in parts]
    for x, out in zip(parts, gathered, strict=True):
        runtime.backend.complete(runtime.backend.plain_channel.all_gather(x, out, counts), step=f"{_READ}: elements")
    result = gathered[0] if is_sorted else gathered[0][np.argsort(gathered[1])]
    return np.conj(result) if a.conjugated else result


def assign(a: DistMatrix, key: Any, value: object) -> None:
    """**Collective.** A[key] = value; see `DistMatrix.__setitem__`."""
    bounds = plain_selection(a.shape, key)
    if bounds is None and is_mask(key):
        call(_WRITE, _bind_masked, {"A": a}, a, key, value)
    elif bounds is None and is_listed(key):
        _assign_lists(a, key, value)
    else:
        _assign_range(a, key, bounds, value)


def _assign_range(a: DistMatrix, key: object, bounds: Selection | None, value: object) -> None:
    """**Collective.** A[i0:i1, j0:j1] = value; None: bounds are not known."""
    runtime = a.runtime
    with runtime.local_step(_WRITE):
        bounds = bounds or selection(a.shape, key)
        view = a[bounds.i0 : bounds.i1, bounds.j0 : bounds.j1]
        checked = _checked_value(value, a, view.shape)

    def agrees() -> str:
        return f"\nrows={bounds.i0}:{bounds.i1}\ncolumns={bounds.j0}:{bounds.j1}{checked.text()}"

    if isinstance(value, DistMatrix) and value.shape == view.shape:
        # A conjugated view gets the conjugate in memory.
        expression = "conj(x)" if view.conjugated and value.dtype.kind == "c" else "x"
        stored = DistMatrix(view.desc, view.stored(_WRITE), runtime)
        bind = partial(Elementwise.bind, _WRITE, runtime, expression, {"x": value}, stored, None)
        step(_WRITE, runtime, bind, agrees=agrees())
        return
    elements = _elements(checked, a, agrees)
    if elements.ndim:
        part = part_of(np.broadcast_to(elements, view.shape), view.desc, runtime.rank)
    else:
        part = np.broadcast_to(elements, view.desc.local_shape(runtime.rank))
    _place(runtime, part, view)


def _assign_lists(a: DistMatrix, key: object, value: object) -> None:
    """**Collective.** A[rows, columns] = value; of indices that are repeated the last one counts."""
    runtime = a.runtime
    with runtime.local_step(_WRITE):
        chosen = lists(a.shape, key)
        checked = _checked_value(value, a, chosen.shape)
        last: tuple[Array | None, ...] = (None, None)
        if checked.value.ndim == 0:
            once = Lists(*map(_distinct, chosen))
        else:
            last = tuple(map(_last, chosen))
            once = Lists(*(places if i is None else places[i] for places, i in zip(chosen, last, strict=True)))

    def agrees() -> str:
        return chosen.text + checked.text()

    if isinstance(value, DistMatrix) and value.shape == chosen.shape:
        runtime.agree(_WRITE, agrees)
        numbered = (np.arange(n) if i is None else i for i, n in zip(last, chosen.shape, strict=True))
        _copy(_WRITE, value, Lists(*numbered), a, once)
        return
    elements = _elements(checked, a, agrees)
    elements = np.broadcast_to(elements, chosen.shape if elements.ndim else once.shape)
    if runtime.nprocs == 1:
        _place(runtime, _at(elements, *last), a, *once)
        return
    splits, coordinates = (a.desc.rows, a.desc.columns), a.desc.grid.coordinates(runtime.rank)
    held = [np.flatnonzero(_held(*places)) for places in zip(splits, once, coordinates, strict=True)]
    part = _at(elements, *(i if k is None else k[i] for k, i in zip(last, held, strict=True)))
    i_loc, j_loc = (split.local_from_global(z[i]) for split, z, i in zip(splits, once, held, strict=True))
    _place(runtime, part, a, i_loc, j_loc)


def _at(x: Array, rows: Array | None, columns: Array | None) -> Array:
    """Some rows and columns of an array, which are not copied where they are repeated; None for all.

    >>> _at(np.broadcast_to(2.5, (3, 4)), np.array([0, 2]), np.array([1])).strides
    (0, 0)
    """
    if rows is columns is None:
        return x
    shape = tuple(n if i is None else i.size for n, i in zip(x.shape, (rows, columns), strict=True))
    if rows is not None:
        x = x[rows] if x.strides[0] else x[:1]
    if columns is not None:
        x = x[:, columns] if x.strides[1] else x[:, :1]
    return np.broadcast_to(x, shape)


def _place(
    runtime: Runtime,
    part: Array,
    a: DistMatrix,
    i_loc: Array | None = None,
    j_loc: Array | None = None,
    *,
    of: Lists | None = None,
    conj: bool = False,
) -> None:
    """Some of this rank's elements of A := a part of the value, or some places of one; `conj`: it is conjugated."""
    arrays = runtime.backend.arrays
    arrays.begin(in_order=True)
    arrays.place(part, a.stored(_WRITE), i_loc, j_loc, of=of, conj=a.conjugated != conj)
    arrays.hand_over()


class _Value(NamedTuple):
    """A value that can be assigned."""

    value: DistMatrix | Array  # an array in the dtype of the matrix (global)
    text: Callable[[], str]  # for the agreement (global)


def _checked_value(value: object, a: DistMatrix, shape: tuple[int, int]) -> _Value:
    """The value of an assignment to elements of A of a shape (local)."""
    check_writable(_WRITE, a, "A")
    if isinstance(value, DistMatrix):
        _check_matrix(value, a, shape)
        return _Value(value, lambda: described(value=value, A=a))
    array = _checked_elements(a.runtime, value, shape, a.dtype)
    return _Value(array, lambda: f"{described(A=a)}\nvalue={array.shape}")


def _elements(checked: _Value, a: DistMatrix, agrees: Callable[[], str]) -> Array:
    """**Collective.** The agreement on an assignment; all elements of its value on all ranks."""
    value, runtime = checked.value, a.runtime
    if isinstance(value, DistMatrix):
        whole = MatrixDescriptor.replicated(*value.shape, runtime.nprocs)
        copy = redistributed(_WRITE, value, whole, agrees=agrees())
        runtime.end_reading(_WRITE)  # A may overlap the value, which peers read
        value = runtime.backend.reading(copy.local).astype(a.dtype, copy=False)
    else:
        runtime.agree(_WRITE, agrees)
    return value


def _distinct(indices: Array) -> Array:
    """Indices without repetitions, in their order; few of them perhaps as they are.

    >>> _distinct(np.array([3, 0, 3] * 99))
    array([0, 3])
    """
    if indices.size <= _MOST_UNORDERED or (indices[1:] > indices[:-1]).all():
        return indices
    if indices.max() > _LEAST_SPARSE * indices.size:
        return np.unique(indices)
    is_chosen = np.zeros(int(indices.max()) + 1, bool)
    is_chosen[indices] = True
    return np.flatnonzero(is_chosen)


def _last(indices: Array) -> Array | None:
    """The position of the last of each index, in the order of indices; None if the indices increase.

    >>> _last(np.array([3, 0, 3])), _last(np.array([0, 3]))
    (array([1, 2]), None)
    """
    if indices.size < 2 or (indices[1:] > indices[:-1]).all():
        return None
    if indices.max() > _LEAST_SPARSE * indices.size:
        return indices.size - 1 - np.unique(indices[::-1], return_index=True)[1]
    last = np.full(int(indices.max()) + 1, -1)
    last[indices] = np.arange(indices.size)  # the last assignment to an element remains
    return last[last >= 0]


def _owners(split: Split, indices: Array, *, first_copy: bool = False) -> Array | int | None:
    """The process coordinates that hold indices; None: all do. Of copies, `first_copy` counts the first only."""
    if split.is_replicated and not first_copy:
        return None
    return 0 if split.is_whole else split.owner(indices)


def _held(split: Split, indices: Array, p: int) -> Array:
    """Which of some indices process coordinate p holds (local)."""
    owners = _owners(split, indices)
    return np.full(indices.shape, p >= 0) if owners is None else np.broadcast_to(owners == p, indices.shape)


class _Axis:
    """One dimension of a copy between two matrices: local indices at the sender and at the receiver, and their owners.

    Args:
        source, target: splits of this dimension (global).
        i, k: global indices, one pair for each row or column (global).
    """

    def __init__(self, source: Split, target: Split, i: Array, k: Array) -> None:
        self._places = source.local_from_global(i), target.local_from_global(k)
        self._owners = _owners(source, i, first_copy=True), _owners(target, k)

    def between(self, p: int, q: int) -> tuple[Array, Array]:
        """The indices that go from process coordinate p to q."""
        (there, here), chosen = self._places, None
        for owners, coordinate in zip(self._owners, (p, q), strict=True):
            held = coordinate >= 0 if owners is None else owners == coordinate
            if not isinstance(held, np.ndarray):
                held = None if held else np.zeros(there.shape, bool)
            chosen = held if chosen is None else chosen if held is None else chosen & held
        if chosen is None:
            return there, here
        both = np.flatnonzero(chosen)
        return there[both], here[both]


class _Pair(NamedTuple):
    """The local rows and columns of the elements that one rank gets from another (local)."""

    there: tuple[Array, Array]  # at the sender
    here: tuple[Array, Array]  # at the receiver

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        return self.there[0].size, self.there[1].size


def _copy(opname: str, a: DistMatrix, source: Lists, out: DistMatrix, target: Lists) -> None:
    """**Collective.** out[target] := a[source]: each rank gets the elements that it stores.

    It reads them in the arrays of near ranks, on GPUs in blocks that these have packed. The others send messages, as
    all ranks of CPUs do if out and A share memory.
    """
    runtime, backend = a.runtime, a.runtime.backend
    if backend.dry is not None:
        return
    if runtime.nprocs == 1 and not shares_memory(*(backend.memory_of(x.stored(opname)) for x in (a, out))):
        _place(runtime, a.stored(opname), out, *target, of=source, conj=a.conjugated)
        return
    rank, ranks, arrays = runtime.rank, range(runtime.nprocs), backend.arrays
    part, result = a.stored(opname), out.stored(opname)
    peers = PeerArrays(runtime, a.desc, part, 0 if backend.push else out.shape[0] * out.shape[1] * a.dtype.itemsize)
    with runtime.local_step(opname):
        splits = zip((a.desc.rows, a.desc.columns), (out.desc.rows, out.desc.columns), source, target, strict=True)
        axes = [_Axis(*dimension) for dimension in splits]

        def pair(sender: int, receiver: int) -> _Pair:
            p, q = a.desc.grid.coordinates(sender), out.desc.grid.coordinates(receiver)
            rows, columns = (axis.between(*places) for axis, *places in zip(axes, p, q, strict=True))
            return _Pair(*zip(rows, columns, strict=True))

        incoming = [pair(peer, rank) for peer in ranks]
        outgoing = [incoming[rank] if peer == rank else pair(rank, peer) for peer in ranks]
        is_apart = not shares_memory(backend.memory_of(part), backend.memory_of(result))
        arrays.begin()
        blocks = {} if is_apart else {rank: arrays.pick(part, *incoming[rank].there)}
        hidden = 0 if backend.push else peers.publish(usable=is_apart)
        largest = max((prod(x.shape) for peer, x in enumerate(outgoing) if peer != rank), default=0)
    maxima = hidden, padded(largest * a.dtype.itemsize)
    hidden, slot_nbytes = runtime.agree(f"{opname}: places", "", maxima=maxima)
    peers.begin(opname, hidden)

    def put(peer: int, x: Array, of: tuple[Array, Array] | None) -> None:
        if all(z.size for z in incoming[peer].here):
            arrays.place(x, result, *incoming[peer].here, of=of, conj=a.conjugated != out.conjugated)

    def found(peer: int) -> tuple[Array, tuple[Array, Array] | None]:
        return (blocks[peer], None) if peer in blocks else (peers.of(peer), incoming[peer].there)

    memory = None
    if backend.push and len(ranks) > 1:
        memory, packed = _packed(opname, a, slot_nbytes, outgoing, incoming, lambda: put(rank, *found(rank)))
        with arrays.on_side_lane():  # while this rank's own elements are copied
            for peer, block in packed.items():
                put(peer, block, None)
    else:
        if not peers.reaches_all:
            far = [peer for peer in ranks if not peers.reaches(peer)]
            blocks |= _received(opname, a, far, outgoing, incoming)
        for peer in ranks:
            put(peer, *found(peer))
    arrays.synchronize()
    del memory  # which peers have read when all ranks have dropped it
    peers.end(opname)


def _packed(
    opname: str,
    a: DistMatrix,
    slot_nbytes: int,
    outgoing: list[_Pair],
    incoming: list[_Pair],
    meanwhile: Callable[[], None],
) -> tuple[object, dict[int, Array]]:
    """**Collective.** Symmetric memory of GPUs, and in it the elements that this rank reads, packed by their owners.

    What `meanwhile` starts runs while ranks wait for each other.

    Single elements of a peer are read at a tenth of the link's rate: half of the rows of 16384 x 16384 numbers in 5.2
    ms (2 H200).
    """
    runtime, backend = a.runtime, a.runtime.backend
    rank, ranks, part = runtime.rank, range(runtime.nprocs), a.stored(opname)
    others = [peer for peer in ranks if peer != rank]
    memory = backend.allocate_scratch(max(1, slot_nbytes * len(others)))

    def block(sender: int, receiver: int, shape: tuple[int, int]) -> Array:
        offset = slot_nbytes * ((receiver - sender) % len(ranks) - 1)
        return backend.peer_block(memory, sender, offset, shape, a.dtype, a.desc.order)

    with runtime.agreed_step(opname, "packed"):
        for peer in others:
            if prod(outgoing[peer].shape):
                backend.arrays.place(part, block(rank, peer, outgoing[peer].shape), of=outgoing[peer].there)
        packed = backend.arrays.mark()
        meanwhile()
        backend.arrays.wait(packed)
    return memory, {peer: block(peer, rank, incoming[peer].shape) for peer in others if prod(incoming[peer].shape)}


def _received(
    opname: str, a: DistMatrix, far: list[int], outgoing: list[_Pair], incoming: list[_Pair]
) -> dict[int, Array]:
    """**Collective.** The elements from far ranks, by messages."""
    runtime, backend, order = a.runtime, a.runtime.backend, a.desc.order
    with runtime.agreed_step(opname, "memory"):
        picked = {peer: backend.arrays.pick(a.stored(opname), *outgoing[peer].there) for peer in far}
        packed = {peer: np.ravel(backend.reading(x), order=order) for peer, x in picked.items()}
        blocks = {peer: np.empty(incoming[peer].shape, a.dtype, order=order) for peer in far}
    channel, flat = backend.plain_channel, {peer: x.reshape(-1, 1, order=order) for peer, x in blocks.items()}
    transfers = [channel.receive(flat[peer], peer, _TAG) for peer in far if blocks[peer].size]
    transfers += [channel.send(packed[peer][:, None], peer, _TAG) for peer in far if packed[peer].size]
    backend.complete(*transfers, step=f"{opname}: elements")
    return blocks


def _bind_masked(opname: str, runtime: Runtime, a: DistMatrix, mask: Any, value: object) -> Bound[DistMatrix]:
    """The arguments of A[mask] = number, checked on this rank."""
    _check_mask(opname, a, mask)
    if not is_number(value):
        raise errors.ArgumentError(
            f"{opname}: with a mask the value must be a number, got {type(value).__name__}; pblas.where(mask, x, A) "
            f"takes matrices and arrays"
        )
    return Elementwise.bind(
        opname, runtime, "where(mask != 0, value, a)", {"a": a, "mask": mask, "value": value}, a, None
    )


def _check_mask(opname: str, a: DistMatrix, mask: Any) -> None:
    """Raise an error unless a mask is one of A's elements (local)."""
    if not isinstance(mask, DistMatrix) and mask.dtype != bool:
        raise errors.ArgumentError(f"{opname}: a mask must be a DistMatrix, as A > 0, or an array of bools")
    if mask.shape != a.shape:
        raise errors.DescriptorError(
            f"{opname}: the mask is {mask.shape[0]} x {mask.shape[1]}, A {a.shape[0]} x {a.shape[1]}; make them agree"
        )


def _check_matrix(value: DistMatrix, a: DistMatrix, shape: tuple[int, int]) -> None:
    """Raise an error unless a matrix can be assigned to elements of A of a shape (local)."""
    check_context(_WRITE, value, a.runtime)
    value.stored(_WRITE)
    if not all(k in (1, size) for k, size in zip(value.shape, shape, strict=True)):
        raise errors.DescriptorError(
            f"{_WRITE}: the value is {value.shape[0]} x {value.shape[1]}, the submatrix {shape[0]} x {shape[1]}; "
            f"make them agree"
        )
    if value.dtype.kind == "c" and a.dtype.kind != "c":
        raise errors.DTypeError(f"{_WRITE}: the value is {value.dtype.name}, the matrix {a.dtype.name}; take a part")


def _checked_elements(runtime: Runtime, value: object, shape: tuple[int, int], dtype: Dtype) -> Array:
    """A scalar or an array, in a dtype and of a shape that broadcasts to another (local)."""
    array = equal_array(_WRITE, "the value", value, runtime)
    array = converted_array(_WRITE, "the value", array, dtype, rounds=True)
    if not array.ndim:
        return array
    try:
        np.broadcast_to(array, shape)
    except ValueError:
        raise errors.DescriptorError(
            f"{_WRITE}: the value has shape {array.shape}, the submatrix is {shape[0]} x {shape[1]}"
        ) from None
    return array

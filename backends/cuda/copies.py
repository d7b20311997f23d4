"""Copies of elements within this rank's GPU, and between it and the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda import runtime

from pblas.backends.cuda import random, reductions, streams, transfer
from pblas.backends.cuda.lanes import DeviceLanes, by_columns
from pblas.backends.cuda.strided_copy import StridedRegion, upload
from pblas.backends.dtypes import BFLOAT16, FLOAT8, Array, GpuArray, accumulator_dtype
from pblas.epilogues import Name

if TYPE_CHECKING:
    from collections.abc import Sequence

_VALUE = Name("value")
_MOST_STEPS = 64
_MOST_LISTS, _MOST_LISTED = 64, 1 << 16  # lists of places that are kept on the GPU, and their places
_known_steps: dict[int, tuple[Array, int | None]] = {}
"""Places that are kept for later calls, and their distance, by the places of their arrays."""


class DeviceCopies(DeviceLanes):
    """Elements by their places; `pblas.backends.device` documents the methods."""

    def take(self, x: Array, rows: Array, columns: Array) -> Array:
        line = _line(x, rows, columns)
        if line is not None:
            address, count, step = line
            words = transfer.words(x)
            (tight, place), distance = reductions.new_results(count, words.dtype, to_host=True), step // x.itemsize
            source, target = StridedRegion(address, distance, distance + 1), StridedRegion(place, 1, count)
            reductions.copy_places(cupy.cuda.get_current_stream().ptr, (count, 1), source, target, words.dtype)
            return transfer.on_host(tight).view(x.dtype)
        return transfer.on_host(transfer.words(x)[transfer.on_gpu(rows), transfer.on_gpu(columns)]).view(x.dtype)

    def pick(self, x: Array, rows: Array, columns: Array) -> Array:
        memory = self.empty(rows.size * columns.size * x.dtype.itemsize)
        z = self.array(memory, (rows.size, columns.size), x.dtype, "F" if by_columns(x) else "C")
        self.place(x, z, of=(rows, columns))
        return z

    def place(
        self,
        x: Array,
        z: Array,
        rows: Array | None = None,
        columns: Array | None = None,
        *,
        of: Sequence[Array] | None = None,
        conj: bool = False,
    ) -> None:
        if isinstance(x, np.ndarray):
            if x.size and not any(x.strides):
                element = x[:1, :1].conj() if conj and x.dtype.kind == "c" else x[:1, :1]
                if rows is columns is None:
                    self.fill_whole(z, element[0, 0])
                else:
                    reductions.fill_places(self.stream, x.shape, element, self._places(z, rows, columns))
                return
            x = self._uploaded(x)
        shape: Any = x.shape if of is None else tuple(numbers.size for numbers in of)
        source, target = self._places(x, *(of or ())), self._places(z, rows, columns)
        if conj and z.dtype.kind == "c":
            self.strided_copy.combine(self.stream, (z.dtype, z.dtype), shape, source, target, 1, 0, conj=True)
        elif source.by_columns == target.by_columns or 0 in (source.down, source.across):
            reductions.copy_places(self.stream, shape, source, target, z.dtype, x.shape)
        else:  # tiles are turned in shared memory
            self.strided_copy.copy(self.stream, z.dtype, shape, source, target)

    def _uploaded(self, host: Array) -> Array:
        """The elements of a host array in GPU memory, where those that are repeated are stored once."""
        steps = [size if stride else 1 for size, stride in zip(host.shape, host.strides, strict=True)]
        once = host[: steps[0], : steps[1]]
        tight: Any = self.like(once, host.dtype) if once.size else self.array(self.empty(0), (0, 0), host.dtype)
        self.synchronize()
        transfer.copy_from_host(once, tight)
        self._kept.append(tight)
        strides = [stride if step > 1 else 0 for stride, step in zip(tight.strides, steps, strict=True)]
        x: Array = transfer.new_array(host.shape, host.dtype, tight.data, tuple(strides))
        return x

    def _places(self, x: GpuArray, rows: Array | None = None, columns: Array | None = None) -> StridedRegion:
        """The positions of some rows and columns of X; lists of numbers without a distance are copied to the GPU."""
        address, steps, lists = int(x.data.ptr), [1, 1], [0, 0]
        for axis, (stride, places) in enumerate(zip(x.strides, (rows, columns), strict=True)):
            steps[axis] = stride // x.itemsize
            if places is None or not places.size:
                continue
            step = _step(places)
            if step is None:
                lists[axis] = int(self._list(places).data.ptr)
            else:
                address += int(places[0]) * stride
                steps[axis] *= step
        return StridedRegion(address, *steps, *lists)

    def _list(self, places: Array) -> Any:
        """Row or column numbers on the GPU; those that cannot be written are kept for later calls."""
        kept, numbers = self._lists.get(id(places), (None, None))
        if kept is places:
            return numbers
        if places.flags.writeable or places.size > _MOST_LISTED:
            numbers, host = upload(self, places.astype(np.int64))
            self._kept += numbers, host
            return numbers
        if len(self._lists) >= _MOST_LISTS:
            runtime.deviceSynchronize()
            self._lists.clear()
        self._lists[id(places)] = places, transfer.on_gpu(places.astype(np.int64, copy=False))
        return self._lists[id(places)][1]

    def select(self, x: Array, flags: Array, *, with_places: bool) -> tuple[tuple[Array, Array] | None, Array]:
        if not isinstance(flags, cupy.ndarray):
            bits: Any = transfer.on_gpu(flags != 0)
        elif flags.dtype in FLOAT8 or flags.dtype == BFLOAT16:  # which CuPy does not compare
            bits = transfer.on_gpu(transfer.download(flags) != 0)
        else:
            bits = flags != 0
        i, j = map(cupy.ascontiguousarray, cupy.nonzero(cupy.ascontiguousarray(bits)))
        values = transfer.words(x)[i, j]
        places = (transfer.on_host(i), transfer.on_host(j)) if with_places else None
        return places, transfer.on_host(values).view(x.dtype)

    def fill(self, x: Array, rows: Array, columns: Array, value: float) -> None:
        waits = not self.is_in_order
        if waits:
            self.synchronize()
        if rows.size:
            words, line = transfer.words(x), _line(x, rows, columns)
            bits = np.array([value], x.dtype).view(words.dtype)
            if line is None:
                words[transfer.on_gpu(rows), transfer.on_gpu(columns)] = bits[0]
            else:
                address, count, step = line
                elements = StridedRegion(address, step // x.itemsize, step // x.itemsize + 1)
                reductions.fill_places(self.stream, (count, 1), bits, elements)
            if waits:
                cupy.cuda.get_current_stream().synchronize()
                self.synchronize()

    def fill_whole(self, x: GpuArray, value: complex) -> None:
        if not x.size:
            return
        with np.errstate(all="ignore"):
            element = np.array(value).astype(x.dtype)
        if not any(element.tobytes()) and transfer.span(x) == x.nbytes:
            runtime.memsetAsync(x.data.ptr, 0, x.nbytes, self.stream)
        else:
            compute = accumulator_dtype(x.dtype)
            self.pointwise.evaluate(self.stream, _VALUE, x, {"value": complex(element)}, x, compute)

    def randomize(self, x: Array, rows: Array, columns: Array, seed: int, *, normal: bool) -> None:
        waits = not self.is_in_order
        if waits:
            self.synchronize()
        if x.size:
            random.fill(self.stream, x, self._list(rows), self._list(columns), seed, normal=normal)
        if waits:
            self.synchronize()

    # Host memory, for naive collectives

    def download(self, x: Array) -> Array:
        return transfer.on_host(cupy.ascontiguousarray(transfer.words(x))).view(x.dtype)

    def upload(self, host: Array, x: Array) -> None:
        if x.size:
            target = transfer.words(x)
            target[...] = cupy.asarray(np.ascontiguousarray(host).view(target.dtype).reshape(x.shape))
            runtime.deviceSynchronize()

    def to_host(self, x: Array) -> Array:
        with cupy.cuda.Stream.from_external(streams.Handle(self.stream)):
            array: Array = transfer.words(x).get(order="F" if by_columns(x) else "C").view(x.dtype)
        return array

    def from_host(self, x: Array, z: GpuArray) -> None:
        if z.size and z.flags.f_contiguous:
            tight = np.asfortranarray(x)
            runtime.memcpyAsync(z.data.ptr, tight.ctypes.data, tight.nbytes, runtime.memcpyHostToDevice, self.stream)
            self._kept.append(tight)
        elif z.size:
            target = transfer.words(z)
            with cupy.cuda.Stream.from_external(streams.Handle(self.stream)):
                target[...] = cupy.asarray(np.asfortranarray(x).view(target.dtype))


def _step(places: Array) -> int | None:
    """The distance of consecutive places, if there is one that is not negative.

    >>> [_step(np.array(places)) for places in ([3], [2, 4, 6], [0, 1, 3], [5, 4])]
    [0, 2, None, None]
    """
    if places.size < 2:
        return 0
    kept, known = _known_steps.get(id(places), (None, None))
    if kept is places:
        return known
    first, distance = int(places[0]), int(places[1] - places[0])
    # The last one says it of most lists that have none
    is_even = distance >= 0 and int(places[-1]) == first + distance * (places.size - 1)
    step = distance if is_even and (places[1:] - places[:-1] == distance).all() else None
    if not places.flags.writeable:
        if len(_known_steps) >= _MOST_STEPS:
            _known_steps.clear()
        _known_steps[id(places)] = places, step
    return step


def _line(x: GpuArray, rows: Array, columns: Array) -> tuple[int, int, int] | None:
    """Address, number and distance in bytes of the elements X[rows[i], columns[i]]; None if they have no distance."""
    down, across = _step(rows), _step(columns)
    if not rows.size or down is None or across is None:
        return None
    address = x.data.ptr + int(rows[0]) * x.strides[0] + int(columns[0]) * x.strides[1]
    return address, rows.size, down * x.strides[0] + across * x.strides[1]

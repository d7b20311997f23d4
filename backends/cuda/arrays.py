"""The device on this rank's GPU: CuPy's arrays, multiplied by cuBLASLt.

The lanes are separate streams, "side" with high priority. All operations return after the launch. `begin` waits for the
caller's stream and `synchronize` for both lanes, so an execution is one blocking call. The caller's stream is often the
default one, which would wait for streams of other libraries, and they for it. An execution that needs nothing but the
caller's stream runs there, and is handed over to it: the caller's next work comes after it, as after any kernel.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import cupy
import numpy as np
from cupy.cuda import runtime
from nvmath.bindings import cublas

from pblas import errors
from pblas.backends.cuda import level2, random, reductions, streams, transfer, vectors
from pblas.backends.cuda.gemm import Gemm, copies_of, needs_copy
from pblas.backends.cuda.gemm_problem import ALIGNMENT
from pblas.backends.cuda.lapack import INVERTED, MOST_INVERTED, Lapack, Reflectors
from pblas.backends.cuda.pointwise import MAX_TERMS, Pointwise, type_name
from pblas.backends.cuda.strided_copy import BlockCopy, StridedCopy, StridedRegion, copied, upload
from pblas.backends.cuda.triangles import gram_blocks, multiply, syrk, trmm, trsm
from pblas.backends.cuda.tridiagonal import TwoStage
from pblas.backends.device import Axis, Device, Mark, PieceProducts, PieceSizes, Programs, Staircase, Traits, Uplo
from pblas.backends.dtypes import BFLOAT16, FLOAT8, FLOAT16, FLOAT32, Array, Dtype, GpuArray, Order, accumulator_dtype
from pblas.backends.push_engine import EXACT, GemmModes
from pblas.epilogues import Name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pblas.backends.cuda.reproducible import UniformGemm
    from pblas.backends.traced import Kind
    from pblas.epilogues import Epilogue, Node

_GRAM_BLOCKS, _GRAM_ROWS = 528, 512
"""Blocks of rows of a Gram matrix at most, some for each multiprocessor, and rows of a block at least."""
_SIGNED = 1 << 24  # elements whose signs are fixed at a time
_WIDE = 256  # fewest right-hand sides that are multiplied with inverses
_PARTS, _LEAST_PART = 4, 256
"""Blocks on the diagonal of a product X X^T of 16 bits at most, and rows of one at least.

Five steps of Newton and Schulz of 8192 rows take 18.9 ms with 4, 20.4 with 8 and 23.6 with 2, whole products 23.9
(H200, medians of 12)."""
_PRIORITY = -5  # the highest: copies do not wait for GEMMs that were launched before them


class Program:
    """A captured body, and the memory that it uses. Executions are awaited, so it does not run when it is dropped."""

    __slots__ = ("graph", "kept")

    def __init__(self, graph: streams.Graph, kept: list[Any]) -> None:
        self.graph: Any = graph
        self.kept: list[Any] = kept

    def __del__(self) -> None:
        with suppress(runtime.CUDARuntimeError):  # the driver may have ended before the program does
            self.graph.close()


_VALUE = Name("value")
_NO_STREAM = -1
_SEEN = object()  # stands for the program of a body that has run once


class DeviceArrays(Device):
    """CuPy arrays on this thread's current GPU; `pblas.backends.device` documents the methods."""

    traits = Traits(
        gpu=True,
        blocking=False,
        reads_peers=False,  # a product reads each element many times, over NVLink too
        packs_blocks=False,
        most_across=1 << 62,  # the kernel takes any
        pivot_dtype=np.dtype(np.int64),  # integers of cuSOLVER
        lacks=frozenset({"conjugate", "add_product", "syr2k", "qr_stacked", "multiply_q_stacked"}),
    )

    def __init__(self) -> None:
        self.device: int = int(runtime.getDevice())
        self._loaded: Gemm | None = None
        self._side = cupy.cuda.Stream(non_blocking=True, priority=_PRIORITY)
        self._main = cupy.cuda.Stream(non_blocking=True)
        self.stream: int = int(self._main.ptr)
        self._pool = cupy.cuda.MemoryPool()  # not the user's: a lane may still use memory that is free here
        self._kept: list[Any] = []
        self._modes, self._autotune = EXACT, False
        self._blas: dict[int, int] = {}
        self._handed = cupy.cuda.Event(block=False, disable_timing=True)
        self._pending: int | None = None  # the stream that last got work by `hand_over`, which may still run
        self._bands: dict[int, TwoStage] = {}

    @cached_property
    def strided_copy(self) -> StridedCopy:
        """The kernels that move elements; compiled for the first call that needs them."""
        try:
            return StridedCopy()
        except Exception as caught:  # noqa: BLE001 - CuPy's, NVRTC's and the driver's
            raise self._failure(caught) from None

    @cached_property
    def pointwise(self) -> Pointwise:
        """The evaluator of expressions."""
        return Pointwise()

    @property
    def _gemm(self) -> Gemm:
        assert self._loaded is not None, "an execution has begun"
        return self._loaded

    @cached_property
    def _lapack(self) -> Lapack:
        return Lapack(self.empty, self._kept.append)

    @cached_property
    def _reflectors(self) -> Reflectors:
        return Reflectors(self._lapack, self.gemm)

    @property
    def blas_handle(self) -> int:
        """cuBLAS' handle of this lane, with a workspace of its own."""
        handle = self._blas.get(self.stream)
        if handle is None:
            handle = self._blas[self.stream] = int(cublas.create())
            cublas.set_stream(handle, self.stream)
        return handle

    @property
    def side(self) -> int:
        """Handle of the stream for copies that overlap products."""
        return int(self._side.ptr)

    @property
    def block_copy(self) -> Callable[..., BlockCopy]:
        return partial(BlockCopy, self)

    # Memory

    def empty(self, nbytes: int) -> Array:
        try:
            memory = self._pool.malloc(max(nbytes, 1))
        except cupy.cuda.memory.OutOfMemoryError as caught:
            raise errors.WorkspaceError(f"GPU {self.device}: {nbytes} bytes: {caught}") from None
        array: Any = cupy.ndarray((nbytes,), "u1", memory)
        self._kept.append(array)
        return array

    def array(self, memory: Array, shape: tuple[int, ...], dtype: Dtype, order: Order = "F") -> Array:
        array: Array = transfer.new_array(shape, dtype, memory.data, order=order)
        return array

    def scratch(self, shape: tuple[int, int], dtype: Dtype) -> Array:
        memory = self._lapack.memory(self.stream, "scratch", shape[0] * shape[1] * dtype.itemsize)
        return self.array(memory, shape, dtype)

    def like(self, x: Array, dtype: Dtype) -> Array:
        return self.array(self.empty(x.size * dtype.itemsize), x.shape, dtype, "F" if _by_columns(x) else "C")

    # Elementwise

    def assign(self, x: GpuArray, z: GpuArray) -> None:
        if not z.size or (copied if x.dtype == z.dtype else self._converted)(self.stream, x, z):
            return
        if x.dtype == z.dtype:
            shape: Any = z.shape
            self.strided_copy.copy(self.stream, z.dtype, shape, StridedRegion.of(x), StridedRegion.of(z))
        else:
            self.add_scaled(1, x, 0, z)

    def _converted(self, stream: int, x: GpuArray, z: GpuArray) -> bool:
        """Z := X between 32 and 16 bits, if both are stored in the same order."""
        for order in "FC":
            source, target = transfer.lines_of(x, order), transfer.lines_of(z, order)
            if source is not None and target is not None:
                x_lines, z_lines = (x.data.ptr, source[2] // x.itemsize), (z.data.ptr, target[2] // z.itemsize)
                self.strided_copy.convert(
                    stream, (x.dtype, z.dtype), x_lines, z_lines, target[0] // z.itemsize, target[1]
                )
                return True
        return False

    def scale(self, beta: complex, z: Array) -> None:
        if beta != 1:
            self.add_scaled(0, z, beta, z)

    def add_scaled(self, alpha: complex, x: GpuArray, beta: complex, z: GpuArray) -> None:
        shape: Any = z.shape
        self.strided_copy.combine(
            self.stream, (x.dtype, z.dtype), shape, StridedRegion.of(x), StridedRegion.of(z), alpha, beta
        )

    def finish(
        self, epilogue: Epilogue, x: GpuArray, operands: Mapping[str, Any], out: GpuArray, stream: object = None
    ) -> None:
        if not out.size:
            return
        caller_stream = streams.current_handle(stream)
        if epilogue.tree is not None:
            self.pointwise.evaluate(caller_stream, epilogue.tree, x, operands, out)
        else:
            self.pointwise.normalise(caller_stream, x, out, **operands)

    def check_operands(self, opname: str, count: int) -> None:
        if count > MAX_TERMS:
            raise errors.ArgumentError(
                f"{opname}: an expression on a GPU has {MAX_TERMS} operands at most, got {count}; "
                f"evaluate a part of it first"
            )

    def evaluate(self, tree: Node, operands: Mapping[str, object], compute: Dtype, out: Array) -> None:
        if out.size:
            self.pointwise.combine(self.stream, tree, operands, compute, out)

    def combining(self, tree: Node, operands: Mapping[str, object], name: str, compute: Dtype, out: Array) -> None:
        """None: an operand arrives first, and one kernel evaluates the expression then."""

    def add_rows(self, x: Array, out: Array, stream: object = None) -> None:
        caller_stream = cupy.cuda.get_current_stream() if stream is None else cupy.cuda.Stream.from_external(stream)
        with caller_stream:
            out[...] = x.astype(accumulator_dtype(x.dtype), copy=False).sum(0).astype(out.dtype, copy=False)

    def largest(self, x: Array, out: Array, stream: object = None) -> None:
        """Without their signs, the bits of floating-point numbers have the order of the numbers, NaN last."""
        handle = streams.current_handle(stream)
        with cupy.cuda.Stream.from_external(streams.Handle(handle)):
            if not x.size:
                out[...] = 0
                return
            bits = _largest_bits()(x.view(f"u{x.dtype.itemsize}"))
            if x.dtype == FLOAT16:
                out[...] = bits.view(FLOAT16)
            else:
                out[...] = (bits.astype(np.uint32) << (32 - 8 * x.dtype.itemsize)).view(FLOAT32)

    # Reductions, to arrays in host memory, on the default stream. Elements of 16 bits are converted first, by a copy.

    def reduce(self, kind: str, x: Array, axis: Axis, order: str, dtype: Dtype, scale: object = None) -> Array:
        if axis is not None and scale is None and reductions.is_across(x, axis) and x.dtype not in FLOAT8:
            return reductions.across(kind, x, axis, dtype)
        is_mapped = kind in _MAPS and scale is None
        if order == "F" and (axis is None or is_mapped):  # CuPy is slow by columns, but for sums of each
            x, axis = x.T, _OTHER_AXIS[axis]
        if is_mapped:
            y = transfer.words(x) if x.dtype == BFLOAT16 else x
            return transfer.on_host(_reduction(kind, np.empty(0, dtype).real.dtype)(y, axis=axis).reshape(-1))
        y = _in_precision(x, dtype)
        if axis is not None and x.shape[axis] == 1 and scale is None:
            return transfer.on_host(cupy.ascontiguousarray(y.reshape(-1)))
        function = {"max": cupy.max, "min": cupy.min}.get(kind, cupy.sum)
        y = y if scale is None else _divided(y, axis, scale)
        return transfer.on_host(function(y, axis=axis).reshape(-1))

    def arg_reduce(self, kind: Literal["max", "min"], x: Array, axis: Axis, order: str) -> tuple[Array, Array]:
        if axis is None:
            return reductions.extreme(kind, x)
        y: GpuArray = _in_precision(x, FLOAT32) if x.dtype.itemsize == FLOAT32.itemsize // 2 else x
        first = cupy.argmax if kind == "max" else cupy.argmin
        places = first(y, axis=axis)
        values = cupy.take_along_axis(y, cupy.expand_dims(places, axis), axis).squeeze(axis)
        return values.get(), places.get().astype(np.intp)

    def dot(self, x: Array, y: Array, order: str, dtype: Dtype, *, conj: bool) -> Array:
        if order == "F":
            x, y = x.T, y.T
        left, right = _in_precision(x, dtype), _in_precision(y, dtype)
        return transfer.on_host(cupy.sum((left.conj() if conj else left) * right).reshape(-1))

    def take(self, x: Array, rows: Array, columns: Array) -> Array:
        line = _line(x, rows, columns)
        if line is not None:
            return transfer.on_host(cupy.ascontiguousarray(line)).view(x.dtype)
        return transfer.on_host(transfer.words(x)[transfer.on_gpu(rows), transfer.on_gpu(columns)]).view(x.dtype)

    def pick(self, x: Array, rows: Array, columns: Array) -> Array:
        memory = self.empty(rows.size * columns.size * x.dtype.itemsize)
        z = self.array(memory, (rows.size, columns.size), x.dtype, "F" if _by_columns(x) else "C")
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
            x = self._uploaded(x)
        shape: Any = x.shape if of is None else tuple(numbers.size for numbers in of)
        source, target = self._places(x, *(of or ())), self._places(z, rows, columns)
        if conj and z.dtype.kind == "c":
            self.strided_copy.combine(self.stream, (z.dtype, z.dtype), shape, source, target, 1, 0, conj=True)
        elif source.by_columns == target.by_columns or 0 in (source.down, source.across):
            reductions.copy_places(self.stream, shape, source, target, z.dtype)
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
                memory, host = upload(self, places.astype(np.int64))
                self._kept += memory, host
                lists[axis] = int(memory.data.ptr)
            else:
                address += int(places[0]) * stride
                steps[axis] *= step
        return StridedRegion(address, *steps, *lists)

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
        self.synchronize()
        if rows.size:
            words, line = transfer.words(x), _line(x, rows, columns)
            bits = np.array([value], x.dtype).view(words.dtype)
            if line is not None:
                line.fill(bits[0])
            else:
                words[transfer.on_gpu(rows), transfer.on_gpu(columns)] = bits[0]
            cupy.cuda.get_current_stream().synchronize()

    def fill_whole(self, x: Array, value: complex) -> None:
        """X := value, as its dtype holds it, after all work of the GPU; done on return (local)."""
        with transfer.settled(x), np.errstate(all="ignore"):
            element = complex(np.array(value).astype(x.dtype))
            self.pointwise.evaluate(0, _VALUE, x, {"value": element}, x, accumulator_dtype(x.dtype))

    def randomize(self, x: Array, rows: Array, columns: Array, seed: int, *, normal: bool) -> None:
        self.synchronize()
        random.fill(x, rows, columns, seed, normal=normal)
        cupy.cuda.get_current_stream().synchronize()

    def multiply_vector(self, x: Array, vector: Array, dtype: Dtype, *, conj: bool) -> Array:
        self.begin()
        column = transfer.on_gpu(vector[:, None].view(transfer.words(x).dtype)).view(x.dtype)
        product = cupy.empty((x.shape[0], 1), dtype)
        self.gemm(1, x, column, 0, product, conj=(conj, False))
        self.synchronize()
        return transfer.on_host(product)[:, 0]

    def multiply_part(
        self, x: Array, part: Staircase, vector: Array, dtype: Dtype, mode: str, *, transposed: bool
    ) -> Array:
        self.synchronize()
        return level2.multiply(x, part, vector, dtype, mode, transposed=transposed)

    def update_part(self, z: Array, part: Staircase, x: Array, y: Array) -> None:
        self.synchronize()
        level2.update(z, part, x, y)
        cupy.cuda.get_current_stream().synchronize()

    def multiply_whole(
        self,
        kind: str,
        alpha: complex,
        a: Array,
        x: Array,
        beta: complex,
        y: Array | None,
        z: Array,
        *,
        uplo: Uplo,
        trans: str,
        unit: bool,
    ) -> None:
        old, target = (x if kind == "trmv" else y), z
        read = [w for w in (a, x, y) if w is not None and not (w is old and _is_same(w, z))]
        if any(_overlap(w, z) for w in read):
            target = self.array(self.empty(z.nbytes), z.shape, z.dtype)
        if old is not None and not _is_same(old, target):
            self.assign(old, target)
        options: Any = {"uplo": uplo, "trans": trans, "unit": unit}
        vectors.multiply(self.blas_handle, kind, alpha, a, x, beta, target, **options)
        if target is not z:
            self.assign(target, z)

    def update_whole(self, name: str, alpha: complex, x: Array, y: Array, a: Array, *, uplo: Uplo) -> None:
        x, y = (self._copied(w) if _overlap(w, a) else w for w in (x, y))
        vectors.update(self.blas_handle, name, alpha, x, y, a, uplo=uplo)

    def _copied(self, x: Array) -> Array:
        """A copy of X."""
        z = self.like(x, x.dtype)
        self.assign(x, z)
        return z

    # Host memory, for naive collectives

    def check_stream(self, operation: str, stream: object, *, waits: bool) -> None:
        handle = streams.current_handle(stream)
        if waits:
            if streams.is_capturing(handle):
                raise errors.ArgumentError(
                    f"{operation}: a naive collective goes through the hosts, and cannot be captured in a CUDA graph; "
                    f"end the capture first"
                )
            runtime.streamSynchronize(handle)

    def download(self, x: Array) -> Array:
        array: Array = transfer.words(x).get(order="C").view(x.dtype)
        return array

    def upload(self, host: Array, x: Array) -> None:
        if x.size:
            target = transfer.words(x)
            target[...] = cupy.asarray(np.ascontiguousarray(host).view(target.dtype).reshape(x.shape))
            runtime.deviceSynchronize()

    def to_host(self, x: Array) -> Array:
        with cupy.cuda.Stream.from_external(streams.Handle(self.stream)):
            array: Array = transfer.words(x).get(order="F" if _by_columns(x) else "C").view(x.dtype)
        return array

    def from_host(self, x: Array, z: Array) -> None:
        if z.size:
            target = transfer.words(z)
            with cupy.cuda.Stream.from_external(streams.Handle(self.stream)):
                target[...] = cupy.asarray(np.asfortranarray(x).view(target.dtype))

    # Products

    def gemm(
        self, alpha: complex, x: Array, y: Array, beta: complex, z: Array, *, conj: tuple[bool, bool] = (False, False)
    ) -> None:
        if not z.size:
            return
        if not x.shape[1] or alpha == 0:
            self.scale(beta, z)
            return
        if x.dtype in FLOAT8:
            self._multiply_short(alpha, x, y, beta, z)
            return
        copies = needs_copy(x, y, z, conj)
        x, y = (self._conjugated(w) if copy else w for w, copy in zip((x, y), copies, strict=True))
        conj_x, conj_y = (c and not copy for c, copy in zip(conj, copies, strict=True))
        self._matmul(alpha, x, y, beta, z, (conj_x, conj_y))

    def multiply_add(self, alpha: complex, x: Array, y: Array | None, beta: complex, c: Array | None, z: Array) -> None:
        if y is not None:
            self._multiply_add(alpha, x, y, beta, c, z)
        elif z.itemsize > 2:
            if c is not None:
                self.assign(c, z)
            self.syrk(alpha, x, beta, z, uplo="L", hermitian=True)
            self._lapack.mirror(self.stream, z)
        else:
            self._square(alpha, x, beta, c, z)

    def _multiply_add(
        self, alpha: complex, x: GpuArray, y: GpuArray, beta: complex, c: GpuArray | None, z: GpuArray
    ) -> None:
        """Z := alpha X Y + beta C, or several such products of matrices one after the other in memory."""
        if alpha == 0:
            self.add_scaled(0 if c is None else beta, z if c is None else c, 0, z)
            return
        if c is not None and (c.strides != z.strides or (c.data.ptr - z.data.ptr) % ALIGNMENT):
            self.assign(c, z)
            c = None
        self._matmul(alpha, x, y, beta, z, (False, False), c)

    def _square(self, alpha: complex, x: GpuArray, beta: complex, c: GpuArray | None, z: GpuArray) -> None:
        """Z := alpha X X^T + beta C, for elements that cuBLAS' symmetric product does not take.

        0 . . .         blocks of one size are multiplied at a time: 0 on the diagonal, 1, and 2, which is twice as
        1 0 . .         large; then 1 and 2 are mirrored
        2 2 0 .
        2 2 1 0
        """
        parts = 1
        while parts < _PARTS and len(z) >= 2 * parts * _LEAST_PART:
            parts *= 2
        size = len(z) // parts // ALIGNMENT * ALIGNMENT if parts > 1 else len(z)
        stop = size * parts
        self._multiply_blocks(alpha, x, beta, c, z, (size, parts, 0, size))
        while parts > 1:
            parts //= 2
            self._multiply_blocks(alpha, x, beta, c, z, (size, parts, size, 2 * size))
            size *= 2
        if stop < len(z):
            # the rows after the blocks
            self._multiply_add(alpha, x[stop:], x.T, beta, None if c is None else c[stop:], z[stop:])
            self.assign(z[stop:, :stop].T, z[:stop, stop:])

    def _multiply_blocks(
        self, alpha: complex, x: GpuArray, beta: complex, c: GpuArray | None, z: GpuArray, blocks: tuple[int, ...]
    ) -> None:
        """Z[i, j] := alpha X[i] X[j]^T + beta C[i, j] for blocks i and j = i + 1, or j = i.

        `blocks`: rows and columns of a block, their number, the first row, and rows from one to the next.
        """
        size, count, first, step = blocks

        def blocks_of(w: GpuArray, start: int, next_block: int, columns: int) -> Any:
            return transfer.new_array((count, size, columns), w.dtype, w[start:].data, (step * next_block, *w.strides))

        left, right = (blocks_of(x, start, x.strides[0], x.shape[1]) for start in (first, 0))
        new = blocks_of(z, first, sum(z.strides), size)
        old = None if c is None else blocks_of(c, first, sum(c.strides), size)
        self._multiply_add(alpha, left, right.transpose(0, 2, 1), beta, old, new)
        for start in range(0, step * count, step) if first else ():
            rows, columns = slice(start + first, start + first + size), slice(start, start + size)
            self.assign(z[rows, columns].T, z[columns, rows])

    @cached_property
    def uniform_gemm(self) -> UniformGemm:
        """Products that form all elements alike."""
        from pblas.backends.cuda.reproducible import UniformGemm

        return UniformGemm()

    def piece_gemm(self, sizes: PieceSizes, dtype: Dtype, last: int, allocate: Callable[[int], Array]) -> PieceProducts:
        from pblas.backends.cuda.reproducible import PieceGemm

        return PieceGemm(self, sizes, dtype, last, allocate)

    def fingerprint(self, dtype: Dtype) -> str:
        return self.uniform_gemm.fingerprint(dtype)

    def exact_gemm(self, sizes: PieceSizes, allocate: Callable[[int], Array]) -> PieceProducts:
        from pblas.backends.cuda.exact import ExactGemm

        return ExactGemm(self, sizes, allocate)

    def finish_sum(self, alpha: complex, x: Array, beta: complex, z: Array) -> None:
        self.scale(alpha, x)
        if beta == 0:
            self.assign(x, z)
        else:
            self.scale(beta, z)
            self.add_scaled(1, x, 1, z)

    def gram(self, x: Array) -> Array:
        """The sum of products of as many blocks of rows as fill a GPU: cuBLAS' one product leaves most of it idle."""
        m, n = x.shape
        count = min(_GRAM_BLOCKS, m // _GRAM_ROWS)
        rows = m // count if count else 0
        parts = self.array(self.empty((count + 1) * n * n * x.itemsize), (n, n * (count + 1)), x.dtype)
        if count:
            gram_blocks(self.blas_handle, x, rows, count, parts)
        self.gemm(1, x[rows * count :].T, x[rows * count :], 0, parts[:, n * count :], conj=(True, False))
        self.synchronize()
        total: Array = parts.T.reshape(count + 1, n, n).sum(0).T.get()
        return total

    def _multiply_short(self, alpha: complex, x: GpuArray, y: GpuArray, beta: complex, z: GpuArray) -> None:
        """`gemm` of matrices of 8 bits, by way of copies that cuBLASLt takes."""
        shapes = copies_of(x, y, z)
        orders: tuple[Order, ...] = "C", "F", "F" if _by_columns(z) else "C"
        matrices = []
        for w, shape, order in zip((x, y, z), shapes, orders, strict=True):
            whole = w
            if shape is not None:
                whole = self.array(self.empty(shape[0] * shape[1] * w.dtype.itemsize), shape, w.dtype, order)
                self.strided_copy.pad(self.stream, w, whole)
            matrices.append(whole)
        left, right, result = matrices
        self._matmul(alpha, left, right, beta, result, (False, False))
        if result is not z:
            self.assign(result[: z.shape[0], : z.shape[1]], z)

    def subtract_square(self, x: Array, z: Array) -> None:
        """By cuBLAS' symmetric product, and a GEMM below it."""
        n = z.shape[1]
        self.syrk(-1, x[:n], 1, z[:n], uplo="L", hermitian=True)
        if z.shape[0] > n:
            self.gemm(-1, x[n:], x[:n].T, 1, z[n:], conj=(False, True))

    def syrk(
        self,
        alpha: complex,
        x: Array,
        beta: complex,
        z: Array,
        *,
        uplo: Uplo,
        conj: bool = False,
        hermitian: bool = False,
    ) -> None:
        memory = syrk(*(self.blas_handle, self.stream, alpha, x, beta, z), uplo=uplo, conj=conj, hermitian=hermitian)
        if memory is not None:
            self._kept.append(memory)

    def _matmul(
        self,
        alpha: complex,
        x: GpuArray,
        y: GpuArray,
        beta: complex,
        z: GpuArray,
        conj: tuple[bool, bool],
        c: GpuArray | None = None,
    ) -> None:
        """A product on this lane, with the lane's workspace."""
        if self._modes.splits and x.dtype.char in "fF":
            # X Y = X_hi Y_hi + X_hi Y_lo + X_lo Y_hi, almost: one product with three times as many terms
            x = self._lapack.split(self.stream, x, is_left=True, conj=conj[0])
            y = self._lapack.split(self.stream, y, is_left=False, conj=conj[1])
            conj = False, False
        lane = "main" if self.stream == self._main.ptr else "side"
        tune = self.side if self._autotune else None
        self._gemm.matmul(self.stream, alpha, x, y, beta, z, conj=conj, lane=lane, modes=self._modes, tune=tune, c=c)

    def trsm(
        self, t: Array, z: Array, *, uplo: Uplo, unit: bool = False, conj: bool = False, inverts: bool = True
    ) -> None:
        """A wide Z is multiplied with inverses of small blocks of T: the error grows with a block's condition."""
        if inverts and z.shape[1] >= _WIDE:
            self._solve_by_inverses(t, z, uplo=uplo, unit=unit, conj=conj, order=INVERTED)
            return
        memory = trsm(self.blas_handle, self.stream, t, z, uplo=uplo, unit=unit, conj=conj)
        if memory is not None:
            self._kept.append(memory)

    def trmm(self, alpha: complex, t: Array, x: Array, z: Array, *, uplo: Uplo, unit: bool, conj: bool) -> None:
        memory = trmm(self.blas_handle, self.stream, alpha, t, x, z, uplo=uplo, unit=unit, conj=conj)
        if memory is not None:
            self._kept.append(memory)

    # Factorizations of blocks in Fortran order

    def solve_factored(self, t: Array, z: Array, *, unit: bool = False, conj: bool = False) -> None:
        """cuBLAS' solve is a chain of small kernels: of 512 x 512 with 16384 columns four times the time (H200)."""
        if z.size:
            self._solve_by_inverses(t, z, uplo="L", unit=unit, conj=conj, order=MOST_INVERTED)

    def _solve_by_inverses(self, t: Array, z: Array, *, uplo: Uplo, unit: bool, conj: bool, order: int) -> None:
        """Z := T^-1 Z, with inverses of blocks of T's diagonal of `order` rows.

        In the full precision of Z in any mode: an inverse is much larger than T, and so are the errors of its elements.
        """
        inverses = self._lapack.inverses(self.stream, t if uplo == "L" else t.T, unit=unit, order=order)
        modes, self._modes = self._modes, EXACT
        try:
            self._multiply_by_inverses(t, inverses, z, uplo=uplo, conj=conj)
        finally:
            self._modes = modes

    def _multiply_by_inverses(self, t: Array, inverses: Array, z: Array, *, uplo: Uplo, conj: bool) -> None:
        """Z := T^-1 Z, by halves; `inverses` are those of T's blocks, or of T^T's for an upper triangle."""
        n, order = len(t), len(inverses)
        if n > order:
            half = -(-n // (2 * order)) * order
            first, second = slice(half), slice(half, n)
            if uplo == "U":
                first, second = second, first
            self._multiply_by_inverses(t[first, first], inverses[:, first], z[first], uplo=uplo, conj=conj)
            self.gemm(-1, t[second, first], z[first], 1, z[second], conj=(conj, False))
            self._multiply_by_inverses(t[second, second], inverses[:, second], z[second], uplo=uplo, conj=conj)
            return
        inverse = inverses[:n] if uplo == "L" else inverses[:n].T
        memory = self._lapack.memory(self.stream, "right-hand sides", z.nbytes)
        right = self.array(memory, z.shape, z.dtype, "F" if _by_columns(z) else "C")
        self.assign(z, right)
        self.gemm(1, inverse, right, 0, z, conj=(conj, False))

    def lower(self, x: GpuArray) -> None:
        self._lapack.lower(self.stream, x)

    def unit_lower(self, x: Array, z: Array) -> None:
        self._reflectors.unit_lower(self.stream, x, z)

    def cholesky(self, x: Array, info: Array) -> None:
        self._lapack.potrf(self.stream, x, info)

    def lu(self, x: Array, pivots: Array, info: Array) -> None:
        self._lapack.getrf(self.stream, x, pivots, info)

    def swap_rows(self, x: Array, pivots: Array, start: int = 0, *, backward: bool = False) -> None:
        if isinstance(pivots, np.ndarray):
            memory: Any = self.empty(8 * len(pivots)).view(np.int64)
            memory.set(pivots.astype(np.int64), cupy.cuda.Stream.from_external(streams.Handle(self.stream)))
            pivots = memory
        self._lapack.swap_rows(self.stream, x, pivots, start, backward=backward)

    def qr(self, x: Array, t: Array) -> None:
        self._reflectors.geqrt(self.stream, x, t)

    def multiply(
        self,
        x: Array,
        y: Array,
        z: Array,
        *,
        alpha: float = 1,
        beta: float = 0,
        adjoint: tuple[bool, bool] = (False, False),
        count: int = 1,
        strides: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        """Z := alpha op(X) op(Y) + beta Z by cuBLAS, of `count` matrices by columns that are `strides` elements apart.

        Unlike `gemm` it does not search for the best algorithm, which takes 0.1 ms for each new size.
        """
        if z.size:
            handle = self.blas_handle
            multiply(handle, alpha, x, y, beta, z, adjoint=adjoint, count=count, strides=strides)

    def eigh(self, x: Array, *, vectors: bool) -> tuple[Array, int]:
        if not x.size:
            return np.empty(0, x.dtype).real, 0
        result = self._lapack.syevd(self.stream, x, vectors=vectors)
        self.release()
        return result

    def band_stages(self, width: int) -> TwoStage:
        if width not in self._bands:
            self._bands[width] = TwoStage(self, self._lapack, self._reflectors, width)
        return self._bands[width]

    def release(self) -> None:
        self.synchronize()  # which frees the workspace
        self._pool.free_all_blocks()

    def fix_signs(self, x: GpuArray) -> None:
        """Some columns at a time, since CuPy has temporaries of their size."""
        step = max(1, _SIGNED // max(len(x), 1))
        with cupy.cuda.Stream.from_external(streams.Handle(self.stream)):
            for start in range(0, x.shape[1] if x.size else 0, step):
                columns = x[:, start : start + step]
                places = cupy.argmax(cupy.abs(columns), axis=0), cupy.arange(columns.shape[1])
                largest = columns[places]
                sizes = cupy.abs(largest)
                columns *= cupy.where(sizes > 0, largest.conj() / sizes, 1)
                columns[places] = sizes

    def block_of_reflectors(self, v: Array, tau: Array, t: Array) -> None:
        memory: Any = self.empty(tau.nbytes).view(tau.dtype)
        memory.set(tau, cupy.cuda.Stream.from_external(streams.Handle(self.stream)))
        self._reflectors.larft(self.stream, v, memory, t)

    def multiply_q(self, v: Array, t: Array, c: Array, *, adjoint: bool, conj: bool = False) -> None:
        self._reflectors.multiply_q(self.stream, v, t, c, adjoint=adjoint, conj=conj)

    def _conjugated(self, x: Array) -> Array:
        """A copy of conj(X)."""
        z = self.like(x, x.dtype)
        shape: Any = x.shape
        self.strided_copy.combine(
            self.stream, (x.dtype, x.dtype), shape, StridedRegion.of(x), StridedRegion.of(z), 1, 0, conj=True
        )
        return z

    # Order

    def begin(
        self, stream: object = None, modes: GemmModes = EXACT, *, autotune: bool = False, in_order: bool = False
    ) -> None:
        caller_stream = streams.current_handle(stream)
        if streams.is_capturing(caller_stream):
            raise errors.ArgumentError(
                "execute: this plan cannot be captured in a CUDA graph, since its ranks agree on the host; end the "
                "capture first"
            )
        self._modes, self._autotune = modes, autotune
        try:
            self.settle(caller_stream)
            self.stream = caller_stream if in_order else self._main.ptr
            if in_order:
                return
            self._kept.clear()
            runtime.streamSynchronize(caller_stream)
            if self._loaded is None:
                self._loaded = Gemm(lanes=("main", "side"))
                self._gemm.load()
        except errors.PblasError:
            raise
        except Exception as caught:  # noqa: BLE001 - CuPy's, NVRTC's and the driver's; the others must not wait
            raise self._failure(caught) from None

    def _failure(self, caught: Exception) -> errors.BackendError:
        return errors.BackendError(f"GPU {self.device}: {type(caught).__name__}: {caught}")

    def hand_over(self) -> None:
        runtime.eventRecord(self._handed.ptr, self.stream)
        self._kept.clear()  # later work that takes this memory is on this stream, or waits for it
        self._pending, self.stream = self.stream, self._main.ptr

    def settle(self, stream: int) -> None:
        """Wait for work that was handed over to another stream than this one (local)."""
        if self._pending is not None and self._pending != stream:
            runtime.eventSynchronize(self._handed.ptr)
            self._pending = None

    def synchronize(self) -> None:
        self.settle(_NO_STREAM)
        runtime.streamSynchronize(self.side)
        runtime.streamSynchronize(self._main.ptr)
        self._kept.clear()

    def replayed(self, programs: Programs, key: Callable[[], object], body: Callable[[], None]) -> bool:
        known = key()
        program = programs.pop(known, None)
        if program is None:  # the first time, when libraries load and tune
            programs.keep(known, _SEEN)
            body()
            return True
        is_new = program is _SEEN
        if is_new:
            program = self._captured(body)
        programs.keep(known, program)
        program.graph.launch(self._main.ptr)
        return is_new

    def _captured(self, body: Callable[[], None]) -> Program:
        """The graph of a body, which begins and ends on the main lane."""
        before = len(self._kept)
        streams.begin_capture(self._main.ptr)
        try:
            start = self.mark()
            with self.on_side_lane():
                self.follow(start)
            body()
            with self.on_side_lane():
                end = self.mark()
            self.follow(end)
        except BaseException:
            streams.abandon_capture(self._main.ptr)
            raise
        return Program(streams.end_capture(self._main.ptr), self._kept[before:])

    @contextmanager
    def on_side_lane(self, what: str = "", kind: Kind = "copy") -> Iterator[None]:
        before, self.stream = self.stream, self.side
        try:
            yield
        finally:
            self.stream = before

    def mark(self) -> Mark:
        event = cupy.cuda.Event(block=False, disable_timing=True)
        runtime.eventRecord(event.ptr, self.stream)
        return event

    def follow(self, mark: Mark) -> None:
        if mark is not None:
            runtime.streamWaitEvent(self.stream, mark.ptr, 0)

    def close(self) -> None:
        with suppress(runtime.CUDARuntimeError):  # a failed GPU
            self.settle(_NO_STREAM)
        self._kept.clear()
        if self._loaded is not None:
            self._gemm.close()
            self._loaded = None
        self.__dict__.pop("_reflectors", None)
        if "uniform_gemm" in self.__dict__:
            self.uniform_gemm.close()
            del self.uniform_gemm
        self._bands.clear()
        if "_lapack" in self.__dict__:
            self._lapack.close()
            del self._lapack
        while self._blas:
            cublas.destroy(self._blas.popitem()[1])
        self._pool.free_all_blocks()


@cache
def _largest_bits() -> Any:
    """The kernel that finds the largest of the elements' bits, without their signs."""
    return cupy.ReductionKernel("T x", "T y", "(T)(x & ((T)-1 >> 1))", "max(a, b)", "y = a", "0", "largest_bits")


_OTHER_AXIS: dict[Axis, Axis] = {None: None, 0: 1, 1: 0}
_MAPS = {"abs_sum": "magnitude", "abs_max": "magnitude", "squares": "square"}
_MAPPED = """
template <class R, class T> __device__ R widened(T x) { return R(x); }
template <> __device__ float widened<float, unsigned short>(unsigned short x) { return __uint_as_float(x << 16); }
// CuPy compiles with subnormal numbers flushed to zero, which assembly is not subject to.
template <> __device__ double widened<double, float>(float x) {
    double y;
    asm("cvt.f64.f32 %0, %1;" : "=d"(y) : "f"(x));
    return y;
}
template <> __device__ double widened<double, unsigned short>(unsigned short x) {
    return widened<double>(__uint_as_float(x << 16));
}
template <class R, class T> __device__ R square(T x) { return widened<R>(x) * widened<R>(x); }
template <class R, class T> __device__ R square(complex<T> x) { return square<R>(x.real()) + square<R>(x.imag()); }
template <class R, class T> __device__ R magnitude(T x) { return fabs(widened<R>(x)); }
template <class R, class T> __device__ R magnitude(complex<T> x) {
    return abs(complex<R>(widened<R>(x.real()), widened<R>(x.imag())));
}
template <class R> __device__ R larger(R a, R b) { return a > b || a != a ? a : b; }
"""


@cache
def _reduction(kind: str, dtype: Dtype) -> Any:
    """The kernel that adds or compares functions of elements of 32 bits at least, in a real dtype."""
    combine = "larger(a, b)" if kind == "abs_max" else "a + b"
    arguments = f"{_MAPS[kind]}<{type_name(dtype)}>(x)", combine, "y = a", "0", f"pblas_{kind}"
    return cupy.ReductionKernel("T x", f"{dtype.name} y", *arguments, preamble=_MAPPED)


def _divided(y: Any, axis: Axis, scale: object) -> Array:
    """The squares of elements divided by scales, which are one number or one for each result."""
    factor: Any = cupy.asarray(scale)
    if axis is not None and factor.ndim:
        factor = cupy.expand_dims(factor, axis)
    # By parts: CuPy divides infinity + 0j by a number as complex numbers, which gives NaN.
    parts = (y.real / factor, y.imag / factor) if y.dtype.kind == "c" else (y / factor,)
    squares: Array = sum(part * part for part in parts)
    return squares


def _step(places: Array) -> int | None:
    """The distance of consecutive places, if there is one that is not negative.

    >>> [_step(np.array(places)) for places in ([3], [2, 4, 6], [0, 1, 3], [5, 4])]
    [0, 2, None, None]
    """
    if places.size < 2:
        return 0
    step = int(places[1] - places[0])
    return step if step >= 0 and (places[1:] - places[:-1] == step).all() else None


def _line(x: GpuArray, rows: Array, columns: Array) -> Any:
    """The elements X[rows[i], columns[i]] as a view, if these are places with a distance, as those of a diagonal."""
    steps = [_step(places) for places in (rows, columns)]
    if not rows.size or None in steps:
        return None
    words = transfer.words(x)
    stride = sum(step * stride for step, stride in zip(steps, words.strides, strict=True) if step)
    first = words[int(rows[0]) :, int(columns[0]) :]
    return cupy.ndarray((rows.size,), words.dtype, first.data, (stride,))


def _overlap(x: GpuArray, z: GpuArray) -> bool:
    """Whether the memory between the first and the last element of X meets that of Z."""
    (low, high), (start, stop) = ((int(w.data.ptr), int(w.data.ptr) + transfer.span(w)) for w in (x, z))
    return low < stop and start < high


def _is_same(x: GpuArray, z: GpuArray) -> bool:
    """Whether X and Z are the same elements of memory."""
    return bool(x.data.ptr == z.data.ptr) and x.strides == z.strides


def _by_columns(x: GpuArray) -> bool:
    return abs(x.strides[0]) < abs(x.strides[1]) or x.shape[1] <= 1


def _in_precision(x: Array, dtype: Dtype) -> Any:
    """X in the precision of `dtype`; complex if x is."""
    if x.dtype.kind == "c":
        dtype = np.result_type(dtype, np.complex64)
    if x.dtype.char not in "fF" or dtype.char not in "dD":
        return x.astype(dtype, copy=False)
    y = cupy.empty(x.shape, dtype)
    for source, target in [(x.real, y.real), (x.imag, y.imag)] if x.dtype.kind == "c" else [(x, y)]:
        _widen()(source, target)
    return y


@cache
def _widen() -> Any:
    """Float32 to float64."""
    return cupy.ElementwiseKernel("float32 x", "float64 y", "y = widened<double>(x)", "widen", preamble=_MAPPED)

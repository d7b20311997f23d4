"""The lanes of this rank's GPU, its memory, and the libraries that work there.

The lanes are separate streams, "side" with high priority, and "second" for products beside those of "main". All
operations return after the launch. `begin` waits for the caller's stream and `synchronize` for all lanes, so an
execution is one blocking call. The caller's stream is often the default one, which would wait for streams of other
libraries, and they for it. An execution that needs nothing but the caller's stream runs there, and is handed over to
it: the caller's next work comes after it, as after any kernel.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda import runtime
from nvmath.bindings import cublas

from pblas import errors
from pblas.backends.cuda import streams, transfer
from pblas.backends.cuda.gemm import Gemm
from pblas.backends.cuda.lapack import Lapack, Reflectors
from pblas.backends.cuda.pointwise import MAX_TERMS, Pointwise
from pblas.backends.cuda.strided_copy import BlockCopy, StridedCopy
from pblas.backends.cuda.tridiagonal import TwoStage
from pblas.backends.device import Device, Mark, Programs, Traits
from pblas.backends.dtypes import Array, Dtype, GpuArray, Order
from pblas.backends.push_engine import EXACT, GemmModes

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.cuda.reproducible import TreeProducts, UniformGemm
    from pblas.backends.traced import Kind

_PRIORITY = -5  # the highest: copies do not wait for GEMMs that were launched before them
_NO_STREAM = -1
_SEEN = object()  # stands for the program of a body that has run once


class Program:
    """A captured body, and the memory that it uses. Executions are awaited, so it does not run when it is dropped."""

    __slots__ = ("graph", "kept")

    def __init__(self, graph: streams.Graph, kept: list[Any]) -> None:
        self.graph: Any = graph
        self.kept: list[Any] = kept

    def __del__(self) -> None:
        with suppress(runtime.CUDARuntimeError):  # the driver may have ended before the program does
            self.graph.close()


class _OnStream:
    """See `DeviceLanes.on_stream`."""

    __slots__ = ("_before", "_lanes", "_stream")

    def __init__(self, lanes: DeviceLanes, stream: int) -> None:
        self._lanes, self._stream = lanes, stream

    def __enter__(self) -> None:
        self._before, self._lanes.stream = self._lanes.stream, self._stream

    def __exit__(self, *error: object) -> None:
        self._lanes.stream = self._before


class DeviceLanes(Device):
    """Two streams of this thread's current GPU, and what works there; `pblas.backends.device` documents the methods."""

    traits = Traits(
        gpu=True,
        blocking=False,
        reads_peers=False,  # a product reads each element many times, over NVLink too
        packs_blocks=False,
        most_operands=MAX_TERMS,
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
        self._lists: dict[int, tuple[Array, Any]] = {}  # row and column numbers on the GPU, by their host arrays
        self._modes, self._autotune = EXACT, False
        self._blas: dict[int, int] = {}
        self._handed = cupy.cuda.Event(block=False, disable_timing=True)
        self._pending: int | None = None  # the stream that last got work by `hand_over`, which may still run
        self._bands: dict[int, TwoStage] = {}
        self.tree_gemm: Callable[[], TreeProducts] | None = None
        """Makes a kernel for products in pieces of K and for symmetric ones; None without one (local)."""
        self.launched: Callable[[], tuple[int, ...]] = tuple
        """Events after which all executions that engines have launched have ended (local)."""

    @cached_property
    def _second(self) -> Any:
        """The stream beside the main lane, with a workspace of its own."""
        self._gemm.add_lanes(["second"])
        return cupy.cuda.Stream(non_blocking=True)

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

    @cached_property
    def uniform_gemm(self) -> UniformGemm:
        """Products that form all elements alike."""
        from pblas.backends.cuda.reproducible import UniformGemm

        return UniformGemm(self.tree_gemm)

    @cached_property
    def tile_gemm(self) -> TreeProducts | None:
        """The kernel of symmetric products; None without one."""
        return None if self.tree_gemm is None else self.tree_gemm()

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
        return self.array(self.empty(x.size * dtype.itemsize), x.shape, dtype, "F" if by_columns(x) else "C")

    def release(self) -> None:
        self.synchronize()  # which frees the workspace
        self._pool.free_all_blocks()

    # Order

    @property
    def is_in_order(self) -> bool:
        """Whether the execution that is under way runs in the caller's stream (local)."""
        return self.lane == ""

    @property
    def lane(self) -> str:
        """The lane that gets the work now; "" if it is the caller's stream (local)."""
        stream = self.stream
        if stream == self._main.ptr:
            return "main"
        if stream == self._side.ptr:
            return "side"
        return "second" if "_second" in self.__dict__ and stream == self._second.ptr else ""

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
            if self._pending is not None:
                self.settle(caller_stream)
            if "uniform_gemm" in self.__dict__:  # engines, on any stream, may use its memory and that of `empty`
                for event in self.launched():
                    runtime.eventSynchronize(event)
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
        if "_second" in self.__dict__:
            runtime.streamSynchronize(self._second.ptr)
        runtime.streamSynchronize(self._main.ptr)
        self._kept.clear()

    def check_stream(self, operation: str, stream: object, *, waits: bool) -> None:
        handle = streams.current_handle(stream)
        if waits:
            if streams.is_capturing(handle):
                raise errors.ArgumentError(
                    f"{operation}: a naive collective goes through the hosts, and cannot be captured in a CUDA graph; "
                    f"end the capture first"
                )
            runtime.streamSynchronize(handle)

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

    def on_side_lane(self, what: str = "", kind: Kind = "copy") -> AbstractContextManager[None]:
        return self.on_stream(self.stream if self.is_in_order else self.side)

    def on_stream(self, stream: int) -> AbstractContextManager[None]:
        """A with block whose operations are launched on a stream (local)."""
        return _OnStream(self, stream)

    def on_second_lane(self) -> AbstractContextManager[None]:
        return self.on_stream(int(self._second.ptr))

    def mark(self) -> Mark:
        event = cupy.cuda.Event(block=False, disable_timing=True)
        runtime.eventRecord(event.ptr, self.stream)
        return event

    def follow(self, mark: Mark) -> None:
        if mark is not None:
            runtime.streamWaitEvent(self.stream, mark.ptr, 0)

    def wait(self, mark: Mark) -> None:
        if mark is not None:
            runtime.eventSynchronize(mark.ptr)

    def close(self) -> None:
        with suppress(runtime.CUDARuntimeError):  # a failed GPU
            self.settle(_NO_STREAM)
        self._kept.clear()
        self._lists.clear()
        if self._loaded is not None:
            self._gemm.close()
            self._loaded = None
        self.__dict__.pop("_second", None)
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


def by_columns(x: GpuArray) -> bool:
    return abs(x.strides[0]) < abs(x.strides[1]) or x.shape[1] <= 1

"""CUDA streams, events, graphs and flags, as far as CuPy does not wrap them; handles are integers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import cupy
from cuda.bindings import driver
from cupy.cuda import runtime

from pblas import errors
from pblas.backends import interop
from pblas.backends.cuda.kernels import Stream, give

_DISABLE_TIMING = 2
_DEVICE_TO_DEVICE = 3
_RELAXED = 2
_SUCCESS, _NOT_READY = 0, 600
_MAX_BATCH = 250  # operations of one cuStreamBatchMemOp

Handle = interop.Stream  # a stream by its handle, for libraries that take any object with `__cuda_stream__`


def event() -> int:
    """A new event without timing."""
    return int(runtime.eventCreateWithFlags(_DISABLE_TIMING))


def is_done(event: int) -> bool:
    """Whether all operations before an event have ended."""
    status = int(runtime.eventQuery(event))
    if status not in (_SUCCESS, _NOT_READY):
        raise errors.BackendError(f"CUDA: error {status} in an earlier operation")
    return status == _SUCCESS


def allow_during_captures() -> None:
    """Let this thread call CUDA while other threads capture: in the strictest mode that would end their captures."""
    check(driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))


@contextmanager
def relaxed() -> Iterator[None]:
    """A with block in which this thread may allocate and load modules during any capture."""
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = check(driver.cuThreadExchangeStreamCaptureMode(mode))
    try:
        yield
    finally:
        check(driver.cuThreadExchangeStreamCaptureMode(before))


def handle_of(stream: object) -> int:
    """The handle of a stream of CuPy, or of any library whose streams have `__cuda_stream__`."""
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is None:
        raise errors.ArgumentError(
            f"execute: stream must be a CUDA stream with __cuda_stream__, got {type(stream).__name__}; pass such an "
            f"object, or None for CuPy's current stream"
        )
    return int((protocol() if callable(protocol) else protocol)[1])


def current_handle(stream: object) -> int:
    """`handle_of` a stream; None is CuPy's current one."""
    return int(cupy.cuda.get_current_stream().ptr) if stream is None else handle_of(stream)


def is_capturing(handle: int) -> bool:
    """Whether a stream is being captured; the default streams, 0 and 1, cannot be."""
    return handle not in (0, 1) and bool(runtime.streamIsCapturing(handle))


def copy(stream: Stream, target: int, pitch: int, source: int, source_pitch: int, width: int, height: int) -> None:
    """Copy `height` runs of `width` bytes by a copy engine; a pitch is the distance of the starts of two runs."""
    words = [target, source]

    def start(handle: int) -> None:
        to_address, from_address = words
        if height == 1 or pitch == source_pitch == width:
            runtime.memcpyAsync(to_address, from_address, width * height, _DEVICE_TO_DEVICE, handle)
        else:
            runtime.memcpy2DAsync(
                to_address, pitch, from_address, source_pitch, width, height, _DEVICE_TO_DEVICE, handle
            )

    give(stream, start, words)


def record(stream: Stream, event: int) -> None:
    """Record an event after the stream's operations so far."""
    give(stream, lambda handle: runtime.eventRecord(event, handle), [])


def follow(stream: Stream, event: int) -> None:
    """Let further operations of the stream wait for an event."""
    give(stream, lambda handle: runtime.streamWaitEvent(handle, event, 0), [])


def operate(stream: Stream, operations: list[Any]) -> None:
    """Set words and wait for words, in order, after all GPUs see the stream's earlier stores."""

    def start(handle: int) -> None:
        for first in range(0, len(operations), _MAX_BATCH):
            batch = operations[first : first + _MAX_BATCH]
            check(driver.cuStreamBatchMemOp(handle, len(batch), batch, 0))

    give(stream, start, [])


def set_word(address: int) -> Any:
    """An operation for `operate` that sets a word to 1. Its creation costs more than its use, so callers keep it."""
    op = driver.CUstreamBatchMemOpParams()
    op.writeValue.operation = driver.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WRITE_VALUE_32
    op.writeValue.address = driver.CUdeviceptr(address)
    op.writeValue.value = driver.cuuint32_t(1)
    op.writeValue.flags = 0
    return op


@lru_cache(1024)
def await_word(address: int) -> tuple[Any, Any]:
    """Operations for `operate` that wait, without a multiprocessor, until a word of this GPU is 1, and reset it."""
    wait, reset = driver.CUstreamBatchMemOpParams(), set_word(address)
    wait.waitValue.operation = driver.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WAIT_VALUE_32
    wait.waitValue.address = driver.CUdeviceptr(address)
    wait.waitValue.value = driver.cuuint32_t(1)
    wait.waitValue.flags = int(driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ)
    reset.writeValue.value = driver.cuuint32_t(0)
    return wait, reset


def check(result: Any) -> Any:
    """The result of a call of cuda.bindings, without its status."""
    status, *values = result
    if int(status):
        _, name = driver.cuGetErrorName(status)
        raise errors.BackendError(f"CUDA: {name.decode() if name else status}")
    return values[0] if values else None


class Graph:
    """A captured graph, ready to be launched."""

    __slots__ = ("_exec", "_graph")

    def __init__(self, graph: int) -> None:
        self._graph, self._exec = graph, int(runtime.graphInstantiate(graph))

    def launch(self, stream: int) -> None:
        """Run the graph on a stream; the work of one launch ends before the next begins."""
        runtime.graphLaunch(self._exec, stream)

    def close(self) -> None:
        """Free the graph, which must not be running."""
        runtime.graphExecDestroy(self._exec)
        runtime.graphDestroy(self._graph)


def begin_capture(stream: int) -> None:
    """Record further operations of a stream, and of streams forked from it, instead of running them."""
    runtime.streamBeginCapture(stream, _RELAXED)


def capture_of(stream: int) -> int:
    """The number of the capture in which a stream takes part."""
    info = driver.cuStreamGetCaptureInfo(stream)
    check(info)
    return int(info[2])


def end_capture(stream: int) -> Graph:
    """End a capture and return its graph."""
    return Graph(int(runtime.streamEndCapture(stream)))


def abandon_capture(stream: int) -> None:
    """End a failed capture and drop its graph."""
    try:
        graph = int(runtime.streamEndCapture(stream))
    except runtime.CUDARuntimeError:
        return
    if graph:
        runtime.graphDestroy(graph)

"""Launches on a GPU: directly on a stream, or recorded for replay on streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class LaunchRecorder(Protocol):
    """Stands in for a stream, and records its launches."""

    def record(self, start: Callable[[int], None], words: Words) -> None:
        """Record the launch `start(stream)` with its words, which may change before it runs."""

    def __int__(self) -> int:
        """A launch recorder has no handle: this raises."""


Stream = int | LaunchRecorder
"""The handle of a stream, or a launch recorder."""

Words = list[int] | memoryview
"""Integer arguments of a launch, addresses among them."""

EARLY_CAPABILITY = 90
"""GPUs from this compute capability on support early launches (programmatic dependent launch)."""


def give(stream: Stream, start: Callable[[int], None], words: Words) -> None:
    """Start a launch on a stream, or record the launch."""
    if isinstance(stream, int):
        start(stream)
    else:
        stream.record(start, words)


def configured(stream: int, ctas: int, threads: int, *, early: bool, shared_nbytes: int = 0) -> Any:
    """The configuration of a kernel launch."""
    from cuda.bindings import driver

    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = ctas, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = shared_nbytes
    config.hStream = driver.CUstream(stream)
    if early:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.attrs, config.numAttrs = [attribute], 1
    return config

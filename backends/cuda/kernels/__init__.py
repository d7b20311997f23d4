"""CUDA C++ that all kernels share; loading and launches of kernels, directly or recorded for replay.

A launch is one call of the driver and allocates nothing: all arguments are
one struct, in memory that lives as long as the kernels. A launch may be captured.
"""

from __future__ import annotations

import ctypes
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from pblas import errors
from pblas.backends.cuda.programs import Program, compiling

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence


class LaunchRecorder(Protocol):
    """Stands in for a stream, and records its launches."""

    def record(self, start: Callable[[int], None], words: Words) -> None:
        """Record the launch `start(stream)` with its words, which may change before it runs."""

    def __int__(self) -> int:
        """A launch recorder has no handle: this raises."""


Stream = int | LaunchRecorder  # the handle of a stream, or a launch recorder

Words = list[int] | memoryview  # integer arguments of a launch, addresses among them

EARLY_CAPABILITY = 90  # GPUs from this compute capability on support early launches (programmatic dependent launch)


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


FOLDER = Path(__file__).parent  # folder of the files that all kernels may include


def expanded(path: Path) -> str:
    """CUDA C++ with its includes expanded: files of the same folder, or of `FOLDER`."""

    def included(match: re.Match[str]) -> str:
        beside = path.parent / match[1]
        return expanded(beside if beside.exists() else FOLDER / match[1])

    return re.sub(r'^#include "(.*)"$', included, path.read_text(), flags=re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct whose fields all have eight bytes.

    >>> two = Struct("S", "a beta.re", {"t": 3})
    >>> two.nbytes, two.offsets
    (40, {'a': 0, 'beta.re': 8, 't': 16})
    """

    name: str  # name in the source
    scalars: str  # names of the first fields, separated by blanks
    tables: dict[str, int]  # names and lengths of the arrays after the scalars

    @property
    def nbytes(self) -> int:
        """Size of the struct."""
        return 8 * (len(self.scalars.split()) + sum(self.tables.values()))

    @property
    def offsets(self) -> dict[str, int]:
        """Offset of each field in bytes."""
        offsets = {field: 8 * i for i, field in enumerate(self.scalars.split())}
        offset = 8 * len(offsets)
        for table, length in self.tables.items():
            offsets[table] = offset
            offset += 8 * length
        return offsets


class Arguments:
    """Memory of one struct, and of the pointer to it that a launch takes."""

    def __init__(self, layout: Struct) -> None:
        fields = layout.scalars.split()
        self._scalars = struct.Struct("=" + "".join("d" if field.startswith("beta.") else "q" for field in fields))
        self._tables = [(layout.offsets[table], length) for table, length in layout.tables.items()]
        self._memory = ctypes.create_string_buffer(layout.nbytes)
        self._pointer = ctypes.c_void_p(ctypes.addressof(self._memory))
        self.address: int = ctypes.addressof(self._pointer)
        self.words: memoryview[int] = memoryview(self._memory).cast("B").cast("q")  # the struct as integers

    def fill(self, scalars: tuple[float, ...], tables: tuple[Sequence[int], ...] = ()) -> None:
        """Write all scalars, and the first elements of each table."""
        self._scalars.pack_into(self._memory, 0, *scalars)
        for (offset, length), values in zip(self._tables, tables, strict=True):
            assert len(values) <= length
            struct.pack_into(f"={len(values)}q", self._memory, offset, *values)


class WordArguments:
    """Memory for the arguments of launches that are 64-bit words: those of a kernel, or of its only struct."""

    def __init__(self, most: int) -> None:
        import cupy

        self._driver = cupy.cuda.driver
        self._memory = ctypes.create_string_buffer(8 * most)
        start = ctypes.addressof(self._memory)
        self._pointers = (ctypes.c_void_p * most)(*range(start, start + 8 * most, 8))
        self.address: int = ctypes.addressof(self._pointers)

    def write(self, words: Sequence[int]) -> None:
        """Write the arguments of the next launch; the driver copies them before the launch returns."""
        struct.pack_into(f"={len(words)}q", self._memory, 0, *words)

    def launch(
        self,
        function: int,
        stream: int,
        ctas: tuple[int, int],
        threads: int,
        words: Sequence[int],
        shared_nbytes: int = 0,
    ) -> None:
        """Launch a kernel on a stream."""
        self.write(words)
        try:
            self._driver.launchKernel(function, *ctas, 1, threads, 1, 1, shared_nbytes, stream, self.address, 0)
        except self._driver.CUDADriverError as caught:
            raise errors.BackendError(f"a kernel could not be launched on stream {stream:#x}: {caught}") from None


class Ready:
    """A launch with prepared arguments, which costs one call."""

    __slots__ = ("_arguments", "_config", "_driver", "_function")

    def __init__(self, driver: Any, function: object, arguments: Arguments, config: Any) -> None:
        self._driver, self._function, self._arguments, self._config = driver, function, arguments, config

    @property
    def words(self) -> memoryview:
        """The arguments as integers."""
        return self._arguments.words

    def launch(self, stream: int) -> None:
        """Launch the kernel; a launch may be captured."""
        self._config.hStream = self._driver.CUstream(stream)
        (status,) = self._driver.cuLaunchKernelEx(self._config, self._function, self._arguments.address, 0)
        if status:
            raise errors.BackendError(f"a kernel could not be launched on stream {stream:#x}: {status.name}")


def prefer_shared_memory(driver: Any, function: Any) -> None:
    """Let multiprocessors that run a kernel configure the largest shared memory.

    The kernel may start on a multiprocessor before a concurrent GEMM, or a GEMM for which it waits. A CTA of the GEMM
    needs nearly all shared memory. With a smaller configuration it could not start there before the kernel has ended.
    """
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    most = int(driver.CUshared_carveout.CU_SHAREDMEM_CARVEOUT_MAX_SHARED)
    (status,) = driver.cuFuncSetAttribute(function, attribute, most)
    if status:
        raise errors.BackendError(f"the driver keeps shared memory from a kernel beside others: {status.name}")


class Module:
    """Kernels for the current GPU, by their keys; `early` families themselves wait for the preceding kernel to end."""

    def __init__(self, structs: Mapping[str, Struct], early: tuple[str, ...] = ()) -> None:
        import cupy
        from cuda.bindings import driver

        self._driver = driver
        device = cupy.cuda.Device()
        self._sms: int = device.attributes["MultiProcessorCount"]
        self._early = early if int(device.compute_capability) >= EARLY_CAPABILITY else ()
        self._programs: list[Program] = []
        self._functions: dict[object, Any] = {}
        self._arguments = {family: Arguments(layout) for family, layout in structs.items()}
        self._structs = structs
        self._lock = Lock()

    def _compile(self, *programs: tuple[str, Mapping[Any, str]]) -> None:
        """Compile programs in CUDA C++, at the same time, and register their kernels under these keys."""
        futures = compiling([Program(code) for code, _ in programs])
        for future, (_, names) in zip(futures, programs, strict=True):
            program = future.result()
            for key, name in names.items():
                self._functions[key] = self._driver.CUfunction(program.get_function(name).kernel.ptr)
            self._programs.append(program)

    def _launch_nothing(self, key: Hashable, stream: Stream, family: str) -> None:
        """Load a kernel by a launch with zeros as arguments, which does nothing.

        Loading waits for running kernels, so a later load could wait for a kernel that waits for a peer.
        """
        layout = self._structs[family]
        zeros = (0,) * len(layout.scalars.split())
        tables = tuple([0] * length for length in layout.tables.values())
        self._launch(key, stream, 1, 32, family, zeros, tables)

    def _ready(
        self,
        function: object,
        ctas: int,
        threads: int,
        family: str,
        scalars: tuple[float, ...],
        tables: tuple[Sequence[int], ...],
    ) -> Ready:
        arguments = Arguments(self._structs[family])
        arguments.fill(scalars, tables)
        return Ready(self._driver, function, arguments, configured(0, ctas, threads, early=family in self._early))

    def _launch(
        self,
        name: Any,
        stream: Stream,
        ctas: int,
        threads: int,
        family: str,
        scalars: tuple[float, ...],
        tables: tuple[Sequence[int], ...] = (),
    ) -> None:
        if not isinstance(stream, int):
            ready = self._ready(self._functions[name], ctas, threads, family, scalars, tables)
            stream.record(ready.launch, ready.words)
            return
        arguments = self._arguments[family]
        with self._lock:  # the driver copies the arguments before it returns
            arguments.fill(scalars, tables)
            if family in self._early:
                config = configured(stream, ctas, threads, early=True)
                (status,) = self._driver.cuLaunchKernelEx(config, self._functions[name], arguments.address, 0)
            else:
                (status,) = self._driver.cuLaunchKernel(
                    self._functions[name], ctas, 1, 1, threads, 1, 1, 0, stream, arguments.address, 0
                )
        if status:
            raise errors.BackendError(f"kernel {name} could not be launched on stream {stream:#x}: {status.name}")

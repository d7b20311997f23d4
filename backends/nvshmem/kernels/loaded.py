"""Kernels that are compiled and loaded, and how they are launched.

CuPy compiles them (NVRTC) and keeps the machine code on disk, in a cache that ranks which start together may share:
files are written under other names first, and their digest is checked. A launch goes through the driver: all arguments
are one struct, in memory that lives as long as the kernels, so that it costs one call and allocates nothing. It may be
captured.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from pblas import errors
from pblas.backends.cuda.launches import EARLY_CAPABILITY, configured
from pblas.backends.nvshmem.kernels.arguments import STRUCTS, Arguments
from pblas.backends.nvshmem.kernels.sources import FILES, KINDS, STRUCT_OF, source

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from pblas.backends.cuda.launches import Stream

_OPTIONS = ("--std=c++17",)


class Ready:
    """A launch whose arguments are settled, so that it costs one call.

    Args:
        driver: CUDA's.
        function: of the kernel.
        arguments: of it.
        config: of the launch.
    """

    __slots__ = ("_arguments", "_config", "_driver", "_function")

    def __init__(self, driver: Any, function: Any, arguments: Arguments, config: Any) -> None:
        self._driver, self._function, self._arguments, self._config = driver, function, arguments, config

    @property
    def words(self) -> memoryview:
        """Its arguments."""
        return self._arguments.words

    def launch(self, stream: int) -> None:
        """Launch it; it may be captured."""
        self._config.hStream = self._driver.CUstream(stream)
        (status,) = self._driver.cuLaunchKernelEx(self._config, self._function, self._arguments.address, 0)
        if status:
            raise errors.BackendError(f"a kernel could not be launched on stream {stream:#x}: {status.name}")


def give_way(driver: Any, function: Any) -> None:
    """Let multiprocessors on which a kernel runs have as much shared memory as they can.

    It may come to one before a GEMM that it waits for, or beside which it copies. Were that set up for little shared
    memory, the GEMM's CTA, which takes nearly all that there is, could not begin there before the kernel has ended.

    Raises:
        BackendError: the driver does not know the wish.
    """
    wish = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    most = int(driver.CUshared_carveout.CU_SHAREDMEM_CARVEOUT_MAX_SHARED)
    (status,) = driver.cuFuncSetAttribute(function, wish, most)
    if status:
        raise errors.BackendError(f"the driver keeps shared memory from a kernel beside others: {status.name}")


class Loaded:
    """All kernels, compiled for the current GPU."""

    def __init__(self) -> None:
        import cupy
        from cuda.bindings import driver

        self._driver = driver
        device = cupy.cuda.Device()
        self._sms: int = device.attributes["MultiProcessorCount"]
        # Families whose kernels wait for the end of the one before by themselves.
        self._early = ("all_reduce", "wait") if int(device.compute_capability) >= EARLY_CAPABILITY else ()
        self._modules = [cupy.RawModule(code=source(file), options=_OPTIONS) for file in FILES]
        self._functions: dict[Any, Any] = {
            name: driver.CUfunction(module.get_function(name).kernel.ptr)
            for module, names in zip(self._modules, FILES.values(), strict=True)
            for name in names
        }
        for name in ("copy", "wait"):
            give_way(driver, self._functions[name])
        self._rows: set[Any] = set()  # kernels that normalise rows
        self._arguments = {family: Arguments(layout) for family, layout in STRUCTS.items()}
        self._lock = Lock()

    def load(self, stream: int) -> None:
        """Run every kernel once, with arguments that make it do nothing.

        A module that is loaded later could wait for a kernel that waits for a peer.
        """
        for file, names in FILES.items():
            for name in names:
                self._launch_nothing(name, stream, name if file == "signals" else STRUCT_OF.get(file, file))

    def _launch_nothing(self, name: Any, stream: Stream, family: str) -> None:
        layout = STRUCTS[family]
        zeros = (0,) * len(layout.scalars.split())
        tables = tuple([0] * length for length in layout.tables.values())
        self._launch(name, stream, 1, 32, family, zeros, tables)

    def add(self, stream: Stream, key: Hashable, code: Callable[[], str], family: str = "all_reduce") -> None:
        """Compile kernels of a family, and run them once without arguments; nothing if they are there.

        Args:
            stream: handle.
            key: what they are asked for by.
            code: CUDA C++ of the kernels of `KINDS`, each named after its kind and "all".
            family: of `KINDS`.
        """
        names = [(kind, key) for kind in KINDS[family]]
        if names[0] in self._functions:
            return
        import cupy

        module = cupy.RawModule(code=code(), options=_OPTIONS)
        for name in names:
            pointer = module.get_function(f"{name[0]}_all").kernel.ptr
            self._functions[name] = self._driver.CUfunction(pointer)
            self._launch_nothing(name, stream, STRUCT_OF.get(family, family))
        self._modules.append(module)
        if family == "rows":
            self._rows.update(names)

    def _ready(
        self,
        function: Any,
        ctas: int,
        threads: int,
        family: str,
        scalars: tuple[float, ...],
        tables: tuple[Sequence[int], ...],
    ) -> Ready:
        made = Arguments(STRUCTS[family])
        made.fill(scalars, tables)
        return Ready(self._driver, function, made, configured(0, ctas, threads, early=family in self._early))

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
            stream.keep(ready.launch, ready.words)
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

"""Programs in CUDA C++ and their machine code: that which a wheel brings, or what NVRTC makes of them.

CuPy keeps what NVRTC has made on disk, under a hash of the source, the options and the versions. Ranks may share its
folder: CuPy renames finished files into place and checks their digest. A wheel may bring machine code for Hopper in the
folder `cubins` (see `pblas.backends.nvshmem.cubins`), under a hash of the source alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_THREADS = 8
STANDARD = "c++17"
CUBINS = Path(__file__).parent / "cubins"
INDEX = "index.json"
"""File of that folder: the capability of the GPUs, NVRTC's version, and for each file the symbols of its instances."""


class Program:
    """A source whose kernels are compiled, or read from the wheel, when the first of them is asked for.

    Args:
        code: CUDA C++.
        instances: the kernels that are instances of templates, as `lower<double>`; others have C's names.
        cooperative: whether all CTAs of a launch are resident at a time, or it fails.
    """

    def __init__(self, code: str, instances: Sequence[str] = (), *, cooperative: bool = False) -> None:
        self.code, self.instances = code, tuple(instances)
        self._cooperative = cooperative
        self._module: Any = None
        self._symbols: dict[str, str] = {}

    @property
    def key(self) -> str:
        """The name of its file among those of a wheel.

        >>> Program("a").key == Program("a").key != Program("a", ["f<double>"]).key
        True
        """
        return hashlib.sha256(repr((self.code, self.instances, STANDARD)).encode()).hexdigest()[:32]

    def compile(self) -> None:
        """Compile the kernels for the current GPU, or read them from the wheel or CuPy's cache, and load them."""
        import cupy

        if self._module is not None:
            return
        module = self._read()
        if module is None:
            module = cupy.RawModule(
                code=self.code,
                options=(f"--std={STANDARD}",),
                name_expressions=self.instances or None,
                enable_cooperative_groups=self._cooperative,
            )
            module.compile()
        self._module = module

    def _read(self) -> Any:
        """The loaded module of the wheel; None if it has none for this GPU, or none that the driver loads."""
        import cupy

        symbols = _shipped(cupy.cuda.Device().id).get(self.key)
        if symbols is None:
            return None
        path = str(CUBINS / f"{self.key}.cubin")
        module = cupy.RawModule(path=path, enable_cooperative_groups=self._cooperative)
        try:
            module.compile()
        except cupy.cuda.driver.CUDADriverError:  # the file is missing or damaged
            return None
        self._symbols = dict(zip(self.instances, symbols, strict=True))
        return module

    def get_function(self, name: str) -> Any:
        """A kernel as CuPy's RawKernel, loaded; `name` is its C name, or one of the instances."""
        self.compile()
        return self._module.get_function(self._symbols.get(name, name))


@cache
def _shipped(device: int) -> dict[str, list[str]]:
    """The symbols of the instances of each program that the wheel has machine code of for this GPU."""
    from cupy.cuda import runtime

    try:
        index = json.loads((CUBINS / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none, or none that can be read: NVRTC compiles
        return {}
    attributes = runtime.getDeviceProperties(device)
    is_for = [attributes["major"], attributes["minor"]] == index["capability"]
    # A driver runs what compilers of its own and earlier major versions have made
    programs: dict[str, list[str]] = index["programs"]
    return programs if is_for and runtime.driverGetVersion() // 1000 >= index["nvrtc"][0] else {}


def unbound_threads(count: int) -> ThreadPoolExecutor:
    """Threads that may use all processors, also where a launcher has bound the rank to one, as Open MPI does."""

    def unbind() -> None:
        with suppress(OSError):  # the affinity of this thread, within what the system allows
            os.sched_setaffinity(0, range(os.cpu_count() or 1))

    return ThreadPoolExecutor(min(count, _MOST_THREADS), initializer=unbind)


def compiling(programs: Sequence[Program]) -> list[Future[Program]]:
    """Begin to compile programs in threads, each of which NVRTC takes one in."""
    import cupy
    from cuda.bindings import driver

    device, relaxed = cupy.cuda.Device(), driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED

    def compiled(program: Program) -> Program:
        with device:
            driver.cuThreadExchangeStreamCaptureMode(relaxed)  # a module may be loaded while the caller captures
            program.compile()
        return program

    if not programs:
        return []
    threads = unbound_threads(len(programs))
    futures = [threads.submit(compiled, program) for program in programs]
    threads.shutdown(wait=False)
    return futures

"""Kernels of factorizations: a source file is compiled for each dtype when one of its kernels is first launched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cupy

from pblas.backends.cuda import streams

_TYPES = {"f": "float, float", "d": "double, double", "F": "float2, float", "D": "double2, double"}
"""Types of elements and of their real parts, by NumPy's letters of dtypes."""
THREADS = 256
"""Of a CTA, where a kernel does not ask for another number."""


class DtypeKernels:
    """The kernels of one source file of this folder, each named NAME_LETTER by its macro OF_DTYPE.

    Args:
        name: of the file, without .cu (global).
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._modules: dict[str, Any] = {}
        self._functions: dict[str, Any] = {}

    def launch(
        self,
        stream: int,
        name: str,
        letter: str,
        ctas: int,
        arguments: tuple[Any, ...],
        *,
        shared_nbytes: int = 0,
        threads: int = THREADS,
    ) -> None:
        """Launch a kernel."""
        function = self._functions.get(name + letter)
        if function is None:
            if letter not in self._modules:
                self._modules[letter] = self._compiled(letter)
            function = self._functions[name + letter] = self._modules[letter].get_function(f"{name}_{letter}")
            if shared_nbytes:
                attributes = cupy.cuda.Device().attributes
                function.max_dynamic_shared_size_bytes = attributes["MaxSharedMemoryPerBlockOptin"]
        with cupy.cuda.Stream.from_external(streams.Handle(stream)):
            function((ctas,), (threads,), arguments, shared_mem=shared_nbytes)

    def _compiled(self, letter: str) -> Any:
        sources = (Path(__file__).with_name(name).read_text() for name in ("scalars.cuh", f"{self._name}.cu"))
        code = "".join(sources) + f"OF_DTYPE({letter}, {_TYPES[letter]})\n"
        return cupy.RawModule(code=code, options=("--std=c++17",))

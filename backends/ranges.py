"""NVTX ranges of this rank's operations, for Nsight Systems: GEMMs, copies, sums, waits and agreements.

`PBLAS_NVTX=1` asks for them. They are the operations of `pblas.backends.recorder`, by the same wrappers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from pblas import errors
from pblas.backends.recorder import Described, Methods, Open, Recorder
from pblas.backends.traced import Kind

VARIABLE = "PBLAS_NVTX"
_DOMAIN = "pblas"
_COLOURS: dict[Kind, str] = {
    "gemm": "blue",
    "factor": "red",
    "sum": "green",
    "copy": "orange",
    "signal": "purple",
    "wait": "grey",
}


def wanted() -> bool:
    """Whether PBLAS_NVTX asks for ranges (local)."""
    value = os.environ.get(VARIABLE) or "0"
    if value not in ("0", "1"):
        raise errors.ArgumentError(f"{VARIABLE} must be 0 or 1, got {value!r}")
    if value == "1":
        try:
            import_module("nvtx")
        except ImportError:
            raise errors.BackendError(f"{VARIABLE}=1 needs the package nvtx: pip install nvtx") from None
    return value == "1"


class Ranges(Recorder):
    """Puts each operation of this rank into an NVTX range, while its `with` block runs; keeps no events.

    A range is the time of the host: on GPUs it is the launch of an operation, and Nsight Systems shows the kernels that
    were launched in it. Executions that replay a CUDA graph are one range.

    Args:
        backend: backend of the context (local).
    """

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self._nvtx: Any = import_module("nvtx")

    @property
    def is_full(self) -> bool:
        """Always: messages are not kept (local)."""
        return True

    def _methods(self) -> list[tuple[Any, Methods]]:
        run: dict[str, Callable[..., Described | None]] = {"run": lambda *_: ("main", "gemm", "execution", {})}
        return [*super()._methods(), *((engine, run) for engine in self._backend.engines())]

    @contextmanager
    def _span(self, lane: str, kind: Kind, name: str, details: dict[str, Any]) -> Iterator[Open]:
        self._nvtx.push_range(name, color=_COLOURS.get(kind, "white"), domain=_DOMAIN, category=kind)
        try:
            yield Open(lane, kind, name, details, None)
        finally:
            self._nvtx.pop_range(domain=_DOMAIN)

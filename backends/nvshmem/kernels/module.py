"""The kernels of this folder, compiled and loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.backends.cuda.kernels.module import Module, prefer_shared_memory
from pblas.backends.nvshmem.kernels.arguments import STRUCTS
from pblas.backends.nvshmem.kernels.sources import ALWAYS, FILES, KINDS, STRUCT_OF, source

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from pblas.backends.cuda.recordable import Stream


class Loaded(Module):
    """Kernels, compiled for the current GPU: those of `ALWAYS`, and others when a plan requires them."""

    def __init__(self) -> None:
        super().__init__(STRUCTS, early=("all_reduce", "wait"))
        for file in ALWAYS:
            self._compile(source(file), {name: name for name in FILES[file]})
        for name in ("copy", "wait"):
            prefer_shared_memory(self._driver, self._functions[name])
        self._rows: set[Any] = set()  # kernels that normalise rows

    def load(self, stream: int) -> None:
        """Load the kernels of `ALWAYS` by launches with empty arguments."""
        for file in ALWAYS:
            for name in FILES[file]:
                self._launch_nothing(name, stream, name if file == "signals" else file)

    def require(self, stream: Stream, file: str) -> None:
        """Compile and load the kernels of a file, unless that is done: before an execution, which must not load any."""
        names = FILES[file]
        if names[0] in self._functions:
            return
        self._compile(source(file), {name: name for name in names})
        for name in names:
            self._launch_nothing(name, stream, STRUCT_OF[file])

    def add(self, stream: Stream, key: Hashable, code: Callable[[], str], family: str = "all_reduce") -> None:
        """Compile kernels of a family, and run them once without arguments, unless they exist."""
        names: dict[Hashable, str] = {(kind, key): f"{kind}_all" for kind in KINDS[family]}
        if names.keys() <= self._functions.keys():
            return
        self._compile(code(), names)
        for name in names:
            self._launch_nothing(name, stream, STRUCT_OF.get(family, family))
        if family == "rows":
            self._rows.update(names)

"""The sources of the kernels, their names, and the kernels compiled and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from pblas.backends.cuda.kernels import Module, Stream, expanded, prefer_shared_memory
from pblas.backends.cuda.pointwise import type_name
from pblas.backends.dtypes import FLOAT8, Dtype
from pblas.backends.nvshmem.kernels.arguments import STRUCTS, EpilogueTerms

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


FOLDER = Path(__file__).parent

_FLOAT32 = np.dtype(np.float32)
_HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_COMPLEX = (np.dtype(np.complex64), np.dtype(np.complex128))
_DTYPES = (*_HALVES, _FLOAT32, np.dtype(np.float64), *_COMPLEX)

NAMES = {(dtype, dtype): dtype.name for dtype in _DTYPES} | {(h, _FLOAT32): f"{h.name}_float32" for h in _HALVES}
"""Suffix of a kernel's name: the dtype of the result, and of the terms if they are wider."""

KINDS: dict[str, tuple[str, ...]] = {
    "all_reduce": ("one_shot", "two_shot", "reduce_scatter", "two_shot_pull"),
    "rows": ("one_shot",),
    "sum": ("sum_2", "sum_4", "sum_8", "sum_scalar"),
}
"""The kernels of a family that can be compiled with an epilogue after their last addition."""

_INSTANCES = {"sum": "SUM({}, NoEpilogue)", "all_reduce": "ALL_REDUCE({}, Add, AddScaled)"}
"""The macro that makes the kernels of a family for one dtype: it takes a suffix, and the types of result and terms."""

ALWAYS = ("elementwise", "copy", "push", "signals")
"""The files that every context compiles; the others take seconds, and are compiled for plans that need them."""

FILES = {
    "elementwise": [f"scale_{dtype.name}" for dtype in (*_DTYPES, *FLOAT8)]
    + [f"conjugate_{dtype.name}" for dtype in _COMPLEX],
    "copy": ["copy"],
    "push": ["push"],
    "all_gather": [f"{kind}_{nbytes}" for kind in ("all_gather", "all_gather_ll") for nbytes in (2, 4, 8)],
    "signals": ["barrier", "wait", "delay"],
    **{
        f"{family}_{name}": [f"{kind}_{name}" for kind in KINDS[family]]
        for family in _INSTANCES
        for name in NAMES.values()
    },
}
"""The files, and the kernels in each. Those of sums and all-reduces, one for each dtype, are written by `source`."""

STRUCT_OF = {"all_gather": "all_reduce", "rows": "all_reduce"} | {
    f"{family}_{name}": family for family in _INSTANCES for name in NAMES.values()
}
"""Files and families that use the argument struct of another one."""


def file_of(family: str, dtype: Dtype, wire: Dtype) -> str:
    """The file of the kernels of "sum" or "all_reduce" for a dtype of the result and one of the terms."""
    return f"{family}_{NAMES[dtype, wire]}"


def kernel_name(kind: str, dtype: Dtype, wire: Dtype, epilogue: EpilogueTerms | None) -> Any:
    """The key of a kernel."""
    return f"{kind}_{NAMES[dtype, wire]}" if epilogue is None else (kind, epilogue.key)


def source(file: str) -> str:
    """CUDA C++ of one of the files."""
    family = STRUCT_OF.get(file)
    if family not in _INSTANCES or file == "all_gather":
        return expanded(FOLDER / f"{file}.cu")
    suffix = file.removeprefix(f"{family}_")
    types = next(pair for pair, name in NAMES.items() if name == suffix)
    arguments = ", ".join((suffix, *map(type_name, types)))
    return expanded(FOLDER / f"{family}.cuh") + _INSTANCES[family].format(arguments) + "\n"


class Loaded(Module):
    """Kernels, compiled for the current GPU: those of `ALWAYS`, and others when a plan requires them."""

    def __init__(self) -> None:
        super().__init__(STRUCTS, early=("all_reduce", "wait"))
        self._compile(*((source(file), {name: name for name in FILES[file]}) for file in ALWAYS))
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
        self._compile((source(file), {name: name for name in names}))
        for name in names:
            self._launch_nothing(name, stream, STRUCT_OF[file])

    def add(self, stream: Stream, key: Hashable, code: Callable[[], str], family: str = "all_reduce") -> None:
        """Compile kernels of a family, and run them once without arguments, unless they exist."""
        names: dict[Hashable, str] = {(kind, key): f"{kind}_all" for kind in KINDS[family]}
        if names.keys() <= self._functions.keys():
            return
        self._compile((code(), names))
        for name in names:
            self._launch_nothing(name, stream, STRUCT_OF.get(family, family))
        if family == "rows":
            self._rows.update(names)

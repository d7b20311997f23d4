"""The sources of the kernels, and the names of the kernels in them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from pblas.backends.cuda.kernels.sources import expanded
from pblas.backends.cuda.pointwise import type_name
from pblas.backends.dtypes import FLOAT8

if TYPE_CHECKING:
    from pblas.backends.nvshmem.kernels.arguments import EpilogueTerms

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


def file_of(family: str, dtype: np.dtype[Any], wire: np.dtype[Any]) -> str:
    """The file of the kernels of "sum" or "all_reduce" for a dtype of the result and one of the terms."""
    return f"{family}_{NAMES[dtype, wire]}"


def kernel_name(kind: str, dtype: np.dtype[Any], wire: np.dtype[Any], epilogue: EpilogueTerms | None) -> Any:
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

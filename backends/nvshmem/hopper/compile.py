"""Compilation of the Hopper kernel for dtypes, storage orders, list capacities and the epilogue."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from cuda.bindings import driver

from pblas.backends.cuda.gemm_problem import read
from pblas.backends.cuda.pointwise import ANY_STEP, TERM_WORDS, check_count, functions, printed
from pblas.backends.cuda.recordable import configured
from pblas.backends.nvshmem.hopper.cubin_cache import machine_code
from pblas.backends.nvshmem.hopper.descriptors import TYPES, checked
from pblas.backends.nvshmem.hopper.source import source
from pblas.backends.nvshmem.hopper.tile_scheduler import CLUSTER, SHARED_NBYTES, THREADS
from pblas.backends.nvshmem.reduction_epilogues import terms_of
from pblas.epilogues import Apply, nodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pblas.backends.nvshmem.hopper.descriptors import Part
    from pblas.backends.push_engine import Finish
    from pblas.epilogues import Node

_LONG = {"gelu", "erf", "log", "power"}  # functions of more than 20 instructions
_MOST_NBYTES = 12  # bytes of the elements of array operands that are loaded together
_ENDLESS = 1 << 62  # elements of a line of operands: the parts bound it


class KernelEpilogue(NamedTuple):
    """The epilogue of D, and those properties of its operands that are compiled into the kernel.

    Args:
        tree: the expression.
        dtypes: dtypes of array operands, None for numbers.
        steps: elements from one to the next along a line of D, if known (see `pointwise.printed`).
    """

    tree: Node
    dtypes: tuple[np.dtype[Any] | None, ...]
    steps: tuple[int, ...]

    @staticmethod
    def of(finish: Finish, parts: Sequence[Part]) -> tuple[KernelEpilogue, list[int]]:
        """The epilogue, and the words of its operands (local)."""
        fast = int(read(*parts[0][:3]).swapped)  # the axis of D's contiguous lines
        dtypes, words = terms_of(finish, fast)
        check_count(len(dtypes))
        even = all(part.origin[fast] % 2 == 0 for part in parts)

        def step(dtype: np.dtype[Any] | None, address: int, along: int, across: int) -> int:
            if dtype is None or along not in (0, 1):
                return ANY_STEP
            pairs = along == 0 or (even and across % 2 == 0 and address % (2 * dtype.itemsize) == 0)
            return along if pairs else ANY_STEP

        terms = zip(*(words[i::TERM_WORDS] for i in range(TERM_WORDS)), strict=True)
        steps = (step(dtype, *term) for dtype, term in zip(dtypes, terms, strict=True))
        return KernelEpilogue(finish.tree, dtypes, tuple(steps)), [_ENDLESS, *words]

    @property
    def is_long(self) -> bool:
        """Whether its code, unrolled for all sums of a thread, is slow to fetch or needs too many registers."""
        called = {node.function for node in nodes(self.tree) if isinstance(node, Apply)}
        arrays = [
            (dtype.itemsize, step) for dtype, step in zip(self.dtypes, self.steps, strict=True) if dtype is not None
        ]
        nbytes = sum(itemsize for itemsize, _ in arrays)
        return not called.isdisjoint(_LONG) or nbytes > _MOST_NBYTES or any(step == ANY_STEP for _, step in arrays)

    @property
    def text(self) -> str:
        """CUDA C++ in front of the kernel's source."""
        return functions(np.dtype(np.float16)) + printed(self.tree, self.dtypes, steps=self.steps)


@dataclass(frozen=True, slots=True)
class Variant:
    """A compilation of the kernel.

    Args:
        dtype: dtype of all matrices.
        a_along_m: whether A is stored by columns.
        b_along_n: whether B is stored by rows.
        reads_c: whether beta is not 0.
        waits: whether parts have flags.
        signals: whether parts have signals.
        parts: of D, at most.
        terms: number of terms of each part that has any.
        term_capacity: most terms of all parts together.
        places: most further places where parts are stored.
        width: width of the widest tile.
        split: CTAs that share a tile.
        epilogue: epilogue of D, if any.
    """

    dtype: str
    a_along_m: bool
    b_along_n: bool
    reads_c: bool
    waits: bool
    signals: bool
    parts: int
    terms: int
    term_capacity: int
    places: int
    width: int
    split: int
    epilogue: KernelEpilogue | None = None

    @property
    def general(self) -> Variant:
        """The variant for epilogue operands of any memory layout."""
        if self.epilogue is None:
            return self
        return replace(self, epilogue=self.epilogue._replace(steps=(ANY_STEP,) * len(self.epilogue.steps)))

    @property
    def text(self) -> str:
        """The source."""
        return source() if self.epilogue is None else self.epilogue.text + source()

    @property
    def macros(self) -> list[tuple[str, str]]:
        """Macros of the source, and their values."""
        values = {
            "TYPE": f'"{TYPES[self.dtype][0]}"',
            "A_ALONG_M": int(self.a_along_m),
            "B_ALONG_N": int(self.b_along_n),
            "READS_C": int(self.reads_c),
            "WAITS": int(self.waits),
            "SIGNALS": int(self.signals),
            "PARTS": self.parts,
            "TERMS": self.terms,
            "TERM_CAPACITY": self.term_capacity,
            "PLACES": self.places,
            "WIDTH": self.width,
            "SPLIT": self.split,
            "EPILOGUE": 0 if self.epilogue is None else 1 + self.epilogue.is_long,
        }
        return [(name, str(value)) for name, value in values.items()]


class Kernel:
    """A variant on the current device.

    Args:
        variant: parameters of the compilation.
    """

    def __init__(self, variant: Variant) -> None:
        text, macros = variant.text, variant.macros
        status, self._module = driver.cuModuleLoadData(machine_code(text, macros))
        if int(status):  # the cached file is damaged
            self._module = checked(driver.cuModuleLoadData(machine_code(text, macros, anew=True)), "load")
        self._function = checked(driver.cuModuleGetFunction(self._module, b"hopper_gemm"), "find")
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(driver.cuFuncSetAttribute(self._function, attribute, SHARED_NBYTES), "size")
        self._configs: dict[int, Any] = {}  # of launches, by clusters
        checked(
            driver.cuFuncLoad(self._function), "load"
        )  # not at the first launch: another kernel may be waiting then

    def launch(self, stream: int, clusters: int, arguments: int) -> None:
        """Launch the kernel."""
        config = self._configs.get(clusters)
        if config is None:
            config = configured(0, CLUSTER * clusters, THREADS, early=True, shared_nbytes=SHARED_NBYTES)
            self._configs[clusters] = config
        config.hStream = driver.CUstream(stream)
        checked(driver.cuLaunchKernelEx(config, self._function, arguments, 0), "launch")

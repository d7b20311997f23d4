"""Compile-time parameters of reduction kernels: the reduction operation and the fused epilogue."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pblas import errors
from pblas.backends.cuda import pointwise
from pblas.backends.cuda.kernels.sources import expanded
from pblas.backends.nvshmem import kernels
from pblas.backends.nvshmem.kernels import EpilogueTerms
from pblas.backends.push_engine import is_array
from pblas.epilogues import RESULT, Name, operand_names

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    import numpy as np

    from pblas.backends.cuda.recordable import Stream
    from pblas.backends.nvshmem.kernels import Kernels
    from pblas.backends.push_engine import Finish
    from pblas.epilogues import Node

OPERATIONS = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}
"""Names of the operations in pointwise.cuh."""


@dataclass(frozen=True, slots=True)
class ReductionEpilogue:
    """Compile-time parameters of reduction kernels, in addition to the dtype of the result.

    Args:
        op: a key of `OPERATIONS`.
        tree: the epilogue's expression.
        dtypes: dtypes of its array operands, None for numbers.
        weight: dtype of the weight if rows are normalised after the epilogue, else None.
        wire: dtype of the terms; None: the dtype of the result.
        scaled: beta C is added before the epilogue.
    """

    op: str
    tree: Node
    dtypes: tuple[np.dtype[Any] | None, ...] = ()
    weight: np.dtype[Any] | None = None
    wire: np.dtype[Any] | None = None
    scaled: bool = False

    def source(self, dtype: np.dtype[Any], family: str = "all_reduce") -> str:
        """CUDA C++ of the kernels of a family (see `pblas.backends.nvshmem.kernels.KINDS`).

        If rows are normalised after the epilogue, this is one kernel, "rows".
        """
        folder, is_sum = kernels.FOLDER, family == "sum"
        pointwise.check_count(len(self.dtypes))
        types = [pointwise.type_name(dtype), pointwise.type_name(self.wire or dtype)]
        macro = "SUM" if is_sum else "ALL_REDUCE" if self.weight is None else "ONE_SHOT"
        arguments = [*types, *([] if is_sum else ["Operation"]), "ReductionEpilogue"]
        return "\n".join([
            f"#define NORMALISED {int(self.weight is not None)}",
            pointwise.functions(dtype),
            expanded(folder / ("sum.cuh" if is_sum else "all_reduce.cuh")),
            f"#define OPERATION {OPERATIONS[self.op]}",
            f"#define SCALED {int(self.scaled and not is_sum)}",
            f"typedef {pointwise.type_name(dtype if self.weight is None else self.weight)} Weight;",
            pointwise.printed(self.tree, self.dtypes, self.first_term),
            expanded(folder / "collective.cuh"),
            f"{macro}(all, {', '.join(arguments)})",
        ])  # fmt: skip

    @property
    def first_term(self) -> int:
        """The number of the first operand: 1 after the eps of normalised rows, else 0."""
        return int(self.weight is not None)

    @property
    def is_plain(self) -> bool:
        """Whether these are sums without an epilogue."""
        return self.op == "sum" and self.tree == Name(RESULT) and self.weight is None

    def load(self, registry: Kernels, stream: Stream, dtype: np.dtype[Any], family: str = "all_reduce") -> Hashable:
        """Compile the kernels of a family unless they exist, and return their key (local)."""
        key = self, dtype
        family = family if self.weight is None else "rows"
        with compiling():
            registry.add(stream, key, lambda: self.source(dtype, family), family)
        return key


@contextmanager
def compiling() -> Iterator[None]:
    """A with block that turns failures into BackendError; a capture of the caller's goes on (local)."""
    from pblas.backends.cuda import streams

    try:
        with streams.relaxed():
            yield
    except errors.PblasError:
        raise
    except Exception as caught:  # noqa: BLE001 - CuPy's, NVRTC's and the driver's; the other ranks must not wait
        raise errors.BackendError(f"a kernel could not be compiled: {type(caught).__name__}: {caught}") from None


def compiled_epilogue(
    registry: Kernels,
    stream: Stream,
    finish: Finish,
    out: Any,
    order: str,
    *,
    wire: np.dtype[Any],
    scaled: bool,
    family: str,
) -> EpilogueTerms:
    """The epilogue of a reduction kernel, which is compiled if it is new (local)."""
    fast = 0 if order == "F" else 1
    dtypes, words = terms_of(finish, fast)
    epilogue = ReductionEpilogue("sum", finish.tree, dtypes, wire=None if wire == out.dtype else wire, scaled=scaled)
    return EpilogueTerms(epilogue.load(registry, stream, out.dtype, family), max(1, out.shape[fast]), words)


def terms_of(finish: Finish, fast: int) -> tuple[tuple[np.dtype[Any] | None, ...], list[int]]:
    """The dtypes of the operands of an expression, None for numbers, and their words (local)."""
    operands = [finish.operands[name] for name in operand_names(finish.tree)]
    words: list[int] = []
    for z in operands:
        steps = (z.strides[axis] // z.itemsize for axis in (fast, 1 - fast)) if is_array(z) else ()
        words += (z.data.ptr, *steps) if is_array(z) else pointwise.number_term(z)
    return tuple(z.dtype if is_array(z) else None for z in operands), words

"""The scales of a product of matrices of 8 bits, and the largest element of its result, checked on one rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas.backends.dtypes import FLOAT8, FLOAT32
from pblas.backends.interop import has_memory
from pblas.backends.push_engine import is_array
from pblas.core.checks import shares_memory
from pblas.epilogues import RESULT, Epilogue
from pblas.runtime.runtime import checked_scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pblas.backends.dtypes import Array
    from pblas.runtime.runtime import Runtime

SCALE_D = "scale_d"
"""Name of the operand by which an epilogue multiplies D last."""


@dataclass(frozen=True, slots=True)
class Scales:
    """Scales of D = scale_d epilogue(alpha scale_a scale_b op(A) op(B) + beta C). `checked` makes them.

    Args:
        a: scale of A: a number (global), or an array of one float32, read by each execution (local).
        b: scale of B, as a.
        d: scale of D, as a; None for none.
        amax: array of one float32 that receives the largest modulus in this rank's part of D; None for none (local).
    """

    a: Any = 1.0
    b: Any = 1.0
    d: Any = None
    amax: Any = None

    @classmethod
    def checked(
        cls, verb: str, runtime: Runtime | None, dtype: np.dtype[Any], a: Any, b: Any, d: Any, amax: Any
    ) -> Scales | None:
        """The scales of a call, checked on this rank; None if it has none."""
        if a is b is d is amax is None:
            return None
        given = {"scale_a": a, "scale_b": b, SCALE_D: d, "amax": amax}
        names = [name for name, value in given.items() if value is not None]
        if dtype not in FLOAT8:
            raise errors.DTypeError(
                f"{verb}: {names[0]} is for matrices of 8 bits, A is {dtype.name}; "
                f"use alpha= or an epilogue for factors, and D.norm('max')"
            )
        values = {name: _checked(verb, runtime, name, given[name], is_result=name == "amax") for name in names}
        return cls(values.get("scale_a", 1.0), values.get("scale_b", 1.0), values.get(SCALE_D), values.get("amax"))

    def replaced(self, verb: str, runtime: Runtime, a: Any, b: Any, d: Any, amax: Any) -> Scales:
        """These scales, some of them replaced for one execution by others of the same kinds (local)."""
        values: dict[str, Any] = {}
        for name, field, value in (("scale_a", "a", a), ("scale_b", "b", b), (SCALE_D, "d", d), ("amax", "amax", amax)):
            if value is None:
                continue
            before = getattr(self, field)
            values[field] = checked = _checked(verb, runtime, name, value, is_result=name == "amax")
            if name == SCALE_D and (before is None or is_array(before) != is_array(checked)):
                planned = "none" if before is None else "an array" if is_array(before) else "a number"
                raise errors.ArgumentError(f"{verb}: {name} is {_kind(checked)}, planned was {planned}; plan anew")
        return replace(self, **values)

    def arguments(self) -> dict[str, Any]:
        """The scales that must be equal on all ranks; of arrays the ranks do not compare the values (global)."""
        return {"scale_a": _kind(self.a), "scale_b": _kind(self.b), "amax is given": self.amax is not None}

    @property
    def kinds(self) -> tuple[bool, bool]:
        """Whether the scale of A, and of B, is an array (global)."""
        return is_array(self.a), is_array(self.b)

    @property
    def factors(self) -> Scales:
        """The scales of A and B alone."""
        return replace(self, d=None, amax=None)

    def key(self, address: Callable[[Array], int]) -> tuple[Any, ...]:
        """Key of the scales of A and B: their addresses if they are arrays, or the numbers (local)."""
        return tuple(address(x) if is_array(x) else repr(x) for x in (self.a, self.b))

    def on(self, arrays: Iterator[Array]) -> Scales:
        """These scales, with the next arrays of an iterator in the place of those of A and B (local)."""
        a, b = (next(arrays) if is_array(x) else x for x in (self.a, self.b))
        return replace(self, a=a, b=b)

    def check_apart(self, verb: str, runtime: Runtime, out: Array) -> None:
        """Raise ArgumentError if an array of these overlaps the memory of D (local)."""
        shadow = runtime.backend.shadow
        for name, x in (("scale_a", self.a), ("scale_b", self.b), (SCALE_D, self.d), ("amax", self.amax)):
            if is_array(x) and out.size and shares_memory(shadow(x), shadow(out)):
                raise errors.ArgumentError(f"{verb}: {name} overlaps out; give it memory of its own")


def scaled(verb: str, epilogue: Any, scale_d: Any) -> Any:
    """An epilogue followed by a multiplication with scale_d; `epilogue` itself if that is None.

    >>> scaled("pmatmul", "relu(x)", 0.5)
    Epilogue('(relu(x)) * scale_d', scale_d=0.5)
    """
    if scale_d is None:
        return epilogue
    first = Epilogue(epilogue) if isinstance(epilogue, str) else epilogue
    if first is None:
        return Epilogue(f"{RESULT} * {SCALE_D}", **{SCALE_D: scale_d})
    if not isinstance(first, Epilogue):
        return first  # the checks of the epilogue raise
    if first.is_rmsnorm:
        raise errors.ArgumentError(f"{verb}: scale_d= and 'rmsnorm' exclude each other; scale its weight instead")
    if SCALE_D in first.operands:
        raise errors.ArgumentError(f"{verb}: the epilogue has an operand {SCALE_D}; rename it, or leave scale_d= out")
    return Epilogue(f"({first.expression}) * {SCALE_D}", **first.operands, **{SCALE_D: scale_d})


def _kind(value: Any) -> Any:
    return "an array" if is_array(value) else value


def _checked(verb: str, runtime: Runtime | None, name: str, value: Any, *, is_result: bool) -> Any:
    """A number as float, or an array of one float32 as one of shape (1,) in the same memory (local)."""
    if not has_memory(value) or isinstance(value, np.generic):
        if is_result:
            raise errors.ArgumentError(f"{verb}: {name} must be an array of one float32, got {value!r}")
        return float(checked_scalar(verb, name, value, FLOAT32).real)
    if runtime is None:
        raise errors.ArgumentError(f"{verb}: {name} is an array; plan with matrices, or pass a number")
    backend = runtime.backend
    array = backend.as_array(value)
    if array.size != 1 or array.dtype != FLOAT32:
        raise errors.ArgumentError(
            f"{verb}: {name} must be a number or an array of one float32, got {array.dtype.name} of shape "
            f"{tuple(array.shape)}"
        )
    if not backend.is_here(array):
        if is_result:
            raise errors.ArgumentError(f"{verb}: {name} must be an array in the memory of the GPU")
        return float(array.reshape(1)[0])
    if is_result and not getattr(array.flags, "writeable", True):
        raise errors.ArgumentError(f"{verb}: {name} is read-only; pass an array that can be written")
    return array.reshape(1)

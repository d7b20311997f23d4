"""What is done to D after the additions, checked on one rank: the epilogue, and the scales of matrices of 8 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas.backends.dtypes import FLOAT8, FLOAT32, Array, Dtype, accumulator_dtype
from pblas.backends.engine_limits import fused_epilogue
from pblas.backends.interop import has_memory
from pblas.backends.push_engine import Finish, is_array
from pblas.core.checks import check_written, shares_memory
from pblas.epilogues import RESULT, Epilogue
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.runtime import Runtime, checked_scalar

if TYPE_CHECKING:
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.matmul.product_plan import ProductPlan


SCALE_D = "scale_d"  # name of the operand by which an epilogue multiplies D last


@dataclass(frozen=True, slots=True)
class Scales:
    """Scales of D = scale_d epilogue(alpha scale_a scale_b op(A) op(B) + beta C). `checked` makes them."""

    a: Any = 1.0  # scale of A: a number (global), or an array of one float32, read by each execution (local)
    b: Any = 1.0  # scale of B, as a
    d: Any = None  # scale of D, as a; None for none
    # array of one float32 that receives the largest modulus in this rank's part of D; None for none (local)
    amax: Any = None

    @classmethod
    def checked(
        cls, opname: str, runtime: Runtime | None, dtype: Dtype, a: object, b: object, d: object, amax: object
    ) -> Scales | None:
        """The scales of a call, checked on this rank; None if it has none."""
        if a is b is d is amax is None:
            return None
        given = {"scale_a": a, "scale_b": b, SCALE_D: d, "amax": amax}
        names = [name for name, value in given.items() if value is not None]
        if dtype not in FLOAT8:
            raise errors.DTypeError(
                f"{opname}: {names[0]} is for matrices of 8 bits, A is {dtype.name}; "
                f"use alpha= or an epilogue for factors, and D.norm('max')"
            )
        values = {name: _checked(opname, runtime, name, given[name], is_result=name == "amax") for name in names}
        return cls(values.get("scale_a", 1.0), values.get("scale_b", 1.0), values.get(SCALE_D), values.get("amax"))

    def replaced(self, opname: str, runtime: Runtime, a: object, b: object, d: object, amax: object) -> Scales:
        """These scales, some of them replaced for one execution by others of the same kinds (local)."""
        values: dict[str, Any] = {}
        for name, key, value in (("scale_a", "a", a), ("scale_b", "b", b), (SCALE_D, "d", d), ("amax", "amax", amax)):
            if value is not None:
                values[key] = _checked(opname, runtime, name, value, is_result=name == "amax")
        before, new = self.d, values.get("d")
        if new is not None and (before is None or is_array(before) != is_array(new)):
            planned = "none" if before is None else "an array" if is_array(before) else "a number"
            raise errors.ArgumentError(f"{opname}: {SCALE_D} is {_kind(new)}, planned was {planned}; plan anew")
        return replace(self, **values)

    def arguments(self) -> dict[str, Any]:
        """The scales that must be equal on all ranks; of arrays the ranks do not compare the values (global)."""
        return {"scale_a": _kind(self.a), "scale_b": _kind(self.b), "amax is given": self.amax is not None}

    @property
    def kinds(self) -> tuple[bool, bool]:
        return is_array(self.a), is_array(self.b)

    def of(self, view: Callable[[Array], Array]) -> Scales:
        """These scales, with views of their arrays (local)."""
        return Scales(*(view(x) if is_array(x) else x for x in (self.a, self.b, self.d, self.amax)))

    @property
    def factors(self) -> Scales:
        return replace(self, d=None, amax=None)

    def key(self, address: Callable[[Array], int]) -> tuple[Any, ...]:
        """Key of the scales of A and B: their addresses if they are arrays, or the numbers (local)."""
        return tuple(address(x) if is_array(x) else repr(x) for x in (self.a, self.b))

    def on(self, arrays: Iterator[Array]) -> Scales:
        """These scales, with the next arrays of an iterator in the place of those of A and B (local)."""
        a, b = (next(arrays) if is_array(x) else x for x in (self.a, self.b))
        return replace(self, a=a, b=b)

    def check_apart(self, opname: str, runtime: Runtime, out: Array) -> None:
        """Raise ArgumentError if an array of these overlaps the memory of D (local)."""
        memory_of = runtime.backend.memory_of
        for name, x in (("scale_a", self.a), ("scale_b", self.b), (SCALE_D, self.d), ("amax", self.amax)):
            if is_array(x) and out.size and shares_memory(memory_of(x), memory_of(out)):
                raise errors.ArgumentError(f"{opname}: {name} overlaps out; give it memory of its own")


def scaled(opname: str, epilogue: object, scale_d: object) -> Any:
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
        raise errors.ArgumentError(f"{opname}: scale_d= and 'rmsnorm' exclude each other; scale its weight instead")
    if SCALE_D in first.operands:
        raise errors.ArgumentError(f"{opname}: the epilogue has an operand {SCALE_D}; rename it, or leave scale_d= out")
    return Epilogue(f"({first.expression}) * {SCALE_D}", **first.operands, **{SCALE_D: scale_d})


def _kind(value: object) -> Any:
    return "an array" if is_array(value) else value


def _checked(opname: str, runtime: Runtime | None, name: str, value: object, *, is_result: bool) -> Any:
    """A number as float, or an array of one float32 as one of shape (1,) in the same memory (local)."""
    if not has_memory(value) or isinstance(value, np.generic):
        if is_result:
            raise errors.ArgumentError(f"{opname}: {name} must be an array of one float32, got {value!r}")
        return float(checked_scalar(opname, name, value, FLOAT32).real)
    if runtime is None:
        raise errors.ArgumentError(f"{opname}: {name} is an array; plan with matrices, or pass a number")
    backend = runtime.backend
    array = backend.as_array(value)
    if array.size != 1 or array.dtype != FLOAT32:
        raise errors.ArgumentError(
            f"{opname}: {name} must be a number or an array of one float32, got {array.dtype.name} of shape "
            f"{tuple(array.shape)}"
        )
    if not backend.is_here(array):
        if is_result:
            raise errors.ArgumentError(f"{opname}: {name} must be an array in the memory of the GPU")
        return float(array.reshape(1)[0])
    if is_result:
        check_written(f"{opname}: {name}", array)
    return array.reshape(1)


_ROW, _FULL = "row", "full"
_KINDS = {"weight": (_ROW,), "eps": (), "residual": (_FULL,)}
"""Array kinds of the operands of "rmsnorm"; `eps` is a number."""


class CheckedOperands(dict[str, Any]):
    """Operands on this rank, by name, already checked against the descriptor of D (local)."""


@dataclass(frozen=True, slots=True)
class ProductEpilogue:
    """The epilogue of a product: an elementwise function applied to D. `checked` makes it, `planned` completes it."""

    epilogue: Epilogue  # the expression and its operands (global)
    dtype: Dtype  # dtype of D (global)
    desc: MatrixDescriptor  # descriptor of D (global)
    # by operand, the planned dtype's name, or "a number"; empty before planning (global)
    kinds: Mapping[str, str] = field(default_factory=dict)
    shape: tuple[int, int] | None = None  # shape of this rank's part of D; None before planning (local)

    @classmethod
    def checked(cls, opname: str, value: object, dtype: Dtype, desc: MatrixDescriptor) -> ProductEpilogue:
        """The caller's epilogue, an expression or an `Epilogue`, for a D of this dtype and layout (global)."""
        epilogue = Epilogue(value) if isinstance(value, str) else value
        if not isinstance(epilogue, Epilogue):
            remedy = "; apply a function to D.local after the product" if callable(value) else ""
            raise errors.ArgumentError(
                f"{opname}: epilogue must be None, an expression or an Epilogue, got {value!r}{remedy}"
            )
        epilogue.check(opname, dtype)
        if epilogue.is_rmsnorm and not (desc.columns.is_replicated or desc.columns.is_whole):
            raise errors.ArgumentError(
                f"{opname}: 'rmsnorm' needs whole rows, D is cut along its columns; lay D out by rows, or replicated"
            )
        return cls(epilogue, dtype, desc)

    def planned(self, opname: str, runtime: Runtime, out: Array | None) -> ProductEpilogue:
        """The epilogue with checked operands; executions must pass operands of the same kinds (local)."""
        kinds = _kinds(self.operands(opname, runtime, None, out))
        kinds = {name: kinds[name] for name in self.epilogue.operands}
        return replace(self, kinds=kinds, shape=self.desc.local_shape(runtime.rank))

    @property
    def without_operands(self) -> ProductEpilogue:
        """The epilogue without its operands: every execution passes its own."""
        nothing = dict.fromkeys(self.epilogue.operands, 0.0)
        return replace(self, epilogue=Epilogue(self.epilogue.expression, **nothing))

    @staticmethod
    def key(runtime: Runtime, operands: Mapping[str, Any]) -> tuple[Any, ...]:
        """Key of the operands' values and addresses, which are recorded in a plan's graphs (local)."""
        places = (
            (runtime.backend.address(z), z.shape, z.strides, z.dtype.char) if is_array(z) else repr(z)  # -0.0 == 0.0
            for z in operands.values()
        )
        return tuple(places)

    def finish(self, operands: Mapping[str, object], d: Array) -> Finish:
        """The expression with checked operands, whose arrays are broadcast to the shape of D (local)."""
        assert self.epilogue.tree is not None, "rows are normalised in a pass of their own"
        return Finish(self.epilogue.tree, operands).of(lambda z: np.broadcast_to(z, d.shape))

    def where(self, plan: ProductPlan) -> str:
        """The step of a plan that applies the epilogue, for `explain` (global)."""
        passes = "in one more pass over D"
        if self.epilogue.is_rmsnorm:
            return passes
        if plan.algorithm is not None and plan.algorithm.is_one_kernel:
            return "in the GEMM's kernel"
        if plan.reproducible:
            return passes
        if plan.finishes == "reduction":
            return "in the reduction"
        if plan.finishes == "sum":
            return "where D is rounded" if accumulator_dtype(self.dtype) != self.dtype else passes
        if plan.transport != "push" or plan.product.dtype_d == "float32":
            return passes
        fused = None if self.epilogue.tree is None else fused_epilogue(self.epilogue.tree, self.dtype.name)
        if fused is None:
            return passes
        name, bias = fused
        operand: Any = self.epilogue.operands[bias] if bias is not None else None
        is_row = not isinstance(operand, DistMatrix) and np.ndim(operand) == 1
        if bias is not None and (self.desc.order != "C" or not is_row):
            return passes  # cuBLASLt adds one element to each contiguous row or column
        return f"in the GEMM (cuBLASLt: {name.lower().replace('_', ' + ')})"

    def operands(
        self, opname: str, runtime: Runtime, replacements: Mapping[str, object] | None, out: Array | None
    ) -> CheckedOperands:
        """The checked operands on this rank: numbers and arrays, by name (local)."""
        if isinstance(replacements, CheckedOperands):
            return replacements
        epilogue, operands = self.epilogue, CheckedOperands()
        if replacements is not None and not isinstance(replacements, Mapping):
            raise errors.ArgumentError(
                f"{opname}: operands must be a dict from names to values, got {type(replacements).__name__}"
            )
        if replacements is not None and replacements.keys() != epilogue.operands.keys():
            names = ", ".join(epilogue.operands) or "none"
            raise errors.ArgumentError(
                f"{opname}: operands must have the planned names, {names}; got {list(replacements)}"
            )
        values = epilogue.operands if replacements is None else replacements
        for name in epilogue.operands:  # in the planned order, which recorded graphs rely on
            value = values[name]
            what = f"{opname}: epilogue {epilogue.expression!r}: {name}"
            if _is_number(value) and (not epilogue.is_rmsnorm or name == "eps"):
                operands[name] = checked_scalar(f"{opname}: epilogue {epilogue.expression!r}", name, value, self.dtype)
                continue
            allowed = _KINDS[name] if epilogue.is_rmsnorm else (_ROW, _FULL)
            x = operands[name] = self._array(what, runtime, value, allowed)
            if epilogue.is_rmsnorm and name == "residual":
                if x.dtype != self.dtype:
                    raise errors.DTypeError(
                        f"{what} is {x.dtype.name}, D is {self.dtype.name}; the sum is stored in it: use D's dtype"
                    )
                check_written(what, x)
            memory_of = runtime.backend.memory_of
            if out is not None and out.size and shares_memory(memory_of(x), memory_of(out)):
                raise errors.ArgumentError(f"{what} overlaps out; give it memory of its own")
        kinds = _kinds(operands)
        if self.kinds and kinds != self.kinds:  # kernels are made when a product is planned
            name = next(name for name, kind in kinds.items() if kind != self.kinds[name])
            what = f"{opname}: epilogue {epilogue.expression!r}: {name} is {kinds[name]}"
            raise errors.DTypeError(f"{what}, planned as {self.kinds[name]}; plan anew, or convert it")
        if epilogue.is_rmsnorm:
            operands.setdefault("eps", 1e-6)
            residual = operands.get("residual")
            by_rows = residual is None or residual.shape[1] <= 1 or residual.strides[1] == residual.itemsize
            if runtime.backend.gpus and (self.desc.order != "C" or not by_rows):
                raise errors.ArgumentError(
                    f"{opname}: 'rmsnorm' needs contiguous rows on GPUs; give D, and a residual, order='C'"
                )
        return operands

    def _array(self, what: str, runtime: Runtime, value: object, kinds: tuple[str, ...]) -> Array:
        shape, backend = self.shape or self.desc.local_shape(runtime.rank), runtime.backend
        if isinstance(value, DistMatrix):
            if not value.desc.same_distribution(self.desc) or value.conjugated:
                raise errors.ArgumentError(f"{what} has another layout than D; redistribute it")
            value = value.stored(what)
        shapes = [{_ROW: shape[1:], _FULL: shape}[kind] for kind in kinds]
        if not self.epilogue.is_rmsnorm and shape[1] != 1:
            shapes.append((1,))
        numbers = [] if self.epilogue.is_rmsnorm and kinds else ["a number"]
        expected = " or ".join([*numbers, *(f"an array of shape {allowed}" for allowed in shapes)])
        expected = f"{what} must be {expected} on rank {runtime.rank}, got"
        if not has_memory(value):
            raise errors.ArgumentError(f"{expected} {type(value).__name__}")
        try:
            array = backend.as_array(value)
        except (TypeError, ValueError) as caught:
            raise errors.ArgumentError(f"{what} is no array: {caught}; pass an array, or a number") from None
        if not backend.is_here(array):
            raise errors.ArgumentError(f"{expected} an array in other memory than D")
        if array.shape not in shapes:
            raise errors.ArgumentError(f"{expected} shape {tuple(array.shape)}")
        if array.dtype not in (self.dtype, accumulator_dtype(self.dtype)):
            raise errors.DTypeError(f"{what} is {array.dtype}, D is {self.dtype.name}; convert with .astype")
        return array


def _kinds(operands: Mapping[str, Any]) -> dict[str, str]:
    return {name: value.dtype.name if is_array(value) else "a number" for name, value in operands.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, np.generic) or not (hasattr(value, "shape") or isinstance(value, list | tuple))

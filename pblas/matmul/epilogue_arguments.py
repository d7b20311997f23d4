"""The epilogue of a product, and its operands, checked on one rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas.backends.dtypes import accumulator_dtype
from pblas.backends.engine_limits import fused_epilogue
from pblas.backends.interop import has_memory
from pblas.backends.push_engine import Finish, is_array
from pblas.core.checks import shares_memory
from pblas.epilogues import Epilogue
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.runtime import checked_scalar

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.matmul.product_plan import ProductPlan
    from pblas.runtime.runtime import Runtime

_ROW, _FULL = "row", "full"
_KINDS = {"weight": (_ROW,), "eps": (), "residual": (_FULL,)}
"""Array kinds of the operands of "rmsnorm"; `eps` is a number."""


class CheckedOperands(dict[str, Any]):
    """Operands on this rank, by name, already checked against the descriptor of D (local)."""


@dataclass(frozen=True, slots=True)
class ProductEpilogue:
    """The epilogue of a product: an elementwise function applied to D. `checked` makes it, `planned` completes it.

    Args:
        epilogue: the expression and its operands (global).
        dtype: dtype of D (global).
        desc: descriptor of D (global).
        kinds: by operand, the planned dtype's name, or "a number"; empty before planning (global).
        shape: shape of this rank's part of D; None before planning (local).
    """

    epilogue: Epilogue
    dtype: np.dtype[Any]
    desc: MatrixDescriptor
    kinds: Mapping[str, str] = field(default_factory=dict)
    shape: tuple[int, int] | None = None

    @classmethod
    def checked(cls, verb: str, value: Any, dtype: np.dtype[Any], desc: MatrixDescriptor) -> ProductEpilogue:
        """The caller's epilogue, an expression or an `Epilogue`, for a D of this dtype and layout (global)."""
        epilogue = Epilogue(value) if isinstance(value, str) else value
        if not isinstance(epilogue, Epilogue):
            remedy = "; apply a function to D.local after the product" if callable(value) else ""
            raise errors.ArgumentError(
                f"{verb}: epilogue must be None, an expression or an Epilogue, got {value!r}{remedy}"
            )
        epilogue.check(verb, dtype)
        if epilogue.is_rmsnorm and not (desc.columns.is_replicated or desc.columns.is_whole):
            raise errors.ArgumentError(
                f"{verb}: 'rmsnorm' needs whole rows, D is cut along its columns; lay D out by rows, or replicated"
            )
        return cls(epilogue, dtype, desc)

    def planned(self, verb: str, runtime: Runtime, out: Array | None) -> ProductEpilogue:
        """The epilogue with checked operands; executions must pass operands of the same kinds (local)."""
        kinds = _kinds(self.operands(verb, runtime, None, out))
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

    def finish(self, operands: Mapping[str, Any], d: Array) -> Finish:
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
        self, verb: str, runtime: Runtime, replacements: Mapping[str, Any] | None, out: Array | None
    ) -> CheckedOperands:
        """The checked operands on this rank: numbers and arrays, by name (local)."""
        if isinstance(replacements, CheckedOperands):
            return replacements
        epilogue, operands = self.epilogue, CheckedOperands()
        if replacements is not None and not isinstance(replacements, Mapping):
            raise errors.ArgumentError(
                f"{verb}: operands must be a dict from names to values, got {type(replacements).__name__}"
            )
        if replacements is not None and replacements.keys() != epilogue.operands.keys():
            names = ", ".join(epilogue.operands) or "none"
            raise errors.ArgumentError(
                f"{verb}: operands must have the planned names, {names}; got {list(replacements)}"
            )
        values = epilogue.operands if replacements is None else replacements
        for name in epilogue.operands:  # in the planned order, which recorded graphs rely on
            value = values[name]
            what = f"{verb}: epilogue {epilogue.expression!r}: {name}"
            if _is_number(value) and (not epilogue.is_rmsnorm or name == "eps"):
                operands[name] = checked_scalar(f"{verb}: epilogue {epilogue.expression!r}", name, value, self.dtype)
                continue
            allowed = _KINDS[name] if epilogue.is_rmsnorm else (_ROW, _FULL)
            x = operands[name] = self._array(what, runtime, value, allowed)
            if epilogue.is_rmsnorm and name == "residual":
                if x.dtype != self.dtype:
                    raise errors.DTypeError(
                        f"{what} is {x.dtype.name}, D is {self.dtype.name}; the sum is stored in it: use D's dtype"
                    )
                if not getattr(x.flags, "writeable", True):
                    raise errors.ArgumentError(f"{what} is read-only, but the sum is stored in it; pass a copy")
            shadow = runtime.backend.shadow
            if out is not None and out.size and shares_memory(shadow(x), shadow(out)):
                raise errors.ArgumentError(f"{what} overlaps out; give it memory of its own")
        kinds = _kinds(operands)
        if self.kinds and kinds != self.kinds:  # kernels are made when a product is planned
            name = next(name for name, kind in kinds.items() if kind != self.kinds[name])
            what = f"{verb}: epilogue {epilogue.expression!r}: {name} is {kinds[name]}"
            raise errors.DTypeError(f"{what}, planned as {self.kinds[name]}; plan anew, or convert it")
        if epilogue.is_rmsnorm:
            operands.setdefault("eps", 1e-6)
            residual = operands.get("residual")
            by_rows = residual is None or residual.shape[1] <= 1 or residual.strides[1] == residual.itemsize
            if runtime.backend.gpus and (self.desc.order != "C" or not by_rows):
                raise errors.ArgumentError(
                    f"{verb}: 'rmsnorm' needs contiguous rows on GPUs; give D, and a residual, order='C'"
                )
        return operands

    def _array(self, what: str, runtime: Runtime, value: Any, kinds: tuple[str, ...]) -> Array:
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


def _is_number(value: Any) -> bool:
    return isinstance(value, np.generic) or not (hasattr(value, "shape") or isinstance(value, list | tuple))

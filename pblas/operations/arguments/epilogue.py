"""The epilogue of a product, and its operands, checked on one rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas.backends.dtypes import accumulator_dtype
from pblas.backends.gemm_epilogues import spoken
from pblas.backends.interop import has_memory
from pblas.backends.push_engine import Finish, is_array
from pblas.epilogues import Epilogue
from pblas.matrices.matrix import DistMatrix
from pblas.operations.arguments.product import shares_memory
from pblas.runtime.runtime import checked_scalar

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.plans.plan import ProductPlan
    from pblas.runtime.runtime import Runtime

    _Kind = tuple[()] | tuple[np.dtype[Any]]  # of a number, of an array

_ROW, _FULL = "row", "full"
_KINDS = {"weight": (_ROW,), "eps": (), "residual": (_FULL,)}
"""What arrays the operands of "rmsnorm" may be; `eps` is a number."""


class Checked(dict[str, Any]):
    """Operands on this rank, by name, that were checked beside a D like the one that they are given with (local)."""


@dataclass(frozen=True, slots=True)
class ProductEpilogue:
    """What is done to D before it is returned. Made by `checked`, and by `planned` for executions.

    Args:
        epilogue: the expression and its operands (global).
        dtype: of D (global).
        desc: of D (global).
        kinds: of the operands that it was planned with, by name; empty before (global).
        shape: of this rank's part of D; None before it was planned (local).
    """

    epilogue: Epilogue
    dtype: np.dtype[Any]
    desc: MatrixDescriptor
    kinds: Mapping[str, _Kind] = field(default_factory=dict)
    shape: tuple[int, int] | None = None

    @classmethod
    def checked(cls, verb: str, given: Any, dtype: np.dtype[Any], desc: MatrixDescriptor) -> ProductEpilogue:
        """The epilogue that a caller gave.

        Args:
            verb: for messages (global).
            given: an expression, or an Epilogue with its operands (global).
            dtype: of D (global).
            desc: of D (global).

        Raises:
            ArgumentError: no epilogue, one that D's dtype or layout does not allow.
        """
        found = Epilogue(given) if isinstance(given, str) else given
        if not isinstance(found, Epilogue):
            raise errors.ArgumentError(f"{verb}: epilogue must be None, an expression or an Epilogue, got {given!r}")
        found.check(verb, dtype)
        if found.is_rmsnorm and not (desc.columns.is_replicated or desc.columns.is_whole):
            raise errors.ArgumentError(
                f"{verb}: 'rmsnorm' needs whole rows, D is cut along its columns; lay D out by rows, or replicated"
            )
        return cls(found, dtype, desc)

    def planned(self, verb: str, runtime: Runtime, out: Array | None) -> ProductEpilogue:
        """The same for a context, where executions have operands of these kinds (local).

        Args:
            verb: for messages (global).
            runtime: of the context (global).
            out: where D goes, if that is known (local).

        Raises:
            ArgumentError, DTypeError: as `operands`.
        """
        kinds = _kinds(self.operands(verb, runtime, None, out))
        kinds = {name: kinds[name] for name in self.epilogue.operands}
        return replace(self, kinds=kinds, shape=self.desc.local_shape(runtime.rank))

    @property
    def without_operands(self) -> ProductEpilogue:
        """The same without the operands that it was made with: executions bring their own."""
        nothing = dict.fromkeys(self.epilogue.operands, 0.0)
        return replace(self, epilogue=Epilogue(self.epilogue.expression, **nothing))

    def arguments(self) -> dict[str, Any]:
        """What must be equal on all ranks."""
        given = sorted(self.epilogue.operands.items())
        named = {name: value if _is_number(value) else "an array" for name, value in given}
        return {"epilogue": self.epilogue.expression, "epilogue's operands": named}

    @property
    def form(self) -> str:
        """What of it the time of a product depends on; of a pass of its own behind any product nothing (global)."""
        if self.epilogue.is_rmsnorm:
            return ""
        arrays = [name for name, value in sorted(self.epilogue.operands.items()) if not _is_number(value)]
        return f"{self.epilogue.expression} with arrays {', '.join(arrays) or 'none'}"

    @staticmethod
    def key(runtime: Runtime, operands: Mapping[str, Any]) -> tuple[Any, ...]:
        """What tells operands apart for those who keep their numbers and places (local)."""
        places = (
            (runtime.backend.address(z), z.shape, z.strides, z.dtype.char) if is_array(z) else repr(z)  # -0.0 == 0.0
            for z in operands.values()
        )
        return tuple(places)

    def finish(self, operands: Mapping[str, Any], d: Array) -> Finish:
        """The expression with its operands as arrays like D (local).

        Args:
            operands: from `operands` (local).
            d: D (local).
        """
        assert self.epilogue.tree is not None, "rows are normalised in a pass of their own"
        return Finish(self.epilogue.tree, operands).of(lambda z: np.broadcast_to(z, d.shape))

    def where(self, plan: ProductPlan) -> str:
        """In which step of a plan D's elements are finished, for `explain` (global)."""
        passes = "in one more pass over D"
        if self.epilogue.is_rmsnorm:
            return passes
        if plan.algorithm is not None and plan.algorithm.is_one_kernel:
            return "in the GEMM's kernel"
        if plan.finishes == "reduction":
            return "in the reduction"
        if plan.finishes == "sum":
            return "where D is rounded" if accumulator_dtype(self.dtype) != self.dtype else passes
        if plan.transport != "push":
            return passes
        call_args = None if self.epilogue.tree is None else spoken(self.epilogue.tree, self.dtype.name)
        if call_args is None:
            return passes
        name, bias = call_args
        operand: Any = self.epilogue.operands[bias] if bias is not None else None
        is_row = not isinstance(operand, DistMatrix) and np.ndim(operand) == 1
        if bias is not None and (self.desc.order != "C" or not is_row):
            return passes  # cuBLASLt adds one element to each row or column that lies in one piece
        return f"in the GEMM (cuBLASLt: {name.lower().replace('_', ' + ')})"

    def operands(self, verb: str, runtime: Runtime, given: Mapping[str, Any] | None, out: Array | None) -> Checked:
        """Numbers, and arrays on this rank, by name (local).

        Args:
            verb: for messages (global).
            runtime: of the context (global).
            given: in place of the operands that the epilogue was made with; None for these (local).
            out: where D goes, if that is known (local).

        Raises:
            ArgumentError, DTypeError: what is no operand of D, on this rank.
        """
        if isinstance(given, Checked):
            return given
        epilogue, found = self.epilogue, Checked()
        if given is not None and not isinstance(given, Mapping):
            raise errors.ArgumentError(f"{verb}: operands must be a dict of them by name, got {type(given).__name__}")
        if given is not None and given.keys() != epilogue.operands.keys():
            names = ", ".join(epilogue.operands) or "none"
            raise errors.ArgumentError(f"{verb}: operands must be those that were planned, {names}; got {list(given)}")
        values = epilogue.operands if given is None else given
        for name in epilogue.operands:  # in the planned order, which those who keep places rely on
            value = values[name]
            what = f"{verb}: epilogue {epilogue.expression!r}: {name}"
            if _is_number(value) and (not epilogue.is_rmsnorm or name == "eps"):
                found[name] = checked_scalar(f"{verb}: epilogue {epilogue.expression!r}", name, value, self.dtype)
            else:
                found[name] = self._array(what, runtime, value, _KINDS[name] if epilogue.is_rmsnorm else (_ROW, _FULL))
                self._check_place(what, runtime, found[name], out, written=epilogue.is_rmsnorm and name == "residual")
        kinds = _kinds(found)
        if self.kinds and kinds != self.kinds:  # kernels are made when a product is planned
            name = next(name for name, kind in kinds.items() if kind != self.kinds[name])
            what = f"{verb}: epilogue {epilogue.expression!r}: {name} is {_word(kinds[name])}"
            raise errors.DTypeError(f"{what}, planned as {_word(self.kinds[name])}")
        if epilogue.is_rmsnorm:
            found.setdefault("eps", 1e-6)
            if runtime.backend.gpus and (self.desc.order != "C" or not _by_rows(found.get("residual"))):
                raise errors.ArgumentError(
                    f"{verb}: 'rmsnorm' needs rows that lie in one piece on GPUs; give D, and a residual, order='C'"
                )
        return found

    def _array(self, what: str, runtime: Runtime, value: Any, kinds: tuple[str, ...]) -> Array:
        shape, backend = self.shape or self.desc.local_shape(runtime.rank), runtime.backend
        if isinstance(value, DistMatrix):
            if not value.desc.same_distribution(self.desc) or value.conj:
                raise errors.ArgumentError(f"{what} is laid out otherwise than D; redistribute it")
            value = value.stored(what)
        shapes = [{_ROW: shape[1:], _FULL: shape}[kind] for kind in kinds]
        numbers = [] if self.epilogue.is_rmsnorm and kinds else ["a number"]
        expected = " or ".join([*numbers, *(f"an array of shape {each}" for each in shapes)])
        expected = f"{what} must be {expected} on rank {runtime.rank}, got"
        if not has_memory(value):
            raise errors.ArgumentError(f"{expected} {type(value).__name__}")
        try:
            found = backend.as_array(value)
        except (TypeError, ValueError) as caught:
            raise errors.ArgumentError(f"{what} is no array: {caught}") from None
        if not backend.is_here(found):
            raise errors.ArgumentError(f"{expected} memory in which D does not lie")
        if found.shape not in shapes:
            raise errors.ArgumentError(f"{expected} shape {tuple(found.shape)}")
        if found.dtype not in (self.dtype, accumulator_dtype(self.dtype)):
            raise errors.DTypeError(f"{what} is {found.dtype}, D is {self.dtype.name}; convert it")
        return found

    def _check_place(self, what: str, runtime: Runtime, x: Array, out: Array | None, *, written: bool) -> None:
        """Raise if an operand overlaps D otherwise than element by element, or cannot be written."""
        shadow = runtime.backend.shadow
        if written and x.dtype != self.dtype:
            raise errors.DTypeError(f"{what} is {x.dtype.name}, D is {self.dtype.name}; the sum is stored in it")
        if written and not getattr(x.flags, "writeable", True):
            raise errors.ArgumentError(f"{what} is read-only, but the sum is stored in it")
        if out is None or not out.size:
            return
        mine, theirs = shadow(x), shadow(out)
        if shares_memory(mine, theirs):
            raise errors.ArgumentError(f"{what} overlaps out; give it memory of its own")


def _by_rows(x: Array | None) -> bool:
    return x is None or x.shape[1] <= 1 or x.strides[1] == x.itemsize


def _kinds(operands: Mapping[str, Any]) -> dict[str, _Kind]:
    return {name: (value.dtype,) if is_array(value) else () for name, value in operands.items()}


def _word(kind: _Kind) -> str:
    return kind[0].name if kind else "a number"


def _is_number(value: Any) -> bool:
    return isinstance(value, np.generic) or not (hasattr(value, "shape") or isinstance(value, list | tuple))

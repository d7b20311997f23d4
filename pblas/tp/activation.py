"""The bias and epilogue that a layer applies to its product z = x w^T, and the gradient of the epilogue."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pblas import errors
from pblas.backends.interop import has_memory
from pblas.backends.push_engine import is_array
from pblas.core.checks import shares_memory
from pblas.epilogues import NAMED, RESULT, Epilogue, used_names
from pblas.matmul.epilogue_arguments import ProductEpilogue
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.runtime import name_of
from pblas.tp.products import Caller, rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pblas.backends.dtypes import Array, Dtype
    from pblas.tp.partitioning import Placed, Shape

    Step = tuple[Epilogue, Mapping[str, Any], Array, Array]

_GATED = "swiglu"
_DIFFERENTIABLE = {NAMED[name]: name for name in ("relu", "gelu", "gelu_tanh", "silu")}
"""Names of epilogues whose gradient is known, by their expressions."""


class Activation:
    """The elementwise functions of a layer: a bias is added to z, then an epilogue gives y.

    The epilogue "swiglu" makes y = silu(gate) up of the two halves of z. On each rank the first half of z's columns is
    gate, and the second half is up: the rank's weight has the rows of gate above those of up.

    Raises:
        ArgumentError, DTypeError: a bias or an epilogue that does not fit z, on this rank.
    """

    def __init__(
        self,
        caller: Caller,  # the call (global)
        epilogue: str | Epilogue | None,  # None, an expression, an Epilogue, or "swiglu" (global)
        bias: Array | None,  # one element for each of z's columns on this rank, or None (local)
        placed: Placed,  # descriptors and shapes of the layer's matrices; z has the shape of y (global)
        dtype: Dtype,  # dtype of z and y (global)
        *,
        out: Array | None,  # the caller's array for y; None for a new array (local)
        aux: Array | None,  # array that receives z with the bias; None if the caller does not ask for it (local)
    ) -> None:
        self._caller = caller
        self.is_gated: bool = isinstance(epilogue, str) and epilogue == _GATED
        columns = placed.shapes["y"][-1]
        if self.is_gated and columns % 2:
            raise errors.ArgumentError(
                f"{caller.opname}: 'swiglu' needs pairs of columns, gate and up; the product has {columns}; "
                f"give weight as many rows of gate as of up"
            )
        self.columns: int = columns // 2 if self.is_gated else columns  # columns of the result on this rank (local)
        self._first: tuple[Epilogue, dict[str, Any]] | None = None
        self._last: tuple[Epilogue, dict[str, Any]] | None = None
        caller.call_args |= {"bias is given": bias is not None, "aux is given": aux is not None, "epilogue": None}
        if bias is None and epilogue is None:
            return
        shape = (columns,) if bias is None else tuple(getattr(bias, "shape", (columns,)))
        if shape != (columns,) or not (bias is None or has_memory(bias)):
            got = f"shape {shape}" if has_memory(bias) else type(bias).__name__
            raise errors.ArgumentError(
                f"{caller.opname}: bias must be an array of shape {(columns,)} on rank {caller.runtime.rank}, got {got}"
            )
        first = None if bias is None else Epilogue("bias", bias=bias)
        last = None if self.is_gated else Epilogue(epilogue) if isinstance(epilogue, str) else epilogue
        split = placed.descs["y"].columns
        if bias is not None and (split.is_replicated or split.is_whole):
            caller.compare("bias", caller.runtime.backend.as_array(bias))
        if isinstance(last, Epilogue) and last.is_rmsnorm and not (split.is_replicated or split.is_whole):
            raise errors.ArgumentError(
                f"{caller.opname}: 'rmsnorm' needs whole rows, and this rank has some features of y only; it may "
                f"follow linear_reduce_scatter and linear_allreduce"
            )
        named = _GATED if self.is_gated else last.expression if isinstance(last, Epilogue) else None
        if first is not None and aux is None and isinstance(last, Epilogue) and _takes_bias(last):
            first, last = None, last.after_bias(bias)

        def checked(epilogue: Epilogue | None) -> tuple[Epilogue, dict[str, Any]] | None:
            if epilogue is None:
                return None
            epilogue = _by_rows(caller, epilogue, placed.shapes["y"])
            product_epilogue = ProductEpilogue.checked(caller.opname, epilogue, dtype, placed.descs["y"])
            operands = product_epilogue.operands(caller.opname, caller.runtime, None, out)
            for name, value in operands.items() if aux is not None else ():
                if is_array(value) and shares_memory(*map(caller.runtime.backend.memory_of, (value, aux))):
                    raise errors.ArgumentError(f"{caller.opname}: {name} overlaps aux; give it memory of its own")
            kept = {name: caller.borrowed(z) if is_array(z) else z for name, z in operands.items()}
            return Epilogue(epilogue.expression, **kept), kept

        self._first, self._last = checked(first), checked(last)
        caller.call_args["epilogue"] = named
        for _, operands in filter(None, (self._first, self._last)):
            for name, value in sorted(operands.items()):
                caller.numbers[f"epilogue's {name}"] = name_of(value.dtype) if is_array(value) else value

    def split(self, z: Array, y: Array) -> tuple[Epilogue | None, list[Step]]:
        """The epilogue to fuse into the product z, and the steps from z to the result y, for `run` (local)."""
        steps = [] if self._first is self._last is None and not self.is_gated else list(self._steps(z, y))
        if not steps or steps[0][-1] is not z:
            return None, steps
        first, operands, *_ = steps.pop(0)
        return Epilogue(first.expression, **operands), steps

    def run(self, steps: list[Step]) -> None:
        """Run the steps that `split` returned (local)."""
        for step in steps:
            _apply(self._caller, *step)

    def _steps(self, z: Array, y: Array) -> Iterator[Step]:
        """Each epilogue, its operands, its input, and its output (local)."""
        if self._first is not None:
            yield (*self._first, z, z)
        if self.is_gated:
            gate, up = z[:, : self.columns], z[:, self.columns :]
            gated = Epilogue(_GATED, gate=gate)
            yield gated, gated.operands, up, y
        elif self._last is not None:
            yield (*self._last, z, y)


def _by_rows(caller: Caller, epilogue: Epilogue, shape: Shape) -> Epilogue:
    """The epilogue, with each array of y's shape as a matrix, whose rows are all axes but the last (local)."""
    if not caller.batch or not isinstance(epilogue, Epilogue):
        return epilogue
    operands = dict(epilogue.operands)
    for name, value in operands.items():
        array_shape = tuple(getattr(value, "shape", ()))
        if len(array_shape) < 2 or isinstance(value, DistMatrix):
            continue
        what = f"epilogue {epilogue.expression!r}: {name}"
        if array_shape != shape:
            raise errors.ArgumentError(
                f"{what} must be an array of shape {shape[-1:]} or {shape} on rank {caller.runtime.rank}, got shape "
                f"{array_shape}"
            )
        operands[name] = rows(caller.array(what, value))
    return Epilogue(epilogue.expression, **operands)


def _takes_bias(epilogue: Epilogue) -> bool:
    """Whether a bias can become part of an epilogue: it must read x, and have no operand named bias."""
    if epilogue.problem is not None or epilogue.tree is None:
        return False
    return "bias" not in epilogue.operands and RESULT in used_names(epilogue.expression)


class ActivationGradient:
    """The gradient of a layer by z, from its gradient by y.

    Raises:
        ArgumentError, DTypeError: an epilogue without a known gradient, or arrays that do not fit together.
    """

    def __init__(self, caller: Caller, epilogue: str | Epilogue | None, dy: Any, aux: object) -> None:
        self._caller, self._epilogue = caller, epilogue
        self.dz: Array = dy
        """dz is the gradient by z, in an array of the caller's library, once `run` has returned (local)."""
        if epilogue is None:
            return
        self._name = caller.call_args["epilogue"] = _name_of(epilogue)
        if self._name is None:
            names = ", ".join((*_DIFFERENTIABLE.values(), _GATED))
            raise errors.ArgumentError(
                f"gradients are known of the epilogues {names}, got {epilogue!r}; pass the gradient by x w^T + bias, "
                f"and no epilogue"
            )
        if aux is None:
            raise errors.ArgumentError(f"the gradient of {epilogue!r} needs aux; call the layer with aux= to store it")
        self._dy, self._aux = caller.array("dy", dy), caller.array("aux", aux)
        *leading, columns = self._aux.shape
        expected = *leading, columns // 2 if self._name == _GATED else columns
        if self._dy.shape != expected or self._dy.dtype != self._aux.dtype:
            raise errors.ArgumentError(
                f"dy is {self._dy.shape} {self._dy.dtype.name}; aux of shape {self._aux.shape} needs {expected} "
                f"{self._aux.dtype.name}"
            )
        self.dz = caller.target("dz", self._aux.shape, self._aux.dtype).array

    def run(self) -> None:
        """Compute dz (local)."""
        if self._epilogue is None:
            return
        dy, aux, dz, n = rows(self._dy), rows(self._aux), rows(self.dz), self._dy.shape[-1]
        if self._name != _GATED:
            steps = [(Epilogue(f"d{self._name}", aux=aux), dz)]
        else:
            gate, up = aux[:, :n], aux[:, n:]
            steps = [(Epilogue("dswiglu_gate", gate=gate, up=up), dz[:, :n])]
            steps += [(Epilogue("dswiglu_up", gate=gate), dz[:, n:])]
        for step, out in steps:
            _apply(self._caller, step, step.operands, dy, out)


def _name_of(epilogue: str | Epilogue | None) -> str | None:
    """The name of an epilogue with a known gradient, from the layer's `epilogue` argument; None for others."""
    if isinstance(epilogue, str) and epilogue == _GATED:
        return _GATED
    parsed = Epilogue(epilogue) if isinstance(epilogue, str) else epilogue
    return _DIFFERENTIABLE.get(parsed.expression) if isinstance(parsed, Epilogue) else None


def _apply(caller: Caller, epilogue: Epilogue, operands: Mapping[str, object], x: Array, out: Array) -> None:
    """out := epilogue(x), after earlier work on the caller's stream (local)."""
    caller.do(partial(caller.runtime.backend.arrays.finish, epilogue, x, operands, out))

"""Arguments of collectives on plain arrays, checked on one rank: the first wrong argument raises."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from copy import copy
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from pblas import errors
from pblas.backends.dtypes import Array, Dtype, accumulator_dtype
from pblas.backends.interop import Target, has_memory, is_view, makes_arrays, new_target
from pblas.collectives.collective_plan import (
    ALGORITHMS,
    CollectiveAlgorithm,
    Rounds,
    aligned,
    choose,
    goes_by_messages,
    shares,
    width_of,
)
from pblas.collectives.collective_run import OneShot
from pblas.collectives.reduction_run import OPERATIONS, ByFunction, Finish, Normalised, Pointwise
from pblas.core.checks import check_written, is_same_memory, shares_memory
from pblas.epilogues import Epilogue
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.kept_plans import Kept
from pblas.runtime.runtime import Runtime, checked_dtype, checked_scalar, name_of, spelled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pblas.backends.host_ranks import HostRanks
    from pblas.collectives.staging_run import Staging

_NUMBERS, _LISTS = complex | float | int, np.ndarray | list | tuple
_ALGORITHMS = "auto", *ALGORITHMS
_WRONG = 1 << 61  # greater than all codes of arrays
_KINDS = {"weight": ("row",), "eps": ("number",), "residual": ("full",)}
"""Kinds of the operands of "rmsnorm"; an operand of an expression may be of any kind."""


def backends_array(backend: HostRanks, what: str, value: object) -> Array:
    """A caller's array as one of the backend's, on the same memory (local)."""
    try:
        return backend.as_array(value)
    except errors.PblasError as caught:
        raise type(caught)(f"{what}: {caught}") from None
    except (TypeError, ValueError) as caught:
        raise errors.ArgumentError(f"{what} is no array: {caught}") from None


def array_remedy(name: str, value: object) -> str:
    """The end of a message about an argument that is not an array: how to pass one.

    >>> array_remedy("x", [1.0]), array_remedy("x", None)
    ('pass np.asarray(x)', 'every rank must pass an array')
    """
    if name in ("out", "aux"):
        return "leave it out, or pass an array that can be written"
    if hasattr(value, "toarray"):  # sparse matrices of SciPy
        return f"pass {name}.toarray()"
    return f"pass np.asarray({name})" if isinstance(value, _NUMBERS | _LISTS) else "every rank must pass an array"


def bounds_of(counts: Sequence[int], row: int) -> tuple[int, ...]:
    """The first element of each rank's rows of `row` elements each, and the end (global)."""
    return tuple(row * count for count in accumulate(counts, initial=0))


class Arguments(ABC):
    """Arguments that all collectives share; a wrong one raises on this rank only."""

    def __init__(self, name: str, runtime: Runtime, x: object, out: object) -> None:
        self.name: str = name
        self.runtime: Runtime = runtime
        self.x: Array = self._array("x", x)
        self._like, self._caller_out = x if x is self.x or makes_arrays(x) else self.x, out
        self.dtype: Dtype = checked_dtype(name, self.x.dtype)
        self.out: Array | None = None if out is None else self._array("out", out)
        if self.out is None:
            return
        if not is_view(self.out, out, runtime.backend):
            raise errors.ArgumentError(
                f"{name}: out has to be copied to be read, so it cannot be written; pass an array in memory"
            )
        if self.out.dtype != self.dtype:
            raise errors.DTypeError(f"{name}: out is {self.out.dtype}, x is {self.dtype.name}; give both one dtype")
        check_written(f"{name}: out", self.out)

    def _array(self, name: str, value: object) -> Array:
        if type(value) is np.ndarray and not self.runtime.backend.gpus:  # the most frequent case
            return value
        if isinstance(value, DistMatrix):
            raise errors.ArgumentError(f"{self.name}: {name} must be an array, got a DistMatrix; its .local is one")
        array = self.as_array(name, value)
        if array is None:
            kind, remedy = "an array of NumPy, or one that speaks DLPack", array_remedy(name, value)
            if self.runtime.backend.gpus:
                kind, remedy = "an array on this rank's GPU", "copy it there, as with cupy.asarray(x)"
            raise errors.ArgumentError(f"{self.name}: {name} must be {kind}, got {type(value).__name__}; {remedy}")
        return array

    def as_array(self, name: str, value: object) -> Array | None:
        """The value as an array in this context's memory (host or GPU); None if it is not one (local)."""
        backend = self.runtime.backend
        if not has_memory(value) or (backend.gpus and isinstance(value, np.ndarray)):
            return None
        array = backends_array(backend, f"{self.name}: {name}", value)
        return array if backend.is_here(array) else None

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """Arguments that must be equal on all ranks."""

    def agree(self, maxima: tuple[int, ...] = ()) -> tuple[int, ...]:
        """**Collective.** Raise unless all ranks have equal arguments; the maximum of each integer over all ranks."""
        return self.runtime.agree(self.name, self.arguments(), None, maxima)

    def target(self, shape: tuple[int, ...], make: Callable[[], Array], order: Literal["C", "F"] = "C") -> Target:
        """The memory of a result: `out`, else a new array of x's library, else one of the backend (local)."""
        if self.out is not None:
            return Target(self._caller_out, self.out, self._like)
        if type(self._like) is np.ndarray:
            array = make()
            return Target(array, array, self._like)
        return new_target(shape, self._like, self.runtime.backend, make, order)

    def checked_counts(self, counts: Any, total: int | None = None) -> tuple[int, ...]:
        """The caller's counts, one for each rank; ArgumentError unless they add up to `total`, if that is given."""
        nprocs = self.runtime.nprocs
        try:
            lengths = tuple(map(operator.index, counts))
        except TypeError:
            lengths = ()
        if len(lengths) != nprocs or min(lengths) < 0 or total not in (None, sum(lengths)):
            sums = "" if total is None else f" that add up to {total}, the length of x"
            raise errors.ArgumentError(f"{self.name}: counts must be {nprocs} integers >= 0{sums}, got {counts!r}")
        return lengths

    def overlap(self, x: Array, y: Array) -> bool:
        """Whether two arrays have memory in common (local)."""
        return shares_memory(*map(self.runtime.backend.memory_of, (x, y)))

    def coincide(self, x: Array, y: Array) -> bool:
        """Whether two arrays are the same elements in the same places (local)."""
        return is_same_memory(*map(self.runtime.backend.memory_of, (x, y)))

    def check_out(self, shape: tuple[int, ...], part: Array | None, place: Array | None, what: str) -> None:
        """Raise ArgumentError unless out has a shape, and overlaps x in its place only."""
        out = self.out
        if out is None:
            return
        if out.shape != shape:
            raise errors.ArgumentError(f"{self.name}: out has shape {out.shape}, the result {shape}; make them agree")
        if out is self.x and out is place:
            return
        if self.overlap(self.x, out) and not (part is not None and place is not None and self.coincide(part, place)):
            raise errors.ArgumentError(f"{self.name}: out overlaps x, but is not {what}; give it memory of its own")


class GatherArguments(Arguments):
    """Arguments of an all-gather."""

    def __init__(self, runtime: Runtime, x: object, out: object, counts: object = None) -> None:
        super().__init__("allgather", runtime, x, out)
        if not self.x.ndim:
            raise errors.ArgumentError("allgather: x has no axis along which to gather; use x.reshape(1)")
        self.counts: tuple[int, ...] | None = None if counts is None else self.checked_counts(counts)
        if self.counts is not None and self.counts[runtime.rank] != len(self.x):
            raise errors.ArgumentError(
                f"allgather: x has {len(self.x)} rows, counts says {self.counts[runtime.rank]} for rank "
                f"{runtime.rank}; counts must have the number of rows of every rank"
            )
        error = None if self.counts is None else self.error_of(list(self.counts))
        if error is not None:
            raise error

    def arguments(self) -> dict[str, Any]:
        """Arguments that must be equal on all ranks."""
        return {"x.shape[1:]": self.x.shape[1:], "dtype": name_of(self.dtype), "counts": self.counts}

    def error_of(self, counts: list[int]) -> errors.ArgumentError | None:
        """The error of `out` if the ranks have these numbers of rows; None if `out` fits (local)."""
        start = sum(counts[: self.runtime.rank])
        place = self.out[start : start + len(self.x)] if self.out is not None and self.out.ndim else None
        try:
            self.check_out((sum(counts), *self.x.shape[1:]), self.x, place, "x this rank's part of it")
        except errors.ArgumentError as caught:
            return caught
        return None

    def agreed_counts(self, code: int = 0) -> tuple[list[int], tuple[int, ...]]:
        """**Collective.** Rows of each rank, the highest code, and the negated lowest one."""
        nrows = len(self.x)
        counts = [nrows] * self.runtime.nprocs  # the most frequent case
        checked_code = code + (_WRONG if self.error_of(counts) is not None else 0)
        high, low, *codes = self.agree((nrows, -nrows, checked_code, -code))
        if high != -low or codes[0] >= _WRONG:
            counts = self.runtime.gathered(nrows)
            lengths = f"{self.name}: lengths"
            codes = list(self.runtime.agree(lengths, {}, self.error_of(counts), (code, -code)))
        return counts, tuple(codes)

    def rounds(self, counts: Sequence[int], *, by_messages: bool = False) -> Rounds:
        """The rounds in which the result is gathered (global)."""
        bounds = bounds_of(counts, math.prod(self.x.shape[1:]))
        return Rounds(bounds, width_of(1, self.x.itemsize, 1, by_messages=by_messages))


class Reduction(NamedTuple):
    """Options of a reduction as its caller wrote them; see `Collectives.allreduce` and `Collectives.reduce_scatter`."""

    op: Any
    epilogue: Any
    algorithm: Any = "two_shot"
    counts: Any = None


class ReduceForm(Kept):
    """All that a reduction derives from its options and from the shape and dtype of x, kept for like calls (global)."""

    def __init__(self, name: str, runtime: Runtime, shape: tuple[int, ...], dtype: Dtype, options: Reduction) -> None:
        op, epilogue, algorithm, counts = options
        self._shape, self._dtype, self._nprocs = shape, dtype, runtime.nprocs
        self._rounds: dict[tuple[int, bool], Rounds] = {}
        self._one_shot: OneShot | None = None
        self.op: str = op
        self.shares: bool = name == "allreduce"
        self.counts: tuple[int, ...] | None = counts  # rows of each rank, in a reduce-scatter
        if op in ("max", "min") and dtype.kind == "c":
            raise errors.ArgumentError(
                f"{name}: op={op!r} needs an order, which {dtype.name} has not; use 'sum' or 'prod'"
            )
        if isinstance(epilogue, Epilogue):
            epilogue.check(name, dtype)
        self.is_rmsnorm: bool = isinstance(epilogue, Epilogue) and epilogue.is_rmsnorm  # whether rows must stay whole
        if self.is_rmsnorm and len(shape) < 2 - self.shares:
            raise errors.ArgumentError(f"{name}: 'rmsnorm' needs whole rows, x has shape {shape}")
        self.line: int = aligned(dtype.itemsize)  # elements of a cache line
        columns = shape[-1] if shape else 1
        self.unit: int = max(1, columns) if self.is_rmsnorm else self.line
        """Number of elements that one rank must reduce together: a row, or a cache line."""
        size, backend = math.prod(shape), runtime.backend
        self.nbytes: int = size * dtype.itemsize  # size of x, bytes
        self.algorithm: CollectiveAlgorithm = algorithm
        if algorithm == "auto":
            transport = "gpus" if backend.gpus else runtime.topology.transport(runtime.nprocs)
            whole, finished = self.is_rmsnorm, epilogue is not None
            nunits = -(-size // self.unit)
            self.algorithm = choose(self.nbytes, runtime.nprocs, transport, nunits, whole=whole, finished=finished)
        if backend.gpus and not backend.push:  # GPUs that do not reach each other's memory
            self.algorithm = "naive"
        self.goes_by_messages: bool = self.algorithm == "naive" or goes_by_messages(self.nbytes, shared=backend.shared)
        """Whether x travels in messages if it is in private memory."""
        named = epilogue.expression if isinstance(epilogue, Epilogue) else epilogue
        self.arguments: dict[str, Any] = {"shape": shape, "dtype": name_of(dtype), "op": op}
        """Arguments that must be equal on all ranks, besides the epilogue's operands and the algorithm."""
        self.arguments["epilogue"] = "a function" if callable(epilogue) else named
        if not self.shares:
            self.arguments["counts"] = counts
        self.text: str = spelled(self.arguments | {"algorithm": self.algorithm})
        """All of them, for an agreement on a call without operands."""

    def one_shot(self, staging: Staging | None) -> OneShot | None:
        """An executor of such calls, if they are small and all ranks are on one node."""
        if self._one_shot is None or self._one_shot.staging is not staging:
            if staging is None or staging.far or not staging.near or self.algorithm != "one_shot":
                return None
            if self.goes_by_messages or len(self.rounds()) > 1:
                return None
            self._one_shot = OneShot(staging, self.op, self._shape, self._dtype, self.unit)
        return self._one_shot

    def rounds(self, unit: int = 0, *, by_messages: bool = False) -> Rounds:
        """The rounds in which the elements are reduced, `unit` of them together; 0 for `self.unit`."""
        key = unit or self.unit, by_messages
        if key not in self._rounds:
            self._rounds[key] = self._new_rounds(*key)
        return self._rounds[key]

    def _new_rounds(self, unit: int, by_messages: bool) -> Rounds:
        size, nprocs = math.prod(self._shape), self._nprocs
        whole = self.algorithm == "one_shot"
        width = width_of(1 if whole else nprocs, self._dtype.itemsize, unit, by_messages=by_messages)
        if whole:
            return Rounds((0, size), width, whole=True)
        if self.counts is None:
            return Rounds(shares(size, nprocs, unit), width)
        return Rounds(bounds_of(self.counts, size // max(1, self._shape[0])), width)

    def close(self) -> None:
        """Drop the views of memory (local)."""
        self._one_shot = None


class ReduceArguments(Arguments):
    """Checked arguments of an all-reduce or a reduce-scatter; the latter has `counts`, the rows that each rank gets."""

    def __init__(self, name: str, runtime: Runtime, x: object, out: object, options: Reduction) -> None:
        super().__init__(name, runtime, x, out)
        op, epilogue, algorithm, counts = options
        if not isinstance(op, str) or op not in OPERATIONS:
            raise errors.ArgumentError(f"{name}: op must be one of {', '.join(OPERATIONS)}, got {op!r}")
        if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
            names = ", ".join(_ALGORITHMS)
            raise errors.ArgumentError(f"{name}: algorithm must be one of {names}, got {algorithm!r}")
        self.shares: bool = name == "allreduce"
        counts = None if self.shares else self._counts(counts)
        self.epilogue: Any = None if epilogue is None else self._epilogue(epilogue)
        expression = (self.epilogue.expression, *self.epilogue.operands) if isinstance(self.epilogue, Epilogue) else ""
        described = expression or self.epilogue is None
        self._key = name, self.x.shape, self.dtype, op, algorithm, counts, described, runtime.backend.shared
        self.form: ReduceForm = runtime.kept.get(self._key, ReduceForm) or ReduceForm(
            name, runtime, self.x.shape, self.dtype, Reduction(op, self.epilogue, algorithm, counts)
        )
        self.place: Array = self.x if counts is None else self._rows(counts)
        self.check_out(self.place.shape, self.out, self.place, "x itself" if self.shares else "this rank's rows of it")
        self.operands: dict[str, Any] = self._checked_operands() if expression else {}

    def keep(self) -> None:
        """Keep the form for like calls: all ranks have agreed on this one."""
        self.runtime.kept.keep(self._key, self.form)

    def take(self, x: Array) -> None:
        """Add another array like x, and let go of x; of an all-reduce with `out` (local)."""
        self.x = self.place = self._like = x

    def with_arrays(self, like: Callable[[Array], Array]) -> ReduceArguments:
        """The same arguments with copies of x and of the operands, such as copies in host memory (local)."""
        clone = copy(self)
        clone.x = like(self.x)
        clone.operands = {
            name: value if isinstance(value, _NUMBERS) else like(value) for name, value in self.operands.items()
        }
        return clone

    @property
    def residual(self) -> Array | None:
        """A second result, which the epilogue reads too (local)."""
        return self.operands.get("residual") if self.form.is_rmsnorm else None

    @property
    def by_columns(self) -> bool:
        """Whether this rank's arrays can be used in place if elements are numbered down the columns (local)."""
        if self.x.flags.c_contiguous or not self.shares or self.form.is_rmsnorm:
            return False
        return all(array.flags.f_contiguous for array in (self.x, self.x if self.out is None else self.out))

    def arguments(self) -> dict[str, Any]:
        """Arguments that must be equal on all ranks."""
        call_args = self.form.arguments.copy()
        for name, value in sorted(self.operands.items()):
            call_args[f"epilogue's {name}"] = value if isinstance(value, _NUMBERS) else name_of(value.dtype)
        call_args["algorithm"] = self.form.algorithm  # after the arguments that "auto" chooses it by
        return call_args

    @property
    def text(self) -> str:
        """The arguments for an agreement (global)."""
        return spelled(self.arguments()) if self.operands else self.form.text

    def signature(self) -> tuple[object, ...]:
        """Key of a call: the ranks agree on each new key once, and not again on calls with a known key (global)."""
        call_args = self.arguments() | {
            f"epilogue's {name}": "a number" for name, value in self.operands.items() if isinstance(value, _NUMBERS)
        }
        return (self.name, *call_args.items())

    def finish(self, *, by_columns: bool, base: int) -> Finish | None:
        """The epilogue with its operands."""
        if self.epilogue is None:
            return None
        if not isinstance(self.epilogue, Epilogue):
            return ByFunction(self.epilogue, partial(self.runtime.users_function, f"{self.name}(epilogue=...)"))
        shape, operands = self.place.shape, self.operands
        if self.epilogue.tree is None:
            return Normalised(operands.get("weight"), operands["eps"], self.residual, shape[-1], base)
        columns = shape[-1] if shape else 1
        length = self.place.size // max(1, columns) if by_columns else columns
        if by_columns:
            operands = {name: value.T if isinstance(value, np.ndarray) else value for name, value in operands.items()}
        wide = accumulator_dtype(self.dtype)
        return Pointwise(self.epilogue.expression, operands, wide, base, length, by_columns=by_columns)

    def _counts(self, counts: object) -> tuple[int, ...]:
        """The rows of x that each rank gets."""
        shape = self.x.shape
        if not shape:
            raise errors.ArgumentError(f"{self.name}: x has no axis to split; use x.reshape(1)")
        if counts is None:
            return tuple(b - a for a, b in pairwise(shares(shape[0], self.runtime.nprocs, 1)))
        return self.checked_counts(counts, shape[0])

    def _rows(self, counts: tuple[int, ...]) -> Array:
        """This rank's rows of x."""
        start = sum(counts[: self.runtime.rank])
        return self.x[start : start + counts[self.runtime.rank]]

    def _epilogue(self, value: object) -> Any:
        if callable(value) and not isinstance(value, Epilogue):
            if self.runtime.backend.gpus:
                raise errors.ArgumentError(
                    f"{self.name}: the epilogue is a Python function, which GPUs cannot run; write an expression, "
                    f"as 'relu(x)', or apply the function to the result"
                )
            return value
        epilogue = Epilogue(value) if isinstance(value, str) else value
        if not isinstance(epilogue, Epilogue):
            raise errors.ArgumentError(
                f"{self.name}: epilogue must be None, a string, an Epilogue or a function, got {type(value).__name__}"
            )
        if epilogue.problem is not None:
            epilogue.check(self.name, self.dtype)
        return epilogue

    def _checked_operands(self) -> dict[str, object]:
        """The operands of the epilogue by name: numbers and arrays, checked (local)."""
        operands: dict[str, Any] = {"eps": 1e-6} if self.form.is_rmsnorm else {}
        what = f"{self.name}: epilogue {self.epilogue.expression!r}"
        for name, value in self.epilogue.operands.items():
            kinds = _KINDS[name] if self.form.is_rmsnorm else ("number", "row", "full")
            array = self.as_array(f"epilogue {self.epilogue.expression!r}: {name}", value)
            if "number" in kinds and array is None and (kinds == ("number",) or not isinstance(value, _LISTS)):
                operands[name] = checked_scalar(what, name, value, self.dtype)
            else:
                written = self.form.is_rmsnorm and name == "residual"
                operands[name] = self._checked_array(f"{what}: {name}", value, array, kinds, written=written)
        return operands

    def _checked_array(
        self, what: str, value: object, array: Array | None, kinds: tuple[str, ...], *, written: bool
    ) -> Array:
        full = self.place.shape
        shapes = [shape for kind, shape in (("row", full[-1:]), ("full", full)) if kind in kinds]
        if array is None or array.shape not in shapes:
            got = type(value).__name__ if array is None else f"shape {array.shape}"
            arrays = [f"an array of shape {shape}" for shape in dict.fromkeys(shapes)]
            expected = " or ".join([*(["a number"] if "number" in kinds else []), *arrays])
            raise errors.ArgumentError(f"{what} must be {expected}, got {got}")
        if array.dtype != self.dtype and (written or array.dtype != accumulator_dtype(self.dtype)):
            raise errors.DTypeError(f"{what} is {array.dtype}, x is {self.dtype.name}; convert with .astype(x.dtype)")
        if written:
            check_written(what, array)
        for name, other in (("out", self.out), ("x", self.x if written else None)):
            if other is None or not self.overlap(array, other):
                continue
            # `out` may be an operand itself: each element is read before it is written.
            if written or not self.coincide(array, other):
                raise errors.ArgumentError(f"{what} overlaps {name}; give it memory of its own")
        return array

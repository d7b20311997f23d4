"""The last addition of a collective: pieces that fit in a cache are added, finished by an epilogue, and stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np

from pblas import errors
from pblas.backends.cpu.pointwise import PIECE_NBYTES, evaluator_of, rms_normalised
from pblas.backends.dtypes import Array, Dtype, accumulator_dtype
from pblas.backends.local_step import is_urgent, text_of
from pblas.collectives.staging_run import Flat

OPERATIONS: dict[str, np.ufunc] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
"""Functions that combine two elements. All of them propagate NaN."""
_ADDED_NBYTES = 256 << 10
"""Bytes of pieces without an epilogue: an addition has no intermediate arrays, so that pieces may be larger."""


class Pointwise:
    """An expression of pieces of a flat result: whole lines of it, or a part of one."""

    def __init__(
        self,
        expression: str,  # a valid one (global)
        # numbers; arrays of the result's shape; vectors with an element for each place in a line, or each line (global)
        operands: Mapping[str, object],
        wide: Dtype,  # dtype of the sums (global)
        base: int,  # number of its first element (local)
        length: int = 1,  # elements of a line (local)
        *,
        by_columns: bool = False,  # lines are columns, so that vectors have an element for each of them (global)
    ) -> None:
        self._value = evaluator_of(expression, overwrites=True)
        self._base, self._length, self._by_columns = base, max(1, length), by_columns
        self._numbers: dict[str, object] = {}
        self._vectors: dict[str, Array] = {}
        self._arrays: dict[str, Flat] = {}
        for name, value in operands.items():
            if not isinstance(value, np.ndarray):
                self._numbers[name] = value
            elif value.ndim == 1:
                self._vectors[name] = np.ascontiguousarray(value, wide)
            else:
                self._arrays[name] = Flat(value, base)

    def __call__(self, total: Array, a: int, b: int) -> tuple[Array]:
        """The value for elements a..b-1, whose sums are `total`; it may overwrite `total`."""
        line, first = divmod(a - self._base, self._length)
        shape = rows, columns = max(1, (b - a) // self._length), min(b - a, self._length)
        operands = self._numbers.copy()
        # Tight operands of one dtype: NumPy's functions may round differently in memory with gaps.
        for name, flat in self._arrays.items():
            operands[name] = flat.get(a, b).astype(total.dtype, copy=False).reshape(shape)
        for name, vector in self._vectors.items():
            operands[name] = vector[line : line + rows, None] if self._by_columns else vector[first : first + columns]
        value = self._value(total.reshape(shape), operands)
        return ((value if value.shape == shape else np.broadcast_to(value, shape)).reshape(-1),)

    def may_overwrite(self, out: Array) -> bool:
        """Whether sums may be formed in `out`: it shares no memory with operands (local)."""
        operands = (*self._vectors.values(), *(flat.x for flat in self._arrays.values()))
        return not any(np.may_share_memory(operand, out) for operand in operands)

    def cut(self, a: int, b: int) -> int:
        """The end of a piece that begins with element a and ends with b at the latest."""
        first = (a - self._base) % self._length if self._vectors else 0
        if first:
            return min(b, a + self._length - first)
        return a + ((b - a) // self._length * self._length or b - a)


class Normalised:
    """Rows of a flat result, normalised; with a residual there are two results. Its first element has number `base`."""

    def __init__(self, weight: Array | None, eps: float, residual: Array | None, columns: int, base: int) -> None:
        self._eps, self._columns = eps, columns
        self._weight = None if weight is None else np.ascontiguousarray(weight)
        self._residual = None if residual is None else Flat(residual, base)

    def may_overwrite(self, out: Array) -> bool:
        """No: the sums may be the second result."""
        return False

    def cut(self, a: int, b: int) -> int:
        """B: pieces are whole rows."""
        return b

    def __call__(self, total: Array, a: int, b: int) -> tuple[Array, ...]:
        """The normalised rows of elements a..b-1, and the rows before normalisation if a residual was added."""
        if self._residual is not None:
            total += self._residual.get(a, b)
        weight = None if self._weight is None else self._weight.astype(total.dtype, copy=False)
        rows = rms_normalised(total.reshape(-1, self._columns), weight, self._eps).reshape(-1)
        return (rows,) if self._residual is None else (rows, total)


class ByFunction:
    """A user's function of pieces of a flat result, which may fail on some ranks only."""

    def __init__(self, function: Callable[[Array], Array], calling: Callable[[], AbstractContextManager[None]]) -> None:
        self._function, self._calling = function, calling  # a with block for calls of it: `Runtime.users_function`
        self.error: errors.ArgumentError | None = None  # its first error (local)

    def may_overwrite(self, out: Array) -> bool:
        """Yes: the function gets a copy."""
        return True

    def cut(self, a: int, b: int) -> int:
        """B: any piece."""
        return b

    def __call__(self, total: Array, *_: int) -> tuple[Array]:
        """The function's value, or the sums if it has failed."""
        try:
            with self._calling():
                value = np.asarray(self._function(total.copy()))
            if value.shape != total.shape:
                text = f"returned shape {value.shape} for shape {total.shape}; it must be elementwise"
            elif value.dtype.kind == "c" and total.dtype.kind != "c":
                text = f"returned {value.dtype} for {total.dtype}; it must be real"
            else:
                return (value.astype(total.dtype, copy=False),)
        except BaseException as caught:  # the other ranks must not wait for this one
            if is_urgent(caught):
                raise
            text = f"raised {type(caught).__name__}: {text_of(caught)}"
        self.error = self.error or errors.ArgumentError(f"the epilogue's function {text}")
        return (total,)


Finish = Pointwise | Normalised | ByFunction
"""Epilogues of a piece of sums: results in the precision of the sums, one for each sink."""


def fold(
    operation: np.ufunc,
    parts: Sequence[Flat],
    span: tuple[int, int],
    unit: int,
    finish: Finish | None,
    sinks: Sequence[Sequence[Flat]],
) -> None:
    """Combine elements of several arrays in their order, in 32 bits at least, and store them rounded once."""
    dtype = parts[0].x.dtype
    total = accumulator_dtype(dtype)
    is_wide = total == dtype
    most = max(1, (PIECE_NBYTES if finish else _ADDED_NBYTES) // total.itemsize // unit) * unit
    out = sinks[0][0]
    in_place = is_wide and out.line is not None and (finish is None or finish.may_overwrite(out.x))
    memory = None if in_place else np.empty(min(most, span[1] - span[0]), total)
    for a, b in _cuts(span, most, unit, finish):
        pieces = [part.get(a, b) if is_wide else part.get(a, b).astype(total) for part in parts]
        added = _reduce(operation, pieces, out.get(a, b) if memory is None else memory[: b - a])
        for value, targets in zip(finish(added, a, b) if finish else (added,), sinks, strict=True):
            rounded = value if is_wide else value.astype(dtype, copy=False)
            for target in targets:
                if not (in_place and finish is None and target is out):  # otherwise it has the sums already
                    target.write(a, b, rounded)


def _cuts(span: tuple[int, int], most: int, unit: int, finish: Finish | None) -> Iterable[tuple[int, int]]:
    """Pieces of a span with at most `most` elements, as even as whole units allow."""
    a, stop = span
    if finish is None and 0 < stop - a <= most:
        return (span,)
    return _even_cuts(a, stop, most, unit, finish)


def _even_cuts(a: int, stop: int, most: int, unit: int, finish: Finish | None) -> Iterator[tuple[int, int]]:
    nunits = -(-(stop - a) // unit)
    even = unit * -(-nunits // max(1, -(-(stop - a) // most)))
    while a < stop:
        b = min(a + even, stop)
        b = b if finish is None else finish.cut(a, b)
        yield a, b
        a = b


def _reduce(operation: np.ufunc, pieces: Sequence[Array], out: Array) -> Array:
    """Out := all pieces, combined in their order; the last piece may be `out`."""
    if len(pieces) == 1:
        out[...] = pieces[0]
        return out
    running = pieces[0]
    if len(pieces) > 2:
        buffer = np.empty_like(out)
        for piece in pieces[1:-1]:
            running = operation(running, piece, out=buffer)
    if out.size > 1:
        operation(running, pieces[-1], out=out)
    else:  # NumPy rounds a single complex product differently if it overwrites a factor
        out[...] = operation(running, pieces[-1])
    return out

"""Keys of A[...]: slices and indices as half-open ranges; lists and slices with steps as lists of indices."""

from __future__ import annotations

import operator
import reprlib
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pblas import errors

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array


_ALL = slice(None)
_BOUNDS = {int, type(None)}


class Selection(NamedTuple):
    """Rows i0..i1-1 and columns j0..j1-1 of a matrix (global)."""

    i0: int
    i1: int
    j0: int
    j1: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the selection."""
        return self.i1 - self.i0, self.j1 - self.j0


class Lists(NamedTuple):
    """Rows and columns of a matrix in any order, as arrays of indices from 0 on (global)."""

    rows: Array
    columns: Array

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the selection."""
        return self.rows.size, self.columns.size

    @property
    def text(self) -> str:
        """The indices as text for agreements."""
        rows, columns = (f"{x.size} indices with checksum {zlib.crc32(x.tobytes()):08x}" for x in self)
        return f"\nrows={rows}\ncolumns={columns}"


@lru_cache(16)
def all_of(size: int) -> Array:
    """The indices below a size, which are kept for later calls."""
    indices = np.arange(size)
    indices.flags.writeable = False
    return indices


def plain_selection(shape: tuple[int, int], key: object) -> Selection | None:
    """`selection` of one or two slices of step 1, of which at most one is an integer; None of any other key.

    >>> plain_selection((4, 6), (slice(1, None), -1)), plain_selection((4, 6), (1, 2))
    (Selection(i0=1, i1=4, j0=5, j1=6), None)
    """
    parts: Any = key if isinstance(key, tuple) else (key, _ALL)
    if len(parts) != 2:
        return None
    bounds: list[int] = []
    for part, size in zip(parts, shape, strict=True):
        if part.__class__ is int and -size <= part < size:
            start, stop = part % size, part % size + 1
        elif part.__class__ is slice and part.step is None and {part.start.__class__, part.stop.__class__} <= _BOUNDS:
            start, stop, _ = part.indices(size)
        else:
            return None
        bounds += start, max(start, stop)
    return None if parts[0].__class__ is parts[1].__class__ is int else Selection(*bounds)


def selection(shape: tuple[int, int], key: object) -> Selection:
    """The rows and columns that a key of integers and slices of step 1 selects.

    >>> selection((4, 6), (slice(1, None), -1))
    Selection(i0=1, i1=4, j0=5, j1=6)
    """
    parts = _without_ellipsis(key)
    if not 1 <= len(parts) <= 2:
        raise errors.ArgumentError(f"DistMatrix: expected one or two indices or slices, got A[{_shown(key)}]")
    (i0, i1), (j0, j1) = (
        _bounds(key, part, size, name)
        for part, size, name in zip((*parts, slice(None))[:2], shape, ("row", "column"), strict=True)
    )
    return Selection(i0, i1, j0, j1)


def lists(shape: tuple[int, int], key: object) -> Lists:
    """The rows and columns that a key with lists or steps selects.

    >>> lists((4, 6), ([3, 0], slice(None, None, 3))), lists((2, 3), np.ix_([1], [2, 2])).columns
    (Lists(rows=array([3, 0]), columns=array([0, 3])), array([2, 2]))
    """
    parts = _without_ellipsis(key)
    if not 1 <= len(parts) <= 2:
        raise errors.ArgumentError(f"DistMatrix: expected one or two indices, slices or lists, got A[{_shown(key)}]")
    if len(parts) == 2 and all(map(_is_list, parts)):
        i, j = map(np.asarray, parts)
        if i.shape != (i.size, 1) or j.shape != (1, j.size):
            raise errors.ArgumentError(
                f"DistMatrix: two lists select single elements in NumPy, got A[{_shown(key)}]; "
                f"A[np.ix_(rows, columns)] selects the submatrix"
            )
        parts = i[:, 0], j[0]
    return Lists(
        *(
            _indices(key, part, size, name)
            for part, size, name in zip((*parts, slice(None))[:2], shape, ("row", "column"), strict=True)
        )
    )


def is_listed(key: object) -> bool:
    """Whether a key has a list or a slice with another step than 1, so that no view has its elements.

    Objects that are no keys are as lists: all ranks have their error.

    >>> is_listed(([0, 3], slice(None))), is_listed(slice(None, None, -1)), is_listed((1, slice(2, 3, 1)))
    (True, True, False)
    """
    return any(_has_step(part) if isinstance(part, slice) else not _is_index(part) for part in _without_ellipsis(key))


def is_element(key: object) -> bool:
    """Whether a key is two integers, which select one element."""
    return isinstance(key, tuple) and len(parts := _without_ellipsis(key)) == 2 and all(map(_is_index, parts))


def _without_ellipsis(key: object) -> tuple[object, ...]:
    """The parts of a key, with whole slices in place of its only Ellipsis.

    >>> _without_ellipsis((..., 1)), _without_ellipsis(...), _without_ellipsis((0, ..., 1))
    ((slice(None, None, None), 1), (slice(None, None, None), slice(None, None, None)), (0, 1))
    """
    parts = key if isinstance(key, tuple) else (key,)
    places = [i for i, part in enumerate(parts) if part is Ellipsis]
    if len(places) != 1:
        return parts
    (place,) = places
    return (*parts[:place], *[slice(None)] * (3 - len(parts)), *parts[place + 1 :])


def _is_list(part: object) -> bool:
    """Whether a part of a key is a list or an array."""
    return isinstance(part, list | range) or (isinstance(part, np.ndarray) and part.ndim > 0)


def _has_step(part: slice) -> bool:
    return _is_index(part.step) and operator.index(part.step) != 1


def _is_index(part: Any) -> bool:
    """Whether a part of a key is an integer, a boolean excepted."""
    if isinstance(part, bool | np.bool_ | slice):
        return False
    try:
        operator.index(part)
    except Exception:  # noqa: BLE001 - a method of another library
        return False
    return True


def _shown(key: object) -> str:
    """A key as it is written between brackets.

    >>> _shown((slice(1, None), 9)), _shown(slice(None, None, 2)), _shown([1, 2])
    ('1:, 9', '::2', '[1, 2]')
    """
    if isinstance(key, tuple):
        return ", ".join(map(_shown, key))
    if key is Ellipsis:
        return "..."
    if not isinstance(key, slice):
        return reprlib.repr(key)
    start, stop, step = ("" if bound is None else repr(bound) for bound in (key.start, key.stop, key.step))
    return f"{start}:{stop}:{step}" if step else f"{start}:{stop}"


def _bounds(key: object, part: Any, size: int, name: str) -> tuple[int, int]:
    """The half-open range of one part of a key."""
    if not isinstance(part, slice):
        index = operator.index(part)
        if not -size <= index < size:
            raise _out_of_range(key, index, size, name)
        return index % size, index % size + 1
    start, stop, _ = _slice_indices(key, part, size)
    return start, max(start, stop)


def _indices(key: object, part: Any, size: int, name: str) -> Array:
    """The indices of one part of a key."""
    if isinstance(part, slice):
        return all_of(size) if part == _ALL else np.arange(*_slice_indices(key, part, size))
    if _is_index(part):
        return np.arange(*_bounds(key, part, size, name))
    if not _is_list(part):
        raise errors.ArgumentError(
            f"DistMatrix: expected integers, slices, lists of integers, or a mask, got A[{_shown(key)}]"
        )
    try:
        array = np.asarray(part)
    except ValueError:  # lists of unequal lengths
        array = np.empty((), object)
    if array.dtype == bool and array.ndim == 1:
        if array.size != size:
            raise errors.OutOfRangeError(
                f"DistMatrix: a list of {array.size} bools does not select {name}s, of which the matrix has {size}"
            )
        return np.flatnonzero(array)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise errors.ArgumentError(
            f"DistMatrix: a list of {name}s must have integers or bools in one dimension, got A[{_shown(key)}]"
        )
    lowest, highest = (int(array.min()), int(array.max())) if array.size else (0, 0)
    for index in (lowest, highest) if array.size else ():
        if not -size <= index < size:
            raise _out_of_range(key, index, size, name)
    indices = array.astype(np.intp)
    return indices if lowest >= 0 else np.where(indices < 0, indices + size, indices)


def _slice_indices(key: object, part: slice, size: int) -> tuple[int, int, int]:
    try:
        return part.indices(size)
    except (TypeError, ValueError) as caught:  # not integers; a step of 0
        raise errors.ArgumentError(f"DistMatrix: {caught}; got A[{_shown(key)}]") from None


def _out_of_range(key: object, index: int, size: int, name: str) -> errors.OutOfRangeError:
    return errors.OutOfRangeError(
        f"DistMatrix: {name} {index} does not exist, the matrix has {size} {name}s; got A[{_shown(key)}]"
    )

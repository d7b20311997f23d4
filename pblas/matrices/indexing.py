"""Keys of A[...]: slices and indices, as half-open ranges."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np

from pblas import errors


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


def selection(shape: tuple[int, int], key: object) -> Selection:
    """The rows and columns that a key selects.

    >>> selection((4, 6), (slice(1, None), -1))
    Selection(i0=1, i1=4, j0=5, j1=6)
    """
    parts = _without_ellipsis(key)
    if not 1 <= len(parts) <= 2:
        raise errors.ArgumentError(f"DistMatrix: expected one or two indices or slices, got A[{_shown(key)}]")
    if not all(isinstance(part, slice) or _is_index(part) for part in parts):
        raise errors.ArgumentError(
            f"DistMatrix: expected integers and slices, A[i, j] or A[i0:i1, j0:j1], got A[{_shown(key)}]; "
            f"A.to_global() gives an array, which takes other keys"
        )
    (i0, i1), (j0, j1) = (
        _bounds(key, part, size, name)
        for part, size, name in zip((*parts, slice(None))[:2], shape, ("row", "column"), strict=True)
    )
    return Selection(i0, i1, j0, j1)


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


def _is_index(part: Any) -> bool:
    """Whether a part of a key is an integer, a boolean excepted."""
    if isinstance(part, bool | np.bool_ | slice):
        return False
    try:
        operator.index(part)
    except TypeError:
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
        return repr(key)
    start, stop, step = ("" if bound is None else repr(bound) for bound in (key.start, key.stop, key.step))
    return f"{start}:{stop}:{step}" if step else f"{start}:{stop}"


def _bounds(key: object, part: Any, size: int, name: str) -> tuple[int, int]:
    """The half-open range of one part of a key."""
    if not isinstance(part, slice):
        index = operator.index(part)
        if not -size <= index < size:
            raise errors.OutOfRangeError(
                f"DistMatrix: {name} {index} does not exist, the matrix has {size} {name}s; got A[{_shown(key)}]"
            )
        return index % size, index % size + 1
    try:
        start, stop, step = part.indices(size)
    except (TypeError, ValueError) as caught:  # not integers; a step of 0
        raise errors.ArgumentError(f"DistMatrix: {caught}; got A[{_shown(key)}]") from None
    if step != 1:
        raise errors.ArgumentError(
            f"DistMatrix: slices must have step 1, got A[{_shown(key)}]; A.to_global() gives an array, which has others"
        )
    return start, max(start, stop)

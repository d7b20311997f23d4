"""Laws of A[...], A[...] = B, tril, triu, vstack and hstack: NumPy's results on the gathered matrix."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import Context, DistMatrix
from pblas.errors import ArgumentError, DescriptorError, DTypeError, MismatchError, OutOfRangeError, PblasError
from pblas.matrices import scatter_gather
from tests.common.gauge import NAMES, Array, dtype_of, entries
from tests.common.ranks import Contexts, collected, few, same_on_all_ranks
from tests.mpi.matrices.arrays import Mistake, check_mistake, placed, some_descriptor, some_matrix

pytestmark = [pytest.mark.mpi, few]
SETTINGS = ("shared", "message")
SHAPES = ((1, 1), (1, 9), (7, 1), (8, 9), (9, 7))


def filled(ctx: Context, seed: int, shape: tuple[int, int], dtype: str = "float64") -> tuple[DistMatrix, Array]:
    """**Collective.** A whole matrix in some layout, and its elements."""
    x = entries(shape, dtype_of(dtype), seed)
    return placed(ctx, x, some_descriptor(Random(seed), *shape, ctx.nprocs), seed % 3), x


@pytest.mark.parametrize("dtype", NAMES)
def test_elements_are_read_on_all_ranks(contexts: Contexts, dtype: str) -> None:
    for seed in range(6):
        a, x = some_matrix(contexts["shared"], seed, dtype, SHAPES[seed % len(SHAPES)])
        keys: tuple[Any, ...] = (0, 0), (-1, -1), (x.shape[0] // 2, np.int64(x.shape[1] - 1))
        for i, j in keys:
            element = a[i, j]  # an integer of NumPy too
            assert type(element) is (complex if x.dtype.kind == "c" else float)
            assert same_on_all_ranks(element) == x[i, j]
            again: Any = a[..., i, j]
            assert same_on_all_ranks(again) == x[i, j]


def test_keys_select_views(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    for seed in range(6):
        a, x = filled(ctx, seed, (8, 9))
        for key, expected in (
            (3, x[3:4]),
            (-1, x[-1:]),
            (np.int32(2), x[2:3]),
            (slice(2, 5), x[2:5]),
            (slice(5, 2), x[5:2]),
            ((slice(None), 4), x[:, 4:5]),
            ((slice(None), -9), x[:, :1]),
            ((2, slice(1, 4)), x[2:3, 1:4]),
            ((slice(-3, None),), x[-3:]),
            (..., x),
            ((..., 4), x[:, 4:5]),
            ((..., slice(1, 3)), x[:, 1:3]),
            ((2, ...), x[2:3]),
            ((slice(2, 4), ..., slice(1, 3)), x[2:4, 1:3]),
        ):
            view = a[key]
            assert np.array_equal(collected(view), expected)
            view.local[...] = -1.0
            x[key] = -1.0
            assert np.array_equal(collected(a), x)
            x[...] = entries((8, 9), x.dtype, seed)
            a[...] = x


def test_a_matrix_is_a_sequence_of_rows(contexts: Contexts) -> None:
    a, x = filled(contexts["shared"], 1, (7, 8))
    assert np.array_equal(np.vstack([collected(row) for row in a]), x)  # type: ignore[attr-defined]  # ends at an IndexError


def some_range(rng: Random, size: int, length: int) -> slice:
    """A range of some length in a dimension."""
    start = rng.randint(0, size - length)
    return slice(start, start + length)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("dtype", NAMES)
def test_assignment_is_that_of_numpy(contexts: Contexts, setting: str, dtype: str) -> None:
    ctx = contexts[setting]
    for seed in range(10):
        rng, (a, x) = Random(seed), filled(ctx, seed, SHAPES[seed % len(SHAPES)], dtype)
        shape = rng.randint(0, x.shape[0]), rng.randint(0, x.shape[1])
        key = some_range(rng, x.shape[0], shape[0]), some_range(rng, x.shape[1], shape[1])
        b, y = some_matrix(ctx, seed + 50, dtype, shape)
        row, line = some_matrix(ctx, seed + 60, dtype, (1, shape[1]))
        target, reference = (a, x) if seed % 2 else (a.H.T, x.conj())
        for value, numpys in ((b, y), (row, line), (y, y), (line[0], line[0]), (2.5, 2.5), (row[:, :1], line[:, :1])):
            if 0 in shape and value is not b:
                continue
            target[key] = value
            reference = reference.copy()
            reference[key] = numpys
            assert np.array_equal(collected(target), reference)
            assert np.array_equal(collected(a), reference if seed % 2 else reference.conj())


def some_list(rng: Random, size: int) -> Any:
    """A list of indices, a slice with a step, or a list of bools."""
    kind = rng.randrange(4)
    if kind == 0:
        return slice(None, None, rng.choice([-2, -1, 2, 3]))
    if kind == 1:
        return np.array([rng.random() < 0.5 for _ in range(size)])
    return [rng.randrange(-size, size) for _ in range(rng.randint(0, 5) if kind == 2 else 2 * size)]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("dtype", ["float64", "complex64", "bfloat16"])
@pytest.mark.parametrize("least", [0, scatter_gather.IN_PLACE_NBYTES])
def test_lists_and_steps_are_those_of_numpy(
    contexts: Contexts, setting: str, dtype: str, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scatter_gather, "IN_PLACE_NBYTES", least)
    ctx = contexts[setting]
    for seed in range(16):
        rng, (a, x) = Random(seed), some_matrix(ctx, seed, dtype, (8, 9))
        a = a.copy() if seed % 3 else a  # in memory of the context, or of this test
        rows, columns = some_list(rng, 8), some_list(rng, 9)
        i, j = np.arange(8)[rows], np.arange(9)[columns]
        open_mesh = np.ix_(i, j) if seed % 2 else (rows, slice(2, None))
        key: Any = (rows, slice(3, 4)) if seed % 4 == 0 else (..., columns) if seed % 4 == 2 else open_mesh
        assert np.array_equal(collected(a[key]), x[key])
        assert np.array_equal(collected(a[rows]), x[rows])
        b, y = some_matrix(ctx, seed + 50, dtype, x[key].shape)
        row, line = some_matrix(ctx, seed + 60, dtype, (1, y.shape[1]))
        values: list[tuple[Any, Any]] = [(b, y), (y, y), (2.5, 2.5)] + [(row, line)] * (0 not in y.shape)
        for value, numpys in values:
            a[key] = value
            x[key] = numpys
            assert np.array_equal(collected(a), x)
        a[key] = a[key].copy()
        assert np.array_equal(collected(a), x)
        a[[7, 0, 3]] = a[[0, 3, 7]]
        x[[7, 0, 3]] = x[[0, 3, 7]]
        a[::-1] = a  # in one memory
        x[::-1] = x.copy()
        assert np.array_equal(collected(a), x)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_mask_selects_elements_by_rows(contexts: Contexts, setting: str) -> None:
    for seed, shape in enumerate(((7, 8), (0, 4), (1, 9), (9, 1))):
        a, x = some_matrix(contexts[setting], seed, "complex128" if seed % 2 else "float32", shape)
        b, y = some_matrix(contexts[setting], seed + 9, "float64", shape)
        for mask, numpys in ((b > 0, y > 0), (y > 0, y > 0), (b.T.T * 0 + b, y != 0), (b > 9, y > 9)):
            elements: Any = a[mask]
            assert elements.dtype == x.dtype
            assert np.array_equal(elements, x[numpys])


def test_an_index_selects_what_is_assigned(contexts: Contexts) -> None:
    a, x = filled(contexts["shared"], 2, (7, 8))
    for key, value in ((3, 1.0), ((2, 5), -4.0), ((slice(None), -1), 3.0), (..., 7.0), ((1, slice(2, 4)), np.ones(2))):
        a[key] = value
        x[key] = value
        assert np.array_equal(collected(a), x)


def test_assignment_promotes_and_converts(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    a, x = filled(ctx, 3, (7, 8), "complex128")
    b, y = filled(ctx, 4, (7, 8), "float32")
    a[...], x[...] = b, y
    assert np.array_equal(collected(a), x)
    b[1:3], y[1:3] = filled(ctx, 5, (2, 8), "float64")
    assert np.array_equal(collected(b), y)
    b[0], y[0] = np.arange(8), np.arange(8)
    assert np.array_equal(collected(b), y)


@pytest.mark.parametrize("setting", SETTINGS)
def test_an_overlapping_value_is_copied_first(contexts: Contexts, setting: str) -> None:
    ctx = contexts[setting]
    for seed in range(12):
        rng, (a, x) = Random(seed), filled(ctx, seed, (9, 8), "complex128" if seed % 3 == 0 else "float64")
        shape = rng.randint(3, 8), rng.randint(3, 8)
        to, source = ((some_range(rng, 9, shape[0]), some_range(rng, 8, shape[1])) for _ in range(2))
        a[to] = a[source]
        x[to] = x[source].copy()
        assert np.array_equal(collected(a), x)
        a[:8, :8] = a[:8, :8].H
        x[:8, :8] = x[:8, :8].conj().T.copy()
        assert np.array_equal(collected(a), x)
        a[2:5] = a[2:5]
        assert np.array_equal(collected(a), x)


@pytest.mark.parametrize("dtype", ["float64", "complex64", "bfloat16"])
def test_triangles_and_stacks_are_those_of_numpy(contexts: Contexts, dtype: str) -> None:
    ctx = contexts["shared"]
    for seed in range(8):
        a, x = some_matrix(ctx, seed, dtype)
        for k in (-2, 0, 1):
            for ours, numpys in ((pblas.tril, np.tril), (pblas.triu, np.triu)):
                result = ours(a, k)
                assert result.dtype == a.dtype
                assert np.array_equal(collected(result), numpys(x, k))
        b, y = some_matrix(ctx, seed + 10, dtype, (3, x.shape[1]))
        assert np.array_equal(collected(pblas.vstack([a, b, a])), np.vstack([x, y, x]))
        assert np.array_equal(collected(pblas.hstack((b.T, a.T))), np.hstack([y.T, x.T]))
    assert pblas.vstack([ctx.ones((5, 3)), ctx.ones((2, 3))]).desc == pblas.MatrixDescriptor.row_wise(7, 3, ctx.nprocs)


class Cast:
    """Matrices that the calls below go wrong with."""

    def __init__(self, ctx: Context, other: Context) -> None:
        self.a, self.b, self.short = ctx.ones((7, 8)), ctx.ones((7, 8)), ctx.ones((6, 8))
        self.complex, self.single, self.foreign = ctx.full((7, 8), 1j), ctx.ones((7, 8), "float32"), other.ones((7, 8))


def put(key: Any, value: Any) -> Callable[[Cast], object]:
    """The call A[key] = value; of a name the matrix of the cast."""

    def call(cast: Cast) -> None:
        cast.a[key] = getattr(cast, value[1:]) if isinstance(value, str) and value[:1] == "." else value

    return call


FINE = put(..., ".b")
WRONG: dict[str, Mistake[Cast]] = {
    "an element": (OutOfRangeError, "row 7 does not exist", lambda c: c.a[7, 0], lambda c: c.a[6, 0]),
    "an element of a column": (OutOfRangeError, "column -9", lambda c: c.a[0, -9], lambda c: c.a[0, -8]),
    "another element": (MismatchError, "i differs", lambda c: c.a[1, 0], lambda c: c.a[2, 0]),
    "a row to assign": (OutOfRangeError, "the matrix has 7 rows", put(7, 1.0), put(6, 1.0)),
    "another step": (MismatchError, "rows differs", put(slice(0, 4, 2), 1.0), put(slice(0, 4, 3), 1.0)),
    "a list of text": (ArgumentError, "integers or bools", put(["0"], 1.0), put([0], 1.0)),
    "a list out of range": (OutOfRangeError, "row 7 does not exist", lambda c: c.a[[0, 7]], lambda c: c.a[[0, 6]]),
    "a list of bools": (OutOfRangeError, "2 bools", lambda c: c.a[:, [True] * 2], lambda c: c.a[:, [True] * 8]),
    "another list": (MismatchError, "columns differs", lambda c: c.a[:, [0, 7]], lambda c: c.a[:, [7, 0]]),
    "two lists": (ArgumentError, "np.ix_", put(([0], [1]), 1.0), put(np.ix_([0], [1]), 1.0)),
    "the shape of a list": (DescriptorError, "make them agree", put([0, 1], ".short"), put([0] * 7, ".b")),
    "the shape of a mask": (DescriptorError, "make them agree", lambda c: c.a[c.short], lambda c: c.a[c.b]),
    "a mask of integers": (
        *(ArgumentError, "an array of bools"),
        *(lambda c: c.a[np.ones((7, 8), int)], lambda c: c.a[np.ones((7, 8), bool)]),
    ),
    "a mask of another context": (ArgumentError, "different contexts", lambda c: c.a[c.foreign], lambda c: c.a[c.b]),
    "another place": (MismatchError, "rows differs", put(1, 1.0), put(2, 1.0)),
    "a shape": (DescriptorError, "make them agree", put(..., ".short"), FINE),
    "the shape of an array": (DescriptorError, "the value has shape", put(..., np.ones(7)), put(..., np.ones(8))),
    "complex": (DTypeError, "take a part", put(..., ".complex"), FINE),
    "a complex number": (DTypeError, "real part", put(..., 1j), put(..., 1.0)),
    "another context": (ArgumentError, "different contexts", put(..., ".foreign"), FINE),
    "text": (DTypeError, "not numbers", put(..., "one"), put(..., 1.0)),
    "None": (ArgumentError, "the value is None; pass an array", put(..., None), put(..., 1.0)),
    "stack of arrays": (
        *(ArgumentError, "matrix 1 must be a DistMatrix"),
        *(lambda c: pblas.vstack([c.a, np.ones((7, 8))]), lambda c: pblas.vstack([c.a, c.b])),  # type: ignore[list-item]
    ),
    "stack of contexts": (
        *(ArgumentError, "different contexts"),
        *(lambda c: pblas.vstack([c.a, c.foreign]), lambda c: pblas.vstack([c.a, c.b])),
    ),
    "stack of shapes": (
        *(DescriptorError, "do not fit"),
        *(lambda c: pblas.hstack([c.a, c.short]), lambda c: pblas.hstack([c.a, c.b])),
    ),
    "stack of dtypes": (
        *(DTypeError, "one dtype"),
        *(lambda c: pblas.vstack([c.a, c.single]), lambda c: pblas.vstack([c.a, c.b])),
    ),
    "triangle": (ArgumentError, "tril: k must be", lambda c: pblas.tril(c.a, 0.5), lambda c: pblas.tril(c.a)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_of_one_rank_is_raised_on_all(contexts: Contexts, name: str) -> None:
    ctx = contexts["shared"]
    check_mistake(ctx, WRONG[name], Cast(ctx, contexts["message"]))


def test_an_index_out_of_range_is_an_index_error(contexts: Contexts) -> None:
    a = contexts["shared"].ones((3, 4))
    for key in (3, -4, (0, 4), (slice(None), -5)):
        with pytest.raises(IndexError) as caught:
            a[key]
        assert isinstance(caught.value, PblasError)

"""Laws of the problems that cuBLASLt gets for arrays, and of the store of tuned algorithms."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pblas.backends.cuda.gemm_problem import (
    ALGORITHM_NBYTES,
    Choice,
    Choices,
    Problem,
    alignment,
    copies_of,
    needs_copy,
    read,
)
from pblas.backends.dtypes import E4M3, E5M2, FLOAT16, FLOAT32
from pblas.backends.push_engine import GemmModes
from pblas.errors import PblasWarning
from tests.common.gauge import NAMES, Array, dtype_of

SHAPES = ((7, 8, 9), (1, 8, 9), (7, 1, 9), (7, 8, 1), (1, 1, 1), (1, 8, 1), (7, 1, 1), (1, 1, 9), (9, 2, 3))
# Order "F" or "C", and elements of padding after each column or row.
LAYOUTS = (("F", 0), ("F", 3), ("C", 0), ("C", 2))
MARKS = ((False, False), (False, True), (True, False), (True, True))
POISON = -99


class Device:
    """The attributes of a CuPy array, over host memory."""

    def __init__(self, x: Array) -> None:
        self.host, self.shape, self.strides, self.dtype, self.ndim, self.size = (
            *(x, x.shape, x.strides, x.dtype, x.ndim, x.size),
        )
        self.data = SimpleNamespace(ptr=x.__array_interface__["data"][0])


def on_gpu(x: Array) -> Any:
    """A `Device` that stands for a CuPy array, which has no types."""
    return Device(x)


def stored(
    shape: tuple[int, int], dtype: np.dtype[Any], layout: tuple[str, int], batch: int | None = None, seed: int = 0
) -> Any:
    """Small integers in an order, with a gap after each column or row and after each matrix of a batch."""
    order, padding = layout
    m, n = shape if order == "F" else shape[::-1]
    memory = np.full((batch or 1, n * (m + padding) + padding), POISON, dtype)
    matrices = memory[:, : n * (m + padding)].reshape(batch or 1, n, m + padding)[:, :, :m]
    rng = np.random.default_rng(seed)
    values = rng.integers(-3, 4, matrices.shape)
    matrices[...] = values + 1j * rng.integers(-3, 4, matrices.shape) if dtype.kind == "c" else values
    view = matrices.swapaxes(1, 2) if order == "F" else matrices
    return on_gpu(view if batch else view[0])


def fortran(x: Any, shape: tuple[int, int], ld: int, offset: int) -> Array:
    """The matrix in Fortran's order `offset` elements after x's first, with a leading dimension."""
    (rows, columns), itemsize = shape, x.dtype.itemsize
    line = np.lib.stride_tricks.as_strided(x.host, (offset + (columns - 1) * ld + rows,), (itemsize,))
    return np.lib.stride_tricks.as_strided(line[offset:], shape, (itemsize, ld * itemsize))


def applied(trans: str, x: Array) -> Array:
    wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    return {"N": wide, "T": wide.T, "C": wide.T.conj()}[trans]


def multiply(x: Any, y: Any, z: Any, conj: tuple[bool, bool]) -> Problem:
    """Z := X Y as a Fortran library computes it from the problem alone."""
    problem, swapped = read(x, y, z, conj)
    a, b = (y, x) if swapped else (x, y)
    for i in range(problem.batch):
        op_a = applied(problem.transa, fortran(a, problem.stored_a, problem.lda, i * problem.stridea))
        op_b = applied(problem.transb, fortran(b, problem.stored_b, problem.ldb, i * problem.strideb))
        assert (op_a != POISON).all()
        assert (op_b != POISON).all()
        fortran(z, (problem.m, problem.n), problem.ldz, i * problem.stridez)[...] = op_a @ op_b
    return problem


@pytest.mark.parametrize("batch", [None, 1, 3])
@pytest.mark.parametrize("name", ["bfloat16", "float64", "complex64"])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_the_problem_is_the_product(name: str, m: int, n: int, k: int, batch: int | None) -> None:
    dtype = dtype_of(name)
    for layouts in itertools.product(LAYOUTS, repeat=3):
        x = stored((m, k), dtype, layouts[0], batch, 1)
        y = stored((k, n), dtype, layouts[1], batch, 2)
        for conj in MARKS:
            z = stored((m, n), dtype, layouts[2], batch, 3)
            x_, y_ = conjugated(x, y, z, conj)
            problem = multiply(x_, y_, z, (conj[0] and x_ is x, conj[1] and y_ is y))
            wide = [w.host.astype(np.complex128) for w in (x, y)]
            exact = np.matmul(*(w.conj() if c else w for w, c in zip(wide, conj, strict=True)))
            assert np.array_equal(z.host.astype(np.complex128), exact)
            assert problem.batch == (batch or 1)


def conjugated(x: Any, y: Any, z: Any, conj: tuple[bool, bool]) -> tuple[Any, Any]:
    """X and Y, replaced by a copy if the problem needs one."""
    copies = needs_copy(x, y, z, conj)
    if any(copies):
        with pytest.raises(AssertionError, match="conjugate it first"):
            read(x, y, z, conj)
    x_, y_ = (on_gpu(w.host.conj()) if copy else w for w, copy in zip((x, y), copies, strict=True))
    return x_, y_


def test_only_conjugated_complex_operands_need_copies() -> None:
    x, y, z = (stored((4, 4), np.dtype(np.complex64), layout) for layout in (("C", 0), ("F", 1), ("F", 0)))
    assert needs_copy(x, y, z, (True, True)) == (False, True)
    assert needs_copy(x, y, z, (True, False)) == needs_copy(x, y, z, (False, False)) == (False, False)
    x, y, z = (stored((4, 4), np.dtype(np.float32), ("F", 0)) for _ in range(3))
    assert needs_copy(x, y, z, (True, True)) == (False, False)
    assert read(x, y, z, (True, True)).problem.transa == "N"


def test_all_orders_are_one_problem() -> None:
    x, y, z = (stored(shape, np.dtype(np.float32), ("C", 0)) for shape in ((7, 9), (9, 8), (7, 8)))
    direct, transposed = read(x, y, z), read(on_gpu(y.host.T), on_gpu(x.host.T), on_gpu(z.host.T))
    assert direct.problem == dataclasses.replace(
        transposed.problem, aligna=direct.problem.aligna, alignb=direct.problem.alignb
    )
    assert (direct.swapped, transposed.swapped) == (True, False)


def test_an_operand_of_two_dimensions_takes_part_in_every_product() -> None:
    dtype = np.dtype(np.float64)
    x, y, z = (
        stored((7, 9), dtype, ("C", 2), None, 1),
        stored((9, 8), dtype, ("F", 0), 3, 2),
        stored((7, 8), dtype, ("F", 1), 3),
    )
    problem = multiply(x, y, z, (False, False))
    assert (problem.batch, problem.stridea) == (3, 0)
    assert np.array_equal(z.host, x.host @ y.host)


@pytest.mark.parametrize("order", "FC")
def test_vectors_with_stride_one_have_an_aligned_leading_dimension(order: str) -> None:
    dtype = dtype_of("bfloat16")
    x, y, z = (stored(shape, dtype, (order, 0)) for shape in ((1, 9), (9, 5), (1, 5)))
    problem, swapped = read(x, y, z)
    assert swapped
    assert (problem.m, problem.n, problem.transb) == (5, 1, "N")  # Z^T = Y^T X^T, columns throughout
    assert (problem.ldb, problem.ldz) == (16, 16)


def test_spans_cover_all_accessed_memory() -> None:
    x, y, z = (stored(shape, np.dtype(np.float32), ("F", 3), 2) for shape in ((7, 9), (9, 8), (7, 8)))
    assert read(x, y, z).problem.spans == tuple(
        (w.strides[0] + (w.shape[2] - 1) * w.strides[2]) // 4 + w.shape[1] for w in (x, y, z)
    )


@pytest.mark.parametrize(("m", "n", "count"), [(7, 8, 4), (1, 8, 3), (1, 1, 2)])
def test_relatives_are_problems_too(m: int, n: int, count: int) -> None:
    for layouts in itertools.product(LAYOUTS, repeat=3):
        shapes = ((m, 9), (9, n), (m, n))
        x, y, z = (stored(shape, np.dtype(np.float32), layout) for shape, layout in zip(shapes, layouts, strict=True))
        problem = read(x, y, z).problem
        relatives = set(problem.relatives())
        assert len(relatives) == count
        assert problem not in relatives
        for relative in relatives:
            assert relative.lda >= relative.stored_a[0]
            assert relative.ldb >= relative.stored_b[0]
            assert relative.ldz >= relative.m > 0 < relative.n


@pytest.mark.parametrize("offset", range(0, 64, 2))
def test_each_operand_has_its_own_alignment(offset: int) -> None:
    memory = np.zeros(256, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    x = on_gpu(memory[start : start + 8].view(np.float16).reshape(2, 2))
    y, z = (stored((2, 2), np.dtype(np.float16), ("C", 0)) for _ in range(2))
    expected = next(size for size in (16, 8, 4, 2) if offset % size == 0)
    assert read(x, y, z).problem.alignb == expected == alignment(offset)
    assert read(x, y, on_gpu(z.host.T)).problem.aligna == expected


@pytest.mark.parametrize("name", NAMES)
def test_fewer_bits_are_for_single_precision_only(name: str) -> None:
    x, y, z = (stored((2, 2), dtype_of(name), ("C", 0)) for _ in range(3))
    is_single = name in {"float32", "complex64"}
    assert read(x, y, z, modes=GemmModes(tf32=True)).problem.tf32 == is_single
    assert read(x, y, z, modes=GemmModes(float16=True)).problem.float16 == is_single


@pytest.fixture
def choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Choices:
    """Choices for one kind of GPU, with one entry; `test_tuning` covers files with other values."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    x, y, z = (stored(shape, np.dtype(np.float32), ("C", 0)) for shape in ((3, 4), (4, 5), (3, 5)))
    choices = Choices("NVIDIA H200", 132, 130100, 32 << 20)
    assert choices.path == tmp_path / "pblas" / "gemm-NVIDIA_H200-132sms-cublaslt130100-33554432.json"
    choices.entries[read(x, y, z).problem] = Choice(bytes(range(ALGORITHM_NBYTES)), 1e-5, 2e-5)
    choices.save()
    return choices


def again() -> Choices:
    """The choices as the next process reads them."""
    choices = Choices("NVIDIA H200", 132, 130100, 32 << 20)
    choices.load()
    return choices


def test_choices_are_read_as_they_were_written(choices: Choices) -> None:
    assert again().entries == choices.entries
    assert Choices("NVIDIA H200", 132, 130200, 32 << 20).path != choices.path


def aligned(shape: tuple[int, int], dtype: Any, order: Any, padding: int = 0) -> Any:
    """An array at a multiple of 16 bytes, with a gap after each line."""
    m, n = shape if order == "F" else shape[::-1]
    memory = np.zeros((m + padding) * n * dtype.itemsize + 16, np.uint8)
    start = -memory.__array_interface__["data"][0] % 16
    lines = memory[start : start + (m + padding) * n * dtype.itemsize].view(dtype).reshape(n, m + padding)[:, :m]
    return on_gpu(lines.T if order == "F" else lines)


@pytest.mark.parametrize("sizes", [*itertools.product((1, 15, 16, 48), (1, 16, 33), (1, 16, 40))])
def test_copies_of_8_bits_are_what_cublaslt_multiplies(sizes: tuple[int, int, int]) -> None:
    """X^T and Y along K, in lines of a multiple of 16 bytes; what fits is not copied."""
    m, n, k = sizes
    for orders in itertools.product("FC", repeat=3):
        for dtype_z in (FLOAT16, FLOAT32):
            x, y, z = (
                aligned(shape, dtype, order)
                for shape, dtype, order in zip(((m, k), (k, n), (m, n)), (E4M3, E5M2, dtype_z), orders, strict=True)
            )
            shapes = copies_of(x, y, z)
            left, right, result = (
                w if shape is None else aligned(shape, w.dtype, order)
                for w, shape, order in zip((x, y, z), shapes, ("C", "F", "C" if orders[2] == "C" else "F"), strict=True)
            )
            assert copies_of(left, right, result) == (None, None, None)
            problem, swapped = read(left, right, result)
            assert (problem.transa, problem.transb, problem.dtype) == ("T", "N", (E5M2 if swapped else E4M3).name)
            assert not any(length % 16 for length in (problem.m, problem.k, problem.lda, problem.ldb))
            assert not problem.ldz * dtype_z.itemsize % 16
            assert problem.aligna == problem.alignb == problem.alignz == 16
            if not any(length % 16 for length in sizes) and orders[:2] == ("C", "F"):
                assert shapes == (None, None, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [("m", "3"), ("m", True), ("dtype", 3), ("tf32", 1), ("unknown", 1), ("lda", None), ("algorithm", "00")],
)
def test_choices_of_wrong_types_are_rejected(choices: Choices, field: str, value: object) -> None:
    assert choices.path is not None
    content = json.loads(choices.path.read_text(encoding="utf-8"))
    (entry,) = content["choices"]
    (entry if field in entry else entry["problem"])[field] = value
    choices.path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.warns(PblasWarning, match="tuned products are ignored"):
        assert not again().entries

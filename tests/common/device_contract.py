"""The contract of `pblas.backends.device`: a case for every method, on small arrays, compared with NumPy.

A test of a device imports the two tests at the end and defines the fixture `on`.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import pytest

from pblas import Epilogue
from pblas.backends.cpu import random
from pblas.backends.cpu.exact_sums import value as rounded
from pblas.backends.device import Axis, Device, Programs, Staircase, Uplo
from pblas.backends.dtypes import DTYPES, FLOAT8, FLOAT32, STORED, Order, accumulator_dtype
from pblas.backends.pieces import PieceSizes
from pblas.backends.push_engine import GemmModes
from pblas.epilogues import parse
from tests.common.exact import expected
from tests.common.gauge import THRESHOLD, Array, entries, eps_of, gauge

Case = Callable[["On", np.dtype[Any], Order, int], None]
POISON = -99
N, K = 5, 3
UPLO: tuple[Uplo, ...] = ("L", "U")
ORDERS: tuple[Order, ...] = ("F", "C")
BOTH = False, True
AXES: tuple[Axis, Axis] = 0, 1
EXTREMES: tuple[Literal["max", "min"], ...] = "max", "min"
LAPACK_DTYPES = DTYPES[:4]
REAL = tuple(dtype for dtype in DTYPES if dtype.kind != "c")
CASES: dict[str, list[Any]] = {}
"""The cases of each method."""


@dataclass(frozen=True)
class On:
    """A device, and how to bring arrays to its memory."""

    device: Device
    new: Callable[[], Device]
    empty: Callable[[tuple[int, ...], np.dtype[Any], Order], Array]
    write: Callable[[Array, Array], None]
    read: Callable[[Array], Array]

    def put(self, host: Array, order: Order = "F") -> Array:
        """A copy of a host array on the device; a matrix lies inside a larger array."""
        shape = host.shape if host.ndim < 2 else (host.shape[0] + 2, host.shape[1] + 1)
        x = self.empty(shape, host.dtype, order)
        if host.ndim == 2:
            x = x[1 : 1 + host.shape[0], : host.shape[1]]
        self.write(host, x)
        return x

    def get(self, x: Array) -> Array:
        """A copy of a device array on the host, after all operations."""
        self.device.synchronize()
        return self.read(x)

    def integers(self, count: int) -> Array:
        """Zeros for pivots, or INFO."""
        return self.put(np.zeros(count, self.device.traits.pivot_dtype))


def case(*dtypes: np.dtype[Any], orders: str = "FC", sizes: tuple[int, ...] = (7, 0)) -> Callable[[Case], Case]:
    """Register a case of the method of the same name, for these dtypes, storage orders and numbers of rows."""

    def registered(function: Case) -> Case:
        grid = product(dtypes, orders, sizes)
        CASES[function.__name__] = [
            pytest.param(function, *values, id=f"{function.__name__}-{values[0]}-{values[1]}-{values[2]}")
            for values in grid
        ]
        return function

    return registered


def same(result: Array, expected: Array, units: float = 0) -> None:
    """Equal, or so many units of eps of the largest element apart."""
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    if not units:
        np.testing.assert_array_equal(result, expected)
    elif result.size:
        wide = np.clongdouble if result.dtype.kind == "c" else np.longdouble
        error = np.abs(result.astype(wide) - expected.astype(wide)).max()
        assert error <= units * eps_of(result.dtype) * max(1.0, float(np.abs(expected.astype(wide)).max()))


def triangle(m: int, dtype: np.dtype[Any], uplo: Uplo, *, unit: bool = False) -> tuple[Array, Array]:
    """A well conditioned triangle, and the same with NaN in the elements that must not be read."""
    t = (entries((m, m), dtype, 1) / max(1, m)).astype(dtype)
    np.fill_diagonal(t, 1 if unit else t.diagonal() + 2)
    inside = np.tri(m, dtype=bool) if uplo == "L" else np.tri(m, dtype=bool).T
    poisoned = np.where(inside, t, np.nan).astype(dtype)
    if unit:
        np.fill_diagonal(poisoned, np.nan)
    return np.where(inside, t, 0).astype(dtype), poisoned


def conjugated(x: Array, conj: bool) -> Array:
    return x.conj() if conj else x


# Memory


@case(*DTYPES, *FLOAT8, orders="F")
def empty(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    memory = on.device.empty(m * dtype.itemsize)
    assert (memory.shape, memory.dtype) == ((m * dtype.itemsize,), np.dtype(np.uint8))


@case(*DTYPES, *FLOAT8)
def array(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    x = on.device.array(on.device.empty(m * N * dtype.itemsize + 8), (m, N), dtype, order)
    assert (x.shape, x.dtype) == ((m, N), dtype)
    if m:
        assert x.strides == tuple(dtype.itemsize * step for step in ((1, m) if order == "F" else (N, 1)))


@case(*LAPACK_DTYPES, orders="F")
def scratch(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    x = on.device.scratch((m, N), dtype)
    assert (x.shape, x.dtype) == ((m, N), dtype)
    assert not m or x.strides == (dtype.itemsize, m * dtype.itemsize)


@case(*DTYPES)
def like(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    x = on.put(entries((m, N), np.dtype("float64"), 1), order)
    y = on.device.like(x, dtype)
    assert (y.shape, y.dtype) == ((m, N), dtype)
    assert not m or (y.strides[0] < y.strides[1]) == (order == "F")


@case(*DTYPES)
def take(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    host, rows = entries((m, N), dtype, 1), np.arange(m)[::2]
    for columns in (rows % N, np.minimum(rows // 2, N - 1), np.zeros_like(rows)):
        same(on.device.take(on.put(host, order), rows, columns), host[rows, columns])


@case(*DTYPES, *FLOAT8)
def pick(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    host = entries((m, N), dtype, 1)
    for rows, columns in some_places(m):
        picked = on.device.pick(on.put(host, order), rows, columns)
        same(on.get(picked), host[np.ix_(rows, columns)])
        z, expected = on.put(np.zeros_like(host), ORDERS[m % 2]), np.zeros_like(host)
        on.device.place(on.put(host, order), z, rows[::-1], columns, of=(rows, columns), conj=True)
        expected[np.ix_(rows[::-1], columns)] = conjugated(host[np.ix_(rows, columns)], dtype.kind == "c")
        same(on.get(z), expected)


@case(*DTYPES, *FLOAT8)
def place(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    host = entries((m, N), dtype, 1)
    values = entries((m, N), dtype, 2)
    for rows, columns in some_places(m):
        x, expected, z = values[: rows.size, : columns.size], host.copy(), on.put(host, order)
        repeated = np.broadcast_to(values[:1, :1], x.shape) if x.size else x
        for y, other in itertools.product((x, repeated), ORDERS):
            for source in (y, on.put(np.ascontiguousarray(y), other)):
                on.device.place(source, z, rows, columns, conj=other == "C")
                expected[np.ix_(rows, columns)] = conjugated(y, other == "C" and dtype.kind == "c")
                same(on.get(z), expected)
    z = on.put(host, order)
    on.device.place(values[:, :1] + np.zeros((1, N), dtype), z)
    same(on.get(z), values[:, :1] + np.zeros((1, N), dtype))


@case(*DTYPES, *FLOAT8)
def select(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    host, chosen = entries((m, N), dtype, 1), np.arange(m)[:, None] % 3 == np.arange(N)[None] % 2
    for kind in (np.dtype(bool), dtype):
        flags = np.where(chosen, 2, -0.0).astype(kind)
        for where in (flags, on.put(flags, ORDERS[m % 2])) if kind.kind != "b" else (flags,):
            places, values = on.device.select(on.put(host, order), where, with_places=True)
            assert places is not None, "they are asked for"
            assert np.array_equal(np.transpose(places), np.argwhere(chosen))
            same(values, host[chosen])
            same(on.device.select(on.put(host, order), where, with_places=False)[1], host[chosen])


def some_places(m: int) -> list[tuple[Array, Array]]:
    """Lists of rows and columns, with and without a distance."""
    every = np.arange(m), np.arange(N)
    return [every, (every[0][::-1], every[1][1::2]), (every[0][[4, 1, 5][: m // 2]], every[1][[3, 0, 1]])]


@case(*DTYPES)
def fill(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    host, rows = entries((m, N), dtype, 1), np.arange(m)[::2]
    x = on.put(host, order)
    on.device.fill(x, rows, rows % N, 3.0)
    host[rows, rows % N] = 3
    same(on.get(x), host)


@case(*STORED)
def fill_whole(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    for value in (0, -0.0, 3.0):
        x = on.put(entries((m, N), dtype, 1), order)
        on.device.fill_whole(x[:, 1:], value)
        expected = entries((m, N), dtype, 1)
        expected[:, 1:] = value
        same(on.get(x), expected)
        assert (np.signbit(on.get(x)[:, 1:].real.astype(np.float64)) == (str(value)[0] == "-")).all()


@case(*STORED)
def randomize(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    rows, columns = 3 * np.arange(m) + (1 << 40), np.arange(N)[::-1]
    for normal in (False, True):
        x = on.put(np.zeros((m, N), dtype), order)
        on.device.randomize(x, rows, columns, -5, normal=normal)
        same(on.get(x), random.entries(rows[:, None], columns[None], -5, dtype, normal=normal))


@case(*DTYPES)
def download(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    host = entries((m, N), dtype, 1)
    same(on.device.download(on.put(host, order)), host)


@case(*DTYPES)
def upload(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    x, host = on.put(np.full((m, N), POISON, dtype), order), entries((m, N), dtype, 1)
    on.device.upload(host, x)
    same(on.get(x), host)


@case(*DTYPES)
def to_host(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    host = entries((m, N), dtype, 1)
    same(on.device.to_host(on.put(host, order)), host)


@case(*DTYPES)
def from_host(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    z, host = on.put(np.full((m, N), POISON, dtype), order), entries((m, N), dtype, 1)
    on.device.from_host(host, z)
    same(on.get(z), host)


# Elementwise


@case(*DTYPES)
def assign(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    host = entries((m, N), dtype, 1)
    for target, other in product({dtype, accumulator_dtype(dtype)}, ORDERS):
        z = on.put(np.full((m, N), POISON, target), other)
        on.device.assign(on.put(host, order), z)
        same(on.get(z), host.astype(target))
        x = on.put(host.astype(target), order)
        on.device.assign(x, z := on.put(host, other))
        same(on.get(z), host)


@case(*DTYPES)
def scale(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    host = entries((m, N), dtype, 1)
    for beta in (0.0, 1.0, -0.5):
        z = on.put(host if beta else np.full((m, N), np.nan, dtype), order)
        on.device.scale(beta, z)
        same(on.get(z), (beta * host).astype(dtype) if beta else np.zeros((m, N), dtype))


@case(*DTYPES)
def add_scaled(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    host, old, unread = entries((m, N), dtype, 1), entries((m, N), dtype, 2), np.full((m, N), np.nan, dtype)
    for alpha, beta, other in product((0.0, 1.0, -0.5), (0.0, 1.0, 2.0), ORDERS):
        z = on.put(old if beta else unread, other)
        on.device.add_scaled(alpha, on.put(host if alpha else unread, order), beta, z)
        wide: Any = np.clongdouble if dtype.kind == "c" else np.longdouble
        same(on.get(z), (alpha * host.astype(wide) + beta * old.astype(wide)).astype(dtype), 2)


@case(*LAPACK_DTYPES)
def conjugate(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    host = entries((m, N), dtype, 1)
    z = on.put(host, order)
    on.device.conjugate(z)
    same(on.get(z), host.conj())


@case(*DTYPES)
def evaluate(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    x, y, row = (entries(shape, dtype, i) for i, shape in enumerate(((m, N), (m, N), (1, N))))
    out, compute = on.put(np.full((m, N), POISON, dtype), order), accumulator_dtype(dtype)
    operands = {"x": on.put(x, order), "y": on.put(y, "C"), "row": on.put(row), "s": 2.0}
    on.device.evaluate(parse("x * s + y - row"), operands, compute, out)
    same(on.get(out), (x.astype(compute) * 2 + y - row).astype(dtype), 4)


@case(*DTYPES)
def combining(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    x, old = entries((m, N), dtype, 1), entries((m, N), dtype, 2)
    out = on.put(old, order)
    put = on.device.combining(parse("x * s + y"), {"x": out, "s": 0.5}, "y", accumulator_dtype(dtype), out)
    if put is not None:
        put(on.put(x, order), out)
        same(on.get(out), (old * dtype.type(0.5) + x).astype(dtype), 2)
    else:
        assert dtype.itemsize == 2 or on.device.traits.gpu


@case(*REAL, orders="C")
def finish(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    x, bias, residual = entries((m, N), dtype, 1), entries((1, N), dtype, 2)[0], entries((m, N), dtype, 3)
    total, out = accumulator_dtype(dtype), on.put(np.full((m, N), POISON, dtype), order)
    on.device.finish(Epilogue("relu(x) + b"), on.put(x, order), {"b": on.put(bias)}, out)
    same(on.get(out), (np.maximum(x.astype(total), 0) + bias.astype(total)).astype(dtype), 2)
    added = on.empty((m, N), dtype, "C")
    on.write(residual, added)
    y = on.empty((m, N), dtype, "C")
    on.write(x, y)
    on.device.finish(Epilogue("rmsnorm", eps=0.5), y, {"residual": added, "weight": on.put(bias), "eps": 0.5}, y)
    sums = x.astype(total) + residual.astype(total)
    same(on.get(added), sums.astype(dtype))
    means = np.mean(np.square(sums), axis=1, keepdims=True)
    same(on.get(y), (sums / np.sqrt(means + total.type(0.5)) * bias.astype(total)).astype(dtype), 8)


@case(*DTYPES)
def add_rows(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    host, out = entries((m, N), dtype, 1), on.put(np.full(N, POISON, dtype))
    on.device.add_rows(on.put(host, order), out)
    same(on.get(out), host.astype(accumulator_dtype(dtype)).sum(0).astype(dtype), 2 * (m + 1))


@case(*(dtype for dtype in REAL if dtype.itemsize <= 4))
def largest(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    host, out = entries((m, N), dtype, 1), on.put(np.full(1, POISON, FLOAT32))
    on.device.largest(on.put(host, order), out)
    same(on.get(out), np.abs(host).max(initial=0, keepdims=True)[0].astype(FLOAT32))
    if m:
        host[1, 2] = np.nan
        on.device.largest(on.put(host, order), out)
        assert np.isnan(on.get(out)).all()


@case(*DTYPES, sizes=(7,))
def reduce(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    host = entries((m, N), dtype, 1)
    wide = host.astype(accumulator_dtype(dtype))
    real = wide.real.dtype
    x = on.put(host, order)
    for axis in (None, 0, 1):
        count = {None: m * N, 0: m, 1: N}[axis]
        same(on.device.reduce("sum", x, axis, order, real), np.atleast_1d(wide.sum(axis)), 2 * count)
        absolute = np.abs(wide)
        same(on.device.reduce("abs_sum", x, axis, order, real), np.atleast_1d(absolute.sum(axis)), 2 * count)
        same(on.device.reduce("abs_max", x, axis, order, real), np.atleast_1d(absolute.max(axis)), 2)
        squares = np.atleast_1d(np.square(absolute / 2).sum(axis))
        same(on.device.reduce("squares", x, axis, order, real, real.type(2)), squares, 4 * count)
        exact = np.abs(host.astype(np.complex128)) ** 2  # norms over several ranks add in float64
        same(on.device.reduce("squares", x, axis, order, np.dtype(np.float64)), exact.sum(axis).ravel(), 4 * count)
        if dtype.kind != "c":
            same(on.device.reduce("max", x, axis, order, real), np.atleast_1d(wide.max(axis)))
            same(on.device.reduce("min", x, axis, order, real), np.atleast_1d(wide.min(axis)))
    across, along = AXES if order == "C" else AXES[::-1]
    shape = (16, 90) if order == "F" else (90, 16)
    long = entries(shape, dtype, 2)
    wide, x = long.astype(accumulator_dtype(dtype)), on.empty(shape, dtype, order)
    on.write(long, x)
    for y, right in ((x, wide), (on.put(long, order), wide), (x[:3, :80].T, wide[:3, :80].T)):
        axis = across if y.shape == shape else along
        same(on.device.reduce("sum", y, axis, order, real), right.sum(axis), 200)
        same(on.device.reduce("squares", y, axis, order, real), np.square(np.abs(right)).sum(axis), 200)
        same(on.device.reduce("abs_max", y, axis, order, real), np.abs(right).max(axis), 2)
    for shape in ((3, 30001), (30000, 2)):  # lines that several thread blocks of a GPU add
        long = entries(shape, dtype, 3)
        wide, x = long.astype(accumulator_dtype(dtype)), on.put(long, order)
        part = (slice(None, None, 2), slice(None))[:: 1 if order == "C" else -1]
        for y, right in ((x, wide), (x[part], wide[part])):
            for axis in (None, *AXES):
                exact = np.atleast_1d((np.abs(right.astype(np.complex128)) ** 2).sum(axis))
                same(on.device.reduce("squares", y, axis, order, np.dtype(np.float64)), exact, 4 * long.size)
                same(on.device.reduce("abs_max", y, axis, order, real), np.atleast_1d(np.abs(right).max(axis)), 2)


@case(*REAL, sizes=(7,))
def arg_reduce(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    host = entries((m, N), dtype, 1)
    host[4, 2] = host[2, 4] = 3
    wide, x = host.astype(accumulator_dtype(dtype)), on.put(host, order)
    for axis in (0, 1):
        values, places = on.device.arg_reduce("max", x, axis, order)
        same(values, wide.max(axis))
        assert (places == wide.argmax(axis)).all()
    values, places = on.device.arg_reduce("max", x, None, order)
    assert (values.tolist(), places.tolist()) == ([3], [2, 4])
    assert on.device.arg_reduce("min", x, None, order)[0].tolist() == [wide.min()]
    for shape in ((600, 8), (8, 600), (1, 7), (7, 1)):
        for special in ({}, {(5, 6): np.nan, (6, 5): np.nan}, {(7, 7): -np.inf, (0, 0): np.inf}):
            host = np.ones(shape, dtype)
            for (i, j), value in special.items():
                host[min(i, shape[0] - 1), min(j, shape[1] - 1)] = value
            x = on.empty(shape, dtype, order)
            on.write(host, x)
            for kind in EXTREMES:
                wide = host.astype(accumulator_dtype(dtype))
                flat = int(wide.argmax() if kind == "max" else wide.argmin())
                for y in (x, on.put(host, order)):
                    values, places = on.device.arg_reduce(kind, y, None, order)
                    assert places.tolist() == [*divmod(flat, shape[1])]
                    assert np.array_equal(values, host.ravel()[flat : flat + 1].astype(values.dtype), equal_nan=True)


@case(*DTYPES, sizes=(7,))
def dot(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    x, y, total = entries((m, N), dtype, 1), entries((m, N), dtype, 2), accumulator_dtype(dtype)
    for conj, other in product(BOTH, ORDERS):
        result = on.device.dot(on.put(x, order), on.put(y, other), order, total, conj=conj)
        same(result, np.atleast_1d((conjugated(x, conj).astype(total) * y.astype(total)).sum()), 2 * m * N)


# Level 3


@case(*DTYPES)
def gemm(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    x, y, total = entries((m, K), dtype, 1), entries((K, N), dtype, 2), accumulator_dtype(dtype)
    old = entries((m, N), total, 3)
    is_complex = dtype.kind == "c"
    for conj, beta, other in product(product(BOTH, BOTH) if is_complex else [(False, False)], (0.0, -0.5), ORDERS):
        z = on.put(old if beta else np.full((m, N), np.nan, total), other)
        on.device.gemm(2.0, on.put(x, order), on.put(y, other), beta, z, conj=conj)
        left, right = conjugated(x, conj[0]), conjugated(y, conj[1])
        assert gauge(on.get(z), left, right, old, alpha=2.0, beta=beta) <= THRESHOLD


@case(*DTYPES, sizes=(7,))
def exact_sums(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    """The sums of integers that are far apart: each is exact, so any order gives it."""
    wide, scales = np.dtype(np.float64), np.where(np.arange(N) % 2, 1, 2.0**-6)
    numbers = entries((m, N), np.dtype(np.complex128) if dtype.kind == "c" else wide, 1)
    x = ((8 * numbers).round() * scales).astype(dtype)
    parts = [x.real, x.imag] if dtype.kind == "c" else [x]
    itemsize = dtype.itemsize // len(parts)
    for axis in (None, 0, 1):
        sums = on.device.exact_sums("sum", on.put(x, order), axis)
        for part, bins in zip(parts, np.split(sums, len(parts)), strict=True):
            exact = np.atleast_1d(part.astype(wide).sum(axis))
            assert [rounded("sum", itemsize, column) for column in bins.T] == exact.tolist()
        squares = on.device.exact_sums("squares", on.put(x, order), axis)
        terms = np.sum([np.square(part.astype(wide)) for part in parts], axis=0)
        exact = np.sqrt(np.atleast_1d(terms.sum(axis)))
        assert [rounded("squares", itemsize, column) for column in squares.T] == exact.tolist()


@case(np.dtype("float64"), FLOAT32)
def exact_gemm(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    x, y = (entries(shape, dtype, seed) for seed, shape in enumerate(((m, 2 * K), (2 * K, N))))
    halves = [expected(x[:, part], y[part]) for part in (slice(K), slice(K, 2 * K))]
    for transposed, other in product(BOTH, ORDERS):
        products = on.device.exact_gemm(PieceSizes(K, (m, N), 2, dtype, transposed), on.device.empty)
        z = on.put(np.full((m, N), np.nan, dtype), other)
        products.gemm(1.0, on.put(x, order), on.put(y, other), 0.0, z)
        same(on.get(z), halves[0] + halves[1])


@case(*DTYPES)
def piece_gemm(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    x, y, total = entries((m, 2 * K), dtype, 1), entries((2 * K, N), dtype, 2), accumulator_dtype(dtype)
    for transposed, other in product(BOTH, ORDERS):
        sizes = PieceSizes(K, (m, N), 2, total, transposed)
        products = on.device.piece_gemm(sizes, dtype, K, on.device.empty)
        z = on.put(np.full((m, N), np.nan, total), other)
        products.gemm(1.0, on.put(x, order), on.put(y, other), 0.0, z)
        assert gauge(on.get(z), x, y) <= THRESHOLD


@case(*DTYPES, orders="F")
def fingerprint(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    assert int(on.device.fingerprint(dtype), 16) >= 0
    assert on.device.fingerprint(dtype) == on.device.fingerprint(dtype)


@case(*DTYPES)
def finish_sum(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    total = accumulator_dtype(dtype)
    host, old, unread = entries((m, N), total, 1), entries((m, N), dtype, 2), np.full((m, N), np.nan, dtype)
    for alpha, beta, other in product((1.0, -0.5), (0.0, 1.0, 2.0), ORDERS):
        z = on.put(old if beta else unread, other)
        on.device.finish_sum(alpha, on.put(host, order), beta, z)
        same(on.get(z), (alpha * host + beta * old).astype(dtype))


@case(*LAPACK_DTYPES, orders="F")
def gram(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    x = entries((m, N), dtype, 1)
    assert gauge(on.device.gram(on.put(x)), x.conj().T, x) <= THRESHOLD


@case(*DTYPES)
def multiply_vector(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    x, v, total = entries((m, N), dtype, 1), entries((N, 1), dtype, 2), accumulator_dtype(dtype)
    for conj in BOTH if dtype.kind == "c" else (False,):
        result = on.device.multiply_vector(on.put(x, order), v[:, 0], total, conj=conj)
        assert result.dtype == total
        assert gauge(result[:, None], conjugated(x, conj), v) <= THRESHOLD


@case(*LAPACK_DTYPES)
def add_product(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    x, y, old = entries((m, K), dtype, 1), entries((K, N), dtype, 2), entries((m, N), dtype, 3)
    z = on.put(old, order)
    on.device.add_product(x, y, z)
    assert gauge(on.get(z), x, y, old, beta=1.0) <= THRESHOLD


def staircase(m: int, hermitian: bool) -> tuple[Staircase, Array]:
    """The elements on and below the diagonal, of which the second one is real, and their mask."""
    first = np.minimum(np.arange(N), m)
    diagonal = np.array([j if hermitian and j == 1 < m else -1 for j in range(N)])
    return Staircase(first, np.full(N, m), diagonal), np.arange(m)[:, None] >= np.arange(N)


@case(*DTYPES, orders="F")
def multiply_part(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    x, total = entries((m, N), dtype, 1), accumulator_dtype(dtype)
    for hermitian, transposed in itertools.product(BOTH, BOTH):
        part, mask = staircase(m, hermitian)
        v = entries((m if transposed else N, 1), total, 2)
        used = np.where(mask, x, dtype.type(0)).astype(total)
        used[1:2, 1:2] = used[1:2, 1:2].real if hermitian else used[1:2, 1:2]
        for mode, y in {
            "": used,
            "conj": used.conj(),
            "abs": abs(used),
            "abs1": abs(used.real) + abs(used.imag),
        }.items():
            of, w = (total, v) if mode in ("", "conj") else (y.dtype, v.real)
            result = on.device.multiply_part(on.put(x, order), part, w[:, 0], of, mode, transposed=transposed)
            assert result.dtype == of
            assert gauge(result[:, None], y.T if transposed else y, w) <= THRESHOLD


@case(*LAPACK_DTYPES, orders="F")
def multiply_both(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    x = entries((m, N), dtype, 1)
    v, w = entries((N, 1), dtype, 2), entries((m, 1), dtype, 3)
    v_there, w_there = (on.put(z, order)[:, 0] for z in (v, w))
    for hermitian, conj in itertools.product(BOTH, BOTH):
        part, mask = staircase(m, hermitian)
        strict = Staircase(part.first + 1, part.stop, part.diagonal)
        below = mask & (np.arange(m)[:, None] > part.first)
        used, others = (np.where(kept, x, dtype.type(0)) for kept in (mask, below))
        if hermitian:
            used[1:2, 1:2], others[1:2, 1:2] = used[1:2, 1:2].real, others[1:2, 1:2].real
        others = others.conj() if conj else others
        modes = ["", "conj" * conj]
        rows, columns = on.device.multiply_both(on.put(x, order), (part, strict), v_there, w_there, dtype, modes)
        assert gauge(on.get(rows[:, None]), used, v) <= THRESHOLD
        assert gauge(on.get(columns[:, None]), others.T, w) <= THRESHOLD


@case(*LAPACK_DTYPES, orders="F")
def update_part(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    x, y, old = entries((m, K), dtype, 1), entries((K, N), dtype, 2), entries((m, N), dtype, 3)
    part, mask = staircase(m, True)
    z = on.put(old, order)
    on.device.update_part(z, part, x, y)
    expected = np.where(mask, old + x @ y, old)
    expected[1:2, 1:2] = expected[1:2, 1:2].real
    np.testing.assert_allclose(on.get(z), expected, rtol=0, atol=100 * eps_of(dtype))


def whole_products(dtype: np.dtype[Any], order: Order, m: int) -> Iterator[tuple[str, Uplo, str, bool, Array, Array]]:
    """The kinds of `multiply_whole` with their options, the array in memory, and the matrix that is multiplied."""
    for kind, uplo, trans, unit in product(("gemv", "symv", "hemv", "trmv"), UPLO, "NTC", BOTH):
        t, poisoned = triangle(m, dtype, uplo, unit=unit)
        flipped = t.conj().T if kind == "hemv" else t.T
        strict = flipped * (1 - np.eye(m, dtype=dtype))
        full = {
            "gemv": entries((m, N), dtype, 4),
            "trmv": t,
            "symv": t + strict,
            "hemv": t - 1j * np.diag(t.diagonal().imag) + strict if dtype.kind == "c" else t + strict,
        }[kind].astype(dtype)
        stored = full if kind == "gemv" else poisoned
        is_plain = kind in ("gemv", "trmv") or (trans == "N" and not unit)
        conjugates = dtype.kind == "c" and order == "C" and (kind == "hemv" or trans == "C")
        if is_plain and not conjugates and (kind != "gemv" or (uplo == "L" and not unit)):
            yield kind, uplo, trans, unit, stored, {"N": full, "T": full.T, "C": full.conj().T}[trans]


@case(*LAPACK_DTYPES, sizes=(7, 1))
def multiply_whole(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    alpha, beta = dtype.type(1.5), dtype.type(-0.5)
    for kind, uplo, trans, unit, stored, full in whole_products(dtype, order, m):
        options: Any = {"uplo": uplo, "trans": trans, "unit": unit}
        x, old = entries((full.shape[1], 1), dtype, 2), entries((len(full), 1), dtype, 3)
        for place in ("new", "y", "x", "x without y") if len(full) == len(x) else ("new", "y"):
            right, y = on.put(x, order), on.put(old, ORDERS[place == "y"])
            out = {"new": on.put(np.full_like(old, np.nan)), "y": y}.get(place, right)
            if kind == "trmv":
                on.device.multiply_whole(kind, 1, on.put(stored, order), right, 0, None, out, **options)
                assert gauge(on.get(out), full, x) <= THRESHOLD
            elif place == "x without y":
                on.device.multiply_whole(kind, alpha, on.put(stored, order), right, 0, None, out, **options)
                assert gauge(on.get(out), full, x, alpha=alpha) <= THRESHOLD
            else:
                on.device.multiply_whole(kind, alpha, on.put(stored, order), right, beta, y, out, **options)
                assert gauge(on.get(out), full, x, old, alpha=alpha, beta=beta) <= THRESHOLD


@case(*LAPACK_DTYPES, sizes=(7, 1))
def update_whole(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    names = ("syr", "syr2") if dtype.kind != "c" else ("geru", "gerc", "syr", "her", "syr2", "her2")
    for name, uplo, inside in product(("ger", *names), UPLO, BOTH):
        conj = name in ("gerc", "her", "her2")
        if (name == "ger" and dtype.kind == "c") or (conj and order == "C") or (name[:2] == "ge" and uplo == "U"):
            continue
        n = N if name.startswith("ge") else m
        x, y, old = entries((m, 1), dtype, 1), entries((n, 1), dtype, 2), entries((m, n), dtype, 3)
        a = on.put(old, order)
        left, right = a[:, :1] if inside else on.put(x, order), on.put(y, ORDERS[inside])
        x, alpha = old[:, :1] if inside else x, dtype.type(0.5)
        if name in ("syr", "her"):
            y, right = x, left
        on.device.update_whole(name, alpha, left, right, a, uplo=uplo)
        change = alpha * x @ conjugated(y, conj).T
        if name.endswith("2"):
            change = change + alpha * y @ conjugated(x, conj).T
        mask = np.ones((m, n), bool) if name.startswith("ge") else np.tri(m, dtype=bool)
        mask = mask.T if uplo == "U" else mask
        expected = np.where(mask, old + change, old)
        if name.startswith("her"):
            np.fill_diagonal(expected, expected.diagonal().real)
        np.testing.assert_allclose(on.get(a), expected, rtol=0, atol=100 * eps_of(dtype))


@case(*LAPACK_DTYPES, orders="F")
def subtract_square(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    n = min(m, N)
    x, old = entries((m, K), dtype, 1), entries((m, n), dtype, 2)
    np.fill_diagonal(old, old.diagonal().real)
    z, inside = on.put(old), np.tri(m, n, dtype=bool)
    on.device.subtract_square(on.put(x), z)
    result = on.get(z)
    same(result[~inside], old[~inside])
    exact = old - x @ x[:n].conj().T
    assert gauge(np.where(inside, result, exact), x, x[:n].conj().T, old, alpha=-1.0, beta=1.0) <= THRESHOLD


@case(*LAPACK_DTYPES)
def trsm(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    b = entries((m, N), dtype, 2)
    for uplo, unit, conj, other in product(UPLO, BOTH, BOTH, ORDERS):
        t, poisoned = triangle(m, dtype, uplo, unit=unit)
        z = on.put(b, other)
        on.device.trsm(on.put(poisoned, order), z, uplo=uplo, unit=unit, conj=conj)
        assert gauge(b, conjugated(t, conj), on.get(z)) <= THRESHOLD


@case(*LAPACK_DTYPES)
def trmm(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    x = entries((m, N), dtype, 2)
    for uplo, unit, conj, other in product(UPLO, BOTH, BOTH, ORDERS):
        t, poisoned = triangle(m, dtype, uplo, unit=unit)
        z = on.put(np.full((m, N), np.nan, dtype), other)
        on.device.trmm(2.0, on.put(poisoned, order), on.put(x, other), z, uplo=uplo, unit=unit, conj=conj)
        assert gauge(on.get(z), conjugated(t, conj), x, alpha=2.0) <= THRESHOLD


@case(*DTYPES, orders="F")
def multiply_add(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    for rows, beta in product(
        (m, 1046) if m and dtype.itemsize == 2 else (m,), (0.0, -0.5)
    ):  # of 16 bits also in blocks
        x, y, z = entries((rows, K), dtype, 1), entries((K, N), dtype, 2), on.put(np.full((rows, N), np.nan, dtype))
        old = entries((rows, N), dtype, 3)
        on.device.multiply_add(2.0, on.put(x), on.put(y), beta, on.put(old) if beta else None, z)
        assert gauge(on.get(z), x, y, old, alpha=2.0, beta=beta) <= THRESHOLD
        left, square = entries((rows, rows), dtype, 3), on.put(np.full((rows, rows), np.nan, dtype))
        old = ((left + left.conj().T) / 2).astype(dtype)
        on.device.multiply_add(2.0, on.put(x), None, beta, on.put(old) if beta else None, square)
        result = on.get(square)
        same(result, result.conj().T)
        assert gauge(result, x, x.conj().T, old, alpha=2.0, beta=beta) <= THRESHOLD
    for rows, beta in product((m, 1048) if m and dtype.itemsize == 2 else (m,), (0.0, -0.5)):
        left, right, old = (circulant(rows, dtype, number) for number in (1, 2, 3))
        square = on.put(np.full((rows, rows), np.nan, dtype))
        given = on.put(left), on.put(right), beta, on.put(old) if beta else None
        on.device.multiply_add(2.0, *given, square, symmetric=True)
        assert gauge(on.get(square), left, right, old, alpha=2.0, beta=beta) <= THRESHOLD


def circulant(n: int, dtype: np.dtype[Any], number: int) -> Array:
    """A symmetric circulant matrix with 9 diagonals, all of which commute."""
    distances = np.minimum(*(np.subtract.outer(np.arange(n), np.arange(n)) * sign % max(n, 1) for sign in (1, -1)))
    values = np.zeros(n + 5)
    values[:5] = entries((5, 1), np.dtype(np.float64), number)[:, 0]
    return values[distances].astype(dtype)


@case(*DTYPES)
def normalize(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    """Also of elements whose squares overflow or vanish."""
    wide = np.dtype(np.result_type(dtype if dtype.kind == "c" else np.float64, np.float64))
    for size in (1.0, float(np.finfo(accumulator_dtype(dtype)).max) ** 0.7 if dtype.itemsize > 2 else 100.0, 1e-4, 0.0):
        x = (entries((m, N), dtype, 1) * np.asarray(size).astype(accumulator_dtype(dtype))).astype(dtype)
        given, z = on.put(x, order), on.put(np.full((m, N), np.nan, dtype), order)
        exact = x.astype(wide) / (np.abs(x.astype(wide)).max(initial=0) or 1)
        exact /= np.linalg.norm(exact) or 1
        for out in (z, given):
            on.device.normalize(given, out)
            assert np.abs(on.get(out).astype(wide) - exact).max(initial=0) <= 8 * eps_of(dtype)


def rank_update(on: On, dtype: np.dtype[Any], order: Order, m: int, *, terms: int) -> None:
    """The triangles of a rank-k update of one or two terms."""
    x, y, old = entries((m, K), dtype, 1), entries((m, K), dtype, 2), entries((m, m), dtype, 3)
    np.fill_diagonal(old, old.diagonal().real)
    for uplo, conj, hermitian, beta, other in product(UPLO, BOTH, BOTH, (0.0, -0.5), ORDERS):
        inside = np.tri(m, dtype=bool) if uplo == "L" else np.tri(m, dtype=bool).T
        z = on.put(np.where(inside & (beta != 0), old, np.nan).astype(dtype), other)
        left, right = conjugated(x, conj), conjugated(y, conj)
        if terms == 1:
            on.device.syrk(2.0, on.put(x, order), beta, z, uplo=uplo, conj=conj, hermitian=hermitian)
            a, b = left, conjugated(left, hermitian).T
        else:
            both = (conj, conj)
            on.device.syr2k(2.0, on.put(x, order), on.put(y, order), beta, z, uplo=uplo, conj=both, hermitian=hermitian)
            a = np.concatenate((left, right), 1)
            b = conjugated(np.concatenate((right, left), 1), hermitian).T
        result = on.get(z)
        assert np.isnan(result[~inside]).all(), "the other triangle"
        exact = (2 * a @ b + beta * old).astype(dtype)
        assert gauge(np.where(inside, result, exact), a, b, old, alpha=2.0, beta=beta) <= THRESHOLD


@case(*LAPACK_DTYPES)
def syrk(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    rank_update(on, dtype, order, m, terms=1)


@case(*LAPACK_DTYPES)
def syr2k(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    rank_update(on, dtype, order, m, terms=2)


# LAPACK


@case(*LAPACK_DTYPES)
def solve_factored(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    b = entries((m, N), dtype, 2)
    for unit, conj in product(BOTH, BOTH):
        t, poisoned = triangle(m, dtype, "L", unit=unit)
        z = on.put(b, order)
        on.device.solve_factored(on.put(poisoned), z, unit=unit, conj=conj)
        assert gauge(b, conjugated(t, conj), on.get(z)) <= THRESHOLD


@case(*LAPACK_DTYPES, orders="F")
def lower(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    host = entries((m, m), dtype, 1)
    x = on.put(host)
    on.device.lower(x)
    expected = np.tril(host)
    np.fill_diagonal(expected, expected.diagonal().real)
    same(on.get(x), expected)


@case(*LAPACK_DTYPES, orders="F")
def unit_lower(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    host, z = entries((m, N), dtype, 1), on.put(np.full((m, N), POISON, dtype))
    on.device.unit_lower(on.put(host), z)
    same(on.get(z), np.tril(host, -1) + np.eye(m, N, dtype=dtype))


@case(*LAPACK_DTYPES, orders="F")
def cholesky(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    a = entries((m, m), dtype, 1)
    a = (a @ a.conj().T + 2 * np.eye(m)).astype(dtype)
    x, info = on.put(np.where(np.tri(m, dtype=bool), a, POISON).astype(dtype)), on.integers(1)
    on.device.cholesky(x, info)
    factor = np.tril(on.get(x))
    same(factor @ factor.conj().T, a, 4 * (m + 1))
    assert on.get(info)[0] == 0
    for wrong in (-1.0, np.nan) if m else ():
        a[3, 3] = wrong
        on.device.cholesky(on.put(a), info := on.integers(1))
        assert on.get(info)[0] == 4


@case(*LAPACK_DTYPES, orders="F")
def lu(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    for n in (N, 9):
        a, count = entries((m, n), dtype, 1), min(m, n)
        x, pivots, info = on.put(a), on.integers(count), on.integers(1)
        on.device.lu(x, pivots, info)
        factors, permuted = on.get(x), exchanged(a, on.get(pivots))
        left, right = np.tril(factors, -1)[:, :count] + np.eye(m, count, dtype=dtype), np.triu(factors)[:count]
        same((left @ right).astype(dtype), permuted, 8 * (count + 1))
        assert on.get(info)[0] == 0
        assert (np.abs(left) <= (1 if dtype.kind != "c" else 1.5)).all(), "partial pivoting"
    if m:
        a[:, 2] = 0
        on.device.lu(on.put(a), on.integers(count), info := on.integers(1))
        assert on.get(info)[0] == 3


def exchanged(x: Array, pivots: Array, start: int = 0, *, backward: bool = False) -> Array:
    """X after the exchanges of its rows."""
    x, order = x.copy(), range(start, len(pivots))
    for i in reversed(order) if backward else order:
        x[[i, pivots[i] - 1]] = x[[pivots[i] - 1, i]]
    return x


@case(*LAPACK_DTYPES, orders="F")
def swap_rows(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    host, pivots = entries((m, N), dtype, 1), np.array([3, 7, 3, 6][: m and 4], np.intc)
    own = on.put(pivots.astype(on.device.traits.pivot_dtype))
    for numbers, start, backward in product((pivots, own), (0, 2), BOTH):
        x = on.put(host)
        on.device.swap_rows(x, numbers, start, backward=backward)
        same(on.get(x), exchanged(host, pivots, start, backward=backward))


def whole_q(v: Array, t: Array) -> Array:
    """I - V T V^H, for reflectors as `qr` leaves them."""
    m, k = len(v), len(t)
    unit = np.tril(v, -1)[:, :k] + np.eye(m, k, dtype=v.dtype)
    q: Array = np.eye(m, dtype=v.dtype) - unit @ np.triu(t) @ unit.conj().T
    return q


def factored(on: On, a: Array) -> tuple[Array, Array]:
    """A after `qr` in one block, and its T, on the device."""
    count = min(a.shape)
    x, t = on.put(a), on.put(np.full((count, count), POISON, a.dtype))
    on.device.qr(x, t)
    return x, t


@case(*LAPACK_DTYPES, orders="F")
def qr(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    a = entries((m, N), dtype, 1)
    x, t = factored(on, a)
    factors, triangles = on.get(x), on.get(t)
    assert not np.tril(triangles, -1).any()
    q = whole_q(factors, triangles)
    same(q @ q.conj().T, np.eye(m, dtype=dtype), 8 * (m + 1))
    same(q @ np.triu(factors), a, 8 * (m + 1))


@case(*LAPACK_DTYPES, orders="F")
def multiply_q(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    v, t = factored(on, entries((m, K), dtype, 1)) if m else (on.put(np.zeros((0, 0), dtype)),) * 2
    host, q = entries((m, N), dtype, 2), whole_q(on.get(v), on.get(t))
    for adjoint, conj in product(BOTH, BOTH):
        c = on.put(host)
        on.device.multiply_q(v, t, c, adjoint=adjoint, conj=conj)
        same(on.get(c), conjugated(q.conj().T if adjoint else q, conj) @ host, 8 * (m + 1))


def stacked(on: On, m: int, dtype: np.dtype[Any], *, triangular: bool) -> tuple[Array, Array, Array, Array]:
    """R' with the rest of R, V and T of two matrices one below the other, on the device, and the matrices."""
    r, b = entries((N, N), dtype, 1), entries((min(m, N) if triangular else m, N), dtype, 2)
    x, y, t = on.put(r), on.put(b), on.put(np.zeros((K, N), dtype))
    on.device.qr_stacked(x, y, t, triangular=triangular)
    return x, y, t, np.concatenate((np.triu(r), np.triu(b) if triangular else b))


@case(*LAPACK_DTYPES, orders="F")
def qr_stacked(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    for triangular in BOTH:
        x, _, _, both = stacked(on, m, dtype, triangular=triangular)
        r = np.triu(on.get(x))
        same(r.conj().T @ r, both.conj().T @ both, 16 * (m + N))


@case(*LAPACK_DTYPES, orders="F")
def multiply_q_stacked(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    for triangular in BOTH:
        x, v, t, both = stacked(on, m, dtype, triangular=triangular)
        top, c = on.put(both[:N]), on.put(both[N:])
        on.device.multiply_q_stacked(v, t, top, c, adjoint=True, triangular=triangular)
        same(on.get(top), np.triu(on.get(x)), 16 * (m + N))
        same(on.get(c), np.zeros(both[N:].shape, dtype), 16 * (m + N))
        on.device.multiply_q_stacked(v, t, top, c, adjoint=False, triangular=triangular)
        same(np.concatenate((on.get(top), on.get(c))), both, 16 * (m + N))


@case(*LAPACK_DTYPES, orders="F")
def block_of_reflectors(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    if not m:
        return
    host, tau = entries((m, K), dtype, 1), (0.5 * entries((K, 1), dtype, 2)[:, 0]).astype(dtype)
    t = on.put(np.full((K, K), POISON, dtype))
    on.device.block_of_reflectors(on.put(host), tau, t)
    expected = np.eye(m, dtype=dtype)
    for i in range(K):  # H_1 H_2 ... H_k
        v = np.concatenate((np.zeros(i, dtype), np.ones(1, dtype), host[i + 1 :, i]))
        expected = expected @ (np.eye(m, dtype=dtype) - tau[i] * np.outer(v, v.conj()))
    same(whole_q(host, on.get(t)), expected, 32 * (m + 1))


@case(*LAPACK_DTYPES, orders="F")
def eigh(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    a = entries((m, m), dtype, 1)
    a = (a + a.conj().T).astype(dtype)
    lower = np.where(np.tri(m, dtype=bool), a, POISON).astype(dtype)
    for vectors in BOTH:
        x = on.put(lower)
        values, info = on.device.eigh(x, vectors=vectors)
        assert info == 0
        same(values, np.linalg.eigvalsh(a), 16 * (m + 1))
    v = on.get(x)
    same(a @ v, (v * values).astype(dtype), 16 * (m + 1))
    same(v.conj().T @ v, np.eye(m, dtype=dtype), 16 * (m + 1))


@case(*LAPACK_DTYPES, orders="F")
def band_stages(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    """The whole way is tested by eigenvalues: here what takes another matrix's triangle or rows."""
    stages = on.device.band_stages(32)
    a = entries((m, m), dtype, 1)
    x = on.put(np.where(np.tri(m, dtype=bool), a, POISON).astype(dtype))
    stages.complete(x)
    lower = np.tril(a, -1)
    same(on.get(x), (lower + lower.conj().T + np.diag(a.diagonal().real)).astype(dtype), 0)
    host = entries((3 * 64, 2), dtype, 2)
    z = on.put(np.full((80, 2), POISON, dtype))
    stages.copy_blocks(on.put(host), z, 2, 1)
    rows = np.arange(80)
    same(on.get(z), host[rows // 32 * 64 + rows % 32], 0)


@case(*LAPACK_DTYPES, orders="F")
def fix_signs(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    host = entries((m, N), dtype, 1)
    if m:
        host[:, 1], host[[2, 4], 1] = 0, [-9, 9]
    x = on.put(host)
    on.device.fix_signs(x)
    result = on.get(x)
    same(np.abs(result), np.abs(host), 4)
    if m:
        places = np.abs(host).argmax(axis=0), np.arange(N)
        same(result[places], np.abs(host)[places].astype(dtype), 4)
        assert (result[places].imag == 0).all()
        assert (result[2, 1], result[4, 1]) == (9, -9), "the first of the largest"


# Lanes


@case(FLOAT32, np.dtype(np.complex64), orders="F")
def begin(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    on.device.begin(modes=GemmModes(tf32=True, fast_accumulate=True), autotune=True)
    on.device.begin(modes=GemmModes(float16=True))
    for modes in (GemmModes(tf32=True, splits=True), GemmModes()):
        on.device.begin(modes=modes)
        gemm(on, dtype, order, m)
    on.device.begin()


@case(FLOAT32)
def synchronize(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    host, z = entries((m, N), dtype, 1), on.put(np.full((m, N), POISON, dtype), order)
    on.device.assign(on.put(host, order), z)
    on.device.synchronize()
    same(on.read(z), host)


@case(FLOAT32)
def hand_over(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    """Executions in order, one after the other, and one that waits for them."""
    x, z = on.put(np.ones((m, N), dtype), order), on.put(np.full((m, N), POISON, dtype), order)
    for tree, operand in ((parse("x + x"), x), (parse("x * x"), z)):
        on.device.begin(in_order=True)
        on.device.evaluate(tree, {"x": operand}, dtype, z)
        on.device.hand_over()
    on.device.begin()
    on.device.scale(2.0, z)
    same(on.get(z), np.full((m, N), 8, dtype))


@case(FLOAT32)
def replayed(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    x, y = on.put(np.ones((m, N), dtype), order), on.put(np.zeros((m, N), dtype), order)
    programs, runs = Programs(), []

    def body() -> None:
        runs.append(1)
        on.device.add_scaled(1.0, x, 1.0, y)

    for count in range(1, 5):
        before = len(runs)
        assert on.device.replayed(programs, lambda: "body", body) == (len(runs) > before)
        same(on.get(y), np.full((m, N), count, dtype))


def on_lanes(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    """Z := 2 (X + X), each step on another lane than the one before."""
    x, y, z = (on.put(np.full((m, N), value, dtype), order) for value in (1, POISON, POISON))
    on.device.follow(None)
    with on.device.on_side_lane("copy"):
        on.device.assign(x, y)
        on.device.add_scaled(1.0, x, 1.0, y)
        copied = on.device.mark()
    on.device.follow(copied)
    on.device.assign(y, z)
    on.device.scale(2.0, z)
    moved = on.device.mark()
    on.device.wait(moved)
    on.device.wait(None)
    with on.device.on_second_lane():
        on.device.follow(moved)
        on.device.scale(3.0, z)
        on.device.scale(1 / 3, z)
        moved = on.device.mark()
    with on.device.on_side_lane():
        on.device.follow(moved)
        on.device.scale(0.0, y)
    same(on.get(z), np.full((m, N), 4, dtype))
    same(on.get(y), np.zeros((m, N), dtype))


for _name in ("on_side_lane", "on_second_lane", "mark", "follow", "wait"):
    CASES[_name] = [
        pytest.param(on_lanes, FLOAT32, order, m, id=f"{_name}-{order}-{m}") for order in "FC" for m in (7, 0)
    ]


@case(FLOAT32, orders="F", sizes=(7,))
def check_stream(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    for waits in BOTH:
        on.device.check_stream("allreduce", None, waits=waits)


@case(FLOAT32, orders="F", sizes=(7,))
def close(on: On, dtype: np.dtype[Any], order: Order, m: int) -> None:
    other = on.new()
    other.close()
    other = on.new()
    other.begin()
    other.synchronize()
    other.close()


def methods(device: type) -> dict[str, Any]:
    """The public methods of a class."""
    return {name: method for name, method in inspect.getmembers(device, inspect.isfunction) if name[0] != "_"}


@pytest.mark.parametrize(("call", "dtype", "order", "m"), [param for cases in CASES.values() for param in cases])
def test_a_method_is_what_numpy_says(
    on: On, call: Case, dtype: np.dtype[Any], order: Order, m: int, request: Any
) -> None:
    name = request.node.callspec.id.partition("-")[0]
    if name in on.device.traits.lacks:
        with pytest.raises(NotImplementedError, match=f"the device lacks ({'|'.join(on.device.traits.lacks)})"):
            call(on, dtype, order, m)
        return
    on.device.begin()
    call(on, dtype, order, m)


def test_every_method_has_a_case_and_is_there_or_declared_to_be_lacking(on: On) -> None:
    contract = methods(Device)
    assert set(CASES) == set(contract)
    inherited = {name for name, method in methods(type(on.device)).items() if contract.get(name) is method}
    assert inherited == on.device.traits.lacks

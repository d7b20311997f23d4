"""Local products whose bits depend on the elements alone: not on the sizes, storage orders or places of the matrices.

A BLAS forms most elements of a product in its main kernel, and those at edges in others, which add in another order.
Here each call of the BLAS has lengths of m and n that are multiples of a unit, at least `_LEAST`; operands at edges are
padded by zeros. A test finds the smallest unit for which this BLAS forms all elements alike, on the processor at hand:
64 on those with AVX-512, 48 for complex matrices on those with AVX2 (OpenBLAS 0.3.30).

Calls have alpha = 1 and beta = 0. Elementwise factors are applied afterwards, by real multiplications: NumPy's complex
ones round otherwise at the ends of arrays. Where a test finds no other bits, the BLAS adds a product to Z in place.
"""

from __future__ import annotations

import itertools
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from zlib import crc32

import numpy as np

from pblas import errors
from pblas.backends.cpu.blas import gemm
from pblas.backends.dtypes import Array, Dtype, accumulator_dtype
from pblas.backends.pieces import PieceProducts, PieceSizes, TreeSum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

UNITS = 64, 48, 96, 192  # multiples of the tiles of kernels; tried in this order
_LEAST = 64  # least length: OpenBLAS forms products of less than 100^3 multiplications in other kernels
_TILE, _TESTED = 1024, 512  # about as many rows and columns are formed at a time, and tested
DEEP = 256  # depth of the product that stands for a processor
_ROWS, _COLUMNS = 7, 5  # different ones in a test


class Kernel(NamedTuple):
    """The GEMM that forms all elements alike: the dtype in which it multiplies, and the unit of its lengths."""

    dtype: Dtype
    unit: int
    least: int = _LEAST
    most: int = _TILE

    @property
    def tile(self) -> int:
        """Most rows, and most columns, of a call of the BLAS."""
        return self.most // self.unit * self.unit

    def padded(self, length: int) -> int:
        """The least length of a call of the BLAS for so many rows or columns."""
        return -(-max(length, self.least) // self.unit) * self.unit


@lru_cache(64)
def kernel(dtype: Dtype, *depths: int) -> Kernel:
    """The kernel for sums of `dtype` over these depths; it multiplies in 64 bits if this BLAS cannot in 32.

    Raises:
        BackendError: this BLAS forms elements otherwise at some places.
    """
    wide = {np.dtype(np.float32): np.float64, np.dtype(np.complex64): np.complex128}
    for candidate in (dtype, np.dtype(wide.get(dtype, dtype))):
        for unit in UNITS:
            if all(is_uniform(Kernel(candidate, unit), depth) for depth in set(depths)):
                return Kernel(candidate, unit)
    raise errors.BackendError(
        f"reproducible=True: the BLAS of SciPy forms some elements of a product of {dtype.name} matrices in another "
        f"order than others on this processor, whatever the sizes; leave reproducible out, or use another SciPy"
    )


@lru_cache(256)
def is_uniform(kernel: Kernel, depth: int) -> bool:
    """Whether the BLAS forms all elements of products of this depth alike."""
    return uniform_elements(kernel, depth, gemm) is not None


def uniform_elements(kernel: Kernel, depth: int, multiply: Callable[..., None]) -> Any:
    """The products of a few rows and columns, if they have these bits at all places where they recur; otherwise None.

    Args:
        kernel: the lengths to test (local).
        depth: of the products (local).
        multiply: a GEMM of arrays in host memory (local).
    """
    return equal_elements(_product(x, y, multiply) for x, y in _trials(kernel, depth))


@lru_cache(256)
def adds_alike(kernel: Kernel, depth: int) -> bool:
    """Whether this BLAS forms Z + X Y and Z - X Y in place with the bits that a later addition of the product gives."""
    for x, y in _trials(kernel, depth):
        product = _product(x, y, gemm)
        others = np.asfortranarray(product[::-1, ::-1])
        for alpha in (1, -1):
            z = others.copy("F")
            gemm(alpha, x, y, 1, z)
            if not (z == others + alpha * product).all():
                return False
    return True


def _trials(kernel: Kernel, depth: int) -> Iterator[tuple[Array, Array]]:
    """X and Y whose rows and columns recur, in several sizes and storage orders."""
    rows, columns = trial_vectors(kernel.dtype, depth)
    for number, (m, n) in enumerate(trial_shapes(kernel)):
        for orders in ("FF", "FC", "CF", "CC") if number else ("FF",):
            x, y = (_matrix(shape, kernel.dtype, orders[i]) for i, shape in enumerate(((m, depth), (depth, n))))
            x[...], y[...] = rows[np.arange(m) % _ROWS], columns[np.arange(n) % _COLUMNS].T
            yield x, y


def _product(x: Array, y: Array, multiply: Callable[..., None]) -> Array:
    z = np.empty((len(x), y.shape[1]), x.dtype, "F")
    multiply(1, x, y, 0, z)
    return z


def trial_shapes(kernel: Kernel) -> list[tuple[int, int]]:
    """Rows and columns of the products of a test."""
    short, tile = kernel.padded(1), kernel.padded(_TESTED)
    return [(tile, tile), (short + kernel.unit, tile), (tile, short), (short, tile), (short, short)]


def trial_vectors(dtype: Dtype, depth: int) -> tuple[Array, Array]:
    """Rows of X, and columns of Y, that recur in a test.

    Their numbers have no common factor with the sizes of kernels. One element alone may be rounded alike in two orders.
    """
    shape = _ROWS + _COLUMNS, depth
    generator = np.random.default_rng(depth)
    x = generator.standard_normal(shape)
    vectors = (x + 1j * generator.standard_normal(shape) if dtype.kind == "c" else x).astype(dtype)
    return vectors[:_ROWS], vectors[_ROWS:]


def equal_elements(products: Iterable[Array]) -> Any:
    """The elements of products whose rows and columns recur, if they are equal at all places; otherwise None."""
    expected = None
    for z in products:
        i, j = (np.arange(length) % count for length, count in zip(z.shape, (_ROWS, _COLUMNS), strict=True))
        expected = z[:_ROWS, :_COLUMNS].copy() if expected is None else expected
        if not (z == expected[np.ix_(i, j)]).all():
            return None
    return expected


@lru_cache(8)
def fingerprint(dtype: Dtype) -> str:
    """Bits of a product: ranks whose BLAS or processor adds in another order have another one."""
    elements = uniform_elements(kernel(accumulator_dtype(dtype), DEEP), DEEP, gemm)
    return f"{crc32(elements.tobytes()):08x}"


class PieceGemm(PieceProducts):
    """Products whose K consists of pieces: each element is the sum of the pieces' products along a binary tree.

    Args:
        sizes: of the products.
        depths: widths of all pieces, for which the kernel is chosen.
        allocate: returns memory of so many bytes.
    """

    _given: ClassVar[Kernel | None] = None
    """The kernel; None for one of this BLAS."""

    def __init__(self, sizes: PieceSizes, depths: tuple[int, ...], allocate: Callable[[int], Array]) -> None:
        width, shape, pieces, total, transposed = sizes
        self._width, self._total, self._transposed = width, total, transposed
        self._kernel = chosen = self._given or kernel(total, *depths)
        m, n = shape[::-1] if transposed else shape
        rows, columns = (min(chosen.tile, chosen.padded(length)) for length in (m, n))
        size, depth = rows * columns, TreeSum.depth(pieces)
        lengths = [size] * (depth + 1) + self._operand_lengths(rows, columns, width)
        itemsize = max(total.itemsize, chosen.dtype.itemsize)
        memory = allocate(itemsize * sum(lengths))
        self.nbytes = int(memory.nbytes)
        starts = itertools.accumulate((itemsize * length for length in lengths), initial=0)
        parts = [memory[start : start + itemsize * length] for start, length in zip(starts, lengths, strict=False)]
        self._sums, (self._leaf, self._left, self._right) = parts[:depth], parts[depth:]

    def _operand_lengths(self, rows: int, columns: int, width: int) -> list[int]:
        """Elements of memory for the operands of a block with these sizes."""
        return [rows * width, columns * width]

    def gemm(
        self, alpha: complex, x: Array, y: Array, beta: complex, z: Array, *, conj: tuple[bool, bool] = (False, False)
    ) -> None:
        """Z := alpha X Y + beta Z, in place; X and Y may be marked as conjugated."""
        adds = beta == 1 and alpha in (1, -1) and self._adds_in_place(x.shape[1])
        place = z if adds or (alpha == 1 and beta == 0) else None
        for block, total, is_in_z in self._blocks(x, y, conj, place, alpha if adds else 0):
            if not is_in_z:
                finish(alpha, total, beta, z[block])

    def _adds_in_place(self, k: int) -> bool:
        """Whether the BLAS may add a product to Z: K is one piece."""
        chosen = self._kernel
        return k <= self._width and self._given is None and chosen.dtype == self._total and adds_alike(chosen, k)

    def totals(
        self, x: Array, y: Array, conj: tuple[bool, bool] = (False, False)
    ) -> Iterator[tuple[tuple[slice, slice], Array]]:
        """Blocks of the product X Y, each with its place; valid until the next one."""
        for block, total, _ in self._blocks(x, y, conj, None):
            yield block, total

    def _blocks(
        self,
        x: Array,
        y: Array,
        conj: tuple[bool, bool],
        z: Array | None,
        added: complex = 0,
    ) -> Iterator[tuple[tuple[slice, slice], Array, bool]]:
        """As `totals`, and whether the block was formed in Z: those that need no padding are, if Z has their order.

        Where `added` is not 0, the products of one piece are added to blocks of Z, with this factor.
        """
        if self._transposed:
            x, y, conj, z = y.T, x.T, conj[::-1], None if z is None else z.T
        tile, (m, k), n = self._kernel.tile, x.shape, y.shape[1]
        for j in range(0, n, tile):
            columns = slice(j, min(j + tile, n))
            for i in range(0, m, tile):
                rows = slice(i, min(i + tile, m))
                shape = self._kernel.padded(rows.stop - i), self._kernel.padded(columns.stop - j)
                leaf = _array(self._leaf, shape, self._kernel.dtype)
                sums = [_array(memory, shape, self._total) for memory in self._sums]
                place = None if z is None else z[rows, columns]
                is_in_z = _fits(place, shape, self._total)
                if place is not None and is_in_z:
                    sums[0] = place
                    if added:
                        left, right = self._operands(x[rows], y[:, columns], conj, place)
                        gemm(added, left, right, 1, place)
                        yield (columns, rows) if self._transposed else (rows, columns), place, True
                        continue
                tree = TreeSum(sums)
                for start in range(0, k, self._width):
                    inner = slice(start, min(start + self._width, k))
                    # sum[m, n] = X[m, k] Y[k, n], or += with the second of two pieces
                    tree.add(partial(self._form, x[rows, inner], y[inner, columns], conj, leaf))
                total = tree.total[: rows.stop - i, : columns.stop - j]
                if self._transposed:
                    yield (columns, rows), total.T, is_in_z
                else:
                    yield (rows, columns), total, is_in_z

    def _form(self, x: Array, y: Array, conj: tuple[bool, bool], leaf: Array, z: Array, *, adds: bool) -> None:
        """Z := X Y, or Z += X Y with the product in `leaf` before it is added."""
        if not adds and leaf.dtype == z.dtype:
            self._multiply(x, y, conj, z)
            return
        self._multiply(x, y, conj, leaf)
        if not adds:
            z[...] = leaf
        else:
            np.add(z, leaf.astype(z.dtype, copy=False), out=z)

    def _multiply(self, x: Array, y: Array, conj: tuple[bool, bool], out: Array) -> None:
        """Out := X Y, with rows and columns of zeros if it is larger than that."""
        left, right = self._operands(x, y, conj, out)
        gemm(1, left, right, 0, out)

    def _operands(self, x: Array, y: Array, conj: tuple[bool, bool], out: Array) -> tuple[Array, Array]:
        """X and Y as the kernel takes them, with zeros up to as many rows and columns as `out` has."""
        left = self._operand(self._left, x, len(out), conj=conj[0])
        return left, self._operand(self._right, y.T, out.shape[1], conj=conj[1]).T

    def _operand(self, memory: Array, x: Array, rows: int, *, conj: bool) -> Array:
        """X with rows of zeros below it, in the dtype of the kernel, and conjugated: X itself if that is all."""
        if len(x) == rows and x.dtype == self._kernel.dtype and not (conj and x.dtype.kind == "c"):
            return x
        padded = _array(memory, (rows, x.shape[1]), self._kernel.dtype)
        padded[: len(x)] = x
        padded[len(x) :] = 0
        if conj and x.dtype.kind == "c":
            np.conjugate(padded, out=padded)
        return padded


def _matrix(shape: tuple[int, int], dtype: Dtype, order: str) -> Array:
    return np.empty(shape, dtype) if order == "C" else np.empty(shape[::-1], dtype).T


def _array(memory: Array, shape: tuple[int, int], dtype: Dtype) -> Array:
    return np.ndarray(shape, dtype, memory.data, order="F")


def _fits(place: Array | None, shape: tuple[int, int], dtype: Dtype) -> bool:
    """Whether a BLAS can form a block of this shape and dtype in this place, by columns."""
    return (
        place is not None
        and (place.shape, place.dtype) == (shape, dtype)
        and place.strides[0] == place.itemsize
        and place.strides[1] >= place.shape[0] * place.itemsize
    )


def finish(alpha: complex, x: Array, beta: complex, z: Array) -> None:
    """Z := alpha X + beta Z elementwise, rounded once to the dtype of Z; with beta = 0 Z is not read.

    >>> z = np.array([1 + 1j]); finish(2.0, np.array([1 - 1j]), 1j, z); z.tolist()
    [(1-1j)]
    """
    dtype = accumulator_dtype(z.dtype)
    if alpha == -1 and beta != 0:  # the same bits in one pass less
        np.subtract(_scaled(beta, z, dtype), _scaled(1, x, dtype), out=z, casting="unsafe")
        return
    scaled = _scaled(alpha, x, dtype)
    if beta == 0:
        z[...] = scaled
    else:
        np.add(_scaled(beta, z, dtype), scaled, out=z, casting="unsafe")


def _scaled(factor: complex, x: Array, dtype: Dtype) -> Array:
    """Factor X in a dtype, by real multiplications; X itself if the factor is 1."""
    if factor == 1:
        return x if x.dtype == dtype else x.astype(dtype)
    if dtype.kind != "c":
        real: Array = np.multiply(x, dtype.type(factor.real), dtype=dtype)
        return real
    part: Any = dtype.type(factor).real.dtype.type
    a, b = part(factor.real), part(factor.imag)
    result = np.empty_like(x, dtype)
    np.multiply(x.real, a, out=result.real)
    np.multiply(x.imag, a, out=result.imag)
    if b != 0:
        np.subtract(result.real, x.imag * b, out=result.real)
        np.add(result.imag, x.real * b, out=result.imag)
    return result

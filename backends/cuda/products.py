"""Levels 2 and 3 of the BLAS on this rank's GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy

from pblas.backends.cuda import level2, reductions, transfer, vectors
from pblas.backends.cuda.elementwise import DeviceElementwise
from pblas.backends.cuda.gemm import copies_of, needs_copy
from pblas.backends.cuda.gemm_problem import ALIGNMENT
from pblas.backends.cuda.lanes import by_columns
from pblas.backends.cuda.lapack import INVERTED, MOST_INVERTED
from pblas.backends.cuda.triangles import gram_blocks, syrk, trmm, trsm
from pblas.backends.device import Staircase, Uplo
from pblas.backends.dtypes import FLOAT8, Array, Dtype, GpuArray, Order
from pblas.backends.pieces import PieceProducts, PieceSizes
from pblas.backends.push_engine import EXACT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_GRAM_BLOCKS, _GRAM_ROWS = 528, 512
"""Blocks of rows of a Gram matrix at most, some for each multiprocessor, and rows of a block at least."""
_WIDE = 256  # fewest right-hand sides that are multiplied with inverses
_LEAST_HALF = 1024  # rows of a symmetric product of which one triangle is computed: of fewer the whole takes as long
_PARTS, _LEAST_PART = 4, 256
"""Blocks on the diagonal of a product X X^T of 16 bits at most, and rows of one at least.

Five steps of Newton and Schulz of 8192 rows take 18.9 ms with 4, 20.4 with 8 and 23.6 with 2, whole products 23.9
(H200, medians of 12)."""


class DeviceProducts(DeviceElementwise):
    """Products and solves; `pblas.backends.device` documents the methods."""

    def multiply_vector(self, x: Array, vector: Array, dtype: Dtype, *, conj: bool) -> Array:
        self.begin()
        column = transfer.on_gpu(vector[:, None].view(transfer.words(x).dtype)).view(x.dtype)
        product = cupy.empty((x.shape[0], 1), dtype)
        self.gemm(1, x, column, 0, product, conj=(conj, False))
        self.synchronize()
        return transfer.on_host(product)[:, 0]

    def multiply_part(
        self, x: Array, part: Staircase, vector: Array, dtype: Dtype, mode: str, *, transposed: bool
    ) -> Array:
        if isinstance(vector, cupy.ndarray):
            return level2.multiply(x, part, vector, dtype, mode, transposed=transposed)
        self.synchronize()
        v = transfer.on_gpu(vector.astype(dtype, copy=False))
        return transfer.on_host(level2.multiply(x, part, v, dtype, mode, transposed=transposed))

    def multiply_both(
        self, x: Array, parts: Sequence[Staircase], v: Array, w: Array, dtype: Dtype, modes: Sequence[str]
    ) -> tuple[Array, Array]:
        return level2.multiply_both(x, parts, v, w, dtype, modes)

    def update_part(self, z: Array, part: Staircase, x: Array, y: Array) -> None:
        self.synchronize()
        level2.update(z, part, x, y)
        cupy.cuda.get_current_stream().synchronize()

    def multiply_whole(
        self,
        kind: str,
        alpha: complex,
        a: Array,
        x: Array,
        beta: complex,
        y: Array | None,
        z: Array,
        *,
        uplo: Uplo,
        trans: str,
        unit: bool,
    ) -> None:
        old, target = (x if kind == "trmv" else y), z
        read = [w for w in (a, x, y) if w is not None and not (w is old and _is_same(w, z))]
        if any(_overlap(w, z) for w in read):
            target = self.array(self.empty(z.nbytes), z.shape, z.dtype)
        if old is not None and not _is_same(old, target):
            self.assign(old, target)
        options: Any = {"uplo": uplo, "trans": trans, "unit": unit}
        vectors.multiply(self.blas_handle, kind, alpha, a, x, beta, target, **options)
        if target is not z:
            self.assign(target, z)

    def update_whole(self, name: str, alpha: complex, x: Array, y: Array, a: Array, *, uplo: Uplo) -> None:
        x, y = (self._copied(w) if _overlap(w, a) else w for w in (x, y))
        vectors.update(self.blas_handle, name, alpha, x, y, a, uplo=uplo)

    # Products of matrices

    def gemm(
        self, alpha: complex, x: Array, y: Array, beta: complex, z: Array, *, conj: tuple[bool, bool] = (False, False)
    ) -> None:
        if not z.size:
            return
        if not x.shape[1] or alpha == 0:
            self.scale(beta, z)
            return
        if x.dtype in FLOAT8:
            self._multiply_short(alpha, x, y, beta, z)
            return
        copies = needs_copy(x, y, z, conj)
        x, y = (self._conjugated(w) if copy else w for w, copy in zip((x, y), copies, strict=True))
        conj_x, conj_y = (c and not copy for c, copy in zip(conj, copies, strict=True))
        self._matmul(alpha, x, y, beta, z, (conj_x, conj_y))

    def multiply_add(
        self,
        alpha: complex,
        x: Array,
        y: Array | None,
        beta: complex,
        c: Array | None,
        z: Array,
        *,
        symmetric: bool = False,
    ) -> None:
        if (y is None or symmetric) and z.itemsize == 2 and self._multiply_half(alpha, x, y, beta, c, z):
            return
        if y is not None:
            self._multiply_add(alpha, x, y, beta, c, z)
        elif z.itemsize > 2:
            if c is not None:
                self.assign(c, z)
            self.syrk(alpha, x, beta, z, uplo="L", hermitian=True)
            self._lapack.mirror(self.stream, z)
        else:
            self._square(alpha, x, beta, c, z)

    def _multiply_add(
        self, alpha: complex, x: GpuArray, y: GpuArray, beta: complex, c: GpuArray | None, z: GpuArray
    ) -> None:
        """Z := alpha X Y + beta C, or several such products of matrices one after the other in memory."""
        if alpha == 0:
            self.add_scaled(0 if c is None else beta, z if c is None else c, 0, z)
            return
        if c is not None and (c.strides != z.strides or (c.data.ptr - z.data.ptr) % ALIGNMENT):
            self.assign(c, z)
            c = None
        self._matmul(alpha, x, y, beta, z, (False, False), c)

    def _multiply_half(
        self, alpha: complex, x: GpuArray, y: GpuArray | None, beta: complex, c: GpuArray | None, z: GpuArray
    ) -> bool:
        """Z := alpha X Y + beta C by the tiles of one triangle, if there is a kernel for it, and it gains."""
        if self.tile_gemm is None or len(z) < _LEAST_HALF or not x.size:
            return False
        if c is not None and (c.strides != z.strides or (c.data.ptr - z.data.ptr) % ALIGNMENT):
            return False
        return self.tile_gemm.multiply_symmetric(
            self.stream, alpha.real, x, x.T if y is None else y, 0.0 if c is None else beta.real, c, z
        )

    def _square(self, alpha: complex, x: GpuArray, beta: complex, c: GpuArray | None, z: GpuArray) -> None:
        """Z := alpha X X^T + beta C, for elements that cuBLAS' symmetric product does not take.

        0 . . .         blocks of one size are multiplied at a time: 0 on the diagonal, 1, and 2, which is twice as
        1 0 . .         large; then 1 and 2 are mirrored
        2 2 0 .
        2 2 1 0
        """
        parts = 1
        while parts < _PARTS and len(z) >= 2 * parts * _LEAST_PART:
            parts *= 2
        size = len(z) // parts // ALIGNMENT * ALIGNMENT if parts > 1 else len(z)
        stop = size * parts
        self._multiply_blocks(alpha, x, beta, c, z, (size, parts, 0, size))
        while parts > 1:
            parts //= 2
            self._multiply_blocks(alpha, x, beta, c, z, (size, parts, size, 2 * size))
            size *= 2
        if stop < len(z):
            # the rows after the blocks
            self._multiply_add(alpha, x[stop:], x.T, beta, None if c is None else c[stop:], z[stop:])
            self.assign(z[stop:, :stop].T, z[:stop, stop:])

    def _multiply_blocks(
        self, alpha: complex, x: GpuArray, beta: complex, c: GpuArray | None, z: GpuArray, blocks: tuple[int, ...]
    ) -> None:
        """Z[i, j] := alpha X[i] X[j]^T + beta C[i, j] for blocks i and j = i + 1, or j = i.

        `blocks`: rows and columns of a block, their number, the first row, and rows from one to the next.
        """
        size, count, first, step = blocks

        def blocks_of(w: GpuArray, start: int, next_block: int, columns: int) -> Any:
            return transfer.new_array((count, size, columns), w.dtype, w[start:].data, (step * next_block, *w.strides))

        left, right = (blocks_of(x, start, x.strides[0], x.shape[1]) for start in (first, 0))
        new = blocks_of(z, first, sum(z.strides), size)
        old = None if c is None else blocks_of(c, first, sum(c.strides), size)
        self._multiply_add(alpha, left, right.transpose(0, 2, 1), beta, old, new)
        for start in range(0, step * count, step) if first else ():
            rows, columns = slice(start + first, start + first + size), slice(start, start + size)
            self.assign(z[rows, columns].T, z[columns, rows])

    def piece_gemm(self, sizes: PieceSizes, dtype: Dtype, last: int, allocate: Callable[[int], Array]) -> PieceProducts:
        from pblas.backends.cuda.reproducible import PieceGemm

        return PieceGemm(self, sizes, dtype, last, allocate)

    def fingerprint(self, dtype: Dtype) -> str:
        return self.uniform_gemm.fingerprint(dtype)

    def exact_gemm(self, sizes: PieceSizes, allocate: Callable[[int], Array]) -> PieceProducts:
        from pblas.backends.cuda.exact import ExactGemm

        return ExactGemm(self, sizes, allocate)

    def finish_sum(self, alpha: complex, x: Array, beta: complex, z: Array) -> None:
        self.scale(alpha, x)
        if beta == 0:
            self.assign(x, z)
        else:
            self.scale(beta, z)
            self.add_scaled(1, x, 1, z)

    def gram(self, x: Array) -> Array:
        """The sum of products of as many blocks of rows as fill a GPU: cuBLAS' one product leaves most of it idle."""
        m, n = x.shape
        count = min(_GRAM_BLOCKS, m // _GRAM_ROWS)
        rows = m // count if count else 0
        parts = self.array(self.empty((count + 1) * n * n * x.itemsize), (n, n * (count + 1)), x.dtype)
        if count:
            gram_blocks(self.blas_handle, x, rows, count, parts)
        self.gemm(1, x[rows * count :].T, x[rows * count :], 0, parts[:, n * count :], conj=(True, False))
        self.synchronize()
        total = transfer.on_host(reductions.reduce("sum", parts.T.reshape(count + 1, n * n), 0, x.dtype))
        return total.reshape(n, n).T

    def _multiply_short(self, alpha: complex, x: GpuArray, y: GpuArray, beta: complex, z: GpuArray) -> None:
        """`gemm` of matrices of 8 bits, by way of copies that cuBLASLt takes."""
        shapes = copies_of(x, y, z)
        orders: tuple[Order, ...] = "C", "F", "F" if by_columns(z) else "C"
        matrices = []
        for w, shape, order in zip((x, y, z), shapes, orders, strict=True):
            whole = w
            if shape is not None:
                whole = self.array(self.empty(shape[0] * shape[1] * w.dtype.itemsize), shape, w.dtype, order)
                self.strided_copy.pad(self.stream, w, whole)
            matrices.append(whole)
        left, right, result = matrices
        self._matmul(alpha, left, right, beta, result, (False, False))
        if result is not z:
            self.assign(result[: z.shape[0], : z.shape[1]], z)

    def subtract_square(self, x: Array, z: Array) -> None:
        """By cuBLAS' symmetric product, and a GEMM below it."""
        n = z.shape[1]
        self.syrk(-1, x[:n], 1, z[:n], uplo="L", hermitian=True)
        if z.shape[0] > n:
            self.gemm(-1, x[n:], x[:n].T, 1, z[n:], conj=(False, True))

    def syrk(
        self,
        alpha: complex,
        x: Array,
        beta: complex,
        z: Array,
        *,
        uplo: Uplo,
        conj: bool = False,
        hermitian: bool = False,
    ) -> None:
        memory = syrk(*(self.blas_handle, self.stream, alpha, x, beta, z), uplo=uplo, conj=conj, hermitian=hermitian)
        if memory is not None:
            self._kept.append(memory)

    def _matmul(
        self,
        alpha: complex,
        x: GpuArray,
        y: GpuArray,
        beta: complex,
        z: GpuArray,
        conj: tuple[bool, bool],
        c: GpuArray | None = None,
    ) -> None:
        """A product on this lane, with the lane's workspace."""
        if self._modes.splits and x.dtype.char in "fF":
            # X Y = X_hi Y_hi + X_hi Y_lo + X_lo Y_hi, almost: one product with three times as many terms
            x = self._lapack.split(self.stream, x, is_left=True, conj=conj[0])
            y = self._lapack.split(self.stream, y, is_left=False, conj=conj[1])
            conj = False, False
        lane = self.lane or "side"
        tune = self.side if self._autotune else None
        self._gemm.matmul(self.stream, alpha, x, y, beta, z, conj=conj, lane=lane, modes=self._modes, tune=tune, c=c)

    def trmm(self, alpha: complex, t: Array, x: Array, z: Array, *, uplo: Uplo, unit: bool, conj: bool) -> None:
        memory = trmm(self.blas_handle, self.stream, alpha, t, x, z, uplo=uplo, unit=unit, conj=conj)
        if memory is not None:
            self._kept.append(memory)

    # Solves

    def trsm(
        self, t: Array, z: Array, *, uplo: Uplo, unit: bool = False, conj: bool = False, inverts: bool = True
    ) -> None:
        """A wide Z is multiplied with inverses of small blocks of T: the error grows with a block's condition."""
        if inverts and z.shape[1] >= _WIDE:
            self._solve_by_inverses(t, z, uplo=uplo, unit=unit, conj=conj, order=INVERTED)
            return
        memory = trsm(self.blas_handle, self.stream, t, z, uplo=uplo, unit=unit, conj=conj)
        if memory is not None:
            self._kept.append(memory)

    def solve_factored(self, t: Array, z: Array, *, unit: bool = False, conj: bool = False) -> None:
        """cuBLAS' solve is a chain of small kernels: of 512 x 512 with 16384 columns four times the time (H200)."""
        if z.size:
            self._solve_by_inverses(t, z, uplo="L", unit=unit, conj=conj, order=MOST_INVERTED)

    def _solve_by_inverses(self, t: Array, z: Array, *, uplo: Uplo, unit: bool, conj: bool, order: int) -> None:
        """Z := T^-1 Z, with inverses of blocks of T's diagonal of `order` rows.

        In the full precision of Z in any mode: an inverse is much larger than T, and so are the errors of its elements.
        """
        inverses = self._lapack.inverses(self.stream, t if uplo == "L" else t.T, unit=unit, order=order)
        modes, self._modes = self._modes, EXACT
        try:
            self._multiply_by_inverses(t, inverses, z, uplo=uplo, conj=conj)
        finally:
            self._modes = modes

    def _multiply_by_inverses(self, t: Array, inverses: Array, z: Array, *, uplo: Uplo, conj: bool) -> None:
        """Z := T^-1 Z, by halves; `inverses` are those of T's blocks, or of T^T's for an upper triangle."""
        n, order = len(t), len(inverses)
        if n > order:
            half = -(-n // (2 * order)) * order
            first, second = slice(half), slice(half, n)
            if uplo == "U":
                first, second = second, first
            self._multiply_by_inverses(t[first, first], inverses[:, first], z[first], uplo=uplo, conj=conj)
            self.gemm(-1, t[second, first], z[first], 1, z[second], conj=(conj, False))
            self._multiply_by_inverses(t[second, second], inverses[:, second], z[second], uplo=uplo, conj=conj)
            return
        inverse = inverses[:n] if uplo == "L" else inverses[:n].T
        memory = self._lapack.memory(self.stream, "right-hand sides", z.nbytes)
        right = self.array(memory, z.shape, z.dtype, "F" if by_columns(z) else "C")
        self.assign(z, right)
        self.gemm(1, inverse, right, 0, z, conj=(conj, False))


def _overlap(x: GpuArray, z: GpuArray) -> bool:
    """Whether the memory between the first and the last element of X meets that of Z."""
    (low, high), (start, stop) = ((int(w.data.ptr), int(w.data.ptr) + transfer.span(w)) for w in (x, z))
    return low < stop and start < high


def _is_same(x: GpuArray, z: GpuArray) -> bool:
    """Whether X and Z are the same elements of memory."""
    return bool(x.data.ptr == z.data.ptr) and x.strides == z.strides

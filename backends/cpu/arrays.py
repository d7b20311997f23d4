"""The device in host memory: NumPy's arrays, multiplied by BLAS. Every operation is done when its call returns."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from math import sqrt
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pblas import errors
from pblas.backends.cpu import blas, elementwise, lapack, pointwise, random, reductions
from pblas.backends.cpu.blas import syr2k, syrk, trsm
from pblas.backends.cpu.reproducible import PieceGemm, fingerprint, finish
from pblas.backends.device import Axis, Device, Mark, Programs, Traits, Uplo
from pblas.backends.dtypes import Array, Dtype, Order, accumulator_dtype
from pblas.backends.pieces import PieceProducts, PieceSizes
from pblas.backends.push_engine import EXACT, GemmModes
from pblas.epilogues import Epilogue, Node, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pblas.backends.traced import Kind

_HERE = nullcontext()
_QUOTIENT = parse("x / s")
_CACHED = 1 << 15  # elements of a rank-k update that are formed before they are added, so that they stay in cache


class HostArrays(Device):
    """NumPy arrays; `pblas.backends.device` documents the methods."""

    traits = Traits(
        gpu=False,
        blocking=True,
        reads_peers=True,
        packs_blocks=True,
        most_operands=1 << 62,
        most_across=64,
        pivot_dtype=np.dtype(np.intc),
        lacks=frozenset(
            {
                *("trmm", "download", "upload", "check_stream", "multiply_part", "multiply_both"),
                *("multiply_whole", "update_part", "update_whole", "band_stages"),
            }
        ),
    )
    block_copy = None

    # Memory

    def empty(self, nbytes: int) -> Array:
        return np.empty(nbytes, np.uint8)

    def array(self, memory: Array, shape: tuple[int, ...], dtype: Dtype, order: Order = "F") -> Array:
        return np.ndarray(shape, dtype, memory.data, order=order)

    def scratch(self, shape: tuple[int, int], dtype: Dtype) -> Array:
        return np.empty(shape, dtype, "F")

    def like(self, x: Array, dtype: Dtype) -> Array:
        return np.empty_like(x, dtype)

    # Elementwise

    def assign(self, x: Array, z: Array) -> None:
        z[...] = x

    def scale(self, beta: complex, z: Array) -> None:
        blas.scale(beta, z)

    def add_scaled(self, alpha: complex, x: Array, beta: complex, z: Array) -> None:
        blas.add_scaled(alpha, x, beta, z)

    def evaluate(self, tree: Node, operands: Mapping[str, object], compute: Dtype, out: Array) -> None:
        elementwise.evaluate(tree, operands, compute, out)

    def normalize(self, x: Array, z: Array) -> None:
        if not x.size:
            return
        total = accumulator_dtype(x.dtype)
        real = np.empty(0, total).real.dtype
        parts = [(x.real, z.real), (x.imag, z.imag)] if x.dtype.kind == "c" else [(x, z)]
        with np.errstate(all="ignore"):
            # Z := X / max |real or imaginary part|, so that squares neither overflow nor vanish, then Z := Z / norm(Z)
            largest = float(np.max([reductions.reduce("abs_max", part, None, "F", real) for part, _ in parts]))
            for part, out in parts:
                elementwise.evaluate(_QUOTIENT, {"x": part, "s": largest or 1.0}, real, out)
            size = sqrt(abs(reductions.dot(z, z, "F", total, conj=True)[0])) if largest else 1.0
            elementwise.evaluate(_QUOTIENT, {"x": z, "s": size}, total, z)

    def conjugate(self, z: Array) -> None:
        np.conjugate(z, out=z)

    def combining(
        self, tree: Node, operands: Mapping[str, object], name: str, compute: Dtype, out: Array
    ) -> Callable[[Array, Array], None] | None:
        return elementwise.combining(tree, operands, name, compute, out)

    def finish(
        self, epilogue: Epilogue, x: Array, operands: Mapping[str, object], out: Array, stream: object = None
    ) -> None:
        pointwise.finish(epilogue, x, operands, out)

    def add_rows(self, x: Array, out: Array, stream: object = None) -> None:
        with np.errstate(all="ignore"):
            out[...] = x.sum(0, accumulator_dtype(x.dtype))

    def largest(self, x: Array, out: Array, stream: object = None) -> None:
        with np.errstate(all="ignore"):
            out[...] = np.abs(x).max(initial=0) if x.size else 0

    # Reductions, to arrays in host memory

    def reduce(
        self, kind: str, x: Array, axis: Axis, order: str, dtype: Dtype, scale: object = None, *, waits: bool = True
    ) -> Array:
        return reductions.reduce(kind, x, axis, order, dtype, scale)

    def arg_reduce(self, kind: Literal["max", "min"], x: Array, axis: Axis, order: str) -> tuple[Array, Array]:
        return reductions.arg_reduce(kind, x, axis, order)

    def dot(self, x: Array, y: Array, order: str, dtype: Dtype, *, conj: bool) -> Array:
        return reductions.dot(x, y, order, dtype, conj=conj)

    def exact_sums(self, kind: Any, x: Array, axis: Axis, other: Array | None = None, *, conj: bool = False) -> Array:
        from pblas.backends.cpu.exact_sums import binned

        return binned(kind, x, axis, other, conj=conj)

    def take(self, x: Array, rows: Array, columns: Array) -> Array:
        elements: Array = x[rows, columns]
        return elements

    def fill_whole(self, x: Array, value: complex) -> None:
        with np.errstate(all="ignore"):
            x[...] = value

    def randomize(self, x: Array, rows: Array, columns: Array, seed: int, *, normal: bool) -> None:
        random.fill(x, rows, columns, seed, normal=normal)

    def pick(self, x: Array, rows: Array, columns: Array) -> Array:
        is_turned = abs(x.strides[0]) < abs(x.strides[1])
        index = _box(columns, rows) if is_turned else _box(rows, columns)
        chosen = (x.T if is_turned else x)[index]  # which reads lines of neighbours
        picked: Array = np.ascontiguousarray(chosen) if chosen.base is None else chosen.copy()
        return picked.T if is_turned else picked

    def place(
        self,
        x: Array,
        z: Array,
        rows: Array | None = None,
        columns: Array | None = None,
        *,
        of: Sequence[Array] | None = None,
        conj: bool = False,
    ) -> None:
        if of is not None:
            x = self.pick(x, *of)
        if abs(z.strides[0]) < abs(z.strides[1]):
            x, z, rows, columns = x.T, z.T, columns, rows
        z[... if rows is None or columns is None else _box(rows, columns)] = np.conj(x) if conj else x

    def to_host(self, x: Array) -> Array:
        return x

    def from_host(self, x: Array, z: Array) -> None:
        if x is not z:
            z[...] = x

    def select(self, x: Array, flags: Array, *, with_places: bool) -> tuple[tuple[Array, Array] | None, Array]:
        i, j = np.nonzero(flags)
        return (i, j), x[i, j]

    def fill(self, x: Array, rows: Array, columns: Array, value: float) -> None:
        x[rows, columns] = value

    def multiply_vector(self, x: Array, vector: Array, dtype: Dtype, *, conj: bool) -> Array:
        if dtype != x.dtype:  # 16 bits, multiplied in 32
            product = np.empty((x.shape[0], 1), dtype)
            self.gemm(1, x, np.ascontiguousarray(vector)[:, None], 0, product)
            return product[:, 0]
        conj = conj and x.dtype.kind == "c"
        result: Array = x @ np.ascontiguousarray(vector.conj() if conj else vector)  # GEMV; a GEMM of width 1 is slower
        return result.conj() if conj else result

    def add_product(self, x: Array, y: Array, z: Array) -> None:
        dtype = accumulator_dtype(z.dtype)
        if abs(z.strides[0]) < abs(z.strides[1]):
            x, y, z = y.T, x.T, z.T
        x, y = x.astype(dtype, copy=False), y.astype(dtype, copy=False)
        step = max(1, _CACHED // max(1, z.shape[1]))
        buffers = np.empty((2, step, z.shape[1]), dtype)
        for start in range(0, z.shape[0], step):
            part, left = z[start : start + step], x[start : start + step]
            terms, term = buffers[:, : len(part)]
            np.multiply(left[:, :1], y[:1], out=terms)
            for k in range(1, len(y)):
                np.add(terms, np.multiply(left[:, k : k + 1], y[k : k + 1], out=term), out=terms)
            np.add(part, terms, out=part, casting="unsafe")

    # Products

    def gemm(
        self, alpha: complex, x: Array, y: Array, beta: complex, z: Array, *, conj: tuple[bool, bool] = (False, False)
    ) -> None:
        blas.gemm(alpha, x, y, beta, z, conj=conj)

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
        total = accumulator_dtype(z.dtype)
        w = z if total == z.dtype else np.empty_like(z, total)
        if c is not None:
            w[...] = c
        if y is not None:
            blas.gemm(alpha, x, y, beta, w)
        else:
            syrk(alpha, x.astype(total, copy=False), beta, w, uplo="L", hermitian=True)
            lapack.mirror(w)
        if w is not z:
            z[...] = w

    def exact_gemm(self, sizes: PieceSizes, allocate: Callable[[int], Array]) -> PieceProducts:
        from pblas.backends.cpu.exact import ExactGemm

        return ExactGemm(sizes, (), allocate)

    def piece_gemm(self, sizes: PieceSizes, dtype: Dtype, last: int, allocate: Callable[[int], Array]) -> PieceProducts:
        return PieceGemm(sizes, (sizes.width, last), allocate)

    def fingerprint(self, dtype: Dtype) -> str:
        return fingerprint(dtype)

    def finish_sum(self, alpha: complex, x: Array, beta: complex, z: Array) -> None:
        finish(alpha, x, beta, z)

    def gram(self, x: Array) -> Array:
        product = np.empty((x.shape[1], x.shape[1]), x.dtype, "F")
        blas.gemm(1, x.T, x, 0, product, conj=(True, False))
        return product

    def subtract_square(self, x: Array, z: Array) -> None:
        n = z.shape[1]
        syrk(-1, x[:n], 1, z[:n], uplo="L", hermitian=True)
        blas.gemm(-1, x[n:], x[:n].T, 1, z[n:], conj=(False, True))

    def trsm(
        self, t: Array, z: Array, *, uplo: Uplo, unit: bool = False, conj: bool = False, inverts: bool = True
    ) -> None:
        trsm(t, z, uplo=uplo, unit=unit, conj=conj)

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
        syrk(alpha, x, beta, z, uplo=uplo, conj=conj, hermitian=hermitian)

    def syr2k(
        self,
        alpha: complex,
        x: Array,
        y: Array,
        beta: complex,
        z: Array,
        *,
        uplo: Uplo,
        conj: tuple[bool, bool] = (False, False),
        hermitian: bool = False,
    ) -> None:
        syr2k(alpha, x, y, beta, z, uplo=uplo, conj=conj, hermitian=hermitian)

    # Factorizations of blocks in Fortran order

    def solve_factored(self, t: Array, z: Array, *, unit: bool = False, conj: bool = False) -> None:
        trsm(t, z, uplo="L", unit=unit, conj=conj)

    def lower(self, x: Array) -> None:
        lapack.lower(x)

    def unit_lower(self, x: Array, z: Array) -> None:
        z[...] = np.tril(x, -1)
        np.fill_diagonal(z, 1)

    def cholesky(self, x: Array, info: Array) -> None:
        info[0] = lapack.potrf(x)

    def lu(self, x: Array, pivots: Array, info: Array) -> None:
        info[0] = lapack.getrf(x, pivots)

    def swap_rows(self, x: Array, pivots: Array, start: int = 0, *, backward: bool = False) -> None:
        lapack.swap_rows(x, pivots, start, backward=backward)

    def qr(self, x: Array, t: Array) -> None:
        lapack.geqrt(x, t)

    def multiply_q(self, v: Array, t: Array, c: Array, *, adjoint: bool, conj: bool = False) -> None:
        lapack.gemqrt(v, t, c, adjoint=adjoint, conj=conj)

    def qr_stacked(self, r: Array, b: Array, t: Array, *, triangular: bool = False) -> None:
        lapack.tpqrt(r, b, t, triangular=triangular)

    def multiply_q_stacked(
        self, v: Array, t: Array, top: Array, c: Array, *, adjoint: bool, triangular: bool = False
    ) -> None:
        lapack.tpmqrt(v, t, top, c, adjoint=adjoint, triangular=triangular)

    def block_of_reflectors(self, v: Array, tau: Array, t: Array) -> None:
        lapack.larft(v, tau, t)

    def eigh(self, x: Array, *, vectors: bool) -> tuple[Array, int]:
        values = np.empty(len(x), x.real.dtype)
        return values, lapack.syevd(x, values, vectors=vectors)

    def fix_signs(self, x: Array) -> None:
        lapack.fix_signs(x)

    # Order

    def begin(
        self, stream: object = None, modes: GemmModes = EXACT, *, autotune: bool = False, in_order: bool = False
    ) -> None:
        del modes, autotune, in_order
        if stream is not None:
            raise errors.ArgumentError(f"execute: stream is for GPUs, got {stream!r}; leave it out")

    def synchronize(self) -> None:
        pass

    def hand_over(self) -> None:
        pass

    def replayed(self, programs: Programs, key: Callable[[], object], body: Callable[[], None]) -> bool:
        body()
        return True

    def on_side_lane(self, what: str = "", kind: Kind = "copy") -> AbstractContextManager[None]:
        return _HERE

    def on_second_lane(self) -> AbstractContextManager[None]:
        return _HERE

    def mark(self) -> Mark:
        return None

    def follow(self, mark: Mark) -> None:
        pass

    def wait(self, mark: Mark) -> None:
        pass

    def close(self) -> None:
        pass


def _box(slow: Array, fast: Array) -> tuple[Any, ...]:
    """The index of a box of elements: with slices where indices have one distance, which read and write in a line.

    >>> _box(np.array([1, 3, 5]), np.array([4, 0, 1]))
    (slice(1, 6, 2), array([4, 0, 1]))
    """
    regular = [_as_slice(indices) for indices in (slow, fast)]
    return tuple(regular) if any(isinstance(x, slice) for x in regular) else np.ix_(slow, fast)


def _as_slice(indices: Array) -> slice | Array:
    """Ascending indices of one distance as a slice; others as they are."""
    if not indices.size:
        return slice(0)
    first, last = int(indices[0]), int(indices[-1])
    step = (last - first) // max(1, indices.size - 1) or 1
    is_regular = step > 0 and np.array_equal(indices, np.arange(first, last + 1, step))
    return slice(first, last + 1, step) if is_regular else indices

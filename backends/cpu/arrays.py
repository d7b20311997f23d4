"""Array operations of the executors of general plans and redistributions: memory, copies, products, order.

This module has NumPy's arrays; `pblas.backends.cuda.arrays` has the same methods for a GPU. On a GPU an operation
returns before it is done. Operations of one *lane* run in the order of their calls: lane "main" for products, and lane
"side", which `beside` selects, for copies that run during the products. One lane can `follow` a `mark` of the other.
In host memory every operation is done when its call returns, so there is nothing to order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pblas import errors
from pblas.backends.cpu import elementwise, lapack, reductions
from pblas.backends.cpu import gemm as blas
from pblas.backends.cpu.syrk import syr2k, syrk
from pblas.backends.cpu.trsm import trsm
from pblas.backends.dtypes import accumulator_dtype
from pblas.backends.push_engine import EXACT, GemmModes

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.epilogues import Node

_HERE = nullcontext()
_CACHED = 1 << 15
"""Elements of a rank-k update that are formed before they are added, so that they stay in cache."""
_MOST_PROGRAMS = 4  # each may hold memory as large as D


class Programs(OrderedDict[Any, Any]):
    """CUDA graphs of the most recently used executions, by their keys; empty on CPUs."""

    def keep(self, key: Any, program: Any) -> None:
        """Add a recording, and drop the least recently used one if there are too many (local)."""
        self[key] = program
        self.move_to_end(key)
        while len(self) > _MOST_PROGRAMS:
            self.popitem(last=False)


class HostArrays:
    """NumPy arrays, multiplied by BLAS."""

    at_once = True
    """Whether a product is done when its call returns."""
    reads_peers = True
    """Whether a product may read operands in a peer's memory; otherwise they are copied first."""
    packs = True
    """Whether blocks of cyclic layouts are copied side by side, so that one product multiplies many of them."""
    pivot_dtype = np.dtype(np.intc)
    """Integers of LAPACK: INFO, and numbers of exchanged rows."""
    most_across = 64
    """Most rows and columns of a part of a message across the diagonal, which is copied with a mask."""
    block_copy: Any = None
    """Class that copies the elements of a message; None: `pblas.execute.redistribution.packing` copies by NumPy."""

    # Memory

    def empty(self, nbytes: int) -> Array:
        """Bytes of this rank alone, uninitialised (local)."""
        return np.empty(nbytes, np.uint8)

    def array(self, memory: Array, shape: tuple[int, ...], dtype: np.dtype[Any], order: Any = "F") -> Array:
        """A tight array at the start of memory that `empty` returned (local)."""
        return np.ndarray(shape, dtype, memory.data, order=order)

    def scratch(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
        """Uninitialised memory in Fortran order, on a GPU until the next call for this lane (local)."""
        return np.empty(shape, dtype, "F")

    def like(self, x: Array, dtype: np.dtype[Any]) -> Array:
        """An uninitialised array of the shape and storage order of x (local)."""
        return np.empty_like(x, dtype)

    # Elementwise

    def assign(self, x: Array, z: Array) -> None:
        """Z := X, converted to Z's dtype."""
        z[...] = x

    def scale(self, beta: complex, z: Array) -> None:
        """Z := beta Z; with beta = 0 Z is not read."""
        blas.scale(beta, z)

    def add_scaled(self, alpha: complex, x: Array, beta: complex, z: Array) -> None:
        """Z := alpha X + beta Z, in Z's precision; X is not read when alpha is 0, Z not when beta is 0."""
        blas.add_scaled(alpha, x, beta, z)

    def check_operands(self, verb: str, count: int) -> None:
        """Raise ArgumentError if an expression has more operands than `evaluate` takes: on CPUs it takes any number."""

    def evaluate(self, tree: Node, operands: Mapping[str, Any], compute: np.dtype[Any], out: Array) -> None:
        """Out := an expression of numbers and arrays of any dtypes, rounded once; see `elementwise.evaluate`.

        Args:
            tree: from `pblas.epilogues.parse`; it may also use conj, real and imag.
            operands: numbers, and arrays of two dimensions that broadcast to out, by name.
            compute: dtype of the computation.
            out: m x n; an operand may be the same memory.
        """
        elementwise.evaluate(tree, operands, compute, out)

    def conjugate(self, z: Array) -> None:
        """Z := the conjugate of Z."""
        np.conjugate(z, out=z)

    def combining(
        self, tree: Node, operands: Mapping[str, Any], name: str, compute: np.dtype[Any], out: Array
    ) -> Callable[[Array, Array], None] | None:
        """A function that evaluates an expression while one operand arrives; see `elementwise.combining`."""
        return elementwise.combining(tree, operands, name, compute, out)

    def add_rows(self, x: Array, out: Array, stream: Any = None) -> None:
        """Out := the sum of the rows of x, added in 32 bits at least; on GPUs on the caller's stream."""
        with np.errstate(all="ignore"):  # as in `Runtime.collective_section`
            out[...] = x.sum(0, accumulator_dtype(x.dtype))

    def largest(self, x: Array, out: Array, stream: Any = None) -> None:
        """Out, of one float32, := the largest |element| of a real x, NaN if it has one; on GPUs on the caller's stream.

        Args:
            x: m x n; without elements the result is 0 (local).
            out: array of one element (local).
            stream: on GPUs, the caller's stream; None for the library's current one (local).
        """
        with np.errstate(all="ignore"):  # as in `Runtime.collective_section`
            out[...] = np.abs(x).max(initial=0) if x.size else 0

    # Reductions, to arrays in host memory

    def reduce(
        self, kind: str, x: Array, axis: reductions.Axis, order: str, dtype: np.dtype[Any], scale: Any = None
    ) -> Array:
        """The sum, extreme or sum of squares of x along an axis; see `pblas.backends.cpu.reductions.reduce`."""
        return reductions.reduce(kind, x, axis, order, dtype, scale)

    def arg_reduce(
        self, kind: Literal["max", "min"], x: Array, axis: reductions.Axis, order: str
    ) -> tuple[Array, Array]:
        """Extremes and their first places; see `pblas.backends.cpu.reductions.arg_reduce`."""
        return reductions.arg_reduce(kind, x, axis, order)

    def dot(self, x: Array, y: Array, order: str, dtype: np.dtype[Any], *, conj: bool) -> Array:
        """The sum of op(x) y over all elements; see `pblas.backends.cpu.reductions.dot`."""
        return reductions.dot(x, y, order, dtype, conj=conj)

    def take(self, x: Array, rows: Array, columns: Array) -> Array:
        """The elements x[rows[i], columns[i]], in one dimension (local)."""
        elements: Array = x[rows, columns]
        return elements

    def fill(self, x: Array, rows: Array, columns: Array, value: float) -> None:
        """x[rows[i], columns[i]] := value."""
        x[rows, columns] = value

    def multiply_vector(self, x: Array, vector: Array, dtype: np.dtype[Any], *, conj: bool) -> Array:
        """op(X) v in the precision of `dtype`, for a vector in host memory; op is the conjugate if `conj` (local)."""
        if dtype != x.dtype:  # 16 bits, multiplied in 32
            product = np.empty((x.shape[0], 1), dtype)
            self.gemm(1, x, np.ascontiguousarray(vector)[:, None], 0, product)
            return product[:, 0]
        conj = conj and x.dtype.kind == "c"
        result: Array = x @ np.ascontiguousarray(vector.conj() if conj else vector)  # GEMV; a GEMM of width 1 is slower
        return result.conj() if conj else result

    def add_product(self, x: Array, y: Array, z: Array) -> None:
        """Z += X Y, for an X of few columns and a Y of few rows in host memory, in Z's precision (local)."""
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
        """Z := alpha X Y + beta Z, in place; X and Y may be marked as conjugated.

        Args:
            alpha: scalar (local).
            x: m x k, one of its two strides is one element (local).
            y: k x n, one of its two strides is one element, of the same dtype (local).
            beta: scalar; Z is not read when it is 0 (local).
            z: m x n, one of its two strides is one element, of the accumulator dtype of x (local).
            conj: multiply with the conjugates of X and Y.
        """
        blas.gemm(alpha, x, y, beta, z, conj=conj)

    def gram(self, x: Array) -> Array:
        """X^H X of an X in Fortran order, in host memory (local)."""
        product = np.empty((x.shape[1], x.shape[1]), x.dtype, "F")
        blas.gemm(1, x.T, x, 0, product, conj=(True, False))
        return product

    def subtract_square(self, x: Array, z: Array) -> None:
        """Z := Z - X X^H in the lower triangle of a Hermitian Z, and below it.

        Args:
            x: rows of which the first ones have the numbers of Z's columns, in Fortran order (local).
            z: as many rows, and at most as many columns, in Fortran order (local).
        """
        n = z.shape[1]
        syrk(-1, x[:n], 1, z[:n], uplo="L", hermitian=True)
        blas.gemm(-1, x[n:], x[:n].T, 1, z[n:], conj=(False, True))

    def trsm(
        self,
        t: Array,
        z: Array,
        *,
        uplo: Literal["L", "U"],
        unit: bool = False,
        conj: bool = False,
        inverts: bool = True,
    ) -> None:
        """Z := T^-1 Z, in place, for a triangle T; T may be marked as conjugated.

        Args:
            t: m x m, one of its two strides is one element; its other triangle is not read (local).
            z: m x n, one of its two strides is one element, of 32 bits or more, as t (local).
            uplo: the triangle of T.
            unit: take the diagonal of T as ones, and do not read it.
            conj: solve with the conjugate of T.
            inverts: whether a GPU may multiply with inverses of blocks, whose error grows with their condition.
        """
        trsm(t, z, uplo=uplo, unit=unit, conj=conj)

    def syrk(
        self,
        alpha: complex,
        x: Array,
        beta: complex,
        z: Array,
        *,
        uplo: Literal["L", "U"],
        conj: bool = False,
        hermitian: bool = False,
    ) -> None:
        """One triangle of Z := alpha X X^T + beta Z, or X X^H. See `pblas.backends.cpu.syrk`."""
        syrk(alpha, x, beta, z, uplo=uplo, conj=conj, hermitian=hermitian)

    def syr2k(
        self,
        alpha: complex,
        x: Array,
        y: Array,
        beta: complex,
        z: Array,
        *,
        uplo: Literal["L", "U"],
        conj: tuple[bool, bool] = (False, False),
        hermitian: bool = False,
    ) -> None:
        """One triangle of Z := alpha X Y^T + alpha Y X^T + beta Z, or of its Hermitian form.

        See `pblas.backends.cpu.syrk`. On GPUs plans have no squares for it.
        """
        syr2k(alpha, x, y, beta, z, uplo=uplo, conj=conj, hermitian=hermitian)

    # Factorizations of blocks in Fortran order

    def solve_factored(self, t: Array, z: Array, *, unit: bool = False, conj: bool = False) -> None:
        """Z := T^-1 Z for the lower triangle of a factored block T, in place.

        A GPU multiplies with T^-1, whose error grows with the condition of the block.

        Args:
            t: m x m, in Fortran order, as `cholesky` or `lu` left it (local).
            z: m x n, one of its two strides is one element (local).
            unit: take the diagonal of T as ones, and do not read it.
            conj: solve with the conjugate of T.
        """
        trsm(t, z, uplo="L", unit=unit, conj=conj)

    def lower(self, x: Array) -> None:
        """X := its lower triangle, with 0 above the diagonal and real elements on it."""
        lapack.lower(x)

    def cholesky(self, x: Array, info: Array) -> None:
        """X := L with X = L L^H, and LAPACK's INFO in an array of one element.

        See `pblas.backends.cpu.lapack.potrf`.
        """
        info[0] = lapack.potrf(x)

    def lu(self, x: Array, pivots: Array, info: Array) -> None:
        """X := L and U with P X = L U, and LAPACK's INFO in an array of one element.

        See `pblas.backends.cpu.lapack.getrf`.
        """
        info[0] = lapack.getrf(x, pivots)

    def swap_rows(self, x: Array, pivots: Array, start: int = 0, *, backward: bool = False) -> None:
        """Exchange row i with row pivots[i] for i from `start` on; see `pblas.backends.cpu.lapack.swap_rows`."""
        lapack.swap_rows(x, pivots, start, backward=backward)

    def qr(self, x: Array, t: Array) -> None:
        """X := R and V with X = Q R; T gets the triangles of Q. See `pblas.backends.cpu.lapack.geqrt`."""
        lapack.geqrt(x, t)

    def multiply_q(self, v: Array, t: Array, c: Array, *, adjoint: bool, conj: bool = False) -> None:
        """C := Q C or Q^H C, with the Q of `qr` or its conjugate; see `pblas.backends.cpu.lapack.gemqrt`."""
        lapack.gemqrt(v, t, c, adjoint=adjoint, conj=conj)

    def qr_stacked(self, r: Array, b: Array, t: Array, *, triangular: bool = False) -> None:
        """R and B := R' and V with [R; B] = Q [R'; 0]; see `pblas.backends.cpu.lapack.tpqrt`."""
        lapack.tpqrt(r, b, t, triangular=triangular)

    def multiply_q_stacked(
        self, v: Array, t: Array, top: Array, c: Array, *, adjoint: bool, triangular: bool = False
    ) -> None:
        """[top; C] := Q [top; C] or Q^H [top; C], with the Q of `qr_stacked`; see `lapack.tpmqrt`."""
        lapack.tpmqrt(v, t, top, c, adjoint=adjoint, triangular=triangular)

    def block_of_reflectors(self, v: Array, tau: Array, t: Array) -> None:
        """T := the triangle with H_1 H_2 ... H_k = I - V T V^H; see `pblas.backends.cpu.lapack.larft`."""
        lapack.larft(v, tau, t)

    # Order

    def begin(self, stream: Any = None, modes: GemmModes = EXACT, *, autotune: bool = False) -> None:
        """Begin an execution, after the work that its caller has launched on the GPU.

        Args:
            stream: the caller's CUDA stream (local).
            modes: how products are computed where the hardware has a choice (global).
            autotune: try several algorithms for each new product, where there are several (global).

        Raises:
            ArgumentError: a stream on CPUs; on GPUs an unusable stream.
            BackendError: on GPUs, a library or the GPU fails.
        """
        del modes, autotune
        if stream is not None:
            raise errors.ArgumentError(f"execute: stream is for GPUs, got {stream!r}; leave it out")

    def settle(self) -> None:
        """Return when all operations called before are done."""

    def replayed(self, programs: Programs, key: Callable[[], Any], body: Callable[[], None]) -> bool:
        """Run a body that only calls methods of these arrays, or replay it.

        A GPU runs the body twice at most, records it, and replays the recording from the third time on.

        Args:
            programs: the caller's recordings (local).
            key: identifies the body, by everything that its calls depend on (local).
            body: the work (local).

        Returns:
            Whether the body was run (local).
        """
        body()
        return True

    def beside(self, what: str = "") -> AbstractContextManager[None]:
        """A with block whose calls go to the side lane.

        Args:
            what: name of its work, for traces; "" if it moves nothing (local).
        """
        return _HERE

    def mark(self) -> Any:
        """A mark after the work issued on this lane so far."""
        return None

    def follow(self, mark: Any) -> None:
        """Work issued on this lane from now on starts after a mark of the other lane."""

    def close(self) -> None:
        """Free the backend's resources: there are none."""

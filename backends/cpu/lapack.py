"""Factorizations of local blocks, on NumPy arrays in Fortran order, in place, GIL released.

As in `pblas.backends.cpu.blas` the routines are those of the LAPACK that SciPy ships, called by pointer: they
take any leading dimension, and copy nothing. Sizes are below 2^31, as in LAPACK.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, Literal
from zlib import crc32

import numpy as np
from scipy.linalg import cython_lapack

from pblas.backends.cpu.blas import _pointer
from pblas.backends.dtypes import Array, address_of

_PREFIXES = dict(zip("fdFD", "sdcz", strict=True))  # first letters of routines, by NumPy's letters of dtypes
_MIRRORED = 64  # columns that are mirrored at a time


def potrf(x: Array) -> int:
    """X := L with X = L L^H, for the lower triangle of a Hermitian X.

    >>> x = np.array([[4.0, 9.0], [2.0, 5.0]], order="F"); potrf(x), x.tolist()
    (0, [[2.0, 9.0], [1.0, 2.0]])
    >>> potrf(np.array([[4.0, 0.0], [2.0, 1.0]], order="F"))
    2
    """
    n = x.shape[0]
    if not n:
        return 0
    if x.dtype.kind == "c":
        x.imag[np.diag_indices(n)] = 0
    info = ctypes.c_int()
    _call(x, "potrf", b"L", n, x, _lda(x), info)
    factored = np.diagonal(x)[: info.value - 1 if info.value else n]
    invalid = np.flatnonzero(np.isnan(factored))  # OpenBLAS lets a NaN pass
    return int(invalid[0]) + 1 if invalid.size else info.value


def lower(x: Array) -> None:
    """X := its lower triangle, with 0 above the diagonal and real elements on it.

    >>> x = np.array([[4.0, 9.0], [2.0, 5.0]]); lower(x); x.tolist()
    [[4.0, 0.0], [2.0, 5.0]]
    """
    n = x.shape[0]
    for j in range(1, n):
        x[:j, j] = 0
    if x.dtype.kind == "c":
        x.imag[np.diag_indices(n)] = 0


def mirror(x: Array) -> None:
    """Above the diagonal X := the adjoint of its lower triangle.

    >>> x = np.array([[4.0, 9.0], [2.0, 5.0]]); mirror(x); x.tolist()
    [[4.0, 2.0], [2.0, 5.0]]
    """
    for j in range(0, len(x), _MIRRORED):
        rows, square = x[j : j + _MIRRORED], x[j : j + _MIRRORED, j : j + _MIRRORED]
        x[:j, j : j + _MIRRORED] = rows[:, :j].conj().T
        square[...] = np.tril(square) + np.tril(square, -1).conj().T


def getrf(x: Array, pivots: Array) -> int:
    """X := L and U with P X = L U by partial pivoting; the diagonal of L is 1 and not stored.

    >>> x = np.array([[1.0, 2.0], [2.0, 2.0]], order="F"); pivots = np.empty(2, np.intc)
    >>> getrf(x, pivots), x.tolist(), pivots.tolist()
    (0, [[2.0, 2.0], [0.5, 1.0]], [2, 2])
    """
    if not x.size:
        return 0
    info = ctypes.c_int()
    _call(x, "getrf", *x.shape, x, _lda(x), pivots, info)
    return info.value


@lru_cache(4)
def factored_bits(threads: int) -> int:
    """Bits of factors: ranks whose LAPACK, processor or number of threads adds in another order have other ones."""
    bits = 0
    for dtype in "fdFD":  # more rows than are added at a time
        x = np.asfortranarray((np.arange(1000 * 64) ** 2 % 257 / 257).reshape(1000, 64), dtype)
        y, pivots, t = x.copy(order="F"), np.empty(64, np.intc), np.empty((32, 64), dtype, order="F")
        getrf(x, pivots)
        geqrt(y, t)
        bits = crc32(x.tobytes() + y.tobytes() + t.tobytes(), bits)
    return bits + (threads << 32)


def swap_rows(x: Array, pivots: Array, start: int = 0, *, backward: bool = False) -> None:
    """Exchange row i of X with row pivots[i], one after the other for i from `start` on.

    >>> x = np.array([[1.0], [2.0], [3.0]], order="F")
    >>> swap_rows(x, np.array([3, 3, 3], np.intc)); x.ravel().tolist()
    [3.0, 1.0, 2.0]
    """
    if x.size and start < len(pivots):
        _call(x, "laswp", x.shape[1], x, _lda(x), start + 1, len(pivots), pivots, -1 if backward else 1)


def geqrt(x: Array, t: Array) -> None:
    """X := R and V with X = Q R and Q = H_1 H_2 ..., H_b = I - V_b T_b V_b^H for each block b of nb columns.

    V is stored below the diagonal, whose ones are not.

    >>> x = np.array([[3.0], [4.0]], order="F"); t = np.empty((1, 1), order="F")
    >>> geqrt(x, t); x.round(3).tolist(), t.round(3).tolist()
    ([[-5.0], [0.5]], [[1.6]])
    """
    (m, n), nb = x.shape, t.shape[0]
    t[...] = 0
    if x.size:
        _call(x, "geqrt", m, n, nb, x, _lda(x), t, _lda(t), np.empty(nb * n, x.dtype), ctypes.c_int())


def gemqrt(v: Array, t: Array, c: Array, *, adjoint: bool, conj: bool = False) -> None:
    """C := Q C, or Q^H C if `adjoint`, with the Q of `geqrt`."""
    (m, n), (nb, k) = c.shape, t.shape
    if not c.size or not k:
        return
    work, trans = np.empty(nb * n, c.dtype), _trans(c, adjoint)
    if conj:  # conj(Q) C = conj(Q conj(C))
        np.conjugate(c, out=c)
    _call(c, "gemqrt", b"L", trans, m, n, k, nb, v, _lda(v), t, _lda(t), c, _lda(c), work, ctypes.c_int())
    if conj:
        np.conjugate(c, out=c)


def tpqrt(r: Array, b: Array, t: Array, *, triangular: bool = False) -> None:
    """R and B := R' and V with [R; B] = Q [R'; 0], for two matrices one below the other.

    >>> r, b, t = (np.array([[x]], order="F") for x in (3.0, 4.0, 0.0))
    >>> tpqrt(r, b, t); r.round(3).tolist(), b.round(3).tolist(), t.round(3).tolist()
    ([[-5.0]], [[0.5]], [[1.6]])
    """
    (m, n), nb = b.shape, t.shape[0]
    if b.size:
        work, l = np.empty(nb * n, b.dtype), m if triangular else 0
        _call(b, "tpqrt", m, n, l, nb, r, _lda(r), b, _lda(b), t, _lda(t), work, ctypes.c_int())


def tpmqrt(v: Array, t: Array, top: Array, c: Array, *, adjoint: bool, triangular: bool = False) -> None:
    """[C1; C2] := Q [C1; C2], or Q^H [C1; C2] if `adjoint`, with the Q of `tpqrt`."""
    (m, n), (nb, k) = c.shape, t.shape
    if c.size and k:
        work, ends = np.empty(nb * n, c.dtype), (b"L", _trans(c, adjoint), m, n, k, m if triangular else 0, nb)
        arrays = (v, _lda(v), t, _lda(t), top, _lda(top), c, _lda(c))
        _call(c, "tpmqrt", *ends, *arrays, work, ctypes.c_int())


def larft(v: Array, tau: Array, t: Array) -> None:
    """T := the triangle with H_1 H_2 ... H_k = I - V T V^H, for reflectors H_i = I - tau_i v_i v_i^H.

    >>> v, t = np.array([[9.0, 9.0], [0.5, 9.0]], order="F"), np.empty((2, 2), order="F")
    >>> larft(v, np.array([1.6, 0.0]), t); t.tolist()
    [[1.6, 0.0], [0.0, 0.0]]
    """
    (m, k) = v.shape
    t[...] = 0
    if k:
        tau = np.ascontiguousarray(tau, v.dtype)
        _call(v, "larft", b"F", b"C", m, k, v, _lda(v), tau, t, _lda(t))


def larfg(x: Array) -> Any:
    """X := (beta, v_2, v_3, ...) with H^H X = (beta, 0, ...) for H = I - tau v v^H, v_1 = 1; returns tau.

    Source: LAPACK, xLARFG.

    >>> x = np.array([3.0, 4.0]); float(round(larfg(x), 3)), x.round(3).tolist()
    (1.6, [-5.0, 0.5])
    """
    tau = np.zeros(1, x.dtype)
    _call(x, "larfg", len(x), x, x[1:] if len(x) > 1 else x, 1, tau)
    return tau[0]


def sytrd(x: Array, d: Array, e: Array, tau: Array, uplo: Literal["L", "U"] = "L") -> None:
    """X := V with T = Q^H X Q tridiagonal, of which D is the diagonal and E the one beside; uses one triangle of X.

    Q = H_1 H_2 ... H_(n-1), H_j = I - tau_j v_j v_j^H; v_j is stored below the diagonal of column j, without
    its 1 at the top. With "U" Q = H_(n-1) ... H_1, and v_j is above the diagonal of column j + 1, without its 1 at the
    end.

    >>> d, e, tau = np.zeros(2), np.zeros(1), np.zeros(1)
    >>> sytrd(np.array([[1.0, 9.0], [2.0, 3.0]], order="F"), d, e, tau); d.tolist(), e.tolist()
    ([1.0, 3.0], [2.0])
    """
    n, nb = len(x), 64
    if n:
        name = "hetrd" if x.dtype.kind == "c" else "sytrd"
        _call(x, name, uplo.encode(), n, x, _lda(x), d, e, tau, np.empty(nb * n, x.dtype), nb * n, ctypes.c_int())


def sbtrd(x: Array, width: int, d: Array, e: Array) -> None:
    """D and E := the diagonals of a tridiagonal T = Q^T A Q, for the lower band A of a real symmetric X.

    A has the diagonal of X and `width` others; the rest of X is not read.

    >>> d, e = np.zeros(2), np.zeros(1)
    >>> sbtrd(np.array([[1.0, 9.0], [2.0, 3.0]]), 1, d, e); d.tolist(), e.tolist()
    ([1.0, 3.0], [2.0])
    """
    n = len(x)
    width = min(width, max(n - 1, 0))
    band = np.zeros((width + 1, n), x.dtype, "F")
    for k in range(width + 1 if n else 0):
        band[k, : n - k] = x.diagonal(-k)
    if n:
        none, work = np.empty((1, 1), x.dtype), np.empty(n, x.dtype)
        _call(x, "sbtrd", b"N", b"L", n, width, band, width + 1, d, e, none, 1, work, ctypes.c_int())


def syevd(x: Array, values: Array, *, vectors: bool) -> int:
    """VALUES := the eigenvalues of a Hermitian X, ascending; X := its eigenvectors, or is lost. Returns INFO.

    >>> x, values = np.array([[2.0, 9.0], [1.0, 2.0]], order="F"), np.empty(2)
    >>> syevd(x, values, vectors=True), values.round(9).tolist(), np.abs(x).round(3).tolist()
    (0, [1.0, 3.0], [[0.707, 0.707], [0.707, 0.707]])
    """
    n, info, is_complex = len(x), ctypes.c_int(), x.dtype.kind == "c"
    if not n:
        return 0
    # LWORK of the reduction in blocks; then that of divide and conquer, whose work is real
    lwork = n * (n + 64) if is_complex else 2 * n * n + 64 * n + 1
    lrwork, liwork = (1 + 5 * n + 2 * n * n,) * is_complex, 3 + 5 * n
    works: list[Any] = [np.empty(lwork, x.dtype), lwork]
    for length in lrwork:
        works += [np.empty(length, values.dtype), length]
    works += [np.empty(liwork, np.intc), liwork]
    name, job = "heevd" if is_complex else "syevd", b"V" if vectors else b"N"
    _call(x, name, job, b"L", n, x, _lda(x), values, *works, info)
    return info.value


def sterf(d: Array, e: Array) -> int:
    """D := the eigenvalues of a real tridiagonal matrix, ascending; E is overwritten. Returns INFO.

    >>> d = np.array([2.0, 2.0]); sterf(d, np.array([1.0])), d.round(9).tolist()
    (0, [1.0, 3.0])
    """
    info = ctypes.c_int()
    if len(d):
        _call(d, "sterf", len(d), d, e, info)
    return info.value


def stedc(d: Array, e: Array, z: Array) -> int:
    """D := the eigenvalues of a real tridiagonal matrix, ascending; Z := its eigenvectors. Returns INFO.

    >>> d, z = np.array([2.0, 2.0]), np.empty((2, 2), order="F"); stedc(d, np.array([1.0]), z), d.round(9).tolist()
    (0, [1.0, 3.0])
    """
    n, info = len(d), ctypes.c_int()
    if n:
        lwork, liwork = 1 + 4 * n + n * n, 3 + 5 * n
        work, iwork = np.empty(lwork, d.dtype), np.empty(liwork, np.intc)
        _call(d, "stedc", b"I", n, d, e, z, _lda(z), work, lwork, iwork, liwork, info)
    return info.value


def stemr(d: Array, e: Array, numbers: range, values: Array, z: Array) -> int:
    """VALUES := the eigenvalues with these numbers, from 0, of a real tridiagonal matrix; Z := their eigenvectors.

    They ascend. Returns INFO, or -1 if fewer are found.

    >>> values, z = np.zeros(1), np.zeros((2, 1), order="F")
    >>> stemr(np.array([2.0, 2.0]), np.array([1.0]), range(1, 2), values, z), values.round(9).tolist()
    (0, [3.0])
    """
    n, info, count, try_accurate = len(d), ctypes.c_int(), ctypes.c_int(), ctypes.c_int(1)
    if not numbers:
        return 0
    bounds, found, work = np.zeros(1, d.dtype), np.empty(n, d.dtype), np.empty(18 * n, d.dtype)
    supports, iwork = np.empty(2 * len(numbers), np.intc), np.empty(10 * n, np.intc)
    what = b"V", b"I", n, d.copy(), np.append(e, d[:1]), bounds, bounds, numbers.start + 1, numbers.stop
    sizes = len(numbers), supports, try_accurate, work, len(work), iwork, len(iwork)
    _call(d, "stemr", *what, count, found, z, _lda(z), *sizes, info)
    values[...] = found[: len(numbers)]
    return info.value or -(count.value != len(numbers))


def eigenvalue(d: Array, e: Array, number: int) -> float:
    """The eigenvalue with this number, from 0, of a real tridiagonal matrix, by bisection; NaN if LAPACK fails.

    >>> round(eigenvalue(np.array([2.0, 2.0]), np.array([1.0]), 1), 9)
    3.0
    """
    n, zero, (count, blocks, info) = len(d), np.zeros(1, d.dtype), (ctypes.c_int() for _ in range(3))
    values, places, work = np.empty(n, d.dtype), np.empty((2, n), np.intc), np.empty(4 * n, d.dtype)
    what = b"I", b"E", n, zero, zero, number + 1, number + 1, zero, d, e
    _call(d, "stebz", *what, count, blocks, values, *places, work, np.empty(3 * n, np.intc), info)
    return float(values[0]) if count.value and not info.value else float("nan")


def fix_signs(x: Array, *others: Array) -> None:
    """X := X with the first of each column's largest elements positive, of a complex one real and positive.

    The columns of the others are multiplied by the same numbers.

    >>> x = np.array([[0.6, -0.8], [-0.8, 0.6]]); fix_signs(x); x.tolist()
    [[-0.6, 0.8], [0.8, -0.6]]
    """
    for j, i in enumerate(int(np.abs(column).argmax()) for column in x.T if column.size):
        largest = x[i, j]
        if largest != abs(largest):
            factor = largest.conj() / abs(largest)
            for columns in (x, *others):
                columns[:, j] *= factor
            x[i, j] = abs(largest)


def gebrd(x: Array, d: Array, e: Array, tauq: Array, taup: Array) -> None:
    """X := V and U^H with B = Q^H X P bidiagonal, of which D is the diagonal and E the one above; below it if m < n.

    Q = H_1 H_2 ... H_n, H_j = I - tauq_j v_j v_j^H, and P likewise; v_j is stored below the diagonal of column j, the
    conjugate of u_j right of the second diagonal in row j, without their ones. If m < n, v_j is below the second
    diagonal, and u_j right of the first.

    >>> x, d, e, tau = np.array([[3.0, 1.0], [4.0, 2.0]], order="F"), np.zeros(2), np.zeros(1), np.zeros(2)
    >>> gebrd(x, d, e, tau, tau.copy()); d.round(9).tolist(), e.round(9).tolist()
    ([-5.0, 0.4], [-2.2])
    """
    if x.size:
        work = np.empty(64 * sum(x.shape), x.dtype)
        _call(x, "gebrd", *x.shape, x, _lda(x), d, e, tauq, taup, work, len(work), ctypes.c_int())


def gbbrd(x: Array, width: int, d: Array, e: Array) -> None:
    """D and E := the diagonal and the one above of a bidiagonal B = Q^T A P, for the upper band A of a real square X.

    A has the diagonal of X and `width` others; the rest of X is not read.

    >>> x, d, e = np.array([[3.0, 1.0], [9.0, 2.0]]), np.zeros(2), np.zeros(1)
    >>> gbbrd(x, 1, d, e); d.tolist(), e.tolist()
    ([3.0, 2.0], [1.0])
    """
    n = len(x)
    width = min(width, max(n - 1, 0))
    band = np.zeros((width + 1, n), x.dtype, "F")
    for k in range(width + 1 if n else 0):
        band[width - k, k:] = x.diagonal(k)
    if n:
        none, work = np.empty((1, 1), x.dtype), np.empty(2 * n, x.dtype)
        _call(x, "gbbrd", b"N", n, n, 0, 0, width, band, width + 1, d, e, *(none, 1) * 3, work, ctypes.c_int())


def bdsdc(d: Array, e: Array, vectors: tuple[Array, Array] | None = None) -> int:
    """D := the singular values of a real bidiagonal matrix, descending; `vectors` := its U and V^T. Returns INFO.

    D is the diagonal, E the one above, which is overwritten.

    >>> d = np.array([3.0, 4.0]); bdsdc(d, np.array([0.0])), d.tolist()
    (0, [4.0, 3.0])
    """
    n, info = len(d), ctypes.c_int()
    if n:
        none = np.empty((1, 1), d.dtype)
        u, vt = (none, none) if vectors is None else vectors
        work = np.empty(8 * n if vectors is None else 3 * n * n + 8 * n, d.dtype)
        letter, ints = b"N" if vectors is None else b"I", (np.empty(1, np.intc), np.empty(8 * n, np.intc))
        _call(d, "bdsdc", b"U", letter, n, d, e, u, _lda(u), vt, _lda(vt), none, ints[0], work, ints[1], info)
    return info.value


def laed4(numbers: range, d: Array, z: Array, rho: float, delta: Array, values: Array) -> int:
    """VALUES := some eigenvalues of diag(D) + rho z z^T, numbered from 0; DELTA[:, i] := D - VALUES[i], exact to eps.

    D is strictly ascending, rho is positive, norm(z) = 1. With one or two poles DELTA has the eigenvectors.
    Returns INFO.

    >>> delta, values = np.empty((3, 1), order="F"), np.empty(1)
    >>> laed4(range(1, 2), np.array([0.0, 1.0, 2.0]), np.sqrt(np.full(3, 1 / 3)), 0.5, delta, values)
    0
    >>> float(values[0].round(6)), delta[:, 0].round(6).tolist()
    (1.158119, [-1.158119, -0.158119, 0.841881])
    """
    k, infos = len(d), 0
    routine, itemsize = _routine(_PREFIXES[d.dtype.char] + "laed4", 8), d.itemsize
    ints, weight = (ctypes.c_int * 3)(k), np.array([rho], d.dtype)
    info, number, n = (ctypes.addressof(ints) + 4 * i for i in (2, 1, 0))
    d_, z_, rho_, delta_, values_ = map(address_of, (d, z, weight, delta, values))
    for i, j in enumerate(numbers):
        ints[1] = j + 1
        routine(n, number, d_, z_, delta_ + i * k * itemsize, rho_, values_ + i * itemsize, info)
        infos = infos or ints[2]
    return infos


def _trans(x: Array, adjoint: bool) -> bytes:
    """LAPACK's letter for Q^H or Q, of the dtype of x."""
    return (b"C" if x.dtype.kind == "c" else b"T") if adjoint else b"N"


def _call(like: Array, name: str, *arguments: object) -> None:
    """Call a routine of the dtype of an array; integers are passed by reference."""
    converted = [ctypes.c_int(argument) if isinstance(argument, int) else argument for argument in arguments]
    _routine(_PREFIXES[like.dtype.char] + name, len(arguments))(*map(_address, converted))


@lru_cache
def _routine(name: str, count: int) -> Any:
    """A routine with `count` arguments, all of them pointers."""
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * count)(_pointer(name, cython_lapack))


def _address(argument: Any) -> Any:
    """The pointer that a Fortran routine takes for an argument."""
    if isinstance(argument, np.ndarray):
        return address_of(argument)
    return argument if isinstance(argument, bytes) else ctypes.addressof(argument)


def _lda(x: Array) -> int:
    """Leading dimension of an array in Fortran order, which may have one column."""
    m, n = x.shape
    assert m <= 1 or x.strides[0] == x.itemsize, "in Fortran order"
    return int(x.strides[1] // x.itemsize) if n > 1 else max(m, 1)

"""The rows of the redistribution programs: A to B and back, in guarded memory, each matrix on a grid of its own.

Source: ScaLAPACK REDIST/TESTING, P?GEMRDRV and P?TRMRDRV.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pblas import scalapack
from pblas.layouts.grid import Grid
from tests.common.gauge import Array, entries
from tests.conformance.problems import DTYPES, Matrix, Operand
from tests.conformance.tables import GEMR2D, GUARD, TRMR2D

Row = tuple[int, int, Matrix, tuple[int, int], Matrix, tuple[int, int], str, str]
"""(m, n, A, shape of its grid, B, shape of its grid, UPLO, DIAG); the last two are "" for gemr2d."""


def rows(routine: str) -> list[Row]:
    """The table of "gemr2d" or "trmr2d"."""
    result: list[Row] = []
    if routine == "gemr2d":
        for n, p0, q0, mb0, nb0, p1, q1, mb1, nb1 in GEMR2D:
            a, b = Matrix(n, n, mb0, nb0), Matrix(n, n, mb1, nb1)
            result.append((n, n, a, (p0, q0), b, (p1, q1), "", ""))
        return result
    for m, n, source, target, uplo, diag in TRMR2D:
        (a, grid_a), (b, grid_b) = _matrix(source), _matrix(target)
        result.append((m, n, a, grid_a, b, grid_b, uplo, diag))
    return result


def _matrix(row: Any) -> tuple[Matrix, tuple[int, int]]:
    m, n, rsrc, csrc, i, j, p, q, mb, nb = row
    return Matrix(m, n, mb, nb, i, j, rsrc, csrc), (p, q)


def run(row: Row, letter: str, whole: int, comm: Any) -> str:
    """**Collective.** Copy A to B and back; a text if an element is wrong on this rank, else "".

    Args:
        row: row of the table (global).
        letter: letter of the type, s, d, c or z (global).
        whole: handle of a grid of all ranks of `comm` (local).
        comm: communicator of the ranks (global).
    """
    m, n, a, grid_a, b, grid_b, uplo, diag = row
    dtype = np.dtype(DTYPES[letter])
    full = entries((a.m, a.n), dtype, 100)
    target, back = _Side(a, grid_a, full, comm), _Side(b, grid_b, np.full((b.m, b.n), GUARD, dtype), comm)
    options = (uplo, diag) if uplo else ()
    move = getattr(scalapack, f"p{letter}{'trmr2d' if uplo else 'gemr2d'}")
    move(*options, m, n, *target.arguments, *back.arguments, whole)
    inside = _inside(m, n, uplo, diag)
    expected = np.full((b.m, b.n), GUARD, dtype)
    expected[b.i - 1 :, b.j - 1 :][:m, :n][inside] = full[a.i - 1 :, a.j - 1 :][:m, :n][inside]
    text = target.wrong("A", full) or back.wrong("B", expected)
    target.erase(m, n)
    move(*options, m, n, *back.arguments, *target.arguments, whole)
    home = np.array(full)
    home[a.i - 1 :, a.j - 1 :][:m, :n][~inside] = GUARD
    text = text or target.wrong("A, when it is back,", home)
    for side in (target, back):
        side.close()
    return text


def _inside(m: int, n: int, uplo: str, diag: str) -> Array:
    """Mask of the elements of the submatrix that the routine copies."""
    i, j, unit = np.arange(m)[:, None], np.arange(n)[None, :], int(diag == "U")
    if not uplo:
        return np.ones((m, n), bool)
    return i <= j + max(0, m - n) - unit if uplo == "U" else i >= j - max(0, n - m) + unit


class _Side:
    """One of the two matrices of a row, on this rank, which may be outside its grid."""

    def __init__(self, matrix: Matrix, shape: tuple[int, int], full: Array, comm: Any) -> None:
        self.matrix, self.full = matrix, full
        self.ictxt = scalapack.gridinit(comm, "R", *shape)
        self.operand: Operand | None = None
        self.arguments: tuple[Any, ...] = (np.zeros(0), 1, 1, [1, -1])
        if self.ictxt >= 0:
            self.operand = Operand(matrix, full, Grid(*shape, "R"), comm.Get_rank())
            self.arguments = self.operand.arguments(self.ictxt)

    def wrong(self, name: str, expected: Array) -> str:
        """A text if this rank's part differs from the expected matrix, or memory around it has changed; else ""."""
        if self.operand is None:
            return ""
        part = self.operand.part()
        if not np.array_equal(part, expected[np.ix_(*self.operand.indices())]):
            return f"{name} is not what it should be"
        kept = part.copy()
        part[...] = self.full[np.ix_(*self.operand.indices())]
        same = self.operand.is_untouched()
        part[...] = kept
        return "" if same else f"memory around {name} has changed"

    def erase(self, m: int, n: int) -> None:
        """Fill the submatrix with guard values, which the routine must overwrite."""
        if self.operand is not None:
            self.operand.part()[self.operand.inside((m, n))[2]] = GUARD

    def close(self) -> None:
        """End the grid."""
        if self.ictxt >= 0:
            scalapack.gridexit(self.ictxt)

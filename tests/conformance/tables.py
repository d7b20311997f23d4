"""The tables of the PBLAS testing programs, as numbers.

Source: ScaLAPACK, PBLAS/TESTING/P?BLAS3TST.dat and PDBLASTST (error exits).
"""

from __future__ import annotations

from dataclasses import dataclass

GRIDS = ((2, 2), (1, 2), (2, 1), (1, 4), (4, 1), (1, 3), (3, 2), (8, 1))
"""Process grids (rows, columns) of the level 3 programs, in their order; upstream runs the first four by default."""

GAP, GUARD, POISON = 10, -9923.0, -1e10
"""Rows by which LLD exceeds what is needed, and what fills memory that must not be touched or read."""

THRESHOLD = 16.0


@dataclass(frozen=True, slots=True)
class Column:
    """One problem of level 3. A is 31 x 31, B 32 x 32, C 35 x 35.

    Args:
        transa: "N" or "T".
        transb: "N" or "T".
        uplo: "U" or "L".
        m: rows of the result.
        n: columns of the result.
        k: length of the sums.
        block: rows and columns of the blocks of A, B and C.
        offset: first row and column of the submatrices of A, B and C, from 1.
    """

    transa: str
    transb: str
    uplo: str
    m: int
    n: int
    k: int
    block: int
    offset: int


SIZES = {"A": 31, "B": 32, "C": 35}
LEVEL3 = (
    Column("N", "N", "U", 22, 23, 24, 4, 5),
    Column("N", "N", "L", 30, 29, 28, 5, 1),
    Column("N", "T", "U", 8, 7, 9, 6, 7),
    Column("N", "T", "L", 20, 21, 22, 3, 7),
    Column("T", "N", "U", 3, 3, 3, 2, 1),
    Column("T", "N", "L", 5, 14, 9, 1, 12),
    Column("T", "T", "U", 11, 11, 11, 4, 1),
    Column("T", "T", "L", 8, 8, 8, 5, 11),
)

SCALARS = {"s": (2.0, 3.0), "d": (2.0, 3.0), "c": (2 - 4j, 3 - 2j), "z": (2 - 4j, 3 - 2j)}
"""alpha and beta of level 3, by type."""

DESCRIPTOR_ENTRIES = ("DTYPE", "CTXT", "M", "N", "IMB", "INB", "MB", "NB", "RSRC", "CSRC", "LLD")


def error_exits(routine: str) -> list[tuple[int, int, object, int]]:
    """What the error programs break in a routine: (argument, entry or 0, what it is set to, INFO), in their order.

    `NPROW` and `NPCOL` stand for the extents of the grid, `SHORT` for 1 on process (0, 0) and 0 elsewhere.

    Args:
        routine: its name.

    >>> len(error_exits("gemm")), error_exits("gemm")[:2], error_exits("gemm")[-1]
    (53, [(1, 0, '/', -1), (2, 0, '/', -2)], (19, 11, 'SHORT', -1911))
    """
    found: list[tuple[int, int, object, int]] = []
    for position, name in enumerate(ARGUMENTS[routine].split(), 1):
        if name in ("TRANSA", "TRANSB", "TRANS", "UPLO", "DIAG", "SIDE"):
            found.append((position, 0, "/", -position))
        elif name in ("M", "N", "K") or name in ("IA", "JA", "IB", "JB", "IC", "JC"):
            found.append((position, 0, -1, -position))
        elif name.startswith("DESC"):
            for entry, which in enumerate(DESCRIPTOR_ENTRIES, 1):
                info = -(100 * position + entry)
                found.append((position, entry, -2, info))
                again = {"RSRC": "NPROW", "CSRC": "NPCOL", "LLD": "SHORT"}.get(which)
                if again:
                    found.append((position, entry, again, info))
    return found


ARGUMENTS = {
    "gemm": "TRANSA TRANSB M N K ALPHA A IA JA DESCA B IB JB DESCB BETA C IC JC DESCC",
    "geadd": "TRANS M N ALPHA A IA JA DESCA BETA C IC JC DESCC",
    "tradd": "UPLO TRANS M N ALPHA A IA JA DESCA BETA C IC JC DESCC",
    "tran": "M N ALPHA A IA JA DESCA BETA C IC JC DESCC",
}
ERROR_EXITS = {"gemm": 53, "geadd": 35, "tradd": 36, "tran": 34}
"""How many codes the error programs try for each routine."""

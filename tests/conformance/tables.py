"""The tables of the PBLAS testing programs, as numbers.

Source: ScaLAPACK, PBLAS/TESTING/P?BLAS3TST.dat and PDBLASTST (error exits), REDIST/TESTING/GEMR2D.dat and TRMR2D.dat.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

GRIDS = ((2, 2), (1, 2), (2, 1), (1, 4), (4, 1), (1, 3), (3, 2), (8, 1))
"""Process grids (rows, columns) of the level 3 programs, in their order; upstream runs the first four by default."""

GAP, GUARD = 10, -9923.0
"""Number of rows by which LLD exceeds its minimum; value in memory that must not be touched."""

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
    """The error exits of a routine: (argument, entry of the descriptor or 0, wrong value, expected INFO).

    `NPROW` and `NPCOL` stand for the extents of the grid, `SHORT` for 1 on process (0, 0) and 0 elsewhere.

    Args:
        routine: name of the routine.

    >>> len(error_exits("gemm")), error_exits("gemm")[:2], error_exits("gemm")[-1]
    (53, [(1, 0, '/', -1), (2, 0, '/', -2)], (19, 11, 'SHORT', -1911))
    """
    cases: list[tuple[int, int, object, int]] = []
    for position, name in enumerate(ARGUMENTS[routine].split(), 1):
        if name in ("TRANSA", "TRANSB", "TRANS", "UPLO", "DIAG", "SIDE", "NORM"):
            cases.append((position, 0, "/", -position))
        elif name in ("M", "N", "K", "NRHS") or re.fullmatch("(I|J|INC)[ABCXY]", name):
            cases.append((position, 0, -1, -position))
        elif name.startswith("DESC"):
            for entry, which in enumerate(DESCRIPTOR_ENTRIES, 1):
                info = -(100 * position + entry)
                cases.append((position, entry, -2, info))
                again = {"RSRC": "NPROW", "CSRC": "NPCOL", "LLD": "SHORT"}.get(which)
                if again:
                    cases.append((position, entry, again, info))
    return cases


ARGUMENTS = {
    "gemm": "TRANSA TRANSB M N K ALPHA A IA JA DESCA B IB JB DESCB BETA C IC JC DESCC",
    "geadd": "TRANS M N ALPHA A IA JA DESCA BETA C IC JC DESCC",
    "tradd": "UPLO TRANS M N ALPHA A IA JA DESCA BETA C IC JC DESCC",
    "tran": "M N ALPHA A IA JA DESCA BETA C IC JC DESCC",
    "trsm": "SIDE UPLO TRANS DIAG M N ALPHA A IA JA DESCA B IB JB DESCB",
}
ARGUMENTS |= dict.fromkeys(("symm", "hemm"), "SIDE UPLO M N ALPHA A IA JA DESCA B IB JB DESCB BETA C IC JC DESCC")
ARGUMENTS |= dict.fromkeys(("syrk", "herk"), "UPLO TRANS N K ALPHA A IA JA DESCA BETA C IC JC DESCC")
ARGUMENTS |= dict.fromkeys(("syr2k", "her2k"), "UPLO TRANS N K ALPHA A IA JA DESCA B IB JB DESCB BETA C IC JC DESCC")
ARGUMENTS |= {"trmm": ARGUMENTS["trsm"]}
ERROR_EXITS = {"gemm": 53, "geadd": 35, "tradd": 36, "tran": 34, "trsm": 38, "trmm": 38, "syrk": 36, "herk": 36}
ERROR_EXITS |= dict.fromkeys(("symm", "hemm", "syr2k", "her2k"), 52)
"""Number of error exits that ScaLAPACK's tests try for each routine."""

_X, _Y, _A = "X IX JX DESCX INCX", "Y IY JY DESCY INCY", "A IA JA DESCA"
VECTOR_ARGUMENTS = {
    **dict.fromkeys(("swap", "copy"), f"N {_X} {_Y}"),
    "axpy": f"N ALPHA {_X} {_Y}",
    "scal": f"N ALPHA {_X}",
    **dict.fromkeys(("dot", "dotu", "dotc"), f"N VALUE {_X} {_Y}"),
    **dict.fromkeys(("nrm2", "asum"), f"N VALUE {_X}"),
    "amax": f"N VALUE INDX {_X}",
    **dict.fromkeys(("gemv", "agemv"), f"TRANS M N ALPHA {_A} {_X} BETA {_Y}"),
    **dict.fromkeys(("symv", "hemv", "asymv", "ahemv"), f"UPLO N ALPHA {_A} {_X} BETA {_Y}"),
    **dict.fromkeys(("trmv", "trsv"), f"UPLO TRANS DIAG N {_A} {_X}"),
    "atrmv": f"UPLO TRANS DIAG N ALPHA {_A} {_X} BETA {_Y}",
    **dict.fromkeys(("ger", "geru", "gerc"), f"M N ALPHA {_X} {_Y} {_A}"),
    **dict.fromkeys(("syr", "her"), f"UPLO N ALPHA {_X} {_A}"),
    **dict.fromkeys(("syr2", "her2"), f"UPLO N ALPHA {_X} {_Y} {_A}"),
}
"""Arguments of levels 1 and 2."""
ARGUMENTS |= VECTOR_ARGUMENTS
ERROR_EXITS |= {
    **dict.fromkeys(("swap", "copy", "axpy", "dot", "dotu", "dotc", "syr", "her"), 35),
    **dict.fromkeys(("scal", "nrm2", "asum", "amax"), 18),
    **dict.fromkeys(("gemv", "agemv"), 53),
    **dict.fromkeys(("symv", "hemv", "asymv", "ahemv", "ger", "geru", "gerc", "syr2", "her2"), 52),
    **dict.fromkeys(("trmv", "trsv"), 37),
    "atrmv": 54,
}

_FACTORS = {
    "potrf": "UPLO N A IA JA DESCA",
    "potri": "UPLO N A IA JA DESCA",
    "potrs": "UPLO N NRHS A IA JA DESCA B IB JB DESCB",
    "posv": "UPLO N NRHS A IA JA DESCA B IB JB DESCB",
    "getrf": "M N A IA JA DESCA IPIV",
    "getrs": "TRANS N NRHS A IA JA DESCA IPIV B IB JB DESCB",
    "gesv": "N NRHS A IA JA DESCA IPIV B IB JB DESCB",
    "getri": "N A IA JA DESCA IPIV WORK LWORK IWORK LIWORK",
    "trtri": "UPLO DIAG N A IA JA DESCA",
    "trtrs": "UPLO TRANS DIAG N NRHS A IA JA DESCA B IB JB DESCB",
    "pocon": "UPLO N A IA JA DESCA ANORM RCOND WORK LWORK IWORK LIWORK",
    "gecon": "NORM N A IA JA DESCA ANORM RCOND WORK LWORK IWORK LIWORK",
    "trcon": "NORM UPLO DIAG N A IA JA DESCA RCOND WORK LWORK IWORK LIWORK",
    **dict.fromkeys(("geqrf", "gelqf"), "M N A IA JA DESCA TAU WORK LWORK"),
    "geqpf": "M N A IA JA DESCA IPIV TAU WORK LWORK",
    **dict.fromkeys(("orgqr", "ungqr"), "M N K A IA JA DESCA TAU WORK LWORK"),
    **dict.fromkeys(
        ("ormqr", "unmqr", "ormlq", "unmlq"), "SIDE TRANS M N K A IA JA DESCA TAU C IC JC DESCC WORK LWORK"
    ),
    "gels": "TRANS M N NRHS A IA JA DESCA B IB JB DESCB WORK LWORK",
}
"""Arguments of factorizations, solves, inverses and estimates of condition numbers, without INFO."""
ARGUMENTS |= _FACTORS
FACTORS = tuple(_FACTORS)


def letters_of(routine: str) -> str:
    """The types of a routine of `FACTORS`: p?or... are real, p?un... are complex."""
    return {"or": "sd", "un": "cz"}.get(routine[:2], "sdcz")


ERROR_EXITS |= {
    **dict.fromkeys(("potrf", "potri", "getrf"), 18),
    **dict.fromkeys(("pocon", "gecon"), 18),
    **dict.fromkeys(("potrs", "posv", "getrs"), 35),
    **dict.fromkeys(("geqrf", "gelqf", "geqpf"), 18),
    **dict.fromkeys(("orgqr", "ungqr"), 19),
    **dict.fromkeys(("ormqr", "unmqr", "ormlq", "unmlq"), 37),
    "gels": 36,
    **dict(zip(("gesv", "getri", "trtri", "trtrs", "trcon"), (34, 17, 19, 37, 20), strict=True)),
}


@dataclass(frozen=True, slots=True)
class Place:
    """A vector in a matrix, as in the level 1 and 2 tables.

    Args:
        m: rows of the matrix.
        n: columns of the matrix.
        block: rows and columns of its blocks.
        i: row of the first element, from 1.
        j: column of the first element, from 1.
        increment: 1 for a column, m for a row.
    """

    m: int
    n: int
    block: int
    i: int
    j: int
    increment: int


LEVEL1 = (
    (14, Place(36, 24, 2, 5, 2, 1), Place(2, 27, 2, 1, 7, 2)),
    (44, Place(9, 67, 5, 3, 6, 9), Place(6, 55, 5, 4, 6, 6)),
    (28, Place(39, 3, 2, 1, 1, 1), Place(35, 43, 2, 1, 1, 35)),
    (7, Place(53, 12, 5, 1, 1, 53), Place(14, 12, 5, 1, 1, 1)),
)
"""N, X and Y of each problem of level 1: P?BLAS1TST.dat."""

LEVEL2 = tuple(
    zip(
        "L" * 8 + "U" * 8,
        "NNNNTTTT" * 2,
        "NU" * 8,
        range(9, 25),
        (8, 10, 12, 14, 16, 18, 20, 22, 24, 9, 11, 13, 15, 17, 19, 21),
        (31, 33, 35, 36, 34, 32, 30, 31, 33, 35, 36, 34, 32, 30, 38, 40),
        (1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 5, 4, 3, 5, 6),
        (3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
        (True, False) * 8,
        strict=True,
    )
)
"""UPLO, TRANS, DIAG, M, N, the size of A, blocks, offset, and whether X and Y are rows: P?BLAS2TST.dat.

X is in a 30 x 30 matrix, Y in a 40 x 40 matrix."""

LLT = tuple((n, n) for n in (4, 10, 17, 13, 23, 31, 57)), (2, 3, 4, 5)
"""(M, N) and NB of xdllt: LLT.dat."""
LU = tuple(zip((4, 10, 17, 13, 23, 31, 57), (4, 12, 13, 13, 23, 31, 50), strict=True)), (2, 3, 4, 5)
"""(M, N) and NB of xdlu: LU.dat."""
NRHS, NBRHS = (1, 3, 9, 28), (1, 3, 5, 7)
"""Right-hand sides of both, and their blocks."""
INV = ("GEN", "UTR", "LTR", "UPD", "LPD"), (2, 5, 10, 15, 13, 20, 30, 50), (2, 3, 4, 5, 6, 20)
"""Kinds of matrices, N, and NB of xdinv: INV.dat."""

QR = (
    tuple(zip((2, 5, 13, 15, 13, 26, 30, 15), (2, 7, 8, 10, 17, 20, 30, 35), strict=True)),
    tuple(zip((4, 3, 5, 5, 4, 6), (4, 7, 3, 5, 8, 2), strict=True)),
)
"""(M, N) and (MB, NB) of xdqr: QR.dat."""
LS = tuple(zip((15, 7, 31), (5, 21, 31), strict=True)), (2, 3, 5), (2, 3, 5), (1, 2)
"""(M, N), NB, NRHS and NBRHS of xdls: LS.dat."""
SEP = (
    ((0, 1, 2), "L", (1,), (8,)),
    ((5,), "L", (1, 2), tuple(range(1, 23))),
    ((4,), "L", (1, 2), (10, 22)),
    ((6,), "LU", (1, 2, 3), (8,)),
    ((21,), "U", (8,), (9, 10, 21, 22)),
    ((27,), "U", (1, 2, 3), (10,)),
    ((24,), "LU", (1, 2, 3, 4), (22,)),
    ((100,), "U", (8,), (8,)),
)
"""N, UPLO, NB and types of matrices of xdsep and xdgsep: SEP.dat and SEPR.dat, without N = 500."""

# n; grid, mb, nb of the source; grid, mb, nb of the target: ScaLAPACK, REDIST/TESTING/GEMR2D.dat.
GEMR2D = [
    *((200, 1, 4, 3, 6, 1, 4, 5, 3), (200, 4, 1, 7, 9, 4, 1, 4, 9), (200, 4, 1, 2, 9, 2, 2, 7, 7)),
    *((200, 2, 2, 6, 3, 2, 2, 5, 9), (200, 2, 2, 9, 10, 1, 4, 3, 4), (200, 2, 2, 1, 10, 1, 3, 1, 4)),
    *((200, 1, 4, 14, 6, 1, 3, 8, 5), (200, 1, 3, 6, 4, 4, 1, 2, 2), (200, 4, 1, 3, 10, 1, 4, 11, 5)),
    *((200, 2, 2, 10, 3, 1, 3, 11, 7), (300, 1, 4, 10, 2, 2, 2, 4, 5), (300, 2, 2, 1, 12, 3, 1, 10, 6)),
    *((300, 1, 4, 13, 8, 2, 2, 12, 4), (300, 2, 2, 12, 9, 1, 3, 16, 10), (300, 1, 4, 15, 2, 2, 2, 12, 1)),
    *((300, 2, 2, 4, 11, 1, 3, 9, 3), (300, 2, 2, 4, 12, 4, 1, 6, 1), (300, 3, 1, 7, 7, 4, 1, 5, 11)),
    *((300, 3, 1, 10, 11, 1, 3, 10, 3), (300, 2, 2, 1, 1, 1, 3, 9, 2), (400, 4, 1, 2, 4, 1, 3, 5, 10)),
    *((400, 1, 3, 5, 1, 2, 2, 14, 4), (400, 4, 1, 3, 16, 1, 3, 1, 7), (400, 1, 3, 8, 5, 3, 1, 9, 2)),
    *((400, 1, 4, 9, 3, 1, 3, 11, 3), (400, 2, 2, 12, 11, 4, 1, 5, 9), (400, 3, 1, 6, 12, 1, 4, 15, 6)),
    *((400, 4, 1, 5, 5, 4, 1, 7, 15), (400, 3, 1, 4, 6, 4, 1, 2, 4), (400, 3, 1, 6, 3, 1, 4, 18, 10)),
    *((500, 3, 1, 9, 21, 1, 3, 13, 4), (500, 2, 2, 5, 8, 4, 1, 4, 19), (500, 1, 4, 14, 9, 1, 4, 17, 11)),
    *((500, 1, 4, 4, 2, 2, 2, 4, 1), (500, 1, 3, 7, 4, 2, 2, 3, 12), (500, 2, 2, 8, 8, 1, 4, 16, 4)),
    *((500, 1, 4, 20, 10, 2, 2, 8, 7), (500, 2, 2, 1, 14, 3, 1, 6, 20), (500, 4, 1, 5, 15, 1, 3, 2, 8)),
    *((500, 1, 3, 6, 3, 3, 1, 12, 4), (600, 1, 4, 4, 8, 2, 2, 2, 9), (600, 2, 2, 13, 7, 3, 1, 2, 6)),
    *((600, 1, 3, 2, 2, 1, 4, 13, 4), (600, 3, 1, 7, 1, 2, 2, 1, 9), (600, 1, 3, 17, 9, 2, 2, 7, 17)),
    *((600, 2, 2, 13, 3, 1, 3, 15, 4), (600, 1, 3, 3, 13, 1, 3, 22, 3), (600, 1, 4, 2, 8, 2, 2, 9, 14)),
    *((600, 2, 2, 8, 5, 1, 3, 5, 3), (600, 3, 1, 3, 3, 2, 2, 13, 14), (700, 1, 3, 24, 2, 1, 4, 11, 11)),
    *((700, 3, 1, 10, 6, 1, 4, 11, 7), (700, 1, 3, 24, 10, 1, 3, 25, 4), (700, 3, 1, 8, 3, 4, 1, 5, 9)),
    *((700, 1, 3, 18, 6, 1, 4, 22, 11), (700, 2, 2, 17, 14, 3, 1, 8, 21), (700, 3, 1, 11, 20, 4, 1, 8, 5)),
    *((700, 2, 2, 13, 16, 2, 2, 8, 11), (700, 4, 1, 5, 11, 3, 1, 5, 11), (700, 2, 2, 11, 17, 1, 3, 1, 6)),
    *((800, 1, 4, 23, 13, 3, 1, 15, 17), (800, 1, 3, 27, 8, 3, 1, 8, 3), (800, 3, 1, 12, 6, 4, 1, 4, 7)),
    *((800, 3, 1, 16, 14, 4, 1, 14, 6), (800, 4, 1, 9, 4, 3, 1, 3, 15), (800, 4, 1, 5, 12, 1, 3, 22, 9)),
    *((800, 3, 1, 9, 11, 2, 2, 2, 19), (800, 1, 4, 16, 11, 1, 3, 13, 5), (800, 1, 3, 18, 4, 3, 1, 9, 8)),
    *((800, 3, 1, 1, 7, 3, 1, 7, 4), (900, 1, 3, 19, 11, 4, 1, 12, 25), (900, 1, 3, 18, 15, 4, 1, 9, 6)),
    *((900, 3, 1, 11, 10, 4, 1, 15, 18), (900, 3, 1, 2, 30, 1, 3, 3, 5), (900, 1, 4, 22, 12, 3, 1, 1, 20)),
    *((900, 3, 1, 10, 20, 1, 3, 2, 5), (900, 2, 2, 11, 21, 1, 3, 22, 12), (900, 3, 1, 4, 5, 3, 1, 5, 11)),
    *((900, 1, 4, 29, 12, 2, 2, 3, 15), (900, 2, 2, 15, 7, 3, 1, 17, 7), (1000, 1, 3, 1, 15, 2, 2, 7, 18)),
    *((1000, 1, 3, 6, 5, 3, 1, 18, 15), (1000, 1, 3, 11, 8, 3, 1, 10, 29), (1000, 4, 1, 8, 31, 2, 2, 17, 22)),
    *((1000, 3, 1, 9, 26, 2, 2, 22, 20), (1000, 2, 2, 2, 17, 1, 3, 29, 6), (1000, 3, 1, 8, 17, 3, 1, 4, 20)),
    *((1000, 1, 3, 21, 12, 4, 1, 15, 26), (1000, 1, 3, 8, 3, 2, 2, 11, 12), (1000, 2, 2, 10, 20, 2, 2, 11, 20)),
]

# m, n; source: m, n, rsrc, csrc, i, j (from 1), grid, mb, nb; target: the same; uplo, diag: TRMR2D.dat, all rows.
TRMR2D = [
    (12, 20, (81, 79, 0, 0, 18, 52, 1, 1, 6, 8), (56, 103, 1, 1, 42, 34, 2, 2, 8, 8), "U", "N"),
    (59, 79, (98, 100, 0, 1, 13, 22, 1, 2, 8, 1), (62, 173, 0, 0, 4, 25, 1, 2, 9, 8), "U", "N"),
    (22, 25, (87, 121, 0, 1, 17, 15, 2, 2, 12, 51), (90, 157, 1, 1, 19, 11, 2, 2, 36, 91), "U", "N"),
    (1, 13, (1, 109, 0, 0, 1, 51, 2, 2, 8, 9), (134, 123, 0, 1, 15, 74, 1, 2, 16, 8), "L", "N"),
    (129, 11, (187, 74, 0, 0, 1, 11, 2, 2, 7, 8), (185, 94, 0, 0, 27, 20, 2, 1, 8, 21), "U", "U"),
    (43, 10, (45, 27, 1, 0, 2, 4, 2, 1, 10, 2), (149, 96, 0, 0, 78, 70, 1, 1, 9, 9), "U", "N"),
    (1, 27, (80, 29, 0, 1, 72, 1, 2, 2, 19, 8), (41, 43, 1, 0, 18, 10, 2, 1, 8, 9), "L", "N"),
    (29, 5, (37, 40, 0, 1, 1, 29, 1, 2, 17, 9), (46, 86, 0, 0, 5, 81, 2, 1, 7, 9), "L", "U"),
    (59, 25, (91, 151, 0, 1, 20, 62, 2, 2, 5, 150), (81, 89, 0, 0, 5, 9, 1, 1, 9, 12), "L", "N"),
    (31, 76, (114, 95, 0, 1, 79, 17, 1, 2, 8, 49), (169, 169, 0, 1, 50, 16, 1, 2, 9, 8), "U", "N"),
    (12, 127, (22, 191, 1, 1, 11, 21, 2, 2, 8, 1), (28, 193, 1, 0, 11, 46, 2, 1, 9, 8), "U", "U"),
]

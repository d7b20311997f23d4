"""Tables of the arguments of every routine, from which the checks, error numbers, docstrings and types are made.

A line names the arguments in their order. A matrix X stands for four of them: X, IX, JX, DESCX. This module imports
nothing but Python's own, as hatch_build.py reads it where NumPy is missing.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType

OPTIONS = {
    "TRANSA": "NTC",
    "TRANSB": "NTC",
    "TRANS": "NTC",
    "UPLO": "UL",
    "DIAG": "NU",
    "SIDE": "LR",
    "SCOPE": "RCA ",
    "NORM": "M1OIFE",
    "DIREC": "FB",
    "ROWCOL": "RC",
    "PIVROC": "RC",
    "JOBZ": "NV",
    "JOBU": "NV",
    "JOBVT": "NV",
    "VECT": "QP",
    "RANGE": "AVI",
    "FACT": "FNE",
    "EQUED": "NRCBY",
}
"""The letters that an option may be, in either case."""

EXTENTS = ("M", "N", "K", "NRHS")  # the arguments that count rows or columns

RETURNED = ("VALUE", "INDX", "RCOND", "SCALE", "NZ", "ROWCND", "COLCND", "SCOND", "AMAX")
"""Output arguments that Python returns, as M beside NZ; INFO, which is the last one, is in no list."""
WORKSPACES = ("WORK", "IWORK", "RWORK")
"""Arrays that are not needed. Of one of them the argument before says the size, as LWORK, or asks for it."""

_SIZES = tuple(f"L{name}" for name in WORKSPACES)
_TYPES = {
    **dict.fromkeys((*OPTIONS, "TOP", "CMATNM"), "str"),
    **dict.fromkeys(("ALPHA", "BETA"), "complex"),
    **dict.fromkeys((*"ABCDERSUXY", "AF", "VT", "SR", "SC", "FERR", "BERR", "IPIV", "TAU", "TAUQ", "TAUP"), "Array"),
    **dict.fromkeys((*WORKSPACES, "RA", "CA"), "Array | None"),
    **dict.fromkeys(_SIZES, "int | None"),
    **dict.fromkeys(("ANORM", "VL", "VU"), "float"),
    "W": "Array",
    **dict.fromkeys(("IFAIL", "ICLUSTR", "GAP"), "Array | None"),
    **dict.fromkeys(("ABSTOL", "ORFAC"), "float"),
    "NOUT": "int | IO[str]",
}
"""Types of arguments, for editors; a descriptor is a Desc, and all others are integers."""
_DEFAULTS: dict[str, object] = {
    **dict.fromkeys((*WORKSPACES, *_SIZES, "RA", "CA", "IFAIL", "ICLUSTR", "GAP")),
    **dict.fromkeys(("LDIA", "RDEST", "CDEST"), -1),
    "NOUT": 6,
}

_MULTIPLYING = tuple(f"{kind}m{of}" for kind in ("or", "un") for of in ("qr", "lq", "tr", "br"))
_OPERATION = '"N", "T" or "C": sub({}) is used as it is, transposed, conjugate transposed (global)'
_TEXTS = {
    "TRANSA": _OPERATION.format("A"),
    "TRANSB": _OPERATION.format("B"),
    "TRANS": _OPERATION.format("A"),
    "ALPHA": "scalar; with alpha = 0 {inputs} not read (global)",
    "BETA": "scalar; with beta = 0 {written} is not read (global)",
    "X": "array that holds this rank's part of {X}{in_place} (local)",
    "IX": "first row of sub({X}), from 1 (global)",
    "JX": "first column of sub({X}), from 1 (global)",
    "DESCX": "descriptor of {X} (global, but for CTXT and LLD)",
    "INCX": "1 if sub({X}) is a column of {X}, M_{X} if it is a row (global)",
    "IPIV": "NumPy array of int32 or int64, distributed as the rows of A: rows i and IPIV(i) change places (local)",
    "TAU": "NumPy array of the type of A, distributed as its columns, with a copy in each process row: the factors of "
    "the reflectors (local)",
    "JOBZ": '"N": eigenvalues only, and sub(Z) is not used; "V": eigenvectors too (global)',
    "RANGE": '"A": all eigenvalues; "V": those greater than VL and at most VU; "I": numbers IL to IU (global)',
    "VL": 'with RANGE "V" the lower bound (global)',
    "VU": 'with RANGE "V" the upper bound, VL < VU (global)',
    "IL": 'with RANGE "I" the number of the first eigenvalue, from 1, in ascending order (global)',
    "IU": 'with RANGE "I" the number of the last one, IL <= IU <= N (global)',
    "W": "NumPy array of N real numbers, for the eigenvalues in ascending order, on all processes (local)",
    "ABSTOL": "ignored: eigenvalues have full accuracy (global)",
    "ORFAC": "ignored: all eigenvectors are orthogonal (global)",
    "IFAIL": "not needed; its first M elements become 0: all eigenvectors converge (local)",
    "ICLUSTR": "not needed; its first element becomes 0: there are no clusters (local)",
    "GAP": "not needed (local)",
    "ANORM": "the norm of the matrix that was factored, >= 0 (global)",
    "WORK": "not needed",
    **dict.fromkeys(("IWORK", "RWORK"), "not needed"),
    **dict.fromkeys(_SIZES, "not needed; -1: the first elements of the workspaces become 1 (global)"),
}
"""Default descriptions of arguments, by name, where X is any matrix."""
_TRIANGLE_OF = '"U": on and above the diagonal of {}, "L": on and below (global)'
_UPDATE = {"UPLO": _TRIANGLE_OF.format("sub(C)") + ", which alone is read and written"}
_SYMMETRIC = {
    "SIDE": '"L": sub(A) is the left factor, M x M; "R": the right one, N x N (global)',
    "UPLO": _TRIANGLE_OF.format("sub(A)") + ", which alone is read",
}
_TWO_GRIDS = {
    "X": "array that holds this rank's part of {X}{in_place}; ignored outside {X}'s grid (local)",
    "DESCX": "descriptor of {X}; outside {X}'s grid its CTXT is -1, and the rest is ignored (local)",
    "ICTXT": "handle of a grid that has all processes of both grids; all of its processes call (local)",
}
_ONE_ELEMENT = {"IX": "row, from 1 (global)", "JX": "column, from 1 (global)"}


@dataclass(frozen=True, slots=True)
class Operand:
    """One matrix of a routine."""

    name: str  # the letter
    position: int  # position of the local array among the arguments, from 1; IX, JX and DESCX follow
    # argument that counts the rows of the submatrix, or "1"; "SIDE": M if SIDE is "L", else N; "MAX", "MIN": the larger
    # or the smaller of M and N
    rows: str
    columns: str  # argument that counts its columns, as `rows`
    trans: str = ""  # option that exchanges rows and columns unless it is "N"; "" for none
    increment: str = ""  # argument, as INCX, that makes a vector of `rows` elements a row or a column; "" for a matrix


@dataclass(frozen=True, slots=True)
class Routine:
    """A routine, for all types.

    >>> GEMM.arguments.index("DESCA") + 1, GEMM.operands[2].position
    (10, 16)
    """

    name: str  # name without the prefixes
    arguments: tuple[str, ...]  # names of the arguments, in order
    operands: tuple[Operand, ...]  # the matrices, in order
    texts: Mapping[str, str]  # descriptions of arguments that differ from `_TEXTS`
    # what stands before the name in each type: "pd" for double precision, "psc" for two types
    prefixes: tuple[str, ...]
    outputs: tuple[str, ...] = ()  # names of the matrices that the routine writes
    real: tuple[str, ...] = ()  # names of scalars and matrices that are real for complex types too
    whole: bool = False  # whether UPLO may be any other letter, for all elements

    @property
    def returned(self) -> tuple[str, ...]:
        """The arguments that Python returns."""
        return (*RETURNED, "M") if "NZ" in self.arguments else RETURNED

    @property
    def signature(self) -> inspect.Signature:
        """The arguments of the function in Python, with their types.

        >>> list(DOT.signature.parameters)
        ['n', 'x', 'ix', 'jx', 'descx', 'incx', 'y', 'iy', 'jy', 'descy', 'incy']
        """
        kind, empty = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
        named = (
            (name, "Desc" if name.startswith("DESC") else _TYPES.get(name, "int"))
            for name in self.arguments
            if name not in self.returned
        )
        return inspect.Signature(
            [inspect.Parameter(x.lower(), kind, default=_DEFAULTS.get(x, empty), annotation=of) for x, of in named]
        )

    def is_written(self, operand: Operand) -> bool:
        """Whether the routine writes this matrix."""
        return operand.name in self.outputs

    def letters(self, option: str, *, is_complex: bool) -> str:
        """The letters that an option may be, for real or complex matrices.

        >>> SYRK.letters("TRANS", is_complex=True), HERK.letters("TRANS", is_complex=True)
        ('NT', 'NC')
        """
        if option == "NORM" and self.name.endswith("con"):
            return "1OI"
        if option == "EQUED":
            return "NY" if self.name == "posvx" else "NRCB"
        if option == "TRANS" and is_complex:
            if self.name in ("syrk", "syr2k"):
                return "NT"
            if self.name in ("herk", "her2k"):
                return "NC"
        if option == "TRANS" and self.name in ("gels", *_MULTIPLYING):
            return "NC" if is_complex else "NT"
        return OPTIONS[option]

    def described(self) -> str:
        """The docstring section that describes the arguments.

        >>> for line in TRAN.described().splitlines()[1:5]: print(line.strip())
        m: columns of sub(A), rows of sub(C) (global).
        n: rows of sub(A), columns of sub(C) (global).
        alpha: scalar; with alpha = 0 A is not read (global).
        a: array that holds this rank's part of A (local).
        """
        described = ((name, self._text(name)) for name in self.arguments)
        lines = (f"{name.lower()}: {text}." for name, text in described if text)
        wrapped = (textwrap.fill(line, 112, initial_indent=4 * " ", subsequent_indent=8 * " ") for line in lines)
        return "\n".join(("Args:", *wrapped))

    def _text(self, name: str) -> str:
        """Description of an argument; "" for one that Python returns."""
        if name in self.returned:
            return ""
        if name in EXTENTS and name not in self.texts:
            return self._extent(name)
        matrix = max((x.name for x in self.operands if name.endswith(x.name)), key=len, default=name[-1])
        texts = {**_TEXTS, **self.texts}
        text = texts.get(name) or texts.get(f"{name.removesuffix(matrix)}X", "")
        inputs = [operand.name for operand in self.operands if not self.is_written(operand)]
        written = self.outputs[-1] if self.outputs else ""
        return text.format(
            X=matrix,
            written=written,
            inputs=" and ".join(inputs) + (" is" if len(inputs) == 1 else " are"),
            in_place=", written in place" if matrix in self.outputs else "",
        )

    def _extent(self, name: str) -> str:
        """Description of an argument by the rows and columns that it counts."""
        counted: dict[str, list[str]] = {}
        for operand in self.operands:
            matrix = f"op(sub({operand.name}))" if operand.trans and not operand.increment else f"sub({operand.name})"
            if operand.increment:
                if operand.rows == name:
                    counted.setdefault("elements", []).append(matrix)
                continue
            for axis, argument in (("rows", operand.rows), ("columns", operand.columns)):
                if argument == name:
                    counted.setdefault(axis, []).append(matrix)
        return ", ".join(f"{axis} of {' and '.join(names)}" for axis, names in counted.items()) + " (global)"


def _routine(
    name: str,
    line: str,
    texts: Mapping[str, str] = MappingProxyType({}),
    *,
    prefixes: str = "ps pd pc pz",
    outputs: str | None = None,
    real: str = "",
    whole: bool = False,
    **shapes: str,
) -> Routine:
    """A routine from one line as in the manual.

    Args:
        name: see `Routine`.
        line: the arguments; a matrix X stands for X IX JX DESCX.
        texts: see `Routine`.
        prefixes: see `Routine`.
        outputs: names of the matrices that it writes; None: the last of several.
        real: see `Routine`.
        whole: see `Routine`.
        shapes: for each matrix "rows columns [option]"; for a vector with an increment "elements other [option]".
    """
    words = ((x, f"I{x}", f"J{x}", f"DESC{x}") if x in shapes else (x,) for x in line.split())
    arguments, operands = tuple(chain.from_iterable(words)), []
    for x, shape in shapes.items():
        rows, columns, trans = (*shape.split(), "")[:3]
        increment = f"INC{x}" if f"INC{x}" in arguments else ""
        operands.append(Operand(x, arguments.index(x) + 1, rows, columns, trans, increment))
    written = list(shapes)[1:][-1:] if outputs is None else outputs.split()
    return Routine(
        name, arguments, tuple(operands), texts, tuple(prefixes.split()), tuple(written), tuple(real.split()), whole
    )


_REAL, _COMPLEX = "ps pd", "pc pz"


_SYMM, _SYRK, _SYR2K = (
    "SIDE UPLO M N ALPHA A B BETA C",
    "UPLO TRANS N K ALPHA A BETA C",
    "UPLO TRANS N K ALPHA A B BETA C",
)
GEMM = _routine("gemm", "TRANSA TRANSB M N K ALPHA A B BETA C", A="M K TRANSA", B="K N TRANSB", C="M N")
SYMM = _routine("symm", _SYMM, _SYMMETRIC, A="SIDE SIDE", B="M N", C="M N")
HEMM = _routine("hemm", _SYMM, _SYMMETRIC, prefixes=_COMPLEX, A="SIDE SIDE", B="M N", C="M N")
SYRK = _routine("syrk", _SYRK, _UPDATE, A="N K TRANS", C="N N")
HERK = _routine("herk", _SYRK, _UPDATE, prefixes=_COMPLEX, real="ALPHA BETA", A="N K TRANS", C="N N")
SYR2K = _routine("syr2k", _SYR2K, _UPDATE, A="N K TRANS", B="N K TRANS", C="N N")
HER2K = _routine(*("her2k", _SYR2K, _UPDATE), prefixes=_COMPLEX, real="BETA", A="N K TRANS", B="N K TRANS", C="N N")
TRMM = _routine(
    "trmm",
    "SIDE UPLO TRANS DIAG M N ALPHA A B",
    {**_SYMMETRIC, "DIAG": '"U": the diagonal of sub(A) holds ones, and is not read; "N": its own (global)'},
    A="SIDE SIDE",
    B="M N",
)
GEADD = _routine("geadd", "TRANS M N ALPHA A BETA C", A="M N TRANS", C="M N")
TRADD = _routine(
    "tradd",
    "UPLO TRANS M N ALPHA A BETA C",
    {"UPLO": '"U": on and above the diagonal of sub(C), "L": on and below (global)'},
    A="M N TRANS",
    C="M N",
)
TRAN, TRANU, TRANC = (
    _routine(name, "M N ALPHA A BETA C", prefixes=types, A="N M", C="M N")
    for name, types in (("tran", _REAL), ("tranu", _COMPLEX), ("tranc", _COMPLEX))
)
GEMR2D = _routine("gemr2d", "M N A B ICTXT", _TWO_GRIDS, A="M N", B="M N")
TRMR2D = _routine(
    "trmr2d",
    "UPLO DIAG M N A B ICTXT",
    {
        "UPLO": '"U": element (i, j) moves if i <= j + max(0, m - n); "L": if i >= j - max(0, n - m) (global)',
        "DIAG": '"U": the diagonal that limits the trapezoid does not move, "N": it does (global)',
        **_TWO_GRIDS,
    },
    A="M N",
    B="M N",
)
_SOLVE = {
    "SIDE": '"L": op(sub(A)) is on the left of sub(B), "R": on the right (global)',
    "UPLO": '"U" or "L": the triangle of sub(A) that is read (global)',
    "DIAG": '"U": the diagonal of sub(A) is ones and is not read, "N": it is read (global)',
}
TRSM = _routine("trsm", "SIDE UPLO TRANS DIAG M N ALPHA A B", _SOLVE, A="SIDE SIDE", B="M N")
TRTRS = _routine("trtrs", "UPLO TRANS DIAG N NRHS A B", _SOLVE, A="N N", B="N NRHS")
ELSET = _routine("elset", "A ALPHA", {"ALPHA": "the element (global)", **_ONE_ELEMENT}, A="1 1")
ELGET = _routine(
    "elget",
    "SCOPE TOP VALUE A",
    {
        "SCOPE": '"R": its process row, "C": its process column, "A": all, " ": the owner (global)',
        "TOP": "ignored; BLACS's topology of the broadcast",
        **_ONE_ELEMENT,
    },
    A="1 1",
)
LAPRNT = _routine(
    "laprnt",
    "M N A IRPRNT ICPRNT CMATNM NOUT WORK",
    {
        "IRPRNT": "row of the process that prints (global)",
        "ICPRNT": "its column (global)",
        "CMATNM": "name before the indices (global)",
        "NOUT": "6 for the standard output, or a file that is open for text (local)",
        "WORK": "not needed",
    },
    A="M N",
)

_TRIANGLE = {"UPLO": '"U": the upper triangle of sub(A), "L": the lower one; the other is not touched (global)'}
_TRIANGULAR = {**_TRIANGLE, "DIAG": '"U": the diagonal is 1 and not read, "N": it is read (global)'}

SWAP = _routine("swap", "N X INCX Y INCY", outputs="X Y", X="N 1", Y="N 1")
COPY = _routine("copy", "N X INCX Y INCY", X="N 1", Y="N 1")
SCAL = _routine(
    *("scal", "N ALPHA X INCX", {"ALPHA": "scalar (global)"}), prefixes="ps pd pc pz pcs pzd", outputs="X", X="N 1"
)
AXPY = _routine("axpy", "N ALPHA X INCX Y INCY", X="N 1", Y="N 1")
DOT, DOTU, DOTC = (
    _routine(name, "N VALUE X INCX Y INCY", prefixes=types, outputs="", X="N 1", Y="N 1")
    for name, types in (("dot", _REAL), ("dotu", _COMPLEX), ("dotc", _COMPLEX))
)
NRM2, ASUM = (_routine(name, "N VALUE X INCX", prefixes="ps pd psc pdz", X="N 1") for name in ("nrm2", "asum"))
AMAX = _routine("amax", "N VALUE INDX X INCX", X="N 1")

_GEMV = "TRANS M N ALPHA A X INCX BETA Y INCY"
_SYMV = "UPLO N ALPHA A X INCX BETA Y INCY"
GEMV, AGEMV = (
    _routine(name, _GEMV, real=real, A="M N", X="N M TRANS", Y="M N TRANS")
    for name, real in (("gemv", ""), ("agemv", "ALPHA BETA Y"))
)
SYMV, HEMV, ASYMV, AHEMV = (
    _routine(name, _SYMV, _TRIANGLE, prefixes=types, real=real, A="N N", X="N 1", Y="N 1")
    for name, types, real in (
        ("symv", _REAL, ""),
        ("hemv", _COMPLEX, ""),
        ("asymv", _REAL, "ALPHA BETA Y"),
        ("ahemv", _COMPLEX, "ALPHA BETA Y"),
    )
)
TRMV, TRSV = (_routine(name, "UPLO TRANS DIAG N A X INCX", _TRIANGULAR, A="N N", X="N 1") for name in ("trmv", "trsv"))
ATRMV = _routine(
    *("atrmv", "UPLO TRANS DIAG N ALPHA A X INCX BETA Y INCY", _TRIANGULAR),
    real="ALPHA BETA Y",
    A="N N",
    X="N 1",
    Y="N 1",
)
GER, GERU, GERC = (
    _routine(name, "M N ALPHA X INCX Y INCY A", prefixes=types, X="M 1", Y="N 1", A="M N")
    for name, types in (("ger", _REAL), ("geru", _COMPLEX), ("gerc", _COMPLEX))
)
SYR = _routine("syr", "UPLO N ALPHA X INCX A", _TRIANGLE, prefixes=_REAL, X="N 1", A="N N")
HER = _routine("her", "UPLO N ALPHA X INCX A", _TRIANGLE, prefixes=_COMPLEX, real="ALPHA", X="N 1", A="N N")
SYR2, HER2 = (
    _routine(name, "UPLO N ALPHA X INCX Y INCY A", _TRIANGLE, prefixes=types, X="N 1", Y="N 1", A="N N")
    for name, types in (("syr2", _REAL), ("her2", _COMPLEX))
)

_NORM = {
    "NORM": '"M": max abs(a_ij); "1" or "O": largest sum of a column; "I": of a row; "F" or "E": Frobenius (global)'
}
_WHOLE = {"UPLO": '"U" or "L": one triangle of it, with the diagonal; any other letter: all elements (global)'}
LANGE = _routine("lange", "NORM M N A WORK", _NORM, A="M N")
LANSY = _routine("lansy", "NORM UPLO N A WORK", {**_NORM, **_TRIANGLE}, A="N N")
LANHE = _routine("lanhe", "NORM UPLO N A WORK", {**_NORM, **_TRIANGLE}, prefixes=_COMPLEX, A="N N")
LANTR = _routine("lantr", "NORM UPLO DIAG M N A WORK", {**_NORM, **_TRIANGULAR}, A="M N")
LASET = _routine(
    *("laset", "UPLO M N ALPHA BETA A"),
    {**_WHOLE, "ALPHA": "elements beside the diagonal (global)", "BETA": "elements of the diagonal (global)"},
    outputs="A",
    whole=True,
    A="M N",
)
LACPY = _routine("lacpy", "UPLO M N A B", _WHOLE, whole=True, A="M N", B="M N")

POTRF = _routine("potrf", "UPLO N A", _TRIANGLE, outputs="A", A="N N")
POTRS = _routine("potrs", "UPLO N NRHS A B", _TRIANGLE, A="N N", B="N NRHS")
POSV = _routine("posv", "UPLO N NRHS A B", _TRIANGLE, outputs="A B", A="N N", B="N NRHS")
GETRF = _routine("getrf", "M N A IPIV", outputs="A", A="M N")
GETRS = _routine("getrs", "TRANS N NRHS A IPIV B", A="N N", B="N NRHS")
GESV = _routine("gesv", "N NRHS A IPIV B", outputs="A B", A="N N", B="N NRHS")
LAPIV = _routine(
    *("lapiv", "DIREC ROWCOL PIVROC M N A IPIV IP JP DESCIP IWORK"),
    {
        "DIREC": '"F": from the first exchange to the last, P sub(A) or sub(A) P; "B": backwards (global)',
        "ROWCOL": '"R": rows are exchanged; "C": columns (global)',
        "PIVROC": '"C": IPIV is a column, distributed as the rows of a matrix; "R": a row (global)',
        "IPIV": "NumPy array of int32 or int64: rows (or columns) k and IPIV(k) - k0 of sub(A) change places, where "
        "k0 is IP - 1, or JP - 1 (local)",
        "IP": "first row of IPIV that is used, from 1 (global)",
        "JP": "first column of IPIV that is used, from 1 (global)",
        "DESCIP": "descriptor of IPIV; the source of the axis on which it is not distributed may be the process's own "
        "coordinate (global, but for that source, CTXT and LLD)",
    },
    outputs="A",
    A="M N",
)
POTRI = _routine("potri", "UPLO N A", _TRIANGLE, outputs="A", A="N N")
GETRI = _routine("getri", "N A IPIV WORK LWORK IWORK LIWORK", outputs="A", A="N N")
TRTRI = _routine("trtri", "UPLO DIAG N A", _TRIANGULAR, outputs="A", A="N N")

_OF_ROWS_OF_A = "distributed as the rows of A, with a copy in each process column"
_OF_ROWS = {
    "TAU": "NumPy array of the type of A, distributed as its rows, with a copy in each process column: the factors of "
    "the reflectors (local)"
}
_APPLIED = {
    "SIDE": '"L": op(Q) sub(C), "R": sub(C) op(Q) (global)',
    "TRANS": 'op: "N" for Q, otherwise its transpose or, of complex matrices, "C" for the conjugate one (global)',
    "K": "number of reflectors: {} of sub(A) (global)",
}
_COLUMNS, _ROWS = ({**_APPLIED, "K": _APPLIED["K"].format(what)} for what in ("columns", "rows"))
_FORMED = {"K": "number of reflectors, which are in the first columns of sub(A); K <= N <= M (global)"}
_QR = "M N A TAU WORK LWORK"
GEQRF = _routine("geqrf", _QR, outputs="A", A="M N")
GELQF = _routine("gelqf", _QR, _OF_ROWS, outputs="A", A="M N")
ORGQR, UNGQR = (
    _routine(name, "M N K A TAU WORK LWORK", _FORMED, prefixes=types, outputs="A", A="M N")
    for name, types in (("orgqr", _REAL), ("ungqr", _COMPLEX))
)
_MULTIPLIED = "SIDE TRANS M N K A TAU C WORK LWORK"
ORMQR, UNMQR = (
    _routine(name, _MULTIPLIED, _COLUMNS, prefixes=types, A="SIDE K", C="M N")
    for name, types in (("ormqr", _REAL), ("unmqr", _COMPLEX))
)
ORMLQ, UNMLQ = (
    _routine(name, _MULTIPLIED, _ROWS | _OF_ROWS, prefixes=types, A="K SIDE", C="M N")
    for name, types in (("ormlq", _REAL), ("unmlq", _COMPLEX))
)
GELS = _routine(
    *("gels", "TRANS M N NRHS A B WORK LWORK"),
    {
        "TRANS": '"N": op(sub(A)) is sub(A); otherwise it is its transpose or, of complex matrices, "C" its conjugate '
        "transpose (global)"
    },
    outputs="A B",
    A="M N",
    B="MAX NRHS",
)
_PIVOTED = {
    "IPIV": "NumPy array of int32 or int64, distributed as the columns of A, with a copy in each process row: the "
    "columns of A that became the columns of sub(A) P (local)"
}
GEQPF, GEQPF_COMPLEX = (
    _routine("geqpf", f"M N A IPIV TAU {names}", _PIVOTED, prefixes=types, outputs="A", A="M N")
    for types, names in ((_REAL, "WORK LWORK"), (_COMPLEX, "WORK LWORK RWORK LRWORK"))
)

_ESTIMATED = {"NORM": '"1" or "O": the 1-norm; "I": the inf-norm (global)'}
_WORK = (_REAL, "WORK LWORK IWORK LIWORK"), (_COMPLEX, "WORK LWORK RWORK LRWORK")
POCON, POCON_COMPLEX = (
    _routine("pocon", f"UPLO N A ANORM RCOND {names}", _TRIANGLE, prefixes=types, A="N N") for types, names in _WORK
)
GECON, GECON_COMPLEX = (
    _routine("gecon", f"NORM N A ANORM RCOND {names}", _ESTIMATED, prefixes=types, A="N N") for types, names in _WORK
)
TRCON, TRCON_COMPLEX = (
    _routine("trcon", f"NORM UPLO DIAG N A RCOND {names}", _ESTIMATED | _TRIANGULAR, prefixes=types, A="N N")
    for types, names in _WORK
)

_SYEV = "JOBZ UPLO N A W Z WORK LWORK"
_SYEVR = "JOBZ RANGE UPLO N A VL VU IL IU M NZ W Z WORK LWORK"
_SYEVX = "JOBZ RANGE UPLO N A VL VU IL IU ABSTOL M NZ W ORFAC Z WORK LWORK"
_SYMMETRIC_A = {"UPLO": '"U" or "L": the triangle of sub(A) that is read (global)'}
SYEV, HEEV, SYEVD, HEEVD, SYEVR, HEEVR, SYEVX, HEEVX = (
    _routine(name, f"{line}{others}", _SYMMETRIC_A, prefixes=types, outputs="Z", real="VL VU", A="N N", Z="N N")
    for line, real, complex_ in (
        (_SYEV, ("syev", ""), ("heev", " RWORK LRWORK")),
        (_SYEV, ("syevd", " IWORK LIWORK"), ("heevd", " RWORK LRWORK IWORK LIWORK")),
        (_SYEVR, ("syevr", " IWORK LIWORK"), ("heevr", " RWORK LRWORK IWORK LIWORK")),
        (
            _SYEVX,
            ("syevx", " IWORK LIWORK IFAIL ICLUSTR GAP"),
            ("heevx", " RWORK LRWORK IWORK LIWORK IFAIL ICLUSTR GAP"),
        ),
    )
    for (name, others), types in ((real, _REAL), (complex_, _COMPLEX))
)
_PENCIL = {
    "IBTYPE": "1: A x = w B x; 2: A B x = w x; 3: B A x = w x (global)",
    "UPLO": '"U" or "L": the triangle of sub(A) that is read and written, and the factor of B from p?potrf (global)',
}
SYGST, HEGST = (
    _routine(name, "IBTYPE UPLO N A B SCALE", _PENCIL, prefixes=types, outputs="A", A="N N", B="N N")
    for name, types in (("sygst", _REAL), ("hegst", _COMPLEX))
)
_SYGVX = "IBTYPE JOBZ RANGE UPLO N A B VL VU IL IU ABSTOL M NZ W ORFAC Z"
SYGVX, HEGVX = (
    _routine(
        *(name, f"{_SYGVX} {others} IFAIL ICLUSTR GAP"),
        {
            "IBTYPE": _PENCIL["IBTYPE"],
            "UPLO": '"U" or "L": the triangle of sub(A) and sub(B) that is read, and in sub(B) written (global)',
            "IFAIL": "not needed; its first M elements become 0: all eigenvectors converge; or its first one k if the "
            "leading k x k block of sub(B) is not positive definite (local)",
        },
        prefixes=types,
        outputs="B Z",
        real="VL VU",
        A="N N",
        B="N N",
        Z="N N",
    )
    for name, types, others in (
        ("sygvx", _REAL, "WORK LWORK IWORK LIWORK"),
        ("hegvx", _COMPLEX, "WORK LWORK RWORK LRWORK IWORK LIWORK"),
    )
)
_TIED = "distributed as the columns of A, with a copy in each process row"
_REDUCED = {
    **_TRIANGLE,
    "D": f"NumPy array of real numbers, {_TIED}: the diagonal of T (local)",
    "E": f"NumPy array of real numbers, {_TIED}: the diagonal of T below it, at columns JA..JA+N-2, or with UPLO "
    '"U" the one above it, at columns JA+1..JA+N-1 (local)',
    "TAU": f"NumPy array of the type of A, {_TIED}: the factors of the reflectors, at the columns of E (local)",
}
SYTRD, HETRD = (
    _routine(name, "UPLO N A D E TAU WORK LWORK", _REDUCED, prefixes=types, outputs="A", A="N N")
    for name, types in (("sytrd", _REAL), ("hetrd", _COMPLEX))
)
ORMTR, UNMTR = (
    _routine(
        *(name, "SIDE UPLO TRANS M N A TAU C WORK LWORK"),
        {**_APPLIED, "UPLO": "as of p?sytrd (global)", "TAU": _REDUCED["TAU"]},
        prefixes=types,
        A="SIDE SIDE",
        C="M N",
    )
    for name, types in (("ormtr", _REAL), ("unmtr", _COMPLEX))
)

_BIDIAGONAL = {
    "D": "NumPy array of real numbers, distributed as the columns of A, with a copy in each process row, or if M < N "
    "as its rows, with a copy in each process column: the diagonal of B (local)",
    "E": "NumPy array of real numbers, distributed as the rows of A, or if M < N as its columns: the diagonal of B "
    "above it, or if M < N below it (local)",
    "TAUQ": f"NumPy array of the type of A, {_TIED}: the factors of the reflectors of Q (local)",
    "TAUP": f"NumPy array of the type of A, {_OF_ROWS_OF_A}: the factors of the reflectors of P (local)",
}
GEBRD = _routine("gebrd", "M N A D E TAUQ TAUP WORK LWORK", _BIDIAGONAL, outputs="A", A="M N")
ORMBR, UNMBR = (
    _routine(
        *(name, "VECT SIDE TRANS M N K A TAU C WORK LWORK"),
        {
            "VECT": '"Q": multiply with Q; "P": with P (global)',
            **_APPLIED,
            "K": 'columns of the matrix that p?gebrd reduced, or with VECT "P" its rows (global)',
            "TAU": "TAUQ or TAUP of p?gebrd (local)",
        },
        prefixes=types,
        A="SIDE K",
        C="M N",
    )
    for name, types in (("ormbr", _REAL), ("unmbr", _COMPLEX))
)

_SVD = {
    "JOBU": '"V": the left singular vectors too, as columns of sub(U); "N": sub(U) is not used (global)',
    "JOBVT": '"V": the right singular vectors too, sub(VT) gets V^T, or V^H; "N": sub(VT) is not used (global)',
    "S": "NumPy array of min(M, N) real numbers, for the singular values, descending, on all processes (local)",
    "IU": "first row of sub(U), from 1 (global)",
}
GESVD, GESVD_COMPLEX = (
    _routine(
        *("gesvd", f"JOBU JOBVT M N A S U VT WORK LWORK{others}", _SVD),
        prefixes=types,
        outputs="U VT",
        A="M N",
        U="M MIN",
        VT="MIN N",
    )
    for types, others in ((_REAL, ""), (_COMPLEX, " RWORK"))
)

_OF_A_COLUMNS = "distributed as the columns of A, with a copy in each process row"
_SCALES = {
    name: f"NumPy array of real numbers, {_OF_ROWS_OF_A if name in ('R', 'SR') else _OF_A_COLUMNS}: the scale factors"
    " (local)"
    for name in ("R", "C", "SR", "SC")
}
GEEQU = _routine("geequ", "M N A R C ROWCND COLCND AMAX", _SCALES, outputs="", A="M N")
POEQU = _routine("poequ", "N A SR SC SCOND AMAX", _SCALES, outputs="", A="N N")
_ERRORS = "distributed as the columns of X, with a copy in each process row"
_REFINED = {
    "AF": "array that holds this rank's part of the factors of A, from {} (local)",
    "IPIV": "as of p?getrf, distributed as the rows of AF (local)",
    "FERR": f"NumPy array of real numbers, {_ERRORS}: a bound of the error of each column of X, in units of its "
    "largest element (local)",
    "BERR": f"NumPy array of real numbers, {_ERRORS}: the backward error, the smallest relative change of elements of "
    "A and B for which the column is exact (local)",
}
_OF_LU, _OF_CHOLESKY = ({**_REFINED, "AF": _REFINED["AF"].format(name)} for name in ("p?getrf", "p?potrf"))
_OF_CHOLESKY |= _SYMMETRIC_A
_EXPERT = {
    "FACT": '"N": sub(A) is factored; "E": scaled first if that helps; "F": sub(AF) has the factors already (global)',
    "EQUED": 'with FACT "F" how sub(A) and its factors were scaled: {} (global)',
    **{
        name: f'{text[:-8]}; they are read with FACT "F" and written with "E" (local)' for name, text in _SCALES.items()
    },
}
_EQUED = '"N" not at all, "R" rows, "C" columns, "B" both', '"N" not at all, "Y" rows and columns'
(GERFS, GERFS_COMPLEX), (PORFS, PORFS_COMPLEX), (GESVX, GESVX_COMPLEX), (POSVX, POSVX_COMPLEX) = (
    [
        _routine(
            *(name, f"{line} FERR BERR {names}", texts),
            prefixes=types,
            outputs=outputs,
            A="N N",
            AF="N N",
            B="N NRHS",
            X="N NRHS",
        )
        for types, names in _WORK
    ]
    for name, line, outputs, texts in (
        ("gerfs", "TRANS N NRHS A AF IPIV B X", "X", _OF_LU),
        ("porfs", "UPLO N NRHS A AF B X", "X", _OF_CHOLESKY),
        (
            *("gesvx", "FACT TRANS N NRHS A AF IPIV EQUED R C B X RCOND", "A AF B X"),
            {**_OF_LU, **_EXPERT, "EQUED": _EXPERT["EQUED"].format(_EQUED[0])},
        ),
        (
            *("posvx", "FACT UPLO N NRHS A AF EQUED SR SC B X RCOND", "A AF B X"),
            {**_OF_CHOLESKY, **_EXPERT, "EQUED": _EXPERT["EQUED"].format(_EQUED[1])},
        ),
    )
)

_MESSAGE = {
    "ICTXT": "handle of the grid (local)",
    "SCOPE": '"A" all processes, "R" the process row, "C" the process column (global)',
    "TOP": "ignored; BLACS's topology",
    "M": "rows of A (global)",
    "N": "columns of A (global)",
    "A": "array of two dimensions, with m x n elements at least, or of one with columns lda apart (local)",
    "LDA": "leading dimension, >= m; otherwise ignored for an array of two dimensions (local)",
    "RDEST": 'row of the process that gets the result; -1: all; ignored in scope "R" but for -1 (global)',
    "CDEST": 'its column; ignored in scope "C" but for -1 (global)',
    "RA": "integer array that receives the process row of each element; not used if ldia is -1 (local)",
    "CA": "its process column (local)",
    "LDIA": "-1, or the leading dimension of ra and ca (global)",
    "RSRC": "row of the process that sends (global)",
    "CSRC": "its column (global)",
}
GSUM2D, GAMX2D, GAMN2D, GEBS2D, GEBR2D = (
    _routine(name, f"ICTXT SCOPE TOP M N A LDA {others}", _MESSAGE, prefixes="i s d c z")
    for name, others in (
        ("gsum2d", "RDEST CDEST"),
        ("gamx2d", "RA CA LDIA RDEST CDEST"),
        ("gamn2d", "RA CA LDIA RDEST CDEST"),
        ("gebs2d", ""),
        ("gebr2d", "RSRC CSRC"),
    )
)
"""Messages of BLACS, which have no descriptors; their A is no operand."""

"""Tables of the arguments of every routine, from which the checks, error numbers and docstrings are made.

A line names the arguments in their order. A matrix X stands for four of them: X, IX, JX, DESCX.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

OPTIONS = {"TRANSA": "NTC", "TRANSB": "NTC", "TRANS": "NTC", "UPLO": "UL", "DIAG": "NU", "SIDE": "LR", "SCOPE": "RCA "}
"""The letters that an option may be, in either case."""

EXTENTS = ("M", "N", "K", "NRHS")
"""The arguments that count rows or columns."""

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
}
"""Default descriptions of arguments, by name, where X is any matrix."""
_TWO_GRIDS = {
    "X": "array that holds this rank's part of {X}{in_place}; ignored outside {X}'s grid (local)",
    "DESCX": "descriptor of {X}; outside {X}'s grid its CTXT is -1, and the rest is ignored (local)",
    "ICTXT": "handle of a grid that has all processes of both grids; all of its processes call (local)",
}
_ONE_ELEMENT = {"IX": "row, from 1 (global)", "JX": "column, from 1 (global)"}


@dataclass(frozen=True, slots=True)
class Operand:
    """One matrix of a routine.

    Args:
        name: the letter.
        position: position of the local array among the arguments, from 1; IX, JX and DESCX follow.
        rows: argument that counts the rows of the submatrix, or "1"; "SIDE": M if SIDE is "L", else N.
        columns: argument that counts its columns, as `rows`.
        trans: option that exchanges rows and columns unless it is "N"; "" for none.
    """

    name: str
    position: int
    rows: str
    columns: str
    trans: str = ""


@dataclass(frozen=True, slots=True)
class Routine:
    """A routine, for all types.

    Args:
        name: name without "p" and the letter of the type.
        arguments: names of the arguments, in order.
        operands: the matrices, in order.
        texts: descriptions of arguments that differ from `_TEXTS`.

    >>> GEMM.arguments.index("DESCA") + 1, GEMM.operands[2].position
    (10, 16)
    """

    name: str
    arguments: tuple[str, ...]
    operands: tuple[Operand, ...]
    texts: Mapping[str, str]

    @property
    def written(self) -> Operand | None:
        """The matrix that the routine writes, the last of several; None for a routine with one matrix."""
        return self.operands[-1] if len(self.operands) > 1 else None

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
        if name in EXTENTS:
            return self._extent(name)
        matrix, texts = name[-1], {**_TEXTS, **self.texts}
        text = texts.get(name) or texts.get(f"{name[:-1]}X", "")
        inputs = [operand.name for operand in self.operands if operand is not self.written]
        written = "" if self.written is None else self.written.name
        return text.format(
            X=matrix,
            written=written,
            inputs=" and ".join(inputs) + (" is" if len(inputs) == 1 else " are"),
            in_place=", written in place" if matrix == written else "",
        )

    def _extent(self, name: str) -> str:
        """Description of an argument by the rows and columns that it counts."""
        counted: dict[str, list[str]] = {}
        for operand in self.operands:
            matrix = f"op(sub({operand.name}))" if operand.trans else f"sub({operand.name})"
            for axis, argument in (("rows", operand.rows), ("columns", operand.columns)):
                if argument == name:
                    counted.setdefault(axis, []).append(matrix)
        return ", ".join(f"{axis} of {' and '.join(names)}" for axis, names in counted.items()) + " (global)"


def _routine(name: str, line: str, texts: Mapping[str, str] = MappingProxyType({}), **shapes: str) -> Routine:
    """A routine from one line as in the manual, texts of its own and, for each matrix, "rows columns [option]"."""
    matrices = "|".join(shapes)
    arguments = tuple(re.sub(rf"\b({matrices})\b", r"\1 I\1 J\1 DESC\1", line).split())
    operands = tuple(Operand(x, arguments.index(x) + 1, *shape.split()) for x, shape in shapes.items())
    return Routine(name, arguments, operands, texts)


GEMM = _routine("gemm", "TRANSA TRANSB M N K ALPHA A B BETA C", A="M K TRANSA", B="K N TRANSB", C="M N")
GEADD = _routine("geadd", "TRANS M N ALPHA A BETA C", A="M N TRANS", C="M N")
TRADD = _routine(
    "tradd",
    "UPLO TRANS M N ALPHA A BETA C",
    {"UPLO": '"U": on and above the diagonal of sub(C), "L": on and below (global)'},
    A="M N TRANS",
    C="M N",
)
TRAN = _routine("tran", "M N ALPHA A BETA C", A="N M", C="M N")
TRANU = _routine("tranu", "M N ALPHA A BETA C", A="N M", C="M N")
TRANC = _routine("tranc", "M N ALPHA A BETA C", A="N M", C="M N")
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
_TRIANGLE = {
    "SIDE": '"L": op(sub(A)) is on the left of sub(B), "R": on the right (global)',
    "UPLO": '"U" or "L": the triangle of sub(A) that is read (global)',
    "DIAG": '"U": the diagonal of sub(A) is ones and is not read, "N": it is read (global)',
}
TRSM = _routine("trsm", "SIDE UPLO TRANS DIAG M N ALPHA A B", _TRIANGLE, A="SIDE SIDE", B="M N")
TRTRS = _routine("trtrs", "UPLO TRANS DIAG N NRHS A B", _TRIANGLE, A="N N", B="N NRHS")
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

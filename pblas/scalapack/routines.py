"""The arguments of every routine, by position: what checks and error numbers are made from.

A line names the arguments in their order. A matrix X stands for four of them: X, IX, JX, DESCX.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OPTIONS = {"TRANSA": "NTC", "TRANSB": "NTC", "TRANS": "NTC", "UPLO": "UL", "DIAG": "NU", "SCOPE": "RCA "}
"""The letters that an option may be; lower case is as good."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One matrix of a routine.

    Args:
        name: the letter.
        position: of the local array among the arguments, from 1; IX, JX and DESCX follow.
        rows: argument that counts the rows of the submatrix, or "1".
        columns: argument that counts its columns, or "1".
        trans: option that exchanges the two unless it is "N"; "" for none.
    """

    name: str
    position: int
    rows: str
    columns: str
    trans: str = ""


@dataclass(frozen=True, slots=True)
class Routine:
    """A routine of all types.

    Args:
        name: without "p" and the letter of the type.
        arguments: names in their order.
        operands: its matrices in their order.

    >>> GEMM.arguments.index("DESCA") + 1, GEMM.operands[2].position
    (10, 16)
    """

    name: str
    arguments: tuple[str, ...]
    operands: tuple[Operand, ...]

    @property
    def written(self) -> Operand | None:
        """The last of several matrices; a routine with one only reads it."""
        return self.operands[-1] if len(self.operands) > 1 else None


def _routine(name: str, line: str, **shapes: str) -> Routine:
    """A routine from one line as in the manual and, for each matrix, "rows columns [option]"."""
    matrices = "|".join(shapes)
    arguments = tuple(re.sub(rf"\b({matrices})\b", r"\1 I\1 J\1 DESC\1", line).split())
    operands = tuple(Operand(x, arguments.index(x) + 1, *shape.split()) for x, shape in shapes.items())
    return Routine(name, arguments, operands)


GEMM = _routine("gemm", "TRANSA TRANSB M N K ALPHA A B BETA C", A="M K TRANSA", B="K N TRANSB", C="M N")
GEADD = _routine("geadd", "TRANS M N ALPHA A BETA C", A="M N TRANS", C="M N")
TRADD = _routine("tradd", "UPLO TRANS M N ALPHA A BETA C", A="M N TRANS", C="M N")
TRAN = _routine("tran", "M N ALPHA A BETA C", A="N M", C="M N")
TRANU = _routine("tranu", "M N ALPHA A BETA C", A="N M", C="M N")
TRANC = _routine("tranc", "M N ALPHA A BETA C", A="N M", C="M N")
GEMR2D = _routine("gemr2d", "M N A B ICTXT", A="M N", B="M N")
TRMR2D = _routine("trmr2d", "UPLO DIAG M N A B ICTXT", A="M N", B="M N")
ELSET = _routine("elset", "A ALPHA", A="1 1")
ELGET = _routine("elget", "SCOPE TOP VALUE A", A="1 1")
LAPRNT = _routine("laprnt", "M N A IRPRNT ICPRNT CMATNM NOUT WORK", A="M N")

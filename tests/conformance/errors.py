"""The error exits of PBLAS: calls with one wrong argument, and the error number that each must raise.

Source: ScaLAPACK PBLAS/TESTING, PDBLASTST: PDOPTEE, PDDIMEE, PDMATEE.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pblas import PblasArgumentError, scalapack
from pblas.scalapack import routines
from pblas.scalapack.routines import WORKSPACES
from tests.conformance.problems import DTYPES

_OPTIONS = dict.fromkeys(("TRANSA", "TRANSB", "TRANS", "DIAG"), "N")
_OPTIONS |= {
    "UPLO": "U",
    "SIDE": "L",
    "NORM": "1",
    "JOBZ": "V",
    "JOBU": "V",
    "JOBVT": "V",
    "VECT": "Q",
    "RANGE": "A",
    "FACT": "N",
    "EQUED": "N",
}
_NOTHING = object()
"""Stands for an output argument, which Python returns."""


def right(routine: str, letter: str, ictxt: int) -> list[Any]:
    """Correct arguments on a grid of one row: 2 x 2 matrices and columns of two elements, in blocks of one.

    The routine is one of the tables of ScaLAPACK's tests, or of `pblas.scalapack.routines`.
    """
    _, npcol, _, mycol = scalapack.gridinfo(ictxt)
    arguments: list[Any] = []
    table: routines.Routine = getattr(routines, routine.upper())
    names, operands = table.arguments, [operand.name for operand in table.operands]
    for name in names:
        matrix = name.removeprefix("DESC")
        n = 1 if f"INC{matrix}" in names else 2
        if name in operands:
            columns = scalapack.numroc(n, 1, mycol, 0, npcol)
            x = np.ones((2, columns), DTYPES[letter.strip("sd") or letter], order="F")
            arguments.append(x.real.copy(order="F") if name in table.real else x)
        elif name.startswith("DESC"):
            arguments.append([2, ictxt, 2, n, 1, 1, 1, 1, 0, 0, 2])
        elif name == "ICTXT":
            arguments.append(ictxt)
        elif name == "IPIV":
            arguments.append(np.ones(2, np.intc))
        elif name in ("W", "D", "E", "S", "R", "C", "SR", "SC", "FERR", "BERR"):
            arguments.append(np.ones(2, DTYPES[letter]).real.copy())
        elif name in ("TAU", "TAUQ", "TAUP"):
            arguments.append(np.ones(2, DTYPES[letter]))
        elif name in WORKSPACES or name[1:] in WORKSPACES:
            arguments.append(None)
        elif name in table.returned:
            arguments.append(_NOTHING)
        else:
            arguments.append(_OPTIONS.get(name, 1))
    return arguments


def broken(arguments: list[Any], position: int, entry: int, value: object, ictxt: int) -> list[Any]:
    """Arguments with one of them, or one entry of a descriptor, set to `value`."""
    nprow, npcol, myrow, mycol = scalapack.gridinfo(ictxt)
    named = {"NPROW": nprow, "NPCOL": npcol, "SHORT": int(myrow == mycol == 0)}
    changed, to = list(arguments), named.get(value, value) if isinstance(value, str) else value
    if entry:
        desc = list(changed[position - 1])
        desc[entry - 1] = to
        changed[position - 1] = desc
    else:
        changed[position - 1] = to
    return changed


def given(arguments: list[Any]) -> list[Any]:
    """The arguments that Python passes: without those that the routine returns."""
    return [value for value in arguments if value is not _NOTHING]


def info(routine_name: str, arguments: list[Any]) -> int:
    """**Collective.** ScaLAPACK's number of the error that a call raises; 0 if it raises none."""
    try:
        getattr(scalapack, routine_name)(*given(arguments))
    except PblasArgumentError as caught:
        return caught.info
    return 0

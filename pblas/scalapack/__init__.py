"""ScaLAPACK's routines under their names, with their arguments in their order.

A line of Fortran becomes a line of Python: `CALL PDGEMM(...)` is `pdgemm(...)`. A routine returns its output
arguments: `nprow, npcol, myrow, mycol = gridinfo(ictxt)`. Indices count from 1, and descriptors are lists of integers.
Local arrays are NumPy's or CuPy's, stored by columns or by rows. The rest of pblas counts from 0 and has objects for
matrices and descriptors.
"""
# ruff: noqa: F401 - the modules fill the table of routines; the other names are public

import builtins

from pblas.errors import PblasArgumentError
from pblas.scalapack import (
    auxiliary,
    eigenvalues,
    expert,
    factorizations,
    level1,
    level2,
    level3,
    orthogonal,
    redist,
    singular_values,
)
from pblas.scalapack.arguments import ROUTINES as _ROUTINES
from pblas.scalapack.descriptors import descinit
from pblas.scalapack.grids import (
    exit,  # noqa: A004 - as in BLACS
    get,
    gridexit,
    gridinfo,
    gridinit,
    gridmap,
    pcoord,
    pinfo,
    pnum,
)
from pblas.scalapack.messages import barrier, comm
from pblas.scalapack.tools import indxg2l, indxg2p, indxl2g, infog2l, numroc

globals().update(_ROUTINES)

__all__ = sorted(  # noqa: PLE0605 - a list of strings: `import *` leaves `exit` to Python
    name for name, value in list(globals().items()) if callable(value) and not hasattr(builtins, name)
)


def __dir__() -> list[str]:
    return [*__all__, "exit", *(name for name in globals() if name.startswith("__"))]


def __getattr__(name: str) -> object:
    from pblas._lazy import missing

    raise missing(__name__, name, __dir__())

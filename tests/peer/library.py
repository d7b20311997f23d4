"""ScaLAPACK's shared library through ctypes, with the names and arguments of pblas.scalapack.

Debian's library is built for Debian's MPICH. It calls MPI from C only, and MPICH's ABI has not changed since 3.1. So it
also runs on the MPICH of the environment, in one job with mpi4py: a link named libmpich.so.12 in LD_LIBRARY_PATH points
to that MPICH (`make peer` makes the link). ScaLAPACK's function pilaenv returns its inner block of K, 32. A small
library, loaded before, replaces that function by one whose value `Library.block` sets.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np

from pblas.scalapack import routines

DEBIAN = ("libscalapack-mpich.so.2.2",)
MKL = ("libmpi.so.12", "libmkl_blacs_intelmpi_lp64.so.2", "libmkl_scalapack_lp64.so.2")
"""Libraries of the wheel mkl. MPI comes first, because mpi4py has loaded it without exporting its symbols. The wheel's
libmkl_intel_lp64, libmkl_sequential and libmkl_core must be in LD_PRELOAD."""

STOCK, TUNED = 32, 256
"""Inner blocks of K: ScaLAPACK's own, and a faster one."""

_PILAENV = """
int pblas_pilaenv = 32;
int pilaenv_(int *ictxt, char *prec, long length) { return pblas_pilaenv; }
"""
_SCALARS: dict[str, type[np.generic]] = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}
Array = np.ndarray[Any, np.dtype[Any]]


class Library:
    """ScaLAPACK, loaded once in a process.

    Args:
        folder: folder in which the library with pilaenv is built.
        names: names of shared libraries, in the order of loading.
    """

    def __init__(self, folder: Path, names: tuple[str, ...] = DEBIAN) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        inner = folder / f"pilaenv-{os.getpid()}.so"
        compiler = [*sysconfig.get_config_var("CC").split()[:1], "-shared", "-fPIC", "-x", "c", "-", "-o", str(inner)]
        subprocess.run(compiler, input=_PILAENV, text=True, check=True)
        self._inner = ctypes.CDLL(str(inner), mode=ctypes.RTLD_GLOBAL)
        inner.unlink()
        for name in names:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(None)  # the symbols of all loaded libraries
        self._keep: list[Any] = []

    @property
    def block(self) -> int:
        """The inner block of K."""
        return ctypes.c_int.in_dll(self._inner, "pblas_pilaenv").value

    @block.setter
    def block(self, value: int) -> None:
        ctypes.c_int.in_dll(self._inner, "pblas_pilaenv").value = value

    def gridinit(self, ictxt: object, order: str, nprow: int, npcol: int) -> int:
        """A grid over the first ranks of COMM_WORLD; see pblas.scalapack.gridinit."""
        del ictxt
        handle = ctypes.c_int(0)
        self._library.Cblacs_get(-1, 0, ctypes.byref(handle))
        self._library.Cblacs_gridinit(ctypes.byref(handle), order.encode(), nprow, npcol)
        return handle.value

    def gridinfo(self, ictxt: int) -> tuple[int, int, int, int]:
        """(nprow, npcol, myrow, mycol)."""
        values = [ctypes.c_int(-1) for _ in range(4)]
        self._library.Cblacs_gridinfo(ictxt, *map(ctypes.byref, values))
        nprow, npcol, myrow, mycol = (value.value for value in values)
        return nprow, npcol, myrow, mycol

    def gridexit(self, ictxt: int) -> None:
        """End a grid."""
        self._library.Cblacs_gridexit(ictxt)

    def __getattr__(self, name: str) -> Any:
        """A routine as a Python function, which passes its arguments by reference, as Fortran does.

        It returns the output arguments and values that the function of pblas.scalapack returns.
        """
        matched = re.fullmatch("p([sdcz]).+|[isdcz]g(?:sum|amx|amn|ebs|ebr)2d", name)
        if matched is None:
            raise AttributeError(name)
        routine, scalar = getattr(self._library, f"{name}_"), _SCALARS.get(matched[1] or "", np.int32)
        table: Any = getattr(routines, name[2:].upper(), None) or getattr(routines, name[3:].upper(), None)
        names = () if table is None else table.arguments
        outputs = [(i, np.int32 if x == "INDX" else scalar) for i, x in enumerate(names) if x in routines.RETURNED]
        if name[2:5] == "lan":  # functions
            routine.restype = {"s": ctypes.c_float, "c": ctypes.c_float}.get(name[1], ctypes.c_double)

        def call(*arguments: Any) -> Any:
            # The lengths of strings come last, by value.
            lengths = [ctypes.c_size_t(len(value)) for value in arguments if isinstance(value, str)]
            given, returned = list(arguments), []
            for place, dtype in outputs:
                returned.append(np.zeros(1, dtype))
                given.insert(place, returned[-1])
            value = routine(*(self._reference(x, scalar) for x in given), *lengths)
            self._keep.clear()
            if not returned:
                return value
            return returned[0][0] if len(returned) == 1 else tuple(x[0] for x in returned)

        return call

    def _reference(self, value: Any, scalar: type[np.generic]) -> Any:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, np.ndarray):
            return ctypes.c_void_p(value.ctypes.data)
        if isinstance(value, list):
            return (ctypes.c_int * len(value))(*value)
        if isinstance(value, int):
            return ctypes.byref(ctypes.c_int(value))
        held = np.array([value], scalar)
        self._keep.append(held)
        return ctypes.c_void_p(held.ctypes.data)

"""Whole programs under pblas.scalapack: what ends with them."""

import pytest

from pblas import scalapack
from tests.mpi.alike import COMM

pytestmark = pytest.mark.mpi


def test_exit_ends_every_grid() -> None:
    handles = [scalapack.gridinit(COMM, "R", 1, npcol, timeout=20.0) for npcol in (COMM.size, 1)]
    assert scalapack.gridinfo(handles[0])[:2] == (1, COMM.size)
    scalapack.exit(0)
    assert all(scalapack.gridinfo(handle)[0] == -1 for handle in handles)

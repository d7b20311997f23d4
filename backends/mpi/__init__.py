"""MPI: the only place that imports mpi4py."""

from pblas.backends.mpi.backend import MpiBackend as MpiBackend
from pblas.backends.mpi.channel import Transfer as Transfer
from pblas.backends.mpi.door import arrive as arrive

__all__ = ["MpiBackend", "Transfer", "arrive"]

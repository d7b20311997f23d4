"""MPI: the only place that imports mpi4py."""

from pblas.backends.mpi.backend import MpiBackend as MpiBackend
from pblas.backends.mpi.rendezvous import arrive as arrive
from pblas.backends.mpi.rendezvous import peers_of as peers_of

__all__ = ["MpiBackend", "arrive", "peers_of"]

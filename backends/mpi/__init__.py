"""MPI: the only place that imports mpi4py."""

from pblas.backends.mpi.rendezvous import peers_of as peers_of
from pblas.backends.mpi.rendezvous import rendezvous as rendezvous

__all__ = ["peers_of", "rendezvous"]

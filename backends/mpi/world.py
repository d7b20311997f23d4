"""COMM_WORLD, this rank's place on its node, and callbacks before MPI ends."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from pblas.errors import BackendError

# Launchers' variables with the number of this rank on its node. Slurm's is last: a batch script passes it on to any
# other launcher that it starts.
_LOCAL_RANKS = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")


def world(comm: MPI.Intracomm | None = None) -> MPI.Intracomm:
    """The communicator, or COMM_WORLD; BackendError unless MPI runs: its routines would end the process."""
    if MPI.Is_finalized():
        raise BackendError("MPI has been finalized, and cannot be started again; call MPI.Finalize() last")
    if not MPI.Is_initialized():
        raise BackendError(
            "MPI is not initialized; call MPI.Init_thread() of mpi4py before, or leave out mpi4py.rc.initialize = False"
        )
    return MPI.COMM_WORLD if comm is None else comm


def spans_world(comm: MPI.Intracomm) -> bool:
    """Whether a communicator has all ranks of the job (global)."""
    return comm.Get_size() == MPI.COMM_WORLD.Get_size()


def launched_local_rank() -> int | None:
    """Number of this rank among the job's ranks on its node, from the launcher; None if it does not set one."""
    for name in _LOCAL_RANKS:
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return None


def before_finalize(end: Callable[[], None]) -> None:
    """Call `end` while MPI still works: when the interpreter exits, or earlier when the program calls MPI.Finalize.

    `end` may be called twice. mpi4py finalizes MPI after the interpreter's exit handlers, and then calls no Python
    code. MPI deletes the attributes of COMM_SELF first in a Finalize (MPI 4.1, section 11.2.4).
    """
    atexit.register(lambda: None if MPI.Is_finalized() else end())
    keyval = MPI.Comm.Create_keyval(delete_fn=lambda *_: end())
    MPI.COMM_SELF.Set_attr(keyval, True)


def subset(comm: MPI.Intracomm, ranks: Sequence[int]) -> MPI.Intracomm | None:
    """**Collective.** A communicator of some ranks, numbered in the order given; None on the others."""
    places = {rank: place for place, rank in enumerate(ranks)}
    place = places.get(comm.Get_rank())
    part: Any = comm.Split(MPI.UNDEFINED if place is None else 0, place or 0)
    return None if place is None else part


def world_ranks(comm: MPI.Intracomm) -> tuple[int, ...]:
    """The rank in COMM_WORLD of each rank of a communicator (global)."""
    every = list(range(comm.Get_size()))
    return tuple(MPI.Group.Translate_ranks(comm.Get_group(), every, MPI.COMM_WORLD.Get_group()))

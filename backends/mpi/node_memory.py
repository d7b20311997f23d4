"""`NodeMemory` in MPI-3 shared windows."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI


class WindowMemory:
    """Shared windows of the ranks of a communicator, which is freed with them."""

    def __init__(self, node: MPI.Intracomm) -> None:
        self.node = node
        self.windows: list[MPI.Win] = []

    def allocate(self, nbytes: int) -> list[Any]:
        window = MPI.Win.Allocate_shared(nbytes, 1, comm=self.node)
        self.windows.append(window)
        window.Lock_all(MPI.MODE_NOCHECK)
        return [np.asarray(window.Shared_query(rank)[0], np.uint8) for rank in range(self.node.Get_size())]

    def sync(self) -> None:
        for window in self.windows:
            window.Sync()

    def close(self) -> None:
        for window in self.windows:
            window.Unlock_all()
            window.Free()
        self.windows = []
        self.node.Free()

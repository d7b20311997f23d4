"""Workspaces of the push protocol: flags and slots in symmetric memory, and their addresses on every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy

from pblas.backends.cuda import streams
from pblas.backends.cuda.transfer import new_array
from pblas.backends.nvshmem.kernels.arguments import all_reduce_flags_nbytes

if TYPE_CHECKING:
    from pblas.backends.dtypes import Dtype, Order

ALIGNMENT = 256
FLAG_NBYTES = 4
PARITIES = 2
_MOST_ARRAYS = 1024  # cached arrays of a workspace; an array takes longer to make than to use


class Workspace:
    """Flags and slots in symmetric memory, and the number of calls that have used them.

    The memory has two halves, and calls alternate between them. The half of a call is its parity. With one parity all
    calls use the same memory.

    Each half of the block has flags, `phases` for each pair of ranks, then flags of the all-reduce kernels, then
    `nbytes` of slots. `peers` are the addresses of the ranks' blocks, as mapped into this process.
    """

    def __init__(self, block: object, peers: list[int], nbytes: int, phases: int, parities: int = PARITIES) -> None:
        self.block: Any = block
        self.peers: list[int] = peers
        self.nbytes: int = nbytes
        self.phases: int = phases
        self.parities: int = parities
        self.calls = 0
        self._signals: dict[Any, list[Any]] = {}
        self._arrays: dict[object, Any] = {}
        self.pitch: int
        self._flags_nbytes, self._shot_nbytes, self.pitch = layout(len(peers), nbytes, phases)

    @property
    def parity(self) -> int:
        """The half of the workspace that the current or next call uses."""
        return self.calls % self.parities

    def flag(self, peer: int, source: int, phase: int) -> int:
        """Address of the flag that `source` sets at `peer`."""
        return self._half(peer) + (phase * len(self.peers) + source) * FLAG_NBYTES

    def signals(self, rank: int, peers: tuple[int, ...], phase: int) -> list[Any]:
        """Operations for `streams.operate` that set the flags of `rank`, this one, at `peers`."""
        key = self.parity, peers, phase
        if key not in self._signals:
            self._signals[key] = [streams.set_word(self.flag(peer, rank, phase)) for peer in peers]
        return self._signals[key]

    def shot_flags(self, peer: int) -> int:
        """Address of the flags of the all-reduce kernels at `peer`."""
        return self._half(peer) + self._flags_nbytes

    def slots(self, peer: int) -> int:
        """Address of the slots at `peer`."""
        return self._half(peer) + self._flags_nbytes + self._shot_nbytes

    def array(self, rank: int, offset: int, shape: tuple[int, int], dtype: Dtype, order: Order) -> Any:
        """An array without gaps in the slots of a rank; equal arguments return the same array, from a cache (local)."""
        key = self.parity, rank, offset, shape, dtype, order
        if key not in self._arrays:
            if len(self._arrays) >= _MOST_ARRAYS:
                self._arrays.clear()
            base, device = self.peers[rank], int(cupy.cuda.runtime.getDevice())
            memory = cupy.cuda.UnownedMemory(base, self.parities * self.pitch, self.block, device)
            place = cupy.cuda.MemoryPointer(memory, self.slots(rank) - base + offset)
            self._arrays[key] = new_array(shape, dtype, place, order=order)
        return self._arrays[key]

    def _half(self, peer: int) -> int:
        return self.peers[peer] + self.parity * self.pitch


def layout(nprocs: int, nbytes: int, phases: int) -> tuple[int, int, int]:
    """Bytes of the flags, of the all-reduce kernels' flags, and of one half of a workspace in all."""
    flags = padded(phases * nprocs * FLAG_NBYTES)
    shot = padded(all_reduce_flags_nbytes(nprocs))
    return flags, shot, flags + shot + nbytes


def padded(nbytes: int) -> int:
    """The number of bytes, rounded up to the alignment of a workspace's parts."""
    return nbytes + -nbytes % ALIGNMENT

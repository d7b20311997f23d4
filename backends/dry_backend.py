"""The backend of dry runs: rank 0 of any number of ranks, on one process; matrices have memory, and no elements.

A dry run plans each operation and executes none. Whatever checks arguments, agrees and allocates is the code of a real
run. The memory is a range of addresses: the operating system gives pages to those that a program writes to.
"""

from __future__ import annotations

import mmap
import os
import platform
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pblas import errors
from pblas.backends.agreement import Agreement
from pblas.backends.cpu.arrays import HostArrays
from pblas.backends.cpu.threads import BlasThreads
from pblas.backends.cpu_backend import LOCATION_NBYTES, CpuBackend
from pblas.backends.device import Device
from pblas.backends.shared_windows import Arena, Block
from pblas.backends.stand_in import StandIn, Values

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype, Order, Places
    from pblas.backends.host_ranks import Location

_PAGES = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)


@dataclass
class Recording:
    """The machine of a dry run, and what its contexts report."""

    nprocs: int  # ranks (global)
    ranks_per_node: int
    shared: bool  # whether ranks of a node read each other's memory
    bandwidth: float  # bytes per second of messages between nodes
    values: Values
    executed: Callable[[str, Any], None]  # called with the name of each operation, and its plan or None
    allocated: Callable[[int], None]  # called with the bytes that a rank allocates, or negative ones that it frees
    defaults: list[Any] = field(default_factory=list)  # the context of calls that are given none
    files: dict[str, Any] = field(default_factory=dict)  # headers of the files that the program has saved, by path


def addresses(nbytes: int) -> Array:
    """Zeros, as bytes, for which the system has no memory before they are written."""
    try:
        return np.frombuffer(mmap.mmap(-1, max(nbytes, 1), _PAGES), np.uint8)
    except (OSError, OverflowError, ValueError) as caught:
        raise errors.WorkspaceError(
            f"dry_run: no addresses for {nbytes:,} bytes on a rank: {caught}; use more ranks, or smaller matrices"
        ) from None


class DryComm(NamedTuple):
    """A communicator of some ranks of a dry run."""

    size: int

    def Free(self) -> None:
        """Nothing to free."""


class _Alone:
    """The `Transport` of one process without peers."""

    name = "mpi"
    rank, size = 0, 1
    node = ()  # a host of none of the ranks: none lacks memory
    local_rank, local_size = 0, 1

    def describe(self) -> dict[str, str]:
        return {"dry run": "no rank but this one exists, and nothing is computed"}

    def probe(self, tag: int) -> bool:
        return False

    def send(self, message: bytes, dest: int, tag: int) -> Callable[[], bool]:
        return lambda: True

    def receive(self, tag: int, source: int | None = None) -> None:
        return None

    def progressing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def before_end(self, end: Callable[[], None]) -> None:
        """Nothing is to end."""

    def is_over(self) -> bool:
        return False

    def abandon(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Nothing is open."""


class _Echo(Agreement):
    """An agreement with ranks that all say what this one says."""

    def gather(self, value: object, step: str, ranks: Sequence[int] | None = None) -> list[Any]:
        return [value] * (self.size if ranks is None else len(ranks))

    def broadcast(self, value: object, root: int, step: str) -> Any:
        return value


class _Memory:
    """The `NodeMemory` of a rank whose peers have none."""

    def allocate(self, nbytes: int) -> list[Array]:
        return [addresses(nbytes)]

    def sync(self) -> None:
        """Nothing is shared."""

    def close(self) -> None:
        """The arrays own the addresses."""


class _DryArena(Arena):
    """Symmetric memory that is counted."""

    def __init__(self, agreement: Agreement, recording: Recording) -> None:
        super().__init__(agreement, _Memory(), (0,))
        self._recording = recording

    def allocate(self, nbytes: int, site: str | Callable[[], str] = "") -> Block:
        before = self.live_nbytes
        block = super().allocate(nbytes, site)
        self._recording.allocated(self.live_nbytes - before)
        return block

    def _free(self, slot: int) -> None:
        before = self.live_nbytes
        super()._free(slot)
        self._recording.allocated(self.live_nbytes - before)

    def _shortage(self, nbytes: int) -> None:
        return None

    def close(self) -> None:
        self._recording.allocated(-self.live_nbytes)
        self.live_nbytes = 0
        super().close()


class DryArrays(HostArrays):
    """A device that computes nothing: the methods that write elements leave them as they are."""

    def __init__(self, counted: Callable[[int], Array]) -> None:
        self._counted = counted

    def empty(self, nbytes: int) -> Array:
        return self._counted(nbytes)

    def take(self, x: Array, rows: Array, columns: Array) -> Array:
        return np.ones(len(rows), x.dtype)


def _nothing(*args: object, **options: object) -> None:
    """In place of a method that writes elements."""


for _name in (
    *(
        "fill",
        "fill_whole",
        "randomize",
        "assign",
        "scale",
        "add_scaled",
        "normalize",
        "conjugate",
        "evaluate",
        "finish",
        "add_rows",
        "largest",
    ),
    *("gemm", "multiply_add", "add_product", "subtract_square", "trsm", "syrk", "syr2k", "solve_factored", "lower"),
    *("unit_lower", "swap_rows", "from_host", "multiply_q", "block_of_reflectors", "fix_signs"),
):
    assert hasattr(Device, _name), "it is a method of the contract"
    setattr(DryArrays, _name, _nothing)


class DryRanks(CpuBackend):
    """Rank 0 of the ranks of a dry run."""

    def __init__(
        self,
        recording: Recording,
        size: int | None,  # ranks, if they are not all (global)
        *,
        timeout: float,
        threads: int | None,
        transport: str,
    ) -> None:
        # Instead of the constructor of the base class, which meets the other ranks
        self.dry, self.recording = self, recording
        peers: Any = _Alone()
        self.peers = peers
        self.name, self.rank, self.size = "mpi", 0, size or recording.nprocs
        self.agreement: Any = _Echo(peers, timeout)
        self.agreement.size = self.size
        node = min(recording.ranks_per_node, self.size)
        self.near = tuple(range(node))
        self.local_ranks = self.most_near = self.ranks_per_node = node
        self.alone = self.size > 1 and recording.ranks_per_node == 1
        self.cores = self.threads = threads or 1
        self._alone = tuple(range(rank, rank + 1) for rank in range(self.size))
        self._nodes = tuple(range(start, min(start + node, self.size)) for start in range(0, self.size, node))
        self._nodes = self._nodes if node > 1 else ()
        self.compared, self.read_nbytes, self.workspace_slot = "", 0, None
        self.shared = transport != "message" and recording.shared and node > 1
        self.falls_back = transport == "auto"
        self.channel: Any = None
        self.plain_channel: Any = None
        self._blas = BlasThreads(self.threads)
        self.arena = _DryArena(self.agreement, recording)
        self.arrays = DryArrays(self.counted)

    def form_alike(self) -> str:
        return ""

    def describe(self) -> dict[str, str]:
        return {"ranks": str(self.size), **self.peers.describe()}

    def versions(self) -> tuple[str, ...]:
        return "dry run", platform.machine()

    def close(self, *, free: bool) -> None:
        self._blas.close()
        self.arena.close()

    def is_near(self, peer: int) -> bool:
        return self.shared and 0 < peer < self.most_near

    def measured_bandwidth(self) -> float:
        """The bandwidth of the described machine, as a context would measure it."""
        return 0.0 if self.most_near == self.size else 2.0 ** round(np.log2(self.recording.bandwidth))

    # Memory

    def allocate(self, nbytes: int) -> Any:
        return self.arena.allocate(nbytes) if self.shared else self.private(nbytes)

    def buffer(self, nbytes: int) -> Array:
        return self.counted(nbytes)

    def private(self, nbytes: int) -> Array:  # type: ignore[override]
        return self.counted(nbytes)

    def location_table(self) -> Location:
        return self.arena.allocate(LOCATION_NBYTES), []

    def publish(self, location: Location, x: Array) -> bool:
        return not x.size or self.arena.locate(self.address(x))[0] >= 0

    def peer_block(
        self, block: Any, peer: int, offset: int, shape: tuple[int, int], dtype: Dtype, order: Order
    ) -> Array:
        return super().peer_block(block, self.rank, offset, shape, dtype, order)

    def counted(self, nbytes: int) -> Array:
        """Private memory, as bytes, which counts until it is dropped."""
        memory, allocated = addresses(nbytes), self.recording.allocated
        allocated(nbytes)
        weakref.finalize(memory.base, allocated, -nbytes)
        return memory

    # Elements

    def unknown(self, name: str, shape: tuple[int, ...], dtype: Dtype, order: Order = "C") -> Any:
        """New numbers, of the size of a whole array, that the program gets from a call of this name."""
        memory = self.counted(int(np.prod(shape)) * dtype.itemsize)
        array: Any = np.ndarray(shape, dtype, memory, order=order)
        return self.known(name, array)

    def known(self, name: str, x: Any) -> Any:
        """X as the value that a call of this name returns to the program."""
        return self.recording.values.of(name, x)

    def executed(self, name: str, plan: Any = None) -> None:
        """Note that an operation would have been executed now."""
        self.recording.executed(name, plan)

    def saved(self, path: str) -> Any:
        return self.recording.files.get(os.path.realpath(path))

    def keep_header(self, path: str, header: Any) -> None:
        """Remember the header of a file that the program would have saved (global)."""
        self.recording.files[os.path.realpath(path)] = header

    def new(self, shape: tuple[int, ...], dtype: Dtype) -> Array:
        return StandIn.of(np.zeros(shape, dtype), self.recording.values)

    def reading(self, x: Array) -> Array:
        return StandIn.of(x, self.recording.values) if type(x) is np.ndarray else x

    def writing(self, x: Array) -> AbstractContextManager[Array]:
        sink = np.lib.stride_tricks.as_strided(np.zeros(1, x.dtype), x.shape, (0,) * x.ndim)
        return nullcontext(sink)

    def copy(self, x: Array, z: Array, *, of: Places | None = None, at: Places | None = None) -> None:
        pass

    def fill(self, x: Array, value: complex = 0) -> None:
        pass

"""Laws of the ranks of a torch.distributed group, on CPUs and without mpi4py, with which gloo_job.py begins.

Started by itself, with a folder as argument, one rank is late and then dies; the launcher must let the others go on.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from pblas import errors
from pblas.backends.agreement import Agreement
from pblas.backends.process_group import peers_of
from pblas.backends.process_group.transport import GroupTransport

SECONDS = 20.0
"""Deadline of everything that ends, on a busy machine."""


def outcome(call: Callable[[], Any]) -> tuple[str, str]:
    """Name and text of the exception that a call raises; empty if it raises none."""
    try:
        call()
    except errors.PblasError as error:
        return type(error).__name__, str(error)
    return "", ""


def everywhere(call: Callable[[], Any]) -> tuple[str, str]:
    """As `outcome`; all ranks have the same."""
    outcomes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(outcomes, outcome(call))
    assert len(set(outcomes)) == 1, outcomes
    return outcomes[0]


def agreements(peers: GroupTransport) -> None:
    agreement, rank, size = Agreement(peers.duplicate(), SECONDS), peers.rank, peers.size
    for turn in range(20):
        values = [(turn, other, "x" * (other * turn * 2000)) for other in range(size)]  # below and above one frame
        assert agreement.gather(values[rank], "values") == values
        assert agreement.broadcast(values[rank], turn % size, "a value") == values[turn % size]
        assert agreement.agree(f"call {turn}", maxima=(rank, -rank, turn, 0)).maxima == (size - 1, 0, turn, 0)
    for wrong in range(size):
        error = errors.ArgumentError("n must be 1") if rank == wrong else None
        name, text = everywhere(lambda error=error: agreement.agree("call", error))  # type: ignore[misc]
        assert (name, text) == ("ArgumentError", f"n must be 1; found on rank {wrong} of {size}")
    name, text = everywhere(lambda: agreement.agree(f"call\nn={min(rank, 1)}"))
    assert name == "MismatchError"
    assert "n differs between ranks: 0 on rank 0, 1 on rank 1" in text
    agreement.agree("afterwards")
    agreement.close()
    agreement.peers.close()


def pieces(peers: GroupTransport) -> None:
    """Pieces arrive in the order of the calls, in either order of memory, whichever transfer is asked first."""
    own = peers.duplicate()
    channel, rank, size = own.channel(), own.rank, own.size
    ahead, behind = (rank + 1) % size, (rank - 1) % size

    def piece(sender: int, number: int) -> Any:
        shape = (70 + number, 5)
        return (1000.0 * sender + number + np.arange(shape[0] * shape[1], dtype=float)).reshape(shape)

    for order in ("F", "C"):
        wide = [np.full((100, 9), -99.0, order=order) for _ in range(6)]
        targets = [x[: 70 + number, :5] for number, x in enumerate(wide)]
        expected = [channel.receive(x, behind, 3) for x in targets]
        signal_expected = channel.await_signal(behind, 4)
        sent = [channel.send(np.asarray(piece(rank, number), order=order), ahead, 3) for number in range(6)]
        sent.append(channel.signal(ahead, 4))
        for transfer in [*reversed(expected), signal_expected, *sent]:
            wait(transfer.done)
        for number, x in enumerate(wide):
            assert np.array_equal(x[: 70 + number, :5], piece(behind, number))
            assert (x[70 + number :] == -99).all()
            assert (x[:, 5:] == -99).all()
    own.close()


def collectives(peers: GroupTransport) -> None:
    own = peers.duplicate()
    channel, rank, size = own.channel(), own.rank, own.size
    counts = [(3 * other) % 5 for other in range(size)]
    out, x = np.full(sum(counts), -99.0), np.full(counts[rank], float(rank))
    wait(channel.all_gather(x, out, counts).done)
    assert np.array_equal(out, np.repeat(np.arange(size, dtype=float), counts))
    x, out = np.repeat(10.0 * rank + np.arange(size), counts), np.full(size * counts[rank], -99.0)
    wait(channel.all_to_all(x, counts, out, [counts[rank]] * size).done)
    assert np.array_equal(out, np.repeat(10.0 * np.arange(size) + rank, counts[rank]))
    own.close()


def wait(done: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < end


def missing(peers: GroupTransport, folder: Path) -> None:
    """Ranks that do not arrive, and ranks that have died, are named in time by all others."""
    agreement, rank, size = Agreement(peers.duplicate(), 1.0), peers.rank, peers.size
    if rank == size - 1:
        time.sleep(3)
    name, text = everywhere(lambda: agreement.agree("a call"))
    assert name == "PeerTimeout"
    assert f"a call: rank {size - 1} of {size} did not arrive within 1 s" in text
    agreement = Agreement(peers.duplicate(), 1.0)
    agreement.agree("together again", timeout=20.0)
    if rank == size - 1:
        time.sleep(0.5)  # until its last message has left
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        agreement.agree("a call")
    except errors.PeerTimeout as error:
        (folder / f"rank.{rank}").write_text(str(error))


def begin(folder: Path | None) -> GroupTransport:
    """The peers of a new group, which meet in the folder if torchrun has not started them."""
    sys.modules["mpi4py"] = None  # type: ignore[assignment] # an import of it fails
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store" if folder else None,
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=60),
    )
    peers = peers_of(dist.group.WORLD, "test", SECONDS)
    assert peers.node == tuple(range(peers.size))
    assert (peers.local_rank, peers.local_size) == (peers.rank, peers.size)
    return peers


if __name__ == "__main__":
    missing(begin(Path(sys.argv[1])), Path(sys.argv[1]))

"""Small values of ranks: gathered, broadcast, and exchanged through tables, in any order and on any of the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from pblas import PeerTimeout, WorkspaceError
from pblas.backends import shared_files
from pblas.backends.agreement import Agreement
from pblas.backends.mpi.transport import MpiTransport
from pblas.backends.nvshmem.heap import Tables
from tests.common.ranks import COMM, outcome_with_late_rank, raises_on_all_ranks, waits

pytestmark = pytest.mark.mpi


@pytest.fixture
def agreement() -> Iterator[Agreement]:
    result = Agreement(MpiTransport(COMM).duplicate(), 20.0)
    yield result
    result.close()
    if result.broken is None:
        result.peers.close()


@pytest.mark.openmpi
def test_values_are_gathered_and_broadcast_in_the_order_of_calls(agreement: Agreement) -> None:
    for turn in range(30):
        every = [(turn, rank, "x" * (rank * turn * 100)) for rank in range(COMM.size)]
        assert agreement.gather(every[COMM.rank], "values") == every
        root = turn % COMM.size
        assert agreement.broadcast(every[COMM.rank], root, "a value") == every[root]


def test_some_ranks_gather_without_the_others(agreement: Agreement) -> None:
    evens = list(range(0, COMM.size, 2))
    odds = list(range(1, COMM.size, 2))[::-1]
    for group in (evens, odds):
        if COMM.rank in group:
            assert agreement.gather(COMM.rank, "values", group) == group
    assert agreement.gather(COMM.rank, "values") == list(range(COMM.size))


@waits
@pytest.mark.parametrize("call", ["gather", "broadcast"])
def test_a_missing_rank_is_named(call: str) -> None:
    own = Agreement(MpiTransport(COMM).duplicate(), 1.0)
    late = COMM.size - 1
    ask = partial(own.gather, 1, "values") if call == "gather" else partial(own.broadcast, 1, late, "values")
    everywhere = COMM.allgather(outcome_with_late_rank(late, lambda: (ask(), own.agree("next"))))
    assert {name for name, _ in everywhere} == {PeerTimeout.__name__}
    assert all(f"rank {late} of {COMM.size} did not arrive" in text for _, text in everywhere), everywhere


def test_peers_know_their_node() -> None:
    peers = MpiTransport(COMM)
    node = COMM.Split_type(MPI.COMM_TYPE_SHARED, COMM.rank)
    assert peers.node[peers.local_rank] == COMM.rank
    assert len(peers.node) == node.Get_size() <= peers.local_size
    node.Free()


def test_all_ranks_read_a_ranks_line_after_an_agreement(
    agreement: Agreement, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_files, "FOLDER", str(folder))
    table = Tables(agreement)
    for number in (0, 5, 4095, 4096, 9000, 5):
        lines = table.lines(number)
        lines[COMM.rank][:] = (number, COMM.rank, -1, 1 << 40)
        agreement.agree("written")
        assert [line.tolist() for line in lines] == [[number, rank, -1, 1 << 40] for rank in range(COMM.size)]
        agreement.agree("read")
    kept = table.lines(0)[COMM.rank]
    table.close()
    assert np.array_equal(kept, [0, COMM.rank, -1, 1 << 40])
    assert not list(folder.iterdir()), "the name is gone"


def test_a_full_folder_is_reported_on_every_rank(agreement: Agreement, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_files, "FOLDER", "/dev/no-such-folder")
    raises_on_all_ranks(WorkspaceError, "shared memory of the hosts: No such file", lambda: Tables(agreement).lines(0))

"""Fixtures of all MPI tests: contexts on every transport, and a folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI

import pblas
from tests.common.ranks import COMM, Contexts, open_context

TRANSPORTS: dict[str, dict[str, Any]] = {
    "shared": {"transport": "shared"},
    "message": {"transport": "message"},
    "mixed": {"ranks_per_node": 2},
    "link": {"transport": "message", "link": (1e-4, 1e9)},
    "push": {"transport": "push"},  # GPUs' transport, on CPUs: for tests only
}


@pytest.fixture(scope="module")
def contexts(request: pytest.FixtureRequest) -> Iterator[Contexts]:
    """A context for each of the SETTINGS of the file."""
    opened = {name: open_context(timeout=30, **TRANSPORTS[name]) for name in request.module.SETTINGS}
    yield opened
    for ctx in opened.values():
        ctx.close()


@pytest.fixture(scope="module")
def ctx(contexts: Contexts) -> pblas.Context:
    return contexts["shared"]


@pytest.fixture(scope="module")
def one() -> Iterator[pblas.Context]:
    """A reproducible context of this rank alone."""
    with open_context(comm=MPI.COMM_SELF, reproducible=True) as opened:
        yield opened


@pytest.fixture(scope="module", params=["shared", "message"])
def reproducible(request: pytest.FixtureRequest) -> Iterator[pblas.Context]:
    with open_context(request.param, reproducible=True) as opened:
        yield opened


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that all ranks see."""
    path = Path(COMM.bcast(tempfile.mkdtemp() if COMM.rank == 0 else None))
    yield path
    COMM.Barrier()
    if COMM.rank == 0:
        shutil.rmtree(path)

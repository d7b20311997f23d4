"""Laws of the default context of tensor-parallel calls, and of the tokens of each rank."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from pblas import errors, tp

SCRIPT = """
import numpy as np
from pblas import tp
assert tp.linear_allreduce(np.eye(2), np.eye(2))[1, 1] == 1
first = tp.default_context()
assert tp.default_context() is first
first.close()
assert tp.linear_allreduce(np.eye(2), np.eye(2))[1, 0] == 0
print("fine")
"""


def test_it_is_made_once_and_ends_with_the_program() -> None:
    """Nothing is printed at the end, where a context that was never closed would warn."""
    command = [sys.executable, "-W", "error", "-c", SCRIPT]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (found.stdout, found.stderr, found.returncode) == ("fine\n", "", 0)


def test_without_mpi_it_names_the_remedy() -> None:
    code = "import sys; sys.modules['mpi4py'] = None; from pblas import tp; tp.default_context()"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 1
    assert "BackendError: Context: backend 'mpi' is not available" in found.stderr
    assert "pip install mpi4py mpich" in found.stderr


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9])
@pytest.mark.parametrize("nprocs", [1, 2, 3, 8])
def test_parts_are_all_that_there_is_and_in_order(n: int, nprocs: int) -> None:
    parts = [tp.local_shard(n, rank, nprocs) for rank in range(nprocs)]
    assert [i for mine in parts for i in range(mine.start, mine.stop)] == list(range(n))
    assert max(mine.stop - mine.start for mine in parts) == -(-n // nprocs)


@pytest.mark.parametrize(
    "given", [(5, 0, 0), (5, 2, 2), (5, -1, 2), (-1, 0, 2), (5.0, 0, 2), (5, 0, True), ("5", 0, 2)]
)
def test_shards_of_invalid_sizes_or_ranks_are_refused(given: Any) -> None:
    with pytest.raises(errors.LayoutError, match="local_shard: "):
        tp.local_shard(*given)

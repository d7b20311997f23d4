"""The context of tensor-parallel calls that are given none."""

from __future__ import annotations

import subprocess
import sys

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
    """Nothing is said at the end: of contexts that were never closed there is a warning."""
    command = [sys.executable, "-W", "error", "-c", SCRIPT]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (found.stdout, found.stderr, found.returncode) == ("fine\n", "", 0)

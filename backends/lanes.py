"""Lanes, flags and queues of schedules, and their limits."""

from __future__ import annotations

from typing import Literal

Lane = Literal["main", "copy"]
LANES: tuple[Lane, ...] = ("main", "copy")
"""The caller's stream, and a second stream that forks from it and joins it again.

The second stream runs copies between GPUs, which use no multiprocessor, and waits, which use at most one warp. Both can
run while a GEMM fills the GPU.
"""


Flag = tuple[int, int]
"""The rank that sets the flag, and its phase."""

MAX_QUEUES = 8
"""Maximum number of queues of executions that may run concurrently; in each, at most one CTA waits for a peer."""

MAX_TILE_FLAGS = 256
"""Maximum number of tile flags of one execution."""

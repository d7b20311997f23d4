"""What a schedule counts on: lanes, flags, and how many there are of what."""

from __future__ import annotations

from typing import Literal

Lane = Literal["main", "copy"]
LANES: tuple[Lane, ...] = ("main", "copy")
"""The caller's stream, and one that forks from it and joins it again.

On the second one copies between GPUs take no multiprocessor, and waits none, or one warp: it may run beside a GEMM that
fills the GPU.
"""


Flag = tuple[int, int]
"""The rank that sets it, and its phase."""

MAX_QUEUES = 8
"""Queues of executions that may run beside each other: in each at most one CTA waits for a peer."""

MAX_TILE_FLAGS = 256
"""Marks of one execution at most."""

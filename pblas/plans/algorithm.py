"""The algorithms by which plans of the push transport move their data, and their measured times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

AlgorithmKind = Literal["copy_engine", "sm_push", "tile_signals", "fused_stores", "one_shot", "two_shot"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """How a plan of the push transport moves its data, and how it cuts its GEMM: see `pblas.matmul.push.schedules`."""

    # how data moves (global):
    # "copy_engine": copy engines move shards while several GEMMs run
    # "sm_push": the multiprocessors move all shards, before or after one GEMM
    # "tile_signals": one GEMM kernel; each tile waits for the copy that it needs
    # "fused_stores": one GEMM kernel, which stores the tiles of a reduction in the memory of the peers
    # "one_shot": one kernel reduces, after one GEMM
    # "two_shot": one kernel reduces the last piece, after the last GEMM; copies move the pieces before it
    kind: AlgorithmKind
    # how the product is cut (global): number of shards that each GEMM takes; the first shard is the rank's own
    # GemmAllReduce: relative sizes of the pieces
    # GemmReduceScatter in one kernel: relative sizes of the pieces of each shard
    # AllGatherGemm with "tile_signals": pieces of the first, the second, ... shard that arrives; 1 for others
    groups: tuple[int, ...] = (1,)

    @property
    def is_one_kernel(self) -> bool:
        """Whether one GEMM kernel forms the whole product, and waits for its operands itself."""
        return self.kind in ("tile_signals", "fused_stores")

    @property
    def short(self) -> str:
        """The short name, which `read` parses.

        >>> Algorithm("copy_engine", (1, 1, 2)).short, Algorithm("one_shot").short, Algorithm.read("tile_signals:1,2")
        ('copy_engine:1,1,2', 'one_shot', Algorithm(kind='tile_signals', groups=(1, 2)))
        """
        groups = ",".join(map(str, self.groups))
        return f"{self.kind}:{groups}" if self.kind == "copy_engine" or groups != "1" else self.kind

    @staticmethod
    def read(text: str) -> Algorithm:
        """Parse a short name."""
        name, _, groups = text.partition(":")
        kinds: dict[str, AlgorithmKind] = {kind: kind for kind in get_args(AlgorithmKind)}
        if name not in kinds:
            raise ValueError(
                f"{text!r} is no algorithm; expected one of {', '.join(kinds)}, optionally with integers, as in "
                f"copy_engine:1,1,2"
            )
        return Algorithm(kinds[name], tuple(map(int, groups.split(","))) if groups else (1,))

    def __str__(self) -> str:
        if self.kind == "copy_engine":
            return f"copy engines while GEMMs over {', '.join(map(str, self.groups))} shards run"
        if self.kind == "sm_push":
            return "one GEMM, and one kernel that moves all shards"
        parts = f", pieces {', '.join(map(str, self.groups))}" if len(self.groups) > 1 else ""
        if self.kind == "fused_stores":
            return f"one GEMM kernel, which stores its tiles in the memory of the peers{parts}"
        if self.kind == "tile_signals":
            return f"copy engines while one GEMM kernel with tile signals runs{parts}"
        if len(self.groups) > 1:
            parts = ", ".join(map(str, self.groups))
            return f"copy engines while GEMMs over pieces {parts} run; one {self.kind} kernel reduces the last piece"
        return f"one GEMM, and one {self.kind} kernel"


Times = tuple[tuple[Algorithm, float], ...]  # measured algorithms with their seconds; the first is the one to use

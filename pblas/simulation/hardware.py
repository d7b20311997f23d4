"""Described machines on which plans are simulated, and three presets with the sources of their numbers.

A rank is one process with its core, cores or GPU. Rates are per rank *while all ranks of its node are busy*: of a
network card that 128 ranks share, each rank gets 1/128 of the bandwidth.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Literal, TypeGuard

from pblas.errors import ArgumentError

ITEMSIZE = {
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("float16", "bfloat16"), 2),
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes of an element, by the name of its dtype."""

Transport = Literal["shared", "message", "mixed", "push"]


@dataclass(frozen=True, slots=True)
class Topology:
    """The properties of a machine that the planner needs; all ranks agree on them once per context."""

    ranks_per_node: int = 1  # the largest n for which ranks 0..n-1, n..2n-1, and so on are each on one node (global)
    shared: bool = False  # ranks of one node read each other's memory (global)
    push: bool = False  # ranks push data into the workspaces of their peers, as GPUs do (global)
    gpus: bool = False  # matrices are in GPU memory, where only push plans and general plans run (global)
    tiles: bool = False  # the GPUs run a GEMM kernel with tile signals: each tile waits for its operands (global)
    bandwidth: float = 0.0  # bytes per second of a message between nodes, measured; 0: not known (global)
    # ranks of each node, in the order of their numbers; () if they are not known, or not consecutive (global)
    nodes: tuple[int, ...] = ()
    alone: bool = False  # each of several ranks has a host of its own, however they exchange data (global)
    reproducible: bool = False  # results have the same bits for any ranks and layouts, where plans can (global)

    @property
    def alike(self) -> bool:
        """Whether all local operations form their elements alike, as plans with cuts by sizes alone need: on CPUs."""
        return self.reproducible and not self.gpus

    @property
    def runs_one_dimensional(self) -> bool:
        """Whether one-dimensional plans that move data can run: on GPUs they need the push transport."""
        return self.push or not self.gpus

    @property
    def hardware(self) -> Hardware:
        """Hardware for predictions: `NVLINK` for GPUs and where ranks push, else `CORE` with the measured bandwidth."""
        if self.gpus or self.push:
            return replace(NVLINK, ranks_per_node=self.ranks_per_node)
        return replace(CORE, far=replace(CORE.far, bandwidth=self.bandwidth)) if self.bandwidth else CORE

    def transport(self, nprocs: int) -> Transport:
        """How `nprocs` ranks exchange data: "shared", "message", "mixed" (shared within nodes) or "push"."""
        if self.push:
            return "push"
        if not self.shared:
            return "message"
        return "shared" if nprocs <= self.ranks_per_node else "mixed"


@dataclass(frozen=True, slots=True)
class Link:
    """A rank's link to others: a message of b bytes arrives `latency` + `overhead` + b / `bandwidth` after its post.

    Latencies of messages in flight overlap; overheads and bytes do not (LogGP: L, g and G). Sending and receiving
    overlap.

    Args:
        latency: seconds until the first byte arrives.
        bandwidth: bytes per second.
        overhead: seconds that a message occupies the link in addition to its bytes; 1 / overhead is the message rate.
        core: bytes per second at which the rank's own core moves messages, while it cannot multiply; infinite if the
            network card or a copy engine moves them.

    Raises:
        ArgumentError: a rate is not positive, or a time is negative or infinite.

    Source: Alexandrov, Ionescu, Schauser, Scheiman, LogGP, SPAA 1995.
    """

    latency: float
    bandwidth: float
    overhead: float = 0.0
    core: float = math.inf

    def __post_init__(self) -> None:
        """Check the arguments."""
        _check_positive("Link", math.inf, bandwidth=self.bandwidth, core=self.core)
        _check_times("Link", latency=self.latency, overhead=self.overhead)

    def seconds(self, nbytes: float, messages: float) -> float:
        """Seconds that the link is busy with `messages` messages of `nbytes` bytes together.

        >>> Link(1e-6, 1e9, overhead=1e-7).seconds(1e6, 10)
        0.001001
        """
        return nbytes / self.bandwidth + messages * self.overhead


@dataclass(frozen=True, slots=True)
class Hardware:
    """A described machine.

    Args:
        name: its name in printed simulations.
        ranks_per_node: ranks of a node; they reach each other over `near`, ranks of other nodes over `far`.
        near: link within a node.
        far: link between nodes.
        float64: floating-point operations per second of a rank's GEMM in double precision.
        float32: the same in single precision.
        float16: the same in half precision and bfloat16.
        memory_bandwidth: bytes per second that a rank reads and writes in its own memory.
        memory_nbytes: memory of a rank, bytes.
        call: seconds that each GEMM takes in addition to its arithmetic.
        shared: ranks of a node read each other's memory in place.
        float8: as `float16`, of operands of 8 bits; None for that of float16.
        half: rows, columns or depth of a GEMM that runs at half the rate, if its other extents are large.
        panel: factor by which panels of factorizations take longer than with LAPACK, relative to the rate of GEMMs.
        step: seconds that an executor takes for each step in addition to its GEMM, copies and messages.
        new_memory: bytes per second that a rank writes for the first time in new memory, while the system makes its
            pages; infinite if memory is kept ready, as on GPUs. Dry runs count it; plans are predicted for memory that
            earlier calls have used.
        gpus: ranks are GPUs, for which factorizations and eigenvalues are planned otherwise than for CPUs.

    Raises:
        ArgumentError: a rate or the memory is not positive, a time is negative or infinite, ranks_per_node is not an
            integer from 1 on, or a field has another type.
    """

    name: str
    ranks_per_node: int
    near: Link
    far: Link
    float64: float
    float32: float
    float16: float
    memory_bandwidth: float
    memory_nbytes: int
    call: float = 0.0
    shared: bool = False
    float8: float | None = None
    half: float = 0.0
    step: float = 0.0
    panel: float = 1.0
    new_memory: float = math.inf
    gpus: bool = False

    def __post_init__(self) -> None:
        """Check the arguments."""
        ranks: object = self.ranks_per_node
        if not isinstance(ranks, int) or not _is_number(ranks) or ranks < 1:
            raise ArgumentError(f"Hardware: ranks_per_node is {ranks!r}; expected an integer from 1 on")
        fields: dict[str, tuple[object, type, str]] = {
            "name": (self.name, str, "a text"),
            "near": (self.near, Link, "a pblas.Link"),
            "far": (self.far, Link, "a pblas.Link"),
            "shared": (self.shared, bool, "True or False"),
            "gpus": (self.gpus, bool, "True or False"),
        }
        for key, (value, kind, expected) in fields.items():
            if not isinstance(value, kind):
                raise ArgumentError(f"Hardware: {key} is {value!r}; expected {expected}")
        rates = {"float64": self.float64, "float32": self.float32, "float16": self.float16}
        rates |= {} if self.float8 is None else {"float8": self.float8}
        _check_positive("Hardware", math.inf, memory_bandwidth=self.memory_bandwidth, new_memory=self.new_memory)
        _check_positive("Hardware", **rates, panel=self.panel, memory_nbytes=self.memory_nbytes)
        _check_times("Hardware", call=self.call, half=self.half, step=self.step)
        object.__setattr__(self, "memory_nbytes", math.ceil(self.memory_nbytes))  # files may have 2e9

    @property
    def topology(self) -> Topology:
        """The properties of this hardware that the planner needs."""
        return Topology(self.ranks_per_node, self.shared)

    def flops_per_second(self, dtype: str) -> float:
        """Real operations per second of a rank's GEMM; a complex multiply-add counts as eight."""
        float8 = self.float16 if self.float8 is None else self.float8
        return {"d": self.float64, "s": self.float32, "h": self.float16, "q": float8}[_ARITHMETIC[dtype]]

    def gemm_seconds(self, m: float, n: float, k: float, dtype: str) -> float:
        """Seconds of a GEMM on one rank: those of its arithmetic, or of its memory traffic if that takes longer.

        A thin GEMM has less than the full rate: that of extents m, n, k is divided by 1 + half (1/m + 1/n + 1/k).

        >>> cpu = Hardware("cpu", 1, Link(0, 1), Link(0, 1), 1e9, 2e9, 2e9, 1e10, 1 << 30)
        >>> cpu.gemm_seconds(100, 100, 100, "float64"), cpu.gemm_seconds(100, 100, 0, "float64")
        (0.002, 0.0)
        """
        if not m * n * k:
            return 0.0
        thin = 1 + self.half * (1 / m + 1 / n + 1 / k) if self.half else 1.0
        arithmetic = thin * flops(m, n, k, dtype) / self.flops_per_second(dtype)
        traffic = ITEMSIZE[dtype] * (m * k + k * n + 2 * m * n) / self.memory_bandwidth
        return self.call + max(arithmetic, traffic)

    def panel_seconds(self, multiplications: float, dtype: str) -> float:
        """Seconds of a panel of as many multiplications, weighted as `FactorizationPlan.panel_multiplications`."""
        return self.panel * flops(multiplications, 1, 1, dtype) / self.flops_per_second(dtype)

    def rounds_seconds(self, near: float, far: float, steps: float) -> float:
        """Seconds of short messages, one after the other, on a node and between nodes, and of steps of an executor."""
        near *= self.near.latency + self.near.overhead
        return near + far * (self.far.latency + self.far.overhead) + steps * self.step


def _is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a number, and not one that is too large for a float."""
    return type(value) is not bool and isinstance(value, int | float) and not sys.float_info.max < value < math.inf


def _check_positive(where: str, most: float = sys.float_info.max, /, **values: object) -> None:
    """Raise ArgumentError unless rates and amounts are above 0, and finite or at `most` infinite."""
    finite = "" if most == math.inf else "finite "
    for key, value in values.items():
        if not _is_number(value) or not 0 < value <= most:
            raise ArgumentError(f"{where}: {key} is {value!r}; expected a {finite}number above 0")


def _check_times(where: str, **values: object) -> None:
    """Raise ArgumentError unless times are finite seconds from 0 on."""
    for key, value in values.items():
        if not _is_number(value) or not 0 <= value < math.inf:
            raise ArgumentError(f"{where}: {key} is {value!r}; expected a finite number from 0 on")


_ARITHMETIC: dict[str, Literal["d", "s", "h", "q"]] = {
    **dict.fromkeys(("float64", "complex128"), "d"),
    **dict.fromkeys(("float32", "complex64"), "s"),
    **dict.fromkeys(("float16", "bfloat16"), "h"),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), "q"),
}


def flops(m: float, n: float, k: float, dtype: str) -> float:
    """Real additions and multiplications of an m x n x k product.

    >>> flops(2, 3, 4, "float64"), flops(2, 3, 4, "complex64")
    (48, 192)
    """
    return 2 * m * n * k * (4 if dtype.startswith("complex") else 1)


# Measured on 2 cores of an AMD EPYC in a virtual machine, one rank each, with SciPy's OpenBLAS: GEMM 53.5 and 107
# GFLOP/s (n = 1536; 16-bit operands are widened first); NumPy's copies 30 GB/s; a GEMM of 8 x 8 x 8 takes 8 us.
# Messages within a node pass through the core: 8.8 GB/s, which is 16.8 MB in 1.9 ms (docs/performance.md, AG(B) by
# messages without the GEMM). Between nodes: gigabit Ethernet, 1 Gbit/s by its standard (IEEE 802.3ab), 50 us assumed.
LAPTOP = Hardware(
    name="laptop",
    ranks_per_node=2,
    near=Link(latency=2e-6, bandwidth=8.8e9, overhead=1e-6, core=8.8e9),
    far=Link(latency=50e-6, bandwidth=125e6 / 2, overhead=5e-6),
    float64=53.5e9,
    float32=107e9,
    float16=90e9,
    memory_bandwidth=30e9,
    memory_nbytes=8 << 30,
    call=8e-6,
    shared=True,
    half=8,
    step=50e-6,
)

# One rank per core, 128 cores per node (LUMI's documentation of its partition C): two AMD EPYC 7763 of 64 cores,
# 2.45 GHz x 16 operations = 39.2 GFLOP/s per core in double precision; 204.8 GB/s of memory bandwidth per socket;
# 256 GiB per node. Assumed: GEMMs reach 0.9 of the peak, copies 0.8 of the bandwidth. The network is HDR InfiniBand,
# 200 Gbit/s for a node's 128 ranks, in a fat tree of full bisection. Assumed, as usual for MPI on such networks: a
# latency of 2 us, and 1 us per message and rank.
FAT_TREE = Hardware(
    name="fat-tree",
    ranks_per_node=128,
    near=Link(latency=1e-6, bandwidth=2 * 204.8e9 * 0.8 / 128 / 2, overhead=0.5e-6, core=2 * 204.8e9 * 0.8 / 128 / 2),
    far=Link(latency=2e-6, bandwidth=25e9 / 128, overhead=1e-6),
    float64=0.9 * 39.2e9,
    float32=0.9 * 78.4e9,
    float16=0.8 * 78.4e9,
    memory_bandwidth=2 * 204.8e9 * 0.8 / 128,
    memory_nbytes=2 << 30,
    call=1e-6,
    shared=True,
    half=8,
    step=50e-6,
)

# 8 NVIDIA H200, one rank each. Measured on such nodes: GEMMs 1440 TFLOP/s in FP8, 720 in bfloat16, 45 in float32 and 58
# in float64, 4 us per launch; copy engines 380 GB/s into each GPU, 6 us per copy; sums and copies in memory 3.8 TB/s;
# solves with the triangle of a panel of Cholesky run at 1 / 1.55 of the rate of GEMMs (benchmarks/gpu/panels.py).
# 141 GB of memory (data sheet). Between nodes: one 400 Gbit/s card per GPU (NDR InfiniBand, by its standard); a latency
# of 5 us and 1 us per message are assumed.
NVLINK = Hardware(
    name="nvlink",
    ranks_per_node=8,
    near=Link(latency=3e-6, bandwidth=380e9, overhead=6e-6),
    far=Link(latency=5e-6, bandwidth=50e9, overhead=1e-6),
    float64=58e12,
    float32=45e12,
    float16=720e12,
    memory_bandwidth=3.8e12,
    memory_nbytes=141_000_000_000,
    call=4e-6,
    float8=1440e12,
    step=10e-6,
    panel=1.3,
    gpus=True,
)

# A core of any machine, where the hardware is not described: messages at 3 GB/s, GEMMs at 48 GFLOP/s, memory
# at 12 GB/s. The end of a step and the begin of the next one on another rank are 60 us apart, for each message between
# them: 50 us for the step, and 10 us for the message.
CORE = Hardware(
    name="core",
    ranks_per_node=1,
    near=Link(latency=5e-6, bandwidth=3e9, overhead=5e-6),
    far=Link(latency=5e-6, bandwidth=3e9, overhead=5e-6),
    float64=48e9,
    float32=96e9,
    float16=48e9,
    memory_bandwidth=12e9,
    memory_nbytes=8 << 30,
    call=8e-6,
    half=8,
    step=50e-6,
)

PRESETS = {hardware.name: hardware for hardware in (LAPTOP, FAT_TREE, NVLINK)}  # the presets by name

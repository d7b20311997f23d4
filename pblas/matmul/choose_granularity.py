"""The granularity of a chosen plan: chunks of shards, the width of panels, and the algorithm of pushed plans."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from pblas.matmul.choose_algorithm import choose_algorithm
from pblas.matmul.product_plan import ProductPlan
from pblas.matmul.summa_plan import PANEL, Summa, SummaC
from pblas.plans.algorithm import Times
from pblas.simulation.hardware import FAT_TREE, NVLINK, Hardware, Topology, Transport, flops

_CHUNK_NBYTES = 4 << 20
_MAX_CHUNKS = 8
_SLOW = 3
"""Transfers that take a third as long as the GEMMs count as slow: n = 2048 on 2 ranks at 1 Gbit/s, with 8 pieces
instead of 4, GEMM+RS took 219 ms instead of 253, and GEMM+AR 309 instead of 385 (benchmarks/cpu/network.py, 2 cores of
an AMD EPYC)."""
_FAST = 2
"""A shard is gathered in one piece if it arrives in half the time of its GEMM, which then hides it: n = 2048 on 2 ranks
at 1 GB/s took 451 ms in one piece, 459 in 2, 462 in 4 and 476 in 8, where the GEMM alone took 427
(benchmarks/cpu/network.py, 2 cores of an AMD EPYC)."""
# A narrower piece of the GEMM spends its time on packing the left operand again: with 256 columns OpenBLAS loses a few
# per cent, with 64 about a quarter (n = 4096, float64).
_MIN_COLUMNS = 256
MIN_PANEL = 128
"""Minimum width of a panel, unless memory is short: a GEMM of this depth loses 4 % (float64, AMD EPYC, OpenBLAS)."""
_LEAST_PANEL = 8
"""Minimum width of a panel where memory is short: a cache line of float64."""
_MIN_PANELS = 4
"""K or N is cut into at least this many panels if they are wide enough, so that one travels while another is
multiplied."""
_PANEL_ON_GPUS = 2048
"""Width of a panel of N on GPUs: its GEMM takes several times as long as reading the other operand."""
_ADDING = 1 / 64
"""On GPUs, the largest time of adding a panel's product to D, as a fraction of the time of its GEMM, where no transfer
waits for the panel."""


@dataclass(frozen=True, slots=True)
class PlanningContext:
    """The settings that all plans compared for one product share.

    Args:
        topology: the ranks of each node, and how they reach each other (global).
        nprocs: ranks (global).
        orders: storage orders of op(A), op(B) and D (global).
        overlap: let data move while the GEMM runs (global).
        chunks: pieces per shard, panels of a general plan; None lets the planner choose (global).
        hardware: the machine to plan for; None if only its topology is known (global).
        memory_nbytes: bytes that a rank may use; None for the memory of `hardware`, or no limit (global).
        known: function that returns the measured times of a plan's algorithms; None without measurements (global).
        queue: stream slot of the plans' executions; None if they run alone (global).
        wire: name of the dtype in which partial products travel; "" for that of D (global).
        others: names of the dtypes of op(B) and D; "" for that of op(A) (global).
    """

    topology: Topology
    nprocs: int
    orders: str = "FFF"
    overlap: bool = True
    chunks: int | None = None
    hardware: Hardware | None = None
    memory_nbytes: int | None = None
    known: Callable[[ProductPlan], Times] | None = None
    queue: int | None = None
    wire: str = ""
    others: tuple[str, str] = ("", "")

    @property
    def transport(self) -> Transport:
        """How the ranks reach each other."""
        return self.topology.transport(self.nprocs)

    def complete(self, plan: ProductPlan) -> ProductPlan:
        """The plan with its transport, chunks or panels, and algorithm, ready to be executed."""
        transport, transposed = self.transport, plan.transposed
        if transport == "push" and not plan.is_pushed:
            transport = "shared"
        if transport == "push":
            transposed = plan.pushed_transposed(self.orders)
        lines = max(1, plan.oriented.n, plan.oriented.k)  # no shard can be cut into more
        wanted = (
            _default_chunks(plan, transport, self.topology.bandwidth)
            if self.chunks is None
            else min(self.chunks, lines)
        )
        known, pushed = self.topology, transport == "push" and plan.travels
        plan = replace(
            plan,
            transposed=transposed,
            chunks=wanted,
            transport=transport,
            overlap=self.overlap,
            gpus=known.gpus,
            queue=self.queue,
            tiles=known.tiles,
            wire=self.wire,
            nodes=known.nodes if transport == "mixed" else (),
            orders=self.orders if pushed or (known.gpus and plan.product.itemsize == 1) else "",
        )
        if known.bandwidth and plan.overlaps_messages:
            plan = replace(plan, bandwidth=known.bandwidth)
        if isinstance(plan, Summa):
            return self._with_panels(plan)
        if not pushed:
            return plan
        if self.known:
            plan = replace(plan, measured=self.known(plan))
        return replace(plan, algorithm=choose_algorithm(plan, self.chunks, known))

    def seconds(self, plan: ProductPlan) -> float:
        """Simulated time of a plan; without `hardware`, with the rates of `NVLINK` or `FAT_TREE`."""
        hardware = self.hardware
        if hardware is None:
            known = self.topology
            cpus = replace(FAT_TREE, ranks_per_node=known.ranks_per_node, shared=known.shared)
            hardware = NVLINK if known.gpus else cpus
        return self.complete(plan).simulate(hardware).seconds

    def fits(self, plan: ProductPlan) -> bool:
        """Whether the matrices and the workspace of a plan fit into the memory of a rank."""
        return self._limit is None or needed_nbytes(self.complete(plan)) <= self._limit

    def _with_panels(self, plan: Summa) -> ProductPlan:
        """The plan with panels of the best width, or of the largest width that fits into memory."""
        plan, limit = replace(plan, width=_width(plan, self.chunks)), self._limit
        while self.chunks is None and limit is not None and plan.width > _LEAST_PANEL and needed_nbytes(plan) > limit:
            plan = replace(plan, width=max(_LEAST_PANEL, plan.width // 2))
        return plan

    @property
    def _limit(self) -> int | None:
        """Bytes that a rank may use, if there is a limit."""
        return self.hardware.memory_nbytes if self.memory_nbytes is None and self.hardware else self.memory_nbytes


def needed_nbytes(plan: ProductPlan) -> int:
    """Bytes of matrices and workspace of the rank that needs most."""
    return max(map(plan.operands_nbytes, plan.extreme_ranks())) + plan.workspace_nbytes


def _default_chunks(plan: ProductPlan, transport: Transport, bandwidth: float) -> int:
    """Pieces per shard: several, so that one travels while another is multiplied, but none too thin for the GEMM.

    The first partial product is formed before anything travels, and the last is added after all have arrived. Where
    the transfers take long, both are half as wide, although narrow GEMMs are slower. A gathered shard needs no pieces
    where the own shard is multiplied before it is awaited, and the transfers are short.
    """
    if transport in ("shared", "push"):
        return 1
    rows, columns = plan.chunked_shape
    if plan.finishes == "sum" and bandwidth:
        arriving = rows * columns * plan.itemsize / bandwidth
        if _FAST * arriving <= _multiplying(plan) / plan.product.nprocs:
            return 1
    if plan.finishes == "reduction" and bandwidth and _SLOW * plan.max_received_nbytes / bandwidth > _multiplying(plan):
        return max(1, min(columns // (_MIN_COLUMNS // 2), _MAX_CHUNKS))
    wanted = rows * columns * plan.itemsize // _CHUNK_NBYTES
    return max(1, min(wanted, columns // _MIN_COLUMNS, _MAX_CHUNKS))


def _multiplying(plan: ProductPlan) -> float:
    """Estimated seconds of the GEMMs of a rank on one core."""
    return 2 * plan.busiest_multiplies / FAT_TREE.flops_per_second(plan.dtype)


def _width(plan: Summa, chunks: int | None) -> int:
    """Width of a panel: a whole shard where it is read in place, otherwise as wide as the GEMM needs."""
    extent, gpus = plan.panelled, plan.gpus
    if chunks is not None:
        return max(1, -(-extent // chunks))
    wanted = max(MIN_PANEL, min(_PANEL_ON_GPUS if gpus else PANEL, -(-extent // _MIN_PANELS)))
    if not isinstance(plan, SummaC):
        return wanted
    if plan.nprocs == 1:
        return max(1, extent)
    if plan.transport == "shared" and plan.is_read_in_place and not gpus:
        return max(1, extent)
    whole = plan.a.columns.max_count if plan.by_owner else extent
    wanted = _depth_on_gpus(plan) if gpus else wanted
    if gpus or plan.by_owner:  # equal panels; on GPUs their rows start at multiples of 128 bytes at least
        wanted = -(-whole // max(1, -(-whole // wanted)))
        wanted += -wanted % 64 if gpus else 0
    return max(MIN_PANEL, wanted)


def _depth_on_gpus(plan: SummaC) -> int:
    """The depth of a panel along K for which additions to D and the wait for the first panel take least time together.

    A GPU reads and writes D once for every panel, so deep panels spend less time on it. Where a panel is one
    block of a peer, it is multiplied while it arrives: no rank waits for the first panel, and narrower panels take
    less memory.
    """
    product, (m, n, k) = plan.oriented, (split.max_count for split in (plan.cuboids.m, plan.cuboids.n, plan.cuboids.k))
    if not m * n * k:
        return 1
    adding = 2 * m * n * max(4, product.itemsize) / NVLINK.memory_bandwidth
    if plan.transport == "shared" and plan.is_read_in_place:
        multiplying = flops(m, n, 1, product.dtype) / NVLINK.flops_per_second(product.dtype)
        return math.ceil(adding / (_ADDING * multiplying))
    link = NVLINK.near if plan.transport == "shared" else NVLINK.far
    arriving = (m + n) * product.itemsize / link.bandwidth
    return math.ceil(math.sqrt(k * adding / arriving))

"""The measurements of `bench --hardware`: the rates of this machine while all ranks are busy, as a `Hardware`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.backends.cpu import lapack
from pblas.config import processor
from pblas.errors import BackendError
from pblas.factor.factorization_plan import LuPlan
from pblas.layouts import MatrixDescriptor
from pblas.matmul.api import plan_matmul
from pblas.simulation.hardware import LAPTOP, Hardware, Link

if TYPE_CHECKING:
    from pblas.context import Context
    from pblas.matrices.matrix import DistMatrix

_ROUNDS, _ROUND = 5, 0.05  # rounds, and seconds of each
_LARGE, _THIN, _SMALL = 1024, 64, 8  # extents of the GEMMs
_PANEL = 2048, 192  # rows and columns of the panel
_COPIED = 32 << 20  # bytes, larger than caches
_SENT = 4 << 20
_TAG = 1190
_HIDDEN = 0.05  # part of the time of a message that the core may take as if it took none


def measured_hardware(ctx: Context) -> Hardware:
    """**Collective.** A machine of nodes as this one; each time is that of the slowest rank, the least of some rounds.

    Its nodes have as many ranks as the largest one here, numbered node by node, in whatever order they are here. Links
    between nodes that there are not are those of the preset "laptop".

    Raises:
        BackendError: the ranks are on GPUs.
    """
    backend = ctx.runtime.backend
    if backend.gpus:
        raise BackendError("bench: --hardware measures CPUs; for GPUs start from the preset 'nvlink'")
    large, thin = _gemm(ctx, np.float64, _LARGE), _gemm(ctx, np.float64, _THIN)
    rate = 2 * _LARGE**3 / large
    call = _gemm(ctx, np.float64, _SMALL, _SMALL)
    slow = rate * thin / (2 * _LARGE**2 * _THIN) - 1
    half = max(0.0, slow / (1 / _THIN + 2 / _LARGE))
    source, target = np.zeros(_COPIED // 8), np.ones(_COPIED // 8)
    memory = 2 * _COPIED / _least(ctx, lambda: np.copyto(target, source))
    rows = MatrixDescriptor.row_wise(_COPIED // 8 // _LARGE * ctx.nprocs, _LARGE, ctx.nprocs)
    kept: list[DistMatrix] = []  # so that each matrix has pages that no process has written
    new_memory = _COPIED / _least(ctx, lambda: kept.append(ctx.zeros(rows)))
    kept.clear()
    near, far, node, most = LAPTOP.near, LAPTOP.far, sorted(backend.near), backend.most_near
    if most > 1:  # a rank alone on its node sends to itself
        i = node.index(ctx.rank)
        near = _link(ctx, node[(i + 1) % len(node)], node[i - 1])
    if most < ctx.nprocs:
        order = by_node(ctx, node[0])
        i = order.index(ctx.rank)
        far = _link(ctx, order[(i + most) % ctx.nprocs], order[i - most])
    memory_nbytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // most
    return Hardware(
        name=processor(),
        ranks_per_node=most,
        near=near,
        far=far,
        float64=_rounded(rate),
        float32=_rounded(2 * _LARGE**3 / _gemm(ctx, np.float32, _LARGE)),
        float16=_rounded(2 * _LARGE**3 / _gemm(ctx, np.float32, _LARGE)),  # which CPUs widen to float32
        memory_bandwidth=_rounded(memory),
        memory_nbytes=memory_nbytes,
        call=_rounded(call),
        shared=backend.shared,
        half=_rounded(half),
        step=_rounded(_step(ctx)),
        panel=_rounded(_panel(ctx) * rate),
        new_memory=_rounded(new_memory),
    )


def by_node(ctx: Context, first: int) -> list[int]:
    """**Collective.** All ranks, node after node; `first` is the lowest rank on the own node."""
    firsts = np.zeros(ctx.nprocs)
    firsts[ctx.rank] = first
    return sorted(range(ctx.nprocs), key=np.asarray(ctx.allreduce(firsts)).tolist().__getitem__)


def _rounded(value: float) -> float:
    """A number with three digits."""
    return float(f"{value:.3g}")


def _least(ctx: Context, call: Callable[[], Any]) -> float:
    """**Collective.** Seconds of a call on the slowest rank; the least of some rounds.

    A round repeats the call for some time slices of the system: of ranks that share a core each then waits for others.
    """
    times, repeats = list[float](), 1
    for turn in range(1 + _ROUNDS):
        ctx.allreduce(np.zeros(1))  # all begin together
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        seconds = float(ctx.allreduce(np.array([time.perf_counter() - start]), op="max")[0])
        if turn:
            times.append(seconds / repeats)
        else:
            repeats = max(1, round(_ROUND / seconds))
    return min(times)


def _gemm(ctx: Context, dtype: Any, columns: int, extent: int = _LARGE) -> float:
    """**Collective.** Seconds of a GEMM on each rank."""
    arrays = ctx.runtime.backend.arrays
    a, b = np.ones((extent, extent), dtype, order="F"), np.ones((extent, columns), dtype, order="F")
    d = np.zeros((extent, columns), dtype, order="F")
    return _least(ctx, lambda: arrays.gemm(1.0, a, b, 0.0, d, conj=(False, False)))


def _panel(ctx: Context) -> float:
    """**Collective.** Seconds of LU of a panel over its multiplications, weighted, with an addition each."""
    (m, n), rng = _PANEL, np.random.default_rng(0)
    w = MatrixDescriptor.column_wise(m, n, 1, nb=n)
    plan, original = LuPlan(w, w, "", "float64", 1), np.asfortranarray(rng.random((m, n)))
    x, pivots = np.copy(original, order="F"), np.zeros(n, np.int32)

    def factor() -> None:
        x[...] = original
        lapack.getrf(x, pivots)

    copied = _least(ctx, lambda: np.copyto(x, original))
    return (_least(ctx, factor) - copied) / (2 * plan.panel_multiplications(plan.steps[0]))


def _step(ctx: Context) -> float:
    """**Collective.** Seconds of a step of a product that has hardly anything to multiply."""
    rows = MatrixDescriptor.row_wise(_THIN, _THIN, ctx.nprocs)
    a = ctx.random(rows, seed=0)
    planned = plan_matmul(a, a)
    return _least(ctx, lambda: planned.execute(a, a)) / ctx.nprocs


def _link(ctx: Context, dest: int, source: int) -> Link:
    """**Collective.** The link over which each rank sends to `dest`, and receives from `source`, at the same time.

    `core` is what their bytes add to the time of a message and of GEMMs that take longer than it does.
    """
    arrays = ctx.runtime.backend.arrays
    a, b, d = (np.ones((_LARGE // 2, _LARGE // 2), order="F") for _ in range(3))
    empty, full = (_least(ctx, partial(_exchange, ctx, nbytes, dest, source)) for nbytes in (1, _SENT))
    work = partial(arrays.gemm, 1.0, a, b, 0.0, d, conj=(False, False))
    meanwhile = [work] * (1 + int(1.5 * full / _least(ctx, work)))
    idle, both = (_least(ctx, partial(_exchange, ctx, nbytes, dest, source, meanwhile)) for nbytes in (1, _SENT))
    core = min(full - empty, both - idle)
    rate = _rounded(_SENT / core) if core > _HIDDEN * (full - empty) else math.inf
    return Link(_rounded(empty / 2), _rounded(_SENT / max(full - empty, 1e-9)), _rounded(empty / 2), rate)


def _exchange(ctx: Context, nbytes: int, dest: int, source: int, meanwhile: Sequence[Callable[[], Any]] = ()) -> None:
    """**Collective.** Each rank sends a message to `dest`, and receives one from `source`."""
    backend = ctx.runtime.backend
    sent, received = np.zeros((nbytes, 1), np.uint8), np.zeros((nbytes, 1), np.uint8)
    transfers = backend.channel.receive(received, source, _TAG), backend.channel.send(sent, dest, _TAG)
    for call in meanwhile:
        call()
        for transfer in transfers:
            transfer.done()
    for transfer in transfers:
        backend.wait(transfer.done, "bench: a message")

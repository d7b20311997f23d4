"""Autotuning of push plans: run each candidate algorithm a few times on random matrices, and take the fastest.

The time of an algorithm is the largest of all ranks' medians. The ranks agree on it, so that all take the same
algorithm.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas.backends import log
from pblas.matmul.choose_granularity import shortlist
from pblas.matrices.matrix import DistMatrix

if TYPE_CHECKING:
    from pblas.backends.dtypes import Dtype
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.matmul.arguments import ProductForm
    from pblas.matmul.product_plan import ProductPlan
    from pblas.matmul.pushed import PushedMatmul
    from pblas.plans.algorithm import Algorithm, Times
    from pblas.runtime.runtime import Runtime

    Make = Callable[[ProductPlan], PushedMatmul]
    Matrices = tuple[DistMatrix, DistMatrix, DistMatrix | None, DistMatrix | None]

_WARM = 3  # executions before the timed ones: one eager, and one to capture a graph for each half of the workspace
_ROUNDS = 9
_GAIN = 0.98  # another algorithm replaces the predicted one only if it takes less than this fraction of its time
_RANDOM = 1 << 20  # random numbers that are drawn; larger matrices repeat them


def tuned(
    runtime: Runtime, spec: ProductForm, plan: ProductPlan, desc_d: MatrixDescriptor, make: Make, matrices: Matrices
) -> ProductPlan:
    """**Collective.** The plan with the fastest algorithm on this machine. Algorithms without known times are measured.

    The trials run on random matrices with the layouts of the caller's A, B, C and out, and leave the caller's matrices
    alone. Only the epilogue reads the caller's operands.
    """
    if plan.algorithm is None or plan.measured or spec.is_empty:
        return plan
    algorithms = shortlist(plan, spec.options.chunks, runtime.topology)
    if len(algorithms) < 2:
        return plan
    operands = _operands(runtime, spec, desc_d, matrices, bound=plan.replicates)
    if operands is None:
        warnings.warn(
            "plan_matmul: no memory for a second set of matrices, so the algorithms are not measured",
            errors.PblasWarning,
            stacklevel=2,
        )
        return plan
    log.write(log.INFO, runtime.rank, "plan_matmul: measures %d algorithms", len(algorithms))
    times = _measure(runtime, plan, algorithms, make, operands)
    assert runtime.measured is not None, "push engines have measured times"
    runtime.measured.add(spec.key(plan), times)
    return spec.choose("plan_matmul", desc_d, runtime.nprocs, runtime.topology, measured=runtime.measured)


def _measure(runtime: Runtime, plan: ProductPlan, algorithms: list[Algorithm], make: Make, operands: Matrices) -> Times:
    """**Collective.** Measured seconds of each algorithm.

    The first entry is the algorithm to take: `algorithms[0]`, unless another one is clearly faster.
    """
    engine, (a, b, c, d) = runtime.backend.engine(plan.queue), operands
    trials: list[tuple[Algorithm, PushedMatmul, Any]] = []
    assert d is not None, "made by `_operands`"
    plans = [replace(plan, algorithm=algorithm) for algorithm in algorithms]
    plans.sort(key=lambda candidate: candidate.workspace_nbytes, reverse=True)  # the first allocates for all
    for candidate in plans:
        assert candidate.algorithm is not None, "set above"
        try:
            planned = make(candidate)
            planned.rehearse(a, b, c, d, autotune=True)
        except errors.WorkspaceError:  # on every rank
            continue
        trials.append((candidate.algorithm, planned, engine.program()))
    samples: dict[Algorithm, list[float]] = {algorithm: [] for algorithm, _, _ in trials}
    for _, planned, program in trials:
        for _ in range(_WARM):
            engine.seconds(program, planned.trial(a, b, c, d))
    for turn in range(_ROUNDS):
        for i in range(len(trials)):
            algorithm, planned, program = trials[(i + turn) % len(trials)]
            samples[algorithm].append(engine.seconds(program, planned.trial(a, b, c, d)))
    medians = tuple(round(1e9 * statistics.median(seconds)) for seconds in samples.values())
    longest = runtime.agree("plan_matmul: compare algorithms", {}, None, medians)
    for _, planned, _ in trials:
        planned.close()
    times = {algorithm: 1e-9 * ns for algorithm, ns in zip(samples, longest, strict=False)}
    best = min(times, key=times.__getitem__, default=algorithms[0])
    if algorithms[0] in times and times[best] > _GAIN * times[algorithms[0]]:
        best = algorithms[0]
    return tuple(sorted(times.items(), key=lambda item: (item[0] != best, item[1])))


def _operands(
    runtime: Runtime, spec: ProductForm, desc_d: MatrixDescriptor, matrices: Matrices, *, bound: bool
) -> Matrices | None:
    """**Collective.** Random matrices like A, B and C, and a D; None if any rank is out of memory.

    With `bound`, peers store results directly into D, so D is allocated in symmetric memory if out is.
    """
    a, b, c, out = matrices
    is_in_place, error = c is not None and out is not None and c.key == out.key, 0
    try:
        x, y = (_drawn(runtime, like.desc, like.dtype) for like in (a, b))
        z = None if c is None or not spec.adds else _drawn(runtime, c.desc, c.dtype)
        d = z if z is not None and is_in_place else _drawn(runtime, desc_d, spec.dtypes.d)
    except MemoryError:
        error = 1
    if runtime.agree("plan_matmul: make matrices to measure with", {}, None, (error,))[0]:
        return None
    engine = runtime.backend.engine()
    if bound and not is_in_place and out is not None and engine.peer_addresses(out.stored("plan_matmul")) is not None:
        d = DistMatrix(desc_d, runtime.empty(runtime.local_memory(desc_d, spec.dtypes.d)), runtime)
    return x, y, z, d


def _drawn(runtime: Runtime, desc: MatrixDescriptor, dtype: Dtype) -> DistMatrix:
    """A random matrix in new memory; a GPU would multiply constants faster, since they draw less power (local)."""
    place = runtime.local_memory(desc, dtype)
    x = runtime.backend.engine().matrix(place.shape, place.strides, dtype)
    if x.size:
        numbers = np.random.default_rng(0).standard_normal(min(x.size, _RANDOM)).astype(dtype)
        with runtime.backend.writing(x) as host:
            lines = host if host.strides[0] > host.strides[1] else host.T
            lines[...] = np.resize(numbers, lines.shape)
    return DistMatrix(desc, x, runtime)

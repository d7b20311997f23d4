"""The algorithms of a pushed plan, measured: each runs a few times on matrices of random numbers, the fastest is taken.

The time of an algorithm is the largest of all ranks' medians. The ranks agree on it, so that all of them take the same
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
from pblas.matrices.matrix import DistMatrix
from pblas.planner.algorithms import shortlist

if TYPE_CHECKING:
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.operations.arguments.product import ProductArguments
    from pblas.operations.multiplication.pushed import PushedMatmul
    from pblas.plans.plan import Algorithm, ProductPlan, Times
    from pblas.runtime.runtime import Runtime

    Make = Callable[[ProductPlan], PushedMatmul]
    Matrices = tuple[DistMatrix, DistMatrix, DistMatrix | None, DistMatrix | None]

_WARM = 3  # executions: an eager one, and one for each half of the workspace, which on GPUs is captured
_ROUNDS = 9
_GAIN = 0.98  # another algorithm than the estimated one must take less than this part of its time
_RANDOM = 1 << 20  # numbers that are drawn; matrices repeat them


def tuned(
    runtime: Runtime, spec: ProductArguments, plan: ProductPlan, desc_d: MatrixDescriptor, make: Make, given: Matrices
) -> ProductPlan:
    """**Collective.** The plan with the algorithm that is the fastest here, measured now if it was not before.

    Args:
        runtime: of the context (global).
        spec: the product (global).
        plan: of it, of the push transport (global).
        desc_d: descriptor of D (global).
        make: a planned product from a plan of it (global).
        given: A, B, C and where D goes, the latter two perhaps None: what is multiplied is like them, and they are
            neither read nor written; what follows reads its own operands (local).
    """
    if plan.algorithm is None or plan.measured or spec.is_empty:
        return plan
    algorithms = shortlist(plan, spec.chunks, runtime.topology)
    if len(algorithms) < 2:
        return plan
    operands = _operands(runtime, spec, desc_d, given, bound=plan.replicates)
    if operands is None:
        warnings.warn("plan_matmul: no memory for a second set of matrices: algorithms are not measured", stacklevel=2)
        return plan
    times = _measure(runtime, plan, algorithms, make, operands)
    assert runtime.measured is not None, "engines that push measure"
    runtime.measured.add(spec.key(plan), times)
    return spec.choose(desc_d, runtime.nprocs, runtime.topology, measured=runtime.measured)


def _measure(runtime: Runtime, plan: ProductPlan, algorithms: list[Algorithm], make: Make, operands: Matrices) -> Times:
    """**Collective.** Seconds that algorithms take, the one to be taken first: the first if no other is much faster."""
    engine, (a, b, c, d) = runtime.backend.engine(plan.queue), operands
    trials: list[tuple[Algorithm, PushedMatmul, Any]] = []
    assert d is not None, "made by `_operands`"
    plans = [replace(plan, algorithm=algorithm) for algorithm in algorithms]
    for rival in sorted(plans, key=lambda rival: rival.workspace_nbytes, reverse=True):  # others take the first's
        assert rival.algorithm is not None, "given one above"
        try:
            planned = make(rival)
            planned.rehearse(a, b, c, d, autotune=True)
        except errors.WorkspaceError:  # on every rank
            continue
        trials.append((rival.algorithm, planned, engine.program()))
    taken: dict[Algorithm, list[float]] = {algorithm: [] for algorithm, _, _ in trials}
    for _, planned, program in trials:
        for _ in range(_WARM):
            engine.seconds(program, planned.trial(a, b, c, d))
    for turn in range(_ROUNDS):
        for i in range(len(trials)):
            algorithm, planned, program = trials[(i + turn) % len(trials)]
            taken[algorithm].append(engine.seconds(program, planned.trial(a, b, c, d)))
    medians = tuple(round(1e9 * statistics.median(seconds)) for seconds in taken.values())
    longest = runtime.agree("plan_matmul: compare algorithms", {}, None, medians)
    for _, planned, _ in trials:
        planned.close()
    times = {algorithm: 1e-9 * ns for algorithm, ns in zip(taken, longest, strict=False)}
    best = min(times, key=times.__getitem__, default=algorithms[0])
    if algorithms[0] in times and times[best] > _GAIN * times[algorithms[0]]:
        best = algorithms[0]
    return tuple(sorted(times.items(), key=lambda item: (item[0] != best, item[1])))


def _operands(
    runtime: Runtime, spec: ProductArguments, desc_d: MatrixDescriptor, given: Matrices, *, bound: bool
) -> Matrices | None:
    """**Collective.** Matrices like the given ones: random A, B and C, and a D; None if some rank has no memory.

    Args:
        runtime: of the context (global).
        spec: the product (global).
        desc_d: descriptor of D (global).
        given: as of `tuned` (local).
        bound: D lies in symmetric memory if the given one does, since results are put there at once (global).
    """
    a, b, c, out = given
    is_in_place, error = c is not None and out is not None and c.key == out.key, 0
    try:
        x, y = (_drawn(runtime, like.desc, spec.dtype) for like in (a, b))
        z = None if c is None or spec.beta == 0 else _drawn(runtime, c.desc, spec.dtype)
        d = z if z is not None and is_in_place else _drawn(runtime, desc_d, spec.dtype)
    except MemoryError:
        error = 1
    if runtime.agree("plan_matmul: make matrices to measure with", {}, None, (error,))[0]:
        return None
    engine = runtime.backend.engine()
    if bound and not is_in_place and out is not None and engine.homes(out.stored("plan_matmul")) is not None:
        d = DistMatrix(desc_d, runtime.empty(runtime.place(desc_d, spec.dtype)), runtime)
    return x, y, z, d


def _drawn(runtime: Runtime, desc: MatrixDescriptor, dtype: np.dtype[Any]) -> DistMatrix:
    """This rank's part of a matrix of random numbers, in memory of its own; constants would draw less power (local)."""
    place = runtime.place(desc, dtype)
    x = runtime.backend.engine().matrix(place.shape, place.strides, dtype)
    if x.size:
        numbers = np.random.default_rng(0).standard_normal(min(x.size, _RANDOM)).astype(dtype)
        with runtime.backend.writing(x) as host:
            lines = host if host.strides[0] > host.strides[1] else host.T
            lines[...] = np.resize(numbers, lines.shape)
    return DistMatrix(desc, x, runtime)

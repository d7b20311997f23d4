"""orthogonalize_many: functions of many matrices at once, each on one rank or, if it is large, over all of them."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heapreplace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from pblas import errors
from pblas.arrays.reductions import described
from pblas.backends.dtypes import Array
from pblas.backends.local_step import agreed
from pblas.core.call import checked_call
from pblas.core.checks import check_matrix, is_integer
from pblas.core.linalg_errors import NotPositiveDefiniteError
from pblas.factor import arguments
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from pblas.matrices.matrix import DistMatrix
from pblas.plans.base import StationaryPlan
from pblas.redistribution.api import redistributed
from pblas.redistribution.exchange import Exchange
from pblas.runtime.runtime import Runtime, fail_without_context, spelled
from pblas.simulation.hardware import Transport
from pblas.simulation.phase import Phase, View
from pblas.spectral.functions import inverse_root, not_positive
from pblas.spectral.newton_schulz import MUON, checked_weights, iterated, iterated_alone, segments, workspace
from pblas.spectral.polar import polar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pblas.backends.device import Device
    from pblas.backends.dtypes import Order

ManyFunction = Literal["newton_schulz", "polar", "inverse_root"]
_DIVIDED = 0.5
"""Rate of a rank in products over all ranks, as a part of its rate in products of its own."""
_MOST_DIVIDED = 64
"""The most matrices that are divided: the largest ones."""
_WHOLE_NBYTES = 1 << 30
"""Bytes of the whole matrices that a rank has at a time, unless one is larger."""
_SVD, _EIGH = 11, 5
"""Multiplications of LAPACK's singular values and vectors over m n^2, and of its eigenvalues and vectors over n^3
(Golub, Van Loan, Matrix Computations, 4th edition, 8.6.3 and 8.3.5)."""


def orthogonalize_many(
    matrices: Sequence[DistMatrix],
    *,
    function: ManyFunction = "newton_schulz",
    steps: int = 5,
    coefficients: Sequence[float] | Sequence[Sequence[float]] = MUON,
    p: int = 4,
) -> list[DistMatrix]:
    """**Collective.** A function of each of many matrices, such as the weights of a model.

    A matrix whose work is a small part of all goes to one rank and comes back, and ranks work on different matrices at
    the same time. A large one is divided as by `newton_schulz`, `polar` or `inverse_root`. A rank has whole matrices of
    up to 1 GiB at a time, or a larger one, and a copy of its parts of these.

    Args:
        matrices: a list of m x n matrices, of any m, n and layouts, in one context; they are not changed (global).
        function: "newton_schulz"; "polar", the factor U of `polar`; or "inverse_root", of Hermitian matrices; the last
            two on CPUs (global).
        steps: of `newton_schulz` (global).
        coefficients: of `newton_schulz` (global).
        p: of `inverse_root`, >= 1 (global).

    Returns:
        New matrices, each in the layout of the given one.

    Raises:
        ArgumentError: wrong arguments, or matrices of several contexts.
        BackendError, ConvergenceError, NotPositiveDefiniteError: as the function of one matrix.

    Source: as that of the function; R. L. Graham, Bounds on multiprocessing timing anomalies, 1969, for the ranks.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     a, b = (ctx.from_global(np.array(x)) for x in ([[2.0, 0.0], [0.0, -3.0]], [[0.0, 5.0]]))
    ...     [x.to_global().tolist() for x in pblas.linalg.orthogonalize_many([a, b], function="polar")]
    [[[1.0, 0.0], [0.0, -1.0]], [[0.0, 1.0]]]
    """
    opname, parts = "orthogonalize_many", list(matrices) if isinstance(matrices, list | tuple) else []
    if not any(isinstance(x, DistMatrix) for x in parts):
        got = "one without matrices" if isinstance(matrices, list | tuple) else type(matrices).__name__
        text = f"{opname}: expected a list or a tuple of matrices, got {got}"
        fail_without_context(opname, errors.ArgumentError(text))
    named = {f"matrix {k}": x for k, x in enumerate(parts)}
    given = function, steps, coefficients, p
    with checked_call(opname, _checked, named, named, *given) as (runtime, work):
        runtime.agree(opname, spelled({"steps": len(work.coefficients), **work._asdict()}) + described(**named))
        owners = deal(tuple(x.shape for x in parts), runtime.nprocs)
        results: dict[int, DistMatrix] = {}
        for wave in waves(owners, [prod(x.shape) * x.dtype.itemsize for x in parts], runtime.nprocs):
            results |= _taken(opname, runtime, parts, wave, work)
        results |= {k: work.divided(parts[k]) for k, owner in enumerate(owners) if owner < 0}
        return [results[k] for k in range(len(parts))]


class _Work(NamedTuple):
    """A function of a matrix, and its options (global)."""

    function: ManyFunction
    coefficients: list[tuple[float, ...]]  # one (a, b, c) for each step
    p: int

    def divided(self, a: DistMatrix) -> DistMatrix:
        """**Collective.** The function of one matrix over all ranks."""
        if self.function == "newton_schulz":
            return iterated("orthogonalize_many", a, self.coefficients)
        return polar(a).U if self.function == "polar" else inverse_root(a, self.p)

    def alone(self, opname: str, arrays: Device, x: Array, memory: list[Array]) -> int:
        """X := f(X), which is launched only; the number of eigenvalues that are not positive (local)."""
        if self.function == "newton_schulz":
            iterated_alone(arrays, x, x, self.coefficients, memory)
            return 0
        if not np.isfinite(x).all():
            raise errors.ArgumentError(f"{opname}: a matrix of shape {x.shape} has elements that are NaN or infinite")
        if self.function == "polar":
            u, _, vh = np.linalg.svd(x, full_matrices=False)
            x[...] = u @ vh
            return 0
        w, v = np.linalg.eigh(x)
        count = not_positive(w)
        if not count:
            x[...] = (v * w ** w.dtype.type(-1 / self.p)) @ v.conj().T
        return count


@dataclass(frozen=True, slots=True)
class AlonePlan(StationaryPlan):
    """The functions of matrices that ranks compute alone, at the same time; for the time of a dry run.

    >>> plan = AlonePlan(MatrixDescriptor.column_wise(64, 48, 1), "float32", 4, "newton_schulz", (3, 2))
    >>> [(phase.steps, phase.gemms, phase.gemm) for phase in plan.phases(View(0, 4, 1, "message"))]
    [(2, 2, (48, 48, 64)), (1, 14, (48, 48, 48))]
    """

    name: ClassVar[str] = "Alone"
    a: MatrixDescriptor  # the largest of the matrices (global)
    dtype: str
    nprocs: int
    function: ManyFunction
    lengths: tuple[int, ...] = ()  # of the segments of `newton_schulz` (global)
    why: str = "their work is a small part of all"
    transport: Transport = "message"

    @property
    def workspace_nbytes(self) -> int:
        """Not counted: it is of NumPy, or short-lived."""
        return 0

    def phases(self, view: View) -> Iterator[Phase]:
        """The products of each segment, or the singular values and vectors, or the eigenvalues and vectors."""
        n, m = sorted(self.a.shape)
        if self.function == "newton_schulz":
            yield Phase(len(self.lengths), (n, n, m), gemms=2)
            yield Phase(1, (n, n, n), gemms=sum(4 * length - 3 for length in self.lengths))
        else:
            yield Phase(1, (m, n, n), panel=(_SVD if self.function == "polar" else _EIGH) * m * n * n)

    def received_elements(self, rank: int) -> int:
        """None: matrices come and go by redistributions, which have plans of their own."""
        return 0

    def sent_elements(self, rank: int) -> int:
        """None, as `received_elements`."""
        return 0

    def moves(self) -> str:
        return "nothing"

    def title(self) -> str:
        return f"{self.function} of a matrix on one rank"


def _checked(
    opname: str, runtime: Runtime, parts: Mapping[str, Any], function: Any, steps: Any, coefficients: Any, p: Any
) -> _Work:
    """The work, after checks of all arguments (local)."""
    if function not in get_args(ManyFunction):
        names = ", ".join(map(repr, get_args(ManyFunction)))
        raise errors.ArgumentError(f"{opname}: function must be one of {names}, got {function!r}")
    is_iteration = function == "newton_schulz"
    if not is_iteration and runtime.backend.gpus:
        text = f"{opname}: {function} of many matrices runs on CPUs, this context is on GPUs; call it for each matrix"
        raise errors.BackendError(text)
    for name, x in parts.items():
        (check_matrix if is_iteration else arguments.check_matrix)(opname, name, x, runtime)
        if function == "inverse_root":
            arguments.check_square(opname, x.desc)
    if not is_integer(p, 1):
        raise errors.ArgumentError(f"{opname}: p must be an integer >= 1, got {p!r}")
    return _Work(function, checked_weights(opname, steps, coefficients), int(p))


def _work_of(shape: tuple[int, ...]) -> int:
    """Multiplications of a product X X^T, or X^T X, to which the work on a matrix is proportional."""
    return prod(shape) * min(shape)


@lru_cache(maxsize=64)
def deal(shapes: tuple[tuple[int, int], ...], nprocs: int) -> tuple[int, ...]:
    """The rank of each matrix, -1 for those that are divided over all ranks, so that the last rank ends early.

    Args:
        shapes: of the matrices.
        nprocs: ranks.

    Source: R. L. Graham, Bounds on multiprocessing timing anomalies, 1969: the longest first, each to the rank that is
        idle first.

    >>> deal(((4, 4),) * 4, 2), deal(((64, 64), (8, 8), (8, 8)), 4), deal(((8, 8),), 1)
    ((0, 1, 0, 1), (-1, 0, 1), (0,))
    """
    work = [_work_of(shape) for shape in shapes]
    order = sorted(range(len(work)), key=lambda k: -work[k])
    best: tuple[float, tuple[int, ...]] = (float("inf"), ())
    divided = 0.0
    for count in range(min(len(order), _MOST_DIVIDED if nprocs > 1 else 0) + 1):
        owners, loads = [-1] * len(work), [(0, rank) for rank in range(nprocs)]
        heapify(loads)
        for k in order[count:]:
            load, rank = loads[0]
            owners[k] = rank
            heapreplace(loads, (load + work[k], rank))
        best = min(best, (divided + max(loads)[0], tuple(owners)), key=lambda entry: entry[0])
        if count < len(order):
            divided += work[order[count]] / (_DIVIDED * nprocs)
    return best[1]


Turn = dict[int, int]
"""The matrix of each rank that works at the same time."""


def waves(owners: Sequence[int], nbytes: Sequence[int], nprocs: int) -> list[list[Turn]]:
    """The turns of the waves, whose largest matrices have at most `_WHOLE_NBYTES` together, or are one larger matrix.

    >>> waves((0, 1, 0, -1, 0), [400 << 20] * 5, 2)
    [[{0: 0, 1: 1}, {0: 2}], [{0: 4}]]
    """
    of_rank = [[k for k, owner in enumerate(owners) if owner == rank] for rank in range(nprocs)]
    result, held = list[list[Turn]](), 0
    for number in range(max(map(len, of_rank))):
        turn = {rank: mine[number] for rank, mine in enumerate(of_rank) if number < len(mine)}
        largest = max(nbytes[k] for k in turn.values())
        held += largest
        if not result or held > _WHOLE_NBYTES:
            result.append([])
            held = largest
        result[-1].append(turn)
    return result


def explained(shapes: Sequence[tuple[int, int]], nprocs: int) -> str:
    """What `deal` decides, in words.

    >>> print(explained([(64, 64), *[(8, 8)] * 8], 4))
    9 matrices over 4 ranks
      divided over all ranks: 64 x 64
      whole on rank 0: 2 of 8 x 8
      whole on rank 1: 2 of 8 x 8
      whole on rank 2: 2 of 8 x 8
      whole on rank 3: 2 of 8 x 8
    """
    owners = deal(tuple(shapes), nprocs)
    lines = [f"{len(shapes)} matrices over {nprocs} ranks"]
    for rank in range(-1, nprocs):
        counts = Counter(shape for shape, owner in zip(shapes, owners, strict=True) if owner == rank)
        if counts:
            found = (f"{f'{count} of ' * (count > 1)}{m} x {n}" for (m, n), count in counts.items())
            lines.append(f"  {'divided over all ranks' if rank < 0 else f'whole on rank {rank}'}: {', '.join(found)}")
    return "\n".join(lines)


def _taken(
    opname: str, runtime: Runtime, matrices: list[DistMatrix], wave: list[Turn], work: _Work
) -> dict[int, DistMatrix]:
    """**Collective.** `_take_wave`, by messages if shared memory is short."""
    if runtime.backend.dry is not None:
        return _rehearsed(opname, runtime, matrices, wave, work)
    try:
        return _take_wave(opname, runtime, matrices, wave, work)
    except errors.WorkspaceError as caught:
        if not (caught.shared and runtime.give_up_shared_memory()):
            raise
    return _take_wave(opname, runtime, matrices, wave, work)  # here, where no traceback holds the memory


def _take_wave(
    opname: str, runtime: Runtime, matrices: list[DistMatrix], wave: list[Turn], work: _Work
) -> dict[int, DistMatrix]:
    """**Collective.** Each rank computes the function of its matrices; the results by the numbers of the matrices.

    On GPUs matrices are copied and come while those of earlier turns are computed, and results go once all ranks have
    computed those of their turn.
    """
    arrays, run = runtime.backend.arrays, _WaveRun(opname, runtime, matrices, wave, work)
    steps = [wave] if arrays.traits.blocking else [[turn] for turn in wave]
    try:
        for turns in steps:
            run.copy(turns)
            for turn in turns:
                run.compute(turn)
        for turns in steps:
            run.send(turns)
        arrays.synchronize()
        runtime.begin_reading()
    except errors.PblasError:
        arrays.synchronize()  # work that is under way uses the memory
        raise
    finally:
        run.release()
    return run.results


class _WaveRun:
    """A run of a wave: see `_take_wave`."""

    def __init__(
        self, opname: str, runtime: Runtime, matrices: list[DistMatrix], wave: list[Turn], work: _Work
    ) -> None:
        self._opname, self._runtime, self._matrices, self._work = opname, runtime, matrices, work
        self._arrays = arrays = runtime.backend.arrays
        owners = {k: rank for turn in wave for rank, k in turn.items()}
        self._inward, self._outward = _exchanges(runtime, {k: (matrices[k], rank) for k, rank in owners.items()})
        self._mine = [matrices[k] for k, rank in owners.items() if rank == runtime.rank]
        self._whole = dict[int, Array]()
        self.results: dict[int, DistMatrix] = {}
        self._lanes: list[Any] = [nullcontext, *([] if arrays.traits.blocking else [arrays.on_second_lane])]
        self._loads, self._memory = [0] * len(self._lanes), list[list[Array]]()
        self._done, self._wrong = dict[int, Any](), 0
        self._failed: BaseException | None = None

    def copy(self, turns: list[Turn]) -> None:
        """**Collective.** Copy the matrices to where peers read them, and take memory for them and for the results."""
        arrays, numbers = self._arrays, [k for turn in turns for k in turn.values()]
        with self._runtime.backend.provisional, self._runtime.agreed_step(self._opname, "copied"):
            if not self._whole:
                arrays.begin()
            with arrays.on_side_lane():
                for k in numbers:
                    _copy(self._opname, arrays, self._matrices[k], *self._inward.allocate([k]))
                copied = arrays.mark()
            for turn in turns:
                self._whole |= zip(turn.values(), self._outward.allocate(turn.values()), strict=True)
            self.results |= {k: _empty(self._matrices[k]) for k in numbers}
            arrays.wait(copied)

    def compute(self, turn: Turn) -> None:
        """**Collective.** Each rank gets its matrix, and launches its function."""
        arrays, rank, whole = self._arrays, self._runtime.rank, self._whole
        # X := the whole matrix, on its rank
        came = {owner: self._inward.move(k, whole[k]) for owner, k in turn.items()}
        # X := f(X)
        k = turn.get(rank, -1)
        if k < 0 or not whole[k].size or self._failed is not None:
            return
        lane = self._loads.index(min(self._loads))
        self._loads[lane] += _work_of(whole[k].shape)
        try:
            if lane == len(self._memory):
                itemsize = max(x.dtype.itemsize for x in self._mine)
                self._memory.append(workspace(arrays, [x.shape for x in self._mine], itemsize))
            with self._lanes[lane]():
                arrays.follow(came[rank])
                count = self._work.alone(self._opname, arrays, whole[k], self._memory[lane])
                self._done[k] = arrays.mark()
            self._wrong = self._wrong or (count and (k + 1 << 32 | count))
        except BaseException as caught:  # noqa: BLE001 - raised by `send`: first peers get messages of later turns
            self._failed = caught

    def send(self, turns: list[Turn]) -> None:
        """**Collective.** Send the results to the ranks of their layouts, once all ranks have computed them."""
        numbers = [k for turn in turns for k in turn.values()]
        with self._runtime.local_step(self._opname):
            if self._failed is not None:
                raise self._failed
            for k in numbers:
                self._arrays.wait(self._done.get(k))
        (wrong,) = self._runtime.agree(f"{self._opname}: computed", {}, None, (self._wrong,))
        if wrong:
            raise _not_definite(self._opname, wrong)
        for k in numbers:
            self._outward.move(k, self.results[k].local)

    def release(self) -> None:
        """Forget all memory but that of the results; all ranks do so (local)."""
        self._failed = None  # its traceback refers to frames of this run
        self._inward.release()
        self._outward.release()


def _copy(opname: str, arrays: Device, x: DistMatrix, copy: Array) -> None:
    """COPY := this rank's part of X (local)."""
    if x.conjugated:
        arrays.place(x.stored(opname), copy, conj=True)
    else:
        arrays.assign(x.stored(opname), copy)


def _exchanges(runtime: Runtime, owners: dict[int, tuple[DistMatrix, int]]) -> tuple[Exchange, Exchange]:
    """The exchanges of matrices from their layouts to one rank each, and back (local)."""
    moves = {}
    for k, (x, rank) in owners.items():
        moves[k] = x.desc.without_lld, _on_one_rank(x.shape, runtime.nprocs, rank, x.desc.order), x.dtype
    exchanges = []
    back = {k: (whole, desc, dtype) for k, (desc, whole, dtype) in moves.items()}
    for name, way in (("inward", moves), ("outward", back)):
        key = name, runtime.backend.shared, *way.items()
        exchange = runtime.kept.get(key, Exchange) or Exchange(runtime.backend, way)
        runtime.kept.keep(key, exchange)
        exchanges.append(exchange)
    return exchanges[0], exchanges[1]


@lru_cache(1024)
def _on_one_rank(shape: tuple[int, int], nprocs: int, rank: int, order: Order) -> MatrixDescriptor:
    """The layout of a matrix that one rank has (global)."""
    (m, n), grid = shape, Grid(1, nprocs)
    return MatrixDescriptor(m, n, max(1, m), max(1, n), grid, 0, rank, order)


def _empty(like: DistMatrix) -> DistMatrix:
    """**Collective.** A new matrix like another one, but for its leading dimension (provisional)."""
    runtime, desc = like.runtime, like.desc.without_lld
    memory = runtime.local_memory(desc, like.dtype)
    array = runtime.backend.view(runtime.backend.allocate(memory.nbytes), memory.shape, memory.strides, memory.dtype)
    return DistMatrix(desc, array, runtime)


def _not_definite(opname: str, wrong: int) -> BaseException:
    """The error of a matrix, from its number and how many of its eigenvalues are not positive (global)."""
    k, count = (wrong >> 32) - 1, wrong & 0xFFFFFFFF
    text = f"{opname}: matrix {k} is not positive definite: {count} eigenvalues are not positive beyond rounding"
    return agreed(NotPositiveDefiniteError(f"{text}; add a multiple of the identity", count))


def _rehearsed(
    opname: str, runtime: Runtime, matrices: list[DistMatrix], wave: list[Turn], work: _Work
) -> dict[int, DistMatrix]:
    """`_take_wave` in a dry run, which counts its redistributions one after the other."""
    results = {}
    for turn in wave:
        whole = {}
        for rank, k in turn.items():
            desc = _on_one_rank(matrices[k].shape, runtime.nprocs, rank, "F")
            whole[k] = redistributed(opname, matrices[k], desc)
        largest = max((matrices[k] for k in turn.values()), key=lambda x: _work_of(x.shape))
        halves = runtime.backend.arrays.traits.gpu
        m, n = sorted(largest.shape)
        lengths = segments(m, n, work.coefficients, halves=halves)
        plan = AlonePlan(largest.desc, largest.dtype.name, runtime.nprocs, work.function, lengths)
        runtime.backend.dry.executed(opname, plan)
        for k, x in whole.items():
            results[k] = redistributed(opname, x, matrices[k].desc.without_lld, is_temporary=True)
    return results

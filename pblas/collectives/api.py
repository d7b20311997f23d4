"""allreduce, allgather and reduce_scatter of plain arrays: check on all ranks, cut into rounds, run the rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pblas import errors
from pblas.backends import log
from pblas.backends.interop import current_stream
from pblas.collectives.arguments import GatherArguments, ReduceArguments, Reduction
from pblas.collectives.collective_plan import SLOT_NBYTES, goes_by_messages
from pblas.collectives.collective_run import OUT_TABLE, X_TABLE, Collective, Gathering, OneShot, Steps, run_naive
from pblas.collectives.reduction_run import ByFunction, Finish
from pblas.collectives.staging_run import Flat, Staging
from pblas.epilogues import Epilogue
from pblas.runtime.calls import collective
from pblas.runtime.kept_plans import Kept

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, ArrayT, Dtype
    from pblas.backends.host_ranks import HostRanks
    from pblas.backends.local_step import LocalStep
    from pblas.runtime.runtime import Runtime

Op = Literal["sum", "max", "min", "prod"]
AnyEpilogue = str | Epilogue | Callable[["Array"], "Array"] | None


class Collectives:
    """Collectives of a context on plain arrays, one array on each rank."""

    runtime: Runtime

    @collective
    def allreduce(
        self,
        x: ArrayT,
        out: ArrayT | None = None,
        op: Op = "sum",
        *,
        epilogue: AnyEpilogue = None,
        algorithm: Literal["auto", "naive", "one_shot", "two_shot"] = "auto",
        stream: object = None,
    ) -> ArrayT:
        """**Collective.** out = epilogue(sum of all ranks' x), the same bits on every rank.

        16-bit elements are added in 32 bits and rounded once. The order of additions depends on the algorithm, the
        number of ranks, and whether all arrays are stored by columns, and on nothing else. So the same call gives the
        same bits in every run. A call that names its algorithm also gives the same bits on every transport; the choice
        of "auto" depends on the transport.

        Args:
            x: array of any strides, with the same shape and dtype on every rank; of NumPy, CuPy, torch, or another
                library with DLPack or `__cuda_array_interface__` (local).
            out: array of x's shape and dtype that receives the result, possibly x itself; None for a new array of x's
                library (local).
            op: "sum", "max", "min" or "prod"; for complex arrays "sum" or "prod" (global).
            epilogue: elementwise function applied to the result before it is rounded: an expression, as "relu(x)", an
                `Epilogue`, or a Python function of one-dimensional arrays in the precision of the additions. If the
                function raises, or calls sys.exit, all ranks raise ArgumentError, and out is undefined (global).
            algorithm: "one_shot": every rank adds all elements. "two_shot": every rank adds a part and sends the sums
                to the others. "naive": MPI's own collectives. "auto": chosen by the size of x and the transport
                (global).
            stream: on GPUs, the CUDA stream on which to run: an object with `__cuda_stream__`; None for the current
                stream of x's library, torch's for a tensor and CuPy's for all others (local).

        Returns:
            out. The caller may overwrite x when the call has returned (on GPUs, by the next work on `stream`).

        Raises:
            ArgumentError, DTypeError: wrong arguments; the same error on every rank, and out is unchanged.
            MismatchError: ranks that passed different arguments.
        """
        return _reduce(self.runtime, "allreduce", x, out, Reduction(op, epilogue, algorithm), stream)

    @collective
    def reduce_scatter(
        self,
        x: ArrayT,
        out: ArrayT | None = None,
        op: Op = "sum",
        *,
        epilogue: AnyEpilogue = None,
        counts: Sequence[int] | None = None,
        stream: object = None,
    ) -> ArrayT:
        """**Collective.** out = epilogue(this rank's rows of the sum of all ranks' x).

        Args:
            x: array of one dimension or more, with the same shape and dtype on every rank (local).
            out: array with the shape of this rank's rows and x's dtype, possibly these rows of x itself; None for a
                new array (local).
            op: as in `allreduce` (global).
            epilogue: as in `allreduce`; its arrays have out's shape, or one element for each column (local).
            counts: number of elements of axis 0 for each rank; None to split it as numpy.array_split does (global).
            stream: as in `allreduce` (local).

        Returns:
            out. The caller may overwrite x when the call has returned (on GPUs, by the next work on `stream`).

        Raises:
            as `allreduce`.
        """
        return _reduce(self.runtime, "reduce_scatter", x, out, Reduction(op, epilogue, counts=counts), stream)

    @collective
    def allgather(
        self, x: ArrayT, out: ArrayT | None = None, *, counts: Sequence[int] | None = None, stream: object = None
    ) -> ArrayT:
        """**Collective.** out = all ranks' x, one after the other along axis 0.

        Args:
            x: array of one dimension or more. The length of axis 0 may differ between ranks, and may be 0. The other
                lengths, and the dtype, are the same on every rank (local).
            out: array of x's dtype with the lengths of all ranks together along axis 0; x may be this rank's part of
                it; None for a new array (local).
            counts: every rank's length along axis 0; with None the ranks exchange their lengths in every call (global).
            stream: as in `allreduce` (local).

        Returns:
            out. The caller may overwrite x when the call has returned (on GPUs, by the next work on `stream`).

        Raises:
            as `allreduce`.
        """
        return _gather(self.runtime, x, out, counts, stream)


def add_up(runtime: Runtime, operation: str, x: Array, out: Array) -> None:
    """**Collective.** Out := sum of all ranks' x in two shots on CPUs, as the last step of another call."""
    _reduce_on_hosts(runtime, "allreduce", x, out, Reduction("sum", None), None, (operation, ""))


class Sum:
    """Out := epilogue(sum of all ranks' arrays) on CPUs, as the last step of a call that is repeated.

    Each time a rank computes its array in `own`, and then adds. Where one shot adds them, and is known from the time
    before, that is memory that the other ranks read, and nothing is checked again.
    """

    def __init__(
        self,
        runtime: Runtime,
        call: tuple[str, str],  # the name of the call and its arguments, for an agreement (global)
        shape: tuple[int, int],  # of each rank's array (global)
        out: Array,  # receives all sums, or those of this rank's rows (local)
        epilogue: Epilogue | None,  # with checked operands (local)
        counts: Sequence[int] | None,  # each rank's rows of the sums; None for all of them (global)
    ) -> None:
        self._runtime, self._call, self._shape, self._out = runtime, call, shape, out
        self._kind = "allreduce" if counts is None else "reduce_scatter"
        self._options = Reduction("sum", epilogue, "auto" if counts is None else "two_shot", counts)
        self._spec: ReduceArguments | None = None  # of sums in one shot (local)

    def own(self) -> Array:
        """The array that this rank computes (local)."""
        one_shot = self._one_shot(self._spec)
        if self._spec is None or one_shot is None:
            self._spec = None
            return np.empty(self._shape, self._out.dtype)
        self._spec.take(one_shot.own)
        return one_shot.own

    def add(self, own: Array) -> None:
        """**Collective.** Add all ranks' arrays, from `own` (local)."""
        spec, one_shot = self._spec, self._one_shot(self._spec)
        if spec is not None and one_shot is not None:
            _reduce_in_one_shot(self._runtime, *self._call, spec, one_shot)
            spec.keep()
            return
        _, spec = _reduce_on_hosts(self._runtime, self._kind, own, self._out, self._options, None, self._call)
        one_shot = self._one_shot(spec)
        if one_shot is not None:
            self._spec = spec
            spec.take(one_shot.own)  # `own` may end

    def _one_shot(self, spec: ReduceArguments | None) -> OneShot | None:
        is_dry = self._runtime.backend.dry is not None
        return None if spec is None or is_dry else spec.form.one_shot(_staging(self._runtime))


def gather(runtime: Runtime, operation: str, text: str, x: Array, counts: Sequence[int]) -> Array:
    """**Collective.** All ranks' x, one below the other, on CPUs, as the first step of another call; a new array."""
    rows, row = tuple(counts), x.shape[1:]
    if runtime.backend.dry is not None:
        runtime.agree(operation, text)
        runtime.backend.dry.executed(operation)
        return np.resize(x, (sum(rows), *row))
    numbers = tuple(math.prod(row) * count for count in rows)
    key = "gather", numbers, x.dtype
    with runtime.local_step(operation):
        exchange = runtime.kept.get(key, Exchange) or Exchange(numbers, x.dtype, runtime.rank)
        exchange.lay_out(runtime, operation, x)
    runtime.agree(operation, text)
    if exchange.stage():
        runtime.agree(f"{operation}: staged", {})
    runtime.kept.keep(key, exchange)
    return exchange.collect().reshape(sum(rows), *row)


LEAST_ON_GPUS = 16 << 20
"""Bytes that a kernel reads in the time of an agreement of the hosts, nearly."""
_MOST_ON_GPUS = 1 << 20  # numbers that a kept plan has memory for


class Exchange(Kept):
    """All ranks' arrays on all ranks, for any number of calls: `lay_out`, an agreement, `stage`, `collect`."""

    def __init__(self, counts: tuple[int, ...], dtype: Dtype, rank: int) -> None:
        self._gathering = Gathering(counts, dtype, rank)
        self._later: tuple[Runtime, str, Array] | None = None

    def lay_out(self, runtime: Runtime, name: str, x: Array) -> None:
        """Copy this rank's array to where peers read it; `name` of the call is for messages (local)."""
        staging = _staging(runtime)
        if staging is not None and runtime.nprocs > 1:
            self._later = None
            self._gathering.lay_out(staging, name, x)
        else:
            self._later = runtime, name, x

    def stage(self) -> bool:
        """**Collective.** Lay out the array if there was no staging memory yet; then all ranks must agree once more."""
        if self._later is None or self._later[0].nprocs == 1:
            return False
        (runtime, name, x), self._later = self._later, None
        self._gathering.lay_out(_new_staging(runtime), name, x)
        return True

    def collect(self) -> Array:
        """**Collective.** All ranks' elements, one after the other in a new array of one dimension."""
        if self._later is None:
            return self._gathering.run()
        (_, _, x), self._later = self._later, None
        return x.flatten()


class GpuExchange(Kept):
    """Arrays of one dimension of all ranks, joined or added on each GPU by a kernel on the caller's stream.

    Args:
        backend: the ranks.
        dtype: of the arrays (global).
        counts: the length of each rank's array, if they are joined; the length of all, if they are added (global).
        memory: of the joined arrays, or of the array that is added; None for new memory (local).
    """

    def __init__(
        self, backend: HostRanks, dtype: Dtype, counts: tuple[int, ...] | int, memory: Array | None = None
    ) -> None:
        self._counts, arrays, length = counts, backend.arrays, counts if isinstance(counts, int) else sum(counts)
        if memory is None:
            memory = arrays.array(arrays.empty(length * dtype.itemsize), (length,), dtype)
        self.all: Array = memory
        """The joined arrays, or the sum, after a call (local)."""
        self.own: Array = self.all
        """This rank's array, in which a call begins and which it overwrites if it adds (local)."""
        if not isinstance(counts, int):
            start = sum(counts[: backend.rank])
            self.own = self.all[start : start + counts[backend.rank]]

    @staticmethod
    def serves(nprocs: int, nbytes: int, length: int, *, push: bool) -> bool:
        """Whether ranks whose kernels read `nbytes` in all exchange `length` numbers on GPUs, not on hosts (global)."""
        return push and nprocs > 1 and nbytes >= nprocs * LEAST_ON_GPUS and length <= _MOST_ON_GPUS

    def run(self, runtime: Runtime) -> Array:
        """**Collective.** The joined arrays, or their sum, in the memory of this object."""
        if isinstance(self._counts, int):
            _reduce(runtime, "allreduce", self.all, self.all, Reduction("sum", None, "auto"), None)
        else:
            _gather(runtime, self.own, self.all, self._counts, None)
        return self.all


def _laid_out(staging: Staging, steps: Steps, x: Flat) -> Collective:
    """A collective whose first pieces near ranks can read after a meeting (local)."""
    job = Collective(staging, steps, x)
    job.lay_out(0)
    return job


def _staging(runtime: Runtime, nbytes: int = SLOT_NBYTES) -> Staging | None:
    """The context's memory for pieces of `nbytes` bytes; None if it must be made first (global)."""
    staging: Staging | None = runtime.staging
    usable = staging is not None and staging.nbytes >= nbytes and staging.shared == runtime.backend.shared
    return staging if usable else None


def stage(runtime: Runtime) -> None:
    """Make the context's memory for pieces, as its first exchange of arrays does; for dry runs (local)."""
    if runtime.nprocs > 1 and _staging(runtime) is None:
        _new_staging(runtime)


def _new_staging(runtime: Runtime, nbytes: int = SLOT_NBYTES) -> Staging:
    """**Collective.** Make that memory; fall back to messages if shared memory does not suffice."""
    staging = None
    with runtime.building("staging memory"):
        try:
            staging = Staging(runtime.backend, nbytes)
        except errors.WorkspaceError as caught:
            if not (caught.shared and runtime.give_up_shared_memory()):
                raise
        if staging is None:  # not in the handler, whose exception keeps the memory of the first attempt
            staging = Staging(runtime.backend, nbytes)
    runtime.staging = staging
    runtime.matrices.add(staging)
    return staging


def _hidden(staging: Staging, table: int, x: Flat | None) -> int:
    """Publish the address of an array; 1 if ranks of the node cannot read it in place (local)."""
    return int(bool(staging.near) and (x is None or not staging.publish(table, x)))


def refuse_stream(operation: str, stream: object) -> None:
    """Raise ArgumentError if a stream is given: contexts on CPUs have none (local)."""
    if stream is not None:
        raise errors.ArgumentError(f"{operation}: stream is for contexts on GPUs; leave it out")


def _reduce(runtime: Runtime, operation: str, x: object, out: object, options: Reduction, stream: object) -> Any:
    """**Collective.** An all-reduce or a reduce-scatter."""
    if not runtime.backend.gpus:
        return _reduce_on_hosts(runtime, operation, x, out, options, stream)[0]
    stream, kernels = current_stream(x) if stream is None else stream, _kernels(runtime)
    if kernels is not None and not runtime.debug and kernels.repeat(operation, x, out, options, stream):
        return out
    with _checking(runtime, operation):
        call = ReduceArguments(operation, runtime, x, out, options)
        runtime.backend.arrays.check_stream(operation, stream, waits=call.form.algorithm == "naive")
    if kernels is not None and call.form.algorithm != "naive":
        result = kernels.reduce(call, options, stream)
        call.keep()
        return result
    call.agree()
    call.keep()
    target = call.target(call.place.shape, lambda: runtime.backend.new(call.place.shape, call.dtype))
    host = call.with_arrays(runtime.backend.arrays.download)
    rounds = host.form.rounds(by_messages=True)
    base = 0 if call.shares else rounds.part(runtime.rank)[0]
    outs = [np.empty(call.place.shape, call.dtype)] + ([] if host.residual is None else [host.residual])
    steps = Steps(operation, call.form.op, call.shares, rounds, call.form.unit)
    finish = host.finish(by_columns=False, base=base)
    run_naive(runtime.backend, steps, Flat(host.x), [Flat(out, base) for out in outs], finish)
    targets = [target.array] if call.residual is None else [target.array, call.residual]
    for host_result, place in zip(outs, targets, strict=True):
        runtime.backend.arrays.upload(host_result, place)
    return target.result


def _gather(runtime: Runtime, x: object, out: object, counts: object, stream: object) -> Any:
    """**Collective.** An all-gather."""
    operation = "allgather"
    if not runtime.backend.gpus:
        return _gather_on_hosts(runtime, x, out, counts, stream)
    stream, kernels = current_stream(x) if stream is None else stream, _kernels(runtime)
    may_repeat = kernels is not None and counts is not None and not runtime.debug
    if may_repeat and kernels.repeat(operation, x, out, (counts,), stream):
        return out
    with _checking(runtime, operation):
        call = GatherArguments(runtime, x, out, counts)
        runtime.backend.arrays.check_stream(operation, stream, waits=kernels is None)
    if kernels is not None:
        return kernels.gather(call, (counts,), stream)
    nrows, _ = call.agreed_counts()
    shape = sum(nrows), *call.x.shape[1:]
    target = call.target(shape, lambda: runtime.backend.new(shape, call.dtype))
    rounds, gathered = call.rounds(nrows, by_messages=True), np.empty(shape, call.dtype)
    own = Flat(runtime.backend.arrays.download(call.x), rounds.part(runtime.rank)[0])
    run_naive(runtime.backend, Steps(operation, None, shares=True, rounds=rounds), own, [Flat(gathered)], None)
    runtime.backend.arrays.upload(gathered, target.array)
    return target.result


def _kernels(runtime: Runtime) -> Any:
    """Collectives by GPU kernels, which need no agreement; None where data goes through the hosts (global)."""
    kernels = runtime.backend.collectives()
    if kernels is not None:
        runtime.backend.agreement.nexecutions += 1
    return kernels


def _checking(runtime: Runtime, operation: str) -> LocalStep:
    """A with block for the checks of this rank's arguments; on GPUs, peers may launch kernels meanwhile (local)."""
    return runtime.rejecting(operation) if runtime.backend.push else runtime.local_step(operation)


def _reduce_on_hosts(
    runtime: Runtime,
    operation: str,
    x: object,
    out: object,
    options: Reduction,
    stream: object,
    caller: tuple[str, str] | None = None,
) -> tuple[Any, ReduceArguments]:
    """**Collective.** A reduction of NumPy arrays; `caller` is the call that contains it, and its arguments."""
    called = operation if caller is None else caller[0]
    with runtime.local_step(called):
        refuse_stream(called, stream)
        spec = ReduceArguments(operation, runtime, x, out, options)
        text = spec.text if caller is None else caller[1]
    form = spec.form
    if runtime.backend.dry is not None:
        runtime.agree(called, text)
        stage(runtime)
        runtime.backend.dry.executed(called)
        target = spec.target(spec.place.shape, lambda: np.empty(spec.place.shape, spec.dtype))
        rows = len(spec.place) if spec.place.ndim else None
        target.array[...] = _of_equal_arrays(form.op, spec.x if spec.shares else spec.x[:rows], runtime.nprocs)
        return target.result, spec
    if log.is_on(log.INFO):
        how = "by messages" if form.goes_by_messages else "through shared memory"
        log.write(log.INFO, runtime.rank, "%s of %d bytes: %s, %s", operation, form.nbytes, form.algorithm, how)
    one_shot = form.one_shot(runtime.staging)
    if one_shot is None:
        result, finish = _reduce_in_rounds(runtime, called, text, spec)
    else:
        result, finish = _reduce_in_one_shot(runtime, called, text, spec, one_shot)
    if isinstance(finish, ByFunction):
        runtime.agree(f"{called}: epilogue", {}, finish.error and errors.ArgumentError(f"{called}: {finish.error}"))
    spec.keep()
    return result, spec


def _of_equal_arrays(op: str, x: Array, nprocs: int) -> Array:
    """The reduction of as many arrays, each of them x (local)."""
    return x * nprocs if op == "sum" else x**nprocs if op == "prod" else x


def _reduce_in_one_shot(
    runtime: Runtime, called: str, text: str, spec: ReduceArguments, one_shot: OneShot
) -> tuple[Any, Finish | None]:
    """**Collective.** A small all-reduce on one node, and its epilogue."""
    one_shot.lay_out(spec.x)
    (by_rows,) = runtime.backend.agree(f"{called}{text}", maxima=(int(not spec.by_columns),)).maxima
    order: Literal["C", "F"] = "C" if by_rows else "F"
    target = spec.target(spec.x.shape, lambda: np.empty(spec.x.shape, spec.dtype, order), order)
    if not spec.x.size:
        return target.result, None
    outs, finish = [Flat(target.array)], spec.finish(by_columns=False, base=0)
    if spec.residual is not None:
        outs.append(Flat(spec.residual))
    one_shot.run(outs, finish)
    return target.result, finish


def _reduce_in_rounds(runtime: Runtime, called: str, text: str, spec: ReduceArguments) -> tuple[Any, Finish | None]:
    """**Collective.** A reduction of any size, and its epilogue."""
    form, reversed_ = spec.form, spec.by_columns
    algorithm, by_messages = form.algorithm, form.goes_by_messages
    rounds = form.rounds()
    # With one shot every rank forms all sums, so no rank shares any.
    steps = Steps(called, form.op, spec.shares and algorithm != "one_shot", rounds, form.unit)
    nbytes = max(SLOT_NBYTES, rounds.slot_nelements * spec.x.itemsize)
    staging, job = _staging(runtime, nbytes), None
    hidden, offers = (1, 1), algorithm == "two_shot" and called == spec.name
    if staging is not None and offers:
        hidden = _reduce_hidden(staging, spec, reversed_)
    if staging is not None and hidden[0] and not reversed_ and not by_messages:
        job = _laid_out(staging, steps, Flat(spec.x))
    # A rank whose arrays are stored by columns has laid out nothing: the ranks may have no common order.
    unstaged = 2 if reversed_ else int(job is None)
    agreed = runtime.agree(called, text, None, (int(not reversed_), *hidden, unstaged))
    if agreed[0] and agreed[3] == 2:
        reversed_, agreed = False, (1, 1, 1, 2)
    order: Literal["C", "F"] = "F" if reversed_ else "C"
    shape = spec.place.shape
    target = spec.target(shape, lambda: np.empty(shape, spec.dtype, order), order)
    result = target.array
    if not spec.x.size:
        return target.result, None
    base = 0 if spec.shares else rounds.part(runtime.rank)[0]
    outs = [Flat(result.T if reversed_ else result, base)]
    outs += [] if spec.residual is None else [Flat(spec.residual, base)]
    finish = spec.finish(by_columns=reversed_, base=base)
    flat = Flat(spec.x.T if reversed_ else spec.x)
    if algorithm == "naive":
        run_naive(runtime.backend, steps._replace(rounds=form.rounds(by_messages=True)), flat, outs, finish)
    else:
        if staging is None:
            staging = _new_staging(runtime, nbytes)
            hidden = _reduce_hidden(staging, spec, reversed_) if offers else (1, 1)
            agreed = (0, *runtime.agree(f"{called}: staged", {}, None, (*hidden, 1)))
        if by_messages and agreed[1]:
            steps = steps._replace(rounds=form.rounds(by_messages=True), by_messages=True)
        else:
            steps = _direct(staging, steps, reads_x=not agreed[1], writes_out=not agreed[2] and len(outs) == 1)
        _begun(staging, steps, flat, job, unstaged=bool(agreed[3])).run(outs, finish)
    return target.result, finish


def _reduce_hidden(staging: Staging, spec: ReduceArguments, reversed_: bool) -> tuple[int, int]:
    """Whether ranks of the node cannot read x, and cannot write out, in place (local)."""
    x, out = (None if array is None else Flat(array.T if reversed_ else array) for array in (spec.x, spec.out))
    return _hidden(staging, X_TABLE, x), _hidden(staging, OUT_TABLE, out) if spec.shares else 1


def _direct(staging: Staging, steps: Steps, *, reads_x: bool, writes_out: bool) -> Steps:
    """The steps, changed where ranks of the node read x, or write out, in place (global)."""
    one_node = not staging.far  # also where a node's ranks have given up the memory that they share
    writes_out = writes_out and steps.shares and steps.operation is not None and one_node
    if not (reads_x or writes_out):
        return steps
    rounds = steps.rounds
    if reads_x and one_node and (writes_out or not (steps.shares and steps.operation)):  # nothing goes through slots
        rounds = replace(rounds, width=max(1, rounds.bounds[-1]))
    return steps._replace(reads_x=reads_x, writes_out=writes_out, rounds=rounds)


def _begun(staging: Staging, steps: Steps, x: Flat, laid_out: Collective | None, *, unstaged: bool) -> Collective:
    """**Collective.** The call on this rank, whose first pieces near ranks can read."""
    job = laid_out if laid_out is not None and laid_out.steps is steps else Collective(staging, steps, x)
    if unstaged and not (steps.reads_x or steps.by_messages):
        if laid_out is None:
            job.lay_out(0)
        staging.meet(f"{steps.name}: a meeting of the node")
    return job


def _gather_on_hosts(runtime: Runtime, x: object, out: object, requested_counts: object, stream: object) -> Any:
    """**Collective.** An all-gather of NumPy arrays."""
    operation = "allgather"
    with runtime.local_step(operation):
        refuse_stream(operation, stream)
        spec = GatherArguments(runtime, x, out, requested_counts)
    nrows = len(spec.x)
    counts = [nrows] * runtime.nprocs if spec.counts is None else list(spec.counts)  # the most frequent case
    if runtime.backend.dry is not None:
        runtime.agree(operation, spec.arguments(), spec.error_of(counts))
        stage(runtime)
        runtime.backend.dry.executed(operation)
        target = spec.target(
            (sum(counts), *spec.x.shape[1:]), lambda: np.empty((sum(counts), *spec.x.shape[1:]), spec.dtype)
        )
        target.array[...] = np.resize(spec.x, target.array.shape)
        return target.result
    steps, flat = _gathering(operation, spec, counts)
    staging, job, hidden = _staging(runtime), None, 1
    if staging is not None:
        hidden, job = _offered(staging, steps, flat)
    unclear = staging is None or spec.error_of(counts) is not None
    length = 0 if spec.counts else nrows
    maxima = length, -length, 2 if unclear else hidden, int(job is None)
    agreed = runtime.agree(operation, spec.arguments(), None, maxima)
    agreed = agreed[2:] if agreed[0] == -agreed[1] and agreed[2] < 2 else ()
    if not agreed:
        counts = runtime.gathered(nrows)
        steps, flat = _gathering(operation, spec, counts)
        if staging is None:
            staging = _new_staging(runtime)
            hidden, job = _offered(staging, steps, flat)
        agreed = runtime.agree(f"{operation}: lengths", {}, spec.error_of(counts), (hidden, int(job is None)))
    assert staging is not None, "made above if there was none"
    shape = sum(counts), *spec.x.shape[1:]
    target = spec.target(shape, lambda: np.empty(shape, spec.dtype))
    result = target.array
    if result.size:
        if agreed[0] and goes_by_messages(result.nbytes // runtime.nprocs, shared=runtime.backend.shared):
            steps = steps._replace(rounds=spec.rounds(counts, by_messages=True), by_messages=True)
        else:
            steps = _direct(staging, steps, reads_x=not agreed[0], writes_out=False)
        _begun(staging, steps, flat, job, unstaged=bool(agreed[1])).run([Flat(result)], None)
    return target.result


def _gathering(operation: str, spec: GatherArguments, counts: list[int]) -> tuple[Steps, Flat]:
    """The steps of an all-gather of `counts` rows, and this rank's elements, numbered as in the result."""
    rounds = spec.rounds(counts)
    return Steps(operation, None, True, rounds), Flat(spec.x, rounds.part(spec.runtime.rank)[0])


def _offered(staging: Staging, steps: Steps, x: Flat) -> tuple[int, Collective | None]:
    """Whether ranks of the node do not read x in place, and the call that has laid out x for them instead (local)."""
    hidden = _hidden(staging, X_TABLE, x)
    return hidden, _laid_out(staging, steps, x) if hidden else None

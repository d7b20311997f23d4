"""`Pool` and `run`: functions on ranks that this process starts."""

from __future__ import annotations

import pickle
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import count
from types import ModuleType, TracebackType
from typing import Any, Self, TypeVar

from pblas import errors
from pblas.launch.channel import Frames, NameOf, packed
from pblas.launch.handles import Functions, Handle, Key, created
from pblas.launch.job import Job, refuse_inside_a_job

R = TypeVar("R")


def _creator(name: str, made: str) -> Callable[..., Handle]:
    """A method of `Pool` for one of `Context` that makes a matrix."""

    def create(self: Pool, *args: Any, **kwargs: Any) -> Handle:
        handle: Handle = self.call(created, name, args, kwargs)
        return handle

    create.__name__, create.__qualname__ = name, f"Pool.{name}"
    create.__doc__ = f"`Context.{name}`, as a handle: {made}"
    return create


class Pool:
    """Ranks on this machine that wait for functions. Use it as a `with` block; the ranks stop at its end.

    A plain script or a notebook makes it: it starts `mpiexec`, the one that MPIEXEC names, that of this Python's
    environment, or that on the path. Each rank makes a `Context`, which stays from call to call. The extra `run` brings
    cloudpickle, which sends functions of scripts and notebooks; without it functions of modules can be sent.

    Matrices stay in the memory of the ranks, and have handles here: `A = pool.random((1000, 1000))` is one, and so is
    `A @ A.T`. See `Handle`. Or a function keeps a matrix as an attribute of the context: `ctx.A = A`. Both stay after
    most errors. They are lost if a function closes or breaks the context; the next call then gets a new one, after a
    break with a PblasWarning. Global variables of functions from scripts and notebooks do not stay from call to call.

    Args:
        ranks: number of processes to start, at least 1.
        **context_options: arguments of `Context` on every rank.

    Raises:
        ArgumentError: invalid arguments.
        BackendError: there is no mpiexec, the ranks do not start, or this process is a rank itself.
        The exception of `Context` on the ranks.

    Example::

        def largest(ctx, A):
            return abs(A.local).max()

        with pblas.Pool(4) as pool:
            A = pool.random((1000, 1000))
            trace = (A @ A.T).trace()
            maxima = pool.run(largest, (A,))  # of every rank
    """

    def __init__(self, ranks: int = 4, **context_options: object) -> None:
        self._job = _job("pblas.Pool", ranks, context_options)
        self._ranks = ranks
        self._lock = threading.Lock()
        self._numbers = count()
        self._freed: deque[Key] = deque()  # handles that are gone, and calls that have failed
        self._finalizer = weakref.finalize(self, self._job.end)

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return self._ranks

    @property
    def closed(self) -> bool:
        """Whether no rank is left: the pool was closed, a rank died or needed too long, or Ctrl-C ended all."""
        return self._job.closed

    def run(
        self,
        function: Callable[..., R],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        timeout: float | None = None,
    ) -> list[R]:
        """Call `function(ctx, *args, **kwargs)` on every rank, and return the results in the order of ranks.

        Functions, arguments and results are pickled; closures, lambdas and functions of scripts and notebooks can be
        sent too. Output of the ranks appears here at once. Calls from several threads run one after the other.

        Args:
            function: its first argument is the rank's `Context`.
            args: further arguments, equal on all ranks. For a handle the ranks get the object that it names, here and
                among the variables of the function.
            kwargs: keyword arguments.
            timeout: seconds in which all ranks have to return; None: no limit.

        Raises:
            ArgumentError: invalid arguments, arguments that cannot be pickled, and on ranks the same for results.
            ContextError: the pool is closed, or a rank has died; or this process is a fork of the pool's.
            PeerTimeout: a rank has not returned in time; the pool is closed.
            KeyboardInterrupt: Ctrl-C has ended all ranks; the pool is closed.
            The function's exception: that of the lowest rank that raised one by itself, with a note of the tracebacks.
                The pool can be used again, unless other ranks do not return within the context's `timeout` after it:
                then no rank is left.
        """
        call = _packed_call("Pool.run", function, args, kwargs, timeout, self._name_of)
        values: list[R] = self._called("Pool.run", call, timeout)
        return values

    def call(self, function: Callable[..., R], *args: object, **kwargs: object) -> R:
        """Call `function(ctx, *args, **kwargs)` on every rank, and return the result of rank 0.

        Matrices, factors and planned operations in the result stay on the ranks, and are handles here.

        Args:
            function: its first argument is the rank's `Context`.
            *args: further arguments, as of `run`.
            **kwargs: keyword arguments.

        Raises:
            As `run`.

        Example::

            C = pool.call(lambda ctx: pblas.pmatmul(A, B, transa="T", alpha=2.0))  # of handles A and B
        """
        return self._kept(_packed_call("Pool.call", function, args, kwargs, None, self._name_of))

    empty = _creator("empty", "an uninitialised matrix.")
    zeros = _creator("zeros", "a matrix of zeros.")
    ones = _creator("ones", "a matrix of ones.")
    full = _creator("full", "a matrix of equal elements.")
    eye = _creator("eye", "ones on a diagonal.")
    random = _creator("random", "a matrix of random numbers.")
    from_function = _creator("from_function", "the values of a function of the indices.")
    replicate = _creator("replicate", "a matrix that every rank has.")
    load = _creator("load", "a matrix from a file. A path counts from the folder where the pool was made.")

    def from_global(self, array: Any, *args: Any, **kwargs: Any) -> Handle:
        """`Context.from_global`, as a handle: the elements of an array of this process, which is sent to rank 0."""
        first, others = (
            _packed_call("Pool.from_global", created, ("from_global", (x, *args), kwargs), None, None, self._name_of)
            for x in (array, array if callable(array) else None)
        )
        return self._kept(first, others)

    @cached_property
    def linalg(self) -> ModuleType:
        """`pblas.linalg`, whose functions take and return handles here."""
        return Functions(self, "pblas.linalg")

    @cached_property
    def blas(self) -> ModuleType:
        """`pblas.blas`, whose functions take and return handles here."""
        return Functions(self, "pblas.blas")

    def _kept(self, frames: Frames, others: Frames | None = None) -> Any:
        """Rank 0's result of a call, with handles of the objects that stay on the ranks."""
        number = next(self._numbers)
        try:
            return self._called("Pool.call", frames, number=number, others=others)[0]
        except BaseException:
            self._freed.append(Key(number, -1))  # some ranks may have a result
            raise

    def _called(
        self,
        opname: str,
        frames: Frames,
        timeout: float | None = None,
        *,
        number: int | None = None,
        others: Frames | None = None,
    ) -> list[Any]:
        """The values of all ranks; a call whose results stay on the ranks has a number."""
        self._job.check_owner(opname)  # before the lock, which a thread of the other process may hold
        with self._lock:
            if self.closed:
                raise errors.ContextError(f"{opname}: the pool is closed; make another pblas.Pool")
            head = pickle.dumps((number, [self._freed.popleft() for _ in range(len(self._freed))]))
            rest = None if others is None else [head, *others]
            return self._job.call(opname, [head, *frames], timeout, others=rest, find=self._handle)

    def _name_of(self, value: object) -> object:
        """The name of a handle in messages; None for other objects (local)."""
        return value.name_in(self) if type(value) is Handle else None

    def _handle(self, name: tuple[Key, type]) -> Handle:
        """The handle of an object that stays on the ranks (local)."""
        return Handle(self, *name, self._freed)

    def close(self) -> None:
        """End the ranks; nothing happens if they have ended."""
        self._job.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._job.end(graceful=kind is None or issubclass(kind, Exception))

    def __repr__(self) -> str:
        return f"<pblas.Pool{' closed' * self.closed}: {self._ranks} rank{'s' * (self._ranks > 1)}>"


def run(
    function: Callable[..., R],
    ranks: int = 4,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    timeout: float | None = None,
    **context_options: object,
) -> list[R]:
    """Start ranks, call `function(ctx, *args, **kwargs)` on each of them, end them, and return their results.

    It is a `Pool` that is used once. `timeout` limits the time of the function. The argument `timeout` of `Context` can
    only be set with `Pool`.

    Args:
        function: its first argument is the rank's `Context`.
        ranks: number of processes to start, at least 1.
        args: further arguments, equal on all ranks.
        kwargs: keyword arguments.
        timeout: seconds in which all ranks have to return; None: no limit.
        **context_options: other arguments of `Context` on every rank.

    Returns:
        The result of each rank, in the order of ranks.

    Raises:
        As `Pool` and `Pool.run`.

    Example::

        def trace(ctx, n):
            A = ctx.random((n, n))
            return (A @ A).trace()

        traces = pblas.run(trace, ranks=4, args=(1000,))
    """
    call = _packed_call("pblas.run", function, args, kwargs, timeout)
    job = _job("pblas.run", ranks, context_options)
    try:
        return job.call("pblas.run", [pickle.dumps((None, ())), *call], timeout)
    finally:
        job.end()


def _job(opname: str, ranks: object, options: dict[str, Any]) -> Job:
    """Start ranks."""
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise errors.ArgumentError(f"{opname}: ranks must be an integer of at least 1, got {ranks!r}")
    refuse_inside_a_job(opname)
    return Job(opname, ranks, options)


def _packed_call(
    opname: str, function: object, args: object, kwargs: object, timeout: object, name_of: NameOf | None = None
) -> Frames:
    """A call as a message."""
    if not callable(function):
        raise errors.ArgumentError(f"{opname}: function must be callable, got {function!r}")
    if not isinstance(args, tuple | list):
        raise errors.ArgumentError(
            f"{opname}: args must be a tuple or a list, got {args!r}; for one argument x, args=(x,)"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise errors.ArgumentError(f"{opname}: kwargs must be a dict, got {kwargs!r}")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0):
        raise errors.ArgumentError(f"{opname}: timeout must be a positive number of seconds or None, got {timeout!r}")
    return packed(opname, (function, tuple(args), dict(kwargs or {})), "the function or an argument of it", name_of)

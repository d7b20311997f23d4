"""Helpers of tests on several ranks: contexts, sets of wrong ranks, and the comparison of outcomes on all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import pytest
from mpi4py import MPI

import pblas
from pblas import Grid, MatrixDescriptor
from pblas.backends import liveness
from pblas.backends.host_ranks import HostRanks
from tests.common.window_engine import PushBackend

Contexts = dict[str, pblas.Context]
COMM = MPI.COMM_WORLD.Dup()
"""Private to the tests: pblas's traffic on its own communicators cannot disturb it."""

SEVERAL_HOSTS = COMM.Split_type(MPI.COMM_TYPE_SHARED).size < COMM.size
"""Whether the ranks run on several hosts, so that not all of them share memory (global)."""
one_host = pytest.mark.skipif(
    SEVERAL_HOSTS, reason="about ranks that share memory, or a file system with a mount of its own"
)
"""Mark for tests whose ranks must all run on one host."""

waits = pytest.mark.ranks(2, 3, once=True, reason="sleeps until a deadline; with 2 ranks or with a third one")
"""Mark for tests that mostly sleep for seconds: a late rank, a rank that waits for it, and a third one are enough."""

waits_long = pytest.mark.ranks(3, reason="sleeps until several deadlines; with all parts that there are")
"""Mark for such tests that take a second for each case, and need two ranks that wait."""

NO_DIFFERENT = "no different with more ranks, and slow"
"""The reason of `few`, and of others."""

few = pytest.mark.ranks(1, 2, 3, reason=NO_DIFFERENT)
"""Mark for tests that do not depend on the grid: any of three ranks, the middle one too, may have the error."""


def open_context(transport: str = "auto", comm: MPI.Intracomm | None = None, **settings: Any) -> pblas.Context:
    """**Collective.** A context. Transport "push": one on CPUs whose ranks write into their peers' memory, as GPUs do.

    Args:
        transport: as for `Context`, or "push" (global).
        comm: as for `Context` (global).
        settings: other arguments of `Context` (global).
    """
    if transport == "push" and SEVERAL_HOSTS:  # ranks that push share the memory of a host
        transport = "auto"
    if transport != "push":
        return pblas.Context(comm, transport=transport, **settings)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pblas.backends.cpu_backend.CpuBackend", PushBackend)
        return pblas.Context(comm, "mpi", transport="shared", **settings)


def culprits() -> list[frozenset[int]]:
    """Sets of ranks that make a mistake: the first, a middle one, the last, all."""
    size = COMM.size
    sets = [frozenset({0}), frozenset({size // 2}), frozenset({size - 1}), frozenset(range(size))]
    return list(dict.fromkeys(sets))


def some_wrong() -> list[frozenset[int]]:
    """The sets of `culprits` without the set of all ranks."""
    return [wrong for wrong in culprits() if len(wrong) < COMM.size]


_WRONG = {"first": {0}, "middle": {COMM.size // 2}, "last": {COMM.size - 1}, "all": set(range(COMM.size))}
_SETS = [pytest.param(frozenset(ranks), id=name) for name, ranks in _WRONG.items()]
each_wrong, each_culprit = (pytest.mark.parametrize("wrong", sets) for sets in (_SETS[:-1], _SETS))
"""Marks for tests of one wrong rank, and of one or all. A case has the same name on every number of ranks: by its name
a whole run chooses the number."""


def first_and_last(name: str) -> pytest.MarkDecorator:
    """As `each_wrong`, for tests of one rank that is late, slow or poor: its number is the argument `name`."""
    return pytest.mark.parametrize(name, [0, COMM.size - 1], ids=["first", "last"])


def outcome_of(call: Callable[[], object]) -> tuple[str, str]:
    """(class, text) of the exception that `call` raises on this rank."""
    try:
        value = call()
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks must see the same
        return type(error).__name__, str(error)
    return "no exception", f"a {type(value).__name__} was returned"


def release(late: int) -> None:
    """Release rank `late` once this rank has its own outcome."""
    if COMM.rank != late:
        COMM.send(None, late)


def wait_for_release() -> None:
    """Sleep on rank `late` until the others release it: on a busy machine they detect the missing rank slowly."""
    for rank in range(COMM.size):
        if rank != COMM.rank:
            while not COMM.iprobe(rank):
                time.sleep(0.01)
            COMM.recv(source=rank)


def wait_as_if_stopped(ctx: pblas.Context) -> None:
    """As `wait_for_release`, in the middle of a call, and without signs of life, as a process that is stopped."""
    liveness.end(ctx.runtime.backend.agreement)
    wait_for_release()


def outcome_with_late_rank(late: int, call: Callable[[], object]) -> tuple[str, str]:
    """**Collective.** As `outcome_of`, but rank `late` makes its call when those of all others have ended."""
    if COMM.rank == late:
        wait_for_release()
    outcome = outcome_of(call)
    release(late)
    return outcome


def raises_on_all_ranks(kind: type[Exception], text: str, call: Callable[[], object]) -> str:
    """**Collective.** Assert that `call` raises `kind` on every rank, with one message that contains `text`."""
    everywhere = COMM.allgather(outcome_of(call))
    assert len(set(everywhere)) == 1, "the ranks saw different outcomes:\n" + "\n".join(map(str, everywhere))
    name, message = everywhere[0]
    assert name == kind.__name__, f"{name}: {message}"
    assert text in message
    return message


def same_on_all_ranks(value: Any) -> Any:
    """**Collective.** Assert that the value is the same on every rank, and return it."""
    everywhere = COMM.allgather(value)
    assert all(other == everywhere[0] for other in everywhere), everywhere
    return everywhere[0]


def printed(capsys: pytest.CaptureFixture[str]) -> str | None:
    """The output of rank 0, which alone prints, and nothing to stderr; None on the others."""
    out, err = capsys.readouterr()
    assert err == ""
    if COMM.rank == 0:
        return out
    assert out == ""
    return None


@contextmanager
def broken_later(**settings: Any) -> Iterator[pblas.Context]:
    """A context on which a test breaks the protocol, so that it cannot be closed as others are."""
    context = open_context(**settings)
    try:
        yield context
    finally:
        context.runtime.mark_broken("a test has broken the protocol")
        context.close()


def collected(matrix: pblas.DistMatrix) -> np.ndarray[Any, Any]:
    """**Collective.** The global array of a matrix, on every rank."""
    result = matrix.to_global(root=None)
    assert result is not None
    return result


def interrupted(*_: object, **__: object) -> None:
    """A function that raises KeyboardInterrupt, as if the user pressed Ctrl-C."""
    raise KeyboardInterrupt


def no_memory(*_: object, **__: object) -> None:
    """A function that raises MemoryError."""
    raise MemoryError("none left")


def check_broken_half_way(call: Callable[[], object], *steps: str) -> str:
    """Assert that a call interrupted in one of these functions breaks its context; what the next call says.

    Its messages or flags are still on their way: the next call would take them for its own and be wrong. With one rank
    only pushed products have any.
    """
    with pytest.MonkeyPatch.context() as patch:
        for step in steps:
            patch.setattr(step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            call()
    with pytest.raises(pblas.ContextError, match="KeyboardInterrupt in the middle of it") as caught:
        call()
    text = str(caught.value)
    del caught  # its traceback holds arrays of the context
    return text


def check_product(ctx: pblas.Context) -> None:
    """**Collective.** Assert that the context still makes matrices, multiplies and collects."""
    a = ctx.from_global(lambda i, j: i - 2.0 * j, MatrixDescriptor.row_wise(7, 5, ctx.nprocs))
    b = ctx.from_global(lambda i, j: i * j + 1.0, MatrixDescriptor.row_wise(5, 3, ctx.nprocs))
    result = pblas.pmatmul(a, b).to_global(root=None)
    i, j, k = np.arange(7.0)[:, None], np.arange(3.0)[None, :], np.arange(5.0)
    assert result is not None
    assert np.array_equal(result, (i - 2.0 * k) @ (k[:, None] * j + 1.0))


def delay_exchanges(patch: pytest.MonkeyPatch, late: int, seconds: float = 0.002) -> None:
    """Let one rank sleep after each agreement, before any exchange of data."""
    agree = HostRanks.agree

    def sleeping(backend: HostRanks, *arguments: Any, **options: Any) -> Any:
        agreed = agree(backend, *arguments, **options)
        time.sleep(seconds if COMM.rank == late else 0.0)
        return agreed

    patch.setattr(HostRanks, "agree", sleeping)


def check_memory(ctx: pblas.Context) -> None:
    """**Collective.** Assert that all ranks have the same blocks of symmetric memory."""
    blocks: Any = ctx.runtime.backend.arena._blocks
    same_on_all_ranks({slot: place[:3] for slot, place in blocks.items()})


def entries(m: int, n: int, dtype: Any) -> np.ndarray[Any, Any]:
    """An m x n matrix of small integers, all different where the dtype has that many; complex parts differ."""
    values = np.arange(m * n, dtype=np.float64).reshape(m, n) % 251 - 100
    if np.dtype(dtype).kind == "c":
        return (values - 1j * (values % 7)).astype(dtype)
    return values.astype(dtype)


class Foreign:
    """An array of a library that NumPy does not know, and that makes arrays from DLPack."""

    def __init__(self, x: np.ndarray[Any, Any]) -> None:
        self.x, self.shape = x, x.shape

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()

    def __array_namespace__(self) -> Any:
        return type("library", (), {"from_dlpack": staticmethod(Foreign)})


def padded(desc: MatrixDescriptor, rank: int, dtype: Any, gap: int = 3) -> tuple[Any, Any]:
    """(part, buffer): a poisoned buffer and in it this rank's part, `gap` elements between its columns (or rows)."""
    rows, columns = desc.local_shape(rank)
    fast, slow = (rows, columns) if desc.order == "F" else (columns, rows)
    buffer = np.full((slow, fast + gap), -99, dtype)
    part = buffer[:, :fast]
    return (part.T if desc.order == "F" else part), buffer


def grids(size: int) -> Iterator[tuple[int, int]]:
    """Shapes of all grids that use `size` ranks."""
    yield from ((p, size // p) for p in range(1, size + 1) if size % p == 0)


@pytest.fixture
def ctx() -> Iterator[pblas.Context]:
    """A context over all ranks with a short timeout, so that a mistake of pblas is not a long wait."""
    with pblas.Context(timeout=20.0) as context:
        yield context


def layouts(m: int, n: int, order: Literal["F", "C"]) -> Iterator[MatrixDescriptor]:
    """Descriptors of every kind over all ranks, and over fewer."""
    size = COMM.size
    yield MatrixDescriptor.row_wise(m, n, size, order=order)
    yield MatrixDescriptor.row_wise(m, n, size, mb=2, rsrc=size - 1, order=order)
    yield MatrixDescriptor.column_wise(m, n, size, order=order)
    yield MatrixDescriptor.column_wise(m, n, size, nb=1, csrc=size // 2, order=order)
    yield MatrixDescriptor.replicated(m, n, size, order=order)
    for p, q in grids(size):
        yield MatrixDescriptor(m, n, 2, 3, Grid(p, q, "R"), p - 1, q // 2, order, imb=1, inb=2)
        yield MatrixDescriptor(m, n, 3, 2, Grid(p, q), -1, 0, order)
    if size > 1:  # the last rank has nothing
        yield MatrixDescriptor.row_wise(m, n, size - 1, mb=1, order=order)
        yield MatrixDescriptor.replicated(m, n, size - 1, order=order)

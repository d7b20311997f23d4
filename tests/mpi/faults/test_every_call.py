"""Injections into every public call: whatever one rank meets, all ranks return, or all raise the same; nothing is lost.

Afterwards the context multiplies, and has the memory that it had before.
"""

from __future__ import annotations

import gc
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

import pblas
from pblas import DistMatrix, MatrixDescriptor, linalg
from pblas.redistribution.transfer import SourceMatrix
from tests.common import public
from tests.common.operations import calls
from tests.common.operations.calls import CALLS, N, Setting
from tests.common.ranks import COMM, check_product, same_on_all_ranks

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.ranks(2, 3, reason="one rank meets something, with others on both sides"),
]
WRONG = COMM.size // 2
"""The rank that meets something."""


class Settings:
    """The setting of all tests, made anew once its context is broken."""

    def __init__(self) -> None:
        self._setting: Setting | None = None

    def __call__(self) -> Setting:
        """**Collective.**"""
        self._setting = self._setting or Setting(timeout=10.0)
        return self._setting

    def close(self) -> None:
        """**Collective.**"""
        if self._setting is not None:
            self._setting.__exit__()
        self._setting = None


@pytest.fixture(scope="module")
def settings() -> Iterator[Settings]:
    made = Settings()
    yield made
    made.close()


class Foreign(Exception):
    """An exception of another library."""


def outcome_of(call: Callable[[], object]) -> tuple[str, str]:
    """(class, text) of the exception that `call` raises on this rank."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the other ranks must see the same
        return type(error).__name__, str(error)
    return "", ""


class Trial:
    """Injections into one call, and what was wrong about their outcomes. A with block, at whose end all is checked.

    Args:
        settings: where the call runs.
        name: of the call.
    """

    def __init__(self, settings: Settings, name: str) -> None:
        self.settings, self.setting, self.call = settings, settings(), CALLS[name]
        self.ctx = self.setting.ctx
        self.failures: list[str] = []
        self.broken = False

    def __enter__(self) -> Self:
        self.before = self.memory()
        return self

    def __exit__(self, *caught: object) -> None:
        """**Collective.** Fail on all ranks if any has seen a failure."""
        if caught[0] is not None:
            return
        if not self.broken and self.grown() and self.grown(collect=True):
            self.failures.append(f"the context holds more than {self.before} blocks of memory, as before")
        if texts := list(dict.fromkeys(text for part in COMM.allgather(self.failures) for text in part)):
            self.ctx.runtime.mark_broken("a call has failed")
            self.settings.close()
            pytest.fail("\n".join(texts[:8]))

    def grown(self, *, collect: bool = False) -> bool:
        """**Collective.** Whether the context of any rank holds more memory than before."""
        if collect:
            gc.collect()
        return any(COMM.allgather(self.memory() > self.before))

    def memory(self) -> int:
        """**Collective.** Blocks of shared memory of the context, after the call, a product, and without kept plans."""
        for what, (kind, text) in (
            ("its right arguments", self.run("nothing")),
            ("the next product", outcome_of(lambda: check_product(self.ctx))),
        ):
            self.failures += [f"{what}: {kind}: {text}"] if kind else []
        self.ctx.runtime.kept.close()
        for _ in range(2):
            outcome_of(lambda: self.ctx.zeros((1, 1)))  # blocks come back in agreements
        arena: Any = self.ctx.runtime.backend.arena
        return len(arena._blocks)

    def run(
        self,
        text: str,
        change: Callable[[dict[str, Any]], None] = lambda _: None,
        inside: AbstractContextManager[object] | None = None,
        *,
        everywhere: bool = False,
        may_break: bool = False,
    ) -> tuple[str, str]:
        """**Collective.** Make the call, on rank `WRONG` with changed arguments and in a with block; its outcome.

        An exception while data are exchanged may break the context; then all ranks raise it at the latest in the next
        call, and the context is made anew.
        """
        if self.broken:
            return "", ""
        arguments = self.call.arguments(self.setting)
        if everywhere or COMM.rank == WRONG:
            change(arguments)
        COMM.Barrier()  # a rank that breaks the context would end the calls before this one on late ranks
        with inside if inside is not None and COMM.rank == WRONG else nullcontext():
            outcome = outcome_of(partial(self.call.run, self.setting, **arguments))
        del arguments
        if may_break and any(COMM.allgather(self.is_broken())):
            outcomes, nexts = COMM.allgather(outcome), COMM.allgather(outcome_of(lambda: check_product(self.ctx)))
            if len({*outcomes} - {("", "")}) > 1 or not all("injected" in said for _, said in nexts):
                self.failures.append(f"{text}: {outcomes}, then {nexts}")
            self.settings.close()
            self.setting = self.settings()
            self.ctx = self.setting.ctx
            self.before = self.memory()
            return outcome
        outcomes = COMM.allgather((*outcome, self.is_broken()))
        self.broken = any(broken for *_, broken in outcomes)
        if len(set(outcomes)) > 1 or self.broken:
            self.failures.append(f"{text}: {outcomes}")
        return outcome

    def is_broken(self) -> bool:
        return self.ctx.runtime.backend.agreement.broken is not None


def test_every_public_name_has_a_call_or_a_reason(settings: Settings) -> None:
    assert list(calls.missing(settings().ctx)) == []


@contextmanager
def numpy_errors() -> Iterator[None]:
    with np.errstate(all="raise"):
        yield


@contextmanager
def warnings_as_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


EXTREME = (np.inf, np.nan, 1e300, -1e300, 1e-300, 0.0)


def extreme(arguments: dict[str, Any]) -> None:
    """Elements whose products, sums, differences, quotients and conversions NumPy warns about."""
    for value in arguments.values():
        local = value.stored("extreme") if isinstance(value, DistMatrix) else value
        if isinstance(local, np.ndarray) and local.dtype.kind in "fc" and local.size:
            with np.errstate(all="ignore"):
                local.flat[...] = np.resize(np.array(EXTREME, local.dtype), local.size)


MOODS = {"NumPy's errors raise": numpy_errors, "warnings are errors": warnings_as_errors}


def replace(name: str, make: Callable[[], Any], arguments: dict[str, Any]) -> None:
    arguments[name] = make()


def convert(name: str, change: Callable[[Any], Any], arguments: dict[str, Any]) -> None:
    arguments[name] = change(arguments[name])


class Hostile:
    """An object whose every method raises, as that of a library with a bug."""

    def _raise(self, *_: object, **__: object) -> Any:
        raise Foreign("injected")

    __array__ = __dlpack__ = __dlpack_device__ = __len__ = __iter__ = __getitem__ = __index__ = __int__ = _raise
    __float__ = __complex__ = __bool__ = __eq__ = __hash__ = __repr__ = __str__ = __format__ = _raise
    __fspath__ = __call__ = __contains__ = __lt__ = __gt__ = __le__ = __ge__ = _raise
    __array_interface__ = __cuda_array_interface__ = shape = dtype = ndim = size = property(_raise)


ODD: dict[str, Callable[[], Any]] = {
    "an object that raises": Hostile,
    "a large integer": lambda: 10**400,
    "half a character": lambda: "\ud800",
    "objects": lambda: np.resize(np.array([None, len], object), (N, N)),
    "NaN": lambda: float("nan"),
    "an empty list": list,
}


def read_only(x: Any) -> Any:
    """The same array in memory that may not be written."""
    x.flags.writeable = False
    return x


ARRAYS: dict[str, Callable[[Any], Any]] = {
    "read-only": read_only,
    "overlapping": lambda x: np.lib.stride_tricks.as_strided(x, x.shape, (0,) * x.ndim),
    "of another dtype": lambda x: x.real.astype("float16"),
    "shorter": lambda x: x[:-1],
    "of objects": lambda x: x.astype(object),
    "masked": lambda x: np.ma.masked_less(x, 1),
    "backward": lambda x: x[::-1],
}
"""What may be unlike about an array of one rank, or of all."""


@pytest.mark.parametrize("name", CALLS)
def test_what_one_rank_or_all_may_meet(settings: Settings, name: str) -> None:
    """Each array is unlike in each way on one rank or on all, and each argument has two of the odd values.

    Others for other arguments, and in other calls.
    """
    with Trial(settings, name) as trial:
        for mood, inside in MOODS.items():
            trial.run(f"{mood}, plain", inside=inside())
            trial.run(f"{mood}, extreme", extreme, inside(), everywhere=True)
        arguments = trial.call.arguments(trial.setting)
        arrays = [x for x, value in arguments.items() if isinstance(value, np.ndarray)]
        given = sorted(trial.call.given & {*arguments})
        del arguments
        first = list(CALLS).index(name)
        for number, (argument, (text, change)) in enumerate(product(arrays, ARRAYS.items()), first):
            trial.run(f"{argument} is {text}", partial(convert, argument, change), everywhere=number % 2 == 0)
        for number, argument in enumerate(given, first):
            for odd, everywhere in ((number, False), (number + 1 + number // len(ODD), number % 2 == 0)):
                text, make = list(ODD.items())[odd % len(ODD)]
                trial.run(f"{argument} is {text}", partial(replace, argument, make), everywhere=everywhere)


ALLOCATIONS = {"empty", "zeros", "copy", "astype", "array", "empty_like", "concatenate", "arange"}
SPARED = ("agreement.py", "local_step.py", "transport.py", "channel.py", "calls.py")
"""Files that exchange the errors of ranks."""
OURS = tuple(str(Path(pblas.__file__).parents[1] / folder) + os.sep for folder in ("pblas", "backends", "layouts"))


class Shortage:
    """A with block in which allocation number `which` by NumPy in the library raises MemoryError (local)."""

    def __init__(self, which: int) -> None:
        self.count, self._which = 0, which

    def __enter__(self) -> None:
        sys.setprofile(self._profile)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _profile(self, frame: Any, event: str, function: Any) -> None:
        file = frame.f_code.co_filename
        if (
            event != "c_call"
            or function.__name__ not in ALLOCATIONS
            or not file.startswith(OURS)
            or file.endswith(SPARED)
        ):
            return
        if function.__module__ == "numpy" or isinstance(function.__self__, np.ndarray):
            self.count += 1
            if self.count == self._which + 1:
                sys.setprofile(None)
                raise MemoryError("injected")


@pytest.mark.parametrize("name", CALLS)
def test_no_memory_for_an_array_of_one_rank(settings: Settings, name: str) -> None:
    """At one of the allocations of a call, at others in other calls. While data are exchanged it breaks the context."""
    with Trial(settings, name) as trial:
        trial.run("nothing", inside=(counted := Shortage(-2)))
        if count := COMM.bcast(counted.count, WRONG):
            which = 5 * list(CALLS).index(name) % count
            trial.run(f"allocation {which} of {count}", inside=Shortage(which), may_break=True)


def test_no_memory_to_stage_an_array(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has been exchanged yet: the context stays usable, and so does the plan."""
    ctx = settings().ctx
    desc = MatrixDescriptor.row_wise(N, N, COMM.size)
    # Memory of the caller, which peers cannot read: it is staged.
    own = ctx.from_local(np.ones(desc.local_shape(ctx.rank), order="F"), desc)
    planned = pblas.plan_matmul(own, own)
    whole = np.full((N, N), float(N))
    calls = partial(pblas.pmatmul, own, own), partial(planned.execute, own, own), partial(pblas.blas.syrk, own)
    for multiply in calls:
        with monkeypatch.context() as patch:
            if ctx.rank == WRONG:
                patch.setattr(SourceMatrix, "stage", lambda _: np.zeros(2**48))
            kind, text = same_on_all_ranks(outcome_of(multiply))
        assert kind == "WorkspaceError", text
        assert f"found on rank {WRONG}" in text
        np.testing.assert_array_equal(np.tril(multiply().to_global(None)), np.tril(whole))


class Wordless(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise Foreign("injected")


SLIPS: dict[str, Callable[[], BaseException]] = {
    "of another library": lambda: Foreign("injected"),
    "without a text": Wordless,
    "StopIteration": StopIteration,
    "of memory": lambda: MemoryError("injected"),
    "of NumPy": lambda: FloatingPointError("injected"),
    "of numbers that are too deep": lambda: RecursionError("injected"),
    "PblasError": lambda: pblas.ArgumentError("injected"),
    "sys.exit": lambda: SystemExit(3),
    "Ctrl-C": lambda: KeyboardInterrupt("injected"),
}
"""What a function of the user raises."""
FUNCTIONS: dict[str, Callable[[Setting, Callable[..., Any]], Any]] = {
    "Context.from_function": lambda s, f: s.ctx.from_function(lambda i, j: f(i + 0.0 * j), (N, N)),
    "Context.from_global": lambda s, f: s.ctx.from_global(lambda i, j: f(i + 0.0 * j), (N, N)),
    "Context.allreduce": lambda s, f: s.ctx.allreduce(np.ones(N), epilogue=f),
    "Context.reduce_scatter": lambda s, f: s.ctx.reduce_scatter(np.ones((N, 2)), epilogue=f),
    "linalg.cg(a)": lambda s, f: linalg.cg(lambda x: f(x * 2.0), s.ctx.ones((N, 1))),
    "linalg.cg(preconditioner)": lambda s, f: linalg.cg(s.ctx.eye(N), s.ctx.ones((N, 1)), preconditioner=f),
    **{
        f"{name}(progress)": lambda s, f, name=name: CALLS[name].run(s, **CALLS[name].arguments(s), progress=f)  # type: ignore[misc]
        for name in CALLS
        if "progress" in inspect.signature(dict(public.every_function()).get(name.partition(":")[0], print)).parameters
    },
}
"""The calls that take a function of the user."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_the_user_raises_on_one_rank(settings: Settings, name: str) -> None:
    """At its first call, and at its second one."""
    setting = settings()
    for slip, make in SLIPS.items():
        for first in (0, 1):
            calls = iter(range(2))

            def function(x: Any, *_: Any) -> Any:
                if COMM.rank == WRONG and next(calls, -1) == first:  # noqa: B023 - called in this pass of the loop
                    raise make()  # noqa: B023
                return x

            outcomes = COMM.allgather(outcome_of(lambda: FUNCTIONS[name](setting, function)))
            if len(set(outcomes)) > 1 or any(COMM.allgather(setting.ctx.runtime.backend.agreement.broken)):
                setting.ctx.runtime.mark_broken("a call has failed")
                settings.close()
                pytest.fail(f"{slip}: {outcomes}")
        check_product(setting.ctx)

"""Slips that leave a context usable: exceptions in functions of the user, and NumPy's errors as exceptions."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import Context, blas, linalg
from tests.common.ranks import COMM, check_product, culprits, few, same_on_all_ranks, some_wrong

pytestmark = [pytest.mark.mpi, few]

N = 6


def interrupt() -> None:
    raise KeyboardInterrupt("by hand")


def exhaust() -> None:
    raise MemoryError("by hand")


def divide() -> None:
    with np.errstate(all="raise"):
        np.ones(1) / np.zeros(1)


SLIPS: dict[str, tuple[Callable[[], object], str]] = {
    "SystemExit": (partial(sys.exit, "by hand"), "SystemExit: by hand"),
    "KeyboardInterrupt": (interrupt, "by hand"),
    "MemoryError": (exhaust, "MemoryError: by hand"),
    "FloatingPointError": (divide, "FloatingPointError: divide by zero"),
}


class Foreign:
    """An array of another library, whose conversion slips."""

    shape, ndim, dtype = (N,), 1, np.dtype(float)

    def __init__(self, slip: Callable[[], object]) -> None:
        self._slip = slip

    def __array__(self, *_: object, **__: object) -> np.ndarray[Any, Any]:
        self._slip()
        return np.ones(N)


def foreign(slip: Callable[[], object]) -> Any:
    """An array of a library that no type knows."""
    return Foreign(slip)


def by_function(slip: Callable[[], object], x: Any) -> Any:
    slip()
    return x


CALLS: dict[str, Callable[[Context, Callable[[], object]], object]] = {
    "from_function": lambda ctx, slip: ctx.from_function(lambda i, j: by_function(slip, i + 0.0 * j), (N, N)),
    "from_global": lambda ctx, slip: ctx.from_global(lambda i, j: by_function(slip, i + 0.0 * j), (N, N)),
    "progress": lambda ctx, slip: linalg.solve(ctx.eye(N), np.ones(N), progress=lambda *_: by_function(slip, None)),
    "operator": lambda ctx, slip: linalg.cg(lambda x: by_function(slip, x), ctx.ones((N, 1))),
    "preconditioner": lambda ctx, slip: linalg.cg(
        ctx.eye(N), ctx.ones((N, 1)), preconditioner=lambda r: by_function(slip, r)
    ),
    "A @ x": lambda ctx, slip: ctx.eye(N) @ foreign(slip),
    "A[0] = x": lambda ctx, slip: ctx.eye(N).__setitem__(0, foreign(slip)),
    "solve": lambda ctx, slip: linalg.solve(ctx.eye(N), foreign(slip)),
}


def outcome_of(call: Callable[[], object]) -> tuple[str, str]:
    """(class, text) of any exception."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the other ranks must see the same
        return type(error).__name__, str(error)
    return "", ""


@pytest.mark.parametrize("kind", SLIPS)
@pytest.mark.parametrize("name", CALLS)
def test_an_exception_in_a_function_of_the_user_is_raised_on_every_rank(ctx: Context, name: str, kind: str) -> None:
    slip, text = SLIPS[kind]
    for wrong in culprits() if name != "progress" else [{0}]:  # only rank 0 reports
        here = slip if COMM.rank in wrong else lambda: None
        outcome = same_on_all_ranks(outcome_of(partial(CALLS[name], ctx, here)))
        assert text in outcome[1]
        assert issubclass(getattr(pblas, outcome[0], int), pblas.PblasError) or outcome[0] == "KeyboardInterrupt"
        assert (outcome[0] == "KeyboardInterrupt") == (kind == "KeyboardInterrupt")
        check_product(ctx)


def test_an_exit_in_an_epilogue_is_an_error(ctx: Context) -> None:
    for wrong in culprits():
        slip = partial(sys.exit, 3) if COMM.rank in wrong else lambda: None
        call = partial(ctx.allreduce, np.ones(N), epilogue=partial(by_function, slip))
        kind, text = same_on_all_ranks(outcome_of(call))
        assert (kind, "SystemExit: 3" in text) == ("ArgumentError", True)
        check_product(ctx)


def extremes(ctx: Context) -> dict[str, Callable[[], object]]:
    """**Collective.** Calls whose results are infinite, NaN, rounded or subnormal."""
    a = ctx.full((N, N), 1e200)
    return {
        "A @ B": lambda: a @ a,
        "A @ x": lambda: a @ np.full(N, 1e200),
        "A * B": lambda: a * a,
        "A / 0": lambda: a / 0,
        "pow": lambda: ctx.zeros((N, N)) ** -1,
        "exp": lambda: pblas.elementwise("exp(x)", x=a),
        "astype": lambda: a.astype("float32"),
        "A[...] = B": lambda: ctx.zeros((N, N), "float32").__setitem__((slice(None), slice(None)), a),
        "full": lambda: ctx.full((N, N), 1e300, "float32"),
        "norm": a.norm,
        "mean": lambda: (a * 1e108).mean(axis=0),
        "max": lambda: ctx.full((N, N), np.nan).max(),
        "vdot": lambda: pblas.vdot(a, a),
        "nrm2": lambda: blas.nrm2(a[:, 0]),
        "gemv": lambda: blas.gemv(a, np.full(N, 1e200)),
        "ger": lambda: blas.ger(a[:, 0], a[0], ctx.zeros((N, N))),
        "trsv": lambda: blas.trsv(a * 0, np.ones(N)),
        "random": lambda: ctx.random((N, N), "float32", distribution="normal"),
        "solve": lambda: linalg.solve(ctx.eye(N) * 1e-320, np.ones(N), check=False),
        "inv": lambda: linalg.inv(ctx.eye(N) * 1e-320, check=False),
        "det": lambda: linalg.det(a),
        "cond": lambda: linalg.cond(ctx.eye(N) * 1e-320, 1),
        "rcond": lambda: linalg.lu_factor(ctx.eye(N) * 1e-320).rcond(),
        "orth": lambda: linalg.orth(ctx.full((20, 1), 1e-310)),
        "lstsq": lambda: linalg.lstsq(ctx.random((20, 3), seed=2), np.full(20, 1e-200)),
        "cg": lambda: linalg.cg(ctx.eye(N), ctx.full((N, 1), 1e200)),
        "allreduce": lambda: ctx.allreduce(np.full(N, 1.7e308)),
        "float16": lambda: ctx.full((N, N), 6e4, "float16") @ ctx.full((N, N), 6e4, "float16"),
        "epilogue": lambda: pblas.pmatmul(a, a, epilogue="exp(x)"),
    }


@pytest.fixture
def errors_are_raised() -> Iterator[None]:
    """NumPy's floating-point errors, and all warnings, are exceptions on the last rank only."""
    before = np.geterr()
    with warnings.catch_warnings():
        if COMM.rank == COMM.size - 1:
            np.seterr(all="raise")
            warnings.simplefilter("error")
        yield
        assert COMM.rank < COMM.size - 1 or set(np.geterr().values()) == {"raise"}
        np.seterr(**before)


def test_infinities_are_results_where_numpy_raises_its_errors(ctx: Context, errors_are_raised: None) -> None:
    for name, call in extremes(ctx).items():
        assert same_on_all_ranks(outcome_of(call)) == ("", ""), name
    check_product(ctx)


def test_a_function_of_the_user_has_the_errors_of_the_user(ctx: Context) -> None:
    for wrong in some_wrong():
        with np.errstate(all="raise" if COMM.rank in wrong else "ignore"):
            kind, text = same_on_all_ranks(outcome_of(lambda: ctx.from_function(lambda i, j: i / (0.0 * j), (N, N))))
        assert (kind, "FloatingPointError" in text) == ("ArgumentError", True)
        check_product(ctx)

"""Checked products on GPUs: matrices in poisoned memory, four executions, and all laws."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import cupy
import numpy as np

import pblas
from pblas.matmul.product_plan import ProductPlan
from pblas.matrices.matrix import DistMatrix
from pblas.plans.algorithm import Algorithm
from tests.common.gauge import THRESHOLD, Array, entries, eps_of, gauge
from tests.common.ranks import COMM
from tests.model import push
from tests.mpi.operations.test_matmul import LAYOUTS, POISON, Case, Operands, part

TURNS = (0, 1, 2, 0)
"""Data of the executions of a plan: one is eager, two are captured, one is a replay that must give the first's bits."""

TF32_EPS = 2.0**-10
_SMALL = 20_000
PIECES = ((1,), (2, 1), (3, 2, 1), (1, 1, 1, 1))

runtime = cupy.cuda.runtime


def note(text: str) -> None:
    """Append a note for the test report."""
    path = os.environ.get("PBLAS_TEST_NOTES")
    if path and COMM.rank == 0:
        with Path(path).open("a") as file:
            file.write(text + "\n")


def sync() -> None:
    """Wait for all work of this rank's GPU."""
    runtime.deviceSynchronize()


class Placed:
    """A matrix on the GPU: the multiplied view, and the memory around it, which can be checked.

    Homes: "w" in the context's symmetric memory, "u" plain CuPy memory, "o" the same, off its alignment on odd ranks.
    """

    def __init__(
        self, ctx: pblas.Context, desc: Any, place: Any, dtype: np.dtype[Any], home: str, padding: int
    ) -> None:
        shape = rows, columns = desc.local_shape(ctx.rank)
        high, wide = (rows, columns) if desc.order == "F" else (columns, rows)
        lld = max(high, 1) + padding
        desc = replace(desc, lld=lld if padding else None)
        offset = ctx.rank % 2 if home == "o" else 0
        self._host = np.full(lld * wide + offset if rows * columns else 0, POISON, dtype)
        if home == "w":
            whole = ctx.empty(desc, dtype)
            self._start: int = ctx.runtime.backend.address(whole.local)
            self._keep: Any = whole
        else:
            self._keep = cupy.cuda.alloc(max(self._host.nbytes, dtype.itemsize))
            self._start = self._keep.ptr
            strides = (dtype.itemsize, lld * dtype.itemsize)
            local = cupy.ndarray(
                shape, dtype, self._keep + offset * dtype.itemsize, strides if desc.order == "F" else strides[::-1]
            )
            whole = ctx.from_local(local, desc)
        i0, i1, j0, j1 = place
        self.view: DistMatrix = whole[i0:i1, j0:j1] if place != (0, desc.m, 0, desc.n) else whole

    def _seen(self, host: Array) -> Array:
        """The view's elements in a host copy of the memory."""
        local = self.view.stored("test")
        if not local.size:
            return np.empty(local.shape, local.dtype)
        place = self.view.runtime.backend.address(local) - self._start
        return np.ndarray(local.shape, local.dtype, host.view(np.uint8).data, place, local.strides)

    def fill(self, x: Array) -> None:
        """The view := the global array x."""
        self._seen(self._host)[...] = part(x, self.view.desc, self.view.runtime.rank)
        sync()
        if self._host.nbytes:
            runtime.memcpy(self._start, self._host.ctypes.data, self._host.nbytes, runtime.memcpyHostToDevice)
        sync()

    def _download(self) -> Array:
        sync()
        host = np.empty_like(self._host)
        if host.nbytes:
            runtime.memcpy(host.ctypes.data, self._start, host.nbytes, runtime.memcpyDeviceToHost)
        return host

    def check_untouched(self) -> None:
        """Assert that nothing has changed, inside the view and outside."""
        assert np.array_equal(self._download().view(np.uint8), self._host.view(np.uint8))

    def check_untouched_outside(self) -> None:
        """Assert that nothing but the view has changed."""
        after, before = self._download(), self._host.copy()
        self._seen(after)[...] = self._seen(before)[...] = 0
        assert np.array_equal(after.view(np.uint8), before.view(np.uint8)), "memory around D was touched"


class ErrorChecker:
    """The scaled residual of D for one set of data."""

    def __init__(self, a: Array, b: Array, c: Array, case: Case) -> None:
        self._a, self._b, self._c, self._case = a, b, c, case
        # By BLAS in 64 bits, with an error below one unit; small products of 64 bits in extended precision.
        is_double = a.dtype.itemsize // (2 if a.dtype.kind == "c" else 1) > 4
        self._wide = is_double and c.size * a.shape[1] < _SMALL
        if not self._wide:
            kind: Any = np.complex128 if a.dtype.kind == "c" else np.float64
            self._exact: Array = np.zeros(c.shape, kind)
            self._sizes: Array = np.zeros(c.shape)
            if case.alpha != 0:
                self._exact += case.alpha * (a.astype(kind) @ b.astype(kind))
                self._sizes += _size(case.alpha) * (_sizes(a) @ _sizes(b))
            if case.beta != 0:
                self._exact += case.beta * c.astype(kind)
                self._sizes += _size(case.beta) * _sizes(c)

    def error(self, result: Array, rows: Array, columns: Array, eps: float) -> float:
        """The error of a part of D, in units of eps times the sum of the terms' absolute values."""
        block, case = np.ix_(rows, columns), self._case
        if self._wide:
            return gauge(result, self._a[rows], self._b[:, columns], self._c[block], alpha=case.alpha, beta=case.beta)
        difference = np.abs(result.astype(self._exact.dtype) - self._exact[block])
        assert not np.isnan(difference).any(), "NaN in the result"
        sizes = self._sizes[block]
        assert (difference[sizes == 0] == 0).all(), "entries without terms must be exactly 0"
        inside = sizes != 0
        return float((difference[inside] / (eps * sizes[inside])).max(initial=0.0))


def _size(z: complex) -> float:
    return abs(complex(z).real) + abs(complex(z).imag)


def _sizes(x: Array) -> Array:
    if x.dtype.kind == "c":
        wide = x.astype(np.complex128)
        return np.abs(wide.real) + np.abs(wide.imag)
    return np.abs(x.astype(np.float64))


class Run(Operands):
    """A case on a context: its matrices, its executions, and the check of every law that holds for all cases.

    The dtype "tf32" is float32, multiplied in TF32.
    """

    placed = Placed

    def __init__(self, ctx: pblas.Context, case: Case) -> None:
        tf32 = case.dtype == "tf32"
        if tf32:
            case = replace(case, dtype="float32", options=(*case.options, ("tf32", True)))
        super().__init__(ctx, case)
        self._eps = TF32_EPS if tf32 else eps_of(self.dtype)
        self._checkers: dict[int, ErrorChecker] = {}

    def load(self, turn: int) -> ErrorChecker:
        """Fill all matrices with the data of a turn."""
        case, seed = self.case, 3 * self.case.seed + 1000 * turn
        a = entries((case.m.n, case.k.n), self.dtype, seed)
        b = entries((case.k.n, case.n.n), self.dtype, seed + 1)
        c = entries((case.m.n, case.n.n), self.dtype, seed + 2)
        self.fill(a, b, c)
        if turn not in self._checkers:
            self._checkers[turn] = ErrorChecker(a, b, c, case)
        return self._checkers[turn]

    def multiply(self, turns: tuple[int, ...] = TURNS, stream: Any = None) -> tuple[ProductPlan, dict[int, bytes]]:
        """Plan, execute with the data of each turn, check; the plan, and D's bits for each set of data."""
        bits: dict[int, bytes] = {}
        arguments = self.arguments
        options = {"out": arguments["out"] if isinstance(arguments["out"], DistMatrix) else None, "stream": stream}
        with pblas.plan_matmul(self.A.view, self.B.view, **arguments) as planned:
            for turn in turns:
                checker = self.load(turn)
                result = planned.execute(self.A.view, self.B.view, arguments["c"], **options)
                local = self.check(result, checker)
                assert bits.setdefault(turn, local.tobytes()) == local.tobytes(), "the same data gave other bits"
            return planned.plan, bits

    def check(self, result: DistMatrix, checker: ErrorChecker) -> Array:
        """Assert every law, and return D's local part."""
        rows, columns = self.check_memory(result)
        local: Array = result.runtime.backend.reading(result.local)
        error = checker.error(local, rows, columns, self._eps)
        assert error <= THRESHOLD, f"{error} in the gauge: {self.case}"
        return local


def algorithms(layout: str, nprocs: int) -> list[Algorithm]:
    """Every algorithm that a plan of a layout can take."""
    return push.algorithms(layout, nprocs, PIECES)


take = push.take
COMMUNICATING = [name for name in LAYOUTS if not name.startswith("Local")]

"""Whatever exception strikes one rank, at whatever step of whatever call: all ranks raise it, at once."""

from __future__ import annotations

import gc
import inspect
import io
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Self

import numpy as np
import pytest

import pblas
from pblas import Context, Grid, MatrixDescriptor, linalg, scalapack, tp
from pblas.backends.local_step import LocalStep
from pblas.scalapack import grids
from tests.common import public
from tests.common.ranks import COMM, check_product, same_on_all_ranks

three = pytest.mark.ranks(3, reason="a wrong rank with ranks before and after it; with three there are")
pytestmark = [pytest.mark.mpi, three]

P, N = COMM.size, 12
TIMEOUT = 30.0
PROMPT = 10.0  # seconds: less than the deadline, and much more than any of these calls takes
ROWS, COLUMNS, WHOLE = (
    make(N, N, P) for make in (MatrixDescriptor.row_wise, MatrixDescriptor.column_wise, MatrixDescriptor.replicated)
)
GRID = MatrixDescriptor(N, N, 3, 3, Grid(1, P))
WRONG = {"auto": [P - 1], "message": [0]}
"""Ranks that fail, one at a time."""


class Foreign(Exception):
    """An exception of another library."""


class Cast:
    """A context, and all that the calls below need."""

    def __init__(self, transport: Literal["auto", "message"], folder: Path) -> None:
        self.ctx = ctx = Context(COMM, timeout=TIMEOUT, transport=transport)
        self.folder, self.transport = folder, transport
        self.rows, self.columns, self.grid = (ctx.random(desc, seed=1) for desc in (ROWS, COLUMNS, GRID))
        self.view, self.turned = self.grid[2:5, 2:5], self.columns.T
        self.large = ctx.eye(400, "float32")  # enough columns to be factored by three ranks
        self.tall = ctx.ones((5 * P, 1))
        self.x, self.y, self.z = self.rows[:, 1], self.columns[2], self.grid[:, 3]
        self.whole = np.arange(N * N, dtype=float).reshape(N, N)
        self.part = np.ones(ROWS.local_shape(ctx.rank), order="F")
        self.own = ctx.from_local(self.part, ROWS)  # in no window
        # Views that a call makes would be struck outside it, on one rank, before the call begins.
        self.top, self.pair = self.grid[:2], self.own[:, :2]
        self.thin, self.few = self.large[:, :8], self.large[:, :4]
        self.planned = pblas.plan_matmul(self.rows, self.rows)
        self.moved = pblas.plan_redistribution(self.rows, COLUMNS)
        self.combined = pblas.plan_elementwise("x * s + y", x=self.rows, y=self.columns, s=1.0)
        self.columns.save(folder / "matrix.npy")
        self.columns.save(folder / "matrix.h5")
        self.columns.save(folder / "matrix.zarr", overwrite=True)
        self.ictxt = scalapack.gridinit(COMM, "R", 1, P, timeout=TIMEOUT, transport=transport)
        self.desc = [1, self.ictxt, N, N, 3, 3, 0, 0, N]
        self.blocks = np.ones((N, N), order="F"), np.ones((N, N), order="F"), np.zeros((N, N), order="F")
        self.tokens, self.weight = np.ones((2, N)), np.ones((2, N))

    def close(self) -> None:
        """**Collective.**"""
        gc.collect()  # the exceptions that struck, and their frames
        scalapack.gridexit(self.ictxt)
        self.ctx.close()

    def context_of(self, name: str) -> Context:
        """The context of a call: routines of ScaLAPACK have their own."""
        found = grids.find(self.ictxt)
        assert found is not None
        return found.context if name.startswith("pd") else self.ctx


def gemm(x: Cast) -> None:
    a, b, c = x.blocks
    scalapack.pdgemm("N", "N", N, N, N, 1.0, a, 1, 1, x.desc, b, 1, 1, x.desc, 0.0, c, 1, 1, x.desc)


def dominant() -> np.ndarray[Any, Any]:
    """This rank's part of a matrix of ones, with N on its diagonal."""
    a = np.ones((N, N), order="F")
    for l in range(scalapack.numroc(N, 3, COMM.rank, 0, P)):
        a[scalapack.indxl2g(l + 1, 3, COMM.rank, 0, P) - 1, l] = N
    return a


def gesv(x: Cast) -> None:
    pivots, b = np.zeros(N, np.intc), x.blocks[2]
    assert scalapack.pdgesv(N, 2, dominant(), 1, 1, x.desc, pivots, b, 1, 1, x.desc) == 0


def summed(cast: Cast, algorithm: Any, size: int = N) -> Any:
    return cast.ctx.allreduce(np.ones(size), algorithm=algorithm)


CALLS: dict[str, Callable[[Cast], object]] = {
    "from_global, of a rank": lambda x: x.ctx.from_global(x.whole, ROWS),
    "from_global, of all": lambda x: x.ctx.from_global(x.whole, GRID, None),
    "from_global, a function": lambda x: x.ctx.from_global(lambda i, j: i + 0.0 * j, COLUMNS),
    "from_local": lambda x: x.ctx.from_local(x.part, ROWS),
    "from_local, copied": lambda x: x.ctx.from_local(x.part, ROWS, copy=True),
    "empty": lambda x: x.ctx.empty(ROWS),
    "zeros": lambda x: x.ctx.zeros(GRID, "float32"),
    "random": lambda x: x.ctx.random(COLUMNS, seed=3),
    "random, normal": lambda x: x.ctx.random((N, N), distribution="normal"),
    "full": lambda x: x.ctx.full((N, N), 2.0),
    "eye": lambda x: x.ctx.eye(N),
    "zeros_like": lambda x: x.ctx.zeros_like(x.grid),
    "from_function": lambda x: x.ctx.from_function(lambda i, j: i + 0.0 * j, (N, N)),
    "from_global, a default layout": lambda x: x.ctx.from_global(x.whole),
    "from_parts": lambda x: x.ctx.from_parts(x.tokens[: x.ctx.rank]),
    "replicate": lambda x: x.ctx.replicate(x.whole),
    "sum": lambda x: x.grid.sum(),
    "norm": lambda x: x.rows.norm(1, axis=0),
    "argmax": lambda x: x.turned.argmax(),
    "diagonal": lambda x: x.grid.diagonal(),
    "vdot": lambda x: pblas.vdot(x.rows, x.columns),
    "A @ v": lambda x: x.rows @ np.ones(N),
    "V @ A": lambda x: np.ones((3, N)) @ x.rows,
    "A[i, j]": lambda x: x.grid[1, 2],
    "A[...] = B": lambda x: x.own.__setitem__((slice(0, 3), slice(0, 3)), x.view),
    "A[...] = array": lambda x: x.own.__setitem__(2, np.ones(N)),
    "plot": lambda x: x.grid.plot(x.folder / "matrix.svg"),
    "A[rows]": lambda x: x.grid[[2, 0], ::2],
    "A[mask]": lambda x: x.grid[x.columns],
    "A[rows] = B": lambda x: x.own.__setitem__([2, 0], x.top),
    "A[rows] = number": lambda x: x.own.__setitem__([2, 0], 1.0),
    "vstack": lambda x: pblas.vstack([x.rows, x.columns]),
    "tril": lambda x: pblas.tril(x.grid),
    "load": lambda x: x.ctx.load(x.folder / "matrix.npy", ROWS),
    "load, a part": lambda x: x.ctx.load(x.folder / "matrix.npy", rows=slice(1, 3)),
    "save, raw": lambda x: x.rows.save(x.folder / "saved.bin"),
    "save": lambda x: x.rows.save(x.folder / "saved.npy"),
    "load, HDF5": lambda x: x.ctx.load(x.folder / "matrix.h5"),
    "load, zarr": lambda x: x.ctx.load(x.folder / "matrix.zarr"),
    "save, zarr": lambda x: x.grid.save(x.folder / "saved.zarr", overwrite=True),
    "save, HDF5": lambda x: x.grid.save(x.folder / "saved.h5", overwrite=True),
    "to_global": lambda x: x.grid.to_global(),
    "to_global, for all": lambda x: x.rows.to_global(None),
    "pmatmul, gathered": lambda x: x.rows @ x.rows,
    "pmatmul, staged": lambda x: x.own @ x.own,
    "pmatmul, reduced": lambda x: pblas.pmatmul(x.columns, x.rows, out=ROWS),
    "pmatmul, reduced for all": lambda x: pblas.pmatmul(x.columns, x.rows, out=WHOLE),
    "pmatmul, on a grid": lambda x: pblas.pmatmul(x.grid, x.grid, epilogue="relu(x)"),
    "pmatmul, reproducible": lambda x: pblas.pmatmul(x.columns, x.rows, reproducible=True),
    "pmatmul, exact": lambda x: pblas.pmatmul(x.grid, x.rows, out=WHOLE, reproducible="exact"),
    "plan_matmul": lambda x: pblas.plan_matmul(x.grid, x.rows),
    "execute": lambda x: x.planned.execute(x.rows, x.rows),
    "redistribute": lambda x: x.rows.redistribute(GRID),
    "plan_redistribution": lambda x: pblas.plan_redistribution(x.grid, ROWS),
    "execute, redistribution": lambda x: x.moved.execute(x.own),
    "trsm": lambda x: pblas.blas.trsm(x.rows, x.columns, diag="U"),
    "trsm, redistributed": lambda x: pblas.blas.trsm(x.grid, x.own, side="R", diag="U"),
    "plan_trsm": lambda x: pblas.blas.plan_trsm(x.grid, x.rows),
    "solve_triangular": lambda x: pblas.linalg.solve_triangular(x.grid, np.ones(N)),
    "elementwise": lambda x: x.rows * 2 + x.rows,
    "elementwise, in place": lambda x: pblas.elementwise("x * 0.5", x=x.rows, out=x.rows),
    "elementwise, redistributed": lambda x: x.rows + x.grid,
    "plan_elementwise": lambda x: pblas.plan_elementwise("x + y", x=x.rows, y=x.columns),
    "execute, elementwise": lambda x: x.combined.execute(x=x.own, y=x.columns, s=2.0),
    "cholesky": lambda x: linalg.cholesky(x.large),
    "lu_factor, solve": lambda x: linalg.lu_factor(x.large).solve(x.few),
    "lu_factor over a grid": lambda x: linalg.lu_factor(x.large, algorithm="grid").solve(x.few),
    "solve, of an array": lambda x: linalg.solve(x.large, np.ones(400, x.large.dtype), assume_a="pos"),
    "inv": lambda x: linalg.inv(x.rows),
    "slogdet": lambda x: linalg.slogdet(x.grid),
    "qr": lambda x: linalg.qr(x.thin, algorithm="blocked"),
    "qr_factor over a grid": lambda x: linalg.qr_factor(x.large, algorithm="grid").apply_q(x.few),
    "qr_factor, apply_q": lambda x: linalg.qr_factor(x.tall).apply_q(x.tall),
    "orth": lambda x: linalg.orth(x.tall),
    "lstsq": lambda x: linalg.lstsq(x.tall, np.ones(5 * P)),
    "plan_qr": lambda x: linalg.plan_qr(x.tall),
    "plan_lu": lambda x: linalg.plan_lu(x.large),
    "cg": lambda x: linalg.cg(x.ctx.eye(N), x.pair, preconditioner=lambda r: r * 2),
    "allreduce, one_shot": lambda x: summed(x, "one_shot"),
    "allreduce, two_shot": lambda x: summed(x, "two_shot", 3000),
    "allreduce, naive": lambda x: summed(x, "naive"),
    "allreduce, a function": lambda x: x.ctx.allreduce(np.ones(N), epilogue=lambda z: z + 1),
    "reduce_scatter": lambda x: x.ctx.reduce_scatter(x.whole),
    "allgather": lambda x: x.ctx.allgather(x.whole),
    "allgather, counts": lambda x: x.ctx.allgather(x.whole, counts=[N] * P),
    "allgather_linear": lambda x: tp.allgather_linear(x.tokens, x.weight, ctx=x.ctx),
    "linear_reduce_scatter": lambda x: tp.linear_reduce_scatter(np.ones((P, N)), x.weight, ctx=x.ctx),
    "linear_allreduce": lambda x: tp.linear_allreduce(x.tokens, x.weight, epilogue="gelu", ctx=x.ctx),
    "replicated_linear": lambda x: tp.replicated_linear(np.ones((2, N)), x.weight, ctx=x.ctx),
    "linear_allreduce_backward": lambda x: tp.linear_allreduce_backward(np.ones((2, 2)), x.tokens, x.weight, ctx=x.ctx),
    "Linear": lambda x: tp.Linear(x.weight, "allgather", max_tokens=2 * P, ctx=x.ctx),
    "pdgemm": gemm,
    "syrk": lambda x: pblas.blas.syrk(x.grid, x.rows, out=x.rows),
    "herk": lambda x: pblas.blas.herk(x.rows),
    "syr2k": lambda x: pblas.blas.syr2k(x.rows, x.columns),
    "her2k": lambda x: pblas.blas.her2k(x.grid, x.rows),
    "symm": lambda x: pblas.blas.symm(x.grid, x.rows),
    "hemm": lambda x: pblas.blas.hemm(x.grid, x.rows, side="R"),
    "trmm": lambda x: pblas.blas.trmm(x.grid, x.own),
    "pdgeadd": lambda x: scalapack.pdgeadd("T", N, N, 1.0, x.blocks[0], 1, 1, x.desc, 0.0, x.blocks[2], 1, 1, x.desc),
    "pdtrsm": lambda x: scalapack.pdtrsm(
        *("L", "U", "N", "U", N, N, 1.0, x.blocks[0], 1, 1, x.desc, x.blocks[2], 1, 1, x.desc)
    ),
    "pdgesv": gesv,
    "pdgels": lambda x: scalapack.pdgels("N", N, 2, 1, dominant(), 1, 1, x.desc, x.blocks[2], 1, 1, x.desc),
    "pdormqr": lambda x: scalapack.pdormqr(
        *("L", "T", N, 2, 2, dominant(), 1, 1, x.desc, np.zeros(N), x.blocks[2], 1, 1, x.desc)
    ),
    "pdgeqpf": lambda x: scalapack.pdgeqpf(N, 2, dominant(), 1, 1, x.desc, np.zeros(N, np.intc), np.zeros(N)),
    "pdgebrd": lambda x: scalapack.pdgebrd(N, N, dominant(), 1, 1, x.desc, *np.zeros((4, N))),
    "pdsytrd": lambda x: scalapack.pdsytrd("U", N, dominant(), 1, 1, x.desc, *np.zeros((3, N))),
    "pdormtr": lambda x: scalapack.pdormtr(
        *("L", "U", "T", N, 2, dominant(), 1, 1, x.desc, np.zeros(N), x.blocks[2], 1, 1, x.desc)
    ),
    "pdtrtri": lambda x: scalapack.pdtrtri("L", "N", N, dominant(), 1, 1, x.desc),
    "pdgemr2d": lambda x: scalapack.pdgemr2d(
        N, N, x.blocks[0], 1, 1, x.desc, x.blocks[2], 1, 1, [*x.desc[:4], 2, 5, *x.desc[6:]], x.ictxt
    ),
    "pdelget": lambda x: scalapack.pdelget("A", " ", x.blocks[0], 2, 3, x.desc),
    "pdlaprnt": lambda x: scalapack.pdlaprnt(2, 2, x.blocks[0], 1, 1, x.desc, 0, 0, "A", io.StringIO()),
    "dot": lambda x: pblas.blas.dot(x.x, x.y),
    "amax": lambda x: pblas.blas.amax(x.z),
    "axpy": lambda x: pblas.blas.axpy(2.0, x.x, x.z),
    "swap": lambda x: pblas.blas.swap(x.x, x.z),
    "gemv": lambda x: pblas.blas.gemv(x.grid, x.x, x.y),
    "symv, arrays": lambda x: pblas.blas.symv(x.columns, np.ones(N)),
    "trmv": lambda x: pblas.blas.trmv(x.grid, x.x, diag="U"),
    "trsv": lambda x: pblas.blas.trsv(x.rows, x.x, diag="U"),
    "syr2": lambda x: pblas.blas.syr2(x.x, np.ones(N), x.own),
    "pdgemv": lambda x: scalapack.pdgemv(
        *("N", N, N, 1.0, x.blocks[0], 1, 1, x.desc, x.blocks[1], 1, 1, x.desc, 1, 0.0),
        *(x.blocks[2], 1, 1, x.desc, N),
    ),
    "pdlange": lambda x: scalapack.pdlange("F", N, N, x.blocks[0], 1, 1, x.desc),
    "pdlaset": lambda x: scalapack.pdlaset("U", N, N, 0.0, 1.0, x.blocks[2], 1, 1, x.desc),
    "trace": lambda x: x.planned.trace(x.rows, x.rows, paths=x.folder / "trace.json"),
}
"""Every public collective call of a context, and every plan; with `ALIKE`."""
ALIKE: dict[str, Callable[[Cast], object]] = {
    "ones": lambda x: x.ctx.ones((N, N)),
    "hstack": lambda x: pblas.hstack([x.rows, x.columns]),
    "triu": lambda x: pblas.triu(x.grid),
    "pblas.redistribute": lambda x: pblas.redistribute(x.rows, GRID),
    "copy of a matrix": lambda x: x.grid.copy(),
    "astype": lambda x: x.grid.astype("float32"),
    "max": lambda x: x.grid.max(),
    "min": lambda x: x.grid.min(axis=0),
    "mean": lambda x: x.grid.mean(axis=1),
    "argmin": lambda x: x.grid.argmin(),
    "dotc": lambda x: pblas.blas.dotc(x.x, x.y),
    "dotu": lambda x: pblas.blas.dotu(x.x, x.z),
    "nrm2": lambda x: pblas.blas.nrm2(x.x),
    "asum": lambda x: pblas.blas.asum(x.y),
    "scal": lambda x: pblas.blas.scal(1.5, x.z),
    "copy": lambda x: pblas.blas.copy(x.x, x.y),
    "hemv": lambda x: pblas.blas.hemv(x.grid, x.x),
    "ger": lambda x: pblas.blas.ger(x.x, x.y, x.own),
    "geru": lambda x: pblas.blas.geru(x.x, x.y, x.own),
    "gerc": lambda x: pblas.blas.gerc(x.x, x.y, x.own),
    "syr": lambda x: pblas.blas.syr(x.x, x.own),
    "her": lambda x: pblas.blas.her(x.x, x.own),
    "her2": lambda x: pblas.blas.her2(x.x, x.y, x.own),
    "plan_syrk": lambda x: pblas.blas.plan_syrk(x.rows),
    "plan_herk": lambda x: pblas.blas.plan_herk(x.rows),
    "plan_syr2k": lambda x: pblas.blas.plan_syr2k(x.rows, x.columns),
    "plan_her2k": lambda x: pblas.blas.plan_her2k(x.rows, x.grid),
    "plan_symm": lambda x: pblas.blas.plan_symm(x.grid, x.rows),
    "plan_hemm": lambda x: pblas.blas.plan_hemm(x.grid, x.rows),
    "plan_trmm": lambda x: pblas.blas.plan_trmm(x.grid, x.rows),
    "cho_factor": lambda x: linalg.cho_factor(x.large),
    "plan_cholesky": lambda x: linalg.plan_cholesky(x.large),
    "det": lambda x: linalg.det(x.grid),
    "cond": lambda x: linalg.cond(x.grid, 1),
    "matrix_norm": lambda x: linalg.matrix_norm(x.grid),
    "eigh": lambda x: linalg.eigh(x.grid),
    "eigh, blocked": lambda x: linalg.eigh(x.columns, algorithm="blocked"),
    "eigvalsh": lambda x: linalg.eigvalsh(x.rows),
    "plan_eigh": lambda x: linalg.plan_eigh(x.columns),
    "svd": lambda x: linalg.svd(x.grid),
    "pinv": lambda x: linalg.pinv(x.grid),
    "matrix_rank": lambda x: linalg.matrix_rank(x.columns),
    "polar": lambda x: linalg.polar(x.grid),
    "polar, newton": lambda x: linalg.polar(x.grid, algorithm="newton"),
    "polar, qdwh": lambda x: linalg.polar(x.tall, algorithm="qdwh"),
    "newton_schulz": lambda x: linalg.newton_schulz(x.rows),
    "orthogonalize_many": lambda x: linalg.orthogonalize_many([x.rows, x.grid, x.large]),
    "sqrtm": lambda x: linalg.sqrtm(x.large),
    "invsqrtm": lambda x: linalg.invsqrtm(x.large),
    "inverse_root": lambda x: linalg.inverse_root(x.large, 4),
    "signm": lambda x: linalg.signm(x.grid),
    "expm": lambda x: linalg.expm(x.columns),
    "rsvd": lambda x: linalg.rsvd(x.grid, 2),
    "qr, pivoting": lambda x: linalg.qr(x.tall, pivoting=True),
    "solve, refine": lambda x: linalg.solve(x.grid, x.grid, refine="float32"),
    "svd, blocked": lambda x: linalg.svd(x.columns, algorithm="blocked"),
    "svdvals": lambda x: linalg.svdvals(x.rows),
    "plan_svd": lambda x: linalg.plan_svd(x.columns),
    "plan_rsvd": lambda x: linalg.plan_rsvd(x.columns, 2),
    "plan_pinv": lambda x: linalg.plan_pinv(x.columns),
    "plan_polar": lambda x: linalg.plan_polar(x.columns),
    "where": lambda x: pblas.where(x.grid, x.rows, 0.0),
    "all": lambda x: x.grid.all(),
    "any": lambda x: x.grid.any(axis=1),
    "std": lambda x: x.rows.std(axis=0),
    "var": lambda x: x.grid.var(),
    "matvec": lambda x: x.grid.matvec(np.ones(N)),
    "rmatvec": lambda x: x.rows.rmatvec(np.ones(N)),
}
"""Calls that share their code with one of `CALLS`: one fault strikes them, and on one transport only."""

FAULTS: dict[str, Callable[[], object]] = {
    "OSError": lambda: raised(OSError(5, "injected")),
    "MemoryError": lambda: raised(MemoryError("injected")),
    "SystemExit": lambda: raised(SystemExit("injected")),
    "KeyboardInterrupt": lambda: raised(KeyboardInterrupt("injected")),
    "Foreign": lambda: raised(Foreign("injected")),
    "SIGINT": lambda: os.kill(os.getpid(), signal.SIGINT),
}


def raised(error: BaseException) -> None:
    raise error


def outcome_of(call: Callable[[], object]) -> tuple[str, str]:
    """(class, text) of an exception, also of KeyboardInterrupt."""
    try:
        call()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever it is, the other ranks must see the same
        return type(error).__name__, str(error)
    return "", ""


@contextmanager
def striking(step: int, fault: Callable[[], object], *, here: bool) -> Iterator[list[bool]]:
    """A with block in which a fault strikes at the end of local step number `step` of this rank; yields whether it did.

    Steps of windows are spared: after those the context sends messages.
    """
    original, steps, struck = LocalStep.__exit__, iter(range(step, -1, -1)), [False]

    def leave(self: LocalStep, kind: Any, caught: Any, traceback: Any) -> None:
        if here and caught is None and self._operation != "make a window" and next(steps, -1) == 0:
            struck[0] = True
            try:
                fault()
            except BaseException as error:  # noqa: BLE001 - as if the block had raised it
                kind, caught = type(error), error
        original(self, kind, caught, traceback)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStep, "__exit__", leave)
        yield struck


class Casts:
    """A cast for each transport, made when it is first needed, and made anew once its context is broken."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self._factory = tmp_path_factory
        self._open: dict[str, Cast] = {}

    def __call__(self, transport: Literal["auto", "message"]) -> Cast:
        """**Collective.**"""
        if transport not in self._open:
            folder = COMM.bcast(self._factory.mktemp("injection") if COMM.rank == 0 else None)
            self._open[transport] = Cast(transport, folder)
        return self._open[transport]

    def close(self, transport: str) -> None:
        """**Collective.**"""
        self._open.pop(transport).close()

    def close_all(self) -> None:
        """**Collective.**"""
        for transport in list(self._open):
            self.close(transport)


@pytest.fixture(scope="module")
def casts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Casts]:
    made = Casts(tmp_path_factory)
    yield made
    made.close_all()


EVERY = [*(("auto", name) for name in [*CALLS, *ALIKE]), *(("message", name) for name in list(CALLS)[::2])]
"""Each call through shared memory, and every second one of `CALLS` by messages."""


def test_every_public_call_is_listed() -> None:
    source = inspect.getsource(sys.modules[__name__])
    plans = [
        f"{prefix}{name}"
        for prefix, module in (("", pblas), ("blas.", pblas.blas), ("linalg.", linalg))
        for name in dir(module)
        if name.startswith("plan_")
    ]
    for name in [*public.functions(), *plans]:
        assert re.search(rf"\b(pblas\.|linalg\.){re.escape(name.removeprefix('linalg.'))}\(", source), name
    for name in public.methods():
        assert re.search(rf"\.{name.partition('.')[2]}\(", source), name


@pytest.mark.parametrize(("transport", "name"), EVERY)
def test_an_exception_in_any_local_step_is_raised_on_every_rank_and_the_context_goes_on(
    transport: Literal["auto", "message"], name: str, casts: Casts
) -> None:
    """Step after step, until the call ends before the step. One exception in each step, or two, in turn."""
    call, cast = {**CALLS, **ALIKE}[name], casts(transport)
    first = EVERY.index((transport, name))
    for wrong in WRONG[transport]:
        step = 0
        while True:
            hits = 0
            for which in (0, 3) if transport == "auto" and name in CALLS else (0,):
                fault = list(FAULTS)[(first + step + which) % len(FAULTS)]
                with striking(step, FAULTS[fault], here=COMM.rank == wrong) as struck:
                    kind, text = same_on_all_ranks(outcome_of(lambda: call(cast)))
                hit = COMM.bcast(struck[0], wrong)
                hits += hit
                where = f"{fault} at step {step} of rank {wrong}: {kind}: {text}"
                if not hit:
                    assert (kind, text) == ("", ""), where
                elif fault in ("SIGINT", "KeyboardInterrupt"):
                    assert kind == "KeyboardInterrupt", where
                else:
                    assert issubclass(getattr(pblas, kind, int), pblas.PblasError), where
                    assert "injected" in text, where
            check_product(cast.context_of(name))
            if not hits:
                break
            step += 1


OURS = tuple(str(Path(pblas.__file__).parents[1] / folder) + os.sep for folder in ("pblas", "backends", "layouts"))
SPARED = (
    "agreement.py",  # polls: as often as it takes
    "local_step.py",
    "transport.py",  # MPI's own collective calls have no deadline
    "channel.py",
    "shared_windows.py",
    "calls.py",
)


class Walk:
    """Counts calls of functions of pblas, perhaps of one file, on this rank; raises an exception in one of them."""

    def __init__(self, strike: int = -1, file: str = "") -> None:
        self.count, self._strike, self._file = 0, strike, file
        self.where = ""

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, *_: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(OURS) or code.co_filename.endswith(SPARED) or code.co_name == "__del__":
            return
        if not code.co_filename.endswith(self._file):
            return
        if self.count == self._strike:
            self.where = f"{code.co_filename}:{code.co_firstlineno} {code.co_name}"
            self.count += 1
            raise Foreign("injected")
        self.count += 1


PLACES = 4
"""A call is struck at one of so many places, others at others."""


def count_calls(name: str, cast: Cast, file: str = "") -> int:
    """Calls of functions of pblas, perhaps of one file, on the last rank, in a call that is made a second time."""
    CALLS[name](cast)
    with Walk(file=file) as walk:
        CALLS[name](cast)
    return COMM.bcast(walk.count, P - 1)


def memory_of(ctx: Context) -> object:
    """What ranks that share memory allocate alike."""
    arena: Any = ctx.runtime.backend.arena
    places = {slot: place for slot, (*place, _) in arena._blocks.items()}
    return places, [window.free for window in arena._windows]


def check_strike(name: str, transport: Literal["auto", "message"], casts: Casts, strike: int, file: str = "") -> None:
    """Every rank raises what strikes the last rank; the context is usable, or says on every rank that it is broken."""
    cast, walk = casts(transport), Walk(strike if COMM.rank == P - 1 else -1, file)
    ctx, start = cast.context_of(name), time.monotonic()
    with walk:
        outcome = outcome_of(partial(CALLS[name], cast))
    after = outcome_of(partial(check_product, ctx))
    seconds = time.monotonic() - start
    outcomes = COMM.allgather((outcome, after, seconds, walk.where))
    try:
        check_outcomes(outcomes, ctx)
    except AssertionError:
        casts.close(transport)  # the next test begins with another context
        raise
    if outcomes[0][1] != ("", ""):
        casts.close(transport)


def check_outcomes(outcomes: list[Any], ctx: Context) -> None:
    where = "\n".join(map(str, outcomes))
    broken = [second != ("", "") for _, second, *_ in outcomes]
    assert all(seconds < PROMPT for *_, seconds, _ in outcomes), where
    assert len(set(broken)) == 1, where
    firsts = {first for first, *_ in outcomes if first != ("", "")}
    assert len(firsts) <= 1, where
    # A descriptor that cannot be read, for whatever reason, is an argument that is no descriptor.
    assert all("injected" in text or "DESCA" in text for _, text in firsts), where
    if broken[0]:
        assert all("injected" in second[1] for _, second, *_ in outcomes), where
    else:
        assert len({first for first, *_ in outcomes}) == 1, where
        memories = COMM.allgather(memory_of(ctx))
        assert all(memory == memories[0] for memory in memories), where


# An exception may strike while a generator ends, where Python only reports it, and its frames keep arrays alive.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:.*still in use after the context was closed:pblas.errors.PblasWarning")
@pytest.mark.parametrize("name", CALLS)
def test_an_exception_anywhere_on_one_rank_is_raised_on_every_rank_at_once(name: str, casts: Casts) -> None:
    number = list(CALLS).index(name)
    transport: Literal["auto", "message"] = "message" if number % 2 else "auto"
    count = count_calls(name, casts(transport))
    check_strike(name, transport, casts, (2 * (number // 2 % PLACES) + 1) * count // (2 * PLACES))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:.*still in use after the context was closed:pblas.errors.PblasWarning")
@pytest.mark.parametrize("name", ["zeros", "pmatmul, gathered"])
def test_an_exception_anywhere_in_the_allocator_leaves_the_memory_of_the_ranks_alike(name: str, casts: Casts) -> None:
    for strike in range(count_calls(name, casts("auto"), "allocator.py")):
        check_strike(name, "auto", casts, strike, "allocator.py")
        count_calls(name, casts("auto"))

"""Every public call with its arguments, for injections: those of the catalogue, layers, files, ScaLAPACK's routines.

`missing` compares the table with the public names.
"""

from __future__ import annotations

import inspect
import io
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

import pblas
from pblas import Context, MatrixDescriptor, linalg, scalapack, tp
from pblas.scalapack import grids, routines
from tests.common import public
from tests.common.operations.catalogue import OPERATIONS
from tests.common.operations.operation import Operation, Values, made
from tests.common.ranks import COMM
from tests.conformance import errors

P, N = COMM.size, 6


class Setting:
    """A context in which all calls run: that of a grid of ScaLAPACK. A with block. **Collective.**

    It is the only one of the process, so that errors of calls without a matrix reach all ranks.
    """

    def __init__(self, timeout: float) -> None:
        self.folder = Path(COMM.bcast(tempfile.mkdtemp() if COMM.rank == 0 else None))
        self.ictxt = scalapack.gridinit(COMM, "R", 1, P, timeout=timeout)
        grid = grids.find(self.ictxt)
        assert grid is not None
        self.ctx = grid.context
        for name in ("eye.npy", "eye.h5"):
            self.ctx.eye((N, N)).save(self.folder / name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """**Collective.**"""
        scalapack.gridexit(self.ictxt)
        if COMM.rank == 0:
            shutil.rmtree(self.folder)


@dataclass(frozen=True, slots=True)
class Call:
    """A public call.

    Args:
        arguments: **Collective.** new arguments of the call by name; those of one rank may be its own.
        run: called with the setting and the arguments.
        given: names of arguments that the library is given as they are.
    """

    arguments: Callable[[Setting], dict[str, Any]]
    run: Callable[..., Any]
    given: frozenset[str]


def _of_catalogue(operation: Operation) -> Call:
    def arguments(setting: Setting, values: Values = operation.values) -> dict[str, Any]:
        return made(setting.ctx, values, max(N, operation.least))[0]

    inside = _INSIDE.get(operation.name, {"a"} if operation.name.startswith("DistMatrix.") else set())
    given = frozenset(operation.values) - inside - {"dtype"}
    return Call(arguments, lambda setting, **values: operation.call(setting.ctx, **values), given)


_INSIDE: dict[str, set[str]] = {
    "Context.from_function": {"f"},
    "Context.from_global": {"f", "desc"},
    "Context.from_parts": {"axis", "n"},
    "Context.replicate": {"N"},
    **{f"Context.{name}": {"n", "kind"} for name in ("allreduce", "reduce_scatter", "allgather")},
    **{f"blas.plan_{name}": {"a"} for name in ("syrk", "herk")},  # of a descriptor no other rank takes part
    "DistMatrix.__setitem__": {"a", "b", "i", "j"},
    "DistMatrix.__setitem__: of a row": {"a", "b", "i", "j"},
    "DistMatrix.__setitem__: of lists": {"a", "b", "rows"},
    "DistMatrix.__getitem__: of lists": {"a", "rows", "columns"},
    "DistMatrix.__getitem__: by a mask": {"a", "mask"},  # of an integer no other rank takes part
}
"""Arguments of entries of the catalogue that are no arguments of the call itself."""


def _routine(table: routines.Routine) -> Call:
    """A routine of ScaLAPACK with correct arguments, of its last type."""
    name = table.prefixes[-1] + table.name
    routine = getattr(scalapack, name)

    def arguments(setting: Setting) -> dict[str, Any]:
        right = errors.given(errors.right(table.name, table.prefixes[-1][1:], setting.ictxt))
        values = dict(zip(inspect.signature(routine).parameters, right, strict=False))
        if table.name == "laprnt":
            values |= {"irprnt": 0, "icprnt": 0, "cmatnm": "A", "nout": io.StringIO()}
        if table.name == "elget":
            values |= {"scope": "A", "top": " "}
        if table.name == "lapiv":
            values |= {"direc": "F", "rowcol": "R", "pivroc": "C", "descip": [1, setting.ictxt, 2, 1, 1, 1, 0, -1, 2]}
        return values

    return Call(arguments, lambda _, **values: routine(**values), frozenset(inspect.signature(routine).parameters))


def _with(run: Callable[..., Any], **values: Callable[[Setting], Any]) -> Call:
    """A call whose arguments are made one by one; "self" is the object whose method is called."""
    given = frozenset(values) - {"self"}
    return Call(lambda setting: {name: make(setting) for name, make in values.items()}, run, given)


def _rows(m: int, n: int = N) -> Callable[[Setting], Any]:
    """New local arrays."""
    return lambda _: np.arange(1.0, m * n + 1).reshape(m, n)


def _layer(kind: str) -> dict[str, Call]:
    """The functions of a layer of `pblas.tp`, and the layer as an object."""
    forward: Any = getattr(tp, f"{kind}_linear" if kind in ("allgather", "replicated") else f"linear_{kind}")
    backward: Any = getattr(tp, f"{forward.__name__}_backward")
    tokens = P if kind == "allgather" else 2 * P
    x, weight = _rows(2 if kind == "allgather" else tokens), _rows(4)
    dy = _rows(2 if kind == "reduce_scatter" else 2 * P, 4)
    ctx, bias = (lambda setting: setting.ctx), (lambda _: np.ones(4))
    out = _rows(2 if kind == "reduce_scatter" else 2 * P, 4)

    def layer(setting: Setting) -> tp.Linear:
        return tp.Linear(np.ones((4, N)), kind, max_tokens=2 * P, ctx=setting.ctx)  # type: ignore[arg-type]

    return {
        f"tp.{forward.__name__}": _with(
            lambda _, **values: forward(**values), x=x, weight=weight, bias=bias, out=out, ctx=ctx
        ),
        f"tp.{backward.__name__}": _with(
            lambda _, **values: backward(**values), dy=dy, x=x, weight=weight, dweight=weight, ctx=ctx
        ),
        f"Linear: {kind}": _with(
            lambda _, **values: tp.Linear(kind=kind, max_tokens=2 * P, **values),  # type: ignore[arg-type]
            weight=weight,
            bias=bias,
            ctx=ctx,
        ),
        f"Linear.__call__: {kind}": _with(lambda _, self, **values: self(**values), self=layer, x=x, out=out),
        f"Linear.backward: {kind}": _with(lambda _, self, **values: self.backward(**values), self=layer, dy=dy, x=x),
    }


def _matrix(setting: Setting) -> pblas.DistMatrix:
    return setting.ctx.eye((N, N))


def _planned(plan: Callable[..., Any]) -> Call:
    """The trace of a plan's execution."""
    return _with(
        lambda _, self, paths: plan(self, self).trace(self, self, paths=paths),
        self=_matrix,
        paths=lambda s: s.folder / "trace.json",
    )


_LAYERS = "allgather", "reduce_scatter", "allreduce", "replicated"
_SHARED: dict[str, Callable[[Setting], Any]] = {"x": _rows(2 * P), "out": _rows(2 * P)}
OTHERS: dict[str, Call] = {
    "Context.random": _with(lambda s, **x: s.ctx.random((N, N), **x), seed=lambda _: 3, dtype=lambda _: "float32"),
    "Context.empty": _with(lambda s, **x: s.ctx.empty(**x), desc=lambda _: (N, N), dtype=lambda _: "float32"),
    "Context.zeros: of a dtype": _with(lambda s, **x: s.ctx.zeros(**x), desc=lambda _: (N, N), dtype=lambda _: "f4"),
    "Context.from_local": _with(
        lambda s, **x: s.ctx.from_local(**x),
        array=lambda s: np.ones(MatrixDescriptor.row_wise(N, N, P).local_shape(s.ctx.rank)),
        desc=lambda _: MatrixDescriptor.row_wise(N, N, P, order="C"),
        copy=lambda _: False,
    ),
    "Context.from_global: of an array": _with(
        lambda s, **x: s.ctx.from_global(**x), array=_rows(N), desc=lambda _: None, root=lambda _: 0
    ),
    "Context.from_parts: of an array": _with(lambda s, **x: s.ctx.from_parts(**x), x_local=_rows(3), axis=lambda _: 0),
    "Context.replicate: of an array": _with(lambda s, **x: s.ctx.replicate(**x), array=_rows(N)),
    "Context.load": _with(lambda s, **x: s.ctx.load(**x), path=lambda s: s.folder / "eye.npy", desc=lambda _: None),
    "Context.load: of a part": _with(
        lambda s, **x: s.ctx.load(**x),
        path=lambda s: s.folder / "eye.npy",
        rows=lambda _: slice(1, 3),
        columns=lambda _: slice(0, 2),
    ),
    "Context.load: of HDF5": _with(lambda s, **x: s.ctx.load(**x), path=lambda s: s.folder / "eye.h5"),
    "DistMatrix.save": _with(
        lambda _, self, **x: self.save(overwrite=True, **x), self=_matrix, path=lambda s: s.folder / "saved.npy"
    ),
    "DistMatrix.save: as HDF5": _with(
        lambda _, self, **x: self.save(overwrite=True, **x), self=_matrix, path=lambda s: s.folder / "saved.h5"
    ),
    "Context.allreduce: into out": _with(lambda s, **x: s.ctx.allreduce(**x), **_SHARED),
    "Context.reduce_scatter: into out": _with(lambda s, **x: s.ctx.reduce_scatter(**x), x=_rows(2 * P), out=_rows(2)),
    "Context.allgather: into out": _with(lambda s, **x: s.ctx.allgather(**x), x=_rows(2), out=_rows(2 * P)),
    "DistMatrix.__matmul__: with an array": _with(lambda _, self, x: self @ x, self=_matrix, x=lambda _: np.ones(N)),
    "DistMatrix.__rmatmul__: with an array": _with(lambda _, self, x: x @ self, self=_matrix, x=lambda _: np.ones(N)),
    "DistMatrix.__add__: with an array": _with(lambda _, self, x: self + x, self=_matrix, x=lambda _: np.ones(N)),
    "DistMatrix.__setitem__: of an array": _with(
        lambda _, self, i, x: self.__setitem__(i, x), self=_matrix, i=lambda _: 1, x=lambda _: np.ones(N)
    ),
    "linalg.solve_triangular": _with(lambda _, **x: linalg.solve_triangular(**x), a=_matrix, b=_rows(N)),
    "linalg.solve: with an array": _with(lambda _, **x: linalg.solve(**x), a=_matrix, b=lambda _: np.ones(N)),
    "linalg.lstsq: with an array": _with(lambda _, **x: linalg.lstsq(**x), a=_matrix, b=_rows(N)),
    "linalg.cg: with an array": _with(lambda _, **x: linalg.cg(**x), a=_matrix, b=lambda _: np.ones(N)),
    "PlannedMatmul.trace": _planned(pblas.plan_matmul),
    **{name: call for kind in _LAYERS for name, call in _layer(kind).items()},
}
TABLES = [
    x
    for x in vars(routines).values()
    if isinstance(x, routines.Routine) and x.prefixes[0].startswith("p") and x.name != "elset"
]
CALLS: dict[str, Call] = {
    **{name: _of_catalogue(operation) for name, operation in OPERATIONS.items()},
    **OTHERS,
    **{f"scalapack.{table.prefixes[-1]}{table.name}": _routine(table) for table in TABLES},
}
"""Each public call, by its name and perhaps a comment after a colon."""

EXEMPT: dict[str, str] = {
    "no other rank takes part": r"""
        Context\.describe|DistMatrix\.(conj|linear_operator)|Planned\w+\.(explain|plot|close)
        |init_nvshmem|show_config|tp\.(default_context|local_shard)
        |scalapack\.(descinit|get|gridinfo|indx\w+|infog2l|numroc|pcoord|pinfo|pnum|p.elset)
    """,
    "begins or ends contexts or processes: test_lifetime.py, test_startup.py, test_launch.py, test_dry_run.py": r"""
        run|dry_run|Context\.close|scalapack\.(exit|gridexit|gridinit|gridmap)
    """,
    "messages of mpi4py, which no agreement precedes": r"scalapack\.(barrier|comm|.g(sum|amx|amn|ebs|ebr)2d)",
    "a picture by Matplotlib: tests/mpi/matrices/test_numpy.py": r"DistMatrix\.plot",
    "a with block about other calls: tests/mpi/push/test_trace.py": r"Context\.trace",
    "Planned.trace, as that of PlannedMatmul": r"Planned\w+\.trace",
}
"""Public names that have no call in the table, by the reason: regular expressions."""
_ELSEWHERE = {
    "LuFactor": "linalg.lu_factor: ",
    "CholeskyFactor": "linalg.cho_factor: ",
    "QrFactor": "linalg.qr_factor: ",
    "PlannedMatmul.execute": "plan_matmul",
    "PlannedElementwise.execute": "plan_elementwise",
    "PlannedRedistribution.execute": "plan_redistribution",
    "PlannedCholesky.execute": "linalg.plan_cholesky",
    "PlannedLu.execute": "linalg.plan_lu",
    "PlannedQr.execute": "linalg.plan_qr",
    "PlannedEigh.execute": "linalg.plan_eigh",
    "PlannedSvd.execute": "linalg.plan_svd",
    "PlannedCall.execute": "linalg.plan_pinv",
    "PlannedTrsm.execute": "blas.plan_trsm",
}
"""The entries that call methods of factors and plans."""


def missing(ctx: Context) -> Iterator[str]:
    """**Collective.** The public functions and methods that have neither a call in the table nor a reason."""
    methods = [name for name, _, _ in public.every_method(ctx)]
    listed = {*CALLS, *(name.partition(":")[0] for name in CALLS)}
    listed |= {f"scalapack.{prefix}{table.name}" for table in TABLES for prefix in table.prefixes}
    for name in [*dict(public.every_function()), *methods, *public.operators(), "Linear.__call__"]:
        owner, _, method = name.partition(".")
        entry = _ELSEWHERE.get(name) or (_ELSEWHERE[owner] + method if owner in _ELSEWHERE else name)
        if entry not in listed and not any(re.fullmatch(x, name, re.VERBOSE) for x in EXEMPT.values()):
            yield name

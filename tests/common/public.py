"""The public functions, methods and classes of pblas, found by their names: for laws about all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

import pblas
from pblas import Context, DistMatrix, blas, linalg, scalapack, tp

MODULES: dict[str, ModuleType] = {"": pblas, "blas.": blas, "linalg.": linalg, "tp.": tp, "scalapack.": scalapack}
_WITHOUT_CONTEXT = {"init_nvshmem"}
"""Collective functions that start before any context."""
_VALUES = {"Epilogue", "Event", "Grid", "Handle", "Hardware", "Link", "MatrixDescriptor", "Pool", "Simulation", "Trace"}
"""Classes whose methods are no calls of a context."""
_NOT_COMPUTING = {
    "__len__",
    "__bool__",
    "__array__",
    "__array_function__",
    "__array_ufunc__",
    "__array_namespace__",
    "__dlpack__",
    "__dlpack_device__",
}
"""Special methods of a matrix that raise, or call others."""


def every_function() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public functions, by name: "blas.gemv", "scalapack.pdgemm"."""
    for prefix, module in MODULES.items():
        for name in sorted(getattr(module, "__all__", dir(module))):
            value = getattr(module, name)
            if inspect.isfunction(value) and not name.startswith("_") and value.__module__.startswith("pblas"):
                yield prefix + name, value


def functions() -> dict[str, Callable[..., Any]]:
    """The collective functions of pblas, pblas.blas and pblas.linalg, by name; without those that plan."""
    return {
        name: value
        for name, value in every_function()
        if not name.startswith(("tp.", "scalapack."))
        and is_collective(value)
        and not name.rpartition(".")[2].startswith("plan_")
        and name not in _WITHOUT_CONTEXT
    }


def methods() -> Iterator[str]:
    """The collective methods of Context and DistMatrix, as "Context.zeros"; without operators."""
    for owner in (Context, DistMatrix):
        for name, value in inspect.getmembers(owner, inspect.isfunction):
            if not name.startswith("_") and is_collective(value):
                yield f"{owner.__name__}.{name}"


def operators() -> Iterator[str]:
    """Special methods of DistMatrix that compute, and properties that are collective."""
    for name in dir(DistMatrix):
        value = inspect.getattr_static(DistMatrix, name)
        special = inspect.isfunction(value) and name.startswith("__") and name not in vars(object)
        if (special and name not in _NOT_COMPUTING) or (isinstance(value, property) and is_collective(value)):
            yield f"DistMatrix.{name}"


def classes() -> Iterator[type[Any]]:
    """The public classes with calls of a context: no values, plans, results and errors."""
    named = (getattr(module, name) for module in MODULES.values() for name in dir(module))
    for value in sorted({value for value in named if inspect.isclass(value)}, key=lambda value: value.__name__):
        is_value = issubclass(value, BaseException | pblas.Plan | tuple) or value.__name__ in _VALUES
        if value.__module__.startswith("pblas") and not is_value:
            yield value


def objects(ctx: Context) -> dict[type[Any], Any]:
    """**Collective.** An object of each of the `classes`."""
    a = ctx.eye((6, 6))
    made = (
        *(ctx, a, blas.plan_trsm(a, a), linalg.plan_cholesky(a), linalg.plan_lu(a), linalg.plan_qr(a)),
        *(linalg.plan_eigh(a), linalg.plan_svd(a), linalg.plan_pinv(a)),
        *(linalg.cho_factor(a), linalg.lu_factor(a), linalg.qr_factor(a)),
        *(pblas.plan_elementwise("-x", x=a), pblas.plan_matmul(a, a), pblas.plan_redistribution(a, a.desc)),
        *(linalg.cg(a, a), tp.Linear(np.ones((6, 6)), "allgather", ctx=ctx)),
    )
    return {type(value): value for value in made}


def every_method(ctx: Context) -> Iterator[tuple[str, Any, Callable[..., Any]]]:
    """**Collective.** (name, object, function) of the methods that `dir` shows of objects of the `classes`."""
    made = objects(ctx)
    for kind in classes():
        for name, function in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and name in dir(made[kind]):
                yield f"{kind.__name__}.{name}", made[kind], function


def is_collective(function: Callable[..., Any] | property) -> bool:
    """Whether the docstring says so."""
    return "**Collective" in (inspect.getdoc(function) or "")

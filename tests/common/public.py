"""The public collective functions and methods of pblas, found by their names and docstrings: for laws about all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pblas
from pblas import Context, DistMatrix, blas, linalg

_WITHOUT_CONTEXT = {"init_nvshmem"}
"""Collective functions that start before any context."""


def functions() -> dict[str, Callable[..., Any]]:
    """The collective functions of pblas, pblas.blas and pblas.linalg, by name: "blas.gemv"; without those that plan."""
    found: dict[str, Callable[..., Any]] = {}
    for prefix, module, names in (
        ("", pblas, {*dir(pblas)} - _WITHOUT_CONTEXT),
        ("blas.", blas, dir(blas)),
        ("linalg.", linalg, dir(linalg)),
    ):
        for name in sorted(names):
            value = getattr(module, name)
            if inspect.isfunction(value) and is_collective(value) and not name.startswith(("_", "plan_")):
                found[prefix + name] = value
    return found


def methods() -> Iterator[str]:
    """The collective methods of Context and DistMatrix, as "Context.zeros"; without operators."""
    for owner in (Context, DistMatrix):
        for name, value in inspect.getmembers(owner, inspect.isfunction):
            if not name.startswith("_") and is_collective(value):
                yield f"{owner.__name__}.{name}"


def is_collective(function: Callable[..., Any]) -> bool:
    """Whether the docstring says so."""
    return "**Collective" in (inspect.getdoc(function) or "")

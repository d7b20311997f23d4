"""The catalogue of operations has every public collective call of pblas, or a reason why it has not."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

import pblas
from pblas import blas, linalg
from tests.common import public
from tests.common.operations.catalogue import OPERATIONS

pytestmark = pytest.mark.mpi
ELSEWHERE = {
    "Context.close": "ends the context: tests/mpi/faults/test_lifetime.py",
    "Context.trace": "a with block about other calls: tests/mpi/push/test_trace.py",
    "Context.load": "reads files: tests/mpi/matrices/test_files.py",
    "DistMatrix.save": "writes files: tests/mpi/matrices/test_files.py",
    "DistMatrix.plot": "draws a file: tests/mpi/matrices/test_numpy.py",
    "Context.random": "its elements are no function of NumPy's: tests/mpi/matrices/test_constructors.py",
    "Context.empty": "without elements; the operands of all calls are made by it",
    "Context.from_local": "makes no elements; the operands of all calls are made by it",
    "init_nvshmem": "starts GPUs: tests/gpu",
    "run": "starts processes: tests/unit/backends/test_launch.py",
}
FACTORS = (linalg.LuFactor, linalg.CholeskyFactor, linalg.QrFactor)


def plans() -> Iterator[str]:
    """Functions that plan, which are collective with matrices."""
    for prefix, module in (("", pblas), ("blas.", blas), ("linalg.", linalg)):
        yield from (prefix + name for name in dir(module) if name.startswith("plan_"))


def test_every_public_collective_call_is_in_the_catalogue_or_has_a_reason() -> None:
    calls = {*public.functions(), *public.methods(), *plans(), *public.operators()}
    listed = {operation.function for operation in OPERATIONS.values()}
    assert calls - listed - ELSEWHERE.keys() == set(), "neither in the catalogue nor in ELSEWHERE"
    assert listed - calls == set(), "in the catalogue, and not public"
    assert listed & ELSEWHERE.keys() == set()


@pytest.mark.parametrize("factor", FACTORS)
def test_every_method_of_a_factor_is_in_the_catalogue(factor: type) -> None:
    called = {name.partition(": ")[2] for name in OPERATIONS if "_factor" in name}
    for name, value in inspect.getmembers(factor, inspect.isfunction):
        if not name.startswith("_") and public.is_collective(value):
            inside = "inside another call" in (value.__doc__ or "") or "of a factor that is not used" in (
                value.__doc__ or ""
            )
            assert inside or name in called, f"{factor.__name__}.{name}"


def test_every_argument_of_a_call_is_varied_or_has_a_reason() -> None:
    """Each parameter of a public function is an argument of one of its entries."""
    missing = []
    for name, function in public.functions().items():
        given = {x for entry in OPERATIONS.values() if entry.function == name for x in (*entry.values, *entry.options)}
        given |= {other for entry in OPERATIONS.values() if entry.function == name for other, _ in entry.shares}
        for parameter, value in inspect.signature(function).parameters.items():
            if value.kind is not value.VAR_KEYWORD and parameter not in given | UNVARIED.get(name, set()) | EVERYWHERE:
                missing.append(f"{name}({parameter})")
    assert missing == []


EVERYWHERE = {"progress"}
"""A report for people: it changes nothing in a call."""
UNVARIED: dict[str, set[str]] = {
    "pmatmul": {"amax"},  # an array that is written: tests/mpi/operations/test_dtypes.py
    "hstack": {"matrices"},  # given as a and b
    "vstack": {"matrices"},
    "linalg.orthogonalize_many": {"matrices"},
}

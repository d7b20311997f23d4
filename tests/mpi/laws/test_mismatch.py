"""The law of agreements: an argument that differs on one rank is a MismatchError on all ranks, which names it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import tp
from pblas.runtime.arrays import COMPARED_NBYTES
from tests.common.operations.catalogue import OPERATIONS
from tests.common.operations.operation import Layout, Operand, Operation, Same, made, outcome, wrong_result
from tests.common.ranks import COMM, Contexts, check_product, few

SETTINGS = ("shared",)
pytestmark = [pytest.mark.mpi(min_size=2), few]
WORDS: dict[str, str] = {
    **dict.fromkeys(("lower", "upper"), "uplo"),
    **dict.fromkeys(("diag", "unit_diagonal"), "unit"),
    **dict.fromkeys(("diagonal", "k"), "trapezoid"),
    **dict.fromkeys(("x", "y"), "a b"),
    "a": "A x desc",
    "A": "a",
    "b": "B y value expression",
    "desc": "b",
    "i": "rows",
    "j": "columns",
    "kind": "dtype",
    "n": "array shape",
    "N": "desc",
    "out": "x b result given",
    "out_dtype": "dtype",
    "scale_d": "epilogue",
    "to": "result",
    "trans": "transa",
    "uplo": "part trapezoid",
}
"""Other words for an argument in messages, beside its name."""
OF_MATRICES = {"matrix", "conjugated"}
NOT_COMPARED = {
    ("Context.from_function", "f"): "elements",
    ("Context.from_global", "f"): "elements",
    ("Context.from_parts", "n"): "each rank has a length of its own",
    ("Context.allgather", "n"): "each rank has a length of its own",
    ("pmatmul: of real matrices", "out_dtype"): "the default",
    ("Context.allreduce", "algorithm"): "one of them is what auto chooses",
}


def is_local(operation: Operation, argument: str, value: Any) -> bool:
    """Whether a value differs from the base call's in what each rank decides for itself."""
    if isinstance(value, Layout):
        return replace(value, gap=None) == operation.values.get(argument)
    if isinstance(value, Operand) and argument in operation.values:
        return value.own or value.gap > 0
    return argument == "beta" and value is None


def is_named(operation: Operation, argument: str, said: str) -> bool:
    """Whether a message says which argument differs."""
    found = re.search(r"(.*?) differs between ranks", said)
    if found is None:
        return False
    if argument == "dtype":  # all operands differ, and alpha, which is complex for complex matrices
        return True
    words = set(re.findall(r"\w+", found[1].rpartition(":")[2]))
    others = OF_MATRICES if argument in operation.operands else set()
    return bool(words & {argument, *WORDS.get(argument, "").split(), *others})


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_argument_that_differs_on_one_rank_is_named(contexts: Contexts, name: str) -> None:
    """What is local may differ: the leading dimension, and whose memory it is."""
    ctx, operation, failures = contexts["shared"], OPERATIONS[name], []
    base = operation.values
    for which, (text, values) in enumerate(operation.variations()):
        argument = text.partition("=")[0]
        value = values[argument]
        if isinstance(value, Same) or values == base or (name, argument) in NOT_COMPARED:
            continue
        (right, right_arrays), (other, other_arrays) = made(ctx, base), made(ctx, values)
        given, arrays = (other, other_arrays) if ctx.rank == which % COMM.size else (right, right_arrays)
        kind, said, result = outcome(lambda given=given: operation.call(ctx, **given))  # type: ignore[misc]
        everywhere = COMM.allgather((kind, said))
        if len(set(everywhere)) > 1:
            failures.append(f"{text}: the ranks saw different outcomes: {everywhere}")
        elif is_local(operation, argument, value):
            said = f"{kind} {said}" if kind else wrong_result(operation, result, arrays)
            failures += [f"{text}: {said}"] if said else []
        elif kind != "MismatchError" or not is_named(operation, argument, said):
            failures.append(f"{text}: {kind} {said}")
    check_product(ctx)
    texts = dict.fromkeys(text for failed in COMM.allgather(failures) for text in failed)
    if texts:
        pytest.fail("\n".join(texts))


TAKE_ARRAYS = {
    *("DistMatrix.__add__", "DistMatrix.__matmul__", "DistMatrix.__setitem__", "blas.gemv", "blas.ger", "blas.trsv"),
    *("linalg.solve", "linalg.lstsq", "linalg.cg", "linalg.solve_triangular", "elementwise", "linalg.lu_factor"),
}
"""Some functions of which the test must have found that they take arrays."""


@pytest.mark.parametrize("change", [0, 1])
def test_an_array_in_place_of_a_matrix_that_differs_on_one_rank_is_named(contexts: Contexts, change: int) -> None:
    """Every operand of every call is tried: where a call takes an array, the ranks compare its elements."""
    ctx, failures, taken = contexts["shared"], [], set()
    for which, operation in enumerate(OPERATIONS.values()):
        for name, operand in operation.operands.items():
            for dimensions in (1, 2) if operand.kind in ("column", "row") else (2,):
                given, arrays = made(ctx, operation.values)
                array = arrays[name].ravel() if dimensions == 1 else arrays[name]
                given[name] = array + change * (ctx.rank == which % COMM.size)
                before = ctx.runtime.backend.agreement.ncalls
                kind, said, _ = outcome(partial(operation.call, ctx, **given))
                everywhere = set(COMM.allgather((kind, said)))
                text = f"{operation.name}({name}), {dimensions} dimensions"
                if len(everywhere) > 1:
                    failures.append(f"{text}: the ranks saw different outcomes: {everywhere}")
                elif kind in ("", "MismatchError") and ctx.runtime.backend.agreement.ncalls > before:
                    taken.add(operation.function)
                    if (kind == "MismatchError") != bool(change) or (change and "CRC-32" not in said):
                        failures.append(f"{text}: {kind} {said}")
    check_product(ctx)
    assert not failures, "\n".join(failures)
    assert taken >= TAKE_ARRAYS


def test_arrays_that_are_equal_bit_by_bit_are_equal(contexts: Contexts) -> None:
    """NaN, other strides, and the elements of large arrays that only debug=True compares."""
    ctx = contexts["shared"]
    a, x = ctx.random((9, 9)), np.full(9, np.nan)
    a[0] = np.repeat(x, 2)[::2] if ctx.rank else x
    assert np.isnan(a[0].to_global(None)).all()
    most = COMPARED_NBYTES // 8
    for size, differs in ((most, True), (8 * most, False)):
        y = np.ones(size)
        y[-1] += ctx.rank == 1
        kind, said, _ = outcome(partial(ctx.replicate, y[:, None]))
        assert (kind, "array differs between ranks" in said) == (("MismatchError", True) if differs else ("", False))
    other = np.ones((8 * most, 1)) + (ctx.rank == 1)
    assert outcome(lambda: ctx.replicate(other))[0] == "MismatchError"
    assert outcome(lambda: ctx.replicate(np.asfortranarray(other.reshape(8, -1))))[0] == "MismatchError"
    with pblas.Context(COMM, debug=True) as debugged:
        other[:-1] = 1
        assert outcome(lambda: debugged.replicate(other))[0] == "MismatchError"


WITHOUT_MATRICES: dict[str, Callable[[pblas.Context, Any], object]] = {
    "bias": lambda ctx, x: tp.linear_allreduce(np.ones((3, 6)), np.ones((4, 6)), x[:4], ctx=ctx),
    "bias, with sums for tokens": lambda ctx, x: tp.linear_reduce_scatter(
        np.ones((9, 6)), np.ones((4, 6)), x[:4], ctx=ctx
    ),
    "dy": lambda ctx, x: tp.linear_allreduce_backward(x.reshape(3, 4), np.ones((3, 6)), np.ones((4, 6)), ctx=ctx),
    "the array": lambda ctx, x: ctx.from_global(x.reshape(3, 4), root=None),
    "the array, to replicate": lambda ctx, x: ctx.replicate(x.reshape(3, 4)),
}


@pytest.mark.parametrize("name", WITHOUT_MATRICES)
@pytest.mark.parametrize("change", [0, 1])
def test_an_array_of_a_call_without_matrices_that_differs_on_one_rank_is_named(
    contexts: Contexts, name: str, change: int
) -> None:
    ctx = contexts["shared"]
    x = np.arange(12.0) + change * (ctx.rank == COMM.size - 1)
    kind, said, _ = outcome(lambda: WITHOUT_MATRICES[name](ctx, x))
    assert kind == "MismatchError" * change
    assert not change or name.partition(",")[0] in said
    assert len(set(COMM.allgather(said))) == 1
    check_product(ctx)

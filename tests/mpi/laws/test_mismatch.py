"""The law of agreements: an argument that differs on one rank is a MismatchError on all ranks, which names it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

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
    ("DistMatrix.__setitem__: of a number", "value"): "elements, as those of arrays",
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

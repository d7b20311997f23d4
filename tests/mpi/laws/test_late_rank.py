"""The law of late ranks: a rank that reads later than the others reads what they had when they called.

The others go on at once: they return, overwrite their operands, and make the next call with the same plan.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pblas
from pblas import DistMatrix
from tests.common.operations.catalogue import OPERATIONS
from tests.common.operations.operation import (
    Operand,
    Operation,
    Same,
    Values,
    made,
    outcome,
    result_given,
    wrong_result,
)
from tests.common.ranks import COMM, Contexts, check_memory, delay_exchanges, few, first_and_last

SETTINGS = ("shared",)
pytestmark = [pytest.mark.mpi(min_size=2), few]


def overwrite(matrices: Values, result: Any) -> None:
    """Write NaN to the operands of a call that has returned, but not to its results (local)."""
    results = result if isinstance(result, tuple) else (result,)
    kept = [x.stored("overwrite") for x in (*results, matrices.get("out")) if isinstance(x, DistMatrix)]
    for x in matrices.values():
        if isinstance(x, DistMatrix) and not any(np.may_share_memory(x.stored("overwrite"), y) for y in kept):
            x.stored("overwrite")[...] = np.nan


def run(ctx: pblas.Context, operation: Operation, values: Values) -> str:
    """**Collective.** Two calls with one plan: what is wrong about their results, after both, on this rank."""
    calls, results = [made(ctx, values) for _ in range(2)], []
    for matrices, _ in calls:
        kind, said, result = outcome(lambda matrices=matrices: operation.call(ctx, **matrices))  # type: ignore[misc]
        overwrite(matrices, result)
        results.append((kind, said, result))
    texts = (
        f"{kind} {said}" if kind else wrong_result(operation, result, arrays)
        for (kind, said, result), (_, arrays) in zip(results, calls, strict=True)
    )
    return "; ".join(filter(None, texts))


def layouts(operation: Operation) -> list[Values]:
    """The arguments of the base call, with memory for the result, with operands by columns, and with one twice."""
    given = list(result_given(operation))
    given += [{**operation.values, name: Same(other)} for name, other in operation.shares if other in operation.values]
    for which, operand in operation.operands.items():
        if operand.layout == "rows":
            given.append({**operation.values, which: Operand(operand.kind, layout="columns")})
    return given


@first_and_last("late")
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_late_rank_reads_what_there_was(
    contexts: Contexts, name: str, late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    delay_exchanges(monkeypatch, late)
    ctx, operation = contexts["shared"], OPERATIONS[name]
    failures = [run(ctx, operation, values) for values in layouts(operation)]
    everywhere = dict.fromkeys(text for texts in COMM.allgather(failures) for text in texts if text)
    check_memory(ctx)
    if everywhere:
        pytest.fail("\n".join(everywhere))

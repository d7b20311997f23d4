"""Every remedy that a message prints as code works: the printed text is evaluated, in a call that then succeeds."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import pblas
from pblas import MatrixDescriptor, blas, linalg, tp
from tests.common.ranks import COMM, outcome_of
from tests.common.remedies import REMEDIES, WORDS, Remedy

SETTINGS = ["shared"]
P, N = COMM.size, 6
pytestmark = pytest.mark.mpi


def strict(function: Any, *args: Any, **options: Any) -> Any:
    """A call whose warnings are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return function(*args, **options)


def namespace(ctx: pblas.Context) -> dict[str, Any]:
    """**Collective.** The names that the code uses."""
    desc = MatrixDescriptor.row_wise(N, N, P)
    x = np.arange(1.0, N + 1)
    names = {"np": np, "scipy": scipy, "pblas": pblas, "blas": blas, "linalg": linalg, "tp": tp, "ctx": ctx}
    with pblas.Context() as other:
        closed = other.ones((2, 2))
    return names | {
        "MatrixDescriptor": MatrixDescriptor,
        "N": N,
        "X": x,
        "desc": desc,
        "whole": MatrixDescriptor.replicated(3, 4, P),
        "wide": np.arange(48.0).reshape(6, 8),
        "A": ctx.random(desc, seed=1),
        "S": ctx.eye(desc) * 3.0 + 0.1,
        "narrow": ctx.ones(desc, "float32"),
        "complexes": ctx.random(desc, "complex128", seed=2),
        "hilbert": ctx.from_function(lambda i, j: 1.0 / (i + j + 1), (15, 15)),
        "closed": closed,
        "inside": lambda a: a @ a,
        "strict": strict,
    }


@pytest.mark.parametrize("remedy", REMEDIES, ids=lambda remedy: remedy.printed)
def test_a_remedy_works_as_it_is_printed(ctx: pblas.Context, remedy: Remedy) -> None:
    names = namespace(ctx)
    kind, text = outcome_of(lambda: eval(remedy.wrong, names))
    texts_of_all = COMM.allgather((kind, text))
    assert len(set(texts_of_all)) == 1, texts_of_all
    assert kind != "no exception", text
    assert remedy.printed in text
    code = re.escape(remedy.printed).replace(re.escape("..."), ".+")
    assert re.search(code.rstrip("\\)"), remedy.right) or remedy.printed in WORDS
    exec(remedy.names, names)
    kind, text = outcome_of(lambda: eval(remedy.right, names))
    assert kind == "no exception", text

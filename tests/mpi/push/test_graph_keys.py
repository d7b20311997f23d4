"""Keys of recorded executions: no execution replays the graph of another one, and each finds its own.

On GPUs a graph contains the addresses of its arrays and the numbers of its epilogue. Here a program repeats its first
execution, so that two different executions with one program give wrong results.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import Epilogue, MatrixDescriptor
from pblas.matmul.pushed import _MAX_KNOWN, PushedMatmul
from tests.common.gauge import Array, entries
from tests.common.ranks import COMM, Contexts, collected, few
from tests.common.window_engine import WindowEngine

SETTINGS = ("push",)
P = COMM.size
M, N, K = 2 * P + 1, 3 * P - 1, 2 * P
ROWS, COLUMNS, WHOLE = MatrixDescriptor.row_wise, MatrixDescriptor.column_wise, MatrixDescriptor.replicated
LAYOUTS: dict[str, tuple[Callable[..., MatrixDescriptor], ...]] = {
    "AG": (ROWS, ROWS, ROWS),
    "RS": (COLUMNS, ROWS, ROWS),
    "AR": (COLUMNS, ROWS, WHOLE),
}
pytestmark = [pytest.mark.mpi(min_size=2), few]


class Program:
    """Stands for the graphs of a set of arrays: repeats the first execution on them."""

    body: Callable[[], None] | None = None


class Replayed:
    """Executions of this process, in order, by their programs; each runs what the first with its program ran."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.programs: list[Program] = []
        run = WindowEngine.run

        def replay(engine: Any, program: Program, body: Callable[[], None], stream: Any) -> None:
            program.body = program.body or body
            self.programs.append(program)
            run(engine, None, program.body, stream)

        patch.setattr(WindowEngine, "program", lambda _engine, _recording=None, _places=(): Program())
        patch.setattr(WindowEngine, "run", replay)


def matrices(ctx: pblas.Context, desc: MatrixDescriptor, seed: int) -> list[tuple[pblas.DistMatrix, Array]]:
    """Two matrices, with the arrays that they were made from."""
    arrays = [entries(desc.shape, np.dtype(float), seed + i) for i in range(2)]
    return [(ctx.from_global(z, desc, None), z) for z in arrays]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_executions_that_differ_in_anything_have_programs_of_their_own(
    contexts: Contexts, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = contexts["push"]
    descs = [kind(*shape, P) for kind, shape in zip(LAYOUTS[layout], ((M, K), (K, N), (M, N)), strict=True)]
    lefts, rights, olds, others = (matrices(ctx, descs[min(i, 2)], 10 * i) for i in range(4))
    results = [ctx.empty(descs[2]) for _ in range(2)]
    epilogue, replayed = Epilogue("x * s + f", s=1.0, f=others[0][0]), Replayed(monkeypatch)
    first = lefts[0][0], rights[0][0], olds[0][0]
    with pblas.plan_matmul(*first, beta=2.0, out=results[0], epilogue=epilogue) as mm:
        assert isinstance(mm, PushedMatmul)
        variations = list(itertools.product((0, 1), repeat=6)) * 2
        random.Random(5).shuffle(variations)
        programs: dict[tuple[int, ...], Program] = {}
        for variation in variations:
            (a, x), (b, y), (c, z), (f, w) = (
                two[i] for two, i in zip((lefts, rights, olds, others), variation, strict=False)
            )
            d, s = results[variation[4]], (0.5, -1.0)[variation[5]]
            mm.execute(a, b, c, out=d, operands={"f": f, "s": s})
            result = collected(d)
            assert np.allclose(result, (x @ y + 2 * z) * s + w, rtol=1e-12, atol=1e-12), variation
            assert programs.setdefault(variation, replayed.programs[-1]) is replayed.programs[-1], "it is found again"
        assert len({id(program) for program in programs.values()}) == 2**6 <= _MAX_KNOWN

        (a, x), (b, y) = lefts[0], rights[0]
        for c, z in matrices(ctx, descs[2], 70):  # C is D: not the same execution as with a C in other memory
            mm.execute(a, b, c, out=c)
            result = collected(c)
            assert np.allclose(result, x @ y + 2 * z + others[0][1], rtol=1e-12, atol=1e-12)


def test_new_contents_of_the_same_arrays_are_no_other_execution(
    contexts: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx, replayed = contexts["push"], Replayed(monkeypatch)
    a, b, d = ctx.zeros(COLUMNS(M, K, P)), ctx.zeros(ROWS(K, N, P)), ctx.empty(ROWS(M, N, P))
    with pblas.plan_matmul(a, b, out=d) as mm:
        for number in (1.0, 2.0, 3.0):
            a.local[...], b.local[...], d.local[...] = number, 2 * number, np.nan
            mm.execute(a, b, out=d)
            assert (d.local == 2 * number * number * K).all()
    assert len(set(map(id, replayed.programs))) == 1


def test_least_recently_used_programs_are_evicted(contexts: Contexts, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx, replayed = contexts["push"], Replayed(monkeypatch)
    a, b = ctx.zeros(COLUMNS(M, K, P)), ctx.zeros(ROWS(K, N, P))
    outputs = [ctx.empty(ROWS(M, N, P)) for _ in range(_MAX_KNOWN + 1)]
    with pblas.plan_matmul(a, b, out=outputs[0]) as mm:
        for d in (*outputs[:-1], outputs[0], outputs[-1], outputs[0], outputs[1]):
            mm.execute(a, b, out=d)
    *first, again, _, kept, anew = replayed.programs
    assert again is kept is first[0], "it was used since"
    assert anew is not first[1], "it was the one used longest ago"

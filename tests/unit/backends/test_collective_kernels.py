"""Laws of the kernels of collectives, run on CPUs with ranks as threads: the results equal NumPy's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pblas.backends.cpu.pointwise import evaluate
from pblas.backends.cuda.pointwise import number_term
from pblas.backends.nvshmem.kernels import Kernels as Launches
from pblas.backends.nvshmem.kernels import Reduction, ReductionEpilogue
from pblas.backends.nvshmem.kernels.arguments import Slots, Watch, all_reduce_flags_nbytes
from pblas.backends.nvshmem.kernels.sources import source
from pblas.epilogues import FUNCTIONS, RESULT, Name, parse
from tests.common.gauge import Array, dtype_of
from tests.model.fibers import COMPILER, Kernels

pytestmark = pytest.mark.skipif(COMPILER is None, reason="g++ is not on PATH")

SHARE = 1 << 16
KINDS = ("one_shot", "two_shot", "reduce_scatter", "two_shot_pull")
POISON = -99
EPS = float(np.finfo(np.float64).eps)
BFLOAT16, FLOAT32, FLOAT64 = dtype_of("bfloat16"), np.dtype(np.float32), np.dtype(np.float64)


class Placed:
    """A vector in poisoned memory, some elements after an aligned address."""

    def __init__(self, x: Array, offset: int = 0) -> None:
        self._memory = np.full((x.size + 16) * x.itemsize + 64, 0, np.uint8)
        start = -self._memory.ctypes.data % 64
        self._all = self._memory[start : start + (x.size + 16) * x.itemsize].view(x.dtype)
        self._all[...] = POISON
        self._offset, self.size = offset, x.size
        self.x[...] = x
        self.address: int = self.x.ctypes.data if x.size else 0

    @property
    def x(self) -> Array:
        return self._all[self._offset : self._offset + self.size]

    def read(self) -> Array:
        """The elements; nothing around them has changed."""
        around = self._all.copy()
        around[self._offset : self._offset + self.size] = POISON
        assert (around == POISON).all()
        return self.x


class Rank:
    """Both halves of a rank's flags, slots and readable results, and the word that counts calls."""

    def __init__(self, nranks: int) -> None:
        flags = all_reduce_flags_nbytes(nranks)
        self.pitch = flags + (2 * nranks + 1) * SHARE
        self._memory, self.epoch = np.zeros(2 * self.pitch + 64, np.uint8), np.zeros(1, np.uint32)
        start = -self._memory.ctypes.data % 64
        halves = self._memory[start : start + 2 * self.pitch].reshape(2, self.pitch)
        self.sent, self.rest = halves[:, flags:-SHARE], halves[:, -SHARE:]
        self.sent[...] = 0xFF
        self.flags: int = self._memory.ctypes.data + start
        self.slots = self.flags + flags
        self.left = self.slots + 2 * nranks * SHARE


def together(works: list[Callable[[], None]]) -> None:
    """Run each function in its own thread."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Call:
    """A collective of all ranks: the arguments of each rank's kernel.

    Args:
        ranks: their memory.
        kind: of the kernel.
        x: of each rank.
        outs: of each rank.
        bounds: of the parts.
        in_place: an all-gather reads x in place; a pulling all-reduce stores sums into the peers' outs.
        rest: further arguments of each rank.
    """

    def __init__(
        self,
        ranks: list[Rank],
        kind: str,
        x: list[Placed],
        outs: list[Placed],
        bounds: list[int],
        *,
        in_place: bool = False,
        options: list[dict[str, Any]] | None = None,
    ) -> None:
        self._ranks, self._kind, self._x, self._outs, self._bounds = ranks, kind, x, outs, bounds
        self._in_place, self._options = in_place, options or [{} for _ in ranks]
        self._itemsize = x[0].x.itemsize

    def arguments(self, rank: int) -> dict[str, Any]:
        """Of one rank."""
        ranks, kind, itemsize, me = self._ranks, self._kind, self._itemsize, self._ranks[rank]
        first, stop = self._bounds[:-1], self._bounds[1:]
        if kind == "one_shot":
            first, stop = [0] * len(ranks), [self._bounds[-1]] * len(ranks)
        gathers, shift = kind in {"all_gather", "all_gather_ll"}, (kind == "reduce_scatter") * first[rank]
        partials, results, pitches = [r.slots for r in ranks], [r.left for r in ranks], [me.pitch] * 3
        if kind == "two_shot_pull":
            partials, pitches[0] = [x.address for x in self._x], 0
        if self._in_place:
            results, pitches[2] = [x.address for x in (self._x if gathers else self._outs)], 0
        return {
            "out": self._outs[rank].address - shift * itemsize,
            "source": self._x[rank].address - gathers * first[rank] * itemsize,
            "first": first,
            "stop": stop,
            "rank": rank,
            "partials": partials,
            "slot_nbytes": SHARE,
            "flags": [r.flags for r in ranks],
            "results": [address - gathers * start * itemsize for address, start in zip(results, first, strict=True)],
            "watch": Watch(10**10),
            "epoch": me.epoch.ctypes.data,
            "pitches": tuple(pitches),
            "base": -shift,
            **self._options[rank],
        }


def bounds_of(size: int, nranks: int, unit: int) -> list[int]:
    units = -(-size // unit)
    return [min(size, unit * (units * r // nranks)) for r in range(nranks + 1)]


def made(ending: ReductionEpilogue, dtype: np.dtype[Any]) -> Kernels:
    return Kernels(ending.source(dtype), [f"{kind}_all" for kind in KINDS])


def run(kernels: Kernels, calls: list[Call], names: list[str], ctas: list[int], nranks: int) -> None:
    """Run all calls on all ranks; no rank waits for another one between two calls."""

    def work(rank: int) -> None:
        for call, name, number in zip(calls, names, ctas, strict=True):
            kernels.run(name, number, **call.arguments(rank))

    together([lambda rank=rank: work(rank) for rank in range(nranks)])  # type: ignore[misc]  # it is bound here


@pytest.mark.parametrize("nranks", [1, 3, 4])
def test_successive_sums(nranks: int) -> None:
    """Any size and address, in place or not, empty shards, any NaN; halves alternate without the host."""
    kernels, rng = made(ReductionEpilogue("sum", Name(RESULT)), FLOAT32), np.random.default_rng(nranks)
    ranks, calls, checks = [Rank(nranks) for _ in range(nranks)], [], []
    kinds = [KINDS[i] for i in rng.integers(0, 4, 80)]
    for kind in kinds:
        size, pulls = int(rng.integers(1, rng.choice([20, 3000]))), kind == "two_shot_pull"
        bounds = bounds_of(size, nranks, 16 if pulls else int(rng.integers(1, 16)))
        terms = [rng.integers(-9, 9, size).astype(FLOAT32) for _ in range(nranks)]
        terms[-1].view(np.uint32)[0] = 0xFFFFFFFF  # in a slot these bits mean that nothing has arrived
        x = [Placed(term, 0 if pulls else int(rng.integers(0, 4))) for term in terms]
        lengths = [b - a if kind == "reduce_scatter" else size for a, b in pairwise(bounds)]
        in_place = kind != "reduce_scatter" and bool(rng.integers(0, 2))
        outs = x if in_place else [Placed(np.zeros(n, FLOAT32), int(rng.integers(0, 4))) for n in lengths]
        calls.append(Call(ranks, kind, x, outs, bounds, in_place=pulls and bool(rng.integers(0, 2))))
        checks.append((kind, np.sum(terms, axis=0), outs, bounds))
    names = [f"{kind}_all" for kind in kinds]
    run(kernels, calls, names, rng.integers(1, 9, len(calls)).tolist(), nranks)
    assert {int(rank.epoch[0]) for rank in ranks} == {len(calls) << 16}
    assert all((rank.sent == 0xFF).all() for rank in ranks)
    for kind, total, outs, bounds in checks:
        for rank, out in enumerate(outs):
            region = slice(*bounds[rank : rank + 2]) if kind == "reduce_scatter" else slice(None)
            assert np.array_equal(out.read(), total[region], equal_nan=True)


@pytest.mark.parametrize("kind", ["all_gather", "all_gather_ll"])
def test_successive_gathers(kind: str) -> None:
    """Any shards, also empty, any NaN, in place or not, pulled or by LL packets; the slots are empty in the end."""
    nranks, rng, dtypes = 3, np.random.default_rng(11), (np.dtype(np.float16), FLOAT32, FLOAT64)
    kernels = Kernels(source("all_gather"), [f"{kind}_{size}" for size in (2, 4, 8)])
    ranks, calls, checks = [Rank(nranks) for _ in range(nranks)], [], []
    for number in range(40):
        dtype, counts = dtypes[number % 3], rng.integers(0, rng.choice([3, 2000]), nranks)
        by_packets, in_place = kind == "all_gather_ll", bool(rng.integers(0, 2))
        terms = [rng.integers(-9, 9, count).astype(dtype) for count in counts]
        terms[0].view(np.uint16)[: 2 * dtype.itemsize] = 0xFFFF  # in a slot these bits mean that nothing has arrived
        bounds = [0, *np.cumsum(counts).tolist()]
        outs = [Placed(np.zeros(bounds[-1], dtype), int(rng.integers(0, 4))) for _ in range(nranks)]
        x: list[Any] = [Placed(term, int(rng.integers(0, 4)) * (by_packets or not in_place)) for term in terms]
        if by_packets and in_place:  # each part is in its place
            for out, term, start in zip(outs, terms, bounds, strict=False):
                out.x[start : start + term.size] = term
            places = zip(outs, bounds, strict=False)
            x = [SimpleNamespace(x=out.x, address=out.address + a * dtype.itemsize) for out, a in places]
        calls.append(Call(ranks, kind, x, outs, bounds, in_place=in_place and not by_packets))
        checks.append((np.concatenate(terms), outs))
    names = [f"{kind}_{(2, 4, 8)[number % 3]}" for number in range(40)]
    run(kernels, calls, names, rng.integers(1, 9, 40).tolist(), nranks)
    assert {int(rank.epoch[0]) for rank in ranks} == {len(calls) << 16}
    assert kind == "all_gather" or all((rank.sent == 0xFF).all() for rank in ranks)
    assert all(np.array_equal(out.read(), expected, equal_nan=True) for expected, outs in checks for out in outs)


class Started(Launches):
    """The launcher of plans; it runs kernels on the calling thread: sums of one library, gathers of the other."""

    def __init__(self, sums: Kernels, gathers: Kernels) -> None:
        self._sums, self._gathers = sums, gathers

    def _launch(self, name: str, _: Any, ctas: int, *options: Any) -> None:
        kind, _, key = name.rpartition("_")
        kernels, name = (self._gathers, name) if kind == "all_gather_ll" else (self._sums, f"{kind}_all")
        assert key == ("4" if kind == "all_gather_ll" else FLOAT32.name)
        kernels.start(name, ctas, *options[2:])


@pytest.mark.parametrize("counted", [True, False], ids=["kernels count", "the host counts"])
@pytest.mark.parametrize("nranks", [1, 2, 5])
def test_launches_of_several_plans_alternate_in_one_workspace(nranks: int, counted: bool) -> None:
    """Each plan has slots of its own size, at the end of the memory, for any shards; some ranks contribute nothing.

    In the first calls a rank with an empty shard is late: its peers must not send into slots that are still in use.
    """
    libraries = (
        made(ReductionEpilogue("sum", Name(RESULT)), FLOAT32),
        Kernels(source("all_gather"), ["all_gather_ll_4"]),
    )
    started, rng, ranks = Started(*libraries), np.random.default_rng(nranks), [Rank(nranks) for _ in range(nranks)]
    calls: list[tuple[Any, list[int], int, list[int], list[Placed], list[Placed]]] = []
    checks = []
    kinds = ["all_gather_ll"] * 6 + rng.choice(["one_shot", "two_shot", "reduce_scatter", "all_gather_ll"], 60).tolist()
    for number, kind in enumerate(kinds):
        counts = rng.integers(0, rng.choice([3, 900]), nranks)
        counts[0] *= number >= 6
        counts[-1] += not counts.sum()
        first = [0, *np.cumsum(counts).tolist()]
        contributing = [0, *(r for r in range(1, nranks) if rng.integers(0, 3))]
        terms = [rng.integers(-9, 9, first[-1]).astype(FLOAT32) for _ in range(nranks)]
        total = np.sum([terms[r] for r in contributing], axis=0)
        parts = [slice(*bounds) for bounds in pairwise(first)]
        if kind == "all_gather_ll":
            total = np.concatenate([term[part] for term, part in zip(terms, parts, strict=True)])
            terms = [term[part] for term, part in zip(terms, parts, strict=True)]
        expected = [total[part] if kind == "reduce_scatter" else total for part in parts]
        x, outs = (
            [Placed(a, int(rng.integers(0, 4))) for a in arrays] for arrays in (terms, map(np.zeros_like, expected))
        )
        largest = first[-1] if kind == "one_shot" else max(b - a for a, b in pairwise(first))
        calls.append((kind, first, -(-4 * largest // 256) * 256, contributing, x, outs))
        checks.append((kind, expected, outs))

    def work(rank: int) -> None:
        me = ranks[rank]
        for number, (kind, first, nbytes, contributing, x, outs) in enumerate(calls):
            if rank == 0 and (number < 6 or number % 7 == 0):
                time.sleep(0.005)
            shift = (2 * SHARE - (2 if kind == "two_shot" else 1) * nbytes) * nranks
            shift += 0 if counted else number % 2 * me.pitch
            halves = (me.epoch.ctypes.data, me.pitch) if counted else (0, 0)
            slots, watch = Slots([r.slots + shift for r in ranks], nbytes, *halves), Watch(10**10)
            source, out = x[rank].address, outs[rank].address
            if kind == "all_gather_ll":
                started.gather(0, 4, first, source, out, rank=rank, slots=slots, watch=watch)
                continue
            call = Reduction(FLOAT32, FLOAT32, first, out, rank, watch, contributing=contributing)
            started.reduce(0, kind, call, source, slots)

    together([lambda rank=rank: work(rank) for rank in range(nranks)])  # type: ignore[misc]  # it is bound here
    assert all((rank.sent == 0xFF).all() and not rank.rest.any() for rank in ranks)
    for kind, expected, outs in checks:
        assert all(np.array_equal(out.read(), sums) for out, sums in zip(outs, expected, strict=True)), kind


def test_reductions_with_an_epilogue() -> None:
    """+ beta C, and operands of every kind, among them D itself; results are rounded once, here exactly."""
    nranks, columns, rows = 4, 37, 23
    tree = parse("relu(x * s + row) - full")
    kernels = made(ReductionEpilogue("max", tree, (None, FLOAT32, BFLOAT16), scaled=True), BFLOAT16)
    rng = np.random.default_rng(7)
    for kind in KINDS:
        size, ranks = rows * columns, [Rank(nranks) for _ in range(nranks)]
        terms = [rng.integers(-9, 9, size).astype(BFLOAT16) for _ in range(nranks)]
        row, pulls = Placed(rng.integers(-9, 9, columns).astype(FLOAT32)), kind == "two_shot_pull"
        bounds = bounds_of(size, nranks, 16) if pulls else [0, 0, 7 * columns, 20 * columns, size]
        full = rng.integers(-9, 9, size).astype(BFLOAT16)
        parts = [slice(*bounds[r : r + 2]) if kind == "reduce_scatter" else slice(None) for r in range(nranks)]
        x, outs = [Placed(term, int(not pulls)) for term in terms], [Placed(full[part], 3) for part in parts]
        olds = [Placed(np.roll(full, 1)[part], 2) for part in parts]
        options = [
            {
                "terms": [*number_term(2), row.address, 1, 0, out.address, 1, columns],
                "length": columns,
                "old": old.address,
                "beta": 0.5,
            }
            for out, old in zip(outs, olds, strict=True)
        ]
        run(kernels, [Call(ranks, kind, x, outs, bounds, options=options)], [f"{kind}_all"], [5], nranks)
        wide = np.max([term.astype(FLOAT32) for term in terms], axis=0) + np.roll(full, 1).astype(FLOAT32) / 2
        wide = wide.reshape(rows, columns)
        expected = np.maximum(wide * 2 + row.x, 0).reshape(-1) - full.astype(FLOAT32)
        for out, part in zip(outs, parts, strict=True):
            assert np.array_equal(out.read().astype(FLOAT32), expected[part])


def one_of(names: list[str]) -> str:
    """An expression whose operand `which` selects one of several."""
    text = "x"
    for number, name in enumerate(names):
        text = f"where(which == {number}, {name}, {text})"
    return text


def test_functions_are_those_of_cpus() -> None:
    """Functions and divisions of the same numbers, in one kernel whose operand selects the expression."""
    size, nranks = 65, 2
    names = [f"{name}(x)" for name, count in FUNCTIONS.items() if count == 1]
    names += [f"{x} {sign} {y}" for sign in ("%", "//") for x, y in (("x", 2.5), ("x", -1), ("-3", "x"), ("x", 0))]
    text = one_of(names)
    which = Placed(np.repeat(np.arange(float(len(names))), size))
    total = np.tile(np.linspace(-8, 8, size), len(names))
    kernels = Kernels(ReductionEpilogue("sum", parse(text), (FLOAT64,)).source(FLOAT64), ["one_shot_all"])
    x, outs = ([Placed(array) for array in arrays] for arrays in ([total / 2] * nranks, np.zeros((nranks, total.size))))
    options = [{"terms": [which.address, 1, total.size], "length": total.size}] * nranks
    ranks = [Rank(nranks) for _ in range(nranks)]
    run(kernels, [Call(ranks, "one_shot", x, outs, [0, total.size], options=options)], ["one_shot_all"], [2], nranks)
    expected = evaluate(parse(text), total, {"which": which.x}).reshape(-1, size)
    for out in outs:
        for name, values, exact in zip(names, out.read().reshape(-1, size), expected, strict=True):
            assert np.allclose(values, exact, rtol=64 * EPS, atol=0, equal_nan=True), name


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_functions_with_16_bit_results_are_right_after_rounding(name: str) -> None:
    """All 16-bit numbers, a third at a time, among them infinities and NaN."""
    dtype, names = dtype_of(name), ["gelu(x)", "sigmoid(x)", "silu(x)", "gelu_tanh(x)", "rsqrt(x)", "3 / x"]
    kernels = Kernels(ReductionEpilogue("sum", parse(one_of(names)), (None,)).source(dtype), ["one_shot_all"])
    limits: Any = ml_dtypes.finfo
    finfo = limits(dtype)
    for (which, text), first in product(enumerate(names), range(3)):
        x = np.arange(first, 1 << 16, 3, dtype=np.uint16).view(dtype)
        out, options = Placed(np.zeros_like(x)), [{"terms": number_term(which), "length": x.size}]
        call = Call([Rank(1)], "one_shot", [Placed(x)], [out], [0, x.size], options=options)
        run(kernels, [call], ["one_shot_all"], [2], 1)
        with np.errstate(invalid="ignore"):  # signalling NaN, differences of infinities
            exact, values = evaluate(parse(text), x.astype(float), {}), out.read().astype(float)
            tiny = 0.51 * float(finfo.smallest_subnormal) + 2.0**-120  # what 32 bits hold of e^-x
            near = np.abs(values - exact) <= 0.51 * float(finfo.eps) * np.abs(exact) + tiny
        far = (np.abs(exact) > float(finfo.max)) & (np.abs(values) >= float(finfo.max))
        none = np.isnan(values) & np.isnan(exact)
        assert (near | far | none).all(), (text, x[~(near | far | none)])


@pytest.mark.parametrize("columns", [6, 640, 1102])
def test_rows_are_normalised_after_the_residual_is_added(columns: int) -> None:
    nranks, rows, rng = 3, 7, np.random.default_rng(columns)
    ending = ReductionEpilogue("sum", parse("x + residual"), (FLOAT64,), FLOAT64)
    kernels = Kernels(ending.source(FLOAT64), ["one_shot_all"])
    weight = Placed(rng.standard_normal(columns))
    for in_place in (False, True):
        ranks, terms = [Rank(nranks) for _ in range(nranks)], rng.standard_normal((nranks, rows * columns))
        residual = rng.standard_normal(rows * columns)
        x, sums = [Placed(term) for term in terms], [Placed(residual) for _ in ranks]
        outs = sums if in_place else [Placed(np.zeros(rows * columns)) for _ in ranks]
        options = [
            {
                "terms": [*number_term(1e-3), kept.address, 1, columns],
                "length": columns,
                "normalised": out.address,
                "weight": weight.address,
                "columns": columns,
            }
            for out, kept in zip(outs, sums, strict=True)
        ]
        run(
            kernels,
            [Call(ranks, "one_shot", x, sums, [0, rows * columns], options=options)],
            ["one_shot_all"],
            [2],
            nranks,
        )
        total = terms.sum(axis=0) + residual
        matrix = total.reshape(rows, columns)
        normal = (matrix / np.sqrt((matrix**2).mean(axis=1, keepdims=True) + 1e-3) * weight.x).reshape(-1)
        for kept, out in zip(sums, outs, strict=True):
            assert in_place or np.allclose(kept.read(), total, rtol=0, atol=8 * (nranks + 1) * EPS)
            assert np.allclose(out.read(), normal, rtol=64 * EPS, atol=64 * EPS)

"""Laws of allreduce, reduce_scatter and allgather: NumPy's result, one set of bits, nothing else touched."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import Epilogue, MatrixDescriptor, errors
from tests.common.gauge import NAMES, THRESHOLD, Array, dtype_of, entries, eps_of
from tests.common.ranks import (
    COMM,
    Contexts,
    Foreign,
    check_product,
    no_memory,
    one_host,
    raises_on_all_ranks,
    same_on_all_ranks,
    some_wrong,
    waits_long,
)

SETTINGS = ("shared", "message", "mixed", "push")
ALGORITHMS: tuple[Any, ...] = ("naive", "one_shot", "two_shot")
POISON = -99
UFUNCS: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
P, RANK = COMM.size, COMM.rank


@pytest.fixture
def small_slots(contexts: Contexts, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Slots of a few elements, so that small arrays take many rounds, and some count as large."""
    forget_calls(contexts)
    monkeypatch.setattr("pblas.collectives.collective_plan.SLOT_NBYTES", 128 * P)
    monkeypatch.setattr("pblas.collectives.collective_plan.MESSAGE_NBYTES", 192 * P)
    monkeypatch.setattr("pblas.collectives.collective_plan.LARGE_NBYTES", 400)
    yield
    forget_calls(contexts)


def forget_calls(contexts: Contexts) -> None:
    """Drop the rounds that contexts keep for like calls."""
    for context in contexts.values():
        context.runtime.kept.close()


def random_terms(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> list[Array]:
    """Every rank's array."""
    size = int(np.prod(shape))
    return [entries((1, size), np.dtype(dtype), 100 * seed + rank).reshape(shape) for rank in range(P)]


def check(result: Array, terms: list[Array], op: str = "sum") -> None:
    """Assert that the result on this rank is within the PBLAS test threshold of the exact one."""
    wide: Any = np.clongdouble if result.dtype.kind == "c" else np.longdouble
    exact = functools.reduce(UFUNCS[op], [term.astype(wide) for term in terms])
    size: Any = functools.reduce(np.multiply if op == "prod" else np.add, [np.abs(t.astype(wide)) for t in terms])
    factor = 2 * P if op == "prod" else THRESHOLD
    error = np.abs(result.astype(wide) - exact)
    assert result.shape == exact.shape
    assert (error <= (0 if op in ("max", "min") else factor * eps_of(result.dtype)) * size).all()


def bits(x: Array) -> bytes:
    """**Collective.** The elements of an array, which are the same on every rank."""
    result: bytes = same_on_all_ranks(x.tobytes())
    return result


@pytest.mark.mpi
@pytest.mark.parametrize("name", NAMES)
def test_allreduce_is_numpys_with_one_set_of_bits(contexts: Contexts, name: str, small_slots: None) -> None:
    """The bits are equal on all ranks and, with one algorithm, on all transports, in place or not, in many rounds."""
    dtype = dtype_of(name)
    everywhere = random_terms((5, 3 * P + 20), dtype)
    for op in ("sum", "prod") if dtype.kind == "c" else UFUNCS:
        for algorithm in ALGORITHMS:
            seen = set()
            for context in contexts.values():
                x, before = everywhere[RANK].copy(), everywhere[RANK].tobytes()
                result = context.allreduce(x, op=op, algorithm=algorithm)
                assert x.tobytes() == before
                assert context.allreduce(x, x, op=op, algorithm=algorithm) is x
                assert x.tobytes() == result.tobytes()
                seen.add(bits(result))
            assert len(seen) == 1
            check(result, everywhere, op)


def forms(x: Array) -> Iterator[Array]:
    """The same elements in arrays with many memory layouts, surrounded by poison where possible."""
    yield x.copy()
    yield np.array(x, order="F")
    amid = np.full([2 * n + 1 for n in x.shape], POISON, x.dtype)
    inside: Any = (*[slice(1, None, 2)] * x.ndim, ...)
    inner = amid[inside]
    inner[...] = x
    yield inner
    yield np.ascontiguousarray(x[::-1])[::-1] if x.ndim else x.copy()
    yield np.ascontiguousarray(np.moveaxis(x, 0, -1)).transpose(-1, *range(x.ndim - 1)) if x.ndim else x.copy()


@pytest.mark.mpi
@pytest.mark.parametrize("shape", [(), (0,), (3,), (0, 4), (9, 8), (2, 3, 17), (1, 50)])
def test_any_shape_order_and_view(contexts: Contexts, shape: tuple[int, ...], small_slots: None) -> None:
    """Memory layouts may differ between ranks; only out changes, and all algorithms add in the same order."""
    everywhere, n = random_terms(shape, np.float32), 5
    for algorithm in (*ALGORITHMS, "auto"):
        expected = contexts["message"].allreduce(everywhere[RANK], algorithm=algorithm)
        check(expected, everywhere)
        for step in range(n):
            x = [*forms(everywhere[RANK])][(step * (RANK + 1)) % n]
            out = [*forms(np.full(shape, 7, np.float32))][(step + 2 * RANK) % n]
            context = [*contexts.values()][step % len(contexts)]
            base = out.base if out.base is not None else out
            touched = np.count_nonzero(base == POISON)
            assert context.allreduce(x, out, algorithm=algorithm) is out
            assert np.array_equal(out, expected)
            assert np.count_nonzero(base == POISON) == touched
            assert np.array_equal(x, everywhere[RANK])


@pytest.mark.mpi
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_in_windows_are_reached_in_place(contexts: Contexts, order: Any, small_slots: None) -> None:
    """The bits are the same with x, out, both or neither in shared memory, on all ranks or on some."""
    everywhere = [np.array(x, order=order) for x in random_terms((9, 7), np.float64)]
    for name, context in contexts.items():
        desc = MatrixDescriptor.replicated(9, 7, P, order=order)
        shared_x, shared_out = context.empty(desc).local, context.empty(desc).local
        for algorithm in ALGORITHMS:
            expected = context.allreduce(everywhere[RANK], algorithm=algorithm)
            for where in range(5):
                own = np.empty((9, 7), order=order)
                x = shared_x if where in (0, 1, 2) or (where == 4 and RANK) else own
                out = (shared_out, own, x, shared_out, x)[where]
                x[...] = everywhere[RANK]
                context.allreduce(x, out, algorithm=algorithm)
                assert np.array_equal(out, expected), (name, algorithm, where)
                x[...] = out[...] = POISON  # a rank that still read here would see it
        part = context.reduce_scatter(everywhere[RANK])
        shared_x[...] = everywhere[RANK]
        assert np.array_equal(context.reduce_scatter(shared_x), part)
        shared_x[...] = everywhere[RANK]
        assert np.array_equal(context.allgather(shared_x), np.concatenate(everywhere))
        shared_x[...] = POISON


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["shared", "message"])
def test_calls_that_differ_in_one_argument_are_kept_apart(contexts: Contexts, name: str) -> None:
    """In any order, also after each other's first call."""
    context, bias = contexts[name], np.arange(3.0)
    counts = [6 - (P - 1), *[1] * (P - 1)]
    calls: dict[str, Callable[[], Any]] = {}
    expected: dict[str, Any] = {}

    def add(label: str, call: Callable[..., Any], terms: list[Array], result: Array, **options: Any) -> None:
        calls[label], expected[label] = (lambda: call(terms[RANK], **options)), result

    for shape, kind, seed in (((6, 3), "f8", 0), ((3, 6), "f8", 0), ((6, 3), "f4", 0), ((6, 3), "c16", 0)):
        terms = random_terms(shape, np.dtype(kind), seed)
        for op in ("sum", "prod", *(("max", "min") if kind != "c16" else ())):
            total = functools.reduce(UFUNCS[op], terms)
            for algorithm in ("auto", *ALGORITHMS):
                label = f"{shape} {kind} {op} {algorithm}"
                add(label, context.allreduce, terms, total, op=op, algorithm=algorithm)
            add(f"{shape} {kind} {op} scattered", context.reduce_scatter, terms, np.array_split(total, P)[RANK], op=op)
    terms = random_terms((6, 3), np.float64)
    total = functools.reduce(np.add, terms)
    start = sum(counts[:RANK])
    add("counts", context.reduce_scatter, terms, total[start : start + counts[RANK]], counts=counts)
    for scale in (2.0, 3.0):
        add(f"{scale} x", context.allreduce, terms, scale * total, epilogue=Epilogue("x * s", s=scale))
        add(f"x + {scale}", context.allreduce, terms, total + scale, epilogue=Epilogue("x + s", s=scale))
    add("x + bias", context.allreduce, terms, total + bias, epilogue=Epilogue("x + s", s=bias))
    add("-x", context.allreduce, terms, -total, epilogue="-x")
    add("a function", context.allreduce, terms, abs(total), epilogue=np.abs)
    by_columns = [np.asfortranarray(term) for term in terms]
    add("by columns", context.allreduce, by_columns, total)
    mixed = [by_columns[rank] if rank == 0 else terms[rank] for rank in range(P)]
    add("by columns on rank 0", context.allreduce, mixed, total)
    for seed in range(3):
        for label in np.random.default_rng(seed).permutation(list(calls)):
            result, wanted = calls[label](), expected[label]
            assert result.dtype == wanted.dtype
            assert np.allclose(result, wanted, rtol=1e-4 if result.dtype == np.float32 else 1e-12), label
            assert result.flags.f_contiguous or label != "by columns"


@one_host
@pytest.mark.mpi
def test_one_shot_is_one(contexts: Contexts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank reads the others' arrays and adds them; no rank sends or reads a sum."""
    everywhere = random_terms((9, 7), np.float64)
    for name, nbytes in (("shared", 0), ("message", (P - 1) * everywhere[RANK].nbytes)):
        context = contexts[name]
        context.allreduce(everywhere[RANK])  # makes the memory, if there was none
        channel = context.runtime.backend.channel
        meetings: list[str] = []
        before = channel.received_nbytes
        with monkeypatch.context() as patched:
            patched.setattr(context.runtime.staging, "meet", meetings.append)
            check(context.allreduce(everywhere[RANK], algorithm="one_shot"), everywhere)
        assert channel.received_nbytes - before == nbytes
        assert not meetings


@pytest.mark.mpi
@pytest.mark.parametrize("rows", [8, 64])
def test_a_node_receives_once_what_all_its_ranks_get(
    contexts: Contexts, monkeypatch: pytest.MonkeyPatch, small_slots: None, rows: int
) -> None:
    """In an all-gather, and of the sums of an all-reduce; also of arrays that travel in messages within the node."""
    context = contexts["mixed"]
    backend, everywhere = context.runtime.backend, random_terms((rows, P), np.float64)
    groups = {rank: group for group in backend.groups for rank in group}
    node, receive, received = groups[RANK], backend.channel.receive, list[int]()
    others, part = P - len(node), everywhere[0].nbytes // P

    def counted(x: Array, source: int, tag: int) -> Any:
        received.append(0 if source in node else x.nbytes)
        return receive(x, source, tag)

    def received_by_node() -> int:
        everywhere = context.runtime.gathered(sum(received))
        received.clear()
        return sum(everywhere[rank] for rank in node)

    monkeypatch.setattr(backend.channel, "receive", counted)
    assert np.array_equal(context.allgather(everywhere[RANK]), np.concatenate(everywhere))
    assert received_by_node() == others * P * part
    check(context.allreduce(everywhere[RANK], algorithm="two_shot"), everywhere)
    assert received_by_node() == others * (len(node) + 1) * part  # terms of the node's parts, then sums


@pytest.mark.mpi
@pytest.mark.parametrize("before", [False, True])
def test_ranks_that_have_given_up_shared_memory_send_everything(before: bool, small_slots: None) -> None:
    """Whether the context had memory for collectives before or not."""
    everywhere = random_terms((9, 7), np.float64)
    with pblas.Context(timeout=30) as context:
        if before:
            context.allreduce(everywhere[RANK])
        context.runtime.give_up_shared_memory()
        for algorithm in ALGORITHMS * 2:
            result = context.allreduce(everywhere[RANK], np.full((9, 7), np.nan), algorithm=algorithm)
            bits(result)
            check(result, everywhere)
        rows = np.array_split(np.arange(9), P)[RANK]
        check(context.reduce_scatter(everywhere[RANK]), [x[rows] for x in everywhere])
        assert np.array_equal(context.allgather(everywhere[RANK]), np.concatenate(everywhere))


@pytest.mark.mpi
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_reduce_scatter_splits_rows(contexts: Contexts, rows: int, small_slots: None) -> None:
    """The rows are split as by numpy.array_split, or by counts; out may be this rank's rows of x."""
    everywhere = random_terms((rows, 5), np.complex64)
    counts = [0] * (P - 1) + [rows]
    for context in contexts.values():
        for keywords in list[dict[str, Any]]([{}, {"counts": counts}]):
            bounds = np.cumsum([0, *(keywords.get("counts") or map(len, np.array_split(np.empty(rows), P)))])
            own = slice(*bounds[RANK : RANK + 2])
            result = context.reduce_scatter(everywhere[RANK], **keywords)
            check(result, [x[own] for x in everywhere])
            x = everywhere[RANK].copy()
            context.reduce_scatter(x, x[own], **keywords)
            assert np.array_equal(x[own], result)
            x[own] = everywhere[RANK][own]
            assert np.array_equal(x, everywhere[RANK])


@pytest.mark.mpi
def test_allgather_puts_all_rows_one_after_the_other(contexts: Contexts, small_slots: None) -> None:
    """Ranks may have equal or different numbers of rows, or none; x may be this rank's part of out."""
    for counts in ([4] * P, [(3 * rank) % 5 for rank in range(P)], [0] * P):
        everywhere = [x[:count] for x, count in zip(random_terms((5, 6), np.float16), counts, strict=True)]
        expected, start = np.concatenate(everywhere), sum(counts[:RANK])
        for context in contexts.values():
            assert np.array_equal(context.allgather(everywhere[RANK], counts=counts), expected)
            for x in forms(everywhere[RANK]):
                out = np.full((sum(counts), 6), POISON, np.float16, order="CF"[RANK % 2])  # type: ignore[call-overload]
                assert np.array_equal(context.allgather(x), expected)
                assert context.allgather(x, out) is out
                assert np.array_equal(out, expected)
            out[...] = POISON
            out[start : start + counts[RANK]] = everywhere[RANK]
            context.allgather(out[start : start + counts[RANK]], out)
            assert np.array_equal(out, expected)


def _tensor(x: Array) -> Any:
    torch: Any = import_module("torch")
    return torch.from_numpy(x.copy())


def _matrix(x: Array) -> Any:
    return np.asmatrix(x)


LIBRARIES: dict[str, Callable[[Array], Any]] = {
    "a library that speaks DLPack": Foreign,
    "matrices of NumPy": _matrix,
    "torch": _tensor,
}


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_a_single_product_has_the_same_bits_in_place(contexts: Contexts, name: str) -> None:
    for seed in range(20):
        x_ = random_terms((1,), dtype_of(name), seed)[RANK]
        for context in contexts.values():
            expected = context.allreduce(x_, op="prod")
            x = x_.copy()
            result = context.allreduce(x, x if RANK % 2 else None, op="prod")
            assert bits(result) == bits(expected)


@pytest.mark.mpi
@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize(
    "library", [pytest.param(x, marks=pytest.mark.torch if x == "torch" else ()) for x in LIBRARIES]
)
def test_arrays_of_other_libraries(contexts: Contexts, library: str, small_slots: None) -> None:
    """Arrays of other libraries as x, out and operands; a new result belongs to x's library, except numpy.matrix."""
    make = LIBRARIES[library]
    everywhere, bias = random_terms((9, 8), np.float64), np.arange(8.0)
    kind: Any = np.ndarray if make is _matrix else type(make(bias))
    epilogue = Epilogue("x + b", b=bias if make is _matrix else make(bias))

    def same(result: Any, expected: Array) -> None:
        assert type(result) is kind
        assert np.array_equal(result.x if kind is Foreign else np.asarray(result), expected)

    for context in contexts.values():
        total = context.allreduce(everywhere[RANK], epilogue=Epilogue("x + b", b=bias))
        rows = context.reduce_scatter(everywhere[RANK])
        x, out = make(everywhere[RANK]), make(np.zeros((9, 8)))
        transposed = make(everywhere[RANK].T) if kind is Foreign else x.T
        for algorithm in ALGORITHMS:  # each adds in an order of its own
            expected = context.allreduce(everywhere[RANK], epilogue=Epilogue("x + b", b=bias), algorithm=algorithm)
            same(context.allreduce(x, epilogue=epilogue, algorithm=algorithm), expected)
        assert context.allreduce(x, out, epilogue=epilogue) is out
        assert np.array_equal(out.x if kind is Foreign else np.asarray(out), total)
        same(context.reduce_scatter(x), rows)
        same(context.allgather(make(rows)), context.allgather(rows))
        same(context.allreduce(transposed), context.allreduce(everywhere[RANK].T))


class Copied(Foreign):
    """An array that NumPy cannot read without a copy."""

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.copy().__dlpack__(**options)


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
def test_epilogues_are_applied_to_the_sum_and_rounded_once(contexts: Contexts, name: str, small_slots: None) -> None:
    dtype, shape = dtype_of(name), (7, 9)
    everywhere, (row, full, *_) = (
        random_terms(shape, dtype),
        [*random_terms(shape, dtype, 1), *random_terms(shape, dtype, 2)],
    )
    row = row[0]
    wide = [x.astype(np.longdouble) for x in (*everywhere, row, full)]
    total = sum(wide[:P])
    exact = np.maximum(total * 0.5 + wide[P], 0) * wide[P + 1]
    size = (sum(map(np.abs, wide[:P])) + 1) * np.abs(wide[P + 1])
    for algorithm in ALGORITHMS:
        seen = set()
        for context in contexts.values():
            for order in ("C", "F"):
                x, out = np.array(everywhere[RANK], order=order), np.array(full, order=order)
                epilogue = Epilogue("relu(x * s + bias) * f", s=0.5, bias=row, f=out)
                result = context.allreduce(x, out, epilogue=epilogue, algorithm=algorithm)
                assert (np.abs(result - exact) <= THRESHOLD * eps_of(dtype) * size).all()
                seen.add(bits(result) if order == "C" else bits(np.ascontiguousarray(result)))
            part = context.reduce_scatter(x, epilogue=Epilogue("x - b", b=row))
            check(part, [np.array_split(term, P)[RANK] for term in (*everywhere, np.broadcast_to(-row, shape))])
        assert len(seen) <= 2, "the order of elements decides which rank adds them, and nothing else"


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["float64", "float16"])
@pytest.mark.parametrize("rows", [1, 6])
def test_rmsnorm_with_the_residual_before_it(contexts: Contexts, name: str, rows: int, small_slots: None) -> None:
    dtype, shape = dtype_of(name), (rows, 40)
    everywhere, residual, weight = (
        random_terms(shape, dtype),
        random_terms(shape, dtype, 1)[0],
        random_terms((40,), dtype, 2)[0],
    )
    total: Array = np.sum([x.astype(np.longdouble) for x in (*everywhere, residual)], axis=0)
    exact = total / np.sqrt((total**2).mean(axis=1, keepdims=True) + 1e-3) * weight.astype(np.longdouble)
    for context in contexts.values():
        for algorithm in (*ALGORITHMS, "auto"):
            h, x = residual.copy(), everywhere[RANK].copy()
            epilogue = Epilogue("rmsnorm", weight=weight, eps=1e-3, residual=h)
            result = context.allreduce(x, x, epilogue=epilogue, algorithm=algorithm)
            check(h, [*everywhere, residual])
            assert (np.abs(result - exact) <= THRESHOLD * (P + 1) * eps_of(dtype) * np.abs(weight) * 4).all()
            bits(result)
            bits(h)
        own = np.array_split(np.arange(rows), P)[RANK]
        part = context.reduce_scatter(everywhere[RANK], epilogue=Epilogue("rmsnorm", residual=residual[own]))
        assert part.shape == (len(own), 40)
        normal = context.allreduce(everywhere[RANK], epilogue=Epilogue("rmsnorm", eps=0.0)).astype(np.longdouble)
        assert (np.abs((normal**2).mean(axis=1) - 1) <= THRESHOLD * eps_of(dtype)).all()


@pytest.mark.mpi
@pytest.mark.parametrize("name", NAMES)
def test_memory_for_a_row_of_any_length_serves_all_dtypes_after_it(name: str) -> None:
    """A row that is normalised stays whole: here it is larger than a slot, and no multiple of a cache line."""
    row = np.ones((1, (1 << 19) + 1), np.float16)
    terms = random_terms((3,), dtype_of(name))
    with pblas.Context() as context:
        context.allreduce(row, row, epilogue="rmsnorm")
        np.testing.assert_allclose(row, 1, rtol=eps_of(row.dtype))
        for _ in range(2):  # both halves of the memory
            result = context.allreduce(terms[RANK])
            bits(result)
            check(result, terms)


@pytest.mark.mpi
def test_functions_as_epilogues_and_their_errors(contexts: Contexts) -> None:
    """An error in one rank's function is raised on every rank, and the context goes on."""
    x = random_terms((16 * P,), np.float32)  # some for every rank

    def fails(values: Array, wrong: frozenset[int]) -> Array:
        if RANK in wrong:
            raise ZeroDivisionError("by hand")
        return values

    for context in contexts.values():
        result = context.allreduce(x[RANK], epilogue=lambda values: -values)
        check(result, [-term for term in x])
        for wrong in some_wrong():
            for algorithm in ALGORITHMS:
                call = partial(context.allreduce, x[RANK], epilogue=partial(fails, wrong=wrong), algorithm=algorithm)
                raises_on_all_ranks(
                    errors.ArgumentError, "allreduce: the epilogue's function raised ZeroDivisionError: by hand", call
                )
        norm: Any = np.linalg.norm
        call = partial(context.allreduce, x[RANK], epilogue=norm)
        raises_on_all_ranks(errors.ArgumentError, "must be elementwise", call)
        exits: Any = lambda values: sys.exit(3) if RANK == P - 1 else values  # noqa: E731 - one of two functions
        imaginary: Any = partial(np.multiply, 1j)
        for function, text in ((exits, "SystemExit: 3"), (imaginary, "returned complex64 for float32; it must be")):
            raises_on_all_ranks(errors.ArgumentError, text, partial(context.allreduce, x[RANK], epilogue=function))
        check(context.allreduce(x[RANK]), x)


def _read_only(x: Array) -> Array:
    x.flags.writeable = False
    return x


X = np.ones((4, 6), np.float32)
Z = X.astype(np.complex64)
WRONG: list[tuple[str, type[Exception], str, Callable[[pblas.Context], Any]]] = [
    ("x", errors.ArgumentError, "or one that speaks DLPack, got list", lambda c: c.allreduce([1.0])),
    ("int", errors.DTypeError, "dtype must be one of", lambda c: c.allreduce(np.ones(3, np.int32))),
    ("op", errors.ArgumentError, "op must be one of sum,", lambda c: c.allreduce(X, op="mean")),  # type: ignore[arg-type]
    ("complex", errors.ArgumentError, "needs an order", lambda c: c.allreduce(Z, op="max")),
    ("algorithm", errors.ArgumentError, "auto, naive", lambda c: c.allreduce(X, algorithm="ring")),  # type: ignore[arg-type]
    ("shape", errors.ArgumentError, "out has shape (4, 5)", lambda c: c.allreduce(X, np.ones((4, 5), np.float32))),
    ("dtype", errors.DTypeError, "out is float64, x is float32", lambda c: c.allreduce(X, np.ones((4, 6)))),
    ("bytes", errors.DTypeError, "out is >f4, x is float32", lambda c: c.allreduce(X, X.astype(">f4"))),
    ("const", errors.ArgumentError, "out is read-only", lambda c: c.allreduce(X, _read_only(X.copy()))),
    ("copy", errors.ArgumentError, "out has to be copied", lambda c: c.allreduce(X, Copied(X.copy()))),
    ("overlap", errors.ArgumentError, "out overlaps x", lambda c: c.allreduce(Z[:2], Z[1:3])),
    ("stream", errors.ArgumentError, "stream is for contexts on GPUs", lambda c: c.allreduce(X, stream=0)),
    ("lengths", errors.ArgumentError, "counts must be", lambda c: c.allgather(X, counts=[-4] * P)),
    ("syntax", errors.ArgumentError, "'x *', column 4", lambda c: c.allreduce(X, epilogue="x *")),
    ("missing", errors.ArgumentError, "no operand b", lambda c: c.allreduce(X, epilogue="x + b")),
    ("unused", errors.ArgumentError, "not used", lambda c: c.allreduce(X, epilogue=Epilogue("x", b=1.0))),
    ("masked", errors.ArgumentError, "x: elements of a masked", lambda c: c.allreduce(np.ma.masked_less(X, 2))),
    ("number", errors.ArgumentError, "b must be a number", lambda c: c.allreduce(X, epilogue=Epilogue("x + b", b="1"))),
    (
        "0-d",
        errors.ArgumentError,
        "epilogue 'x + b': b must be a number or an array of shape (6,) or an array of shape (4, 6), got shape ()",
        lambda c: c.allreduce(X, epilogue=Epilogue("x + b", b=np.array(1.0))),
    ),
    (
        "operand",
        errors.ArgumentError,
        "b must be a number or an array of shape (6,) or an array of shape (4, 6), got shape (4,)",
        lambda c: c.allreduce(X, epilogue=Epilogue("x + b", b=X[:, 0])),
    ),
    (
        "list",
        errors.ArgumentError,
        "b must be a number or an array of shape (6,) or an array of shape (4, 6), got list",
        lambda c: c.allreduce(X, epilogue=Epilogue("x + b", b=[1.0])),
    ),
    (
        "precision",
        errors.DTypeError,
        "b is float64, x is float32",
        lambda c: c.allreduce(X, epilogue=Epilogue("x + b", b=np.ones(6))),
    ),
    (
        "bytes of an operand",
        errors.DTypeError,
        "b is >f4, x is float32",
        lambda c: c.allreduce(X, epilogue=Epilogue("x + b", b=np.ones(6, ">f4"))),
    ),
    ("real", errors.ArgumentError, "relu is for real arrays", lambda c: c.allreduce(Z, epilogue="relu(x)")),
    (
        "residual",
        errors.ArgumentError,
        "residual overlaps x",
        lambda c: c.allreduce(X, epilogue=Epilogue("rmsnorm", residual=X)),
    ),
    ("epilogue", errors.ArgumentError, "epilogue must be", lambda c: c.allreduce(X, epilogue=3)),  # type: ignore[arg-type]
    ("counts", errors.ArgumentError, "that add up to 4", lambda c: c.reduce_scatter(X, counts=[5] * c.nprocs)),
    ("axis", errors.ArgumentError, "no axis to split", lambda c: c.reduce_scatter(np.ones(()))),
    ("rows", errors.ArgumentError, "whole rows", lambda c: c.reduce_scatter(X[0], epilogue="rmsnorm")),
    ("gather", errors.ArgumentError, "no axis along", lambda c: c.allgather(np.ones(()))),
    ("flat", errors.ArgumentError, "out has shape ()", lambda c: c.allgather(X, np.ones((), np.float32))),
    ("long", errors.ArgumentError, "out has shape (9, 6)", lambda c: c.allgather(X, np.ones((9, 6), np.float32))),
]


@pytest.mark.mpi
@pytest.mark.parametrize(("kind", "text", "call"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_errors_are_the_same_everywhere_and_nothing_is_lost(
    contexts: Contexts, kind: type[Exception], text: str, call: Callable[[pblas.Context], Any]
) -> None:
    """Also if only one rank is wrong: the arrays of the others are untouched."""
    right, out = np.ones((4, 6), np.float32), np.full((4, 6), POISON, np.float32)
    function = next(
        function for function in ("reduce_scatter", "allgather", "allreduce") if function in call.__code__.co_names
    )
    keep = {"reduce_scatter": None, "allreduce": out, "allgather": None}[function]
    for context in (contexts["shared"], contexts["message"]):
        raises_on_all_ranks(kind, text, partial(call, context))
        for wrong in some_wrong():
            good = partial(getattr(context, function), right, keep)
            raises_on_all_ranks(kind, text, lambda: call(context) if RANK in wrong else good())  # noqa: B023 - called at once
    assert (out == POISON).all()
    assert (right == 1).all()
    assert (X == 1).all()
    check_product(contexts["shared"])


@pytest.mark.mpi(min_size=2)
def test_differences_between_ranks_are_named(ctx: pblas.Context) -> None:
    odd = RANK == P - 1
    x = np.ones(6 if odd else 5)
    raises_on_all_ranks(errors.MismatchError, "allreduce: shape differs", lambda: ctx.allreduce(x))
    raises_on_all_ranks(
        errors.MismatchError, "op differs", lambda: ctx.allreduce(np.ones(3), op="max" if odd else "sum")
    )
    for name, value in (("s", 1.0 + odd), ("s", np.ones(3) if odd else 1.0)):
        epilogue = Epilogue("x * s", s=value)
        text = f"epilogue's {name} differs"
        raises_on_all_ranks(errors.MismatchError, text, partial(ctx.allreduce, np.ones(3), epilogue=epilogue))
    large: Any = partial(ctx.allreduce, np.ones((256 << 10) // 8 // P))  # one shot, and two with an epilogue
    text = f"epilogue differs between ranks: None on rank 0, 'relu(x)' on rank {P - 1}"
    raises_on_all_ranks(errors.MismatchError, text, partial(large, epilogue="relu(x)" if odd else None))
    epilogue = Epilogue("rmsnorm", **({"weight": np.ones(3)} if odd else {}))
    text = f"epilogue's weight differs between ranks: not given on rank 0, 'float64' on rank {P - 1}"
    raises_on_all_ranks(errors.MismatchError, text, partial(ctx.allreduce, np.ones((2, 3)), epilogue=epilogue))
    raises_on_all_ranks(
        errors.MismatchError, "algorithm differs", partial(large, algorithm="naive" if odd else "one_shot")
    )
    raises_on_all_ranks(errors.MismatchError, "x.shape[1:] differs", lambda: ctx.allgather(np.ones((2, 3 + odd))))
    other = partial(ctx.allgather, np.ones(3)) if odd else partial(ctx.allreduce, np.ones(3))
    raises_on_all_ranks(errors.MismatchError, "different calls", other)
    assert np.array_equal(ctx.allreduce(np.ones(5)), np.full(5, P))


@waits_long
@pytest.mark.mpi
@pytest.mark.parametrize("step", ["np.concatenate", "fold"])
def test_a_rank_that_fails_between_calls_of_mpi_is_named(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the all-to-all, and between it and the all-gather."""

    late = P - 1
    with pblas.Context(timeout=0.5) as context:
        if late == RANK:
            monkeypatch.setattr(f"pblas.collectives.collective_run.{step}", no_memory)
        with pytest.raises(errors.WorkspaceError, match=f"none left; found on rank {late} of {P}"):
            context.allreduce(X, algorithm="naive")
        monkeypatch.undo()
        with pytest.raises(errors.ContextError, match="the context is broken"):
            context.allreduce(X)


@pytest.mark.mpi
def test_many_calls_take_no_more_memory(ctx: pblas.Context) -> None:
    """An array too wide for the slots allocates larger ones once."""
    wide = np.ones((3, 300_000))
    ctx.allreduce(wide, epilogue="rmsnorm", algorithm="two_shot")
    check_product(ctx)
    used = ctx.runtime.backend.arena.live_nbytes
    for _ in range(20):
        assert ctx.allreduce(X)[0, 0] == P
        ctx.allreduce(wide[:, :1000], algorithm="two_shot")
    result = ctx.allreduce(wide, epilogue="rmsnorm", algorithm="two_shot")
    assert np.allclose(result, 1.0, rtol=0, atol=1e-6 / P**2)
    assert ctx.runtime.backend.arena.live_nbytes <= used

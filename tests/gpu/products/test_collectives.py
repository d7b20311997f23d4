"""Laws of allreduce, reduce_scatter and allgather on GPUs: NumPy's result, equal bits, on the caller's stream."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import cupy
import numpy as np
import pytest

import pblas
from pblas import Epilogue, MatrixDescriptor, errors
from pblas.backends.dtypes import accumulator_dtype
from tests.common.gauge import NAMES, THRESHOLD, Array, dtype_of, eps_of
from tests.common.ranks import COMM, check_product, raises_on_all_ranks, same_on_all_ranks, some_wrong
from tests.gpu.sharing import SHARED, trimmed
from tests.mpi.operations.test_collectives import ALGORITHMS, POISON, UFUNCS, check, random_terms

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]

P, RANK = COMM.size, COMM.rank
SHAPES = ((), (1,), (0, 4), (5, 3 * P + 20), (2, 3, 17), (70001,))
OPS: dict[str, Any] = {  # each is compiled
    "float16": tuple(UFUNCS),
    "bfloat16": ("sum", "max"),
    "float32": ("sum", "prod"),
    "float64": ("sum", "min"),
    "complex64": ("sum",),
    "complex128": ("sum", "prod"),
}
MEMORY = "pblas.backends.nvshmem.collectives"


@pytest.fixture(scope="module")
def ctx() -> Iterator[pblas.Context]:
    with pblas.Context(backend="nvshmem", timeout=20) as context:
        yield context


@pytest.fixture(scope="module")
def small() -> Iterator[pblas.Context]:
    """A context whose calls take many rounds."""
    with pytest.MonkeyPatch.context() as patch, pblas.Context(backend="nvshmem", timeout=20) as context:
        patch.setattr(f"{MEMORY}.LEAST_NBYTES", 1024 * P)
        patch.setattr(f"{MEMORY}.MOST_NBYTES", 1024 * P)
        yield context


@pytest.fixture(scope="module")
def messages() -> Iterator[pblas.Context]:
    """A context whose GPUs do not access each other's memory."""
    with pblas.Context(backend="cuda", timeout=20) as context:
        yield context


def to_gpu(x: Array, order: Any = "C") -> Any:
    """The same array on the GPU."""
    x = np.asarray(x, order=order)
    result: Any = cupy.asarray(x.reshape(-1, order="A").view(np.uint8)).view(x.dtype).reshape(x.shape, order=order)
    return result


def words(x: Any) -> Any:
    """The same elements as CuPy copies them."""
    return x.view(np.uint16) if x.dtype.name == "bfloat16" else x


def to_host(x: Any) -> Array:
    """The same array in the host's memory."""
    result: Array = words(x).get().view(x.dtype)
    return result


def bits(x: Any) -> Array:
    """**Collective.** An array's elements, which must be equal on all ranks."""
    result = to_host(x)
    same_on_all_ranks(result.tobytes())
    return result


@pytest.mark.parametrize("name", NAMES)
def test_allreduce_is_numpys_with_equal_bits_on_all_ranks(
    ctx: pblas.Context, small: pblas.Context, messages: pblas.Context, name: str
) -> None:
    """In and out of place, in one round and in many, again with the same arrays and with others."""
    dtype, contexts = dtype_of(name), (ctx, small, messages)
    for number, shape in enumerate(trimmed(SHAPES, 3)):
        everywhere = random_terms(shape, dtype, number)
        for op in trimmed(OPS[name], 1):
            for algorithm in ALGORITHMS:
                for context in contexts[: {70001: 1, 5: 3}.get(sum(shape[:1]), 2)]:
                    x, out = to_gpu(everywhere[RANK]), cupy.empty(shape, dtype)
                    result = bits(context.allreduce(x, op=op, algorithm=algorithm))
                    check(result, everywhere, op)
                    for _ in range(2):
                        assert context.allreduce(x, out, op=op, algorithm=algorithm) is out
                    assert to_host(out).tobytes() == result.tobytes()
                    assert to_host(x).tobytes() == everywhere[RANK].tobytes()
                    context.allreduce(x, x, op=op, algorithm=algorithm)
                    assert to_host(x).tobytes() == result.tobytes()


@pytest.mark.parametrize("offset", [0, 1])
def test_rounds_of_large_misaligned_arrays(ctx: pblas.Context, offset: int) -> None:
    dtype, size = dtype_of("float16"), ((9 if SHARED else 40) << 20) // 2 + 13
    x, out = (cupy.full(size + 8, POISON, dtype)[offset : offset + size] for _ in range(2))
    x[:] = cupy.arange(size) % 7 - RANK
    expected = (cupy.arange(size) % 7) * P - P * (P - 1) // 2
    for algorithm in ("one_shot", "two_shot"):
        out[:] = POISON
        ctx.allreduce(x, out, algorithm=algorithm)
        assert bool((out == expected).all())
        assert bool((out.base[:offset] == POISON).all())
        assert bool((out.base[offset + size :] == POISON).all())
    part = ctx.reduce_scatter(x, op="max")
    first = sum(len(rows) for rows in np.array_split(np.empty(size, np.int8), P)[:RANK])
    assert bool((part == (cupy.arange(size) % 7)[first : first + part.size]).all())
    whole = ctx.allgather(part, counts=[len(rows) for rows in np.array_split(np.empty(size, np.int8), P)])
    assert bool((whole == cupy.arange(size) % 7).all())


AMID = 2


def forms(x: Array) -> list[Any]:
    """The same elements in memory of all kinds."""
    amid = cupy.full([2 * n + 1 for n in x.shape], POISON, x.dtype)
    inside: Any = (*[slice(1, None, 2)] * x.ndim, ...)
    amid[inside] = cupy.asarray(x)
    return [to_gpu(x), to_gpu(x, "F"), amid[inside], cupy.ascontiguousarray(to_gpu(x)[::-1])[::-1]]


@pytest.mark.parametrize("shape", [(3,), (9, 8), (2, 3, 17)])
def test_any_order_and_view(ctx: pblas.Context, small: pblas.Context, shape: tuple[int, ...]) -> None:
    everywhere, epilogue = (
        random_terms(shape, np.float32),
        Epilogue("x + f * r", f=forms(np.ones(shape, np.float32))[AMID], r=2.0),
    )
    for algorithm in (*ALGORITHMS, "auto"):
        for step in range(4):
            for context in (ctx, small):
                kind = (step + step // 2) % 4
                x, out = forms(everywhere[RANK])[step], forms(np.full(shape, 7, np.float32))[kind]
                assert context.allreduce(x, out, algorithm=algorithm) is out
                check(bits(out), everywhere)
                context.allreduce(x, x, epilogue=epilogue, algorithm=algorithm)
                check(bits(x), [*everywhere, np.full(shape, 2, np.float32)])
                whole: Any = out.base
                assert kind != AMID or int((whole == POISON).sum()) == whole.size - out.size


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_in_symmetric_memory_are_accessed_in_place(
    ctx: pblas.Context, small: pblas.Context, order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """x, out, both or neither, on all ranks or on some."""
    monkeypatch.setattr("pblas.backends.nvshmem.collective_launch.PULLED_NBYTES", 0)
    everywhere = [np.array(x, order=order) for x in random_terms((90, 71), np.float64)]
    for context in (ctx, small):
        desc = MatrixDescriptor.replicated(90, 71, P, order=order)
        shared_x, shared_out, scratch = (context.empty(desc).local for _ in range(3))
        for algorithm in ("one_shot", "two_shot"):
            expected = None
            for where in range(5):
                own = cupy.empty((90, 71), order=order)
                x = (shared_x, shared_x, shared_x, own, scratch if RANK else own)[where]
                out = (shared_out, own, x, shared_out, x)[where]
                for _ in range(3):
                    x[...] = to_gpu(everywhere[RANK])
                    context.allreduce(x, out, algorithm=algorithm, epilogue="x * 2")
                    result = bits(out)
                    x[...] = out[...] = POISON  # a rank that still reads here would get poison
                expected = result if expected is None else expected
                assert np.array_equal(result, expected), (algorithm, where)
                check(result / 2, everywhere)
        shared_x[...] = to_gpu(everywhere[RANK])
        part = context.reduce_scatter(shared_x)
        check(to_host(part), [np.array_split(x, P)[RANK] for x in everywhere])
        shared_x[...] = to_gpu(everywhere[RANK])
        for _ in range(3):
            assert np.array_equal(to_host(context.allgather(shared_x, counts=[90] * P)), np.concatenate(everywhere))
        shared_x[...] = POISON


@pytest.mark.parametrize("rows", [0, 1, 9])
def test_reduce_scatter_splits_rows(
    ctx: pblas.Context, small: pblas.Context, messages: pblas.Context, rows: int
) -> None:
    everywhere = random_terms((rows, 77), np.complex64)
    for context in (ctx, small, messages):
        for keywords in ({}, {"counts": [0] * (P - 1) + [rows]}):
            bounds = np.cumsum([0, *(keywords.get("counts") or map(len, np.array_split(np.empty(rows), P)))])
            own = slice(*bounds[RANK : RANK + 2])
            x = to_gpu(everywhere[RANK])
            result = to_host(context.reduce_scatter(x, **keywords))  # type: ignore[arg-type]
            check(result, [x[own] for x in everywhere])
            context.reduce_scatter(x, x[own], **keywords)  # type: ignore[arg-type]
            assert np.array_equal(to_host(x[own]), result)
            x[own] = to_gpu(everywhere[RANK][own])
            assert np.array_equal(to_host(x), everywhere[RANK])
            bias = to_gpu(random_terms((77,), np.complex64, 5)[0])
            shifted = to_host(context.reduce_scatter(x, epilogue=Epilogue("x - b", b=bias), **keywords))  # type: ignore[arg-type]
            check(shifted, [*(x[own] for x in everywhere), np.broadcast_to(-to_host(bias), result.shape)])


@pytest.mark.parametrize("name", ["float16", "complex128"])
def test_allgather_concatenates_all_rows(
    ctx: pblas.Context, small: pblas.Context, messages: pblas.Context, name: str
) -> None:
    dtype = dtype_of(name)
    for counts in ([4] * P, [(3 * rank) % 5 for rank in range(P)], [0] * P, [700] + [1] * (P - 1)):
        everywhere = [x[:count] for x, count in zip(random_terms((max(counts), 6), dtype), counts, strict=True)]
        expected, start = np.concatenate(everywhere), sum(counts[:RANK])
        for context in (ctx, small, messages):
            x, out = to_gpu(everywhere[RANK]), cupy.empty((sum(counts), 6), dtype, "CF"[RANK % 2])
            assert np.array_equal(to_host(context.allgather(x)), expected)
            for _ in range(3):
                assert context.allgather(x, out, counts=counts) is out
                assert np.array_equal(to_host(out), expected)
                out[...] = POISON
            for last in (1, 0, 1):  # one rank has other rows, while its peers pass the same arrays
                rows = x[: len(x) - last] if RANK == P - 1 and len(x) > 1 else x
                assert len(context.allgather(rows)) == sum(counts) - last * (counts[-1] > 1)
            out[start : start + counts[RANK]] = x
            context.allgather(out[start : start + counts[RANK]], out)
            assert np.array_equal(to_host(out), expected)


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
def test_epilogues_are_applied_to_the_sum_and_rounded_once(
    ctx: pblas.Context, small: pblas.Context, messages: pblas.Context, name: str
) -> None:
    dtype, shape = dtype_of(name), (7, 9)
    everywhere, row, full = (
        random_terms(shape, dtype),
        random_terms(shape, dtype, 1)[0][0],
        random_terms(shape, dtype, 2)[0],
    )
    wide = [x.astype(np.longdouble) for x in (*everywhere, row, full)]
    total = sum(wide[:P])
    exact = np.maximum(total * 0.5 + wide[P], 0) * wide[P + 1]
    size = (sum(map(np.abs, wide[:P])) + 1) * np.abs(wide[P + 1])
    for context in (ctx, small, messages):
        for algorithm in ALGORITHMS:
            for order in ("C", "F"):
                x, out = to_gpu(everywhere[RANK], order), to_gpu(full, order)
                epilogue = Epilogue("relu(x * s + bias) * f", s=0.5, bias=to_gpu(row), f=out)  # out is an operand
                result = bits(context.allreduce(x, out, epilogue=epilogue, algorithm=algorithm))
                assert (np.abs(result - exact) <= THRESHOLD * eps_of(dtype) * size).all()


@pytest.mark.parametrize("name", ["float64", "bfloat16"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 40), (6, 41), (30, 4000)])
def test_rmsnorm_after_the_residual_is_added(
    ctx: pblas.Context, small: pblas.Context, name: str, rows: int, columns: int
) -> None:
    dtype, shape = dtype_of(name), (rows, columns)
    everywhere, residual = random_terms(shape, dtype), random_terms(shape, dtype, 1)[0]
    weight = random_terms((columns,), dtype, 2)[0]
    total: Array = np.sum([x.astype(np.longdouble) for x in (*everywhere, residual)], axis=0)
    exact = total / np.sqrt((total**2).mean(axis=1, keepdims=True) + 1e-3) * weight.astype(np.longdouble)
    bound = THRESHOLD * (P + 1) * eps_of(dtype) * np.abs(weight.astype(np.longdouble)) * 4
    for context in (ctx, small):
        shared = context.empty(MatrixDescriptor.replicated(rows, columns, P, order="C"), dtype).local
        for algorithm in (*ALGORITHMS, "auto"):
            for x, h in ((to_gpu(everywhere[RANK]), to_gpu(residual)), (shared, to_gpu(residual))):
                words(x)[...] = words(to_gpu(everywhere[RANK]))
                epilogue = Epilogue("rmsnorm", weight=to_gpu(weight), eps=1e-3, residual=h)
                assert context.allreduce(x, x, epilogue=epilogue, algorithm=algorithm) is x
                check(bits(h), [*everywhere, residual])
                assert (np.abs(bits(x) - exact) <= bound).all()
            normal = to_host(
                context.allreduce(to_gpu(everywhere[RANK]), epilogue=Epilogue("rmsnorm", eps=0.0), algorithm=algorithm)
            )
            assert (np.abs((normal.astype(np.longdouble) ** 2).mean(axis=1) - 1) <= THRESHOLD * eps_of(dtype)).all()
        own = np.array_split(np.arange(rows), P)[RANK]
        h = to_gpu(residual[own])
        wide = to_gpu(weight.astype(accumulator_dtype(dtype)))
        part = context.reduce_scatter(
            to_gpu(everywhere[RANK]), epilogue=Epilogue("rmsnorm", weight=wide, eps=1e-3, residual=h)
        )
        assert (np.abs(to_host(part) - exact[own]) <= bound).all()
        check(to_host(h), [x[own] for x in (*everywhere, residual)])


def test_calls_follow_the_callers_stream_and_replay_in_its_graph(ctx: pblas.Context) -> None:
    """Eager calls and replays alternate, on a stream that a late rank delays; graphs count their calls on the GPU."""
    shape, stream = (33, 64), cupy.cuda.Stream(non_blocking=True)
    x, out, part = cupy.zeros(shape, np.float32), cupy.zeros(shape, np.float32), cupy.zeros((33 * P, 64), np.float32)
    shared = ctx.empty(MatrixDescriptor.replicated(*shape, P, order="C"), "float32").local
    bias, counts = cupy.arange(64, dtype=np.float32), [33] * P
    engine: Any = ctx.runtime.backend.engine()
    epilogue = Epilogue("relu(x + b)", b=bias)

    def calls() -> None:
        for algorithm in ("one_shot", "two_shot"):
            ctx.allreduce(x, out, algorithm=algorithm, epilogue=epilogue, stream=stream)
            ctx.allreduce(out, shared, op="max", algorithm=algorithm, stream=stream)
            ctx.allreduce(shared, out, algorithm=algorithm, stream=stream)
        ctx.allgather(out, part, counts=counts, stream=stream)
        ctx.reduce_scatter(part, part[33 * RANK : 33 * RANK + 33], counts=counts, stream=stream)

    def expected(seed: int) -> Array:
        values = [np.arange(33 * 64).reshape(shape) % 5 + seed + rank for rank in range(P)]
        return (np.maximum(sum(values) + np.arange(64), 0) * P * P).astype(np.float32)

    def load(seed: int) -> None:
        with stream:
            engine._kernels.delay(stream.ptr, 20_000 * (RANK * 7 % P))
            x[...] = cupy.arange(33 * 64, dtype=np.float32).reshape(shape) % 5 + seed + RANK

    with stream:
        stream.begin_capture()  # the first calls of their kinds are made here
        calls()
        graph = stream.end_capture()
    for seed in range(12):
        load(seed)
        calls() if seed % 3 == 1 else graph.launch(stream)
        result = part[33 * RANK : 33 * RANK + 33].get(stream=stream)
        assert np.array_equal(result, expected(seed)), seed
        same_on_all_ranks(result.tobytes())
    for seed in range(20):  # the results are not read in between
        load(seed)
        calls() if seed % 2 else graph.launch(stream)
    assert np.array_equal(part[33 * RANK : 33 * RANK + 33].get(stream=stream), expected(19))
    with stream:
        stream.begin_capture()
        raises_on_all_ranks(errors.ArgumentError, "cannot be captured", lambda: ctx.allreduce(x, algorithm="naive"))
        stream.end_capture()


WRONG: list[tuple[type[Exception], str, Any]] = [
    (errors.ArgumentError, "x must be an array on this rank's GPU, got ndarray", lambda c, _: c.allreduce(np.ones(3))),
    (errors.DTypeError, "dtype must be one of", lambda c, x: c.allreduce(x.astype(np.int32))),
    (errors.ArgumentError, "op must be one of sum,", lambda c, x: c.allreduce(x, op="mean")),
    (errors.ArgumentError, "out has shape (4, 5)", lambda c, x: c.allreduce(x, cupy.ones((4, 5), np.float32))),
    (errors.ArgumentError, "out overlaps x", lambda c, x: c.allreduce(x[:2], x[1:3])),
    (errors.ArgumentError, "'x *', column 4", lambda c, x: c.allreduce(x, epilogue="x *")),
    (errors.ArgumentError, "Python function", lambda c, x: c.allreduce(x, epilogue=lambda y: y)),
    (errors.ArgumentError, "b must be a number or an array of shape (6,)", lambda c, x: c.allreduce(
        x, epilogue=Epilogue("x + b", b=np.ones(6)))),
    (errors.ArgumentError, "11 operands at most", lambda c, x: c.allreduce(
        x, epilogue=Epilogue("x + " + " + ".join(f"a{i}" for i in range(12)), **{f"a{i}": 1.0 for i in range(12)}))),
    (errors.ArgumentError, "counts says 5", lambda c, x: c.allgather(x, counts=[5] * P)),
    (errors.ArgumentError, "stream must be a CUDA stream", lambda c, x: c.allreduce(x, x, stream="s")),
    (errors.ArgumentError, "stream must be a CUDA stream", lambda c, x: c.allgather(x, stream="s")),
]  # fmt: skip


@pytest.mark.parametrize("backend", ["nvshmem", "cuda"])
def test_errors_are_the_same_everywhere(backend: Any) -> None:
    """If all ranks make the mistake, the context stays usable."""
    with pblas.Context(backend=backend, timeout=20) as context:
        x = cupy.ones((4, 6), np.float32)
        context.allreduce(x, x)
        for kind, text, call in WRONG:
            if backend == "cuda" and "operands" in text:  # they are NumPy's there
                continue
            raises_on_all_ranks(kind, text, partial(call, context, x))
        x = cupy.ones((4, 6), np.float32)
        assert bool((context.allreduce(x) == P).all())
        check_product(context)


def test_differences_between_ranks_are_named(ctx: pblas.Context) -> None:
    if P == 1:
        pytest.skip("one rank agrees with itself")
    odd = RANK == P - 1
    raises_on_all_ranks(errors.MismatchError, "shape differs", lambda: ctx.allreduce(cupy.ones(16 + odd)))
    epilogue = Epilogue("x - s", s=cupy.ones(3) if odd else 1.0)
    raises_on_all_ranks(errors.MismatchError, "s differs", lambda: ctx.allreduce(cupy.ones(3), epilogue=epilogue))


def _call_until_the_error_arrives(call: Any, op: Any) -> None:
    """Ranks that launch without an agreement learn of a rank's rejection in a later call."""
    call(op=op)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        time.sleep(0.1)
        call()


@pytest.mark.parametrize("backend", ["cuda", "nvshmem"])
def test_a_mistake_of_one_rank_is_raised_by_all(backend: Any) -> None:
    for wrong in some_wrong()[:1]:
        x, context = cupy.ones((4, 6), np.float32), pblas.Context(backend=backend, timeout=20)
        context.allreduce(x, x)
        op: Any = "mean" if RANK in wrong else "sum"
        with pytest.raises(errors.ArgumentError, match="op must be one of"):
            _call_until_the_error_arrives(partial(context.allreduce, x, x), op)
        context.close()


@pytest.mark.skipif(not find_spec("torch"), reason="torch is no dependency")
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_tensors_of_torch(ctx: pblas.Context, messages: pblas.Context, name: str) -> None:
    """On torch's current stream, also in its graphs; the result is a tensor."""
    torch: Any = import_module("torch")
    torch.cuda.set_device(cupy.cuda.Device().id)
    dtype, stream = getattr(torch, name), torch.cuda.Stream()

    def tensor(rank: int, scale: int = 1) -> Any:
        return (torch.arange(60, device="cuda").reshape(10, 6) % 7 * scale + rank).to(dtype)

    bias = torch.ones(6, dtype=dtype, device="cuda")
    epilogue = Epilogue("x + b", b=bias)
    total = sum(tensor(rank).float() for rank in range(P)) + 1

    def check_calls(context: pblas.Context) -> None:
        for _ in range(3):
            x = tensor(RANK)
            result = context.allreduce(x, epilogue=epilogue)
            assert isinstance(result, torch.Tensor)
            assert torch.equal(result.float(), total)
            by_columns = context.allreduce(x.T)
            assert torch.equal(by_columns.T.float() + 1, total)
            rows = context.reduce_scatter(x)
            assert torch.equal(context.allgather(rows).float() + 1, total)
            assert context.allreduce(x, x, epilogue=epilogue) is x
            assert torch.equal(x.float(), total)

    check_calls(messages)
    with torch.cuda.stream(stream):
        check_calls(ctx)
        x, out = tensor(RANK), torch.empty(10, 6, dtype=dtype, device="cuda")
        ctx.allreduce(x, out, epilogue=epilogue)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
            ctx.allreduce(x, out, epilogue=epilogue)
        for scale in (1, 2, 3):
            x.copy_(tensor(RANK, scale))
            graph.replay()
            expected = sum(tensor(rank, scale).float() for rank in range(P)) + 1
            assert torch.equal(out.float(), expected)
    stream.synchronize()

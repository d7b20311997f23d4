"""Laws of pblas.tp on GPUs: results are arrays of the caller's library, on its current stream and in its graphs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import pytest

import pblas
from pblas import tp
from pblas.backends.cpu.pointwise import evaluate
from pblas.epilogues import NAMED, parse
from tests.common.gauge import Array, dtype_of, eps_of
from tests.common.ranks import COMM

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]

P, RANK = COMM.size, COMM.rank
T, I, O = 8 * P + 3, 16 * P, 32 * P
KINDS = ("allgather", "reduce_scatter", "allreduce")
LIBRARIES = ["cupy", *(["torch"] if find_spec("torch") else [])]


@pytest.fixture(scope="module")
def ctx() -> Iterator[pblas.Context]:
    with pblas.Context(backend="nvshmem", timeout=30) as context:
        yield context


class Library:
    """Conversion from NumPy to a library's arrays and back."""

    def __init__(self, name: str, dtype: str) -> None:
        self.name, self.dtype = name, dtype
        if name == "torch":
            self.torch: Any = import_module("torch")
            self.torch.cuda.set_device(cupy.cuda.Device().id)

    def array(self, x: Array) -> Any:
        if self.name == "cupy":
            return cupy.asarray(np.ascontiguousarray(x, np.float32)).astype(dtype_of(self.dtype))
        return self.torch.tensor(np.ascontiguousarray(x, np.float32), dtype=getattr(self.torch, self.dtype)).cuda()

    def host(self, x: Any) -> Array:
        assert isinstance(x, cupy.ndarray if self.name == "cupy" else self.torch.Tensor)
        plain = cupy.asnumpy(x.astype(np.float32)) if self.name == "cupy" else x.float().cpu().numpy()
        values: Array = plain.astype(float)
        return values


def parts(kind: str) -> dict[str, tuple[slice, slice]]:
    whole, tokens, inwards, outwards = slice(None), *(tp.local_shard(n, RANK, P) for n in (T, I, O))
    if kind == "allgather":
        return {"x": (tokens, whole), "w": (outwards, whole), "y": (whole, outwards)}
    y = (tokens, whole) if kind == "reduce_scatter" else (whole, whole)
    return {"x": (whole, inwards), "w": (whole, inwards), "y": y}


def functions(kind: str) -> tuple[Any, Any]:
    name = "allgather_linear" if kind == "allgather" else f"linear_{kind}"
    return getattr(tp, name), getattr(tp, f"{name}_backward")


def integers(shape: tuple[int, int], seed: int) -> Array:
    """Integers that every dtype holds exactly."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(float)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", KINDS)
def test_layers_and_gradients(ctx: pblas.Context, kind: str, library: str, dtype: str) -> None:
    """Several times with other values: eagerly, and by graphs of both parities."""
    lib, spread, (layer, gradients) = Library(library, dtype), parts(kind), functions(kind)
    options = {"ctx": ctx} | ({"tokens": T} if kind == "allgather" else {})
    w, bias = integers((O, I), 1), integers((1, O), 2)[0]
    w_, bias_ = lib.array(w[spread["w"]]), lib.array(bias[spread["y"][1]])
    x_, dy_ = lib.array(np.zeros((T, I))[spread["x"]]), lib.array(np.zeros((T, O))[spread["y"]])
    scale = 8 * eps_of(dtype_of(dtype))
    for repeat in range(5):
        x, dy = integers((T, I), 10 + repeat), integers((T, O), 20 + repeat)
        x_[...], dy_[...] = lib.array(x[spread["x"]]), lib.array(dy[spread["y"]])
        z = x @ w.T + bias
        for epilogue in (None, "silu"):
            y = lib.host(layer(x_, w_, bias_, epilogue, **options))
            expected = z if epilogue is None else np.asarray(evaluate(parse(NAMED[epilogue]), z, {}))
            assert np.abs(y - expected[spread["y"]]).max() <= scale * np.abs(expected).max(), (repeat, epilogue)
        results = gradients(dy_, x_, w_, **options)
        exact = dy @ w, dy.T @ x, dy.sum(0)
        places = spread["x"], spread["w"], spread["y"][1]
        for value, whole, place in zip(results, exact, places, strict=True):
            assert np.abs(lib.host(value) - whole[place]).max() <= scale * np.abs(whole).max(), repeat


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", KINDS)
def test_axes_between_tokens_and_features_come_back(ctx: pblas.Context, kind: str, library: str) -> None:
    """The first axis is divided among ranks, also unevenly; a residual has the axes of y."""
    lib, spread, (layer, gradients) = Library(library, "float32"), parts(kind), functions(kind)
    options = {"ctx": ctx} | ({"tokens": T} if kind == "allgather" else {})
    w, (x, dy) = integers((O, I), 1), (integers((6 * T, n), n).reshape(T, 2, 3, n) for n in (I, O))
    x_, dy_ = (lib.array(array[spread[key][0]][..., spread[key][1]]) for key, array in (("x", x), ("y", dy)))
    w_ = lib.array(w[spread["w"]])
    for epilogue, expected in ((None, x @ w.T), (pblas.Epilogue("x + r", r=dy_), x @ w.T + dy)):
        y = lib.host(layer(x_, w_, None, epilogue, **options))
        assert np.array_equal(y, expected[spread["y"][0]][..., spread["y"][1]])
    results = gradients(dy_, x_, w_, **options)
    assert np.array_equal(lib.host(results.x), (dy @ w)[spread["x"][0]][..., spread["x"][1]])
    assert np.array_equal(lib.host(results.weight), (dy.reshape(-1, O).T @ x.reshape(-1, I))[spread["w"]])


@pytest.mark.skipif(P == 1, reason="nothing travels")
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", KINDS[1:])
def test_partial_products_sent_in_32_bits_are_not_rounded(ctx: pblas.Context, kind: str, library: str) -> None:
    """Partial products are 1 + 2^-10, or 1 - P + 2^-10 on rank 0. 16 bits cannot represent them, but their sum."""
    lib, (layer, _), small = Library(library, "bfloat16"), functions(kind), 2.0**-10
    k = 64  # of a rank; with a smaller k operands would be gathered
    x = np.outer(np.ones(T), (1.0 if RANK else 1.0 - P, small, *np.zeros(k - 2)))

    def results(**options: Any) -> Array:
        return lib.host(layer(lib.array(x), lib.array(np.ones((O, k))), ctx=ctx, **options))

    assert (results(wire_dtype="float32") == P * small).all()
    assert (results() < P * small).all()


@pytest.mark.parametrize("library", LIBRARIES)
def test_swiglu_and_its_gradient(ctx: pblas.Context, library: str) -> None:
    lib, spread = Library(library, "float32"), parts("allgather")
    x, w, dy = integers((T, I), 1) / 8, integers((O, I), 2), integers((T, O // 2 // P), 3 + RANK)
    x_, w_, dy_ = lib.array(x[spread["x"]]), lib.array(w[spread["w"]]), lib.array(dy)
    aux = lib.array(np.zeros((T, O // P)))
    y = lib.host(tp.allgather_linear(x_, w_, None, "swiglu", aux=aux, tokens=T, ctx=ctx))
    z = (x @ w.T)[spread["y"]]
    gate, up = np.split(z, 2, axis=1)
    sigmoid = 1 / (1 + np.exp(-gate))
    assert np.allclose(y, gate * sigmoid * up, rtol=1e-5, atol=1e-5)
    assert np.allclose(lib.host(aux), z, rtol=1e-6, atol=1e-6)
    results = tp.allgather_linear_backward(dy_, x_, w_, "swiglu", aux=aux, tokens=T, needs=(False, True, True), ctx=ctx)
    dz = np.hstack([dy * up * sigmoid * (1 + gate * (1 - sigmoid)), dy * gate * sigmoid])
    assert np.allclose(lib.host(results.weight), dz.T @ x, rtol=1e-4, atol=1e-4)
    assert np.allclose(lib.host(results.bias), dz.sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif("torch" not in LIBRARIES, reason="torch is no dependency")
def test_training_on_several_ranks_equals_training_on_one(capsys: pytest.CaptureFixture[str]) -> None:
    """examples/tp_torch.py, by torch's autograd."""
    path = Path(__file__).parents[3] / "examples" / "tp_torch.py"
    spec: Any = spec_from_file_location("example_tp_torch", path)
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main([]) == 0
    out = capsys.readouterr().out
    if RANK == 0:
        assert float(out.split()[-1]) < 1e-4


@pytest.mark.skipif("torch" not in LIBRARIES, reason="torch is no dependency")
def test_a_gradient_that_would_be_lost_is_rejected(ctx: pblas.Context) -> None:
    lib = Library("torch", "float32")
    x, w = lib.array(np.ones((3, 4))).requires_grad_(), lib.array(np.ones((2, 4)))
    with pytest.raises(pblas.ArgumentError, match="requires a gradient"):
        tp.linear_allreduce(x, w, ctx=ctx)
    with lib.torch.no_grad():
        assert (lib.host(tp.linear_allreduce(x, w, ctx=ctx)) == 4 * P).all()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_graph_of_the_library_records_layers(ctx: pblas.Context, library: str) -> None:
    """A column-parallel layer and then row-parallel ones, on a stream that is not the default one."""
    lib, spread = Library(library, "float32"), parts("allgather")
    w1, w2 = integers((O, I), 1), integers((I, O), 2)
    w1_, w2_ = lib.array(w1[spread["w"]]), lib.array(w2[:, spread["y"][1]])
    x_ = lib.array(np.zeros((T, I))[spread["x"]])
    rows = tp.local_shard(T, RANK, P)

    def block() -> tuple[Any, Any]:
        h = tp.allgather_linear(x_, w1_, None, "relu", tokens=T, ctx=ctx)
        return tp.linear_reduce_scatter(h, w2_, ctx=ctx), tp.linear_allreduce(h, w2_, None, "x * 2", ctx=ctx)

    if library == "cupy":
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            for _ in range(3):
                block()
            stream.synchronize()
            stream.begin_capture()
            y, z = block()
            graph = stream.end_capture()

        def replay() -> None:
            graph.launch(stream)
            stream.synchronize()
    else:
        stream = lib.torch.cuda.Stream()
        with lib.torch.cuda.stream(stream):
            for _ in range(3):
                block()
            stream.synchronize()
            recorded = lib.torch.cuda.CUDAGraph()
            with lib.torch.cuda.graph(recorded, stream=stream):
                y, z = block()

        def replay() -> None:
            recorded.replay()
            lib.torch.cuda.synchronize()

    for repeat in range(4):
        x = integers((T, I), repeat)
        x_[...] = lib.array(x[rows])
        cupy.cuda.Device().synchronize()
        COMM.Barrier()
        replay()
        total = np.maximum(x @ w1.T, 0) @ w2.T
        assert np.array_equal(lib.host(y), total[rows]), repeat
        assert np.array_equal(lib.host(z), 2 * total), repeat


@pytest.mark.parametrize("kind", ["reduce_scatter", "allreduce"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_norm_after_sums_keeps_the_residual(ctx: pblas.Context, library: str, kind: str) -> None:
    lib, spread = Library(library, "float32"), parts(kind)
    x, w, residual = integers((T, I), 1), integers((O, I), 2), integers((T, O), 3)
    x_, w_, residual_ = lib.array(x[spread["x"]]), lib.array(w[spread["w"]]), lib.array(residual[spread["y"]])
    weight, total = np.linspace(0.5, 2, O), (x @ w.T + residual)[spread["y"]]
    norm = pblas.Epilogue("rmsnorm", weight=lib.array(weight[None, :])[0], eps=1e-3, residual=residual_)
    y = lib.host(functions(kind)[0](x_, w_, None, norm, ctx=ctx))
    assert np.array_equal(lib.host(residual_), total)
    assert np.allclose(y, total / np.sqrt((total**2).mean(1, keepdims=True) + 1e-3) * weight, rtol=1e-5, atol=1e-6)

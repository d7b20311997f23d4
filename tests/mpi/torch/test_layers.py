"""Laws of the layers of pblas.torch: they and their gradients are those of torch.nn on unsharded weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import errors
from tests.common.pages import blocks_of
from tests.common.ranks import COMM, Contexts, open_context, raises_on_all_ranks, some_wrong
from tests.common.tensors import EPS, close, made, part_of, random, whole

torch: Any = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
parallel: Any = pytest.importorskip("torch.distributed.tensor.parallel")
tensors: Any = pytest.importorskip("torch.distributed.tensor")
pt: Any = pblas.torch
Shard, Replicate, Partial = tensors.Shard, tensors.Replicate, tensors.Partial

P, RANK = COMM.size, COMM.rank
HIDDEN, WIDE = 7, 2 * P + 3  # features that do not divide
TOKENS, BATCH = 2 * P, P + 1
SETTINGS = ("shared", "message")
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.torch,
    pytest.mark.ranks(3, reason="to load torch takes seconds on each rank; gloo_torch_job.py has 4"),
]


@pytest.fixture(scope="module")
def mesh(contexts: Contexts) -> Iterator[Any]:
    """A mesh of all ranks; its layers use the context `shared`."""
    yield pt.init_mesh(ctx=contexts["shared"])
    torch._dynamo.reset()


def own(x: Any, dim: int | None) -> Any:
    """This rank's part of x along an axis; all of it without one."""
    return part_of(x, dim, RANK, P)


class Block(nn.Module):  # type: ignore[misc, name-defined]
    """A feed-forward block with torch's layers, as users write it."""

    def __init__(self, activation: Any, gated: bool, bias: bool = True, dtype: Any = torch.float64) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, WIDE, bias, dtype=dtype), nn.Linear(WIDE, HIDDEN, bias, dtype=dtype)
        if gated:
            self.gate = nn.Linear(HIDDEN, WIDE, bias, dtype=dtype)
        self.activation, self.gated = activation, gated

    def forward(self, x: Any) -> Any:
        return self.down(self.activation(self.gate(x)) * self.up(x) if self.gated else self.activation(self.up(x)))


@pytest.mark.parametrize("sequence_dim", [None, 0, -2])
@pytest.mark.parametrize("name", EPS)
def test_layers_have_the_values_and_gradients_of_unsharded_ones(mesh: Any, name: str, sequence_dim: int | None) -> None:
    """Also where no gradient is recorded, and the activation is an epilogue; and of an x that is not contiguous."""
    dtype = getattr(torch, name)
    up, down = made(lambda: (nn.Linear(HIDDEN, WIDE, dtype=dtype), nn.Linear(WIDE, HIDDEN, dtype=dtype)))
    x, dy = random(BATCH, TOKENS, HIDDEN, dtype=dtype), random(BATCH, TOKENS, HIDDEN, dtype=dtype, seed=1)
    x, dy = (z.transpose(0, 1) if sequence_dim == 0 else z for z in (x, dy))
    wide = [copy.deepcopy(layer).double() for layer in (up, down)]
    x_wide = x.double().clone().requires_grad_()
    expected = wide[1](F.gelu(wide[0](x_wide)))
    expected.backward(dy.double())
    first = pt.ColumnParallelLinear.from_linear(up, mesh, sequence_dim=sequence_dim)
    second = pt.RowParallelLinear.from_linear(down, mesh, sequence_dim=sequence_dim)
    x_ = own(x, sequence_dim).clone().requires_grad_()
    residual = own(random(*x.shape, dtype=dtype, seed=2), sequence_dim).requires_grad_()
    y = second(first(x_, activation="gelu"), residual=residual)
    y.backward(own(dy, sequence_dim))
    assert torch.equal(residual.grad, own(dy, sequence_dim))
    expected = expected + random(*x.shape, dtype=dtype, seed=2)
    assert y.dtype == dtype
    close(y, own(expected, sequence_dim), name)
    close(x_.grad, own(x_wide.grad, sequence_dim), name)
    for layer, reference in zip((first, second), wide, strict=True):
        close(whole(layer.weight.grad), reference.weight.grad, name, BATCH * TOKENS)
        close(whole(layer.bias.grad), reference.bias.grad, name, BATCH * TOKENS)
    for quiet in (torch.no_grad, torch.inference_mode):
        with quiet():
            y = second(first(x_, activation="gelu"), residual=residual)
            close(y, own(expected, sequence_dim), name)


@pytest.mark.parametrize("gated", [False, True])
def test_a_block_has_the_state_and_the_gradients_of_an_unsharded_one(
    mesh: Any, contexts: Contexts, gated: bool
) -> None:
    """Over messages too; gradients of two passes are added, and recomputed activations change nothing."""
    block = made(lambda: Block(F.silu, gated))
    x, dy = random(TOKENS, HIDDEN), random(TOKENS, HIDDEN, seed=1)
    for _ in range(2):
        block(x).backward(dy)
    for setting in SETTINGS:
        pt.init_mesh(ctx=contexts[setting])
        sharded = pt.ParallelMLP.from_linear(
            block.up, block.down, block.gate if gated else None, mesh=mesh, sequence_dim=0
        )
        sharded(own(x, 0)).backward(own(dy, 0))
        recomputed = torch.utils.checkpoint.checkpoint(sharded, own(x, 0), use_reentrant=False)
        recomputed.backward(own(dy, 0))
        close(recomputed, own(block(x), 0))
        pairs = {"gate_up": ("gate", "up"), "up": ("up",), "down": ("down",)}
        for name, parameter in sharded.named_parameters():
            layer, kind = name.split(".")
            expected = [getattr(getattr(block, each), kind).grad for each in pairs[layer]]
            close(whole(parameter.grad), torch.stack(expected) if layer == "gate_up" else expected[0])
        state = pt.full_state_dict(sharded)
        assert state.keys() == block.state_dict().keys()
        assert all(torch.equal(state[key], value) for key, value in block.state_dict().items())
        other = pt.ParallelMLP(HIDDEN, WIDE, gated=gated, mesh=mesh, sequence_dim=0, dtype=torch.float64)
        other.load_state_dict(block.state_dict())
        assert torch.equal(other(own(x, 0)), recomputed)
        other.load_state_dict(sharded.state_dict())
        assert torch.equal(other(own(x, 0)), recomputed)
    pt.init_mesh(ctx=contexts["shared"])


def test_tokens_need_not_divide(mesh: Any) -> None:
    tokens = 2 * P + 1
    layer = made(lambda: nn.Linear(HIDDEN, WIDE, dtype=torch.float64))
    x = random(tokens, HIDDEN)
    sharded = pt.ColumnParallelLinear.from_linear(layer, mesh, sequence_dim=0)
    close(sharded(own(x, 0), tokens=tokens), own(layer(x), 1))
    weight, bias = own(layer.weight, 0), own(layer.bias, 0)
    y = pt.linear(own(x, 0), weight, bias, "allgather", activation="silu", tokens=tokens, features=WIDE, mesh=mesh)
    close(y, own(F.silu(layer(x)), 1))
    one = pt.ColumnParallelLinear.from_linear(layer, mesh)
    close(one(x[0]), own(layer(x[0]), 0))


@pytest.mark.parametrize("kind", ["allgather", "allreduce"])
def test_gradients_of_complex_numbers_are_those_of_torch(mesh: Any, kind: str) -> None:
    cut = 0 if kind == "allgather" else 1
    x, weight, dy = (torch.complex(random(*shape), random(*shape, seed=1)) for shape in ((P, P), (P, P), (P, P)))
    x.requires_grad_()
    weight.requires_grad_()
    (x @ weight.T).backward(dy)
    x_, weight_ = (own(z.detach(), cut).clone().requires_grad_() for z in (x, weight))
    pt.linear(x_, weight_, None, kind, mesh=mesh).backward(own(dy, 1) if cut == 0 else dy)
    for z_, z in ((x_, x), (weight_, weight)):
        close(torch.view_as_real(z_.grad), torch.view_as_real(own(z.grad, cut)))


@pytest.mark.parametrize("kind", ["allgather", "reduce_scatter", "allreduce", "replicated"])
def test_gradients_are_finite_differences(mesh: Any, kind: str) -> None:
    """Of the layer as a function of whole arrays: each rank takes its shards, and the result is gathered."""
    group, cuts_features_in = mesh.get_group().group_name, kind in ("reduce_scatter", "allreduce")
    gathered, summed = torch.ops.pblas.gather_features, torch.ops.pblas.sum_gradients

    def layer(x: Any, weight: Any, bias: Any) -> Any:
        w = own(summed(weight, group), 1 if cuts_features_in else 0)
        x_ = x if kind == "replicated" else own(summed(x, group), 0 if kind == "allgather" else 1)
        b = bias if cuts_features_in else own(summed(bias, group), 0)
        y = pt.linear(x_, w, b, kind, features=weight.shape[1 if cuts_features_in else 0], mesh=mesh)
        if kind == "allreduce":
            return y
        return gathered(y.t(), P, group).t() if kind == "reduce_scatter" else gathered(y, P + 1, group)

    x, weight, bias = (random(*shape).requires_grad_() for shape in ((P, P + 1), (P + 1, P + 1), (P + 1,)))
    assert torch.autograd.gradcheck(layer, (x, weight, bias))


def test_autocast_multiplies_in_16_bits(mesh: Any) -> None:
    layer = pt.ColumnParallelLinear(HIDDEN, WIDE, mesh=mesh)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(random(2, HIDDEN, dtype=torch.float32))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert whole(layer.weight.grad).dtype == torch.float32


def test_a_mesh_has_all_ranks(mesh: Any) -> None:
    with pytest.raises(errors.ArgumentError, match="shape must have"):
        pt.init_mesh((P + 1,))
    with pytest.raises(errors.ArgumentError, match="mesh must be a DeviceMesh"):
        pt.context_of((P,))


class Model(nn.Module):  # type: ignore[misc, name-defined]
    """An embedding, norms, a block and a head, as in a model for torch's `parallelize_module`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, HIDDEN)
        self.norm, self.last = nn.LayerNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.block = Block(F.gelu, gated=False, dtype=torch.float32)
        self.head = nn.Linear(HIDDEN, 2 * P + 1)

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        return self.head(self.last(x + self.block(self.norm(x))))


def plan(of: Any, sequence: bool) -> dict[str, Any]:
    """A plan of torch's documentation, with the styles of torch or of pblas."""
    cut = Shard(1) if sequence else Replicate()
    styles = {
        "embed": of.RowwiseParallel(input_layouts=Replicate(), output_layouts=cut),
        "block.up": of.ColwiseParallel(input_layouts=cut),
        "block.down": of.RowwiseParallel(output_layouts=cut),
        "head": of.ColwiseParallel(input_layouts=cut, output_layouts=Replicate()),
    }
    norms = {"norm": of.SequenceParallel(), "last": of.SequenceParallel(use_local_output=True)}
    return styles | norms if sequence else styles


@pytest.mark.parametrize("sequence", [False, True])
def test_plans_of_parallelize_module_work_with_another_import(mesh: Any, sequence: bool) -> None:
    model = made(Model)
    ids = torch.arange(BATCH * TOKENS).reshape(BATCH, TOKENS) % 11
    dy = random(BATCH, TOKENS, 2 * P + 1, dtype=torch.float32, seed=1)
    expected = model(ids)
    expected.backward(dy)
    sharded = parallel.parallelize_module(copy.deepcopy(model), mesh, plan(pt, sequence))
    assert isinstance(sharded.block.up, pt.ColumnParallelLinear)
    sharded.zero_grad()
    y = sharded(ids)
    y.backward(dy)
    close(y, expected, "float32")
    for (name, parameter), reference in zip(sharded.named_parameters(), model.parameters(), strict=True):
        assert isinstance(parameter, tensors.DTensor) == (sequence or name.partition(".")[0] not in ("norm", "last"))
        close(whole(parameter.grad), reference.grad, "float32", BATCH * TOKENS)
    assert all(torch.equal(x, model.state_dict()[name]) for name, x in pt.full_state_dict(sharded).items())


def test_layers_compile_without_a_graph_break(mesh: Any) -> None:
    model = made(Model)
    parallel.parallelize_module(model, mesh, plan(pt, sequence=True))
    gated = pt.ParallelMLP(HIDDEN, 2 * P, gated=True, mesh=mesh, sequence_dim=1)

    def block(x: Any) -> Any:
        x = x + model.block(model.norm(x).to_local())
        return gated(x)

    x = random(BATCH, 2, HIDDEN, dtype=torch.float32).requires_grad_()
    parameters = [x, *(dict(model.named_parameters())[name] for name in ("norm.weight", "block.up.weight"))]
    results = []
    for call in (block, torch.compile(block, fullgraph=True, backend="aot_eager")):
        y = call(x)
        results.append((y, *torch.autograd.grad((y**2).sum(), parameters)))
    for eager, compiled in zip(*map(partial(map, whole), results), strict=True):
        close(compiled, eager, "float32")


@pytest.mark.parametrize("split", [False, True])
def test_styles_take_and_return_dtensors(mesh: Any, split: bool) -> None:
    layer = made(lambda: nn.Linear(WIDE, HIDDEN, dtype=torch.float64))
    x = random(TOKENS, WIDE)
    layout = Replicate() if split else Shard(-1)
    style = pt.RowwiseParallel(input_layouts=layout, output_layouts=Shard(0), use_local_output=False)
    sharded = parallel.parallelize_module(copy.deepcopy(layer), mesh, style)
    x_ = tensors.distribute_tensor(x, mesh, [Replicate()]).requires_grad_()
    y = sharded(x_)
    assert y.placements == (Shard(0),)
    close(whole(y), layer(x))
    (y.to_local() ** 2).sum().backward()
    x.requires_grad_()
    (layer(x) ** 2).sum().backward()
    close(whole(x_.grad), x.grad)


def test_dtensors_need_not_divide(mesh: Any) -> None:
    """Neither along tokens nor along features: those of a style have the shape of torch's, and take its gradients."""
    tokens, options = 2 * P + 1, {"use_local_output": False}
    for axis, turned in ((0, False), (1, True)):
        x = random(3, tokens, HIDDEN) if turned else random(tokens, HIDDEN)
        block = made(lambda: Block(F.relu, gated=False))
        norm = nn.LayerNorm(HIDDEN).double()
        model = nn.Sequential(norm, block.up, nn.ReLU(), block.down)
        plan = {
            "0": pt.SequenceParallel(sequence_dim=axis, **options),
            "1": pt.ColwiseParallel(input_layouts=Shard(axis), **options),
            "3": pt.RowwiseParallel(output_layouts=Shard(axis), **options),
        }
        sharded = parallel.parallelize_module(copy.deepcopy(model), mesh, plan)
        x_ = tensors.distribute_tensor(x, mesh, [Shard(axis)]).requires_grad_()
        y, expected = sharded(x_), model(x.requires_grad_())
        assert y.placements == (Shard(axis),)
        assert y.shape == expected.shape
        close(whole(y), expected)
        (whole(y) ** 2).sum().backward()
        (expected**2).sum().backward()
        close(whole(x_.grad), x.grad, terms=100)
        for parameter, reference in zip(sharded.parameters(), model.parameters(), strict=True):
            close(whole(parameter.grad), reference.grad, terms=100)


def test_gated_styles_return_half_the_features(mesh: Any) -> None:
    """As DTensors, and gathered."""
    layer, x = made(lambda: nn.Linear(HIDDEN, 4 * P).double()), random(3, HIDDEN)
    pairs = layer(x).reshape(3, P, 2, 2)  # each rank has two features of gate above two of up
    expected = (F.silu(pairs[:, :, 0]) * pairs[:, :, 1]).reshape(3, 2 * P)
    for options in ({"use_local_output": False}, {"output_layouts": Replicate()}):
        sharded = parallel.parallelize_module(copy.deepcopy(layer), mesh, pt.ColwiseParallel(**options))
        close(whole(sharded(x, activation="swiglu")), expected)


def test_styles_refuse_other_layouts_and_modules(mesh: Any) -> None:
    one = nn.Linear(4, 4)
    for style, text in (
        (pt.ColwiseParallel(input_layouts=Shard(-1)), "input_layouts must be Replicate"),
        (pt.ColwiseParallel(output_layouts=Shard(0)), "output_layouts must be Shard"),
        (pt.RowwiseParallel(input_layouts=Shard(0)), "input_layouts must be Shard"),
        (pt.RowwiseParallel(output_layouts=Partial()), "output_layouts must be Replicate"),
    ):
        with pytest.raises(errors.ArgumentError, match=text):
            parallel.parallelize_module(one, mesh, style)
    with pytest.raises(errors.ArgumentError, match="the module must be a"):
        parallel.parallelize_module(nn.Bilinear(2, 2, 2), mesh, pt.ColwiseParallel())
    with pytest.raises(errors.ArgumentError, match="the submodules of Block have parameters"):
        parallel.parallelize_module(Block(F.relu, gated=False), mesh, pt.SequenceParallel())
    with pytest.raises(errors.ArgumentError, match="the mesh must have"):
        pt.ColumnParallelLinear(4, 4, mesh=pt.init_mesh((1, P)))
    with pytest.raises(errors.ArgumentError, match="activation must be one of"):
        pt.ParallelMLP(4, 4, "tanh", mesh=mesh)


def test_the_page_is_a_script(mesh: Any) -> None:
    names: dict[str, Any] = {}
    blocks = [block for block in blocks_of("docs/torch.md") if block.language == "python"]
    assert len(blocks) > 5
    for block in blocks:
        exec(compile("\n" * (block.line - 1) + block.body, block.page, "exec"), names)
    assert names["x"].full_tensor().shape == (100, 8)
    assert names["moved"].placements == (Shard(1),)
    assert torch.equal(whole(names["llama"].down.weight), names["state"]["down.weight"])
    names.clear()  # DTensors in memory of the context, which ends first


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_is_wrong_is_an_error_on_all(mesh: Any) -> None:
    x, weight, bias = random(P, HIDDEN), random(2, HIDDEN), random(2)
    call = partial(pt.linear, x, weight, bias if RANK == P - 1 else None, "allgather", mesh=mesh)
    raises_on_all_ranks(errors.MismatchError, "bias is given differs between ranks", call)
    call = partial(pt.linear, x.float() if RANK == 0 else x, weight, None, "replicated", mesh=mesh)
    raises_on_all_ranks(errors.DTypeError, "use one dtype", call)
    y = pt.linear(x, weight.requires_grad_(), None, "allreduce", mesh=mesh)
    raises_on_all_ranks(errors.MismatchError, "the array dy differs", partial(y.sum().mul(1 + RANK).backward))
    close(pt.linear(x, weight, None, "replicated", mesh=mesh), x @ weight.T)
    weight, x, row = torch.ones(2, P), torch.ones(P, P), pt.RowParallelLinear(P, P, mesh=mesh)
    options: dict[str, Any]
    for wrong in some_wrong():
        is_wrong = RANK in wrong
        for options, text in (
            ({"kind": "gather" if is_wrong else "allgather"}, "kind must be one of"),
            ({"activation": "tanh" if is_wrong else "relu"}, "activation must be one of"),
            ({"activation": "relu", "residual": x if is_wrong else None}, "exclude each other"),
        ):
            raises_on_all_ranks(errors.ArgumentError, text, partial(pt.linear, x, weight, mesh=mesh, **options))
        for wrong_x in (None, torch.tensor(1.0)):
            given = wrong_x if is_wrong else x
            call = partial(pt.linear, given, weight, mesh=mesh)
            raises_on_all_ranks(errors.ArgumentError, "x must be a tensor with axes", call)
        for name, given in (("bias", [1.0, 2.0]), ("residual", torch.eye(2).to_sparse())):
            call = partial(pt.linear, x, weight, kind="replicated", mesh=mesh, **{name: given if is_wrong else None})
            raises_on_all_ranks(errors.ArgumentError, f"{name} must be a tensor with axes", call)
        for options, kind, text in (
            ({"tokens": -1 if is_wrong else P * P, "activation": "relu"}, errors.PblasError, "negative"),
            ({"tokens": 2.5 if is_wrong else P * P}, errors.LayoutError, "expected an integer >= 0"),
            ({"features": [] if is_wrong else 2 * P}, errors.LayoutError, "expected an integer >= 0"),
        ):
            call = partial(pt.linear, x, weight.clone().requires_grad_(), mesh=mesh, **options)
            raises_on_all_ranks(kind, text, call)
        call = partial(pt.linear, x.long() if is_wrong else x, weight, float8=True, mesh=mesh)
        raises_on_all_ranks(errors.PblasError, "vector_norm", call)
        split = pt.RowParallelLinear(P, P, mesh=mesh)
        split.split_input = True
        call = partial(split, None if is_wrong else x)
        raises_on_all_ranks(errors.ArgumentError, "x must be a tensor with axes", call)
        call = partial(pt.ColumnParallelLinear(P, P, mesh=mesh), x, activation=object() if is_wrong else "relu")
        raises_on_all_ranks(errors.ArgumentError, "activation must be one of", call)
        call = partial(pt.linear, x.to("meta") if is_wrong else x, weight, kind="replicated", mesh=mesh)
        raises_on_all_ranks(errors.ArgumentError, "x is on meta", call)
        made_of = nn.Conv1d(2, 2, 1) if is_wrong else nn.Linear(2, 2)
        call = partial(pt.RowParallelLinear.from_linear, made_of, mesh)
        raises_on_all_ranks(errors.ArgumentError, "linear must be an unsharded torch.nn.Linear", call)
        call = partial(pt.ColumnParallelLinear, 2, 3 if is_wrong else 2, mesh=mesh)
        raises_on_all_ranks(errors.MismatchError, "weight", call)
        layers = nn.Linear(2, 3), nn.Linear(3, 2), nn.Linear(2, 3, bias=not is_wrong)
        call = partial(pt.ParallelMLP.from_linear, *layers, mesh=mesh)
        raises_on_all_ranks(errors.ArgumentError, "gate and up must have weights of one shape", call)
        row.sequence_dim = 1 if is_wrong else 0
        raises_on_all_ranks(errors.ArgumentError, "must be an axis of x before the last one", partial(row, x[:, :1]))


def test_a_layer_that_one_rank_cannot_make_leaves_a_context_that_pushes_usable(contexts: Contexts) -> None:
    """As those of GPUs, whose products begin without an agreement."""
    with open_context("push") as ctx:
        mesh = pt.init_mesh(ctx=ctx)
        for wrong in some_wrong():
            call = partial(pt.RowParallelLinear.from_linear, None if RANK in wrong else nn.Linear(2, 2), mesh)
            raises_on_all_ranks(errors.ArgumentError, "linear must be an unsharded torch.nn.Linear", call)
        pt.RowParallelLinear.from_linear(nn.Linear(2, 2), mesh)
    pt.init_mesh(ctx=contexts["shared"])


@pytest.mark.parametrize("kind", ["allgather", "reduce_scatter", "allreduce", "replicated"])
def test_operators_keep_the_rules_of_torch(mesh: Any, kind: str) -> None:
    """Schema, fake kernel and gradient."""
    group = mesh.get_group().group_name
    x, weight, bias = (random(*shape).requires_grad_() for shape in ((P, 2, HIDDEN), (4, HIDDEN), (4,)))
    rows = {"allgather": P * P, "reduce_scatter": 1}.get(kind, P)
    tokens = P * P if kind == "allgather" else P
    features = P * (4 if kind in ("allgather", "replicated") else HIDDEN)
    arguments = x, weight, bias, None, None, kind, "silu", True, False, rows, tokens, features, group
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.pblas.linear.default, arguments, test_utils=tests)


@pytest.mark.parametrize("argument", range(3))
def test_subclasses_of_tensors_see_the_operator(mesh: Any, argument: int) -> None:
    """Whichever of x, weight and bias is one."""
    seen = []

    class Watching(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
            seen.append(str(function))
            return super().__torch_function__(function, types, arguments, options or {})

    operands = [random(P, HIDDEN), random(4, HIDDEN), random(4)]
    operands[argument] = operands[argument].as_subclass(Watching)
    pt.linear(*operands, "replicated", mesh=mesh)
    assert "pblas.linear.default" in seen


@pytest.mark.parametrize("kind", ["allgather", "reduce_scatter", "allreduce", "replicated"])
def test_products_of_8_bits_are_scaled_by_the_largest_elements_of_all_ranks(mesh: Any, kind: str) -> None:
    """Rank 0 has them. Small integers are exact in 8 bits with a scale of 7 / 448; gradients are of what was given."""
    integers = np.random.default_rng(3).integers
    x, weight, bias = (
        torch.tensor(integers(-3, 4, shape), dtype=torch.float32) for shape in ((P, 16), (16, 16), (16,))
    )
    weight[0, 0] = 7 if RANK == 0 else 1
    x[0, 0] = 7 if RANK == 0 or kind == "replicated" else 1
    results = []
    for float8 in (False, True):
        operands = [z.clone().requires_grad_() for z in (x, weight, bias)]
        y = pt.linear(*operands, kind, activation="silu", float8=float8, mesh=mesh)
        y.sum().backward()
        results.append([y.detach(), *(z.grad for z in operands)])
    for plain, eight in zip(*results, strict=True):
        torch.testing.assert_close(eight, plain, rtol=1e-3, atol=0.05)


def test_weights_of_8_bits_can_be_kept(mesh: Any) -> None:
    """Until they are kept anew; with gradients each call rounds the weight as it is."""
    x = random(2, 16, dtype=torch.float32)
    up, down, gate = made(lambda: [nn.Linear(*sizes, bias=False) for sizes in ((16, 4 * P), (4 * P, 16), (16, 4 * P))])
    blocks = [pt.ParallelMLP.from_linear(up, down, *gates, mesh=mesh) for gates in ((), (gate,))]
    for block in (*blocks, pt.ColumnParallelLinear.from_linear(up, mesh)):
        layers = [layer for layer in block.modules() if hasattr(layer, "keep_float8")]

        def keep(layers: Any = layers) -> None:
            for layer in layers:
                layer.keep_float8()

        plain = block(x)
        with torch.no_grad():
            keep()
            first = block(x)
            torch.testing.assert_close(first, plain.detach(), rtol=0, atol=0.2 * float(plain.abs().max()))
            for weight in block.parameters():
                weight.mul_(2)
            assert torch.equal(block(x), first)
        changed = block(x)
        assert (changed - first).abs().max() > 0
        with torch.no_grad():
            keep()
            torch.testing.assert_close(block(x), changed.detach())

"""The laws of pblas.torch on GPUs: those of tests/mpi on tensors of the GPU, and CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import pblas
from pblas.torch.mesh import _store
from pblas.torch.operators import local
from tests.common.ranks import COMM
from tests.common.tensors import close, made, part_of, random
from tests.gpu.sharing import SHARED
from tests.mpi.torch import test_layers
from tests.mpi.torch.test_dtensors import (  # noqa: F401 - pytest runs the imported tests on GPUs
    test_dtensors_are_matrices_without_a_copy,
    test_linalg_takes_dtensors,
    test_muon_updates_as_if_weights_were_whole,
)
from tests.mpi.torch.test_layers import (  # noqa: F401
    HIDDEN,
    RANK,
    P,
    mesh,
    nn,
    pt,
    test_a_block_has_the_state_and_the_gradients_of_an_unsharded_one,
    test_gradients_of_complex_numbers_are_those_of_torch,
    test_layers_compile_without_a_graph_break,
    test_layers_have_the_values_and_gradients_of_unsharded_ones,
    test_operators_keep_the_rules_of_torch,
    test_plans_of_parallelize_module_work_with_another_import,
    test_products_of_8_bits_are_scaled_by_the_largest_elements_of_all_ranks,
    test_styles_take_and_return_dtensors,
    test_tokens_need_not_divide,
    torch,
)

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream:UserWarning"),
]


def gather_through_hosts(patch: pytest.MonkeyPatch) -> None:
    """Let DTensors gather in host memory: Gloo reads the addresses of tensors of GPUs as its own, and dies."""
    collectives = torch.distributed._functional_collectives

    def through_host(gather: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        return gather(x.cpu(), *args, **kwargs).to(x.device)

    for name in ("all_gather_tensor", "all_gather_single"):  # some versions of torch have both
        gather = getattr(collectives, name, None)
        if gather is not None:
            patch.setattr(collectives, name, partial(through_host, gather))


@pytest.fixture(scope="module")
def contexts() -> Iterator[dict[str, pblas.Context]]:
    """A context on GPUs; torch's own collectives go through Gloo where ranks share a GPU, which NCCL refuses."""
    import cupy

    with pytest.MonkeyPatch.context() as patch, pblas.Context(backend="nvshmem", timeout=30) as ctx:
        torch.cuda.set_device(cupy.cuda.Device().id)
        if SHARED:
            gather_through_hosts(patch)
            store = _store(ctx)
            torch.distributed.init_process_group("cpu:gloo,cuda:gloo", store=store, rank=RANK, world_size=P)
        yield {"shared": ctx}


@pytest.fixture(autouse=True)
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(test_layers, "SETTINGS", ("shared",))
    with torch.device("cuda"):
        yield


def test_cuda_graphs_record_a_step_of_training(mesh: Any) -> None:  # noqa: F811
    """Forward and backward pass of a block, also compiled; replayed on other values."""
    tokens, wide = 4 * P, 16 * P
    up, down = made(lambda: (nn.Linear(HIDDEN, wide), nn.Linear(wide, HIDDEN)))
    block = pt.ParallelMLP.from_linear(up, down, mesh=mesh, sequence_dim=0, src_data_rank=None)
    x_ = random(tokens // P, HIDDEN, dtype=torch.float32).requires_grad_()

    def step(call: Any) -> tuple[Any, ...]:
        y = call(x_)
        return y, *torch.autograd.grad((y**2).sum(), (x_, *block.parameters()))

    stream = torch.cuda.Stream()
    for call in (block, torch.compile(block, fullgraph=True, backend="aot_eager")):
        with torch.cuda.stream(stream):
            for _ in range(3):
                step(call)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                results = step(call)
        for seed in range(3):
            x = random(tokens, HIDDEN, dtype=torch.float32, seed=seed)
            x_.data.copy_(part_of(x, 0, RANK, P))
            torch.cuda.synchronize()
            COMM.Barrier()
            graph.replay()
            torch.cuda.synchronize()
            x.requires_grad_()
            y = down(nn.functional.silu(up(x)))
            expected = torch.autograd.grad((y**2).sum(), (x, up.weight, down.bias))
            close(results[0], part_of(y, 0, RANK, P), "float32", 64)
            close(results[1], part_of(expected[0], 0, RANK, P), "float32", 64)
            close(results[2].to_local(), part_of(expected[1], 0, RANK, P), "float32", 256)
            close(results[-1].to_local(), expected[2], "float32", 256)


@pytest.mark.parametrize("float8", [False, True])
def test_inductor_compiles_a_step_of_training(mesh: Any, float8: bool) -> None:  # noqa: F811
    """Without a graph break, with torch's default compiler, around the operators of a block of bfloat16."""
    up, down = made(lambda: (nn.Linear(HIDDEN, 32 * P), nn.Linear(32 * P, HIDDEN)))
    block = pt.ParallelMLP.from_linear(up, down, mesh=mesh, sequence_dim=0, src_data_rank=None).bfloat16()
    block.up.float8 = block.down.float8 = float8
    x_ = part_of(random(16 * P, HIDDEN, dtype=torch.float32), 0, RANK, P).bfloat16().requires_grad_()

    def step(x: Any) -> Any:
        return block(nn.functional.rms_norm(x, x.shape[-1:])) * 2 + x

    results = []
    for call in (step, torch.compile(step, fullgraph=True)):
        y = call(x_)
        results.append((y, *torch.autograd.grad(y.float().square().sum(), (x_, *block.parameters()))))
    for each in zip(*results, strict=True):
        plain, compiled = (local(z).float() for z in each)
        assert (plain - compiled).norm() <= (0.1 if float8 else 0.02) * plain.norm()

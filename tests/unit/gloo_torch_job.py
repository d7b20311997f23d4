"""Laws of pblas.torch on ranks of torch.distributed, on CPUs and without MPI; test_torch.py starts the job.

torchrun --nproc-per-node 4 tests/unit/gloo_torch_job.py FOLDER
"""

from __future__ import annotations

import copy
import itertools
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module

import pblas.torch as pt
from pblas import linalg
from tests.common.tensors import close, made, part_of, random, whole

CHOICES = Shard(0), Shard(1), Replicate()


def block(wide: int = 9) -> Any:
    """A block with torch's layers; sizes do not divide."""
    return nn.Sequential(nn.Linear(7, wide), nn.GELU(), nn.Linear(wide, 7)).double()


def checkpoints(mesh: Any, folder: Path) -> None:
    """Shards are saved and loaded by torch.distributed.checkpoint, and gradients are clipped as those of one rank."""
    up, _, down = made(block)
    layers = [pt.ParallelMLP.from_linear(up, down, up, mesh=mesh), pt.ParallelMLP(7, 9, gated=True, mesh=mesh)]
    layers[1].double()
    checkpoint.save(layers[0].state_dict(), checkpoint_id=str(folder))
    state = layers[1].state_dict()
    checkpoint.load(state, checkpoint_id=str(folder))
    layers[1].load_state_dict(state)
    x = random(3, 7)
    close(layers[1](x), layers[0](x))
    close(layers[0](x), down(nn.functional.silu(up(x)) * up(x)))
    loss = layers[0](x).square().sum()
    loss.backward()
    total = sum(whole(p.grad).square().sum() for p in layers[0].parameters())
    close(whole(torch.nn.utils.clip_grad_norm_(layers[0].parameters(), 1e-3)), total.sqrt())


def matrices(mesh: Any) -> None:
    """All placements on a mesh of two dimensions."""
    a, b = random(10, 10) + 10 * torch.eye(10, dtype=torch.float64), random(10, 3, seed=1)
    for placements in itertools.product(CHOICES, repeat=2):
        rows = 12 if placements[0] == placements[1] else 10
        z = random(rows, rows, seed=2)
        t = distribute_tensor(z, mesh, placements)
        A = pt.from_dtensor(t)
        back = pt.to_dtensor(A)
        assert back.to_local().data_ptr() == t.to_local().data_ptr()
        close(whole(pt.to_dtensor(A @ A, mesh, placements)), z @ z, terms=100)
        x = linalg.solve(*(pt.from_dtensor(distribute_tensor(each, mesh, placements)) for each in (a[:8, :8], b[:8])))
        close(a[:8, :8] @ whole(pt.to_dtensor(x, mesh, [Replicate(), Replicate()])), b[:8], terms=100)


def fully_sharded(mesh: Any) -> None:
    """Rows that fully_shard has cut after a style: their shards are not in the order of the ranks."""
    linear = made(lambda: nn.Linear(7, 12)).double()
    sharded = copy.deepcopy(linear)
    fully_shard(parallelize_module(sharded, mesh["tp"], pt.ColwiseParallel()), mesh=mesh["dp"])
    matrix = pt.from_dtensor(sharded.weight)
    close(torch.from_numpy(matrix.to_global(None)), linear.weight)
    back = pt.to_dtensor(matrix, mesh, sharded.weight.placements)
    assert back.placements == sharded.weight.placements
    assert torch.equal(back.to_local(), sharded.weight.to_local())


def optimizers(mesh: Any, wide: int) -> None:
    """The update by Muon is that of unsharded weights, of layers that are also sharded by FSDP."""
    whole_model, x = made(lambda: block(wide)), random(6, 7)
    sharded = copy.deepcopy(whole_model)
    plan = {"0": pt.ColwiseParallel(), "2": pt.RowwiseParallel()}
    parallelize_module(sharded, mesh["tp"], plan)
    fully_shard(sharded, mesh=mesh["dp"])
    for model in (whole_model, sharded):
        weights = [p for p in model.parameters() if p.ndim == 2]
        optimizer = pt.Muon(weights, lr=0.1, mesh=mesh["tp"])
        for step in range(2):
            optimizer.zero_grad()
            part = x if model is whole_model else part_of(x, 0, mesh["dp"].get_local_rank(), mesh["dp"].size())
            model(part + step).square().mean().backward()
            optimizer.step()
    for expected, parameter in zip(whole_model.parameters(), sharded.parameters(), strict=True):
        close(whole(parameter), expected, terms=1000)


def main() -> None:
    sys.modules["mpi4py"] = None  # type: ignore[assignment] # an import of it fails
    line = pt.init_mesh()
    mesh = pt.init_mesh((2, 2))
    checkpoints(line, Path(sys.argv[1]))
    matrices(mesh)
    fully_sharded(mesh)
    for wide in (9, 12):  # of which 12 are cut into shards of one length
        optimizers(mesh, wide)
    dist.barrier()
    print(f"rank {dist.get_rank()}: all laws hold", flush=True)


if __name__ == "__main__":
    main()

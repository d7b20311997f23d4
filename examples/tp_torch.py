"""Tensor-parallel layers as torch modules, with gradients: a block is trained over all ranks, and on one rank.

mpiexec -n 4 python -m mpi4py examples/tp_torch.py        on GPUs if every rank has one, else on CPUs
torchrun --nproc-per-node 4 examples/tp_torch.py          the same without MPI

The weights of a `ParallelMLP` are split over the ranks. Tokens are split, too: the first layer gathers them while it
multiplies, the second one reduces and scatters its sums while it multiplies. In the backward pass they swap roles.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from pblas import torch as pt
from pblas import tp

if not find_spec("torch"):
    sys.exit("This example needs torch: pip install torch")
torch: Any = importlib.import_module("torch")


def train(model: Any, x: Any, target: Any, ntokens: int, steps: int) -> list[float]:
    """The loss of this rank's tokens at each step."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05), list[float]()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((model(x) - target) ** 2).sum() / ntokens
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train a block over all ranks, and on one rank.")
    parser.add_argument("--tokens", type=int, default=8, help="tokens of each rank")
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args(argv)
    mesh = pt.init_mesh()
    ctx = pt.context_of(mesh)
    torch.manual_seed(0)
    ntokens, hidden = options.tokens * ctx.nprocs, options.hidden
    with torch.device(mesh.device_type):
        up, down = torch.nn.Linear(hidden, 4 * hidden), torch.nn.Linear(4 * hidden, hidden)
        x, target = torch.randn(ntokens, hidden), torch.randn(ntokens, hidden)
    shard = tp.local_shard(ntokens, ctx.rank, ctx.nprocs)
    over_ranks = pt.ParallelMLP.from_linear(
        *(up, down), activation="gelu", mesh=mesh, sequence_dim=0, src_data_rank=None
    )  # nothing is sent: all ranks have the same weights
    on_one = torch.nn.Sequential(up, torch.nn.GELU(), down)
    losses = torch.tensor(train(over_ranks, x[shard], target[shard], ntokens, options.steps), dtype=torch.float64)
    losses = ctx.allreduce(losses.to(x.device)).tolist()
    alone = train(on_one, x, target, ntokens, options.steps)
    if ctx.rank == 0:
        for step, (sharded, single) in enumerate(zip(losses, alone, strict=True)):
            print(f"step {step}: loss {sharded:.6f} over {ctx.nprocs} ranks, {single:.6f} on one")
        error = max(abs(sharded - single) / single for sharded, single in zip(losses, alone, strict=True))
        print(f"largest relative difference {error:.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Tensor-parallel layers as torch modules, with gradients: a block is trained over all ranks, and on one rank.

mpiexec -n 4 python -m mpi4py examples/tp_torch.py        on GPUs if every rank has one, else on CPUs
torchrun --nproc-per-node 4 examples/tp_torch.py          the same without MPI

`ColumnLinear` and `RowLinear` are `torch.nn.Linear` with a weight that is split over the ranks. Tokens are split, too:
`ColumnLinear` gathers them while it multiplies, `RowLinear` reduces and scatters its sums while it multiplies. In the
backward pass they swap roles. pblas does not need torch; this file is the whole binding.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import pblas
from pblas import tp

if not find_spec("torch"):
    sys.exit("This example needs torch: pip install torch")
torch: Any = importlib.import_module("torch")


class GatherLinear(torch.autograd.Function):
    """y = epilogue(x w^T + bias) of all tokens, from this rank's tokens and features."""

    @staticmethod
    def forward(context: Any, x: Any, weight: Any, bias: Any, epilogue: str | None, where: dict[str, Any]) -> Any:
        aux = None if epilogue is None else x.new_empty(len(x) * where["ctx"].nprocs, *x.shape[1:-1], len(weight))
        y = tp.allgather_linear(x, weight, bias, epilogue, aux=aux, **where)
        context.save_for_backward(x, weight, aux)
        context.epilogue, context.where = epilogue, where
        return y

    @staticmethod
    def backward(context: Any, dy: Any) -> Any:
        x, weight, aux = context.saved_tensors
        options = {"aux": aux, "needs": context.needs_input_grad[:3], **context.where}
        gradients = tp.allgather_linear_backward(dy.contiguous(), x, weight, context.epilogue, **options)
        return *gradients, None, None


class LinearScatter(torch.autograd.Function):
    """y = x w^T + bias of this rank's tokens, from all tokens and this rank's features."""

    @staticmethod
    def forward(context: Any, x: Any, weight: Any, bias: Any, where: dict[str, Any]) -> Any:
        context.save_for_backward(x, weight)
        context.where = where
        return tp.linear_reduce_scatter(x, weight, bias, **where)

    @staticmethod
    def backward(context: Any, dy: Any) -> Any:
        x, weight = context.saved_tensors
        options = {"needs": context.needs_input_grad[:3], **context.where}
        return *tp.linear_reduce_scatter_backward(dy.contiguous(), x, weight, **options), None


class ColumnLinear(torch.nn.Module):
    """A linear layer whose output features are split over the ranks.

    Args:
        whole: the unsharded layer; this rank copies its shard (global).
        epilogue: None, "relu", "gelu" or "silu" (global).
        ctx: the ranks (global).
    """

    def __init__(self, whole: Any, epilogue: str | None, ctx: pblas.Context) -> None:
        super().__init__()
        shard = tp.local_shard(whole.out_features, ctx.rank, ctx.nprocs)
        self.weight = torch.nn.Parameter(whole.weight.detach()[shard].clone())
        self.bias = torch.nn.Parameter(whole.bias.detach()[shard].clone())
        self.epilogue, self.where = epilogue, {"features": whole.out_features, "ctx": ctx}

    def forward(self, x: Any) -> Any:
        return GatherLinear.apply(x, self.weight, self.bias, self.epilogue, self.where)


class RowLinear(torch.nn.Module):
    """A linear layer whose input features are split over the ranks.

    Args:
        whole: the unsharded layer; this rank copies its shard (global).
        ctx: the ranks (global).
    """

    def __init__(self, whole: Any, ctx: pblas.Context) -> None:
        super().__init__()
        shard = tp.local_shard(whole.in_features, ctx.rank, ctx.nprocs)
        self.weight = torch.nn.Parameter(whole.weight.detach()[:, shard].clone(memory_format=torch.contiguous_format))
        self.bias = torch.nn.Parameter(whole.bias.detach().clone())
        self.where = {"features": whole.in_features, "ctx": ctx}

    def forward(self, x: Any) -> Any:
        return LinearScatter.apply(x, self.weight, self.bias, self.where)


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


def context() -> pblas.Context:
    """All ranks, whether torchrun or mpiexec has started them."""
    dist = torch.distributed
    if not dist.is_torchelastic_launched():
        return pblas.Context()
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    return pblas.Context(process_group=dist.group.WORLD)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train a block over all ranks, and on one rank.")
    parser.add_argument("--tokens", type=int, default=8, help="tokens of each rank")
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args(argv)
    with context() as ctx:
        on_gpus = "GPU" in ctx.describe()
        torch.set_default_device(importlib.import_module("cupy").cuda.Device().id if on_gpus else "cpu")
        torch.manual_seed(0)
        ntokens, hidden = options.tokens * ctx.nprocs, options.hidden
        first, second = torch.nn.Linear(hidden, 4 * hidden), torch.nn.Linear(4 * hidden, hidden)
        x, target = torch.randn(ntokens, hidden), torch.randn(ntokens, hidden)
        shard = tp.local_shard(ntokens, ctx.rank, ctx.nprocs)
        over_ranks = torch.nn.Sequential(ColumnLinear(first, "gelu", ctx), RowLinear(second, ctx))
        on_one = torch.nn.Sequential(first, torch.nn.GELU(), second)
        losses = torch.tensor(train(over_ranks, x[shard], target[shard], ntokens, options.steps), dtype=torch.float64)
        losses = ctx.allreduce(losses).tolist()
        alone = train(on_one, x, target, ntokens, options.steps)
        if ctx.rank == 0:
            for step, (sharded, single) in enumerate(zip(losses, alone, strict=True)):
                print(f"step {step}: loss {sharded:.6f} over {ctx.nprocs} ranks, {single:.6f} on one")
        error = max(abs(sharded - single) / single for sharded, single in zip(losses, alone, strict=True))
        if ctx.rank == 0:
            print(f"largest relative difference {error:.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A classifier of handwritten digits, trained with weights that are split over the ranks; the losses are those of one.

mpiexec -n 4 python -m mpi4py examples/tp_digits.py
torchrun --nproc-per-node 4 examples/tp_digits.py          the same without MPI

The model is written with torch's layers. `parallelize_module` splits its weights by a plan, whose styles are those of
pblas. Muon orthogonalizes the updates of the weights as if they were whole; AdamW trains the rest.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from sklearn.datasets import load_digits

from pblas import torch as pt

if not find_spec("torch"):
    sys.exit("This example needs torch: pip install torch")
torch: Any = importlib.import_module("torch")
parallel: Any = importlib.import_module("torch.distributed.tensor.parallel")


def model() -> Any:
    """The unsharded model, the same on every rank."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 100), torch.nn.GELU(), torch.nn.Linear(100, 64), torch.nn.LayerNorm(64)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(64, 10))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train a classifier of digits over all ranks.")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args(argv)
    mesh = pt.init_mesh()
    plan = {"0": pt.ColwiseParallel(), "2": pt.RowwiseParallel()}
    net = parallel.parallelize_module(model(), mesh, plan)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    known, held_out = slice(0, 1400), slice(1400, None)
    weights = [net[0].weight, net[2].weight]
    others = [p for p in net.parameters() if not any(p is weight for weight in weights)]
    sharded = [p for p in others if hasattr(p, "placements")]  # AdamW takes no mixture of tensors and DTensors
    plain = [p for p in others if not hasattr(p, "placements")]
    optimizers = [pt.Muon(weights, lr=0.02), *(torch.optim.AdamW(part, lr=0.01) for part in (sharded, plain))]
    for step in range(options.steps):
        loss = torch.nn.functional.cross_entropy(net(images[known]), labels[known])
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        if mesh.get_rank() == 0 and step % 10 == 9:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    with torch.inference_mode():
        right = (net(images[held_out]).argmax(1) == labels[held_out]).float().mean().item()
    if mesh.get_rank() == 0:
        print(f"{mesh.size()} ranks: {100 * right:.1f} % of the digits that were held out are right")
    return 0


if __name__ == "__main__":
    sys.exit(main())

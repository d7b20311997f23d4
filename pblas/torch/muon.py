"""Muon: an optimizer whose updates are orthogonalized, the same for all ways to shard the weights."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

from pblas import errors, linalg
from pblas.spectral.newton_schulz import MUON
from pblas.torch.dtensor import descriptor, from_dtensor, tensor_of
from pblas.torch.mesh import init_mesh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch.distributed.device_mesh import DeviceMesh


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalized, of the whole weight, however the weight is sharded.

    Each step takes the momentum of a weight as one matrix over all ranks that have a shard, and orthogonalizes it by
    `linalg.newton_schulz`. The update is that of the unsharded weight but for rounding. A weight of more than two axes
    is several matrices, those of its last two axes, as gate and up of a `ParallelMLP`.

    Other parameters, as biases, norms and embeddings, need another optimizer.

    Args:
        params: weights or groups of them, the same on every rank: DTensors with placements Shard and Replicate, and
            tensors that every rank of `mesh` has (global).
        lr: learning rate (global).
        momentum: weight of the old gradients (global).
        steps: steps of Newton and Schulz (global).
        weight_decay: decoupled: each step multiplies weights by 1 - lr * weight_decay (global).
        nesterov: momentum of Nesterov (global).
        coefficients: see `linalg.newton_schulz` (global).
        adjust_lr: "original" multiplies the rate by sqrt(max(1, rows / columns)), "match_rms_adamw" by
            0.2 sqrt(max(rows, columns)) (global).
        mesh: the ranks of weights that are no DTensors; None for all ranks (global).

    Raises:
        ArgumentError: options out of range, or a parameter with fewer than two axes.

    Source: K. Jordan et al., Muon: an optimizer for hidden layers in neural networks, 2024; J. Liu et al., Muon is
        scalable for LLM training, 2025. Options and state are those of `torch.optim.Muon`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.95,
        steps: int = 5,
        *,
        weight_decay: float = 0.1,
        nesterov: bool = True,
        coefficients: Sequence[float] = MUON,
        adjust_lr: str = "original",
        mesh: DeviceMesh | None = None,
    ) -> None:
        for name, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise errors.ArgumentError(f"Muon: {name} must be at least 0, got {value!r}")
        if adjust_lr not in _RATES:
            raise errors.ArgumentError(f"Muon: adjust_lr must be one of {', '.join(_RATES)}, got {adjust_lr!r}")
        self._mesh = mesh
        options: dict[str, Any] = {"lr": lr, "momentum": momentum, "steps": steps, "weight_decay": weight_decay}
        options |= {"nesterov": nesterov, "coefficients": tuple(coefficients), "adjust_lr": adjust_lr}
        super().__init__(params, options)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.ndim < 2:
                    raise errors.ArgumentError(
                        f"Muon: a weight must have two axes at least, got shape {tuple(weight.shape)}; give biases and "
                        f"norms to another optimizer"
                    )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """**Collective.** Update all weights that have a gradient.

        Args:
            closure: computes the loss and the gradients once more; None if they are there (global).

        Returns:
            What `closure` returns; None without one.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group)
        return loss

    def _update(self, weight: Any, group: dict[str, Any]) -> None:
        """**Collective.** One step of one weight."""
        state, momentum = self.state[weight], group["momentum"]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight.grad)
        buffer, gradient, own = (_shard(x) for x in (state["momentum_buffer"], weight.grad, weight))
        buffer.lerp_(gradient, 1 - momentum)
        update = gradient.lerp(buffer, momentum) if group["nesterov"] else buffer
        update = self._orthogonal(update, weight, group)
        rate = group["lr"] * _RATES[group["adjust_lr"]](*weight.shape[-2:])
        own.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)

    def _orthogonal(self, update: Any, weight: Any, group: dict[str, Any]) -> Any:
        """**Collective.** This rank's shard of the orthogonalized update."""
        mesh, placements = self._mesh, [Replicate()]
        if isinstance(weight, DTensor):
            mesh, placements = weight.device_mesh, list(weight.placements)
        elif mesh is None:
            mesh = self._mesh = init_mesh()
        if len(placements) != mesh.ndim:
            placements = [Replicate()] * mesh.ndim
        return _orthogonalized(update, weight.shape, mesh, placements, group)


_RATES: dict[str, Callable[[int, int], float]] = {
    "original": lambda m, n: sqrt(max(1.0, m / n)),
    "match_rms_adamw": lambda m, n: 0.2 * sqrt(max(m, n)),
}


def _shard(x: Any) -> Any:
    """This rank's part of a tensor, in the same memory (local)."""
    return x.to_local() if isinstance(x, DTensor) else x


def _orthogonalized(update: Any, shape: Any, mesh: DeviceMesh, placements: list[Any], group: dict[str, Any]) -> Any:
    """**Collective.** The shards of the orthogonalized matrices of a tensor with this shape and these placements."""
    if len(shape) > 2:
        if Shard(0) in placements:
            raise errors.ArgumentError(
                f"Muon: a weight of shape {tuple(shape)} is several matrices, and its first axis is sharded; shard one "
                f"of the last two axes"
            )
        inner = [Shard(each.dim - 1) if isinstance(each, Shard) else each for each in placements]
        parts = [_orthogonalized(part, shape[1:], mesh, inner, group) for part in update]
        return torch.stack(parts)
    options = {"shape": shape, "stride": (shape[1], 1), "run_check": False}
    t = DTensor.from_local(update.contiguous(), mesh, placements, **options)
    try:
        descriptor(shape, mesh, placements)
    except errors.LayoutError:  # no block-cyclic layout has these placements
        simple = [Shard(0), *[Replicate()] * (mesh.ndim - 1)]
        local = _orthogonalized(t.redistribute(placements=simple).to_local(), shape, mesh, simple, group)
        return DTensor.from_local(local, mesh, simple, **options).redistribute(placements=placements).to_local()
    result = linalg.newton_schulz(from_dtensor(t), steps=group["steps"], coefficients=group["coefficients"])
    return tensor_of(result.local)

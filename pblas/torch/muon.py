"""Muon: an optimizer whose updates are orthogonalized, the same for all ways to shard the weights."""

from __future__ import annotations

from functools import lru_cache
from math import prod, sqrt
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

from pblas import errors, linalg
from pblas.matrices.matrix import DistMatrix
from pblas.spectral.many import explained
from pblas.spectral.newton_schulz import MUON
from pblas.torch.dtensor import descriptor, from_dtensor, is_strided, tensor_of, to_dtensor
from pblas.torch.mesh import context_of, init_mesh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from pblas.layouts.descriptor import MatrixDescriptor


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalized, of the whole weight, however the weight is sharded.

    Each step takes the momentum of a weight as one matrix over all ranks that have a shard, and orthogonalizes those of
    all weights by one `linalg.orthogonalize_many`: ranks work on different small matrices at the same time, and large
    ones are divided. The update is that of the unsharded weight but for rounding. A weight of more than two axes is
    several matrices, those of its last two axes, as gate and up of a `ParallelMLP`.

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
            given = [weight for weight in group["params"] if weight.grad is not None]
            updates = self._orthogonalized(self._momenta(given, group), given, group)
            kept = 1 - group["lr"] * group["weight_decay"]
            for weight, update in zip(given, updates, strict=True):
                rate = group["lr"] * _RATES[group["adjust_lr"]](*weight.shape[-2:])
                (_shard(weight) if kept == 1 else _shard(weight).mul_(kept)).add_(update, alpha=-rate)
        return loss

    def explain(self) -> str:
        """How a step divides the work on all weights, for each number of ranks of their meshes (local).

        Returns:
            Which matrices are whole on one rank each, and which are divided over all.
        """
        shapes: dict[int, list[tuple[int, int]]] = {}
        for group in self.param_groups:
            for weight in group["params"]:
                of_ranks = shapes.setdefault(self._place(weight)[0].size(), [])
                of_ranks += [tuple(weight.shape[-2:])] * prod(weight.shape[:-2])
        return "\n".join(explained(found, nprocs) for nprocs, found in shapes.items())

    def _momenta(self, weights: list[Any], group: dict[str, Any]) -> list[Any]:
        """This rank's shards of the momenta of one more gradient each (local)."""
        if not weights:
            return []
        for weight in weights:
            if "momentum_buffer" not in self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(weight.grad)
        buffers = [_shard(self.state[weight]["momentum_buffer"]) for weight in weights]
        gradients, momentum = [_shard(weight.grad) for weight in weights], group["momentum"]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        if not group["nesterov"]:
            return buffers
        return list(torch._foreach_lerp(gradients, buffers, momentum))  # noqa: SLF001 - as torch's own optimizers

    def _orthogonalized(self, updates: list[Any], weights: list[Any], group: dict[str, Any]) -> list[Any]:
        """**Collective.** This rank's shards of the orthogonalized updates, those of each context at once."""
        placed = [self._place(weight) for weight in weights]
        tensors = [
            _Update(update, weight.shape, mesh, placements)
            for update, weight, (mesh, placements) in zip(updates, weights, placed, strict=True)
        ]
        matrices = [matrix for tensor in tensors for matrix in tensor.matrices()]
        options = {"steps": group["steps"], "coefficients": group["coefficients"]}
        results: dict[int, Any] = {}
        for runtime in dict.fromkeys(x.runtime for x in matrices):
            mine = [k for k, x in enumerate(matrices) if x.runtime is runtime]
            results |= zip(mine, linalg.orthogonalize_many([matrices[k] for k in mine], **options), strict=True)
        ordered = iter(results[k] for k in range(len(matrices)))
        return [tensor.put_back(ordered) for tensor in tensors]

    def _place(self, weight: Any) -> tuple[DeviceMesh, list[Any]]:
        """The mesh of a weight, and its placements there (local)."""
        mesh, placements = self._mesh, [Replicate()]
        if isinstance(weight, DTensor):
            return weight.device_mesh, list(weight.placements)
        if mesh is None:
            mesh = self._mesh = init_mesh()
        return mesh, placements * mesh.ndim


_RATES: dict[str, Callable[[int, int], float]] = {
    "original": lambda m, n: sqrt(max(1.0, m / n)),
    "match_rms_adamw": lambda m, n: 0.2 * sqrt(max(m, n)),
}


def _shard(x: Any) -> Any:
    """This rank's part of a tensor, in the same memory (local)."""
    return x.to_local() if isinstance(x, DTensor) else x


class _Update:
    """The update of a weight, whose last two axes are matrices.

    Args:
        local: this rank's shard (local).
        shape: of the weight (global).
        mesh, placements: of the shards (global).
    """

    def __init__(self, local: Any, shape: Any, mesh: DeviceMesh, placements: list[Any]) -> None:
        self._local, self._batch = local, tuple(shape[:-2])
        if any(isinstance(each, Shard) and each.dim < len(self._batch) for each in placements):
            raise errors.ArgumentError(
                f"Muon: a weight of shape {tuple(shape)} is several matrices, and its first axis is sharded; shard one "
                f"of the last two axes"
            )
        self._shape, self._mesh = shape[-2:], mesh
        self._placements = [
            Shard(each.dim - len(self._batch)) if isinstance(each, Shard) else each for each in placements
        ]
        self._options: Any = {"shape": self._shape, "stride": (self._shape[1], 1), "run_check": False}
        self._desc = _layout(self._shape, mesh, tuple(self._placements))
        self._moved = self._placements
        if self._desc is None and not is_strided(self._shape, mesh, self._placements):
            self._moved = [Shard(0), *[Replicate()] * (mesh.ndim - 1)]

    def matrices(self) -> Iterator[DistMatrix]:
        """**Collective.** The matrices over all ranks of the mesh."""
        runtime = context_of(self._mesh).runtime
        for part in self._local.reshape(prod(self._batch), *self._local.shape[-2:]):
            if self._desc is not None:
                with runtime.local_step("Muon"):
                    array = runtime.backend.as_array(part.contiguous())
                    if array.shape != self._desc.local_shape(runtime.rank):
                        raise errors.LayoutError(
                            f"Muon: this rank's shard is {tuple(array.shape)}, and that of {tuple(self._shape)} with "
                            f"{self._placements} is {self._desc.local_shape(runtime.rank)}"
                        )
                yield DistMatrix(self._desc, array, runtime)
                continue
            t = DTensor.from_local(part.contiguous(), self._mesh, self._placements, **self._options)
            yield from_dtensor(t if self._moved is self._placements else t.redistribute(placements=self._moved))

    def put_back(self, results: Iterator[DistMatrix]) -> Any:
        """**Collective.** This rank's shard of as many orthogonalized matrices."""
        parts = []
        for _ in range(prod(self._batch)):
            result = next(results)
            if self._desc is None and self._moved is self._placements:
                part = to_dtensor(result, self._mesh, self._placements).to_local()
            else:
                part = tensor_of(result.local)
            if self._moved is not self._placements:
                t = DTensor.from_local(part, self._mesh, self._moved, **self._options)
                part = t.redistribute(placements=self._placements).to_local()
            parts.append(part)
        return torch.stack(parts).reshape(self._local.shape) if self._batch else parts[0]


@lru_cache(1024)
def _layout(shape: Any, mesh: DeviceMesh, placements: tuple[Any, ...]) -> MatrixDescriptor | None:
    """The block-cyclic layout of a DTensor in the memory of its shards; None if it has none (global)."""
    if is_strided(shape, mesh, placements):  # its shards change places
        return None
    try:
        return descriptor(shape, mesh, placements)
    except errors.LayoutError:
        return None

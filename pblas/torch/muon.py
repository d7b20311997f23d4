"""Muon: an optimizer whose updates are orthogonalized, the same for all ways to shard the weights."""

from __future__ import annotations

from functools import lru_cache
from math import prod, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

from pblas import errors, linalg
from pblas.context import Context
from pblas.dry import dry_run
from pblas.matrices.matrix import DistMatrix
from pblas.spectral.many import explained
from pblas.spectral.newton_schulz import MUON
from pblas.torch.dtensor import descriptor, from_dtensor, is_strided, tensor_of, to_dtensor
from pblas.torch.mesh import context_of, init_mesh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.simulation.dry_run import DryRun
    from pblas.simulation.hardware import Hardware


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
        ArgumentError: options out of range, or a parameter with fewer than two axes or with Partial.

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
                if isinstance(weight, DTensor) and any(each.is_partial() for each in weight.placements):
                    raise errors.ArgumentError(
                        f"Muon: a weight with placements {weight.placements} has sums that are not complete; "
                        f"redistribute it first: weight.redistribute(mesh, [Shard(0)]) adds and cuts"
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
        taken: list[_Taken] = []
        for group in self.param_groups:
            given = [weight for weight in group["params"] if weight.grad is not None]
            taken += [_Taken(*pair, group) for pair in zip(given, self._momenta(given, group), strict=True)]
        for (weight, _, group), update in zip(taken, self._orthogonalized(taken), strict=True):
            kept = 1 - group["lr"] * group["weight_decay"]
            rate = group["lr"] * _RATES[group["adjust_lr"]](*weight.shape[-2:])
            (_shard(weight) if kept == 1 else _shard(weight).mul_(kept)).add_(update, alpha=-rate)
        return loss

    def explain(self) -> str:
        """How a step divides the work on all weights, for each set of ranks (local).

        Returns:
            Which matrices are whole on one rank each, and which are divided over all.
        """
        texts = []
        for (ranks, _), weights in self._together().items():
            shapes = [tuple(weight.shape[-2:]) for weight in weights for _ in range(prod(weight.shape[:-2]))]
            texts.append(explained(shapes, len(ranks)))
        return "\n".join(texts)

    def dry_run(self, hardware: Hardware | str = "fat-tree") -> DryRun:
        """Time and memory of the orthogonalization in a step of all weights, by plans and without data (local).

        Args:
            hardware: as in `pblas.dry_run` (global).
        """
        together = self._together()

        def program() -> None:
            with Context() as ctx:
                for (_, options), weights in together.items():
                    matrices = []
                    for weight in weights:
                        shape, place = weight.shape[-2:], self._place(weight)
                        desc = _Update(None, weight.shape, *place).desc or descriptor(shape, *place)
                        count, dtype = prod(weight.shape[:-2]), str(weight.dtype).removeprefix("torch.")
                        matrices += [ctx.zeros(desc, dtype=dtype) for _ in range(count)]
                    linalg.orthogonalize_many(matrices, **dict(options))

        return dry_run(program, ranks=max((len(ranks) for ranks, _ in together), default=1), hardware=hardware)

    def _together(self) -> dict[tuple[tuple[int, ...], tuple[Any, ...]], list[Any]]:
        """The weights that one `orthogonalize_many` takes, by the ranks of their meshes and the options (global)."""
        found: dict[Any, list[Any]] = {}
        for group in self.param_groups:
            for weight in group["params"]:
                ranks = tuple(self._place(weight)[0].mesh.flatten().tolist())
                found.setdefault((ranks, _options(group)), []).append(weight)
        return found

    def _momenta(self, weights: list[Any], group: dict[str, Any]) -> list[Any]:
        """**Collective.** This rank's shards of the momenta of one more gradient each."""
        if not weights:
            return []
        gradients, momentum = [_gradient(weight) for weight in weights], group["momentum"]
        for weight, gradient in zip(weights, gradients, strict=True):
            if "momentum_buffer" not in self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(gradient)
        buffers = [_shard(self.state[weight]["momentum_buffer"]) for weight in weights]
        gradients = list(map(_shard, gradients))
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        if not group["nesterov"]:
            return buffers
        return list(torch._foreach_lerp(gradients, buffers, momentum))  # noqa: SLF001 - as torch's own optimizers

    def _orthogonalized(self, taken: list[_Taken]) -> Iterator[Any]:
        """**Collective.** Shards of the orthogonalized updates: at once those with equal ranks and options."""
        tensors = [_Update(update, weight.shape, *self._place(weight)) for weight, update, _ in taken]
        matrices, keys = list[DistMatrix](), list[Any]()
        for tensor, each in zip(tensors, taken, strict=True):
            matrices += tensor.matrices()
            keys += [(x.runtime, _options(each.group)) for x in matrices[len(keys) :]]
        results: dict[int, Any] = {}
        for key in dict.fromkeys(keys):
            mine = [k for k, other in enumerate(keys) if other == key]
            orthogonal = linalg.orthogonalize_many([matrices[k] for k in mine], **dict(key[1]))
            results |= zip(mine, orthogonal, strict=True)
        ordered = iter(results[k] for k in range(len(matrices)))
        for tensor in tensors:  # while the GPU updates the weight of the one before
            yield tensor.put_back(ordered)

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


class _Taken(NamedTuple):
    """A weight that a step updates."""

    weight: Any  # (global)
    update: Any  # this rank's shard of its momentum (local)
    group: dict[str, Any]  # its options (global)


def _options(group: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The options of `orthogonalize_many` (global)."""
    coefficients = tuple(tuple(each) if isinstance(each, list) else each for each in group["coefficients"])
    return ("steps", group["steps"]), ("coefficients", coefficients)


def _shard(x: Any) -> Any:
    """This rank's part of a tensor, in the same memory (local)."""
    return x.to_local() if isinstance(x, DTensor) else x


def _gradient(weight: Any) -> Any:
    """**Collective.** The gradient of a weight, distributed as the weight: that of torch may be Partial."""
    gradient = weight.grad
    if isinstance(weight, DTensor) and gradient.placements != weight.placements:
        return gradient.redistribute(placements=weight.placements)
    return gradient


class _Update:
    """The update of a weight, whose last two axes are matrices.

    Matrices that no block-cyclic layout describes, and those whose stack is cut, are cut along their rows first.

    Args:
        local: this rank's shard (local).
        shape: of the weight (global).
        mesh, placements: of the shards (global).
    """

    def __init__(self, local: Any, shape: Any, mesh: DeviceMesh, placements: list[Any]) -> None:
        self._local, self._shape, self._mesh, self._placements = local, tuple(shape), mesh, placements
        self._moved = placements
        self.desc = _layout(self._shape, mesh, tuple(placements))
        """Of each matrix; None if its shards change places, see `from_dtensor` (global)."""
        if self.desc is None and not is_strided(shape, mesh, placements):
            self._moved = [Shard(len(shape) - 2), *[Replicate()] * (mesh.ndim - 1)]
            self.desc = _layout(self._shape, mesh, tuple(self._moved))

    def _redistributed(self, local: Any, source: list[Any], target: list[Any]) -> Any:
        """**Collective.** This rank's shard of the weight with other placements."""
        if source is target:
            return local
        stride = tuple(prod(self._shape[k + 1 :]) for k in range(len(self._shape)))
        t = DTensor.from_local(
            local.contiguous(), self._mesh, source, run_check=False, shape=torch.Size(self._shape), stride=stride
        )
        return t.redistribute(placements=target).to_local()

    def matrices(self) -> Iterator[DistMatrix]:
        """**Collective.** The matrices over all ranks of the mesh."""
        runtime = context_of(self._mesh).runtime
        local = self._redistributed(self._local, self._placements, self._moved)
        for part in local.reshape(prod(self._shape[:-2]), *local.shape[-2:]):
            if self.desc is None:
                options: Any = {"shape": torch.Size(self._shape), "stride": (self._shape[1], 1), "run_check": False}
                yield from_dtensor(DTensor.from_local(part.contiguous(), self._mesh, self._placements, **options))
                continue
            with runtime.local_step("Muon"):
                array = runtime.backend.as_array(part.contiguous())
                if array.shape != self.desc.local_shape(runtime.rank):
                    raise errors.LayoutError(
                        f"Muon: this rank's shard is {tuple(array.shape)}, and that of {self._shape} with "
                        f"{self._moved} is {self.desc.local_shape(runtime.rank)}"
                    )
            yield DistMatrix(self.desc, array, runtime)

    def put_back(self, results: Iterator[DistMatrix]) -> Any:
        """**Collective.** This rank's shard of as many orthogonalized matrices."""
        parts = [next(results) for _ in range(prod(self._shape[:-2]))]
        if self.desc is None:
            return to_dtensor(parts[0], self._mesh, self._placements).to_local()
        tensors = [tensor_of(part.local) for part in parts]
        local = tensors[0] if len(self._shape) == 2 else torch.stack(tensors)
        local = local.reshape(*self._shape[:-2], *local.shape[-2:])
        return self._redistributed(local, self._moved, self._placements)


@lru_cache(1024)
def _layout(shape: tuple[int, ...], mesh: DeviceMesh, placements: tuple[Any, ...]) -> MatrixDescriptor | None:
    """The layout of the matrices of a weight in the memory of its shards; None if they have none there (global)."""
    stacked = len(shape) - 2
    if is_strided(shape, mesh, placements):  # its shards change places
        return None
    if stacked:
        if any(not each.is_replicate() and getattr(each, "dim", stacked) < stacked for each in placements):
            return None
        placements = tuple(Shard(each.dim - stacked) if type(each) is Shard else each for each in placements)
    try:
        return descriptor(shape[-2:], mesh, placements)
    except errors.LayoutError:
        return None

"""A feed-forward block over the ranks of a mesh: one layer that cuts features out, and one that adds them up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard

from pblas import errors
from pblas.torch.layers import (
    ACTIVATIONS,
    ColumnParallelLinear,
    RowParallelLinear,
    check_linear,
    checked_mesh,
)
from pblas.torch.mesh import context_of
from pblas.torch.operators import local

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from pblas.torch.layers import Kind


class _GateUp(ColumnParallelLinear):
    """Two layers of the same x in one: the weight is 2 x features out x features in, of gate and of up.

    Each rank's shard has its rows of gate above those of up, so one product computes both if they divide evenly.
    """

    _placements: ClassVar[dict[str, Any]] = {"weight": Shard(1), "bias": Shard(1)}

    @classmethod
    def of(cls, gate: nn.Linear, up: nn.Linear) -> Self:
        """The unsharded layer (local)."""
        pair = cls.__new__(cls)
        nn.Module.__init__(pair)
        pair.in_features, pair.out_features = up.in_features, up.out_features
        pair.weight = nn.Parameter(torch.stack([gate.weight.detach(), up.weight.detach()]))
        pair.bias = None if up.bias is None else nn.Parameter(torch.stack([gate.bias.detach(), up.bias.detach()]))
        return pair

    def _activated(self, x: Any, weight: tuple[Any, Any], bias: Any, activation: str | None, tokens: int | None) -> Any:
        elements, scale = weight
        kinds: tuple[Kind, Kind] = ("allgather", "replicated")
        if self.out_features % self.mesh.size() == 0:
            return self._product(x, weight, bias, kinds, 2 * self.out_features, activation, tokens)
        biases = (None, None) if bias is None else local(bias)
        gate, up = (
            self._product(x, (half, scale), half_bias, kinds, self.out_features, None, tokens)
            for half, half_bias in zip(local(elements), biases, strict=True)
        )
        return nn.functional.silu(gate) * up


class ParallelMLP(nn.Module):
    """down(activation(up(x))), or gated: down(silu(gate(x)) * up(x)), sharded over the ranks of a mesh.

    Activations stay where they are between the two layers. `state_dict` and `load_state_dict` have the names of a
    module with `torch.nn.Linear` layers up, down and, if gated, gate.

    Args:
        hidden: features of x and of the result (global).
        intermediate: features between the layers, of all ranks; they need not divide evenly (global).
        activation: "relu", "gelu", "gelu_tanh" or "silu"; of a gated block "silu" (global).
        gated: whether there is a gate (global).
        bias: whether the layers have a bias (global).
        mesh: the ranks, a mesh of one dimension; None for all ranks (global).
        sequence_dim: axis along which tokens are cut over the ranks in x and in the result; None: every rank has all
            of them (global).
        device: as in `torch.nn.Linear` (local).
        dtype: as in `torch.nn.Linear` (global).

    Raises:
        ArgumentError: an activation that is not known, or a mesh of several dimensions.
    """

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        activation: str = "silu",
        *,
        gated: bool = False,
        bias: bool = True,
        mesh: DeviceMesh | None = None,
        sequence_dim: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        options = {"bias": bias, "device": device, "dtype": dtype}
        up, down = nn.Linear(hidden, intermediate, **options), nn.Linear(intermediate, hidden, **options)
        gate = nn.Linear(hidden, intermediate, **options) if gated else None
        self._make(up, down, gate, activation, mesh, sequence_dim)

    @classmethod
    def from_linear(
        cls,
        up: nn.Linear,
        down: nn.Linear,
        gate: nn.Linear | None = None,
        activation: str = "silu",
        *,
        mesh: DeviceMesh | None = None,
        sequence_dim: int | None = None,
        src_data_rank: int | None = 0,
    ) -> Self:
        """**Collective.** The block with the weights of unsharded layers, which are left as they are.

        Args:
            up: the unsharded layer from hidden to intermediate features (global).
            down: the unsharded layer back (global).
            gate: the unsharded layer of a gated block, with the shape of up; None for a plain block (global).
            activation: as in the class (global).
            mesh: as in the class (global).
            sequence_dim: as in the class (global).
            src_data_rank: as in `ColumnParallelLinear.from_linear` (global).
        """
        block = cls.__new__(cls)
        block._make(up, down, gate, activation, mesh, sequence_dim, src_data_rank)
        return block

    def _make(
        self,
        up: nn.Linear,
        down: nn.Linear,
        gate: nn.Linear | None,
        activation: str,
        mesh: DeviceMesh | None,
        sequence_dim: int | None,
        src_data_rank: int | None = 0,
    ) -> None:
        """**Collective.** Shard the layers."""
        nn.Module.__init__(self)
        mesh = checked_mesh("ParallelMLP", mesh)
        runtime = context_of(mesh).runtime
        with runtime.call("ParallelMLP"), runtime.local_step("ParallelMLP"):
            known = {"silu"} if gate is not None else {*ACTIVATIONS} - {"swiglu"}
            if activation not in known:
                raise errors.ArgumentError(
                    f"ParallelMLP: activation must be one of {', '.join(sorted(known))}, got {activation!r}"
                )
            layers = {"up": up, "down": down} | ({} if gate is None else {"gate": gate})
            for name, layer in layers.items():
                check_linear("ParallelMLP", name, layer)
            if gate is not None:
                shapes = [(tuple(x.weight.shape), x.bias is not None) for x in (gate, up)]
                if shapes[0] != shapes[1]:
                    raise errors.ArgumentError(
                        f"ParallelMLP: gate and up must have weights of one shape, and both a bias or none, got {gate} "
                        f"and {up}"
                    )
        self.activation: str = activation if gate is None else "swiglu"
        self.is_gated: bool = gate is not None
        options: dict[str, Any] = {"sequence_dim": sequence_dim, "src_data_rank": src_data_rank}
        if gate is None:
            self.up = ColumnParallelLinear.from_linear(up, mesh, **options)
        else:
            self.gate_up = _GateUp.of(gate, up)
            self.gate_up.shard(mesh, **options)
            self.register_state_dict_post_hook(_separate)
            self.register_load_state_dict_pre_hook(_combine)
        self.down = RowParallelLinear.from_linear(down, mesh, **options)

    def forward(
        self, x: torch.Tensor, *, residual: torch.Tensor | None = None, tokens: int | None = None
    ) -> torch.Tensor:
        """**Collective.** The block applied to x, plus a residual.

        Args:
            x: any axes, and `hidden` features last; all tokens, or this rank's along `sequence_dim` (local).
            residual: has the shape of the result; None for none (local).
            tokens: length of axis `sequence_dim` over all ranks; None if all ranks have the same length (global).
        """
        first = self.gate_up if self.is_gated else self.up
        return self.down(first(x, activation=self.activation, tokens=tokens), residual=residual)


def _separate(_module: ParallelMLP, state_dict: Any, prefix: str, _metadata: object) -> None:
    """Name gate and up as two layers (local)."""
    for name in ("weight", "bias"):
        pair = state_dict.pop(f"{prefix}gate_up.{name}", None)
        if pair is not None:
            state_dict[f"{prefix}gate.{name}"], state_dict[f"{prefix}up.{name}"] = pair[0], pair[1]


def _combine(_module: ParallelMLP, state_dict: Any, prefix: str, *_: object) -> None:
    """Put gate and up together, sharded or not (local)."""
    for name in ("weight", "bias"):
        names = f"{prefix}gate.{name}", f"{prefix}up.{name}"
        if all(each in state_dict for each in names):
            gate, up = (state_dict.pop(each) for each in names)
            state_dict[f"{prefix}gate_up.{name}"] = _stacked(gate, up)


def _stacked(gate: Any, up: Any) -> Any:
    """Gate above up, as DTensors if they are (local)."""
    if not isinstance(gate, DTensor):
        return torch.stack([gate, up])
    shard = torch.stack([gate.to_local(), up.to_local()])
    shape, stride = (2, *gate.shape), (gate.numel(), *gate.stride())
    return DTensor.from_local(
        shard, gate.device_mesh, [Shard(1)], run_check=False, shape=torch.Size(shape), stride=stride
    )

"""Tensor-parallel layers, DTensors and an optimizer for torch: the layers of `pblas.tp` as modules with gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas._lazy import lazy

if TYPE_CHECKING:
    from pblas.torch.dtensor import descriptor as descriptor
    from pblas.torch.dtensor import from_dtensor as from_dtensor
    from pblas.torch.dtensor import to_dtensor as to_dtensor
    from pblas.torch.layers import ColumnParallelLinear as ColumnParallelLinear
    from pblas.torch.layers import RowParallelLinear as RowParallelLinear
    from pblas.torch.layers import full_state_dict as full_state_dict
    from pblas.torch.layers import linear as linear
    from pblas.torch.mesh import context_of as context_of
    from pblas.torch.mesh import init_mesh as init_mesh
    from pblas.torch.mlp import ParallelMLP as ParallelMLP
    from pblas.torch.muon import Muon as Muon
    from pblas.torch.styles import ColwiseParallel as ColwiseParallel
    from pblas.torch.styles import RowwiseParallel as RowwiseParallel
    from pblas.torch.styles import SequenceParallel as SequenceParallel
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "pblas.torch.dtensor": "descriptor from_dtensor to_dtensor",
            "pblas.torch.layers": "ColumnParallelLinear full_state_dict linear RowParallelLinear",
            "pblas.torch.mesh": "context_of init_mesh",
            "pblas.torch.mlp": "ParallelMLP",
            "pblas.torch.muon": "Muon",
            "pblas.torch.styles": "ColwiseParallel RowwiseParallel SequenceParallel",
        },
    )

"""The styles of torch's `parallelize_module` by layers of pblas: plans of existing models, with another import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor import parallel as torchs

from pblas import errors
from pblas.torch import operators
from pblas.torch.layers import ColumnParallelLinear, ParallelLinear, RowParallelLinear, distributed
from pblas.torch.mesh import context_of, group_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

LAST = Shard(-1)


class _Styled(ParallelLinear):
    """A layer whose argument and result may be DTensors, as those of torch's styles."""

    input_layout: Any
    output_layout: Any
    use_local_output: bool

    def forward(self, x: torch.Tensor, **options: Any) -> torch.Tensor:
        if isinstance(x, DTensor):
            wanted = [_of_axes(self.input_layout, x.ndim)]
            if list(x.placements) != wanted:
                x = x.redistribute(placements=wanted)
            if type(self.input_layout) is Shard and self.input_layout != LAST:
                options.setdefault("tokens", x.shape[self.input_layout.dim])
            x = x.to_local()
        y: torch.Tensor = super().forward(x, **options)
        if self.use_local_output:
            return y
        is_last = self.output_layout == LAST
        length = self.columns(options.get("activation")) if is_last else x.shape[self.sequence_dim or 0]
        return _as_dtensor(y, self.mesh, self.output_layout, length)


class _Colwise(_Styled, ColumnParallelLinear): ...


class _Rowwise(_Styled, RowParallelLinear): ...


def _as_dtensor(y: torch.Tensor, mesh: DeviceMesh, layout: Any, length: int) -> DTensor:
    """The DTensor of ranks' results; `length` is that of the axis that is cut, if one is, over all ranks."""
    placement, shape, stride, step = _of_axes(layout, y.ndim), list(y.shape), [0] * y.ndim, 1
    if isinstance(placement, Shard):
        shape[placement.dim] = length
    for axis in sorted(range(y.ndim), key=lambda axis: (y.stride(axis), -axis)):
        stride[axis], step = step, step * max(1, shape[axis])
    return DTensor.from_local(y, mesh, [placement], run_check=False, shape=torch.Size(shape), stride=tuple(stride))


def _of_axes(layout: Any, ndim: int) -> Any:
    """A layout whose axis counts from the first one."""
    return Shard(layout.dim % ndim) if isinstance(layout, Shard) else layout


def _cut_axis(style: str, which: str, layout: Any, others: tuple[Any, ...]) -> int | None:
    """The axis along which tokens are cut; None for layouts that cut none.

    Raises:
        ArgumentError: a layout that the style does not have.
    """
    if layout in others:
        return None
    if type(layout) is Shard and layout != LAST:
        return int(layout.dim)
    raise errors.ArgumentError(
        f"{style}: {which} must be {' or '.join(map(repr, others))}, or Shard of an axis of tokens, got {layout!r}; "
        f"redistribute before or after the layer, as by torch's PrepareModuleInput and PrepareModuleOutput"
    )


def _converted(module: nn.Linear, style: Any, kind: type[_Styled], mesh: DeviceMesh, sequence_dim: int | None) -> Any:
    """**Collective.** The same module with sharded parameters and the class of a layer of pblas."""
    name = type(style).__name__
    if type(module) is not nn.Linear:
        raise errors.ArgumentError(
            f"{name}: the module must be a torch.nn.Linear or torch.nn.Embedding, got {type(module).__name__}"
        )
    module.__class__ = kind
    assert isinstance(module, kind)
    module.input_layout, module.output_layout = style.input_layouts[0], style.output_layouts[0]
    module.use_local_output = style.use_local_output
    module.shard(mesh, sequence_dim, style.src_data_rank)
    return module


class ColwiseParallel(torchs.ColwiseParallel):
    """Cuts features out of a `torch.nn.Linear`, as torch's style of this name, by a layer of pblas.

    With input_layouts=Shard(1) the layer is `tp.allgather_linear`, with Replicate() `tp.replicated_linear`. An
    Embedding is left to torch's style.

    Args:
        input_layouts: Replicate(), the default, or Shard of the axis along which tokens are cut (global).
        output_layouts: Shard(-1), the default, or Replicate(), which gathers the features (global).
        use_local_output: whether the result is this rank's tensor, the default, or a DTensor (global).

    Raises:
        ArgumentError: other layouts, or another module; when the style is applied.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if isinstance(module, nn.Embedding):
            return super()._apply(module, device_mesh)
        (source,), (result,) = self.input_layouts, self.output_layouts
        axis = _cut_axis("ColwiseParallel", "input_layouts", source, (Replicate(),))
        if result not in (LAST, Replicate()):
            raise errors.ArgumentError(
                f"ColwiseParallel: output_layouts must be Shard(-1) or Replicate(), got {result!r}; redistribute after "
                f"the layer, as by torch's PrepareModuleOutput"
            )
        layer = _converted(module, self, _Colwise, device_mesh, axis)
        layer.gather_output = result == Replicate()
        return layer


class RowwiseParallel(torchs.RowwiseParallel):
    """Cuts features in of a `torch.nn.Linear`, as torch's style of this name, by a layer of pblas.

    With output_layouts=Shard(1) the layer is `tp.linear_reduce_scatter`, with Replicate() `tp.linear_allreduce`. An
    Embedding is left to torch's style.

    Args:
        input_layouts: Shard(-1), the default, or Replicate(), of which each rank takes its features (global).
        output_layouts: Replicate(), the default, or Shard of the axis along which tokens are cut (global).
        use_local_output: whether the result is this rank's tensor, the default, or a DTensor (global).

    Raises:
        ArgumentError: other layouts, or another module; when the style is applied.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if isinstance(module, nn.Embedding):
            return super()._apply(module, device_mesh)
        (source,), (result,) = self.input_layouts, self.output_layouts
        if source not in (LAST, Replicate()):
            raise errors.ArgumentError(
                f"RowwiseParallel: input_layouts must be Shard(-1) or Replicate(), got {source!r}; redistribute before "
                f"the layer, as by torch's PrepareModuleInput"
            )
        axis = _cut_axis("RowwiseParallel", "output_layouts", result, (Replicate(),))
        layer = _converted(module, self, _Rowwise, device_mesh, axis)
        layer.split_input = source == Replicate()
        return layer


class _Replicated(nn.Module):
    """A module that computes on this rank's tokens with parameters that all ranks share."""

    mesh: DeviceMesh
    sequence_sharding: Any
    use_local_output: bool

    def forward(self, x: torch.Tensor, *args: Any) -> torch.Tensor:
        axis, tokens = self.sequence_sharding.dim, 0
        if isinstance(x, DTensor):
            wanted = [_of_axes(self.sequence_sharding, x.ndim)]
            if list(x.placements) != wanted:
                x = x.redistribute(placements=wanted)
            tokens = x.shape[axis]
            x = x.to_local()
        y: torch.Tensor = super().forward(x, *args)
        if self.use_local_output:
            return y
        return _as_dtensor(y, self.mesh, self.sequence_sharding, tokens or y.shape[axis] * self.mesh.size())


def _shared(name: str) -> property:
    """A parameter as a tensor of this rank, whose gradient is the sum of those of all ranks."""

    def get(self: Any) -> Any:
        parameter = self._parameters[name]
        if parameter is None or not isinstance(parameter, DTensor):
            return parameter
        return operators.sum_gradients(parameter.to_local(), self._group)

    return property(get)


class SequenceParallel(torchs.SequenceParallel):
    """Norms and dropout of this rank's tokens, as torch's style of this name.

    Parameters are DTensors that every rank has; pblas adds up their gradients.

    Args:
        sequence_dim: axis along which tokens are cut (global).
        use_local_output: whether the result is this rank's tensor, or a DTensor, the default (global).

    Raises:
        ArgumentError: a module whose submodules have parameters; when the style is applied.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        own = dict(module.named_parameters(recurse=False))
        if len(own) != len(list(module.parameters())):
            raise errors.ArgumentError(
                f"SequenceParallel: the submodules of {type(module).__name__} have parameters; apply the style to each"
            )
        context_of(device_mesh)
        for name, parameter in own.items():
            module.register_parameter(name, distributed(parameter, device_mesh, Replicate(), self.src_data_rank))
        kind = type(module)
        properties = {name: _shared(name) for name in own}
        settings = {"mesh": device_mesh, "_group": group_of(device_mesh).group_name}
        settings |= {"sequence_sharding": self.sequence_sharding[0], "use_local_output": self.use_local_output}
        module.__class__ = type(kind.__name__, (_Replicated, kind), {"__module__": kind.__module__, **properties})
        for name, value in settings.items():
            setattr(module, name, value)
        return module

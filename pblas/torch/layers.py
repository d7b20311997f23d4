"""Linear layers whose weight is sharded over the ranks of a mesh, as modules of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from pblas import errors
from pblas.layouts.checks import checked_int
from pblas.torch import operators
from pblas.torch.mesh import context_of, group_of, init_mesh
from pblas.torch.operators import checking

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Kind = Literal["allgather", "reduce_scatter", "allreduce", "replicated"]
ACTIVATIONS = "relu", "gelu", "gelu_tanh", "silu", "swiglu"
"""Functions that may follow a layer."""


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    kind: Kind = "allgather",
    *,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
    float8: bool = False,
    tokens: int | None = None,
    features: int | None = None,
    mesh: DeviceMesh | None = None,
) -> torch.Tensor:
    """**Collective.** y = activation(x w^T + bias) + residual by a layer of `pblas.tp`, with gradients.

    It is the operator `torch.ops.pblas.linear`, which torch.compile records without a graph break. The axes of x are
    tokens, any others, and features, of which the first or the last is cut as in the function of `pblas.tp`.

    Args:
        x: this rank's tokens x ... x features in (local).
        weight: this rank's shard, features out x features in (local).
        bias: as in the function of `pblas.tp` (local).
        kind: "allgather", "reduce_scatter", "allreduce" or "replicated": `tp.allgather_linear`,
            `tp.linear_reduce_scatter`, `tp.linear_allreduce` or `tp.replicated_linear` (global).
        activation: None, "relu", "gelu", "gelu_tanh", "silu" or "swiglu" (global).
        residual: has the shape of y, and excludes an activation; None for none (local).
        float8: multiply x and weight in float8_e4m3fn, scaled by their largest elements over all ranks, which one small
            all-reduce finds. Gradients are products of x and weight as they are (global).
        tokens: length of the first axis over all ranks if the kind is "allgather"; None if all ranks have the same
            length (global).
        features: length of the weight's cut axis over all ranks; None if all ranks have the same length (global).
        mesh: the ranks, a mesh of one dimension; None for all ranks (global).

    Returns:
        y, cut as that of the function of `pblas.tp`.

    Raises:
        ArgumentError, DTypeError, LayoutError, MismatchError: as that function, the same on every rank.
    """
    mesh = init_mesh() if mesh is None else mesh
    context_of(mesh)
    ranks = _ranks_of(mesh)
    with checking("linear", ranks[0]):
        if kind not in operators.FORWARD:
            raise errors.ArgumentError(f"linear: kind must be one of {', '.join(operators.FORWARD)}, got {kind!r}")
        _check_tensor("linear", "weight", weight)
        cut = weight.shape[1] if kind in ("reduce_scatter", "allreduce") else weight.shape[0]
        features = cut * mesh.size() if features is None else features
    return _linear(x, weight, bias, residual, kind, activation, float8, None, tokens, features, ranks)


def _check_tensor(opname: str, name: str, x: object) -> None:
    if not isinstance(x, torch.Tensor) or not x.ndim or x.layout != torch.strided:
        got = f"one with shape {tuple(x.shape)}, {x.layout}" if isinstance(x, torch.Tensor) else type(x).__name__
        raise errors.ArgumentError(f"{opname}: {name} must be a tensor with axes, in dense memory, got {got}")


def check_linear(opname: str, name: str, layer: object) -> None:
    """Raise ArgumentError unless a layer is a `torch.nn.Linear` with whole parameters (local)."""
    if not isinstance(layer, nn.Linear) or isinstance(layer.weight, DTensor):
        got = "one that is sharded" if isinstance(layer, nn.Linear) else type(layer).__name__
        raise errors.ArgumentError(f"{opname}: {name} must be an unsharded torch.nn.Linear, got {got}")


def checked_mesh(opname: str, mesh: DeviceMesh | None) -> DeviceMesh:
    """**Collective.** A mesh of one dimension that has a context; that of all ranks for None."""
    mesh = init_mesh() if mesh is None else mesh
    context_of(mesh)
    if mesh.ndim != 1:
        raise errors.ArgumentError(
            f"{opname}: the mesh must have one dimension, got {mesh.ndim}; take one of them, as mesh['tp']"
        )
    return mesh


def _ranks_of(mesh: DeviceMesh) -> tuple[str, int, int]:
    """The name of a mesh's group, its number of ranks, and this rank's number (local)."""
    return group_of(mesh).group_name, mesh.size(), mesh.get_local_rank()


def _linear(
    x: Any,
    weight: Any,
    bias: Any,
    residual: Any,
    kind: str,
    activation: str | None,
    float8: bool,
    scale: Any,  # of a weight of 8 bits; None for others (local)
    tokens: int | None,
    features: int,
    ranks: tuple[str, int, int],  # name of the group, its number of ranks, and this rank's number (local)
) -> Any:
    """**Collective.** `linear` with checked arguments."""
    group, nprocs, rank = ranks
    with checking("linear", group):
        for name, z in (("x", x), ("bias", bias), ("residual", residual)):
            if z is None and name != "x":
                continue
            _check_tensor("linear", name, z)
            if z.device.type != weight.device.type:
                raise errors.ArgumentError(f"linear: {name} is on {z.device}, and the weight on {weight.device}")
        if activation is not None and activation not in ACTIVATIONS:
            raise errors.ArgumentError(
                f"linear: activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}"
            )
        if activation is not None and residual is not None:
            raise errors.ArgumentError(
                "linear: activation and residual exclude each other; add the residual to the result"
            )
        lengths: Any = (
            n if n is None or isinstance(n, int | torch.SymInt) else checked_int("linear", name, n, 0)
            for name, n in (("tokens", tokens), ("features", features))
        )
        tokens, features = lengths
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, bias, residual = (z if z is None else operators.local(z).to(dtype) for z in (x, bias, residual))
            weight = weight if scale is not None else operators.local(weight).to(dtype)
        if kind != "allgather":
            tokens = x.shape[0]
        elif tokens is None:
            tokens = x.shape[0] * nprocs
        rows = tokens
        if kind == "reduce_scatter":
            length = -(-tokens // nprocs)
            rows = max(0, min(length, tokens - rank * length))
        keep = activation is not None and torch.is_grad_enabled()
        keep = keep and any(z is not None and z.requires_grad for z in (x, weight, bias))
        sizes = rows, tokens, features, group
    return operators.linear(x, weight, bias, residual, scale, kind, activation or "", keep, float8, *sizes)[0]


def distributed(parameter: Any, mesh: DeviceMesh, placement: Any, src_data_rank: int | None) -> nn.Parameter:
    """**Collective.** A parameter with the elements of one of a rank, in memory of its own."""
    sharded = distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=src_data_rank)
    if sharded.to_local().untyped_storage().data_ptr() == parameter.untyped_storage().data_ptr():
        sharded = sharded.clone()
    return nn.Parameter(sharded, requires_grad=parameter.requires_grad)


class ParallelLinear(nn.Linear):
    """What both layers share: a `torch.nn.Linear` whose parameters are DTensors.

    `state_dict` has shards, as torch.distributed.checkpoint saves them, and `load_state_dict` also takes unsharded
    weights, of which each rank copies its shard; `full_state_dict` gathers them.

    Attributes:
        float8: multiply in 8 bits, as in `linear`; False at first. See `keep_float8` for inference (global).
    """

    _placements: ClassVar[dict[str, Any]]  # of the parameters, by name (global)
    float8: bool = False
    _kept: tuple[Any, Any] | None = None
    """This rank's shard of the weight in 8 bits, and its scale, since `keep_float8` (local)."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        mesh: DeviceMesh | None = None,
        *,
        sequence_dim: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.shard(mesh, sequence_dim)

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        mesh: DeviceMesh | None = None,
        *,
        sequence_dim: int | None = None,
        src_data_rank: int | None = 0,
    ) -> Self:
        """**Collective.** The layer with the weight and the bias of an unsharded one, which is left as it is.

        Args:
            linear: the unsharded layer (global).
            mesh: the ranks, a mesh of one dimension; None for all ranks (global).
            sequence_dim: as in the class (global).
            src_data_rank: rank whose weights all ranks get; None if all have the same: nothing is sent (global).

        Raises:
            ArgumentError: another layer, or a mesh of several dimensions.
            MismatchError: layers of different shapes or dtypes on the ranks.
        """
        mesh = checked_mesh(cls.__name__, mesh)
        runtime = context_of(mesh).runtime
        with runtime.call(cls.__name__), runtime.local_step(cls.__name__):
            check_linear(cls.__name__, "linear", linear)
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer.in_features, layer.out_features = linear.in_features, linear.out_features
        layer.weight, layer.bias = linear.weight, linear.bias
        layer.shard(mesh, sequence_dim, src_data_rank)
        return layer

    def shard(self, mesh: DeviceMesh | None, sequence_dim: int | None = None, src_data_rank: int | None = 0) -> None:
        """**Collective.** Shard the parameters, which are unsharded, over a mesh; see `torch.distribute_tensor`."""
        name, parameters = type(self).__name__, list(self.named_parameters(recurse=False))
        mesh = checked_mesh(name, mesh)
        runtime = context_of(mesh).runtime
        options: dict[str, Any] = {"sequence_dim": sequence_dim, "src_data_rank": src_data_rank}
        with runtime.call(name):
            runtime.agree(name, options | {key: (tuple(x.shape), str(x.dtype)) for key, x in parameters})
        self.mesh: DeviceMesh = mesh
        self.sequence_dim: int | None = sequence_dim
        self._ranks = _ranks_of(mesh)
        for name, parameter in parameters:
            self.register_parameter(name, distributed(parameter, mesh, self._placements[name], src_data_rank))

    def keep_float8(self) -> None:
        """**Collective.** Multiply in 8 bits, without gradients by the weight as it is now, which is rounded only here.

        Call it again after the weight changes. With gradients each call rounds the weight as it is then.
        """
        with torch.no_grad():
            (weight,), scale = operators.eight_bits(self._ranks[0], operators.local(self.weight))
        self.float8, self._kept = True, (weight, scale)

    def columns(self, activation: str | None) -> int:
        """Features of y, of all ranks (global)."""
        return self.out_features // 2 if activation == "swiglu" else self.out_features

    def _operand(self) -> tuple[Any, Any]:
        """The weight, or this rank's shard of it in 8 bits, and the scale of that (local)."""
        if self._kept is not None and self.float8 and not torch.is_grad_enabled():
            return self._kept
        return self.weight, None

    def _product(
        self,
        x: Any,
        weight: tuple[Any, Any],  # the weight, and its scale or None (local)
        bias: Any,
        kinds: tuple[Kind, Kind],  # of tokens that are cut, and of others (global)
        features: int,
        activation: str | None = None,
        tokens: int | None = None,
        residual: Any = None,
    ) -> Any:
        """**Collective.** The layer with this weight and bias."""
        dim, name = self.sequence_dim, type(self).__name__
        with checking(name, self._ranks[0]):
            _check_tensor(name, "x", x)
            if dim is not None and not (0 <= dim < x.ndim - 1 or -x.ndim <= dim < -1):
                raise errors.ArgumentError(
                    f"{name}: sequence_dim={dim} must be an axis of x before the last one, and x has shape "
                    f"{tuple(x.shape)}"
                )
            kind = kinds[0] if dim is not None else kinds[1]
            moves = dim is not None and dim not in (0, -x.ndim)
            x, residual = (
                z if z is None else z.unsqueeze(0) if z.ndim == 1 else z.movedim(dim, 0) if moves else z
                for z in (x, residual)
            )
        elements, scale = weight
        y = _linear(x, elements, bias, residual, kind, activation, self.float8, scale, tokens, features, self._ranks)
        return y.movedim(0, dim) if moves else y

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Also unsharded weights (local)."""
        for name, parameter in self.named_parameters(recurse=False):
            value = state_dict.get(prefix + name)
            if isinstance(value, torch.Tensor) and not isinstance(value, DTensor) and value.shape == parameter.shape:
                shard = distribute_tensor(value, self.mesh, [self._placements[name]], src_data_rank=None)
                state_dict[prefix + name] = shard
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, ranks={self.mesh.size()}, sequence_dim={self.sequence_dim}"


class ColumnParallelLinear(ParallelLinear):
    """y = x w^T + bias, whose features out are sharded: `tp.replicated_linear`, or `tp.allgather_linear`.

    Args:
        in_features: features in (global).
        out_features: features out of all ranks; they need not divide evenly (global).
        bias: whether there is a bias (global).
        mesh: the ranks, a mesh of one dimension; None for all ranks (global).
        sequence_dim: axis of x along which tokens are cut over the ranks, as after a `RowParallelLinear` with the same
            `sequence_dim`; the layer gathers them while it multiplies. None: every rank has the same x (global). If it
            is not the first axis, x is copied.
        device: as in `torch.nn.Linear` (local).
        dtype: as in `torch.nn.Linear` (global).

    Attributes:
        gather_output: gather the features of y on every rank; False at first (global).

    Raises:
        ArgumentError: a mesh of several dimensions.
    """

    _placements: ClassVar[dict[str, Any]] = {"weight": Shard(0), "bias": Shard(0)}
    gather_output: bool = False

    def forward(self, x: torch.Tensor, *, activation: str | None = None, tokens: int | None = None) -> torch.Tensor:
        """**Collective.** This rank's features of y, of all tokens.

        Args:
            x: any axes, and features in last (local).
            activation: a function after the layer, as in `linear` (global).
            tokens: length of axis `sequence_dim` over all ranks; None if all ranks have the same length (global).
        """
        y = self._activated(x, self._operand(), self.bias, activation, tokens)
        y = y.squeeze(0) if x.ndim == 1 else y
        return operators.gather_features(y, self.columns(activation), self._ranks[0]) if self.gather_output else y

    def _activated(self, x: Any, weight: tuple[Any, Any], bias: Any, activation: str | None, tokens: int | None) -> Any:
        """**Collective.** This rank's features of y, before they are gathered."""
        return self._product(x, weight, bias, ("allgather", "replicated"), self.out_features, activation, tokens)


class RowParallelLinear(ParallelLinear):
    """y = x w^T + bias, whose features in are sharded: `tp.linear_allreduce`, or `tp.linear_reduce_scatter`.

    Args:
        in_features: features in of all ranks; they need not divide evenly (global).
        out_features: features out (global).
        bias: whether there is a bias, which every rank has (global).
        mesh: as in `ColumnParallelLinear` (global).
        sequence_dim: axis of y along which tokens are cut over the ranks; None: every rank gets all of y (global). If
            it is not the first axis, x is copied.
        device: as in `torch.nn.Linear` (local).
        dtype: as in `torch.nn.Linear` (global).

    Attributes:
        split_input: x has all features, and each rank takes its own; False at first (global).

    Raises:
        ArgumentError: a mesh of several dimensions.
    """

    _placements: ClassVar[dict[str, Any]] = {"weight": Shard(1), "bias": Replicate()}
    split_input: bool = False

    def forward(self, x: torch.Tensor, *, residual: torch.Tensor | None = None) -> torch.Tensor:
        """**Collective.** All features of y, of all tokens or of this rank's.

        Args:
            x: any axes, and this rank's features in last, of all tokens (local).
            residual: added to y while ranks' sums are added; has the shape of y (local).
        """
        if self.split_input:
            with checking(type(self).__name__, self._ranks[0]):
                _check_tensor(type(self).__name__, "x", x)
            x = operators.split_features(x, self.weight.to_local().shape[1], self._ranks[0])
        kinds: tuple[Kind, Kind] = "reduce_scatter", "allreduce"
        y = self._product(x, self._operand(), self.bias, kinds, self.in_features, residual=residual)
        return y.squeeze(0) if x.ndim == 1 else y


def full_state_dict(module: nn.Module) -> dict[str, Any]:
    """**Collective.** The state of a module with unsharded weights, as `load_state_dict` takes it on any mesh.

    Args:
        module: any module, of which some parameters may be DTensors (global).

    Returns:
        `module.state_dict()` with each DTensor gathered on every rank.
    """
    return {name: x.full_tensor() if isinstance(x, DTensor) else x for name, x in module.state_dict().items()}

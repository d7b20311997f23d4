"""The contexts of device meshes: the ranks of a mesh are those of a `Context`."""

from __future__ import annotations

import os
import socket
from math import prod
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pblas import errors
from pblas.context import Context
from pblas.runtime.runtime import fail_without_context
from pblas.tp.products import default_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pblas.runtime.runtime import Runtime

_CONTEXTS: dict[str, tuple[Any, Context]] = {}
"""Each group and its context, by the group's name, which custom operators take as an argument."""


def init_mesh(
    shape: Sequence[int] | None = None, names: Sequence[str] | None = None, *, ctx: Context | None = None
) -> DeviceMesh:
    """**Collective.** A device mesh over all ranks, whether torchrun or mpiexec has started them.

    Starts torch.distributed if it has not been started: with Gloo, and with NCCL too if there are GPUs. Ranks that
    mpiexec has started need no variables of the environment, and the layers of the mesh use their MPI.

    Args:
        shape: ranks along each dimension of the mesh; None for one dimension (global).
        names: names of the dimensions; None for "tp", or "dp" and "tp" (global).
        ctx: the context over all ranks that the layers of a mesh of one dimension use; None for `tp.default_context`
            of ranks that mpiexec has started, and for a new one of ranks that torchrun has started (global).

    Returns:
        The mesh, of GPUs if torch finds some, else of CPUs.

    Raises:
        ArgumentError: a shape that does not have as many places as there are ranks, or a wrong number of names.
        BackendError: in a dry run, whose ranks torch cannot reach.
    """
    if not dist.is_initialized():
        libraries = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        if dist.is_torchelastic_launched() or "MASTER_ADDR" in os.environ:
            dist.init_process_group(libraries)
        else:
            ctx = default_context() if ctx is None else ctx
            store = _store(ctx)
            dist.init_process_group(libraries, store=store, rank=ctx.rank, world_size=ctx.nprocs)
    shape = (dist.get_world_size(),) if shape is None else tuple(shape)
    names = ("dp", "tp")[-len(shape) :] if names is None else tuple(names)
    if prod(shape) != dist.get_world_size() or len(names) != len(shape):
        raise errors.ArgumentError(
            f"init_mesh: shape must have {dist.get_world_size()} places, and names= a name for each dimension, got "
            f"{shape} and {names}"
        )
    backend: Any = None if ctx is None else ctx.runtime.backend
    gpus = torch.cuda.is_available() if backend is None else backend.gpus
    if gpus and backend is not None:
        torch.cuda.set_device(backend.device)
    mesh = init_device_mesh("cuda" if gpus else "cpu", shape, mesh_dim_names=names)
    if ctx is not None:
        group = group_of(mesh)
        _CONTEXTS[group.group_name] = group, ctx
    return mesh


def group_of(mesh: DeviceMesh) -> Any:
    """The group of all ranks of a mesh, in the order of its rows. **Collective** for some of the ranks of the job."""
    if mesh.ndim == 1:
        return mesh.get_group()
    if mesh.mesh.flatten().tolist() == list(range(dist.get_world_size())):
        return dist.group.WORLD
    return mesh._flatten().get_group()  # noqa: SLF001 - torch has no public call


def context_of(mesh: DeviceMesh | None = None) -> Context:
    """The context whose ranks are those of a mesh, in the order of its rows.

    **Collective** in the first call with these ranks, which makes it. It is closed when the program ends.

    Args:
        mesh: a mesh of any number of dimensions; None for one dimension of all ranks, see `init_mesh` (global).

    Raises:
        ArgumentError: no mesh.
        BackendError: a mesh whose messages between hosts do not go through Gloo.
    """
    if mesh is None:
        mesh = init_mesh()
    if not isinstance(mesh, DeviceMesh):
        problem = f"context_of: mesh must be a DeviceMesh of torch, or None, got {type(mesh).__name__}"
        fail_without_context("context_of", errors.ArgumentError(problem))
    group = group_of(mesh)
    _, ctx = _CONTEXTS.get(group.group_name, (group, None))
    if ctx is None or ctx.runtime.closed:
        ctx = Context(process_group=group)
        _CONTEXTS[group.group_name] = group, ctx
        ctx.runtime.backend.peers.before_end(ctx.close)
    return ctx


def context_named(group: str) -> Context:
    """The context of a group by the group's name (local)."""
    if group not in _CONTEXTS:
        raise errors.ContextError(f"the group {group} of torch has no context; call pblas.torch.context_of(mesh) first")
    return _CONTEXTS[group][1]


def group_with(runtime: Runtime) -> Any:
    """The group whose context has this runtime; None if the context was made without a mesh (local)."""
    return next((group for group, ctx in _CONTEXTS.values() if ctx.runtime is runtime), None)


def _store(ctx: Context) -> Any:
    """**Collective.** A store that all ranks reach, for torch.distributed."""
    store, address = None, None
    with ctx.runtime.call("init_mesh"):
        backend = ctx.runtime.backend
        with ctx.runtime.local_step("init_mesh"):
            if backend.dry is not None:
                raise errors.BackendError(
                    "init_mesh: torch.distributed waits for all ranks, and a dry run has one process; dry runs take "
                    "the products of pblas.tp in place of torch's layers"
                )
            if ctx.rank == 0:
                host = "127.0.0.1" if len(backend.peers.node) == ctx.nprocs else socket.gethostname()
                store = dist.TCPStore(host, 0, ctx.nprocs, is_master=True, wait_for_workers=False)
                address = host, store.port
        ctx.runtime.agree("init_mesh", {})
        host, port = backend.agreement.broadcast(address, 0, "init_mesh: address of the store")
    return dist.TCPStore(host, port, ctx.nprocs, is_master=False) if store is None else store

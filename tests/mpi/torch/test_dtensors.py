"""Laws of DTensors as matrices, and of Muon: nothing is copied, and updates are those of unsharded weights."""

from __future__ import annotations

import importlib
import itertools
import re
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import errors, linalg
from pblas.spectral.newton_schulz import MUON
from tests.common.ranks import COMM, Contexts, raises_on_all_ranks
from tests.common.tensors import close, random, whole

torch: Any = pytest.importorskip("torch")
nn = torch.nn
tensors: Any = pytest.importorskip("torch.distributed.tensor")
_StridedShard = importlib.import_module("torch.distributed.tensor.placement_types")._StridedShard
pt: Any = pblas.torch
Shard, Replicate, Partial = tensors.Shard, tensors.Replicate, tensors.Partial

P, RANK = COMM.size, COMM.rank
HIDDEN, WIDE = 7, 2 * P + 3  # features that do not divide
SETTINGS = ("shared",)
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.torch,
]


@pytest.fixture(scope="module")
def mesh(contexts: Contexts) -> Any:
    """A mesh of all ranks; its layers use the context `shared`."""
    return pt.init_mesh(ctx=contexts["shared"])


PLACEMENTS = [*itertools.product([Shard(0), Shard(1), Replicate()], repeat=2)]


@pytest.mark.parametrize("turned", [False, True])
def test_dtensors_are_matrices_without_a_copy(mesh: Any, turned: bool) -> None:
    """On meshes of one and of two dimensions; of shards stored by rows and by columns."""
    a = random(WIDE, HIDDEN)
    flat = [(mesh, [placement]) for placement in (Shard(0), Shard(1), Shard(-1), Replicate())]
    for grid, placements in (*flat, *((pt.init_mesh((1, P)), list(each)) for each in PLACEMENTS)):
        t = tensors.distribute_tensor(a.T.contiguous() if turned else a, grid, placements)
        t, expected = (t.t(), a) if turned else (t, a)
        A = pt.from_dtensor(t)
        assert np.array_equal(A.to_global(None), expected.cpu().numpy())
        local = t.to_local()
        assert A.runtime.backend.address(A.local) == local.data_ptr() or not local.numel()
        back = pt.to_dtensor(A, grid)
        assert back.to_local().data_ptr() == local.data_ptr() or not local.numel()
        assert torch.equal(back.full_tensor(), expected)
        moved = pt.to_dtensor(A, grid, [Replicate()] * grid.ndim)
        assert torch.equal(moved.to_local(), expected)
    half = tensors.distribute_tensor(a.bfloat16(), mesh, [Shard(0)])
    assert torch.equal(pt.to_dtensor(pt.from_dtensor(half)).to_local(), half.to_local())


def test_an_axis_that_is_cut_twice_has_the_shards_of_torch() -> None:
    """Or is an error."""
    refused = 0
    for outer, inner, length in itertools.product((1, 2, 3), (1, 2, 3), range(14)):
        shards = [chunk.chunk(inner) for chunk in torch.arange(length).chunk(outer)]
        try:
            desc = pt.descriptor((length, 2), SimpleNamespace(shape=(outer, inner)), [Shard(0), Shard(0)])
        except errors.LayoutError:
            refused += 1
            continue
        for i, j in itertools.product(range(outer), range(inner)):
            part = shards[i][j].tolist() if i < len(shards) and j < len(shards[i]) else []
            ranges, _ = desc.global_ranges(i * inner + j)
            assert [k for start, stop in ranges for k in range(start, stop)] == part
    assert 0 < refused < 60


def test_linalg_takes_dtensors(mesh: Any) -> None:
    n = 3 * P + 2
    a, b = random(n, n) + n * torch.eye(n, dtype=torch.float64), random(n, 3, seed=1)
    A, B = (tensors.distribute_tensor(z, mesh, [Shard(k)]) for k, z in ((0, a), (1, b)))
    x = pt.to_dtensor(linalg.solve(pt.from_dtensor(A), pt.from_dtensor(B)))
    close(a @ x.full_tensor(), b, terms=n * n)
    w, V = linalg.eigh(pt.from_dtensor(tensors.distribute_tensor(a @ a.T, mesh, [Shard(1)])))
    v = pt.to_dtensor(V).full_tensor()
    close(v @ torch.diag(torch.tensor(np.asarray(w))) @ v.T, a @ a.T, terms=n * n)


def test_what_is_no_matrix_of_its_mesh_is_refused(mesh: Any) -> None:
    partial_sums = tensors.DTensor.from_local(torch.ones(2, 2), mesh, [Partial()], run_check=False)
    cube = tensors.distribute_tensor(torch.ones(2, 2, 2), mesh, [Shard(0)])
    uneven = tensors.DTensor.from_local(
        torch.ones(2 + (RANK == 0), 2), mesh, [Shard(0)], shape=torch.Size((2 * P, 2)), stride=(2, 1)
    )
    raises_on_all_ranks(errors.ArgumentError, "has sums that are not complete", partial(pt.from_dtensor, partial_sums))
    raises_on_all_ranks(errors.LayoutError, "a matrix has two dimensions", partial(pt.from_dtensor, cube))
    if P > 1:
        raises_on_all_ranks(errors.LayoutError, "the local array is", partial(pt.from_dtensor, uneven))
        A = pt.context_of(mesh).zeros(pblas.MatrixDescriptor.row_wise(4 * P, 2, P, mb=1))
        raises_on_all_ranks(errors.LayoutError, "no DTensor on a mesh", partial(pt.to_dtensor, A, mesh))
    many = SimpleNamespace(shape=(2, 2, 2, 2))
    for placements, kind, text in (
        ([], errors.ArgumentError, "there are 0 placements"),
        (
            [Shard(0), Shard(1), Replicate(), Replicate()],
            errors.LayoutError,
            "[Shard(0), " + "Replicate(), " * 2 + "Rep",
        ),
    ):
        with pytest.raises(kind, match=re.escape(text)):
            pt.descriptor((8, 8), many, placements)
    integers = tensors.distribute_tensor(torch.ones(2, 2, dtype=torch.int32), mesh, [Replicate()])
    raises_on_all_ranks(errors.DTypeError, "int32", partial(pt.from_dtensor, integers))


def updated(weight: Any, grads: list[Any], options: dict[str, float]) -> Any:
    """Muon of one unsharded weight, or of several in one, in float64."""
    weight, buffer = weight.double().clone(), torch.zeros_like(weight).double()
    for grad in (grad.double() for grad in grads):
        buffer = 0.9 * buffer + 0.1 * grad
        x = 0.1 * grad + 0.9 * buffer
        x = x / x.norm(dim=(-2, -1), keepdim=True)
        for _ in range(5):
            g = x @ x.mT
            x = 3.4445 * x + (-4.7750 * g + 2.0315 * g @ g) @ x
        scale = max(1.0, weight.shape[-2] / weight.shape[-1]) ** 0.5
        weight = weight * (1 - 0.1 * options["weight_decay"]) - 0.1 * scale * x
    return weight


@pytest.mark.parametrize("shape", [(WIDE, HIDDEN), (5, 4 * P + 1)])
def test_muon_updates_as_if_weights_were_whole(mesh: Any, shape: tuple[int, int]) -> None:
    """Weights that are cut by rows, by columns, or not, tensors of every rank, and several matrices in one."""
    weight, grads = random(*shape), [random(*shape, seed=k) for k in (1, 2)]
    expected, second = (updated(z, grads, {"weight_decay": 0.2}) for z in (weight, 2 * weight))
    grid = pt.init_mesh((P, 1))
    flat = [(mesh, [placement]) for placement in (Shard(0), Shard(1), Replicate())]
    places = [*flat, (grid, [Shard(0), Shard(1)]), (grid, [Shard(1), Shard(0)])]
    weights = [nn.Parameter(tensors.distribute_tensor(weight, *place)) for place in places]
    both = nn.Parameter(tensors.distribute_tensor(torch.stack([weight, 2 * weight]), mesh, [Shard(1)]))
    plain = nn.Parameter(weight.clone())
    optimizer = pt.Muon([*weights, both, plain], lr=0.1, momentum=0.9, weight_decay=0.2, mesh=mesh)
    for grad in grads:
        for each, place in zip(weights, places, strict=True):
            each.grad = tensors.distribute_tensor(grad, *place)
        both.grad = tensors.distribute_tensor(torch.stack([grad, grad]), mesh, [Shard(1)])
        plain.grad = grad.clone()
        optimizer.step()
    for each in (*weights, plain):
        close(whole(each), expected, terms=100)
    close(whole(both)[0], expected, terms=100)
    close(whole(both)[1], second, terms=100)
    assert optimizer.explain().startswith(f"{len(places) + 3} matrices over {P} ranks\n")


GRIDS = {4: [(2, 2)], 6: [(2, 3), (3, 2)]}.get(P, [(1, P)])
"""Shapes of meshes of two dimensions."""


@pytest.mark.parametrize("shape", [(WIDE, HIDDEN), (1, 5), (2, 7, P + 1), (3, 2, 2, 5)])
def test_muon_takes_weights_in_any_sharding(mesh: Any, shape: tuple[int, ...]) -> None:
    """Also stacks of matrices that are cut apart, rows of which ranks have none, and gradients that are not added up.

    Groups of weights with equal steps are one call, and can be planned without data.
    """
    weight, grad = random(*shape), random(*shape, seed=1)
    expected, choices = updated(weight, [grad], {"weight_decay": 0.1}), [*map(Shard, range(len(shape))), Replicate()]
    places = [(mesh, [each]) for each in choices]
    for grid in map(pt.init_mesh, GRIDS):
        places += [(grid, list(each)) for each in itertools.product(choices, repeat=2)]
        strided = ((_StridedShard(k, split_factor=grid.shape[1]), Shard(k)) for k in range(len(shape)))
        places += [(grid, list(each)) for each in strided]  # by `fully_shard`, after tensor or expert parallelism
    cube = pt.init_mesh((1, P, 1), ("a", "b", "c"))
    places += [(cube, [Replicate(), each, Replicate()]) for each in choices]
    weights = []
    for place, placements in places:
        everywhere = [tensors.distribute_tensor(z, place, [Replicate()] * place.ndim) for z in (weight, grad)]
        local, weight_grad = (z.clone().redistribute(placements=placements) for z in everywhere)
        weights.append(nn.Parameter(local))
        weights[-1].grad = weight_grad
    weights.append(nn.Parameter(tensors.distribute_tensor(weight.clone(), mesh, [Replicate()])))
    share = grad * (RANK + 1) * 2 / (P * (P + 1))
    weights[-1].grad = tensors.DTensor.from_local(share, mesh, [Partial()], run_check=False)
    groups = [{"params": weights[::2]}, {"params": weights[1::2], "lr": 0.1, "coefficients": list(MUON)}]
    optimizer = pt.Muon(groups, lr=0.1, momentum=0.9, weight_decay=0.1)
    count = len(weights) * int(np.prod(shape[:-2]))
    assert optimizer.explain().splitlines()[0] == f"{count} matrices over {P} ranks"
    assert optimizer.explain().count("matrices over") == 1
    run = optimizer.dry_run()
    assert run.nprocs == P
    assert run.peak_nbytes >= weight.numel() * weight.element_size()
    optimizer.step()
    for each in weights:
        close(whole(each), expected, terms=100)


def test_muon_refuses_what_it_cannot_orthogonalize(mesh: Any) -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    for options, text in (({"lr": -1.0}, "lr must be at least 0"), ({"adjust_lr": "none"}, "adjust_lr must be one of")):
        with pytest.raises(errors.ArgumentError, match=text):
            pt.Muon([weight], **options)
    with pytest.raises(errors.ArgumentError, match="a weight must have two axes at least"):
        pt.Muon([nn.Parameter(torch.ones(3))])
    sums = nn.Parameter(tensors.DTensor.from_local(torch.ones(2, 2), mesh, [Partial()], run_check=False))
    with pytest.raises(errors.ArgumentError, match="has sums that are not complete"):
        pt.Muon([sums])

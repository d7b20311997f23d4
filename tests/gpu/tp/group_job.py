"""Products and layers on ranks that torchrun starts, without mpi4py; test_torchrun.py starts the job.

PBLAS_SHARE_GPU=1 torchrun --nproc-per-node 2 tests/gpu/tp/group_job.py
"""

from __future__ import annotations

import runpy
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import torch.distributed as dist

import pblas
from pblas import Grid, MatrixDescriptor, linalg, tp
from tests.common.gauge import NAMES, THRESHOLD, dtype_of, entries, gauge

SECONDS = 60.0


def host(x: Any) -> Any:
    return cupy.asnumpy(x) if isinstance(x, cupy.ndarray) else np.asarray(x)


def everywhere(call: Any) -> tuple[str, str]:
    """Name and text of the exception that a call raises, which all ranks have."""
    outcomes: list[Any] = [None] * dist.get_world_size()
    try:
        call()
        dist.all_gather_object(outcomes, ("", ""))
    except pblas.PblasError as error:
        dist.all_gather_object(outcomes, (type(error).__name__, str(error)))
    assert len(set(outcomes)) == 1, outcomes
    return outcomes[0]


def products(ctx: pblas.Context) -> None:
    p = ctx.nprocs
    m, k, n = 8 * p + 3, 16 * p + 1, 8 * p + 5
    grid = Grid(2, p // 2)
    kinds = (
        MatrixDescriptor.row_wise,
        MatrixDescriptor.column_wise,
        lambda rows, columns, _: MatrixDescriptor.block_cyclic(rows, columns, 5, 4, grid),
    )
    for name in NAMES:
        dtype = dtype_of(name)
        a, b = entries((m, k), dtype, 1), entries((k, n), dtype, 2)
        for kind in kinds:
            A = ctx.from_global(a if ctx.rank == 0 else None, kind(m, k, p), root=0)
            B = ctx.from_global(b, kinds[0](k, n, p))
            for _ in range(3):  # eagerly, and by graphs
                D = A @ B
            d = host(D.to_global(None))
            assert gauge(d, a, b) <= THRESHOLD, (name, kind)
    A = ctx.random((12 * p, 12 * p), seed=1)
    spd = A @ A.T + 12 * p * ctx.eye(12 * p)
    x = linalg.solve(spd, A[:, :3].copy(), assume_a="pos")
    error = (spd @ x - A[:, :3]).norm()
    assert error <= 1e-10 * A.norm(), error
    total = host(ctx.allreduce(cupy.full(1000, ctx.rank + 1.0)))
    assert (total == p * (p + 1) / 2).all()


def layers(ctx: pblas.Context) -> None:
    """x W^T with its features and tokens split, on integers, which are exact; then a block that torch trains."""
    p, rank = ctx.nprocs, ctx.rank
    tokens, inwards, outwards = 8 * p + 3, 16 * p, 32 * p
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((tokens, inwards), (outwards, inwards)))
    t, i, o = (tp.local_shard(length, rank, p) for length in (tokens, inwards, outwards))
    gathered = tp.allgather_linear(cupy.asarray(x[t]), cupy.asarray(w[o]), tokens=tokens, ctx=ctx)
    assert np.array_equal(host(gathered), (x @ w.T)[:, o])
    pieces = cupy.ascontiguousarray(cupy.asarray(x)[:, i]), cupy.ascontiguousarray(cupy.asarray(w)[:, i])
    assert np.array_equal(host(tp.linear_reduce_scatter(*pieces, ctx=ctx)), (x @ w.T)[t])
    assert np.array_equal(host(tp.linear_allreduce(*pieces, ctx=ctx)), x @ w.T)


def errors(ctx: pblas.Context) -> None:
    """Errors are those of all ranks, and the context stays usable."""
    desc = MatrixDescriptor.row_wise(4, 4, ctx.nprocs)
    A = ctx.random(desc)
    name, text = everywhere(lambda: ctx.zeros((4, 4 + (ctx.rank == 1))))
    assert (name, "differ" in text) == ("MismatchError", True), (name, text)
    name, text = everywhere(lambda: A @ ctx.zeros((5, 4)))
    assert name in ("DescriptorError", "LayoutError"), (name, text)
    assert everywhere(lambda: (A @ A).to_global(None)) == ("", "")


def main() -> None:
    sys.modules["mpi4py"] = None  # type: ignore[assignment] # an import of it fails
    warnings.filterwarnings("ignore", "PBLAS_SHARE_GPU=1 is for tests", pblas.PblasWarning)
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=timedelta(seconds=SECONDS))
    group = dist.group.WORLD
    name, text = everywhere(lambda: pblas.Context(process_group=group, backend="cuda"))
    assert (name, "needs ranks of MPI" in text) == ("BackendError", True), text
    with pblas.Context(process_group=group, timeout=SECONDS) as ctx:
        assert ctx.runtime.backend.name == "nvshmem"
        assert ctx.nprocs == dist.get_world_size()
        products(ctx)
        layers(ctx)
        errors(ctx)
    with pblas.Context(process_group=dist.new_group(backend="gloo"), timeout=SECONDS) as ctx:  # NVSHMEM runs already
        assert float(ctx.eye(9).trace()) == 9.0
    rank, example = dist.get_rank(), Path(__file__).parents[3] / "examples" / "tp_torch.py"
    status = runpy.run_path(str(example))["main"](["--tokens", "3", "--hidden", "6"])
    assert status == 0
    print(f"rank {rank}: all laws hold", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

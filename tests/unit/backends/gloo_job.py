"""Contexts of a torch.distributed group on CPUs, without MPI; test_process_group.py starts the job.

torchrun --nproc-per-node 3 tests/unit/backends/gloo_job.py

With the name of a call and a folder as arguments, the last rank is killed in the middle; the others write there what
they raise, and how long it took. The launcher must let them go on.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import runpy
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

import pblas
from pblas import Grid, MatrixDescriptor, linalg, tp
from pblas.backends import shared_files
from pblas.backends.agreement import Agreement
from tests.common.gauge import NAMES, THRESHOLD, dtype_of, entries, gauge
from tests.unit.backends import group_job
from tests.unit.backends.group_job import SECONDS, everywhere, outcome

TIMEOUT = 2.0
"""Seconds after which the others give up the killed rank."""
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"transport": "shared"},
    {"transport": "message"},
    {"ranks_per_node": 2},
    {"transport": "message", "link": (1e-4, 1e9)},
)


def layouts(m: int, n: int, p: int) -> list[MatrixDescriptor]:
    return [
        MatrixDescriptor.row_wise(m, n, p),
        MatrixDescriptor.column_wise(m, n, p, nb=2, csrc=p - 1),
        MatrixDescriptor.block_cyclic(m, n, 3, 2, Grid(1, p)),
        MatrixDescriptor.block_cyclic(m, n, 2, 3, Grid(p, 1)),
        MatrixDescriptor.replicated(m, n, p),
    ]


def products(ctx: pblas.Context) -> None:
    p, (m, n, k) = ctx.nprocs, (13, 9, 22)
    for name in NAMES:
        a, b = entries((m, k), dtype_of(name), 1), entries((k, n), dtype_of(name), 2)
        for desc_a, desc_b in zip(layouts(m, k, p), reversed(layouts(k, n, p)), strict=True):
            A, B = ctx.from_global(a if ctx.rank == 0 else None, desc_a, root=0), ctx.from_global(b, desc_b, root=None)
            assert gauge((A @ B).to_global(None), a, b) <= THRESHOLD, (name, desc_a, desc_b)
    a, b = entries((70, 80), np.dtype(float), 3), entries((90, 80), np.dtype(float), 4)
    A, B = (ctx.from_global(x, MatrixDescriptor.row_wise(x.shape[0], 80, p), root=None) for x in (a, b))
    assert gauge((A @ B.T).to_global(None), a, b.T) <= THRESHOLD
    positive = pblas.pmatmul(A, B.T, epilogue="relu").to_global(None)
    assert positive is not None
    assert np.allclose(positive, np.maximum(a @ b.T, 0))
    v = np.arange(80.0)
    assert np.allclose(A @ v, a @ v)


def redistribution(ctx: pblas.Context) -> None:
    x = entries((11, 14), np.dtype(float), 5)
    for source, target in itertools.product(layouts(11, 14, ctx.nprocs), repeat=2):
        moved = ctx.from_global(x, source, root=None).redistribute(target)
        assert moved.desc == target
        assert np.array_equal(moved.to_global(None), x), (source, target)


def solvers(ctx: pblas.Context) -> None:
    n = 40
    a = entries((n, n), np.dtype(float), 6) + 10 * n * np.eye(n)
    b = entries((n, 3), np.dtype(float), 7)
    for desc in layouts(n, n, ctx.nprocs)[:4]:
        A, B = ctx.from_global(a, desc, root=None), ctx.from_global(b, MatrixDescriptor.row_wise(n, 3, ctx.nprocs))
        x = linalg.solve(A, B).to_global(None)
        assert np.allclose(a @ x, b)
        spd = A @ A.T
        lower = linalg.cholesky(spd).to_global(None)
        assert lower is not None
        assert np.allclose(lower @ lower.T, a @ a.T)
        assert np.isclose(A.norm(), np.linalg.norm(a))
    wide = entries((60, 5), np.dtype(float), 8)
    Q, R = linalg.qr(ctx.from_global(wide, MatrixDescriptor.row_wise(60, 5, ctx.nprocs), root=None))
    assert np.allclose((Q @ R).to_global(None), wide)


def collectives(ctx: pblas.Context) -> None:
    p, rank = ctx.nprocs, ctx.rank
    algorithms: Any = ("auto", "naive", "one_shot", "two_shot")
    for count in (0, 1, 1000, 300_000):  # 2.4 MB: more than a slot
        parts = [np.arange(count, dtype=float) + r for r in range(p)]
        sums = np.sum(parts, axis=0)
        for algorithm in algorithms:
            assert np.array_equal(ctx.allreduce(parts[rank].copy(), algorithm=algorithm), sums)
        assert np.array_equal(ctx.allreduce(parts[rank], op="max"), parts[-1])
        assert np.array_equal(ctx.allgather(parts[rank]), np.concatenate(parts))
        tall = np.stack([parts[rank]] * p)
        assert np.array_equal(ctx.reduce_scatter(tall), sums[None, :])
    x = torch.full((3, 5), float(rank + 1), dtype=torch.bfloat16)
    total = ctx.allreduce(x)
    assert isinstance(total, torch.Tensor)
    assert (total == p * (p + 1) / 2).all()


def layers(ctx: pblas.Context) -> None:
    """x W^T with its features and tokens split, on integers, which are exact; with few tokens and with many."""
    p, rank = ctx.nprocs, ctx.rank
    for tokens, inwards, outwards in ((3, 8, 6), (64 * p + 3, 16 * p, 32 * p)):
        rng = np.random.default_rng(0)
        x, w = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((tokens, inwards), (outwards, inwards)))
        t, i, o = (tp.local_shard(length, rank, p) for length in (tokens, inwards, outwards))
        gathered = tp.allgather_linear(x[t], w[o], tokens=tokens, ctx=ctx)
        assert np.array_equal(gathered, (x @ w.T)[:, o])
        pieces = x[:, i].copy(), w[:, i].copy()
        assert np.array_equal(tp.linear_reduce_scatter(*pieces, features=inwards, ctx=ctx), (x @ w.T)[t])
        assert np.array_equal(tp.linear_allreduce(*pieces, features=inwards, ctx=ctx), x @ w.T)
        dy = np.ones((tokens, outwards), np.float32)
        gradients: Any = tp.linear_allreduce_backward(dy, *pieces, features=inwards, ctx=ctx)
        assert np.array_equal(gradients.x, (dy @ w)[:, i])
        assert np.array_equal(gradients.weight, (dy.T @ x)[:, i])


def errors(ctx: pblas.Context) -> None:
    """Whichever rank is wrong, its error is that of all ranks, and the context stays usable."""
    A = ctx.from_global(np.eye(5), MatrixDescriptor.row_wise(5, 5, ctx.nprocs), root=None)

    def wrong_calls(is_wrong: bool) -> list[Callable[[], Any]]:
        wrong: Any = ("x", 3, "no") if is_wrong else (4, A, "sum")
        return [
            lambda: ctx.zeros((4, wrong[0])),
            lambda: pblas.pmatmul(A, wrong[1]),
            lambda: ctx.allreduce(np.ones(3), op=wrong[2]),
        ]

    for culprit in range(ctx.nprocs):
        is_wrong = ctx.rank == culprit
        for call in wrong_calls(is_wrong):
            name, text = everywhere(call)
            assert name not in ("", "MismatchError", "PeerTimeout"), (name, text)
            assert f"found on rank {culprit} of {ctx.nprocs}" in text or ctx.nprocs == 1, text
        name, text = everywhere(lambda n=4 + is_wrong: ctx.zeros((4, n)))  # type: ignore[misc]
        assert name == ("" if ctx.nprocs == 1 else "MismatchError"), (name, text)
    name, _ = everywhere(lambda: linalg.solve(ctx.zeros((5, 5)), A))
    assert name == "SingularMatrixError", name
    assert everywhere(lambda: (A @ A).to_global(None)) == ("", "")


def memory(group: Any) -> None:
    """Blocks are reused; an array outlives its context; too little shared memory is an error, or messages."""
    with pblas.Context(process_group=group, transport="shared", timeout=SECONDS) as ctx:
        for _ in range(20):
            ctx.random((400, 400))
        peak = ctx.runtime.backend.arena.peak_nbytes
        assert peak < 20 * 400 * 400 * 8 / ctx.nprocs or ctx.nprocs == 1
    ctx = pblas.Context(process_group=group, timeout=SECONDS)
    kept = ctx.from_global(np.eye(300), MatrixDescriptor.replicated(300, 300, ctx.nprocs), root=None).local
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ctx.close()
    assert [str(each.message) for each in caught if "still in use" in str(each.message)] or dist.get_world_size() == 1
    del ctx
    gc.collect()
    assert np.array_equal(kept, np.eye(300))
    if dist.get_world_size() == 1:
        return
    folder = "/dev/no-such-folder" if dist.get_rank() == 0 else shared_files.FOLDER
    with mock.patch.object(shared_files, "FOLDER", folder):
        with pblas.Context(process_group=group, transport="shared", timeout=SECONDS) as ctx:
            name, text = everywhere(lambda: ctx.eye(5))
            assert (name, "No such file" in text) == ("WorkspaceError", True), text
        with warnings.catch_warnings(), pblas.Context(process_group=group, timeout=SECONDS) as ctx:
            warnings.simplefilter("ignore", pblas.PblasWarning)
            assert float(ctx.eye(5).trace()) == 5.0
            assert not ctx.runtime.backend.shared


def settings(group: Any) -> None:
    """What a context says that cannot be made, and what it is called."""
    wrong: tuple[tuple[dict[str, Any], str, str], ...] = (
        ({"backend": "mpi"}, "BackendError", "backend='mpi' needs ranks of MPI"),
        ({"backend": "cuda"}, "BackendError", "backend='gloo' for CPUs"),
        ({"backend": "nvshmem"}, "BackendError", "backend 'nvshmem' is not available"),
        ({"device": 0, "backend": "gloo"}, "ArgumentError", "backend='gloo' uses none"),
        ({"transport": "none"}, "ArgumentError", "transport must be"),
        ({"comm": 3}, "ArgumentError", "comm and process_group both name the ranks"),
        ({"timeout": 1.0 + dist.get_rank()}, "MismatchError" if dist.get_world_size() > 1 else "", ""),
    )
    for given, kind, part in wrong:
        name, text = everywhere(lambda given=given: pblas.Context(process_group=group, **given).close())  # type: ignore[misc]
        assert (name, part in text) == (kind, True), (name, text)
    name, text = everywhere(pblas.Context)
    assert (name, "Ranks that torchrun started need none: pass process_group=" in text) == ("BackendError", True), text
    name, text = everywhere(lambda: pblas.init_nvshmem(process_group=3))
    assert (name, "process_group must be a group of torch.distributed" in text) == ("ArgumentError", True), text
    with pblas.Context(process_group=group, backend="gloo", timeout=SECONDS) as ctx:
        assert repr(ctx) == f"<pblas.Context: rank {dist.get_rank()} of {dist.get_world_size()}, backend 'gloo'>"
        assert ctx.describe()["messages"].startswith("Gloo")


def traces(ctx: pblas.Context) -> None:
    A = ctx.random((60, 60))
    with ctx.trace() as trace:
        _ = A @ A
    assert ctx.rank or trace.events


def train(ctx: pblas.Context, A: Any) -> None:
    """A forward and a backward pass of layers of pblas.torch."""
    x = torch.ones(8, 6, requires_grad=True)
    mesh = pblas.torch.init_mesh(ctx=ctx)
    pblas.torch.linear(x, torch.ones(4, 6, requires_grad=True), mesh=mesh).sum().backward()


CALLS: dict[str, Callable[[pblas.Context, Any], Any]] = {
    "layer": train,
    "agreement": lambda ctx, _: ctx.zeros((3, 3)),
    "product": lambda _, A: A @ A,
    "solve": lambda _, A: linalg.solve(A, A),
    "allreduce": lambda ctx, _: ctx.allreduce(np.ones(200_000)),
    "to_global": lambda _, A: A.to_global(None),
}


def killed(call: str, folder: Path, transport: str) -> None:
    """The last rank is killed while the others repeat a call, and all of them raise the same error in time."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ctx = pblas.Context(process_group=dist.group.WORLD, transport=transport, timeout=TIMEOUT)  # type: ignore[arg-type]
    A = ctx.random((300, 300), seed=1) + 300.0 * ctx.eye(300)
    CALLS[call](ctx, A)
    if rank == size - 1:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    start = time.monotonic()
    text = ""
    while time.monotonic() - start < SECONDS:
        begun = time.monotonic()
        try:
            CALLS[call](ctx, A)
        except pblas.PeerTimeout as error:
            text = str(error)
            break
    seconds = time.monotonic() - begun
    name, _ = outcome(lambda: ctx.zeros((3, 3)))
    (folder / f"rank.{rank}").write_text(json.dumps([text, seconds, name]))
    ctx.close()


def main() -> None:
    folder = Path(sys.argv[2]) if len(sys.argv) > 1 else None
    peers, group = group_job.begin(folder), dist.group.WORLD
    if folder:
        killed(sys.argv[1], folder, sys.argv[3])
        return
    for law in (group_job.agreements, group_job.pieces, group_job.collectives):
        law(peers)
    settings(group)
    for given in SETTINGS:
        with pblas.Context(process_group=group, timeout=SECONDS, **given) as ctx:
            assert (ctx.rank, ctx.nprocs) == (dist.get_rank(), dist.get_world_size())
            assert ctx.runtime.backend.name == "gloo"
            for check in (products, redistribution, solvers, collectives, layers, traces, errors):
                check(ctx)
    memory(group)
    if dist.get_world_size() > 1:
        part = dist.new_group([0, 1])
        if dist.get_rank() == 2:
            name, text = outcome(lambda: pblas.Context(process_group=part))
            assert (name, "got a group without this rank" in text) == ("ArgumentError", True), text
        else:
            with pblas.Context(process_group=part, timeout=SECONDS) as ctx:
                assert float((ctx.eye(9) @ ctx.eye(9)).trace()) == 9.0
                assert ctx.nprocs == 2
    example = Path(__file__).parents[3] / "examples" / "tp_torch.py"
    assert runpy.run_path(str(example))["main"](["--tokens", "3", "--hidden", "6"]) == 0
    dist.barrier()
    dist.destroy_process_group()
    Agreement(peers.duplicate(), SECONDS).agree("the end, as that of NVSHMEM")
    assert "mpi4py.MPI" not in sys.modules
    assert not any(name.startswith("pblas.backends.mpi") for name in sys.modules)
    print(f"rank {os.environ['RANK']}: all laws hold", flush=True)


if __name__ == "__main__":
    main()

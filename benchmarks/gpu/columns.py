"""The columns of the GPU benchmark: cuBLAS alone, cuBLAS with NCCL, torch's symmetric memory, Triton, and pblas.

All columns multiply the same arrays: activations and D in C-order, weights as torch's Linear stores them, N x K in
C-order, so that every GEMM is cuBLAS's TN.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from benchmarks.gpu.graphs import Works, nan, replayed
from benchmarks.gpu.rows import descriptors
from benchmarks.gpu.timing import Column, Job, Operands, torch_view


class Gemms:
    """cuBLAS alone, by torch.mm and by tuned cuBLASLt, and the faster of the two, for columns that need a GEMM.

    Attributes:
        columns: the columns "torch.mm" and "cublasLt", if they could be made.
        missing: the reason for each column that could not be made.
        multiply: (s) -> enqueue the product of set s by the faster one.
        faster: name of the faster one.
    """

    def __init__(self, job: Job, ops: Operands) -> None:
        import torch

        self.missing: dict[str, str] = {}
        self.columns: list[Column] = []
        self.close: Callable[[], Any] = lambda: None

        def mm(s: int) -> None:
            torch.mm(ops.tfull[s], ops.tb[s], out=ops.tpartial[s])

        candidates: dict[str, Callable[[int], Any]] = {"torch.mm": mm}
        tuned, reason = job.attempt(lambda: cublaslt(job, ops))
        if tuned is not None:
            candidates["cublasLt"], self.close = tuned
        if reason:
            self.missing["cublasLt"] = reason
            candidates.pop("cublasLt", None)
        options = {"output": gemm_output(ops), "poison": lambda s: nan(ops.tpartial[s])}
        seconds = {}
        for name, gemm in candidates.items():
            column = replayed(name, [lambda s=s, gemm=gemm: gemm(s) for s in range(ops.sets)], **options)
            self.columns.append(column)
            seconds[name] = min(
                float(job.largest(job.timed(lambda call=column.call, s=s: call(s % ops.sets), 1e-4)[0]))
                for s in range(5)
            )
        self.faster = min(seconds, key=lambda name: seconds[name])
        self.multiply = candidates[self.faster]


def gemm_output(ops: Operands) -> Callable[[int], Any] | None:
    """D, if it is the result of the GEMM alone (AG+GEMM on a gathered A); None if D is a sum over ranks."""
    return (lambda s: ops.td[s]) if ops.row.op == "ag_gemm" else None


def cublaslt(job: Job, ops: Operands) -> tuple[Callable[[int], Any], Callable[[], Any]]:
    """(s) -> enqueue the GEMM by autotuned cuBLASLt, through the binding of pblas; and a function to close it."""
    from pblas.backends.cuda.gemm import Gemm
    from pblas.backends.cuda.gemm_problem import read

    gemm, stream = Gemm(), job.stream.cuda_stream
    job.synchronize()
    gemm.tune([read(ops.full[0], ops.b[0], ops.partial[0]).problem], stream)
    job.synchronize()
    return lambda s: gemm.matmul(stream, 1.0, ops.full[s], ops.b[s], 0.0, ops.partial[s]), gemm.close


def nccl_works(ops: Operands, multiply: Callable[[int], Any]) -> Works:
    """For each set of operands, the product by one GEMM and one collective of NCCL."""
    import torch.distributed as dist

    def ag(s: int) -> None:
        dist.all_gather_into_tensor(ops.tfull[s], ops.ta[s])
        multiply(s)

    def rs(s: int) -> None:
        multiply(s)
        dist.reduce_scatter_tensor(ops.td[s], ops.tpartial[s])

    def ar(s: int) -> None:
        multiply(s)
        dist.all_reduce(ops.td[s])

    work = {"ag_gemm": ag, "gemm_rs": rs, "gemm_ar": ar}[ops.row.op]
    return [lambda s=s: work(s) for s in range(ops.sets)]


def nccl_rest(ops: Operands) -> dict[str, Any]:
    """Output and poison of the NCCL columns; the gathered A and the partial D are poisoned too."""

    def poison(s: int) -> None:
        nan(ops.td[s], ops.tpartial[s])
        if ops.full is not ops.a:
            nan(ops.tfull[s])

    return {"output": lambda s: ops.td[s], "poison": poison}


def nccl_eager(ops: Operands, multiply: Callable[[int], Any]) -> Column:
    """cuBLAS + NCCL, launched call by call."""
    works = nccl_works(ops, multiply)
    return Column("cublas+nccl", lambda s: works[s](), **nccl_rest(ops))


def nccl_graph(ops: Operands, multiply: Callable[[int], Any]) -> Column:
    """cuBLAS + NCCL in one graph."""
    return replayed("cublas+nccl graph", nccl_works(ops, multiply), **nccl_rest(ops))


def two_shot(job: Job, ops: Operands) -> Column:
    """torch.mm into symmetric memory and torch's two-shot all-reduce in place, in one graph, without multicast."""
    import torch
    import torch.distributed._symmetric_memory as symm_mem

    if job.no_symmetric:
        raise RuntimeError(job.no_symmetric)
    kept: list[Any] = [
        symm_mem.empty(*ops.row.d_shape, dtype=torch.bfloat16, device=f"cuda:{job.device}") for _ in range(ops.sets)
    ]
    handles = [symm_mem.rendezvous(tensor, job.group) for tensor in kept]
    group = job.group.group_name

    def work(s: int) -> None:
        torch.mm(ops.ta[s], ops.tb[s], out=kept[s])
        torch.ops.symm_mem.two_shot_all_reduce_(kept[s], "sum", group)

    column = replayed(
        "cublas+two-shot",
        [lambda s=s: work(s) for s in range(ops.sets)],
        output=lambda s: kept[s],
        poison=lambda s: nan(kept[s]),
    )
    reset = column.close

    def close() -> None:
        reset()
        handles.clear()
        kept.clear()

    column.close = close
    return column


def torch_fused(job: Job, ops: Operands) -> Column:
    """torch's fused operator, which allocates D; without multicast it is a pipeline on two streams, without a graph."""
    import torch

    if ops.row.op == "gemm_ar":
        raise RuntimeError("torch has no fused GEMM+AR without multicast; its two-shot is the column cublas+two-shot")
    if job.no_symmetric:
        raise RuntimeError(job.no_symmetric)
    group, outputs = job.group.group_name, {}
    fused = torch.ops.symm_mem

    def ag(s: int) -> None:
        _, (outputs[s],) = fused.fused_all_gather_matmul(ops.ta[s], [ops.tb[s]], 0, group, return_A=False)

    def rs(s: int) -> None:
        outputs[s] = fused.fused_matmul_reduce_scatter(ops.ta[s], ops.tb[s], "sum", 0, group)

    call = ag if ops.row.op == "ag_gemm" else rs

    def poison(s: int) -> None:  # the allocator returns the same memory for the next output
        if s in outputs:
            nan(outputs.pop(s))

    return Column("torch", call, lambda s: outputs[s], poison, outputs.clear)


def triton(job: Job, ops: Operands) -> Column:
    """A kernel in Triton that waits for copy engines; an ImportError without torch or Triton is the missing reason."""
    from benchmarks.gpu.triton import column

    return column(job, ops)


class Ours:
    """pblas on one context: a column with A and D in plain CuPy arrays, and one with A and D in symmetric memory.

    Both columns use the same B, which no other rank reads.
    """

    def __init__(self, job: Job, ops: Operands) -> None:
        import pblas

        self.job, self.ops = job, ops
        self.ctx = pblas.Context(job.comm, backend="nvshmem")
        self.descs = descriptors(ops.row)
        self.b = [self.ctx.from_local(b, self.descs[1]) for b in ops.b]
        self.plans: list[Any] = []

    def plan(self, a: Any, d: Any) -> Any:
        """One tuned plan."""
        import pblas

        mm = pblas.plan_matmul(a, self.b[0], out=d, autotune=True)
        self.plans.append(mm)
        return mm

    def plain(self) -> Column:
        """The column "pblas": operands are CuPy arrays outside symmetric memory."""
        a = [self.ctx.from_local(x, self.descs[0]) for x in self.ops.a]
        d = [self.ctx.from_local(x, self.descs[2]) for x in self.ops.d]
        mm = self.plan(a[0], d[0])
        return self._column("pblas", [mm] * self.ops.sets, a, d, lambda s: self.ops.td[s])

    def symmetric(self) -> Column:
        """A and D from ctx.empty; for GEMM+AR a plan per set, since a plan is bound to the D that it sends into."""
        sets = range(self.ops.sets)
        a = [self.ctx.empty(self.descs[0], "bfloat16") for _ in sets]
        d = [self.ctx.empty(self.descs[2], "bfloat16") for _ in sets]
        self.ops.mirrors += [(s, a[s].local) for s in sets]
        outputs = [torch_view(x.local) for x in d]
        if self.ops.row.op == "gemm_ar":
            plans = [self.plan(a[s], d[s]) for s in sets]
        else:
            plans = [self.plan(a[0], d[0])] * self.ops.sets
        return self._column("pblas symmetric", plans, a, d, lambda s: outputs[s])

    def _column(self, name: str, plans: list[Any], a: Any, d: Any, output: Callable[[int], Any]) -> Column:
        calls = [
            lambda mm=mm, x=x, y=y, z=z: mm.execute(x, y, out=z)
            for mm, x, y, z in zip(plans, a, self.b, d, strict=True)
        ]
        on_gpus = self.ctx.runtime.backend.name == "nvshmem"

        def poison(s: int) -> None:
            nan(output(s))
            if on_gpus:
                self.poison_workspace()

        details = {"plan": str(plans[0].explain()), "workspace_poisoned": on_gpus}
        return Column(name, lambda s: calls[s](), output, poison, details=details)

    def poison_workspace(self) -> None:
        """Fill the slots of both parities with bytes that are NaN in every float type; keep the flags before them."""
        from cupy.cuda import runtime

        from pblas.backends.nvshmem.workspace import PARITIES

        work = self.ctx.runtime.backend.engine().reserve(0, 0)  # the workspace that the plans have reserved
        slots = work.peers[self.job.rank] + work.pitch - work.nbytes
        for parity in range(PARITIES):
            runtime.memset(slots + parity * work.pitch, 0xFF, work.nbytes)
        runtime.deviceSynchronize()

    def close(self) -> None:
        """Close the plans and the context, which may be broken."""
        self.ops.mirrors.clear()
        for mm in self.plans:
            with suppress(Exception):
                mm.close()
        self.plans.clear()
        self.b.clear()
        with suppress(Exception):
            self.ctx.close()


class Columns:
    """**Collective.** The columns of a row that can be made, and the reasons for the others.

    Args:
        job: the ranks.
        ops: the operands.
        left_out: names of columns to leave out.
    """

    def __init__(self, job: Job, ops: Operands, left_out: frozenset[str] = frozenset()) -> None:
        self.job, self.ops, self.left_out = job, ops, left_out
        self.columns: list[Column] = []
        self.missing: dict[str, str] = {}
        self.details: dict[str, Any] = {}
        self.ours: Ours | None = None
        self.tried = False
        job.deadline.step(f"{ops.row.title}: cuBLAS")
        ops.refill(0)
        self.gemms = gemms = Gemms(job, ops)
        self.columns += gemms.columns
        self.missing |= gemms.missing
        self.details["gemm_beside_nccl"] = gemms.faster
        for name, make in self._makers(gemms):
            self._add(name, make)

    def _makers(self, gemms: Gemms) -> Iterator[tuple[str, Callable[[], Column]]]:
        yield "cublas+nccl", lambda: nccl_eager(self.ops, gemms.multiply)
        yield "cublas+nccl graph", lambda: nccl_graph(self.ops, gemms.multiply)
        if self.ops.row.op == "gemm_ar":
            yield "cublas+two-shot", lambda: two_shot(self.job, self.ops)
        yield "torch", lambda: torch_fused(self.job, self.ops)
        if self.ops.row.op == "ag_gemm":
            yield "triton", lambda: triton(self.job, self.ops)
        yield "pblas", lambda: self._ours().plain()
        yield "pblas symmetric", lambda: self._ours().symmetric()

    def _ours(self) -> Ours:
        """**Collective.** The context of both pblas columns; the second column fails if a rank has no context."""
        if not self.tried:
            self.tried = True
            self.ours = Ours(self.job, self.ops)
        elif self.job.agree(None if self.ours else "no context"):
            raise RuntimeError(f"no context of pblas: {self.missing.get('pblas')}")
        assert self.ours is not None
        return self.ours

    def _add(self, name: str, make: Callable[[], Column]) -> None:
        """Make a column; if that fails on one rank, the column is missing on all ranks."""
        self.job.deadline.step(f"{self.ops.row.title}: {name}: building")
        if name in self.left_out:
            self.missing[name] = "left out by --without"
            return
        column, reason = self.job.attempt(make)
        if reason:
            self.missing[name] = reason
        else:
            self.columns.append(column)

    def close(self) -> None:
        """Release all columns first, because their arrays may belong to the context; then close pblas and cuBLAS."""
        for column in reversed(self.columns):
            with suppress(Exception):
                column.close()
        self.columns.clear()
        gc.collect()
        if self.ours is not None:
            self.ours.close()
            self.ours = None
        self.gemms.close()

"""AG+GEMM by one persistent kernel in Triton whose tiles wait for copy engines.

Each rank pulls the shards of A in the order rank + 1, rank + 2, ... and sets a flag after each. The kernel multiplies
the tiles of the rank's own rows first, then the tiles of the shards in the order of their arrival. A rank's own rows
are stored in place in the gathered A.

Source: the idea of github.com/yifuwang/symm-mem-recipes, triton_all_gather_matmul.py, in new code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch.distributed import _symmetric_memory as symm_mem
from triton.tools.tensor_descriptor import TensorDescriptor

from benchmarks.gpu.graphs import nan, replayed
from benchmarks.gpu.timing import Column, Job, Operands

GROUP = tl.constexpr(8)  # rows of tiles that are multiplied with the same columns, one after the other

# One thread polls the flag, for two seconds at most. Then it sets the flag itself, and the check of the result fails.
# The fence orders later TMA reads after the read of the flag.
WAIT = tl.constexpr("""{
    .reg .pred other, there, late;
    .reg .u32 thread, word;
    .reg .u64 start, now;
    mov.u32 $0, 0;
    mov.u32 thread, %tid.x;
    setp.ne.u32 other, thread, 0;
    @other bra done;
    mov.u64 start, %globaltimer;
look:
    ld.acquire.sys.global.u32 word, [$1];
    setp.ne.u32 there, word, 0;
    @there bra done;
    mov.u64 now, %globaltimer;
    sub.u64 now, now, start;
    setp.gt.u64 late, now, 2000000000;
    @late st.relaxed.sys.global.u32 [$1], 1;
    bra look;
done:
    bar.sync 0;
    fence.proxy.async;
}""")


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration: tile sizes, number of buffers of A and B, warps, and whether a tile is stored in two halves."""

    bm: int
    bn: int
    bk: int
    stages: int
    warps: int
    halves: bool = False


CONFIGS = (
    Config(128, 256, 64, 4, 8, halves=True),
    Config(128, 256, 64, 3, 8),
    Config(128, 128, 64, 6, 8),
    Config(128, 128, 64, 5, 4),
    Config(64, 256, 64, 4, 4),
    Config(64, 128, 128, 4, 4),
)


@triton.jit
def arrived(flag):
    """Wait until the flag is set; 0."""
    return tl.inline_asm_elementwise(WAIT, "=r,l", [flag], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def place(tile, rank, ranks, down, right):
    """The source rank of a tile, and its row and column of tiles in the source's shard of `down` x `right` tiles."""
    source, tile = (rank + tile // (down * right)) % ranks, tile % (down * right)
    first = tile // (GROUP * right) * GROUP
    rows = min(down - first, GROUP)
    return source, first + tile % (GROUP * right) % rows, tile % (GROUP * right) // rows


@triton.jit
def multiply(
    a,
    b,
    d,
    flags,
    rank,
    m_loc,
    n,
    k,
    ranks: tl.constexpr,
    programs: tl.constexpr,
    bm: tl.constexpr,
    bn: tl.constexpr,
    bk: tl.constexpr,
    halves: tl.constexpr,
):
    """D = A B^T: A of all ranks, each with m_loc rows, a multiple of bm."""
    down, right = m_loc // bm, tl.cdiv(n, bn)
    stored = tl.program_id(0) - programs
    for tile in tl.range(tl.program_id(0), ranks * down * right, programs, flatten=True):
        source, i, j = place(tile, rank, ranks, down, right)
        row = source * m_loc + i * bm + arrived(flags + source)  # the sum keeps loads after the wait
        total = tl.zeros((bm, bn), dtype=tl.float32)
        for step in range(tl.cdiv(k, bk)):
            total = tl.dot(a.load([row, step * bk]), b.load([j * bn, step * bk]).T, total)
        stored += programs  # a separate count, because loads of the next tile have begun
        source, i, j = place(stored, rank, ranks, down, right)
        row = source * m_loc + i * bm
        if halves:
            low, high = tl.split(tl.permute(tl.reshape(total, (bm, 2, bn // 2)), (0, 2, 1)))
            d.store([row, j * bn], low.to(tl.bfloat16))
            d.store([row, j * bn + bn // 2], high.to(tl.bfloat16))
        else:
            d.store([row, j * bn], total.to(tl.bfloat16))


class Gathered:
    """**Collective.** The gathered A in torch's symmetric memory, for each set, and the copies of its shards."""

    def __init__(self, job: Job, ops: Operands) -> None:
        import cupy

        self.job, row, device = job, ops.row, f"cuda:{job.device}"
        self.whole = [symm_mem.empty(row.m, row.k, dtype=torch.bfloat16, device=device) for _ in range(ops.sets)]
        self.handles = [symm_mem.rendezvous(whole, job.group) for whole in self.whole]
        self.peers = [[h.get_buffer(r, (row.m, row.k), torch.bfloat16) for r in range(job.size)] for h in self.handles]
        self.own = slice(job.rank * row.a_shape[0], (job.rank + 1) * row.a_shape[0])
        self.mirrors = [(s, cupy.asarray(whole[self.own].view(torch.int16))) for s, whole in enumerate(self.whole)]
        self.first = torch.zeros(job.size, dtype=torch.int32, device=device)
        self.first[job.rank] = 1
        self.flags = torch.zeros_like(self.first)
        self.stream = torch.cuda.Stream(priority=-1)

    def around(self, s: int, work: Callable[[], Any]) -> None:
        """Enqueue the copies of a set and, on another stream, `work`, between two barriers of all ranks."""
        from pblas.backends.cuda.streams import copy, operate, set_word

        whole, job, handle = self.whole[s], self.job, self.stream.cuda_stream
        self.flags.copy_(self.first)
        self.handles[s].barrier(channel=0, timeout_ms=20_000)
        self.stream.wait_stream(torch.cuda.current_stream())
        nbytes = whole[self.own].nbytes
        for source in ((job.rank + step) % job.size for step in range(1, job.size)):
            offset = source * nbytes
            # A[rows of source, :] here = A[rows of source, :] on the source   (at the same offset)
            copy(handle, whole.data_ptr() + offset, 0, self.peers[s][source].data_ptr() + offset, 0, nbytes, 1)
            operate(handle, [set_word(self.flags[source].data_ptr())])
        work()
        torch.cuda.current_stream().wait_stream(self.stream)
        self.handles[s].barrier(channel=1, timeout_ms=20_000)

    def poison(self, s: int) -> None:
        """Fill the rows of the other ranks with NaN."""
        nan(self.whole[s][: self.own.start], self.whole[s][self.own.stop :])


def column(job: Job, ops: Operands) -> Column:
    """**Collective.** The column of an AG+GEMM, a graph per set, with the configuration that is fastest on all ranks.

    Raises:
        RuntimeError: no tile size divides the rows of a shard, or there is no symmetric memory.
    """
    row, (m_loc, _) = ops.row, ops.row.a_shape
    if job.no_symmetric:
        raise RuntimeError(job.no_symmetric)
    fitting = [config for config in CONFIGS if m_loc % config.bm == 0]
    if not fitting:
        raise RuntimeError(f"shards of {m_loc} rows are no multiple of a tile's {min(c.bm for c in CONFIGS)}")
    gathered = Gathered(job, ops)
    programs = torch.cuda.get_device_properties(job.device).multi_processor_count

    def work(config: Config, s: int) -> Callable[[], None]:
        width = config.bn // 2 if config.halves else config.bn
        described = [
            TensorDescriptor.from_tensor(tensor, list(block))
            for tensor, block in (
                (gathered.whole[s], (config.bm, config.bk)),
                (ops.tb[s].t(), (config.bn, config.bk)),
                (ops.td[s], (config.bm, width)),
            )
        ]
        cut = {"bm": config.bm, "bn": config.bn, "bk": config.bk, "halves": config.halves}
        how = cut | {"num_stages": config.stages, "num_warps": config.warps}
        sizes = (job.rank, m_loc, row.n, row.k, job.size, programs)
        grid = (min(programs, row.m // config.bm * triton.cdiv(row.n, config.bn)),)
        return lambda: gathered.around(s, lambda: multiply[grid](*described, gathered.flags, *sizes, **how))

    def seconds(config: Config) -> float:
        call = work(config, 0)
        call()
        job.synchronize()
        return float(job.largest(min(job.timed(call, 5e-4)[0] for _ in range(3))))

    ops.mirrors += gathered.mirrors
    ops.refill(0)
    best = min(fitting, key=seconds)
    result = replayed(
        "triton",
        [work(best, s) for s in range(ops.sets)],
        output=lambda s: ops.td[s],
        poison=lambda s: (nan(ops.td[s]), gathered.poison(s)),
        details=asdict(best),
    )
    reset = result.close

    def close() -> None:
        reset()
        kept = [mirror for mirror in ops.mirrors if all(mirror is not own for own in gathered.mirrors)]
        ops.mirrors[:] = kept
        for shared in (gathered.mirrors, gathered.peers, gathered.handles, gathered.whole):
            shared.clear()

    result.close = close
    return result

"""How long would a product take on 4 to 32 GPUs? Two GPUs emulate two of the ranks, each with its full traffic.

mpiexec -n 2 python -m mpi4py -m benchmarks.gpu.emulated --gpus 8 [--ops gemm_ar] [--models 8B] [--m 4096] [--json FILE]
mpiexec -n 2 python -m mpi4py -m benchmarks.gpu.emulated --gpus 8 --algorithms copy_engine:1,1,2,4 tile_signals

GPU 0 is rank 0 and GPU 1 is rank 1 of a context of 4, 8, 16 or 32 ranks. Each GPU sends the data for any other rank to
the other GPU. The receiver uses the data as if the right rank had sent it: if ranks visit their peers in the order q^1,
q^2, ..., rank 0 sends to rank s when rank 1 receives from rank s^1. So each GPU runs the unchanged schedule of the
plan, with all its copies, flags and waits. It sends and receives the same number of bytes, and adds the same number of
terms, as on the full number of GPUs.

Differences from a real run: all traffic is between two GPUs, so ranks do not contend for a third one, and two GPUs are
more in step than eight. D is not the product. docs/performance.md compares emulated and real times. The
column "pblas" is the fastest algorithm.
"""

from __future__ import annotations

import gc
import os
import statistics
from dataclasses import replace
from typing import Any

from rich.console import Console

from benchmarks import results_file
from benchmarks.gpu.algorithms import algorithm_of, plan_of, predicted_us, taking, topology
from benchmarks.gpu.overlap import fitting, parser, print_row
from benchmarks.gpu.rows import ALONE, Row, about, heap_nbytes, report
from pblas.matmul.choose_granularity import candidates
from pblas.plans.algorithm import Algorithm

MOST_ALGORITHMS = 4


class Emulation:
    """Patches of pblas under which a context of two ranks behaves like one of more ranks.

    Args:
        rank: 0 or 1 (local).
        size: number of emulated ranks, a power of two (global).
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.other, self.size = rank, 1 - rank, size

    def source(self, peer: int) -> int:
        """The rank as which the other GPU sees this one, when this one sends to `peer`."""
        return peer ^ self.rank ^ self.other

    def spread(self, addresses: list[int], pitch: int) -> list[int]:
        """Addresses of slots in the other GPU's memory, from addresses for all ranks; slots are `pitch` bytes apart."""
        return [
            address if peer == self.rank else address + (self.source(peer) - self.rank) * pitch
            for peer, address in enumerate(addresses)
        ]

    def enlarge(self, backend: Any) -> None:
        """Set the number of ranks of a backend, before the context allocates anything."""
        pes = backend.pes
        backend.size = backend.ranks_per_node = self.size
        backend.pes = backend.arena._pes = tuple(pes[self._emulating_rank(r)] for r in range(self.size))  # noqa: SLF001

    def _emulating_rank(self, rank: int) -> int:
        return self.rank if rank == self.rank else self.other

    def start(self) -> None:
        """Replace the functions that compute addresses in peers' memory: they use `source` instead of this rank."""
        from pblas.backends.nvshmem import workspace
        from pblas.backends.nvshmem.backend import NvshmemBackend
        from pblas.backends.nvshmem.collectives import Halves
        from pblas.backends.nvshmem.kernels import Kernels
        from pblas.backends.nvshmem.kernels.arguments import all_reduce_flags_nbytes
        from pblas.matmul.push.allgather_gemm_run import RunPushGather
        from pblas.matmul.push.gemm_reduce_run import RunPushReduce

        emulation, work, start = self, workspace.Workspace, NvshmemBackend.__init__
        flag, slots, barrier, pulled = work.flag, Halves.slots, Kernels.barrier, Kernels.two_shot_pull
        gathered, summed = RunPushGather._target_at, RunPushReduce._target_at  # noqa: SLF001

        def opened(self: Any, *args: Any, **settings: Any) -> None:
            start(self, *args, **settings)
            emulation.enlarge(self)

        def flag_at(self: Any, peer: int, source: int, phase: int) -> int:
            return flag(self, peer, source if peer == emulation.rank else emulation.source(peer), phase)

        def slots_at(self: Any, nbytes: int) -> Any:
            layout = slots(self, nbytes)
            return layout._replace(addresses=emulation.spread(layout.addresses, nbytes))

        def barrier_of(self: Any, stream: int, *, flags: list[int], **rest: Any) -> None:
            barrier(self, stream, flags=emulation.spread(flags, workspace.FLAG_NBYTES), **rest)

        def pulled_by(self: Any, *args: Any, flags: list[int], **rest: Any) -> None:
            pitch = all_reduce_flags_nbytes(emulation.size) // (2 * emulation.size)
            pulled(self, *args, flags=emulation.spread(flags, pitch), **rest)

        def gathered_at(self: Any, peer: int, block: Any, x: Any) -> Any:
            lines = self._gathered.first[1] * (0 if peer == emulation.rank else emulation.source(peer) - emulation.rank)
            return gathered(self, peer, replace(block, start=block.start + lines, stop=block.stop + lines), x)

        def summed_at(self: Any, peer: int, block: Any, x: Any) -> Any:
            return summed(self, peer, replace(block, slot=emulation.source(peer)), x)  # a rank sends nothing to itself

        work.flag, Halves.slots, Kernels.barrier, Kernels.two_shot_pull = flag_at, slots_at, barrier_of, pulled_by
        RunPushGather._target_at, RunPushReduce._target_at = gathered_at, summed_at  # noqa: SLF001
        NvshmemBackend.__init__ = opened  # type: ignore[method-assign]


def best_algorithms(row: Row, wanted: list[Algorithm]) -> list[Algorithm]:
    """The wanted algorithms, or by default the four with the best predictions."""
    plan = plan_of(row)
    predictions = {algorithm: predicted_us(plan, algorithm) for algorithm in candidates(plan, topology=topology(row))}
    if wanted:
        kinds = {algorithm.kind for algorithm in predictions}
        return [algorithm for algorithm in wanted if algorithm.kind in kinds]
    return sorted(predictions, key=lambda algorithm: predictions[algorithm])[:MOST_ALGORITHMS]


def measure(job: Any, row: Row, options: Any) -> dict[str, Any]:
    """**Collective.** A row of the file: cuBLAS alone, and the algorithms."""
    from benchmarks.gpu.columns import Gemms, Ours
    from benchmarks.gpu.timing import Bench, Operands, fields, give_memory_back

    with job.current():
        ops = Operands(job, row)
        ops.refill(0)
        job.deadline.step(f"{row.title}: cuBLAS")
        gemms = Gemms(job, ops)
        ours, columns = Ours(job, ops), [*gemms.columns]
        algorithms = best_algorithms(row, options.algorithms)
        for algorithm in algorithms:
            job.deadline.step(f"{row.title}: planning {algorithm.short}")
            with taking(algorithm):
                columns.append(replace(ours.plain(), name=algorithm.short))
        bench = Bench(job, ops, [replace(column, output=None) for column in columns], options.rounds, options.seconds)
        measured = bench.run()
        columns.clear()
        gc.collect()
        job.deadline.step(f"{row.title}: closing")
        gemms.close()
        ours.close()
    extra = fields(measured) | {"emulated_by": job.size, "goal": row.goal, "sm_mhz": measured.clocks}
    extra["predicted_us"] = {
        algorithm.short: round(predicted_us(plan_of(row), algorithm), 1) for algorithm in algorithms
    }
    del ops, ours, gemms
    give_memory_back()
    job.deadline.step("")
    fastest = min((x for name, x in measured.times.items() if name not in ALONE), key=statistics.median, default=[])
    return report(row, measured.times | ({"pblas": fastest} if fastest else {}), measured.missing, **extra)


def main() -> None:
    """Measure the rows, on two GPUs."""
    options_parser = parser(__doc__.splitlines()[0])
    options_parser.add_argument("--gpus", type=int, default=8, choices=(4, 8, 16, 32), help="emulated ranks")
    options_parser.add_argument(
        "--algorithms", nargs="+", type=algorithm_of, default=[], help="default: the four with the best predictions"
    )
    options = options_parser.parse_args()
    from mpi4py import MPI

    from benchmarks.gpu.timing import Job

    if MPI.COMM_WORLD.size != 2:
        options_parser.error(f"the emulation needs two ranks, got {MPI.COMM_WORLD.size}; use mpiexec -n 2")
    console = Console(quiet=MPI.COMM_WORLD.rank != 0, width=170)
    measured = fitting(options, options.gpus, console)
    os.environ.setdefault("PBLAS_SYMMETRIC_SIZE", str(2 * heap_nbytes(measured)))
    job = Job(MPI.COMM_WORLD, options.deadline)
    emulation = Emulation(job.rank, options.gpus)
    emulation.start()
    file = about(job.device_name(), options.gpus) | {"emulated_by": job.size, "rows": []}
    for row in measured:
        file["rows"].append(measure(job, row, options))
        print_row(file["rows"][-1], console)
        if options.json and job.rank == 0:
            results_file.write(options.json, file)
    job.close()


if __name__ == "__main__":
    main()

"""The column "cublasmp" of the GPU benchmark: cuBLASMp 0.7 through nvmath-python 0.8, compared with cuBLAS.

mpiexec -n 8 python -m mpi4py -m benchmarks.gpu.cublasmp --wheels DIR [--ops ag_gemm] [--models 8B] --json FILE

It is a separate program because pblas needs a newer nvmath-python, whose cuBLASMp needs a newer NCCL than torch has.
DIR has the wheels nvmath_python-0.8* and nvidia_cublasmp_cu13-0.7*, which are unpacked into a temporary folder and
patched there for cuda.core 1. Without --wheels an installed nvmath-python is used unchanged. Method and operands are
the same as in overlap.py; "cublasmp anchor" is torch.mm in a graph in this program. Algorithms that may use NVLink
multicast are excluded: only SPLIT_P2P and NO_OVERLAP run, and no GEMM+AR.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import os
import sys
import tempfile
import zipfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from mpi4py import MPI
from rich.console import Console

from benchmarks import results_file
from benchmarks.gpu.overlap import parser, print_row
from benchmarks.gpu.rows import Row, about, efficiency, merged_row, report, rows, write_merged
from benchmarks.gpu.timing import Bench, Column, Job, Operands, fields, give_memory_back, in_a_line

os.environ.setdefault("NVSHMEM_SYMMETRIC_SIZE", "16G")

WHEELS = ("nvmath_python-0.8*.whl", "nvidia_cublasmp_cu1*-0.7*.whl")
PATCHED = ("nvmath/internal/utils.py", "nvmath/linalg/advanced/matmulmod.py")
"""Files of nvmath-python 0.8 that use an event's option enable_timing, which cuda.core 1 calls timing_enabled."""
ALGORITHMS = ("SPLIT_P2P", "NO_OVERLAP")
NO_ALL_REDUCE = "cuBLASMp's GEMM+AR uses NVLink multicast, which is off here"


def unpacked(wheels: Path, folder: Path) -> None:
    """Unpack the wheels into a folder and patch them there.

    Raises:
        FileNotFoundError: a wheel is missing; the text says which.
    """
    for pattern in WHEELS:
        files = sorted(wheels.glob(pattern))
        if not files:
            raise FileNotFoundError(f"no {pattern} in {wheels}; pip download --no-deps brings it")
        with zipfile.ZipFile(files[-1]) as wheel:
            wheel.extractall(folder)
    for name in PATCHED:
        path = folder / name
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("enable_timing=", "timing_enabled="), encoding="utf-8")


def load_libraries(folder: Path) -> None:
    """Load the libraries that cuBLASMp needs, then cuBLASMp from the folder, which their loader does not search."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    for name in ("cublasLt", "cublas", "nccl", "nvshmem_host"):
        load_nvidia_dynamic_lib(name)
    (library,) = folder.glob("nvidia/cublasmp/*/lib/libcublasmp.so.0")
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def start(job: Job, wheels: Path | None, folder: Path) -> None:
    """**Collective.** Initialize nvmath.distributed on this rank's GPU."""
    if wheels is not None:
        sys.path.insert(0, str(folder))
        load_libraries(folder)
    import nvmath.distributed

    nvmath.distributed.initialize(job.device, job.comm, backends=["nvshmem", "nccl"])


class CuBlasMp:
    """The columns of one row, on the operands of the benchmark.

    cuBLASMp stores matrices by columns, so it computes D^T = B^T A^T. Its first operand is the weight, K x N by columns
    with the transpose flag. Its second operand is the activation, K x tokens by columns, in symmetric memory, which
    saves a copy in AG+GEMM.
    """

    def __init__(self, job: Job, ops: Operands) -> None:
        import cupy
        import ml_dtypes
        import nvmath.distributed as nd
        import torch

        self.job, self.ops, self.nd = job, ops, nd
        (tokens, k), self.operands = ops.row.a_shape, []
        self.products: list[Any] = []
        for s in range(ops.sets):
            tensor = nd.allocate_symmetric_memory((k, tokens), torch, dtype=torch.bfloat16, axis_order="F")
            self.operands.append(tensor)
            memory = cupy.cuda.UnownedMemory(tensor.data_ptr(), 2 * k * tokens, tensor, job.device)
            pointer = cupy.cuda.MemoryPointer(memory, 0)
            ops.mirrors.append((s, cupy.ndarray((tokens, k), dtype=ml_dtypes.bfloat16, memptr=pointer)))

    def column(self, algorithm: str) -> Column:
        """The product by one algorithm, one planned Matmul per set."""
        import numpy as np
        from nvmath.distributed.distribution import Slab
        from nvmath.distributed.linalg.advanced import Matmul, MatmulAlgoType, matrix_qualifiers_dtype

        cut = [Slab.Y, Slab.Y, Slab.X] if self.ops.row.op == "ag_gemm" else [Slab.X, Slab.X, Slab.Y]
        qualifiers = np.zeros((3,), dtype=matrix_qualifiers_dtype)
        qualifiers[0]["is_transpose"] = True
        options = {"algo_type": MatmulAlgoType[algorithm]}
        plans: list[Any] = []
        for weights, activation in zip(self.ops.tb, self.operands, strict=True):
            product = Matmul(weights, activation, distributions=cut, qualifiers=qualifiers, options=options)
            product.plan()
            product.execute()  # allocates its workspace, which synchronizes all GPUs: none of them may be in a call
            self.job.synchronize()
            self.job.comm.Barrier()
            plans.append(product)
        self.products += plans
        outputs: dict[int, Any] = {}

        def call(s: int) -> None:
            outputs[s] = plans[s].execute()

        def poison(s: int) -> None:  # the allocator returns the same memory for the next output
            if s in outputs:
                outputs.pop(s).fill_(float("nan"))

        return Column(f"cublasmp {algorithm.lower()}", call, lambda s: outputs[s].t(), poison, outputs.clear)

    def close(self) -> None:
        """Free the symmetric memory, on all ranks in the same order."""
        self.job.synchronize()
        self.job.comm.Barrier()
        for product in self.products:
            product.free()
        self.products.clear()
        self.ops.mirrors.clear()
        self.nd.free_symmetric_memory(*self.operands)


def anchor(ops: Operands) -> Column:
    """torch.mm in a graph."""
    import torch

    from benchmarks.gpu.columns import gemm_output
    from benchmarks.gpu.graphs import nan, replayed

    def work(s: int) -> None:
        torch.mm(ops.tfull[s], ops.tb[s], out=ops.tpartial[s])

    works = [lambda s=s: work(s) for s in range(ops.sets)]
    return replayed("cublasmp anchor", works, output=gemm_output(ops), poison=lambda s: nan(ops.tpartial[s]))


def measure(job: Job, row: Row, options: Any) -> dict[str, Any]:
    """**Collective.** The fields that this program adds to a row of the file."""
    job.deadline.step(f"{row.title}: building")
    with job.current():
        ops = Operands(job, row)
        theirs = CuBlasMp(job, ops)
        ops.refill(0)
        columns, missing = [anchor(ops)], {}
        for algorithm in ALGORITHMS:
            job.deadline.step(f"{row.title}: {algorithm}: building")
            column, reason = job.attempt(partial(theirs.column, algorithm))
            if reason:
                missing[f"cublasmp {algorithm.lower()}"] = reason
            else:
                columns.append(column)
        measured = Bench(job, ops, columns, options.rounds, options.seconds).run()
        job.deadline.step(f"{row.title}: closing")
        columns.clear()
        theirs.close()
    del ops, theirs
    give_memory_back()
    missing |= measured.missing
    times = {name: seconds for name, seconds in measured.times.items() if name != "cublasmp anchor"}
    extra = fields(measured)
    run: dict[str, Any] = {"rounds": len(next(iter(measured.times.values()), [])), "sm_mhz": measured.clocks}
    run |= {"date": dt.datetime.now(dt.UTC).date().isoformat(), "commit": results_file.commit()}
    if times:
        best = min(times, key=lambda name: sorted(times[name])[len(times[name]) // 2])
        measured.times["cublasmp"] = times[best]
        for field in ("steady_us", "cpu_us", "relative_errors"):
            if best in extra[field]:
                extra[field]["cublasmp"] = extra[field][best]
        run["is"] = best
        if "cublasmp anchor" in measured.times:
            run["e"] = efficiency(measured.times["cublasmp anchor"], times[best])
    else:
        missing["cublasmp"] = "; ".join(dict.fromkeys(missing.values()))
    return report(row, measured.times, missing, **extra, cublasmp_run=run)


def main() -> None:
    """Measure the rows, or write the reason why they cannot be measured."""
    options_parser = parser(__doc__.splitlines()[0])
    options_parser.add_argument("--wheels", type=Path, help="folder with the wheels of nvmath-python and cuBLASMp")
    options = options_parser.parse_args()
    job = Job(MPI.COMM_WORLD, options.deadline)
    console = Console(quiet=job.rank != 0, width=170)

    def publish(row: dict[str, Any]) -> None:
        if job.rank == 0:
            print_row(merged_row({}, row), console)
            if options.json:
                write_merged(options.json, about(job.device_name(), job.size) | {"rows": [row]})

    with tempfile.TemporaryDirectory() as own:
        folder = Path(job.comm.bcast(own))
        reason = None
        if job.rank == 0 and options.wheels is not None:
            try:
                unpacked(options.wheels, folder)
            except (OSError, zipfile.BadZipFile) as error:
                reason = in_a_line(error)
        reason = job.agree(reason)
        if reason is None:
            job.deadline.step("start of nvmath.distributed")
            _, reason = job.attempt(lambda: start(job, options.wheels, folder))
        for row in rows(options.ops, options.models, options.m, options.tp, job.size):
            if row.unfit():
                continue
            why = NO_ALL_REDUCE if row.op == "gemm_ar" else reason
            publish(report(row, {}, {"cublasmp": why}) if why else measure(job, row, options))
        job.deadline.step("end")
        if reason is None:
            with suppress(ImportError):
                import nvmath.distributed

                job.comm.Barrier()
                nvmath.distributed.finalize()
        job.close()
        job.comm.Barrier()  # the folder is rank 0's


if __name__ == "__main__":
    main()

"""Times columns on the GPUs of a node, one MPI rank each: operands, rounds, steady state, CPU time, and errors.

NVLink multicast is switched off in the environment when this file is imported, before any library that might use it.
"""

from __future__ import annotations

import faulthandler
import gc
import math
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

os.environ |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
os.environ.setdefault("NVSHMEM_REMOTE_TRANSPORT", "none")
os.environ.setdefault("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "lo")

import numpy as np
from mpi4py import MPI

from benchmarks.gpu.rows import Row, rotated, rounds_within, seed_of

WARM_PASSES = 6
MOST_DELAY = 4e-3
STEADY_TURNS, STEADY_SECONDS = 3, 15e-3
BLOCK = 128
TOLERANCE = 0.02
"""Largest relative error of a block: bfloat16 rounds a product by 0.002, a sum of 8 rounded products by 0.005."""

DELAY = r"""
extern "C" __global__ void delay(unsigned long long ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        __nanosleep(200);
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < ns);
}
"""

FILL = r"""
unsigned int x = (unsigned int)(first + i) * 0x9E3779B9u ^ seed;
x ^= x >> 16; x *= 0x85EBCA6Bu; x ^= x >> 13; x *= 0xC2B2AE35u; x ^= x >> 16;
unsigned int y = (x + 0x7F4A7C15u) * 0x9E3779B9u;
y ^= y >> 15; y *= 0x2C1B3C6Du; y ^= y >> 12;
unsigned int low = __float_as_uint((float)(int)x * 4.6566129e-10f);
unsigned int high = __float_as_uint((float)(int)y * 4.6566129e-10f);
pair = (low >> 16) | (high & 0xFFFF0000u);
"""
"""Two bfloat16 from [-1, 1) that depend on their position and a seed, so that any rank can generate any operand."""


class Deadline:
    """Ends the process when a step takes too long: a rank that waits on the GPU for another rank cannot be interrupted.

    Args:
        seconds: limit for one step.
        rank: this rank, for the message (local).
    """

    def __init__(self, seconds: float, rank: int) -> None:
        self._seconds, self._rank = seconds, rank
        self._step, self._end, self._armed = "", math.inf, -math.inf
        threading.Thread(target=self._watch, daemon=True).start()

    def step(self, name: str) -> None:
        """Begin a step, and restart the clock; an empty name stops the clock."""
        now = time.monotonic()
        self._step, self._end = name, now + self._seconds if name else math.inf
        if not name:
            faulthandler.cancel_dump_traceback_later()
            self._armed = -math.inf
        elif now - self._armed > 5:  # for a hang that holds Python's lock; not in every round, since it starts a thread
            faulthandler.dump_traceback_later(self._seconds + 15, exit=True)
            self._armed = now

    def _watch(self) -> None:
        while True:
            time.sleep(0.5)
            if time.monotonic() > self._end:
                text = f"rank {self._rank}: this step has not ended after {self._seconds:.0f} s: {self._step}"
                print(text, file=sys.stderr)
                faulthandler.dump_traceback()
                sys.stderr.flush()
                os._exit(75)


@dataclass
class Column:
    """One way to compute the product of a row.

    Args:
        name: its name in the file.
        call: (s) -> enqueue the product of set s of the operands on the current stream.
        output: (s) -> D of set s, a torch tensor of the row's d_shape; None if the column is a part of the product.
        poison: (s) -> fill D and the accessible workspace with NaN.
        close: free the resources of the column; collective.
        details: more entries of the row in the file.
    """

    name: str
    call: Callable[[int], Any]
    output: Callable[[int], Any] | None
    poison: Callable[[int], Any]
    close: Callable[[], Any] = lambda: None
    details: dict[str, Any] = field(default_factory=dict)


class Job:
    """**Collective.** The ranks, their GPUs, and the resources of all columns: stream, barrier, kernels, clock reading.

    Args:
        comm: an mpi4py communicator of one node (global).
        deadline: limit for one step, seconds (global).
    """

    def __init__(self, comm: Any, deadline: float) -> None:
        import cupy
        import torch
        import torch.distributed as dist

        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        self.deadline = Deadline(deadline, self.rank)
        self.deadline.step("start")
        local = comm.Split_type(MPI.COMM_TYPE_SHARED, self.rank)
        devices = cupy.cuda.runtime.getDeviceCount()
        if local.Get_size() != self.size or devices < self.size:
            raise SystemExit(f"{self.size} ranks on a node with {devices} GPUs; start one rank per GPU, on one node")
        self.device = local.Get_rank()
        cupy.cuda.Device(self.device).use()
        torch.cuda.set_device(self.device)
        torch.backends.cuda.matmul.allow_tf32 = False
        self.stream = torch.cuda.Stream()
        self.cupy_stream = cupy.cuda.ExternalStream(self.stream.cuda_stream, self.device)
        port = comm.bcast(free_port() if self.rank == 0 else None)
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ |= {"RANK": str(self.rank), "WORLD_SIZE": str(self.size), "LOCAL_RANK": str(self.device)}
        dist.init_process_group("nccl", device_id=torch.device("cuda", self.device))
        self.group = dist.group.WORLD
        self.no_symmetric = self.agree(self._start_symmetric())
        if self.no_symmetric:
            self._barrier = self._nccl_barrier()
        self._delay = cupy.RawKernel(DELAY, "delay")
        self._fill = cupy.ElementwiseKernel("uint64 first, uint32 seed", "uint32 pair", FILL, "pblas_benchmark_fill")
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self._nvml = self._start_nvml()
        self.deadline.step("")

    def close(self) -> None:
        """End torch's process group."""
        import torch.distributed as dist

        self.deadline.step("end")
        self.synchronize()
        self.comm.Barrier()
        dist.destroy_process_group()
        self.deadline.step("")

    @contextmanager
    def current(self) -> Any:
        """A with block in which the job's stream is the current stream of torch and of CuPy."""
        import torch

        with torch.cuda.stream(self.stream), self.cupy_stream:
            yield

    def agree(self, reason: str | None) -> str | None:
        """**Collective.** The reason of the lowest rank that has one, or None."""
        return next((text for text in self.comm.allgather(reason) if text), None)

    def attempt(self, work: Callable[[], Any]) -> tuple[Any, str | None]:
        """**Collective.** The result of `work`, or None; and the reason why it failed on some rank, or None."""
        result = reason = None
        try:
            result = work()
            self.synchronize()
        except Exception as error:  # noqa: BLE001 - any error of a library becomes the reason in the file
            reason = in_a_line(error)
        return result, self.agree(reason)

    def largest(self, values: Any) -> Any:
        """**Collective.** The maximum over ranks, element by element."""
        maxima = np.array(values, dtype=np.float64)
        self.comm.Allreduce(MPI.IN_PLACE, maxima, MPI.MAX)
        return maxima

    def _start_symmetric(self) -> str | None:
        """Make the barrier by torch's symmetric memory, or return the reason why that is not possible."""
        try:
            import torch
            import torch.distributed._symmetric_memory as symm_mem
            from torch._C._autograd import DeviceType
            from torch._C._distributed_c10d import _SymmetricMemory

            if _SymmetricMemory.has_multicast_support(DeviceType.CUDA, self.device):
                return "torch's symmetric memory would use NVLink multicast"
            pad = symm_mem.empty(1024, dtype=torch.uint8, device=f"cuda:{self.device}")
            self._handle = symm_mem.rendezvous(pad, self.group)
            self._pad = pad
        except (ImportError, RuntimeError, AttributeError, TypeError) as error:
            return f"torch's symmetric memory: {in_a_line(error)}"
        self._barrier = lambda: self._handle.barrier(channel=0, timeout_ms=20_000)
        return None

    def _nccl_barrier(self) -> Callable[[], Any]:
        import torch
        import torch.distributed as dist

        one = torch.ones(1, device=f"cuda:{self.device}")
        return lambda: dist.all_reduce(one)

    def _start_nvml(self) -> Any:
        try:
            import cupy
            import pynvml

            pynvml.nvmlInit()
            return pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(cupy.cuda.runtime.deviceGetPCIBusId(self.device))
        except Exception:  # noqa: BLE001 - NVML has its own exceptions; clocks are optional in the file
            return None

    def sm_clock(self) -> int:
        """Current clock of this rank's multiprocessors, MHz; 0 if NVML does not report it (local)."""
        if self._nvml is None:
            return 0
        pynvml, handle = self._nvml
        try:
            return int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
        except pynvml.NVMLError:
            return 0

    def device_name(self) -> str:
        """Name of the GPUs."""
        import torch

        return torch.cuda.get_device_name(self.device)

    def synchronize(self) -> None:
        """Wait for the stream (local)."""
        self.stream.synchronize()

    def start_together(self, delay: float) -> None:
        """Enqueue a kernel that takes `delay` seconds, so that the host can enqueue more, and a barrier of all GPUs."""
        self._delay((1,), (1,), (np.uint64(int(1e9 * delay)),))
        self._barrier()

    def fill(self, array: Any, seed: int, first: int = 0) -> None:
        """Fill a dense bfloat16 CuPy array with numbers that depend on the seed and their position from `first` on."""
        import cupy

        flat = (array if array.flags.c_contiguous else array.T).reshape(-1).view(cupy.uint32)
        self._fill(np.uint64(first // 2), np.uint32(seed), flat)

    def timed(self, call: Callable[[], Any], delay: float, *, clock: bool = False) -> tuple[float, float, int]:
        """Seconds of one call on this GPU, its seconds on the CPU, and the SM clock while it ran."""
        start, stop = self._events
        self.start_together(delay)
        start.record()
        began = time.perf_counter()
        call()
        host = time.perf_counter() - began
        stop.record()
        mhz = self.sm_clock() if clock else 0
        stop.synchronize()
        return 1e-3 * start.elapsed_time(stop), host, mhz


def free_port() -> int:
    """A free TCP port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def in_a_line(error: BaseException) -> str:
    """An exception in one line of at most 200 characters."""
    return f"{type(error).__name__}: {error}".partition("\n")[0][:200]


def torch_view(array: Any) -> Any:
    """A bfloat16 CuPy array of the current device, dense in C-order, as a torch tensor on the same memory."""
    import cupy
    import torch

    tensor = torch.as_tensor(array.view(cupy.int16), device="cuda").view(torch.bfloat16)
    assert tensor.data_ptr() == array.data.ptr, "a copy would be multiplied instead"
    return tensor


class Operands:
    """The sets of operands of a row on this rank; activations and D in C-order, B as torch's Linear stores weights.

    Args:
        job: the ranks.
        row: the sizes of the product.
        sets: number of sets; 0 for the number of the row.

    Attributes:
        a, b, d: CuPy arrays for each set, of a_shape, K x N in F-order, and d_shape.
        full: AG: M x K, the gathered A, whose shard is `a`; otherwise the arrays of `a`.
        partial: RS: M x N, the product before it is reduced; otherwise the arrays of `d`.
        ta, tb, td, tfull, tpartial: torch tensors on the same memory; tb is a transposed view, K x N.
        mirrors: (set, array): further arrays of a_shape that get the values of `a`.
    """

    def __init__(self, job: Job, row: Row, sets: int = 0) -> None:
        import cupy
        import ml_dtypes

        def new(shape: tuple[int, int], order: str = "C") -> list[Any]:
            return [cupy.empty(shape, dtype=ml_dtypes.bfloat16, order=order) for _ in range(self.sets)]

        self.job, self.row, self.sets = job, row, sets or row.sets
        self.a, self.b, self.d = new(row.a_shape), new((row.k, row.n), "F"), new(row.d_shape)
        self.full = new((row.m, row.k)) if row.op == "ag_gemm" else self.a
        self.partial = new((row.m, row.n)) if row.op == "gemm_rs" else self.d
        self.ta, self.td = list(map(torch_view, self.a)), list(map(torch_view, self.d))
        self.tb = [torch_view(b.T).t() for b in self.b]
        self.tfull, self.tpartial = list(map(torch_view, self.full)), list(map(torch_view, self.partial))
        self.mirrors: list[tuple[int, Any]] = []
        self.turn = -1

    def _a_seed(self, s: int, rank: int) -> int:
        return seed_of("A", self.turn, s, 0 if self.row.op == "ag_gemm" else rank)

    def _a_first(self, rank: int) -> int:
        return rank * self.row.a_shape[0] * self.row.k if self.row.op == "ag_gemm" else 0

    def refill(self, turn: int, first: int = 0) -> None:
        """Fill all sets with new values, beginning with set `first`, so that it has left the cache when it is used."""
        self.turn, rank = turn, self.job.rank
        for s in [*range(first, self.sets), *range(first)]:
            self.job.fill(self.a[s], self._a_seed(s, rank), self._a_first(rank))
            if self.full is not self.a:
                self.job.fill(self.full[s], self._a_seed(s, 0))
            self.job.fill(self.b[s], seed_of("B", turn, s, rank))
            for number, mirror in self.mirrors:
                if number == s:
                    self.job.fill(mirror, self._a_seed(s, rank), self._a_first(rank))

    def reference(self, s: int) -> Any:
        """D of a set in float32, from operands of all ranks, which this rank generates again.

        AG: D = [A_0; ...; A_(P-1)] B_q.  RS: D = (sum_r A_r B_r)[rows of q, :].  AR: D = sum_r A_r B_r.
        """
        import cupy
        import ml_dtypes
        import torch

        row, job = self.row, self.job
        am, dm = row.a_shape[0], row.d_shape[0]
        wanted = torch.zeros((dm, row.n), dtype=torch.float32, device=f"cuda:{job.device}")
        b = cupy.empty((row.k, row.n), dtype=ml_dtypes.bfloat16, order="F")
        a = cupy.empty((am if row.op == "ag_gemm" else dm, row.k), dtype=ml_dtypes.bfloat16)
        for r in range(job.size):
            if row.op == "ag_gemm":
                job.fill(a, self._a_seed(s, r), self._a_first(r))
                wanted[r * am : (r + 1) * am] = torch_view(a).float() @ self.tb[s].float()
            else:
                first = job.rank * dm * row.k if row.op == "gemm_rs" else 0
                job.fill(a, self._a_seed(s, r), first)
                job.fill(b, seed_of("B", self.turn, s, r))
                wanted += torch_view(a).float() @ torch_view(b.T).t().float()
        return wanted


def worst_block(result: Any, wanted: Any) -> float:
    """The largest relative error of a 128 x 128 block in the Frobenius norm; NaN if an element is NaN."""
    import torch

    def blocks(x: Any) -> Any:
        m, n = x.shape
        padded = torch.nn.functional.pad(x.square(), (0, -n % BLOCK, 0, -m % BLOCK))
        return padded.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK)).sum((1, 3))

    return float((blocks(result.float() - wanted) / blocks(wanted)).sqrt().max())


@dataclass
class Measured:
    """The measurements of a row, by column; times are maxima over ranks.

    Args:
        times: seconds on the GPU in each round.
        steady: seconds per call of many calls back to back.
        host: seconds of a call on the CPU, median.
        errors: largest relative error of a block.
        clocks: lowest, median and highest clock of the multiprocessors, MHz, over ranks and rounds.
        missing: reasons for columns that failed.
        delay: seconds of the delay kernel before each call.
    """

    times: dict[str, list[float]] = field(default_factory=dict)
    steady: dict[str, float] = field(default_factory=dict)
    host: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    clocks: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0


class Bench:
    """**Collective.** Measures the columns of a row.

    Args:
        job: the ranks.
        operands: the operands of the product.
        columns: the timed calls; a column that fails is removed from the list and noted.
        rounds: number of rounds; 0 for 40, or 15 if the GEMM takes more than 2 ms.
        seconds: limit for all rounds together.
    """

    def __init__(self, job: Job, operands: Operands, columns: list[Column], rounds: int, seconds: float) -> None:
        self.job, self.operands, self.columns = job, operands, columns
        self.wanted, self.seconds = rounds, seconds
        self.measured = Measured()
        self.calls = 0

    def run(self) -> Measured:
        """Warm up, measure and check all columns."""
        with self.job.current():
            self._warm()
            if self.columns:
                self._rounds()
                self._steady()
                for column in list(self.columns):
                    self._host(column)
                self._check()
        self.job.deadline.step("")
        return self.measured

    def _step(self, step: str, column: Column | None = None) -> None:
        self.job.deadline.step(f"{self.operands.row.title}: {column.name + ': ' if column else ''}{step}")

    def _drop(self, column: Column, reason: str) -> None:
        self.columns.remove(column)
        self.measured.missing[column.name] = reason
        for times in (self.measured.times, self.measured.steady, self.measured.host):
            times.pop(column.name, None)
        with suppress(Exception):
            column.close()

    def _attempt(self, column: Column, step: str, work: Callable[[], Any]) -> Any:
        """Result of `work`, or None after the column was dropped because the work failed on some rank."""
        self._step(step, column)
        result, reason = self.job.attempt(work)
        if reason:
            self._drop(column, f"{step}: {reason}")
        return None if reason else result

    def _warm(self) -> None:
        """Run every column with every set; an odd number of calls per pass uses both parities of a workspace."""
        self.operands.refill(0)
        self.job.synchronize()
        sets = self.operands.sets
        order = [*range(sets), 0] if sets % 2 == 0 else list(range(sets))
        for column in list(self.columns):

            def passes(call: Callable[[int], Any] = column.call) -> float:
                host = []
                for turn in range(WARM_PASSES):
                    for s in order:
                        began = time.perf_counter()
                        call(s)
                        if turn == WARM_PASSES - 1:
                            host.append(time.perf_counter() - began)
                    self.job.synchronize()
                return statistics.median(host)

            host = self._attempt(column, "warming up", passes)
            if host is not None:
                self.measured.delay = max(self.measured.delay, host)
        slowest = float(self.job.largest(self.measured.delay))
        self.measured.delay = min(MOST_DELAY, 1.5 * slowest + 100e-6)

    def _round(self, turn: int) -> tuple[dict[str, tuple[float, float]], int]:
        by_name = {column.name: column for column in self.columns}
        first = self.calls % self.operands.sets
        self.operands.refill(turn, first)
        times, mhz = {}, 0
        for place, name in enumerate(rotated(list(by_name), turn)):
            self._step(f"round {turn}", by_name[name])
            s = self.calls % self.operands.sets
            self.calls += 1
            seconds, host, clock = self.job.timed(
                lambda call=by_name[name].call, s=s: call(s), self.measured.delay, clock=place == 0
            )
            times[name], mhz = (seconds, host), mhz or clock
        return times, mhz

    def _rounds(self) -> None:
        names = [column.name for column in self.columns]
        began = time.perf_counter()
        tries = [self._round(turn)[0] for turn in (1, 2)]
        alone = min(tries[1].get(name, (math.inf, 0))[0] for name in ("torch.mm", "cublasLt", *names[:1]))
        per_round, alone = self.job.largest([(time.perf_counter() - began) / 2, alone])
        count = rounds_within(per_round, self.seconds, alone, self.wanted)
        samples, clocks = [], []
        for turn in range(3, 3 + count):
            times, mhz = self._round(turn)
            samples.append([times[name] for name in names])
            clocks.append(mhz)
        seconds = self.job.largest(samples)  # rounds x columns x (GPU, CPU)
        for place, name in enumerate(names):
            self.measured.times[name] = seconds[:, place, 0].tolist()
        everywhere = [mhz for part in self.job.comm.allgather(clocks) for mhz in part if mhz]
        if everywhere:
            median = statistics.median(everywhere)
            self.measured.clocks = {"min": min(everywhere), "median": median, "max": max(everywhere)}

    def _steady(self) -> None:
        """Measure calls back to back, which do not hide launch cost.

        The order of the columns rotates, because the GPU gets hot and its clocks go down.
        """
        by_name = {column.name: column for column in self.columns}
        names, samples = list(by_name), {name: list[float]() for name in by_name}
        for turn in range(STEADY_TURNS):
            for name in rotated(names, turn * max(1, len(names) // STEADY_TURNS)):
                if by_name[name] not in self.columns:
                    continue
                seconds = self._attempt(by_name[name], "steady state", partial(self._back_to_back, by_name[name]))
                if seconds is not None:
                    samples[name].append(float(self.job.largest(seconds)))
        self.measured.steady |= {column.name: statistics.median(samples[column.name]) for column in self.columns}

    def _back_to_back(self, column: Column) -> float:
        """Seconds per call of many calls back to back."""
        calls = max(10, min(200, int(STEADY_SECONDS / statistics.median(self.measured.times[column.name]))))

        def work() -> None:
            for number in range(calls):
                column.call(number % self.operands.sets)

        return self.job.timed(work, 200e-6)[0] / calls

    def _host(self, column: Column) -> None:
        """Measure the CPU time of a call while the GPU is busy: median of up to 1,000 calls, on all ranks at once."""
        sets, seconds = self.operands.sets, self.measured.steady[column.name]
        calls = max(50, min(1000, int(0.2 / seconds)))

        def several() -> float:
            host = []
            for number in range(calls):
                if number % 16 == 0:  # a full launch queue would block the host
                    self.job.synchronize()
                began = time.perf_counter()
                column.call(number % sets)
                host.append(time.perf_counter() - began)
            return statistics.median(host)

        host = self._attempt(column, "CPU time", several)
        if host is not None:
            self.measured.host[column.name] = float(self.job.largest(host))

    def _check(self) -> None:
        """Compare D of set 0, with the values of the last round, with float32; outputs are filled with NaN before."""
        self._step("reference")
        wanted = self.operands.reference(0)
        for column in list(self.columns):
            output = column.output
            if output is None:
                continue

            def error(column: Column = column, output: Callable[[int], Any] = output) -> float:
                column.poison(0)
                self.job.synchronize()
                self.job.comm.Barrier()  # no rank sends into a workspace that is still being poisoned
                column.call(0)
                self.job.synchronize()
                return worst_block(output(0), wanted)

            result = self._attempt(column, "check", error)
            if result is not None:
                errors = self.job.comm.allgather(result)
                self.measured.errors[column.name] = max(errors, key=lambda x: math.inf if math.isnan(x) else x)


def wrong(errors: dict[str, float]) -> dict[str, str]:
    """Columns with a wrong result, and its relative error as text."""
    return {name: f"relative error {x:.3g}" for name, x in errors.items() if not x <= TOLERANCE}


def fields(measured: Measured) -> dict[str, Any]:
    """Fields of a row of the file other than the times of the rounds.

    >>> fields(Measured(steady={"pblas": 1e-5}, errors={"pblas": 0.002}))["steady_us"]
    {'pblas': 10.0}
    """
    return {
        "steady_us": {name: round(1e6 * x, 3) for name, x in measured.steady.items()},
        "cpu_us": {name: round(1e6 * x, 3) for name, x in measured.host.items()},
        "relative_errors": {name: x if math.isfinite(x) else None for name, x in measured.errors.items()},
        "wrong": wrong(measured.errors),
    }


def give_memory_back() -> None:
    """Return the memory of a row's arrays from the pools of torch and CuPy to the device."""
    import cupy
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    cupy.get_default_memory_pool().free_all_blocks()

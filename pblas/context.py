"""Context: the ranks that work together. It creates matrices, and owns their memory and communication."""

from __future__ import annotations

import gc
import os
import warnings
import weakref
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pblas import _operators, errors  # noqa: F401 - registers the operators of matrices
from pblas.backends import log, recorder
from pblas.backends.select import open_backend
from pblas.backends.settings import TIMEOUT, Movement, Name, Tuning, check_tuning
from pblas.collectives.api import Collectives
from pblas.matrices.constructors import Constructors
from pblas.runtime.runtime import OPEN, Runtime, checked_flag, checked_order, checked_reproducible
from pblas.trace import Tracing

if TYPE_CHECKING:
    from mpi4py import MPI
    from torch.distributed import ProcessGroup

    from pblas.backends.engine_limits import Reproducible
    from pblas.layouts.descriptor import Order


class Context(Constructors, Collectives):
    """The ranks that work together. Use it as a `with` block, whose end frees all memory of the context.

    **Collective**, like every method that creates, moves or collects a matrix.

    Args:
        comm: an mpi4py intracommunicator, which the context duplicates; None for COMM_WORLD (global).
        backend: kind of arrays and of communication (global):
            "mpi": NumPy arrays on CPUs, ranks of MPI;
            "gloo": NumPy arrays on CPUs, ranks of `process_group`;
            "nvshmem": CuPy arrays on GPUs that reach each other's memory;
            "cuda": CuPy arrays on GPUs that send messages through MPI;
            "auto": GPUs if every rank has one and CuPy, with NVSHMEM if it works; else CPUs.
        timeout: seconds that a rank waits for another before all raise PeerTimeout (global).
        threads: BLAS threads of this rank; None for the number that OPENBLAS_NUM_THREADS, MKL_NUM_THREADS or
            OMP_NUM_THREADS gives, else for usable cores divided by the job's ranks on the node (local).
        transport: how data moves (global):
            "auto": shared memory within a node and messages between nodes; messages only if shared memory is too small;
            "shared": as "auto", but too little shared memory is an error;
            "message": messages only.
        ranks_per_node: pretend that a node has at most this number of ranks, to test messages between nodes on one
            node (global).
        link: (latency in seconds, bandwidth in bytes/s) of an emulated network, which delays messages and uses no CPU;
            with transport="message" (global).
        device: GPU of this rank, an index of CUDA's visible devices; it becomes this thread's current device. None for
            the rank on the node modulo the number of visible GPUs (local).
        debug: before every execution on GPUs, check that all ranks execute the same plan; on CPUs this is always
            checked. Compare all elements of arrays that must be equal on all ranks; otherwise a sample of arrays of
            more than 16 KiB is compared, and none in the memory of GPUs (global).
        tuning: "measured": plans take the rate of the network between nodes, which a context of several nodes measures
            once (2 MiB are sent); "fixed": plans depend on the layouts alone, and are the same in every run (global).
        order: storage order of matrices that are made without a descriptor, and of the results of products and
            expressions: "C", by rows as in NumPy, or "F", by columns. None: "F", and for results that of their operands
            (global).
        reproducible: products, layers of `pblas.tp`, and on CPUs sums, norms and `vdot` get the same bits for any
            number of ranks and any layouts: True or "exact", see `plan_matmul`, whose calls may say otherwise. With
            True Cholesky, LU, solves, trsm, syrk and symm do too, on CPUs. docs/reproducibility.md lists all calls; the
            others do as they always do (global).
        process_group: in place of `comm`, a torch.distributed group whose messages between hosts go through Gloo; for
            ranks that `torchrun` starts, on CPUs and on GPUs with "nvshmem". It needs no MPI (global).

    Raises:
        ArgumentError: an invalid setting, or one that the backend does not support.
        BackendError: a backend or launcher that is missing or cannot be used; PBLAS_NVTX=1 without the package nvtx; or
            with reproducible=True a BLAS whose elements have other bits at some places.
        WorkspaceError: a GPU has too little memory for NVSHMEM.
        MismatchError: settings that differ between ranks.
        FileFormatError: PBLAS_TRACE names a folder that does not exist.
        PeerTimeout: a rank of `comm` or `process_group` does not arrive in time.

    >>> import numpy as np
    >>> from pblas.layouts import MatrixDescriptor
    >>> with Context() as ctx:
    ...     a = ctx.from_global(np.eye(3), MatrixDescriptor.row_wise(3, 3, ctx.nprocs))
    ...     (a @ a).to_global().trace()
    np.float64(3.0)
    """

    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        backend: Name = "auto",
        *,
        timeout: float = TIMEOUT,
        threads: int | None = None,
        transport: Movement = "auto",
        ranks_per_node: int | None = None,
        link: tuple[float, float] | None = None,
        device: int | None = None,
        debug: bool = False,
        tuning: Tuning = "measured",
        order: Order | None = None,
        reproducible: Reproducible = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        self.runtime: Runtime = Runtime(
            open_backend(
                backend,
                comm,
                process_group,
                device=device,
                timeout=timeout,
                threads=threads,
                transport=transport,
                ranks_per_node=ranks_per_node,
                link=link,
            )
        )
        try:
            with self.runtime.local_step("Context"):
                self.runtime.debug = checked_flag("Context", "debug", debug)
                check_tuning(tuning)
                self.runtime.order = checked_order("Context", order)
                self.runtime.reproducible = checked_reproducible("Context", reproducible)
                nvtx = recorder.ranges_wanted()
            file = os.environ.get("PBLAS_TRACE", "")
            settings = {"debug": self.runtime.debug, "tuning": tuning, "order": order, "PBLAS_TRACE": file}
            settings["reproducible"] = self.runtime.reproducible
            settings[recorder.VARIABLE] = nvtx
            self.runtime.agree("Context", settings)
            if self.runtime.reproducible is True:
                with self.runtime.local_step("Context"):
                    bits = self.runtime.backend.form_alike()
                self.runtime.agree("Context", {"reproducible sums": bits})
            if tuning == "measured":
                self.runtime.bandwidth = self.runtime.backend.measured_bandwidth()
            self._ranges = recorder.Ranges(self.runtime.backend).__enter__() if nvtx else None
            self._tracing = self._traced(file) if file else None
        except errors.PblasError:  # on every rank
            self.runtime.backend.close(free=self.runtime.backend.agreement.broken is None)
            raise
        if log.is_on(log.INFO):
            facts = ", ".join(f"{name} {' '.join(value.split())}" for name, value in self.describe().items())
            log.write(log.INFO, self.rank, "Context: backend %s, %s", self.runtime.backend.name, facts)
        OPEN.add(self.runtime)
        self._unclosed = weakref.finalize(self, warnings.warn, _UNCLOSED.format(rank=self.rank), errors.PblasWarning)

    @property
    def rank(self) -> int:
        """This rank's number in the context, 0..nprocs-1 (local)."""
        return self.runtime.rank

    @property
    def nprocs(self) -> int:
        """Ranks in the context (global)."""
        return self.runtime.nprocs

    def describe(self) -> dict[str, str]:
        """MPI, nodes, cores, threads and GPUs of this context, as text by name (local)."""
        return self.runtime.backend.describe()

    def __repr__(self) -> str:
        state = " closed" if self.runtime.closed else ""
        return f"<pblas.Context{state}: rank {self.rank} of {self.nprocs}, backend {self.runtime.backend.name!r}>"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name != "runtime"]  # for other modules of the package

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        with suppress(errors.PblasError):  # if the ranks cannot agree to close, the first error is the one to raise
            self._close(self.runtime.backend.agreement.notice_seconds)

    def close(self) -> None:
        """**Collective.** Free the memory and the communicators of this context; its matrices become unusable."""
        self._close(None)

    def trace(self, *paths: str | os.PathLike[str], title: str = "pblas") -> Tracing:
        """**Collective.** A `with` block that records the operations of all ranks: GEMMs, copies, reductions, waits.

        The block yields a `Trace`, which is complete on rank 0 after the block. Inside the block, executions on GPUs
        run without CUDA graphs, and start at the same time on all ranks. The environment variable `PBLAS_TRACE=file`
        records every context from its creation to its end; if the file exists, a number is added to its name.

        Args:
            paths: files that rank 0 writes at the end: `.json` for Perfetto, `.png` and `.svg` for pictures (global).
            title: title of pictures (global).

        Raises:
            ArgumentError: another suffix; raised when the block begins.
            BackendError: a picture without Matplotlib; raised when the block begins.
            FileFormatError: a folder does not exist (raised when the block begins), or a file cannot be written (raised
                when it ends).
        """
        return Tracing(self.runtime, paths, title)

    def _traced(self, file: str) -> Tracing:
        """**Collective.** Start the recording that PBLAS_TRACE asks for."""
        tracing = Tracing(self.runtime, [file], "pblas", opname="PBLAS_TRACE", fresh=True)
        tracing.__enter__()
        return tracing

    def _close(self, timeout: float | None) -> None:
        """**Collective.** End the recording of PBLAS_TRACE, and free everything; after an exception with a timeout."""
        with self.runtime.call("close", lambda _: None):
            try:
                if not self.runtime.closed:
                    self.runtime.check_running("close")
            finally:
                self._end(timeout)

    def _end(self, timeout: float | None) -> None:
        try:
            if self._tracing is not None and not self.runtime.closed:
                failed = timeout is not None or self.runtime.backend.agreement.broken is not None
                self._tracing.__exit__(BaseException if failed else None, None, None)
        finally:
            if self._ranges is not None:
                self._ranges.__exit__(None, None, None)
                self._ranges = None
            self._free(timeout)

    def _free(self, timeout: float | None) -> None:
        """**Collective.** Detach the matrices, agree to close, and free memory and communicators."""
        runtime = self.runtime
        if runtime.closed:
            return
        runtime.closed = True
        self._unclosed.detach()
        for matrix in runtime.matrices:
            matrix.detach()
        backend, free, leaks = runtime.backend, False, list[str]()
        try:
            try:
                if backend.agreement.broken is None:
                    backend.synchronize(timeout)
            finally:
                leaks = backend.leaks()
                if leaks and timeout is None:  # cycles: an exception that a library keeps has the frames of its callers
                    gc.collect()
                    leaks = backend.leaks()
            agreement = backend.agreement
            if agreement.broken is None:
                maxima = len(leaks), int(agreement.interrupted)
                agreement.interrupted = False  # a SIGINT waits until the memory is free
                most, interrupted = agreement.agree("close the context", maxima=maxima, timeout=timeout).maxima
                free, agreement.interrupted = most == 0, agreement.interrupted or interrupted > 0
        finally:
            backend.close(free=free)
        for site in leaks if timeout is None else ():  # after an exception its traceback still refers to arrays
            warnings.warn(
                f"rank {self.rank}: an array in the context's shared memory is still in use after the context was "
                f"closed, so the memory stays; it was allocated at {site}. Copy arrays that outlive the context",
                errors.PblasWarning,
                stacklevel=3,
            )


_UNCLOSED = "a pblas.Context of rank {rank} was never closed; use it as `with pblas.Context() as ctx:`"

"""Context: what users hold. It makes matrices and owns everything that they need."""

from __future__ import annotations

import os
import warnings
import weakref
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pblas import errors
from pblas.backends.select import open_backend
from pblas.matrices.creation import Creation
from pblas.operations.collectives import Collectives
from pblas.runtime.runtime import Runtime, checked_flag
from pblas.trace import Tracing

if TYPE_CHECKING:
    from mpi4py import MPI

    from pblas.backends.settings import Name, Transport

_EXIT_SECONDS = 1.0


class Context(Creation, Collectives):
    """Ranks that multiply together; a `with` block that ends what it began.

    **Collective**, like every method that makes, moves or collects a matrix.

    Args:
        comm: an mpi4py intracommunicator, None for COMM_WORLD; the context works on a duplicate (global).
        backend: "mpi": NumPy arrays on CPUs; "nvshmem": CuPy arrays on GPUs that reach each other's memory; "cuda":
            CuPy arrays on GPUs that send messages through MPI; "auto": GPUs if every rank has one, and CuPy, with
            NVSHMEM where it works (global).
        timeout: seconds that a rank waits for another before all raise PeerTimeout (global).
        threads: BLAS threads of this rank; None for usable cores divided by the job's ranks on the node (local).
        transport: "auto": shared memory within a node, messages between nodes, and messages only where shared memory is
            too small; "shared": as auto, but too little shared memory is an error; "message": messages only (global).
        ranks_per_node: act as if a node had at most so many ranks, to try messages between nodes on one (global).
        link: (latency in seconds, bandwidth in bytes/s) of an emulated network that delivers messages that much
            later and uses no CPU meanwhile; with transport="message" (global).
        device: GPU of this rank, as CUDA counts the visible ones, which becomes this thread's current device; None
            for the rank's number on the node, modulo the GPUs there (local).
        debug: check before every execution that all ranks make the same one, where nothing else would tell: on GPUs
            (global).

    Raises:
        ArgumentError: a setting that is not one of these, or that the backend has not.
        BackendError: a backend or launcher that is missing or unfit.
        WorkspaceError: a GPU without memory for NVSHMEM.
        MismatchError: settings that differ between ranks.
        FileFormatError: PBLAS_TRACE names a folder that does not exist.
        PeerTimeout: a rank of `comm` does not arrive.

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
        timeout: float = 120.0,
        threads: int | None = None,
        transport: Transport = "auto",
        ranks_per_node: int | None = None,
        link: tuple[float, float] | None = None,
        device: int | None = None,
        debug: bool = False,
    ) -> None:
        self.runtime = Runtime(
            open_backend(
                backend,
                comm,
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
            file = os.environ.get("PBLAS_TRACE", "")
            self.runtime.agree("Context", {"debug": self.runtime.debug, "PBLAS_TRACE": file})
            self._tracing = self._traced(file) if file else None
        except errors.PblasError:  # on every rank
            self.runtime.backend.close(free=self.runtime.backend.agreement.broken is None)
            raise
        self._unclosed = weakref.finalize(self, warnings.warn, _UNCLOSED.format(rank=self.rank), RuntimeWarning)

    @property
    def rank(self) -> int:
        """This rank's number in the context, 0..nprocs-1 (local)."""
        return self.runtime.rank

    @property
    def nprocs(self) -> int:
        """Ranks in the context (global)."""
        return self.runtime.nprocs

    def describe(self) -> dict[str, str]:
        """Facts about MPI, nodes, cores, threads and GPUs (local)."""
        return self.runtime.backend.describe()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        with suppress(errors.PblasError):  # the ranks did not agree to close: nothing is freed, the first error goes on
            self._close(_EXIT_SECONDS)

    def close(self) -> None:
        """**Collective.** Free windows and communicators; matrices of this context cannot be used any more."""
        self._close(None)

    def trace(self, *paths: str | os.PathLike[str], title: str = "pblas") -> Tracing:
        """**Collective.** A `with` block in which all that the ranks do is recorded: GEMMs, copies, reductions, waits.

        The block yields a `Trace`, which is complete on rank 0 when the block has ended. On GPUs executions are not
        graphs meanwhile, and begin together. `PBLAS_TRACE=file` in the environment does the same for every context,
        from its beginning to its end; where there is such a file already, the name gets a number.

        Args:
            paths: files that rank 0 writes at the end, `.json` for Perfetto, `.png` and `.svg` for pictures (global).
            title: of pictures (global).

        Raises:
            ArgumentError: another suffix; before anything is run.
            BackendError: a picture without Matplotlib; before anything is run.
            FileFormatError: there is no such folder, before anything is run; a file cannot be written, at the end.
        """
        return Tracing(self.runtime, paths, title)

    def _traced(self, file: str) -> Tracing:
        """**Collective.** The recording that the environment asks for, under way."""
        tracing = Tracing(self.runtime, [file], "pblas", verb="PBLAS_TRACE", fresh=True)
        tracing.__enter__()
        return tracing

    def _close(self, timeout: float | None) -> None:
        try:
            if self._tracing is not None and not self.runtime.closed:
                failed = timeout is not None or self.runtime.backend.agreement.broken is not None
                self._tracing.__exit__(BaseException if failed else None, None, None)
        finally:
            self._free(timeout)

    def _free(self, timeout: float | None) -> None:
        runtime = self.runtime
        if runtime.closed:
            return
        runtime.closed = True
        self._unclosed.detach()
        for matrix in list(runtime.matrices):
            matrix.detach()
        backend, free, leaks = runtime.backend, False, list[str]()
        try:
            try:
                if backend.agreement.broken is None:
                    backend.settle(timeout)
            finally:
                leaks = backend.leaks()
            if backend.agreement.broken is None:
                free = (
                    backend.agreement.agree("close the context", maxima=(len(leaks), 0, 0, 0), timeout=timeout).maxima[
                        0
                    ]
                    == 0
                )
        finally:
            backend.close(free=free)
        for site in leaks if timeout is None else ():  # an exception on its way out holds the arrays of its frames
            warnings.warn(
                f"rank {self.rank}: an array in the context's shared memory is still in use after the context was "
                f"closed, so the memory stays; it was allocated at {site}. Copy what outlives the context",
                RuntimeWarning,
                stacklevel=3,
            )


_UNCLOSED = "a pblas.Context of rank {rank} was never closed; use it as `with pblas.Context() as ctx:`"

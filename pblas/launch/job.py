"""A job of ranks that the caller has started: its processes, its connections, its output and its end."""

from __future__ import annotations

import codecs
import math
import os
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from pblas import errors
from pblas.backends.segments import Segment, mapped, unlink
from pblas.backends.settings import DRY_RUN, TIMEOUT
from pblas.launch.channel import Channel, Find, Frames, Outcome, first_error, packed, unpacked

_PROGRAM = "import sys; sys.path[:] = {path!r}; from pblas.launch.worker import main; main({socket!r})"
"""Ranks find the modules that the caller finds: functions of modules travel by name."""

_START_SECONDS = 300.0  # a large job on a slow file system starts within a minute
_CLOSE_SECONDS = 10.0
_END_SECONDS = 5.0  # mpiexec ends its ranks on SIGTERM well within a second
_LOOK_SECONDS = 0.02  # MPI's shared memory appears 0.1 s before MPI runs
_LONGEST_SECONDS = 3600.0  # of one wait: selectors refuse larger numbers
_POLL_SECONDS = 0.05
_OUTPUT_NBYTES = 1 << 20  # more than a pipe holds: one read takes all that a rank has written before its report
_FOLDER_NBYTES = 64  # of the folder of the socket's folder: the path of a socket has at most 104
_PID_NBYTES = 20  # at most, in decimal digits
_LOG_NBYTES = 4096  # of mpiexec's output, in a message

# Launchers' variables with the rank of a process. Slurm's SLURM_PROCID is none of them: batch scripts have it too.
_RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")


def rank_variable() -> str | None:
    """The launcher's variable with the rank of this process; None if no launcher has started it."""
    return next((name for name in _RANKS if name in os.environ), None)


def refuse_inside_a_job(opname: str) -> None:
    """Raise BackendError if this process is a rank itself, or stands for all ranks in a dry run."""
    if DRY_RUN.get() is not None:
        raise errors.BackendError(
            f"{opname}: a dry run has one process, and starts no ranks; call the function with a pblas.Context()"
        )
    name = rank_variable()
    if name is not None:
        raise errors.BackendError(
            f"{opname}: this process is a rank of an MPI job already ({name}={os.environ[name]}), and a rank starts "
            f"no ranks. Call it from a plain `python script.py` or a notebook; in a job use pblas.Context()"
        )


def launcher(opname: str) -> list[str]:
    """The command that starts ranks: MPIEXEC, or the mpiexec of this Python's environment, or that on the path."""
    chosen = os.environ.get("MPIEXEC")
    beside = Path(sys.executable).parent / "mpiexec"
    command = shlex.split(chosen) if chosen else [str(beside) if beside.exists() else "mpiexec"]
    if not command or shutil.which(command[0]) is None:
        raise errors.BackendError(
            f"{opname}: there is no {command[0] if command else chosen!r} to start ranks: pip install mpi4py mpich, or "
            f"name that of your MPI, as MPIEXEC=/usr/bin/mpiexec"
        )
    return command


class _Output:
    """A rank's stdout or stderr, which goes to that of the caller: in a notebook, to the cell that runs."""

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor, self._name = descriptor, name
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def fileno(self) -> int:
        return self._descriptor

    def forward(self) -> bool:
        """Write what has arrived; whether more may come. It blocks if nothing has arrived."""
        raw = os.read(self._descriptor, _OUTPUT_NBYTES)
        text, target = self._decoder.decode(raw, final=not raw), getattr(sys, self._name)
        if text and target is not None:
            target.write(text)
            target.flush()
        return bool(raw)

    def close(self) -> None:
        os.close(self._descriptor)


class Job:
    """Ranks that wait for functions.

    Args:
        opname: the public call, for messages of errors.
        ranks: number of ranks, at least 1.
        options: arguments of `Context`.

    Raises:
        ArgumentError: options that cannot be sent.
        BackendError: no launcher, or one whose ranks do not start.
        KeyboardInterrupt: no rank is left.
        The exception of `Context`.
    """

    def __init__(self, opname: str, ranks: int, options: dict[str, Any]) -> None:
        setup = packed(opname, options, "an option of the context")
        command = launcher(opname)
        self._command = command[0]
        self._opname, self._nranks, self._owner = opname, ranks, os.getpid()
        self._patience = options.get("timeout", TIMEOUT)
        self._selector = selectors.DefaultSelector()
        self._channels: list[Channel] = []
        self._outputs: list[_Output] = []
        self._pids: list[int] = []
        self._segments: set[Segment] = set()  # of MPICH, which the ranks have opened and `end` deletes
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self.closed: bool = False
        usual = tempfile.gettempdir()
        parent = usual if len(os.fsencode(usual)) <= _FOLDER_NBYTES else "/tmp"  # noqa: S108 - a private folder in it
        with (
            tempfile.TemporaryDirectory(prefix="pblas-", dir=parent) as folder,
            socket.socket(socket.AF_UNIX) as server,
        ):
            path = str(Path(folder) / "socket")
            server.bind(path)
            server.listen(ranks)
            program = _PROGRAM.format(path=sys.path, socket=path)
            self._process = subprocess.Popen(
                [*command, "-n", str(ranks), sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in a terminal is for the caller, which ends the ranks
            )
            try:
                self._start(server, setup)
            except BaseException as error:
                self.end(graceful=isinstance(error, Exception))
                raise

    def _start(self, server: socket.socket, setup: Frames) -> None:
        """Wait for the ranks and their contexts, and bring the connections into the order of ranks."""
        self._accept(server)
        self._start_mpi(setup)
        outcomes = self._exchange([b"make the context"], _START_SECONDS, TIMEOUT)
        failures = {place: outcome.failure for place, outcome in outcomes.items() if outcome.failure is not None}
        if failures:
            raise first_error(failures, self._nranks)
        sizes = {unpacked(outcome.frames) for outcome in outcomes.values()}
        if sizes != {self._nranks}:
            raise errors.BackendError(
                f"{self._opname}: {self._command} started {self._nranks} ranks, but MPI sees jobs of {sizes.pop()}: it "
                f"and the MPI library of mpi4py do not belong together. MPIEXEC=... names another mpiexec"
            )
        self._channels = [self._channels[place] for place in sorted(outcomes, key=lambda place: outcomes[place].rank)]

    def _accept(self, server: socket.socket) -> None:
        """Wait for the connections of all ranks."""
        server.settimeout(_POLL_SECONDS)
        end = time.monotonic() + _START_SECONDS
        while len(self._channels) < self._nranks:
            with suppress(TimeoutError):
                stream, _ = server.accept()
                stream.settimeout(max(_POLL_SECONDS, end - time.monotonic()))
                self._add(stream)
                continue
            status = self._process.poll()
            if status is not None or time.monotonic() > end:
                what = "did not start in time" if status is None else f"did not start (exit status {status})"
                raise errors.BackendError(f"{self._opname}: the {self._nranks} ranks {what}: {self._log_text()}")

    def _start_mpi(self, setup: Frames) -> None:
        """Wait until MPI runs on all ranks, and delete the names of its shared memory, which no rank needs any more.

        If a rank dies before, `end` deletes the names that are known by then.
        """
        for outcome in self._exchange(setup, _START_SECONDS, TIMEOUT, _LOOK_SECONDS).values():
            self._segments |= unpacked(outcome.frames)
        unlink(self._segments)

    def _note_segments(self) -> None:
        """Note the shared memory of MPI that the ranks have opened: of a rank that has died nobody can tell."""
        for pid in self._pids:
            self._segments |= mapped(pid)

    def _add(self, stream: socket.socket) -> None:
        """Take the connection and the output of a rank."""
        channel = Channel(stream)
        pid, descriptors, *_ = socket.recv_fds(stream, _PID_NBYTES, 2)
        stream.setblocking(False)
        self._channels.append(channel)
        self._selector.register(channel, selectors.EVENT_READ)
        if not pid:
            self._raise_dead(len(self._channels) - 1)
        self._pids.append(int(pid))
        for descriptor, name in zip(descriptors, ("stdout", "stderr"), strict=True):
            output = _Output(descriptor, name)
            self._outputs.append(output)
            self._selector.register(output, selectors.EVENT_READ)

    def check_owner(self, opname: str) -> None:
        """Refuse a fork of the process that started the ranks: its messages would mix with those of that process."""
        if os.getpid() != self._owner:
            raise errors.ContextError(
                f"{opname}: the ranks belong to process {self._owner}, and this is its fork {os.getpid()}; make "
                f"another pblas.Pool here, or call it there"
            )

    def call(
        self,
        opname: str,
        frames: Frames,
        timeout: float | None,
        *,
        others: Frames | None = None,
        find: Find | None = None,
    ) -> list[Any]:
        """The value of each rank, for a call that all ranks make; `others` is the message of all but rank 0."""
        self._opname = opname
        try:
            outcomes = self._exchange(
                frames, math.inf if timeout is None else timeout, self._patience, others=others or frames
            )
        except BaseException:  # Ctrl-C too
            self.end(graceful=False)
            raise
        if lost := next((outcome.lost for outcome in outcomes.values() if outcome.lost), ""):
            text = f"{opname}: the ranks have a new context, and lost the attributes of the old one: {lost}"
            warnings.warn(text, errors.PblasWarning, stacklevel=3)
        failures = {rank: outcome.failure for rank, outcome in outcomes.items() if outcome.failure is not None}
        if failures:
            raise first_error(failures, self._nranks)
        return [unpacked(outcomes[rank].frames, find) for rank in range(self._nranks)]

    def _exchange(
        self,
        frames: Frames,
        timeout: float,
        patience: float,
        look: float = math.inf,
        *,
        others: Frames | None = None,
    ) -> dict[int, Outcome]:
        """Send a message to all ranks, and return the outcome of each connection's rank.

        Meanwhile the output of all ranks is forwarded, and every `look` seconds their shared memory is noted. Nothing
        blocks: a rank may stop in the middle of a message.
        """
        outcomes: dict[int, Outcome] = {}
        end = time.monotonic() + timeout
        for rank, channel in enumerate(self._channels):
            self._send(rank, channel, others if rank and others else frames)
        while len(outcomes) < self._nranks:
            left = end - time.monotonic()
            if left <= 0:
                self._raise_late(outcomes, timeout)
            ready = self._selector.select(min(left, look, _LONGEST_SECONDS))
            if look < math.inf:
                self._note_segments()
            for key, events in ready:
                if isinstance(key.fileobj, _Output):
                    self._forward(key.fileobj)
                elif isinstance(key.fileobj, Channel):
                    rank = self._channels.index(key.fileobj)
                    if events & selectors.EVENT_WRITE:
                        self._send(rank, key.fileobj)
                    if not events & selectors.EVENT_READ:
                        continue
                    try:
                        message = key.fileobj.receive()
                    except EOFError:
                        self._raise_dead(rank)
                    if message is None:
                        continue
                    outcomes[rank] = Outcome.of(message)
                    if outcomes[rank].failure is not None and time.monotonic() + patience < end:
                        timeout, end = patience, time.monotonic() + patience
        self._forward_arrived()
        return outcomes

    def _send(self, rank: int, channel: Channel, frames: Frames | None = None) -> None:
        """Send a message, or more of one that is under way; the selector waits for the room that is missing."""
        try:
            has_left = channel.flush() if frames is None else channel.send(frames)
        except OSError:
            self._raise_dead(rank)
        self._selector.modify(channel, selectors.EVENT_READ | (0 if has_left else selectors.EVENT_WRITE))

    def _raise_late(self, outcomes: dict[int, Outcome], timeout: float) -> NoReturn:
        """Raise for ranks that did not report in time: the first error of the others, or else a PeerTimeout."""
        ranks = ", ".join(str(rank) for rank in range(self._nranks) if rank not in outcomes)
        text = f"rank {ranks} of {self._nranks} did not return within {timeout:g} s; no rank is left"
        failures = {rank: outcome.failure for rank, outcome in outcomes.items() if outcome.failure is not None}
        if not failures:
            raise errors.PeerTimeout(f"{self._opname}: {text}")
        error = first_error(failures, self._nranks)
        error.add_note(f"After this exception {text}: they may have waited for the rank that raised it.")
        raise error

    def _raise_dead(self, rank: int) -> NoReturn:
        """Raise ContextError for a rank whose connection is closed."""
        status = "unknown"
        with suppress(subprocess.TimeoutExpired):
            status = str(self._process.wait(_END_SECONDS))
        self._forward_arrived()
        error = errors.ContextError(
            f"{self._opname}: rank {rank} of {self._nranks} died (exit status of the job: {status}), no rank is left; "
            f"start others with pblas.Pool or pblas.run"
        )
        error.add_note(self._log_text())
        raise error

    # Output

    def _forward(self, output: _Output) -> None:
        """Write what has arrived from a rank to this process's output."""
        if not output.forward():
            self._selector.unregister(output)

    def _forward_arrived(self) -> None:
        """Forward all output that ranks had written before now."""
        for key, _ in self._selector.select(0):
            if isinstance(key.fileobj, _Output):
                self._forward(key.fileobj)

    def _log_text(self) -> str:
        """The end of what mpiexec, and ranks before they had a connection, have written."""
        size = os.fstat(self._log.fileno()).st_size
        raw = os.pread(self._log.fileno(), _LOG_NBYTES, max(0, size - _LOG_NBYTES))
        return raw.decode(errors="replace").strip()

    # End

    def end(self, *, graceful: bool = True) -> None:
        """End all ranks; afterwards there are no processes, files, connections and shared memory."""
        if self.closed or os.getpid() != self._owner:  # in a fork of the caller the ranks are not its own
            return
        self.closed = True
        self._note_segments()
        try:
            if graceful:
                self._let_ranks_close()
        finally:
            for channel in self._channels:  # a rank whose connection is closed ends itself
                channel.close()
            self._stop()
            unlink(self._segments)
            for output in self._outputs:
                output.close()
            self._selector.close()
            self._log.close()

    def _let_ranks_close(self) -> None:
        """Tell the ranks that there are no more calls, and wait until they have ended."""
        for channel in self._channels:
            self._selector.unregister(channel)
            with suppress(OSError):
                channel.send([])
        end = time.monotonic() + _CLOSE_SECONDS
        while self._process.poll() is None and time.monotonic() < end:
            self._selector.select(_POLL_SECONDS)
            self._forward_arrived()
        self._forward_arrived()

    def _stop(self) -> None:
        """End mpiexec by SIGTERM, on which every one ends its ranks; on SIGINT not all do."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

"""Why a context on GPUs is broken: as a word that a rank writes to its peers, and as the text of the exception."""

from __future__ import annotations

from dataclasses import dataclass

from pblas.backends.nvshmem.kernels.arguments import NO_STEP

REFUSED = 0xFF  # takes the place of the missing rank if a rank rejected its arguments and sends the error as a message


def waited(rank: int, phase: int) -> str | None:
    """A note for the traceback: the data that a rank has waited for; None if it is not known.

    >>> waited(0, 3), waited(1, NO_STEP)
    ('rank 0 waited for sums of piece 1', None)
    """
    awaited = "sums" if phase % 2 else "shards or partial products"
    return None if phase == NO_STEP else f"rank {rank} waited for {awaited} of piece {phase // 2}"


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a context is broken."""

    reporter: int
    missing: tuple[int, ...]
    seconds: float

    @property
    def refused(self) -> bool:
        """Whether a rank rejected its arguments."""
        return self.missing == (REFUSED,)

    @property
    def word(self) -> int:
        """The word for the peers: the reporter, and the first missing rank; never 0."""
        first = self.missing[0] if self.missing else self.reporter
        return (self.reporter + 1) | first << 8

    @staticmethod
    def read(word: int, seconds: float) -> Fault:
        """The fault that a peer reported as a word."""
        return Fault((word & 0xFF) - 1, (word >> 8,), seconds)

    def text(self, size: int) -> str:
        """Text of the exception, equal on every rank: it does not depend on the reporter or the step.

        >>> print(Fault(0, (1,), 2.0).text(4))
        execute: rank 1 of 4 did not send what the others wait for within 2 s; the context is broken...
        """
        return (
            f"execute: rank {self.missing[0]} of {size} did not send what the others wait for within "
            f"{self.seconds:g} s; the context is broken and the outputs of that call are undefined on all ranks. "
            f"Context(timeout=...) sets the limit, in seconds"
        )

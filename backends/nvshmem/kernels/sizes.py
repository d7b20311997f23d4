"""Memory that kernels need in addition to operands, and the number of CTAs of communicating kernels."""

from __future__ import annotations

from pblas.backends.nvshmem.kernels.arguments import MAX_CTAS, MAX_RANKS

_SENT_NBYTES, _MOST_CTAS = 2048, 256  # least bytes that a CTA sends; most CTAs
_PULLED_NBYTES, _PULLING_CTAS = 8192, 128  # least bytes that a CTA pulls; most CTAs


def push_counter_nbytes() -> int:
    """Bytes of the counters of pushes in device memory, zeroed once; each pushing stream has its own."""
    return 4 * MAX_RANKS


def barrier_flags_nbytes(nranks: int) -> int:
    """Bytes of a barrier's flags on each rank, zeroed once."""
    return 4 * nranks


def all_reduce_flags_nbytes(nranks: int) -> int:
    """Bytes of an all-reduce's flags on each rank, of one parity, zeroed once.

    >>> all_reduce_flags_nbytes(8)
    32768
    """
    return 4 * 2 * nranks * MAX_CTAS


def sending_ctas(nbytes: int) -> int:
    """CTAs of a kernel whose ranks send `nbytes` bytes each, of one shot to each other rank: the same on all.

    On 2 H200, one shot of 1 MiB took 9.6 us with 64 CTAs, 7.7 with 128 and 6.2 with 256; of 256 KiB 4.0 from 64 on. Two
    shots of 4 MiB took 19.9 with 128 CTAs and 17.6 with 256, of 256 KiB 6.0 from 64 on.

    >>> sending_ctas(0), sending_ctas(16384), sending_ctas(10**6)
    (1, 8, 256)
    """
    return min(max(-(-nbytes // _SENT_NBYTES), 1), _MOST_CTAS)


def pulling_ctas(nbytes: int) -> int:
    """CTAs of a kernel that pulls arrays of `nbytes` bytes.

    On 4 H200, 16 MiB took 91 us with 128 CTAs and 100 with 512, 32 MiB 166 and 176.

    >>> pulling_ctas(0), pulling_ctas(2**18), pulling_ctas(2**25)
    (1, 32, 128)
    """
    return min(max(-(-nbytes // _PULLED_NBYTES), 1), _PULLING_CTAS)

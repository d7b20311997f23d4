"""A fault that breaks a context on GPUs, as one word and as one text."""

from __future__ import annotations

from pblas.backends.nvshmem.fault import REFUSED, Fault, waited
from pblas.backends.nvshmem.kernels.arguments import NO_STEP


def test_a_fault_is_encoded_in_a_word() -> None:
    for reporter in range(8):
        for missing in ((7,), (0, 3), (reporter,), (REFUSED,)):
            fault = Fault(reporter, missing, 2.0)
            assert 0 < fault.word < 1 << 32
            received = Fault.read(fault.word, 2.0)
            assert received == Fault(reporter, missing[:1], 2.0)
            assert received.refused == (missing == (REFUSED,))


def test_every_rank_reports_the_same_rank_and_limit() -> None:
    texts = {Fault.read(Fault(reporter, (3,), 2.0).word, 2.0).text(4) for reporter in range(4)}
    (text,) = texts
    assert text.startswith(
        "execute: rank 3 of 4 did not send what the others wait for within 2 s; the context is broken"
    )
    assert "Context(timeout=...)" in text


def test_a_rank_names_its_own_wait_if_it_is_known() -> None:
    assert [waited(2, phase) for phase in (0, 1, 4, NO_STEP)] == [
        "rank 2 waited for shards or partial products of piece 0",
        "rank 2 waited for sums of piece 0",
        "rank 2 waited for shards or partial products of piece 2",
        None,
    ]

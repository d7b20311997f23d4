"""Laws of NVTX ranges: each operation is in one, they nest, and nothing is left when the context closes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

import pblas
from pblas import MatrixDescriptor
from tests.common.ranks import COMM, check_product, few, open_context, raises_on_all_ranks

P = COMM.size
pytestmark = [pytest.mark.mpi, few]


class Nvtx:
    """The functions of the package nvtx that pblas calls; it records the ranges and checks that they nest."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.all: list[tuple[str, str]] = []

    def push_range(self, message: str, color: str, domain: str, category: str) -> None:
        assert domain == "pblas"
        assert color
        self.open.append(message)
        self.all.append((category, message))

    def pop_range(self, domain: str) -> None:
        assert domain == "pblas"
        self.open.pop()


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nvtx]:
    recorded = Nvtx()
    module = SimpleNamespace(push_range=recorded.push_range, pop_range=recorded.pop_range)
    monkeypatch.setitem(sys.modules, "nvtx", module)
    monkeypatch.setenv("PBLAS_NVTX", "1")
    yield recorded
    assert recorded.open == []


@pytest.mark.parametrize("transport", ["shared", "message", "push"])
def test_gemms_copies_and_waits_are_in_ranges(nvtx: Nvtx, transport: str) -> None:
    with open_context(transport, timeout=20) as ctx:
        n = 3 * P  # each rank multiplies
        a = ctx.random(MatrixDescriptor.column_wise(n, n, P))
        b = ctx.random(MatrixDescriptor.row_wise(n, n, P), seed=1)
        nvtx.all.clear()
        with ctx.trace() as trace:  # records the same operations, inside the ranges
            d = pblas.pmatmul(a, b, out=MatrixDescriptor.row_wise(n, n, P))
        names = {message for category, message in nvtx.all if category == "gemm"}
        assert any(name.startswith("GEMM ") for name in names)
        kinds = {category for category, _ in nvtx.all}
        assert kinds >= {"gemm", "agree"}
        assert P == 1 or kinds & {"wait", "copy"}
        if ctx.rank == 0:
            assert {event.kind for event in trace.events} >= {"gemm"}
        whole = [x.to_global(None) for x in (a, b, d)]
        assert np.allclose(whole[0] @ whole[1], whole[2])
        with pytest.raises(pblas.DescriptorError):  # an error leaves no range open
            pblas.pmatmul(a, ctx.zeros((4, 4)))
        assert nvtx.open == []
        backend = ctx.runtime.backend
        assert "agree" in vars(backend)
    assert "agree" not in vars(backend)


def test_without_the_variable_nothing_is_wrapped(nvtx: Nvtx, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "0"):
        monkeypatch.setenv("PBLAS_NVTX", value)
        with pblas.Context(timeout=20) as ctx:
            check_product(ctx)
            assert "agree" not in vars(ctx.runtime.backend)
    assert nvtx.all == []


def test_a_wrong_value_or_a_missing_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PBLAS_NVTX", "yes")
    raises_on_all_ranks(pblas.ArgumentError, "PBLAS_NVTX must be 0 or 1, got 'yes'", pblas.Context)
    monkeypatch.setitem(sys.modules, "nvtx", None)
    monkeypatch.setenv("PBLAS_NVTX", "1" if COMM.rank == P - 1 else "0")
    raises_on_all_ranks(pblas.BackendError, "PBLAS_NVTX=1 needs the package nvtx: pip install nvtx", pblas.Context)
    if P > 1:
        monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace())
        raises_on_all_ranks(pblas.MismatchError, "PBLAS_NVTX differs between ranks", pblas.Context)

"""Laws of the log: silent by default, the rank in every record, and one record of each plan, fallback and file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import pblas
from pblas import MatrixDescriptor
from pblas.backends import shared_windows
from tests.common.ranks import COMM, Contexts, few, one_host

SETTINGS = ("shared", "message", "mixed", "push")
P = COMM.size
ROWS, COLUMNS = MatrixDescriptor.row_wise(9, 9, P), MatrixDescriptor.column_wise(9, 9, P)

pytestmark = [pytest.mark.mpi, few]


class Records(logging.Handler):
    """The texts of all records, each with its level."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(name)s %(rank)d|%(message)s"))
        self.texts: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append((record.levelname, self.format(record)))

    def of(self, level: str) -> list[str]:
        """The messages of a level, all of which name this rank in the field and in the text."""
        start = f"pblas {COMM.rank}|rank {COMM.rank}: "
        assert all(text.startswith(start) for _, text in self.texts)
        return [text.removeprefix(start) for name, text in self.texts if name == level]


@contextmanager
def logged(level: int) -> Iterator[Records]:
    logger, records = logging.getLogger("pblas"), Records()
    logger.addHandler(records)
    logger.setLevel(level)
    try:
        yield records
    finally:
        logger.setLevel(logging.NOTSET)
        logger.removeHandler(records)


CALLS: dict[str, tuple[Callable[[pblas.DistMatrix], object], str, str]] = {
    "product": (lambda a: a @ a, "planned product: ", "pmatmul: "),
    "redistribution": (lambda a: a.redistribute(COLUMNS), "planned redistribution: ", "redistribute: "),
    "sum of matrices": (lambda a: a + a.T, "planned elementwise operation: ", "elementwise: "),
    "norm": (lambda a: a.norm(), "planned reduction: ", "norm: "),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", CALLS)
def test_a_call_logs_its_plan_its_agreements_and_its_time(contexts: Contexts, setting: str, name: str) -> None:
    call, planned, timed = CALLS[name]
    a = contexts[setting].random(ROWS)
    contexts[setting].runtime.close_plans()
    with logged(logging.INFO) as records:
        call(a)
    plans = [text for text in records.of("INFO") if text.startswith(planned)]
    assert len(plans) == 1
    assert "9 x 9" in plans[0]
    assert "transport): " in plans[0]
    assert "\n" not in plans[0]
    assert records.of("DEBUG") == []
    with logged(logging.DEBUG) as records:
        call(a)
    assert sum(text.startswith(timed) and text.endswith(" ms") for text in records.of("DEBUG")) == 1
    assert any(text.startswith("agreement ") and text.endswith(" us") for text in records.of("DEBUG"))


def test_nothing_is_logged_by_default(ctx: pblas.Context, capfd: pytest.CaptureFixture[str]) -> None:
    with logged(logging.WARNING) as records:
        a = ctx.random(ROWS)
        (a @ a + a).norm()
    assert records.texts == []
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("pblas").handlers)
    logging.getLogger("pblas").setLevel(logging.INFO)  # but no handler
    try:
        (a @ a + a).norm()
    finally:
        logging.getLogger("pblas").setLevel(logging.NOTSET)
    assert capfd.readouterr() == ("", "")


def test_files_are_logged(ctx: pblas.Context, folder: Path) -> None:
    a, file, trace = ctx.random(ROWS), folder / "a.npy", folder / "trace.json"
    with logged(logging.INFO) as records:
        a.save(file)
        ctx.load(file, COLUMNS)
        with ctx.trace(trace):
            ctx.allreduce(np.ones(3))
    texts = records.of("INFO")
    assert sum(text.startswith(f"save: {file} is written") for text in texts) == (COMM.rank == 0)
    assert sum(text.startswith(f"load: {file} is read") for text in texts) == 1
    assert sum(text == f"trace: {trace} is written" for text in texts) == (COMM.rank == 0)
    assert sum(text.startswith("allreduce of 24 bytes: one_shot, ") for text in texts) == 1


@one_host
@pytest.mark.mpi(min_size=2)  # one rank shares no memory
def test_a_context_logs_its_backend_and_the_switch_to_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    shortage = pblas.WorkspaceError("there is no more")
    monkeypatch.setattr(shared_windows.Arena, "_shortage", lambda *_: shortage)
    with logged(logging.INFO) as records, pblas.Context(timeout=20) as ctx:
        opened = [text for text in records.of("INFO") if text.startswith("Context: backend mpi, ")]
        assert len(opened) == 1
        assert f", ranks {P}, " in opened[0]
        a = ctx.random(ROWS)
        a @ a
        switched = [text for text in records.of("INFO") if text.endswith("messages from now on")]
        assert switched == ["too little shared memory: data goes by messages from now on"]


def test_an_error_is_in_the_log_too(ctx: pblas.Context) -> None:
    a = ctx.random(ROWS)
    with logged(logging.DEBUG) as records, pytest.raises(pblas.DescriptorError):
        pblas.pmatmul(a, ctx.zeros((4, 4)))
    assert any(text.startswith("pmatmul: ") and text.endswith("ms, it raised") for text in records.of("DEBUG"))

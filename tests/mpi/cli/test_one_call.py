"""The page about one call names the functions that A @ B enters, in their order."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pblas import MatrixDescriptor
from tests.common.pages import ROOT
from tests.common.ranks import Contexts, one_host

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.ranks(2, reason="the page follows a product of two ranks that share memory"),
    one_host,
]
SETTINGS = ("shared",)
PAGE = (ROOT / "docs/architecture/one_call.md").read_text(encoding="utf-8")
AGREE = ("backends/host_ranks.py", "HostRanks.agree")


def described(heading: str) -> list[tuple[str, str]]:
    """The file and the function of each row of the table below a heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \|", section, re.MULTILINE)


def entered(call: Callable[[], object]) -> list[tuple[str, str]]:
    """The path below the repository, and the name, of each function of pblas that a call enters."""
    names: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_absolute() and ROOT in path.resolve().parents:
            names.append((str(path.resolve().relative_to(ROOT)), frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names


def test_a_product_enters_the_functions_of_the_page(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    rows = MatrixDescriptor.row_wise(48, 48, ctx.nprocs)
    A, B = ctx.random(rows, seed=1), ctx.random(rows, seed=2)
    for heading in ("The first call", "The second call"):
        rows_of_table, trace = described(heading), entered(lambda: A @ B)
        assert len(rows_of_table) > 12
        left = iter(trace)
        for row in rows_of_table:
            assert any(is_row(row, seen) for seen in left), f"{heading}: {row} is not entered after the rows before it"
        assert sum(is_row(AGREE, seen) for seen in trace) == rows_of_table.count(AGREE), heading


def is_row(row: tuple[str, str], seen: tuple[str, str]) -> bool:
    return seen[1] == row[1] and f"/{seen[0]}".endswith(f"/{row[0]}")

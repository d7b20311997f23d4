"""The pages on performance and their pictures have the figures of the files of results; all commands have deadlines."""

from __future__ import annotations

import importlib.util
import math
import shlex
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks import pages
from benchmarks.all import command, run, verdict, written
from benchmarks.results_file import RESULTS
from benchmarks.tables import CPU, GPU, Table

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("path", pages.PAGES)
def test_a_page_has_the_figures_of_the_files(path: str) -> None:
    """After new results: `python -m benchmarks.pages`."""
    text = (pages.ROOT / path).read_text(encoding="utf-8")
    assert text.count("<!-- end -->") == len(pages.BLOCK.findall(text)) > 0
    assert pages.written(path, text) == text


@pytest.mark.parametrize("where", ["CPU", "GPU"])
def test_a_picture_has_a_dot_for_each_row_of_the_files(where: str) -> None:
    """The dots of a family are in one line, and their horizontal positions are linear in log(ratio)."""
    rows = pages.families(where)
    drawn = ET.parse(pages.ROOT / f"docs/performance/ratios_{where.lower()}.svg")
    groups = {group.get("id"): list(group.iter(f"{SVG}use")) for group in drawn.iter(f"{SVG}g")}
    expected = [(math.log(pages.clipped(row.ratio or 0)), row.is_lost) for x in rows.values() for row in x]
    dots = [dot for name in rows for dot in groups[name]]
    assert len(dots) == len(expected) > 30
    for name in rows:
        assert len({dot.get("y") for dot in groups[name]}) == 1
    xs = [float(dot.get("x", "nan")) for dot in dots]
    (left, low), (right, high) = ((f(xs), f(x for x, _ in expected)) for f in (min, max))
    for x, dot, (logarithm, is_lost) in zip(xs, dots, expected, strict=True):
        assert (x - left) / (right - left) == pytest.approx((logarithm - low) / (high - low), abs=1e-3)
        assert (pages.SLOWER if is_lost else pages.FASTER) in dot.get("style", "")


def test_pages_name_all_rows_that_a_peer_wins() -> None:
    text = "".join((pages.ROOT / path).read_text(encoding="utf-8") for path in pages.PAGES)
    for where in ("CPU", "GPU"):
        for compared in pages.families(where).values():
            for row in compared:
                assert not row.is_lost or f"{row.label} ({row.ratio:.2f}, " in text


@pytest.mark.parametrize("table", [*CPU, *GPU], ids=lambda table: table.name)
def test_a_table_has_a_command_and_rows_with_different_labels(table: Table) -> None:
    program = shlex.split(table.command)[0]
    assert (pages.ROOT / program).exists() if program.endswith(".py") else importlib.util.find_spec(program)
    line = command(table, 2, Path("x.json"))
    assert ("-n" in line) == (table.ranks != 1)
    assert line[-2:] == ["--json", "x.json"]
    for gpus in (1, 2, 4, 8):
        if (RESULTS / table.file(gpus)).exists():
            labels = [row.label for row in table.rows(gpus)]
            assert len(set(labels)) == len(labels) > 0


def test_a_command_is_cut_at_its_deadline(tmp_path: Path) -> None:
    log, start = tmp_path / "log", time.monotonic()
    assert run([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"], 2.0, log) == "cut"
    assert time.monotonic() - start < 10
    assert log.read_text() == "1\n"
    assert run([sys.executable, "-c", "raise SystemExit(3)"], 10.0, log) == "exit status 3"
    assert run([sys.executable, "-c", ""], 10.0, log) == "done"


@pytest.mark.parametrize("table", [CPU[0], GPU[0]], ids=lambda table: table.name)
def test_a_command_without_a_row_is_not_credited_with_an_older_file(table: Table, tmp_path: Path) -> None:
    path = tmp_path / table.file(2)
    assert verdict(table, 2, path, written(path)) == "nothing was measured"
    path.write_text((RESULTS / table.file(2)).read_text(encoding="utf-8"), encoding="utf-8")
    assert verdict(table, 2, path, written(path)) == "nothing was measured"
    assert f"{len(table.rows(2))} rows" in verdict(table, 2, path)

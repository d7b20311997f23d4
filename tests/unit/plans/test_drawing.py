"""Pictures of plans have a bar for each rank, with the bytes of the plan."""

from pathlib import Path
from typing import Any

import pytest

import pblas
from pblas.plans import drawing


def test_bars_are_the_bytes_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    plan = pblas.plan_matmul(640, 640, 640, nprocs=5).plan
    kept: list[Any] = []
    save = figures.Figure.savefig

    def keep(figure: Any, *args: Any, **named: Any) -> None:
        kept.append(figure)
        save(figure, *args, **named)

    monkeypatch.setattr(figures.Figure, "savefig", keep)
    plan.plot(tmp_path / "a.svg")
    assert "</svg>" in (tmp_path / "a.svg").read_text()
    left, right = kept[0].axes
    mib = 1 << 20
    assert [bar.get_height() * mib for bar in left.patches] == pytest.approx(
        [plan.received_nbytes(r) for r in range(5)]
    )
    assert left.lines[0].get_ydata()[0] * mib == pytest.approx(plan.lower_bound_nbytes)
    tops = [bar.get_y() + bar.get_height() for bar in right.patches[5:]]
    assert max(tops) * mib == pytest.approx(plan.memory_nbytes)


def test_of_many_ranks_some_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = pblas.plan_matmul(4096, 4096, 4096, nprocs=1000).plan
    kept: list[Any] = []
    monkeypatch.setattr(drawing, "draw", lambda *arguments: kept.extend(arguments))
    plan.plot(tmp_path / "a.svg")
    bars: drawing.Bars = kept[2]
    assert 0 < len(bars.ranks) <= 64
    assert set(bars.ranks) <= plan.extreme_ranks()
    assert max(bars.received) <= plan.max_received_nbytes


def test_errors(tmp_path: Path) -> None:
    planned = pblas.plan_matmul(64, 64, 64, nprocs=4)
    with pytest.raises(pblas.ArgumentError, match=r"must end in \.png, \.svg, \.pdf"):
        planned.plot(tmp_path / "a.txt")
    with pytest.raises(pblas.FileFormatError, match="cannot be written"):
        planned.plot(tmp_path / "absent" / "a.png")

"""Pictures of plans: the bytes that each rank receives, and those that it holds."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pblas.errors import ArgumentError, BackendError, FileFormatError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

_FORMATS = (".png", ".svg", ".pdf")
_MANY_RANKS = 16  # their numbers are small
_MIB = 1 << 20


class Bars(NamedTuple):
    """The bytes of a plan (global)."""

    ranks: Sequence[int]
    received: Sequence[int]  # of each of these ranks
    bound: float  # lower bound on `received` of the busiest rank
    matrices: Sequence[int]  # operands and results on each of the ranks
    workspace: int  # of any rank, at most


def check(path: object) -> None:
    """Raise an error unless a picture can be drawn into this file."""
    if not isinstance(path, str | Path) or Path(path).suffix not in _FORMATS:
        raise ArgumentError(f"plot: the path must end in {', '.join(_FORMATS)}, got {path!r}")
    if find_spec("matplotlib") is None:
        raise BackendError("plot: pictures need Matplotlib, which is not installed; pip install matplotlib")


def draw(path: str | os.PathLike[str], label: str, bars: Bars) -> None:
    """Draw the bytes of a plan into a file; see `Plan.plot`."""
    check(path)
    from matplotlib.figure import Figure

    names = [str(rank) for rank in bars.ranks]
    matrices = [nbytes / _MIB for nbytes in bars.matrices]
    figure = Figure((8.0, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.bar(names, [nbytes / _MIB for nbytes in bars.received], color="#4477aa", label="received")
    left.axhline(bars.bound / _MIB, color="#cc3311", label="lower bound of any plan")
    right.bar(names, matrices, color="#228833", label="matrices")
    right.bar(names, [bars.workspace / _MIB] * len(names), bottom=matrices, color="#ccbb44", label="workspace, at most")
    for axes in (left, right):
        axes.set_xlabel("rank")
        axes.set_ylabel("MiB")
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
        axes.legend(fontsize=8, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
        axes.tick_params(labelsize=8 if len(names) <= _MANY_RANKS else 4)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(label, fontsize=9)
    try:
        figure.savefig(path, dpi=120)
    except OSError as caught:
        raise FileFormatError(f"plot: {path} cannot be written: {caught}") from caught

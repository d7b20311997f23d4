"""Pictures of matrices: the means of blocks, or where elements are not 0."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np

from pblas.errors import ArgumentError
from pblas.matrices.complete_files import checked_path, write
from pblas.matrices.scatter_gather import global_indices, holds_first_copy
from pblas.plans.drawing import check
from pblas.runtime.runtime import checked_flag

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.matrices.matrix import DistMatrix

_MOST = 128  # cells of a picture in each direction
_INCHES = 5.0


def plot(a: DistMatrix, path: object, spy: object) -> None:
    """**Collective.** Draw a matrix into a file; see `DistMatrix.plot`."""
    runtime = a.runtime
    with runtime.local_step("plot"):
        path = checked_path("plot", path)
        check(path)
        spy = checked_flag("plot", "spy", spy)
        if not a.size:
            raise ArgumentError(f"plot: the matrix is {a.shape[0]} x {a.shape[1]}; nothing to draw")
        sums = cell_sums(runtime.backend.reading(a.computed("plot")), a.desc, runtime.rank, spy=spy)
    runtime.agree("plot", {"path": path, "spy": spy, **a.signature()})
    parts = runtime.backend.gather(sums)
    with runtime.agreed_step("plot: write the file"):
        if runtime.rank == 0:
            title = f"{a.shape[0]} x {a.shape[1]} {a.dtype.name}"
            write(path, picture(np.sum(parts, axis=0), a.shape, title, path.rpartition(".")[2], spy=spy))


def bounds(size: int) -> Array:
    """The first index of each cell along a dimension, and its size.

    >>> bounds(3).tolist(), bounds(1000)[:3].tolist()
    ([0, 1, 2, 3], [0, 7, 15])
    """
    ncells = min(size, _MOST)
    return np.arange(ncells + 1) * size // max(1, ncells)


def cell_sums(local: Array, desc: MatrixDescriptor, rank: int, *, spy: bool) -> Array:
    """This rank's part of the sums of the elements in each cell, or of the numbers of those that are not 0 (local)."""
    edges = [bounds(size) for size in desc.shape]
    sums = np.zeros([len(x) - 1 for x in edges])
    if not local.size or not holds_first_copy(desc, rank):
        return sums
    chosen, starts = [], []
    for first, indices in zip(edges, global_indices(desc, rank), strict=True):
        cells, places = np.unique(np.searchsorted(first, indices, "right") - 1, return_index=True)
        chosen.append(cells)
        starts.append(places)
    values = local != 0 if spy else abs(local) if local.dtype.kind == "c" else local
    lines = np.add.reduceat(values, starts[1], axis=1, dtype=np.float64)
    sums[np.ix_(*chosen)] = np.add.reduceat(lines, starts[0], axis=0)
    return sums


def picture(sums: Array, shape: tuple[int, int], title: str, form: str, *, spy: bool) -> bytes:
    """Draw the means of the cells."""
    from matplotlib.figure import Figure

    (m, n), (rows, columns) = shape, (np.diff(bounds(size)) for size in shape)
    means = sums / np.outer(rows, columns)
    largest = float(np.nanmax(abs(means), initial=0)) or 1.0
    signed = bool((means < 0).any())
    figure = Figure((_INCHES * min(1.0, n / max(1, m)) + 1.2, _INCHES * min(1.0, m / max(1, n)) + 0.8), layout="tight")
    axes = figure.subplots()
    colours = "Greys" if spy else "RdBu_r" if signed else "viridis"
    image = axes.imshow(
        *(means, colours), vmin=-largest if signed else 0, vmax=largest, extent=(0, n, m, 0), interpolation="nearest"
    )
    figure.colorbar(image, label="share of elements that are not 0" if spy else "mean of a block")
    axes.set_title(title, fontsize=9)
    drawn = BytesIO()
    figure.savefig(drawn, format=form, dpi=120)
    return drawn.getvalue()

"""One-dimensional layouts by name: row, column, replicated, row:64, column:64."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Literal

from pblas.layouts import MatrixDescriptor

Kind = Literal["row", "column", "replicated"]
HELP = "row, column, replicated, or in cyclic blocks: row:64, column:64"


@dataclass(frozen=True, slots=True)
class Named:
    """A layout that fits a matrix of any size on any number of ranks.

    >>> Named("row", 2).descriptor(6, 3, 2).global_ranges(0)[0]
    [(0, 2), (4, 6)]
    """

    kind: Kind
    block: int | None = None

    def descriptor(self, m: int, n: int, nprocs: int) -> MatrixDescriptor:
        """The layout of an m x n matrix on nprocs ranks."""
        if self.kind == "replicated":
            return MatrixDescriptor.replicated(m, n, nprocs)
        if self.kind == "row":
            return MatrixDescriptor.row_wise(m, n, nprocs, mb=self.block)
        return MatrixDescriptor.column_wise(m, n, nprocs, nb=self.block)


def named(text: str) -> Named:
    """The layout that an argument names.

    >>> named("column:64")
    Named(kind='column', block=64)
    """
    kind, colon, block = text.partition(":")
    if (kind not in {"row", "column"} and text != "replicated") or (colon and not (block.isdecimal() and int(block))):
        raise argparse.ArgumentTypeError(f"expected {HELP}; got {text!r}")
    return Named(kind, int(block) if colon else None)  # type: ignore[arg-type]

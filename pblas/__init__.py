"""Distributed dense linear algebra: block-cyclic matrices over process grids, and pmatmul."""

from __future__ import annotations

__version__ = "0.1.0"

"""PBLAS levels 1, 2 and 3 on distributed matrices, with the names of BLAS."""

from __future__ import annotations

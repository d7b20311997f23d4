"""Factorizations and solvers of distributed matrices, with the names of NumPy, SciPy and the array API."""

from __future__ import annotations

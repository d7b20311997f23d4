"""Factorizations and solvers of distributed matrices, with the names of NumPy, SciPy and the array API."""

from __future__ import annotations

from pblas.operations.solve_triangular import solve_triangular as solve_triangular

"""Factorizations, solvers and what is computed with factors."""

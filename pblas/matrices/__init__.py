"""Matrices over the ranks of a context."""

"""Elementwise expressions, reductions, stacking and assignment."""

"""Triangular products and solves."""

"""Levels 1 and 2: vectors, and products of matrices with vectors."""

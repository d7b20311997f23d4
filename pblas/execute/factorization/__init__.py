"""Executors of factorizations and of solves with their factors."""

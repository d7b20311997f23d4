"""Benchmarks; each prints a table and can write JSON."""

"""Collectives of plain arrays."""

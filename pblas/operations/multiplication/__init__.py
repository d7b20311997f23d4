"""Planned products, for each transport."""

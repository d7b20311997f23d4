"""Planned products: their base class, and two kinds, pushed and synchronized."""

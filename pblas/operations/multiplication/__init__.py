"""Planned products: what they have in common, and the two ways in which ranks start one together."""

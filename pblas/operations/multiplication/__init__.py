"""Planned products: what they have in common, and their two kinds: pushed, and synchronized by agreements."""

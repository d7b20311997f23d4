"""Executors of collectives on plain arrays, and the reduction that products share."""

"""Plans: what a collective operation will move and compute, as values; integers only, the same on every rank."""

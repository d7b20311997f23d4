"""Chooses a plan from descriptors, sizes and rates. Pure: the same integers give the same plan on every rank."""

"""Predicts time, bytes and memory of a plan on described hardware, for any number of ranks, without running it."""

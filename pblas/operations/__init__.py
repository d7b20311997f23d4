"""Collective operations on matrices. Planned operations share the execution protocol of `planned`."""

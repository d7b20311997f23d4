"""Collective operations on matrices. Each checks its arguments on all ranks, plans, and executes."""

"""Shared state of the matrices of one context: ranks, memory, cached plans, and whether the context is open."""

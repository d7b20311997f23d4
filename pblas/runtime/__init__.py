"""Shared state of the matrices of one context: ranks, memory, kept plans, and whether the context is alive."""

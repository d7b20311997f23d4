"""Executors of plans whose ranks write into their peers' workspaces."""

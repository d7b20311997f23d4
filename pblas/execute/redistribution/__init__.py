"""Executors of redistributions: packing, messages, assembly."""

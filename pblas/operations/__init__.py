"""Collective operations on matrices; all that are planned share one course of events, which `planned` has."""

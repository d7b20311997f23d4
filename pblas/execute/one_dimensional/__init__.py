"""Executors of products whose matrices are split along one dimension."""

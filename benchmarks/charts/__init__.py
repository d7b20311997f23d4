"""Charts of benchmark results."""

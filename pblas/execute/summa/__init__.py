"""Executors of SUMMA, one for each stationary matrix."""

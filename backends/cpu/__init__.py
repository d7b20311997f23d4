"""Local work on CPUs: arrays, BLAS, elementwise expressions, threads."""

"""CuPy arrays on GPUs, and messages between them: all that needs no NVSHMEM."""

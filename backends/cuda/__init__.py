"""CuPy arrays on GPUs, their products, and messages between GPUs by MPI; nothing here needs NVSHMEM."""

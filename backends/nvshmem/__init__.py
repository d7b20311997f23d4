"""NVSHMEM: symmetric memory, kernels and graphs; importing this package alone imports no library."""

"""NVSHMEM: the only place that imports CuPy and the GPU libraries; importing this package alone imports none."""

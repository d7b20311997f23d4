"""CUDA C++ that all kernels share, and how kernels are compiled, loaded and launched."""

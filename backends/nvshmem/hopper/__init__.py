"""The GEMM kernel for Hopper whose tiles wait for, send and add data."""

"""The GEMM kernel for Hopper. Its tiles wait for operands, add peers' terms, and signal stored parts."""

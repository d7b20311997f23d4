"""Planned products: `base` for shared memory and messages, `pushed` for GPUs that write into each other's memory."""

"""Products of GPUs that write into each other's memory."""

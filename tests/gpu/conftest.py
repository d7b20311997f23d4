"""Tests of the GPU backend, left out where CuPy or a GPU is missing."""

import os
from importlib.util import find_spec

# One hardware queue for each stream of a test: kernels that wait for each other must not stand behind each other.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def has_gpu() -> bool:
    if find_spec("cupy") is None:
        return False
    import cupy

    return bool(cupy.cuda.is_available())


collect_ignore_glob = [] if has_gpu() else ["*.py"]

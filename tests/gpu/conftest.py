"""Tests of the GPU backend, left out where CuPy or a GPU is missing."""

import os
import sys
from importlib.util import find_spec

import pytest


def is_alone() -> bool:
    """Whether this process is the only rank; without `--with-mpi` MPI is not even imported."""
    if "--with-mpi" not in sys.argv:
        return True
    from mpi4py import MPI

    return bool(MPI.COMM_WORLD.size == 1)


# In test_kernels.py ranks are streams of one GPU: kernels that wait for each other must not be queued in the same
# of the 8 hardware queues that a process has by default. Jobs of several ranks keep the default number of queues.
if is_alone():
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "ignore:PBLAS_SHARE_GPU=1 is for tests:pblas.errors.PblasWarning")


def has_gpu() -> bool:
    if find_spec("cupy") is None:
        return False
    import cupy

    return bool(cupy.cuda.is_available())


collect_ignore_glob = [] if has_gpu() else ["*.py"]

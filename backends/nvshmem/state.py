"""What this rank has for GPUs, found without a context on any of them."""

from __future__ import annotations

import os
from importlib.util import find_spec

import cupy

from pblas.backends.opening import ABSENT, READY, UNFIT

_MODULES = ("nvshmem",)
_INSUFFICIENT_DRIVER = 35  # cudaErrorInsufficientDriver, which CuPy does not export


def gpu_state() -> tuple[int, str]:
    """ABSENT, UNFIT or READY, and what is missing with the remedy (local)."""
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        driver = runtime.driverGetVersion()
        if driver == 0:
            return ABSENT, "no NVIDIA driver is loaded; install one, or use backend='mpi'"
        if error.status == _INSUFFICIENT_DRIVER:
            needed = _version(runtime.runtimeGetVersion())
            return UNFIT, f"the driver serves CUDA {_version(driver)}, CuPy needs {needed}; update the driver"
        count = 0
    if count == 0:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        set_to = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
        return ABSENT, f"no GPU is visible{set_to}; start the rank where there is one, or use backend='mpi'"
    for name in _MODULES:
        if find_spec(name) is None:
            return UNFIT, f"No module named {name!r}. pip install 'pblas[cuda13]', or 'pblas[cuda12]'"
    return READY, ""


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"

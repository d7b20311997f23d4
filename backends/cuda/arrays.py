"""The device on this rank's GPU: CuPy's arrays, multiplied by cuBLASLt."""

from __future__ import annotations

from pblas.backends.cuda.copies import DeviceCopies
from pblas.backends.cuda.factorizations import DeviceFactorizations
from pblas.backends.cuda.products import DeviceProducts


class DeviceArrays(DeviceCopies, DeviceProducts, DeviceFactorizations):
    """CuPy arrays on this thread's current GPU; `pblas.backends.device` documents the methods."""

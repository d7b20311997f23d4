"""The device on a GPU fulfils the contract of `pblas.backends.device`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cupy
import numpy as np
import pytest

from pblas.backends.cuda import transfer
from pblas.backends.cuda.arrays import DeviceArrays
from tests.common.device_contract import (  # noqa: F401 - pytest runs the imported tests on this device
    On,
    test_a_method_is_what_numpy_says,
    test_every_method_has_a_case_and_is_there_or_declared_to_be_lacking,
)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], order: Any) -> Any:
    nbytes = dtype.itemsize * max(int(np.prod(shape)), 1)
    return transfer.new_array(shape, dtype, cupy.cuda.alloc(nbytes), order=order)


def read(x: Any) -> Any:
    cupy.cuda.runtime.deviceSynchronize()
    return transfer.words(x).get().view(x.dtype)


@pytest.fixture(scope="module")
def device() -> Iterator[DeviceArrays]:
    arrays = DeviceArrays()
    yield arrays
    arrays.close()


@pytest.fixture
def on(device: DeviceArrays) -> On:
    return On(device, DeviceArrays, empty, device.upload, read)

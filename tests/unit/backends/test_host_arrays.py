"""The device in host memory fulfils the contract of `pblas.backends.device`."""

from __future__ import annotations

import numpy as np
import pytest

from pblas.backends.cpu.arrays import HostArrays
from tests.common.device_contract import (  # noqa: F401 - pytest runs the imported tests on this device
    On,
    test_a_method_is_what_numpy_says,
    test_every_method_has_a_case_and_is_there_or_declared_to_be_lacking,
)


@pytest.fixture
def on() -> On:
    return On(
        HostArrays(),
        HostArrays,
        lambda shape, dtype, order: np.full(shape, -99, dtype, order),
        lambda host, x: np.copyto(x, host),
        lambda x: np.array(x, order="K"),
    )

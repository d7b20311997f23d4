"""Random numbers: their distribution, and bits that no later version may change."""

import numpy as np
import pytest
from scipy.special import ndtri

from pblas.backends.cpu import random
from pblas.backends.dtypes import STORED
from tests.common.gauge import Array


def bits_of(probabilities: Array) -> Array:
    """The 52 bits from which a number of the normal distribution is made, as the high bits of a word."""
    words: Array = (probabilities * 2.0**52).astype(np.uint64) << np.uint64(12)
    return words


def test_normal_numbers_are_the_quantiles_of_the_distribution() -> None:
    ends = np.concatenate([np.arange(1, 2000) * 2.0**-52, np.geomspace(2.0**-50, 0.5, 20000), [0.075, 0.5, 0.925]])
    bits = bits_of(np.concatenate([ends, 1 - ends]))
    probabilities = ((bits >> np.uint64(12)).astype(np.float64) * 2 + 1) * 2.0**-53
    expected = ndtri(probabilities)
    assert np.all(np.abs(random._normal(bits, np.dtype(np.float64)) - expected) <= 2e-15 * np.abs(expected))


def test_the_numbers_of_a_seed_stay_as_they_are() -> None:
    i, j = np.array([[0], [1 << 40]]), np.array([[0, 12345]])
    uniform = random.entries(i, j, 7, np.dtype(np.float64))
    normal = random.entries(i, j, -7, np.dtype(np.complex128), normal=True)
    assert [x.hex() for x in uniform.ravel()] == UNIFORM
    assert [x.hex() for x in normal.view(np.float64).ravel()] == NORMAL


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_any_strides_have_the_numbers_of_their_places(dtype: np.dtype[np.generic]) -> None:
    rows, columns = np.arange(300) * 7, np.arange(250)[::-1]
    expected = random.entries(rows[:, None], columns[None], 3, dtype, normal=True)
    for x in (np.zeros((300, 250), dtype), np.zeros((250, 300), dtype).T, np.zeros((600, 500), dtype)[::2, 1::2]):
        random.fill(x, rows, columns, 3, normal=True)
        assert np.array_equal(x, expected)
    uniform = random.entries(rows[:, None], columns[None], 3, dtype).astype(np.complex128)
    assert np.all(uniform.real < 1)
    assert np.all(uniform.real >= -1)


UNIFORM = ["0x1.e9956dcb8a530p-4", "0x1.1116fcfb9cdb4p-2", "0x1.87d0932e659b8p-3", "0x1.6cdd24b86b940p-6"]
NORMAL = [
    "-0x1.d3fe3f0a67e44p-1",
    "-0x1.9d2b588171d09p-6",
    "0x1.78c52d5789c8ap-1",
    "0x1.146fadbe9ac14p-1",
    "-0x1.cb852d260754bp-1",
    "-0x1.39c5201967240p+0",
    "-0x1.45705311f3790p-1",
    "-0x1.dd5509b0a23a1p+0",
]

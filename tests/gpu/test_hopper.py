"""Laws of the Hopper kernel on one GPU: any order, size and variant, the same bits every time; parts that arrive late.

A rank's copies and flags are made by a stream beside the kernel, which is its own peer.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.gauge import THRESHOLD, Array, dtype_of, entries, gauge

cupy = pytest.importorskip("cupy")
pytest.importorskip("cuda.core")

if not cupy.cuda.is_available() or cupy.cuda.Device().compute_capability != "90":
    pytest.skip("no Hopper GPU", allow_module_level=True)

from cuda.bindings import driver  # noqa: E402

from pblas.backends.cuda.problem import read  # noqa: E402
from pblas.backends.nvshmem.hopper import Hopper, Part, supports  # noqa: E402
from pblas.backends.nvshmem.kernels import ABORTED, LATE, RECORD, Watch  # noqa: E402

pytestmark = pytest.mark.gpu

POISON = -99
LINE = 8  # elements to which leading dimensions are rounded up: 16 bytes
SIZES = ((8, 8, 1), (8, 16, 9), (16, 520, 64), (136, 264, 65), (600, 72, 200), (296, 520, 133))
SCALARS = ((1.0, 0.0), (-1.0, 1.0), (0.75, -0.5))
SECOND = 10**9


class Stored:
    """A matrix in poisoned device memory, in an order, its lines padded so that TMA can read them."""

    def __init__(self, x: Array, order: str = "C", padding: int = 0) -> None:
        lines, length = x.shape if order == "C" else x.shape[::-1]
        self._ld = -(-length // LINE) * LINE + padding
        self._order, self._shape = order, x.shape
        self._host = np.full((lines + 1, self._ld), POISON, x.dtype)
        self._view(self._host)[...] = x
        self._memory = cupy.asarray(self._host.view(np.uint16))
        strides = (2 * self._ld, 2) if order == "C" else (2, 2 * self._ld)
        self.array = cupy.ndarray(x.shape, x.dtype, self._memory.data, strides=strides)

    def _view(self, host: Array) -> Array:
        rows, columns = self._shape
        return host[:rows, :columns] if self._order == "C" else host[:columns, :rows].T

    def found(self) -> Array:
        """The elements as they are now; what lies around them is checked."""
        cupy.cuda.runtime.deviceSynchronize()
        host = self._memory.get().view(self._host.dtype)
        values: Array = self._view(host).copy()
        around, before = host.copy(), self._host.copy()
        self._view(around)[...] = self._view(before)[...] = 0
        assert np.array_equal(around.view(np.uint16), before.view(np.uint16)), "memory around the matrix was touched"
        return values


@pytest.fixture(scope="module")
def hopper() -> Hopper:
    return Hopper()


@pytest.fixture
def stream() -> Any:
    return cupy.cuda.Stream(non_blocking=True)


@pytest.fixture
def record() -> Array:
    memory = cupy.cuda.alloc_pinned_memory(RECORD.itemsize)
    found: Array = np.frombuffer(memory, RECORD, 1)
    found[0] = 0
    return found


def check_product(
    hopper: Hopper, stream: Any, case: tuple[int, int, int], orders: str, name: str, scalars: tuple[float, float]
) -> None:
    m, n, k = case
    alpha, beta = scalars
    dtype = dtype_of(name)
    x, y, z = entries((m, k), dtype, 1), entries((k, n), dtype, 2), entries((m, n), dtype, 3)
    if beta == 0:
        z = np.full_like(z, np.nan)
    x_, y_, z_ = (Stored(w, order, padding) for w, order, padding in zip((x, y, z), orders, (8, 0, 16), strict=True))
    assert supports(read(x_.array, y_.array, z_.array).problem)
    cupy.cuda.runtime.deviceSynchronize()
    hopper.matmul(stream.ptr, alpha, [Part(x_.array, y_.array, z_.array)], beta)
    found = z_.found()
    assert gauge(found, x, y, z, alpha=alpha, beta=beta) <= THRESHOLD
    assert np.array_equal(x_.found(), x)
    assert np.array_equal(y_.found(), y)


@pytest.mark.parametrize("case", SIZES)
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_product_in_every_order(hopper: Hopper, stream: Any, name: str, case: tuple[int, int, int]) -> None:
    for orders, scalars in zip(itertools.product("CF", repeat=3), itertools.cycle(SCALARS), strict=False):
        check_product(hopper, stream, case, "".join(orders), name, scalars)


@pytest.mark.parametrize(("m", "n"), [(5000, 3000), (4096, 1792), (16896, 256)])
def test_every_width_and_the_same_bits_every_time(hopper: Hopper, stream: Any, m: int, n: int) -> None:
    rng = np.random.default_rng(0)
    k = 520
    x, y = (cupy.asarray(rng.standard_normal(size), cupy.float16) for size in ((m, k), (k, n)))
    exact = x.astype(cupy.float32) @ y.astype(cupy.float32)
    found = [cupy.full((m, n), cupy.nan, cupy.float16) for _ in range(5)]
    cupy.cuda.runtime.deviceSynchronize()
    for z in found:
        hopper.matmul(stream.ptr, 1.0, [Part(x, y, z)], 0.0)
    stream.synchronize()
    # An element's error is at most half a unit in its last place, and float32's in a sum of k terms.
    assert float(cupy.abs(found[0] - exact).max() / cupy.abs(exact).max()) < 2.0**-11 + k * 2.0**-24
    assert all((z.view(cupy.uint16) == found[0].view(cupy.uint16)).all() for z in found)


class Parts:
    """Z in parts whose X, all but that of the first, a peer has yet to bring."""

    def __init__(self, count: int, rows: int, n: int, k: int) -> None:
        rng = np.random.default_rng(count)
        memory = cupy.cuda.alloc_pinned_memory(2 * count * rows * k)
        self.x: Array = np.frombuffer(memory, np.float16, count * rows * k).reshape(count, rows, k)
        self.x[...] = rng.standard_normal(self.x.shape)
        self.arriving = cupy.full(self.x.shape, cupy.nan, cupy.float16)
        self.arriving[0] = cupy.asarray(self.x[0])
        self.y = cupy.asarray(rng.standard_normal((k, n)), cupy.float16)
        self.z = cupy.full((count, rows, n), cupy.nan, cupy.float16)
        self.flags = cupy.zeros(count, cupy.uint32)
        self.parts = [
            Part(self.arriving[i], self.y, self.z[i], self.flags[i].data.ptr if i else 0, i) for i in range(count)
        ]
        cupy.cuda.runtime.deviceSynchronize()

    def bring(self, stream: Any, part: int) -> None:
        """Copy a part's X from the host, which copy engines do, then set its flag: no SM may be free."""
        x, target = self.x[part], self.arriving[part]
        cupy.cuda.runtime.memcpyAsync(
            target.data.ptr, x.ctypes.data, x.nbytes, cupy.cuda.runtime.memcpyHostToDevice, stream.ptr
        )
        (status,) = driver.cuStreamWriteValue32(stream.ptr, self.flags[part].data.ptr, 1, 0)
        assert not int(status)

    def check(self) -> None:
        exact = cupy.asarray(self.x).astype(cupy.float32) @ self.y.astype(cupy.float32)
        assert float(cupy.abs(self.z - exact).max() / cupy.abs(exact).max()) < 2.0**-10
        assert not self.flags.any()


@pytest.mark.parametrize(("count", "rows"), [(2, 8), (4, 1000), (8, 512)])
def test_parts_are_waited_for(hopper: Hopper, stream: Any, count: int, rows: int) -> None:
    watch = Watch(20 * SECOND)
    beside = cupy.cuda.Stream(non_blocking=True)
    for order in ("before", "after", "after"):
        parts = Parts(count, rows, 1104, 336 if rows == 8 else 520)
        if order == "before":
            for part in range(1, count):
                parts.bring(beside, part)
            beside.synchronize()
        hopper.matmul(stream.ptr, 1.0, parts.parts, 0.0, watch=watch)
        if order == "after":
            for part in range(1, count):
                parts.bring(beside, part)
        stream.synchronize()
        parts.check()


def test_what_tma_cannot_address_is_known() -> None:
    def problem(m: int, n: int, k: int, offset: int = 0) -> Any:
        memory = cupy.zeros(4096, cupy.float16)
        x = memory[offset : offset + m * k].reshape(m, k)
        return read(x, cupy.zeros((n, k), cupy.float16).T, cupy.zeros((m, 24), cupy.float16)[:, :n]).problem

    assert supports(problem(9, 8, 16))
    assert not supports(problem(9, 8, 15))
    assert not supports(problem(9, 7, 16))
    assert not supports(problem(9, 8, 16, offset=4))
    single = [cupy.zeros((8, 8), cupy.float32) for _ in range(3)]
    assert not supports(read(*single).problem)


def test_a_part_that_does_not_come_ends_the_kernel(hopper: Hopper, stream: Any, record: Array) -> None:
    # The last test here: a kernel that fails takes the context with it.
    parts = Parts(4, 1000, 1104, 520)
    beside = cupy.cuda.Stream(non_blocking=True)
    parts.bring(beside, 1)
    beside.synchronize()
    abort = cupy.zeros(1, cupy.uint32)
    for code in (LATE, ABORTED):
        timeout = SECOND // 4 if code == LATE else 20 * SECOND
        watch = Watch(timeout, abort.data.ptr, record.ctypes.data)
        abort[0] = code == ABORTED
        record[0] = 0
        cupy.cuda.runtime.deviceSynchronize()
        hopper.matmul(stream.ptr, 1.0, parts.parts, 0.0, watch=watch)
        stream.synchronize()
        assert record["code"][0] == code
        assert record["rank"][0] in ((2, 3) if code == LATE else (1, 2, 3))  # the flag of 1 is 0 again
    parts = Parts(4, 1000, 1104, 520)  # the next product is none the worse
    for part in range(1, 4):
        parts.bring(beside, part)
    beside.synchronize()
    hopper.matmul(stream.ptr, 1.0, parts.parts, 0.0, watch=Watch(20 * SECOND))
    stream.synchronize()
    parts.check()

"""Choice of a rank's GPU: queries of the GPUs, and decisions on their results.

Only the queries import CuPy, so the decisions can be tested without a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from itertools import combinations

from pblas.backends.gpu_info import INSTALL, Gpu, Platform, uuid_text, version_text
from pblas.errors import BackendError

_INSUFFICIENT_DRIVER = 35  # cudaErrorInsufficientDriver, which CuPy does not export


# Queries


def probe() -> Platform:
    """Query the GPUs and libraries of this rank, without a context on any GPU (local)."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        import cupy
    except Exception as error:  # noqa: BLE001 - with a broken CUDA, CuPy raises any exception
        return Platform(lack=_one_line(error) or "cupy cannot be imported", visible=visible)
    runtime, status, count = cupy.cuda.runtime, 0, 0
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        status = int(error.status)
    lack = "" if find_spec("nvshmem") else "No module named 'nvshmem'"
    driver, needed = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    return Platform(cupy.__version__, lack, driver, needed, status, count, visible)


def choose_device(
    node_rank: int, device: int | None = None, platform: Platform | None = None, *, messages: bool = False
) -> Gpu:
    """The GPU of a rank (local)."""
    probed = probe() if platform is None else platform
    error = problem(probed, device, messages=messages)
    if error is None:
        chosen = query(device_index(node_rank, probed.count, device))
        error = None if messages else unfit(chosen)
        if error is None:
            return chosen
    raise error


def query(index: int) -> Gpu:
    """Query one GPU, after `problem` has returned None (local)."""
    import cupy
    from cuda.bindings import driver

    driver.cuInit(0)
    _, handle = driver.cuDeviceGet(index)
    _, uuid = driver.cuDeviceGetUuid(handle)  # CuPy's properties end a UUID at its first zero byte

    def has(name: str) -> bool:
        attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
        return attribute is not None and driver.cuDeviceGetAttribute(attribute, handle)[1] == 1

    runtime = cupy.cuda.runtime
    p = runtime.getDeviceProperties(index)
    return Gpu(
        index=index,
        name=p["name"].decode(),
        uuid=uuid_text(uuid.bytes),
        compute_capability=(p["major"], p["minor"]),
        memory_nbytes=p["totalGlobalMem"],
        multiprocessors=p["multiProcessorCount"],
        driver=runtime.driverGetVersion(),
        runtime=runtime.runtimeGetVersion(),
        # 32-bit operations need no attribute since CUDA 11.7; drivers without them lack 64-bit operations too.
        stream_memops=has("CAN_USE_64_BIT_STREAM_MEM_OPS"),
        virtual_memory=has("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"),
        rdma_virtual_memory=has("GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED"),
    )


def activate(device: Gpu) -> None:
    """Make a GPU the current one of this thread (local)."""
    import cupy

    try:
        cupy.cuda.Device(device.index).use()
        cupy.cuda.runtime.memGetInfo()  # creates the context, which fails for an unusable GPU
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise BackendError(
            f"GPU {device.index} ({device.name}) cannot be used: {_one_line(error)}; nvidia-smi shows what runs on it, "
            f"device= chooses another"
        ) from None


def free_nbytes() -> int:
    """Free memory of the current GPU (local)."""
    import cupy

    free, _ = cupy.cuda.runtime.memGetInfo()
    return int(free)


def can_access(a: int, b: int) -> bool:
    """Whether GPU a reads and writes the memory of GPU b (local)."""
    import cupy

    return bool(cupy.cuda.runtime.deviceCanAccessPeer(a, b))


# Decisions


def device_index(node_rank: int, count: int, device: int | None = None) -> int:
    """Number of a rank's GPU.

    >>> [device_index(node_rank, 4) for node_rank in (0, 3, 5)], device_index(5, 4, device=2)
    ([0, 3, 1], 2)
    """
    return node_rank % count if device is None else device


def problem(platform: Platform, device: int | None = None, *, messages: bool = False) -> BackendError | None:
    """The error, with the remedy, if a rank cannot use GPUs; else None.

    >>> print(problem(Platform("14.2.0", driver=12080, runtime=13000, status=35)))
    the driver serves CUDA 12.8, CuPy 14.2.0 needs 13.0; update the driver, or install CuPy for CUDA 12
    """
    if not platform.cupy:
        return BackendError(f"{platform.lack}. {INSTALL}")
    if platform.driver == 0:
        return BackendError("no NVIDIA driver is loaded; install one, or use backend='mpi'")
    if platform.status == _INSUFFICIENT_DRIVER or platform.driver // 1000 < platform.runtime // 1000:
        return BackendError(
            f"the driver serves CUDA {version_text(platform.driver)}, CuPy {platform.cupy} needs "
            f"{version_text(platform.runtime)}; update the driver, or install CuPy for CUDA {platform.driver // 1000}"
        )
    if platform.count == 0:
        set_to = "" if platform.visible is None else f" (CUDA_VISIBLE_DEVICES={platform.visible!r})"
        return BackendError(f"no GPU is visible{set_to}; start the rank where there is one, or use backend='mpi'")
    if device is not None and not 0 <= device < platform.count:
        return BackendError(f"device must be one of the visible GPUs, 0..{platform.count - 1}, got {device}")
    if platform.lack and not messages:
        return BackendError(f"{platform.lack}. {INSTALL}")
    return None


def unfit(device: Gpu) -> BackendError | None:
    """The error if a GPU is unsuitable, else None."""
    if not device.stream_memops:
        return BackendError(
            f"GPU {device.index} ({device.name}) has no stream memory operations under this driver, which signals "
            f"between ranks need; update the driver (CUDA {version_text(device.driver)}), or use backend='mpi'"
        )
    return None


def peers(count: int, can_access: Callable[[int, int], bool] = can_access) -> list[tuple[int, int]]:
    """All pairs (a, b), a < b, of GPUs that can both read and write the memory of the other.

    >>> peers(3, lambda a, b: {a, b} != {0, 2})
    [(0, 1), (1, 2)]
    """
    return [(a, b) for a, b in combinations(range(count), 2) if can_access(a, b) and can_access(b, a)]


def _one_line(error: object) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")

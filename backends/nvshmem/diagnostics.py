"""Diagnostics of GPUs for `pblas info`. They start nothing and raise nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

from pblas import errors
from pblas.backends.cuda import device as gpu
from pblas.backends.gpu_info import Diagnostics, Platform
from pblas.backends.nvshmem.settings import symmetric_nbytes

_LIBRARIES = (  # name, alternative packages
    ("nvshmem4py", ("nvshmem4py-cu13", "nvshmem4py-cu12")),
    ("nvmath-python", ("nvmath-python",)),
    ("cuda-bindings", ("cuda-bindings",)),
    ("cuda-core", ("cuda-core",)),
)


def find(node_rank: int) -> Diagnostics:
    """GPUs and libraries of a rank (local)."""
    try:
        return _find(node_rank)
    except errors.PblasError as error:
        return Diagnostics(problem=str(error))
    except Exception as error:  # noqa: BLE001 - a broken driver or library raises any exception; info shows it
        return Diagnostics(problem=f"the GPUs cannot be queried: {type(error).__name__}: {error}")


def _find(node_rank: int) -> Diagnostics:
    platform = gpu.probe()
    problem = gpu.problem(platform)
    if problem is not None and not platform.count:
        return Diagnostics(problem=str(problem), versions=_versions(platform))
    devices = tuple(gpu.query(index) for index in range(platform.count))
    mine = devices[gpu.device_index(node_rank, platform.count)]
    problem = problem or gpu.unfit(mine)
    return Diagnostics(
        problem=str(problem or ""),
        devices=devices,
        mine=mine.index,
        peers=tuple(gpu.peers(platform.count)),
        versions=_versions(platform),
        symmetric_nbytes=symmetric_nbytes(),
        grows=mine.virtual_memory and mine.rdma_virtual_memory,
        lacking=lacking(),
    )


def lacking() -> tuple[str, ...]:
    """CUDA libraries without which products and kernels fail, and which cannot be loaded (local)."""
    return tuple(name for name, ask in (("cuBLASLt", _cublaslt_version), ("NVRTC", _nvrtc_version)) if not _asked(ask))


def _versions(platform: Platform) -> tuple[tuple[str, str], ...]:
    versions_found: dict[str, str | None] = {
        "CuPy": platform.cupy,
        "NVSHMEM": _asked(_nvshmem_version),
        "cuBLASLt": _asked(_cublaslt_version),
        "NVRTC": _asked(_nvrtc_version),
        "NCCL": _asked(_nccl_version),
    }
    for name, packages in _LIBRARIES:
        versions_found[name] = next(filter(None, (_asked(partial(version, package)) for package in packages)), None)
    return tuple((name, text) for name, text in versions_found.items() if text)


def _asked(library: Callable[[], object]) -> str | None:
    """The version that a library reports; None if it is absent or reports none."""
    try:
        return str(library())
    except Exception:  # noqa: BLE001 - a library that is absent or broken has no version
        return None


def _nvshmem_version() -> Any:
    from nvshmem.core import get_version

    return get_version().libnvshmem_version


def _cublaslt_version() -> str:
    from nvmath.bindings import cublasLt

    number = cublasLt.get_version()  # 130100 is 13.1.0, 120803 was 12.8.3
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _nvrtc_version() -> str:
    from cupy_backends.cuda.libs import nvrtc

    return ".".join(map(str, nvrtc.getVersion()))


def _nccl_version() -> str:
    from cupy.cuda import nccl

    number = nccl.get_version()  # 22809 is 2.28.9
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

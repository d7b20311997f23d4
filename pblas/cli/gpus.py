"""The GPU part of `info`: the GPUs, their ranks, and missing packages."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec

from pblas.backends.gpu_info import (
    DEFAULT_QUEUES,
    INSTALL,
    QUEUES_VARIABLE,
    Diagnostics,
    Gpu,
    hardware_queues,
    shared_device_error,
    short_uuid,
    version_text,
)
from pblas.config import bytes_text

_NEEDED_FOR = {"cuBLASLt": "which products need", "NVRTC": "which compiles kernels"}
_UUID_DIGITS = 12  # of 32: as many as a float64 holds exactly


def absent() -> tuple[str, str]:
    """(line about GPUs, missing package) if CuPy is not installed; the second is "" if there is no GPU."""
    count = driver_count()
    if not count:
        return "none found, CuPy is not installed; matrices are multiplied on CPUs", ""
    missing = f"CuPy, to multiply on GPUs: {INSTALL}"
    return f"{count} found, CuPy is not installed; matrices are multiplied on CPUs", missing


def has_cupy() -> bool:
    """Whether CuPy is installed; it is not imported."""
    return find_spec("cupy") is not None


def driver_count() -> int:
    """Number of GPUs that the driver lists."""
    if not shutil.which("nvidia-smi"):
        return 0
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return listed.stdout.count("GPU ") if listed.returncode == 0 else 0


def number(diagnostics: Diagnostics) -> float:
    """This rank's GPU as a number, which can be sent in a matrix: the first digits of its UUID; -1 for no GPU.

    >>> from pblas.backends.gpu_info import Diagnostics
    >>> number(Diagnostics())
    -1.0
    """
    return _number(diagnostics.devices[diagnostics.mine]) if diagnostics.mine >= 0 else -1.0


def _number(device: Gpu) -> float:
    digits = device.uuid.removeprefix("GPU-").replace("-", "")
    return float(int(digits[:_UUID_DIGITS], 16))


def uuid_of(number: float) -> str:
    """The start of a UUID from its number.

    >>> uuid_of(float(0x12AB34CD0123))
    'GPU-12ab34cd-0123'
    """
    digits = f"{int(number):0{_UUID_DIGITS}x}"
    return f"GPU-{digits[:8]}-{digits[8:]}"


def rows(diagnostics: Diagnostics, numbers: Sequence[float]) -> dict[str, str]:
    """Lines of the table, about the GPUs that rank 0 sees."""
    if not diagnostics.devices:
        return {"GPUs": diagnostics.problem}
    users: dict[str, list[int]] = {}
    for rank, value in enumerate(numbers):
        users.setdefault(uuid_of(value) if value >= 0 else "", []).append(rank)
    lines = []
    for device in diagnostics.devices:
        memory, capability = bytes_text(device.memory_nbytes), ".".join(map(str, device.compute_capability))
        text = f"{device.index}: {device.name}, {memory}, compute capability {capability}"
        ranks = users.pop(uuid_of(_number(device)), [])
        lines.append(f"{text}, {short_uuid(device.uuid)}, {_ranks(ranks)}")
    lines += [f"elsewhere: {short_uuid(uuid)}, {_ranks(ranks)}" for uuid, ranks in users.items() if uuid]
    if "" in users:
        lines.append(f"without a GPU: {_ranks(users[''])}")
    first = diagnostics.devices[0]
    growth = (
        "grows for contexts over all ranks" if diagnostics.grows else "does not grow: this driver maps no memory for it"
    )
    table = {
        "GPUs": "\n".join(lines),
        "GPU peers": _pairs(len(diagnostics.devices), diagnostics.peers),
        "CUDA": f"driver for {version_text(first.driver)}, runtime {version_text(first.runtime)}",
        "GPU libraries": ", ".join(f"{name} {version}" for name, version in diagnostics.versions),
    }
    if diagnostics.symmetric_nbytes:
        size = f"{bytes_text(diagnostics.symmetric_nbytes)} on every GPU"
        table["symmetric memory"] = f"{size}; it {growth}. PBLAS_SYMMETRIC_SIZE sets it, or init_nvshmem(nbytes=...)"
    if diagnostics.messages:
        table["messages without NVSHMEM"] = diagnostics.messages
    queues = hardware_queues()
    if queues > DEFAULT_QUEUES:
        text = f"{queues}: graphs of many products were 1.4 times as slow with 32; unset {QUEUES_VARIABLE}"
        table["hardware queues"] = text
    return table


def missing(diagnostics: Diagnostics, numbers: Sequence[float]) -> list[str]:
    """The reasons why GPUs cannot be used, each with its remedy."""
    if not diagnostics.devices:
        return [diagnostics.problem] if driver_count() else []
    lines = [diagnostics.problem] if diagnostics.problem else []
    cuda = diagnostics.devices[0].runtime // 1000
    lines += [f"{name}, {_NEEDED_FOR[name]}: pip install 'cupy-cuda{cuda}x[ctk]'" for name in diagnostics.lacking]
    shared = shared_device_error([(rank, "the job", uuid_of(x)) for rank, x in enumerate(numbers) if x >= 0])
    if shared is not None:
        lines.append(str(shared))
    without = [rank for rank, value in enumerate(numbers) if value < 0]
    if without:
        lines.append(
            f"GPUs for {_ranks(without)}: all ranks would multiply on CPUs; pass Context() the ranks that have a GPU"
        )
    reached = set(diagnostics.peers)
    count = len(diagnostics.devices)
    apart = [(a, b) for a in range(count) for b in range(a + 1, count) if (a, b) not in reached]
    if apart:
        a, b = apart[0]
        lines.append(
            f"GPUs {a} and {b} do not reach each other's memory: a context over both sends messages; "
            f"nvidia-smi topo -m shows how they are connected"
        )
    return lines


def _ranks(ranks: Sequence[int]) -> str:
    if not ranks:
        return "no rank"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 16:
        return f"{len(ranks)} ranks from {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"


def _pairs(count: int, pairs: Sequence[tuple[int, int]]) -> str:
    if count == 1:
        return "one GPU"
    if len(pairs) == count * (count - 1) // 2:
        return f"all {count} GPUs, pairwise"
    return ", ".join(f"{a}-{b}" for a, b in pairs) or "none"

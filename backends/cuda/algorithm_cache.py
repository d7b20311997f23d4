"""Tuned GEMM algorithms as plain data, for messages between ranks and for files.

An algorithm is 64 opaque bytes, valid for one version of cuBLASLt on one kind of GPU. The name of the file holds both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pblas.backends.cache_file import Cache
from pblas.backends.cuda.gemm_problem import Problem

ALGORITHM_NBYTES = 64


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest measured algorithm of a problem.

    Args:
        algorithm: cublasLtMatmulAlgo_t, 64 bytes.
        seconds: its time.
        default_seconds: time of the algorithm without tuning.
    """

    algorithm: bytes
    seconds: float
    default_seconds: float


class Choices(Cache[Problem, Choice]):
    """The choices for one kind of GPU, with the file $XDG_CACHE_HOME/pblas/gemm-...json.

    Args:
        gpu: name of the GPU.
        sms: number of its multiprocessors.
        version: version of cuBLASLt.
        workspace_nbytes: bytes of workspace that an algorithm may use.
    """

    def __init__(self, gpu: str, sms: int, version: int, workspace_nbytes: int) -> None:
        names = "gemm", gpu, f"{sms}sms", f"cublaslt{version}", str(workspace_nbytes)
        super().__init__(names, "tuned products", 2, _entry, _plain)


def _plain(problem: Problem, choice: Choice) -> dict[str, Any]:
    return {
        "problem": problem.plain(),
        "algorithm": choice.algorithm.hex(),
        "seconds": choice.seconds,
        "default_seconds": choice.default_seconds,
    }


def _entry(plain: dict[str, Any]) -> tuple[Problem, Choice]:
    """The inverse of `_plain`; raises TypeError, KeyError or ValueError for any other value."""
    problem, algorithm = Problem(**plain["problem"]), bytes.fromhex(plain["algorithm"])
    for name, value in problem.plain().items():
        if type(value) is not _types()[name]:
            raise TypeError(f"{name} of a tuned problem is {value!r}, not of type {_types()[name].__name__}")
    if len(algorithm) != ALGORITHM_NBYTES:
        raise ValueError(f"an algorithm has {ALGORITHM_NBYTES} bytes, not {len(algorithm)}")
    return problem, Choice(algorithm, float(plain["seconds"]), float(plain["default_seconds"]))


def _types() -> dict[str, type]:
    """Type of each field of a problem."""
    text, flag = {"transa", "transb", "dtype", "dtype_b", "dtype_z"}, {"tf32", "fast_accumulate"}
    return {name: str if name in text else bool if name in flag else int for name in Problem.__slots__}

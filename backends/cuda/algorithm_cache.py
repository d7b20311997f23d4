"""GEMM algorithms that tuning has chosen: plain data that ranks can agree on and files can keep.

An algorithm is 64 opaque bytes that are good for one version of cuBLASLt on one kind of GPU, so both are in the name of
the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pblas.backends.cache_file import Cache
from pblas.backends.cuda.gemm_problem import Problem

ALGORITHM_NBYTES = 64


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest algorithm found for a problem.

    Args:
        algorithm: cublasLtMatmulAlgo_t, 64 bytes.
        seconds: its time.
        default_seconds: time of the algorithm that would have been taken without tuning.
    """

    algorithm: bytes
    seconds: float
    default_seconds: float


class Choices(Cache[Problem, Choice]):
    """The choices for one kind of GPU, with the file $XDG_CACHE_HOME/pblas/gemm-...json.

    Args:
        gpu: its name.
        sms: its multiprocessors.
        version: of cuBLASLt.
        workspace_nbytes: what an algorithm may use.
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
    """The way back from `_plain`; raises TypeError, KeyError or ValueError if it was not made by it."""
    problem, algorithm = Problem(**plain["problem"]), bytes.fromhex(plain["algorithm"])
    for name, value in problem.plain().items():
        if type(value) is not _types()[name]:
            raise TypeError(f"{name} of a tuned problem is {value!r}, not of type {_types()[name].__name__}")
    if len(algorithm) != ALGORITHM_NBYTES:
        raise ValueError(f"an algorithm has {ALGORITHM_NBYTES} bytes, not {len(algorithm)}")
    return problem, Choice(algorithm, float(plain["seconds"]), float(plain["default_seconds"]))


def _types() -> dict[str, type]:
    """Type of each field of a problem."""
    text, flag = {"transa", "transb", "dtype", "dtype_z"}, {"tf32"}
    return {name: str if name in text else bool if name in flag else int for name in Problem.__slots__}

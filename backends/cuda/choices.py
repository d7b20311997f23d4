"""Algorithms that tuning has chosen: plain data that ranks can agree on, and a store on disk.

An algorithm is 64 opaque bytes that are good for one version of cuBLASLt on one kind of GPU, so both are in the name of
the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pblas.backends import store
from pblas.backends.cuda.problem import Problem

if TYPE_CHECKING:
    from pathlib import Path

ALGORITHM_NBYTES = 64
_FORMAT = 2
_WHAT = "tuned products"


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest algorithm found for a problem.

    Args:
        problem: what it multiplies.
        algorithm: cublasLtMatmulAlgo_t, 64 bytes.
        seconds: its time.
        default_seconds: time of the algorithm that would have been taken without tuning.
    """

    problem: Problem
    algorithm: bytes
    seconds: float
    default_seconds: float

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "problem": self.problem.plain(),
            "algorithm": self.algorithm.hex(),
            "seconds": self.seconds,
            "default_seconds": self.default_seconds,
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Choice:
        """The way back from `plain`.

        Raises:
            TypeError, KeyError, ValueError: it was not made by `plain`.
        """
        problem, algorithm = Problem(**plain["problem"]), bytes.fromhex(plain["algorithm"])
        for name, value in problem.plain().items():
            if type(value) is not _types()[name]:
                raise TypeError(f"{name} of a tuned problem is {value!r}, not of type {_types()[name].__name__}")
        if len(algorithm) != ALGORITHM_NBYTES:
            raise ValueError(f"an algorithm has {ALGORITHM_NBYTES} bytes, not {len(algorithm)}")
        return cls(problem, algorithm, float(plain["seconds"]), float(plain["default_seconds"]))


def _types() -> dict[str, type]:
    """Type of each field of a problem."""
    text, flag = {"transa", "transb", "dtype", "dtype_z"}, {"tf32"}
    return {name: str if name in text else bool if name in flag else int for name in Problem.__slots__}


def store_path(gpu: str, sms: int, version: int, workspace_nbytes: int) -> Path | None:
    """File of the choices for one kind of GPU: $XDG_CACHE_HOME/pblas/gemm-...json; None where users have no home.

    Args:
        gpu: its name.
        sms: its multiprocessors.
        version: of cuBLASLt.
        workspace_nbytes: what an algorithm may use.
    """
    return store.store_path("gemm", gpu, f"{sms}sms", f"cublaslt{version}", str(workspace_nbytes))


def load(path: Path | None) -> list[Choice]:
    """What the file holds; nothing, with a warning, if it is corrupt."""
    return store.load(path, _WHAT, _FORMAT, Choice.from_plain)


def save(path: Path | None, choices: list[Choice]) -> None:
    """Add choices to the file, replacing those for the same problems; readers see the old file or the new one."""
    merged = {choice.problem: choice for choice in (*load(path), *choices)}
    store.save(path, _WHAT, _FORMAT, (choice.plain() for choice in merged.values()))

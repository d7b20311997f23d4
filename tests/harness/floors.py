"""Prints the oldest versions that pyproject.toml allows of what pblas needs, as constraints for pip.

python tests/harness/floors.py >constraints.txt
"""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("cli", "hdf5", "run")
"""Extras whose packages pblas imports on CPUs. MPI itself may be any."""


def floors() -> list[str]:
    """A constraint for each package: `numpy>=2.0` becomes `numpy==2.0`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in EXTRAS)]
    return [requirement.partition(",")[0].replace(">=", "==") for each in lists for requirement in each]


if __name__ == "__main__":
    print(*floors(), sep="\n")

"""The environment of jobs that a test starts."""

from __future__ import annotations

import os


def outside() -> dict[str, str]:
    """The environment without what a launcher of this very process has put there."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI_", "HYDRA"))}

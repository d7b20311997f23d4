"""CUDA C++ as one text: NVRTC needs no include path."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent
"""Of the files that all kernels may include."""


def expanded(path: Path) -> str:
    """CUDA C++ with the files that it includes in their places: those beside it, or in `FOLDER`."""

    def included(match: re.Match[str]) -> str:
        beside = path.parent / match[1]
        return expanded(beside if beside.exists() else FOLDER / match[1])

    return re.sub(r'^#include "(.*)"$', included, path.read_text(), flags=re.MULTILINE)

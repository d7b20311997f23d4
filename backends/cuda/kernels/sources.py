"""CUDA C++ with expanded includes: NVRTC needs no include path."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent
"""Folder of the files that all kernels may include."""


def expanded(path: Path) -> str:
    """CUDA C++ with its includes expanded: files of the same folder, or of `FOLDER`."""

    def included(match: re.Match[str]) -> str:
        beside = path.parent / match[1]
        return expanded(beside if beside.exists() else FOLDER / match[1])

    return re.sub(r'^#include "(.*)"$', included, path.read_text(), flags=re.MULTILINE)

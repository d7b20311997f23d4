"""CUDA C++ of the kernel, with the files that it includes, as one text."""

from __future__ import annotations

from pathlib import Path

from pblas.backends.cuda.kernels.sources import expanded


def source() -> str:
    """The text that NVRTC compiles; its macros are `compile.Variant.macros`."""
    return expanded(Path(__file__).with_name("gemm.cu"))

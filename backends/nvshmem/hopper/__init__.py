"""The GEMM kernel for Hopper: its source, and the machine code that NVRTC makes of it; cuda.core caches it on disk.

Its tiles wait for operands, add peers' terms, and signal stored parts. The name of a file in the cache is a hash of
source, options and compiler. Files are renamed into place once written, so ranks may start together. If the folder
cannot be written, each process compiles its kernels.
"""

from __future__ import annotations

import warnings
from pathlib import Path

from pblas.backends.cuda.kernels import expanded
from pblas.errors import BackendError, PblasWarning


def source() -> str:
    """The text that NVRTC compiles; its macros are `compile.Variant.macros`."""
    return expanded(Path(__file__).with_name("gemm.cu"))


_ARCHITECTURE = "sm_90a"


def machine_code(text: str, macros: list[tuple[str, str]], *, anew: bool = False) -> bytes:
    """The machine code of a source, from the cache if possible (local)."""
    try:
        from cuda.core import Program, ProgramOptions
        from cuda.core.utils import FileStreamProgramCache, make_program_cache_key
    except ImportError as caught:
        raise BackendError(
            f"a kernel cannot be compiled for {_ARCHITECTURE}: {caught}. pip install 'cuda-core>=1.2'"
        ) from None

    options = ProgramOptions(arch=_ARCHITECTURE, std="c++17", define_macro=macros)

    def compiled(cache: object = None) -> bytes:
        try:
            code: bytes = Program(text, "c++", options).compile("cubin", cache=cache).code
        except OSError:
            raise
        except Exception as caught:  # noqa: BLE001 - cuda.core's own; the other ranks must not wait
            raise BackendError(f"a kernel cannot be compiled for {_ARCHITECTURE}: {caught}") from None
        return code

    try:
        with FileStreamProgramCache() as cache:
            if anew:
                key = make_program_cache_key(code=text, code_type="c++", options=options, target_type="cubin")
                cache[key] = compiled()
            return compiled(cache)
    except OSError as caught:
        warnings.warn(
            f"compiled kernels are not kept, so that every process spends seconds on its own: {caught}; set "
            f"XDG_CACHE_HOME to a folder that can be written",
            PblasWarning,
            stacklevel=2,
        )
        return compiled()

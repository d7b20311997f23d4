"""Writes machine code of kernels for Hopper, which a wheel brings: their first calls then compile nothing.

    python -m pblas.backends.nvshmem.cubins

cuda.core's NVRTC makes it, without a GPU. A wheel that is built without the folder works as well, and so does one whose
folder is of another version: then NVRTC compiles at the first call. Only those expressions are in it that the package's
own calls evaluate, and no variants that few calls use; each takes NVRTC a tenth of a second.
"""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from pblas.backends.cuda import level2, pointwise, random, reductions, strided_copy
from pblas.backends.cuda.lapack import INVERTED, MOST_INVERTED, DtypeKernels, inversion
from pblas.backends.cuda.programs import CUBINS, INDEX, STANDARD, Program
from pblas.backends.nvshmem.kernels import sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

CAPABILITY = 9, 0
_REAL, _COMPLEX = "fd", "FD"
_BANDS = {"f": 64, "d": 64, "F": 64, "D": 32}  # widths in `pblas.spectral.choose`


def programs() -> Iterator[Program]:
    """The programs that the wheel brings."""
    yield from strided_copy.programs()
    for file in sources.FILES:
        yield Program(sources.source(file))
    for letter in _REAL + _COMPLEX:
        band = {"BAND": _BANDS[letter]}
        sizes = product((INVERTED, MOST_INVERTED // 2, MOST_INVERTED), (False, True))
        blocks = [inversion(rows, by_columns=by_columns) for rows, by_columns in sizes]
        yield from DtypeKernels("invert").programs(letter, *blocks).values()
        for kernels in (
            *(DtypeKernels("lapack"), DtypeKernels("reflectors")),
            *(DtypeKernels("chase", **band), DtypeKernels("sweeps", **band)),
        ):
            yield from kernels.programs(letter).values()
        dtype = np.dtype(letter)
        yield Program(random.source(dtype))
        yield Program(level2.source(dtype, dtype))
        yield from reductions.programs(dtype)
        yield from pointwise.programs(dtype)
    for letter in _REAL:
        yield from DtypeKernels("bisect").programs(letter).values()
        yield from DtypeKernels("merge").programs(letter).values()
    yield from DtypeKernels("chains").programs("d").values()
    yield from DtypeKernels("split").programs("f").values()


def write(folder: Path, programs: Iterable[Program]) -> None:
    """Write the machine code of programs, and the index."""
    from cuda.bindings import nvrtc
    from cuda.core import Program as Source
    from cuda.core import ProgramOptions

    def compiled(program: Program) -> list[str]:
        options = ProgramOptions(
            arch=f"sm_{''.join(map(str, CAPABILITY))}",
            std=STANDARD,
            ftz=True,  # this and the next as CuPy
            device_as_default_execution_space=True,
        )
        code = Source(program.code, "c++", options).compile("cubin", name_expressions=program.instances)
        (folder / f"{program.key}.cubin").write_bytes(code.code)
        return [code.symbol_mapping[name].decode() for name in program.instances]

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    every = {program.key: program for program in programs}
    with ThreadPoolExecutor() as threads:
        symbols = dict(zip(every, threads.map(compiled, every.values()), strict=True))
    _, *version = nvrtc.nvrtcVersion()
    index = {"capability": CAPABILITY, "nvrtc": version, "programs": symbols}
    (folder / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
    nbytes = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {len(every)} programs, {nbytes / 1e6:.1f} MB, by NVRTC {'.'.join(map(str, version))}")


if __name__ == "__main__":
    write(CUBINS, programs())

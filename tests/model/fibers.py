"""The kernels of collectives on CPUs: their CUDA C++, with a few lines of PTX translated, behind fibers.h."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pblas.backends.cuda.kernels import Arguments
from pblas.backends.nvshmem.kernels.arguments import STRUCTS, all_reduce_arguments

COMPILER = shutil.which("g++")
THREADS = 64  # of a CTA
_HEADER = Path(__file__).with_name("fibers.h")
_LOOK, _POST = "fibers::look_at(at, x);", "fibers::post_to(at, x);"
_TRANSLATIONS = {
    'asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));': "wide = bits_of<_Float16>(x.bits);",
    'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));': "y.bits = bits_of<half_word>(_Float16(x));",
    'asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));': "y.bits = to_bfloat16(x);",
    'asm("add.rn.f32 %0, %0, %1;" : "+f"(x) : "f"(y));': "x = x + y;",
    'asm("mul.rn.f32 %0, %0, %1;" : "+f"(x) : "f"(y));': "x = x * y;",
    'asm("neg.f32 %0, %0;" : "+f"(x));': "x = -x;",
    'asm("cvt.rn.f32.f64 %0, %1;" : "=f"(y) : "d"(x));': "y = static_cast<float>(x);",
    'asm("cvt.f64.f32 %0, %1;" : "=d"(y) : "f"(x));': "y = static_cast<double>(x);",
    'asm("cvt.rni.u32.f32 %0, %1;" : "=r"(y) : "f"(x));': "y = static_cast<word>(std::nearbyint(x));",
    'asm("div.rn.f32 %0, %0, %1;" : "+f"(x) : "f"(y));': "x = x / y;",
    'asm("div.full.f32 %0, %0, %1;" : "+f"(x) : "f"(y));': "x = x / y;",
    'asm("sqrt.rn.f32 %0, %0;" : "+f"(x));': "x = std::sqrt(x);",
    'asm("sqrt.approx.f32 %0, %0;" : "+f"(x));': "x = std::sqrt(x);",
    'asm("ex2.approx.f32 %0, %0;" : "+f"(x));': "x = std::exp2(x);",
    'asm("rcp.approx.f32 %0, %0;" : "+f"(x));': "x = 1 / x;",
    'asm("abs.f32 %0, %0;" : "+f"(x));': "x = std::fabs(x);",
    'asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));': "x = x > y || x != x ? x : y;",
    'asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));': "x = x < y || x != x ? x : y;",
    'asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");': (
        "value = __atomic_load_n(flag, __ATOMIC_ACQUIRE); fibers::pause();"
    ),
    'asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");': (
        "__atomic_store_n(flag, value, __ATOMIC_RELEASE);"
    ),
    'asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");': (
        "__atomic_store_n(flag, value, __ATOMIC_RELAXED);"
    ),
    'asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "l"(at));': _LOOK,
    'asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"'
    ' : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(at));': _LOOK,
    'asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(x[0]), "=l"(x[1]) : "l"(at));': _LOOK,
    'asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(x[0]), "r"(x[1]));': _POST,
    'asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(a), "r"(b), "r"(c), "r"(d));': (
        _POST
    ),
    'asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(x[0]), "l"(x[1]));': _POST,
    'asm volatile("prefetch.global.L2 [%0];" ::"l"(address));': "",
    "__builtin_assume(__isGlobal(x));": "",
    'asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));': "time = clock_ns();",
}


@lru_cache
def _library(text: str) -> ctypes.CDLL:
    """A library of C++, compiled once for all tests."""
    with TemporaryDirectory() as folder:
        source, library = Path(folder, "kernels.cpp"), Path(folder, "kernels.so")
        source.write_text(text)
        command = ["g++", "-std=c++17", "-O0", "-fno-strict-aliasing", "-ffp-contract=off", "-w", "-shared", "-fPIC"]
        done = subprocess.run([*command, "-o", library, source], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return ctypes.CDLL(str(library))


class Kernels:
    """Kernels of all_reduce.cuh, compiled for this machine.

    Args:
        code: CUDA C++.
        names: of the kernels in it.
        arguments: struct of the kernels' arguments.
    """

    def __init__(self, code: str, names: list[str], arguments: str = "AllReduceArguments") -> None:
        for ptx, translation in _TRANSLATIONS.items():
            code = code.replace(ptx, translation)
        assert "asm" not in re.sub(r"#if __CUDA_ARCH__.*?#endif", "", code, flags=re.DOTALL), (
            "PTX that is not translated"
        )
        code = re.sub(r"constexpr int THREADS = \d+", f"constexpr int THREADS = {THREADS}", code)
        code = code.replace("CHUNK = 4096", "CHUNK = 512").replace("DIRECT = (512 << 10)", "DIRECT = 3000")
        entries = "".join(
            f'extern "C" void launch_{name}(const {arguments}* a, unsigned ctas) '
            f"{{ launch(ctas, {THREADS}, [=] {{ {name}(*a); }}); }}\n"
            for name in names
        )
        self._library = _library(f'#include "{_HEADER}"\n{code}\n{entries}')

    def run(self, name: str, ctas: int, **arguments: Any) -> None:
        """Run a kernel on the calling thread, with the arguments of `all_reduce_arguments`."""
        self.start(name, ctas, *all_reduce_arguments(**arguments))

    def start(self, name: str, ctas: int, scalars: tuple[float, ...], tables: tuple[Sequence[int], ...]) -> None:
        """The same with the scalars and tables of its struct."""
        arguments = Arguments(STRUCTS["all_reduce"])
        arguments.fill(scalars, tables)
        pointer = ctypes.cast(arguments.address, ctypes.POINTER(ctypes.c_void_p))
        getattr(self._library, f"launch_{name}")(ctypes.c_void_p(pointer[0]), ctypes.c_uint(ctas))

    def start_words(self, name: str, ctas: int, words: Sequence[int]) -> None:
        """Run a kernel whose struct of arguments is 64-bit words; the words after the given ones are 0."""
        memory = (ctypes.c_int64 * 64)(*words)
        getattr(self._library, f"launch_{name}")(ctypes.byref(memory), ctypes.c_uint(ctas))

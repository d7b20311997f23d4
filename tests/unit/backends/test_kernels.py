"""CUDA C++ of the GPU backend, compiled if nvcc is present, and its Python side, which needs no GPU."""

import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pblas.backends.cuda import pointwise
from pblas.backends.cuda.kernels import Arguments
from pblas.backends.dtypes import accumulator_dtype
from pblas.backends.nvshmem.kernels import ReductionEpilogue
from pblas.backends.nvshmem.kernels.arguments import (
    MAX_CTAS,
    MAX_PARTS,
    MAX_RANKS,
    PART_ALIGNMENT,
    RECORD,
    STRUCTS,
    Block,
    pulling_ctas,
    sending_ctas,
)
from pblas.backends.nvshmem.kernels.sources import ALWAYS, FILES, KINDS, source
from pblas.epilogues import parse
from pblas.plans.partition import flat_share
from pblas.runtime.runtime import checked_dtype

NVCC = shutil.which("nvcc")
FILE_OF = dict.fromkeys(("barrier", "wait", "delay"), "signals") | {
    "sum": "sum_float32",
    "all_reduce": "all_reduce_float32",
}

UNOPTIMIZED = "-arch=compute_90", "-ptx", "-Xcicc", "-O0"
"""The fastest way to see that code compiles."""

needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc is not on PATH")


def compiled(path: Path, *options: str) -> str:
    """The compiler's output; a warning is an error."""
    assert NVCC is not None
    command = [NVCC, "-std=c++17", "-Werror", "all-warnings", *options]
    done = subprocess.run([*command, path], cwd=path.parent, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def architectures(file: str) -> tuple[int, ...]:
    """Hopper's, and for what every context compiles and one dtype of the others an older one."""
    return (80, 90) if file in ALWAYS or file.endswith("_float16") else (90,)


@lru_cache
def built(file: str) -> tuple[str, str]:
    """The compiler's output for a kernel file, and its PTX for Hopper.

    As NVRTC compiles it for CuPy: subnormal numbers flushed, products and sums fused, if it may. Once for all tests,
    with the laws by which both sides lay arguments out alike.
    """
    laws = [law for family in STRUCTS if FILE_OF.get(family, family) == file for law in laws_of(family)]
    lines = ["#include <cstddef>", source(file), *(f'static_assert({law}, "{law}");' for law in laws)]
    targets = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in architectures(file)]
    with TemporaryDirectory() as folder:
        path = Path(folder, f"{file}.cu")
        path.write_text("\n".join(lines))
        kept = ["--keep", f"--keep-dir={folder}", "-o", str(path.with_suffix(".fatbin"))]
        report = compiled(path, "-ftz=true", "-fmad=true", *targets, "-fatbin", "-Xptxas", "-v", *kept)
        return report, next(
            text for path in Path(folder).glob("*.ptx") if ".target sm_90" in (text := path.read_text())
        )


def ptx(file: str) -> str:
    return built(file)[1]


def laws_of(family: str) -> list[str]:
    """Static assertions that C++ has the argument struct that Python writes for a family of kernels."""
    layout = STRUCTS[family]
    assert RECORD.fields is not None
    laws = [f"sizeof({layout.name}) == {layout.nbytes}", f"sizeof(Record) == {RECORD.itemsize}"]
    laws += [f"offsetof({layout.name}, {field}) == {offset}" for field, offset in layout.offsets.items()]
    return laws + [f"offsetof(Record, {field}) == {place[1]}" for field, place in RECORD.fields.items()]


@needs_nvcc
@pytest.mark.parametrize("file", FILES)
def test_compiles_without_spills_and_with_the_structs_of_python(file: str) -> None:
    report, _ = built(file)
    functions = re.findall(r"Compiling entry function '(\w+)' for 'sm_(\d+)'", report)
    assert sorted(functions) == sorted((name, str(number)) for name in FILES[file] for number in architectures(file))
    assert set(re.findall(r"(\d+) bytes (?:stack frame|spill stores|spill loads)", report)) == {"0"}


@needs_nvcc
@pytest.mark.parametrize("file", ["push", *(file for file in FILES if file.startswith("all_reduce"))])
def test_loads_of_peers_data_bypass_the_read_only_cache(file: str) -> None:
    assert "st.release.sys.global" in ptx(file)
    assert ".nc." not in ptx(file)


@needs_nvcc
@pytest.mark.parametrize("file", ["elementwise", *(file for file in FILES if file.startswith(("sum", "all_reduce")))])
def test_arithmetic_is_that_of_cpus(file: str) -> None:
    instructions = re.findall(r"^\s*(?:add|sub|mul|fma|mad|neg|cvt)\.[\w.]*\b(?:bf16|f16|f32|f64)\b", ptx(file), re.M)
    assert instructions
    assert not [name for name in instructions if "ftz" in name or "fma" in name or "mad" in name]
    assert not [name for name in instructions if name.lstrip().startswith(("add", "sub", "mul")) and ".rn" not in name]


REAL = "relu(x * s + where(a > 0, gelu(a), -silu(b))) ** b - erf(x) / log(a) ** 2 + gelu_tanh(b) % a // floor(b)"
COMPLEX = "exp(x * s) + log(a) / sqrt(x) ** 2 - tanh(b) ** rsqrt(x) * where(sin(x) == cos(a), tan(b), x)"


@needs_nvcc
@pytest.mark.parametrize(("name", "text", "op"), [("bfloat16", REAL, "max"), ("complex64", COMPLEX, "prod")])
def test_expressions_compile(name: str, text: str, op: str, tmp_path: Path) -> None:
    """Each function, and operands of every kind: alone, and as the epilogue of reductions and sums."""
    dtype, tree = checked_dtype("test", name), parse(text)
    dtypes = (None, dtype, accumulator_dtype(dtype))
    weight = None if dtype.kind == "c" else dtype
    product = ReductionEpilogue("sum", tree, dtypes, wire=accumulator_dtype(dtype), scaled=True)
    for number, code in enumerate((
        pointwise.source(tree, dtypes, dtype, accumulator_dtype(dtype)),
        ReductionEpilogue(op, tree, dtypes, weight).source(dtype),
        *(product.source(dtype, family) for family in (KINDS if weight else ("sum",))),
    )):  # fmt: skip
        path = tmp_path / f"{number}.cu"
        path.write_text(code)
        compiled(path, *UNOPTIMIZED, "-o", str(tmp_path / "ptx"))
        assert "#include" not in code


OPERATIONS = {
    "x * s + o0": ("float32", ("float64", None), "float64", "float64"),
    "conj(x) * o0 - o1": ("complex64", ("float16", "complex128"), "complex128", "complex128"),
    "abs(x) ** 2 + real(o0) / imag(o1)": ("float32", ("complex64", "float32"), "complex64", "float32"),
    "maximum(x, o0) - where(o1 > 0, x, 0.5)": ("bfloat16", ("float32", "bfloat16"), "float32", "bfloat16"),
    "x + sqrt(o0)": ("float64", (None,), "float64", "float16"),
    "isnan(x) + isfinite(o0) * where(x != o0, 1, 0)": ("complex64", ("complex128",), "complex128", "float64"),
    "x - o0": ("float32", ("float32",), "float32", "complex128"),
}
"""Dtypes of x, of the other operands (None for a number), of the computation and of the result, by expression."""


@needs_nvcc
@pytest.mark.parametrize("text", OPERATIONS)
def test_expressions_of_mixed_dtypes_compile(text: str, tmp_path: Path) -> None:
    x, others, compute, out = OPERATIONS[text]
    first, result, computed = (checked_dtype("test", name) for name in (x, out, compute))
    dtypes = [None if name is None else checked_dtype("test", name) for name in others]
    code = pointwise.source(parse(text, parts=True), dtypes, first, result, computed)
    path = tmp_path / "operation.cu"
    path.write_text(code)
    compiled(path, *UNOPTIMIZED, "-o", str(tmp_path / "ptx"))
    assert "#include" not in code


def test_every_family_is_compiled_in_a_file() -> None:
    assert {FILE_OF.get(family, family) for family in STRUCTS} <= set(FILES)


def test_python_and_cuda_have_the_same_constants() -> None:
    texts = {file: source(file) for file in FILES}
    assert f"enum {{ MAX_RANKS = {MAX_RANKS} }};" in texts["signals"]
    assert f"constexpr int MAX_PARTS = {MAX_PARTS};" in texts["sum_float32"]
    assert f"constexpr int MAX_CTAS = {MAX_CTAS};" in texts["all_reduce_float32"]


@pytest.mark.parametrize("file", FILES)
def test_sources_include_nothing(file: str) -> None:
    # NVRTC finds no headers on a machine without a CUDA toolkit.
    assert "#include" not in source(file)
    assert "multimem" not in source(file)


@pytest.mark.parametrize("family", STRUCTS)
def test_arguments_are_written_in_place(family: str) -> None:
    layout = STRUCTS[family]
    arguments = Arguments(layout)
    scalars = tuple(range(1, 1 + len(layout.scalars.split())))
    tables = tuple(list(range(length)) for length in layout.tables.values())
    address = arguments.address
    arguments.fill(scalars, tables)
    assert arguments.address == address
    assert len(arguments._memory.raw) == layout.nbytes
    for table, length in layout.tables.items():
        offset = layout.offsets[table]
        last = arguments._memory.raw[offset + 8 * length - 8 : offset + 8 * length]
        assert int.from_bytes(last, "little") == length - 1


@pytest.mark.parametrize("nranks", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1000, 70001])
def test_shards_of_an_all_reduce_cover_all_elements(count: int, nranks: int) -> None:
    shares = [flat_share(count, owner, nranks) for owner in range(nranks)]
    assert [start for start, _ in shares] + [count] == [0] + [stop for _, stop in shares]
    assert all(start <= stop for start, stop in shares)
    assert all(start % PART_ALIGNMENT == 0 for start, _ in shares if start < count)


def test_a_kernel_has_between_one_cta_and_the_number_of_flags() -> None:
    for log in range(40):
        for nbytes in (2**log - 1, 2**log):
            assert 1 <= sending_ctas(nbytes) <= MAX_CTAS
            assert 1 <= pulling_ctas(nbytes) <= MAX_CTAS


def test_contiguous_lines_become_one_line() -> None:
    assert Block(1, 2, 6, 3, 4, 6, 6).flat() == Block(1, 2, 24, 3)
    assert Block(1, 2, 6, 3, 4, 8, 6).flat() == Block(1, 2, 6, 3, 4, 8, 6)
    assert Block(1, 2, 6, 3, 1, 8, 9).flat() == Block(1, 2, 6, 3, 1, 8, 9)

"""The Hopper kernel, compiled if nvcc is present, and its tables of tiles, which need no GPU."""

import itertools
import re
import shutil
import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pblas.backends.cuda import pointwise
from pblas.backends.cuda.kernels import prefer_shared_memory
from pblas.backends.engine_limits import LINE, ROWS, WIDTH, Shape, choose_shape, is_side_by_side
from pblas.backends.nvshmem.hopper import source as hopper_source
from pblas.backends.nvshmem.hopper.tile_scheduler import (
    CLUSTER,
    COSTS,
    HEIGHT,
    MAP_NBYTES,
    PART,
    PARTS_AT,
    SCALARS,
    SHARED_NBYTES,
    STRIPE,
    TERM,
    TERMS_NBYTES,
    THREADS,
    Tile,
    cover,
    tiles_of_ctas,
)
from pblas.backends.nvshmem.kernels import COPY_THREADS
from pblas.backends.nvshmem.kernels.sources import source
from pblas.epilogues import operand_names, parse
from pblas.errors import BackendError
from tests.common.gauge import BFLOAT16
from tests.model.hopper_mutants import MUTANTS, mutated

NVCC = shutil.which("nvcc")
FIELDS = "tiles count steps alpha beta counters store_interval watch.abort watch.record watch.timeout watch.step"
FIELDS += " piece_steps sums"
PART_FIELDS, TERM_FIELDS = "flag source signal tiles side_by_side rows columns first_row first_column", "flag source"
PART_FIELDS += " partial terms places places_end late_terms rest_row"
CONSUMERS = 2  # warpgroups of a CTA that multiply
MOST_ARGUMENTS_NBYTES = 32764  # of a kernel
MOST_SHARED_NBYTES = 232448  # of a CTA on compute capability 9.0

needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc is not on PATH")
REGISTERS = 160  # of each thread of the kernel, when it is launched


def compiled(path: Path, code: str, **macros: object) -> str:
    """The compiler's output; a warning is an error."""
    assert NVCC is not None
    path.write_text(code)
    defines = [f"-D{name}={value}" for name, value in macros.items()]
    target = ["-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-cubin", "-Xptxas", "-v"]
    command = [NVCC, "-Werror", "all-warnings", *target, *defines, "-o", str(path.with_suffix(".cubin")), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def laws() -> list[str]:
    """Static assertions that C++ has the constants and struct layouts of Python."""
    assert SHARED_NBYTES <= MOST_SHARED_NBYTES
    assert SCALARS.size == 8 * len(FIELDS.split())
    nterms, nplaces = "(TERM_CAPACITY ? TERM_CAPACITY : 1)", "(PLACES ? PLACES : 1)"
    places_end = f"offsetof(HopperArguments, places) + {nplaces} * sizeof(TensorMap)"
    return [
        f"::ROWS == {HEIGHT} && CLUSTER * ::ROWS == {ROWS} && THREADS == {THREADS} && CLUSTER == {CLUSTER}",
        f"CONSUMERS == {CONSUMERS} && LINE == {LINE} && STRIPE == {STRIPE}",
        f"BARRIERS_AT + MOST_BARRIERS_NBYTES <= {SHARED_NBYTES}",
        *(f"offsetof(HopperArguments, {field}) == {8 * i}" for i, field in enumerate(FIELDS.split())),
        f"offsetof(HopperArguments, parts) == {PARTS_AT}",
        f"sizeof(TensorMap) == {MAP_NBYTES}",
        *(f"offsetof(Part, {field}) == {4 * MAP_NBYTES + 8 * i}" for i, field in enumerate(PART_FIELDS.split())),
        f"sizeof(Part) == {4 * MAP_NBYTES + PART.size}",
        *(f"offsetof(PartTerm, {field}) == {MAP_NBYTES + 8 * i}" for i, field in enumerate(TERM_FIELDS.split())),
        f"sizeof(PartTerm) == {MAP_NBYTES + TERM.size}",
        f"offsetof(HopperArguments, terms) == {PARTS_AT} + PARTS * sizeof(Part)",
        f"offsetof(HopperArguments, places) == {PARTS_AT} + PARTS * sizeof(Part) + {nterms} * sizeof(PartTerm)",
        f"offsetof(HopperArguments, place_signals) == {places_end}",
        f"sizeof(HopperArguments) <= {MOST_ARGUMENTS_NBYTES}",
        f"sizeof(Tile) == {4 * len(Tile._fields)}",
        *(f"offsetof(Tile, {field}) == {4 * i}" for i, field in enumerate(Tile._fields)),
    ]


@needs_nvcc
@pytest.mark.parametrize(("layout", "parts"), [((0, 0), 8), ((0, 1), 8), ((1, 0), 1), ((1, 0), 8), ((1, 1), 1)])
def test_compiles_without_spills_and_with_the_structs_of_python(
    layout: tuple[int, int], parts: int, tmp_path: Path
) -> None:
    macros = {"A_ALONG_M": layout[0], "B_ALONG_N": layout[1], "PARTS": parts}
    gathers, scatters = (int(parts > 1 and layout[1] == i) for i in range(2))
    macros |= {"WAITS": gathers, "SIGNALS": scatters}
    macros |= {"TERMS": 3 * scatters, "TERM_CAPACITY": 8 * scatters, "PLACES": 8 * scatters}
    macros |= {"WIDTH": (256, 128, 64)[sum(layout)] if parts > 1 else 256}
    macros |= {"SPLIT": 1 + (parts > 1 and layout[0] == layout[1]), "TREE": int(parts == 1)}
    macros["SYMMETRIC"] = 0
    kind = '"bf16"' if sum(layout) == 1 else '"f16"'
    code = ["#include <cstddef>", hopper_source(), *(f'static_assert({law}, "{law}");' for law in laws())]
    report = compiled(tmp_path / "hopper.cu", "\n".join(code), TYPE=kind, READS_C=layout[0], **macros)
    check_registers(report)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_for_gpus_match_this_kernel(name: str, tmp_path: Path) -> None:
    text = mutated(name)
    if NVCC:
        compiled(tmp_path / "hopper.cu", text)


def check_registers(report: str) -> None:
    """Assert that the kernel uses exactly its registers at launch, and spills none."""
    assert re.findall(r"Compiling entry function '(\w+)'", report) == ["hopper_gemm"]
    assert set(re.findall(r"(\d+) bytes (?:stack frame|spill stores|spill loads)", report)) == {"0"}
    assert re.findall(r"Used (\d+) registers", report) == [str(REGISTERS)]
    assert "(C7" not in report  # ptxas: products are serialised, or the limits of registers are ignored


@needs_nvcc
@pytest.mark.parametrize(("along_m", "parts", "terms", "places"), [(1, 8, 3, 0), (0, 32, 15, 32)])
def test_terms_in_the_widest_tiles_do_not_spill(
    along_m: int, parts: int, terms: int, places: int, tmp_path: Path
) -> None:
    """Also with places on all ranks and the longest lists, of four pieces of 8 ranks and of two of 16."""
    macros = {"A_ALONG_M": along_m, "B_ALONG_N": 0, "READS_C": 1, "SIGNALS": 1, "TERMS": terms, "PLACES": places}
    macros |= {"PARTS": parts, "TERM_CAPACITY": parts, "WIDTH": 256, "SPLIT": 1, "TREE": 0, "WAITS": 0, "SYMMETRIC": 0}
    law = f"static_assert(sizeof(HopperArguments) <= {MOST_ARGUMENTS_NBYTES});"
    check_registers(compiled(tmp_path / "hopper.cu", f"{hopper_source()}\n{law}\n", TYPE='"bf16"', **macros))


@needs_nvcc
@pytest.mark.parametrize("reads_c", [0, 1])
def test_symmetric_products_do_not_spill(reads_c: int, tmp_path: Path) -> None:
    macros = {"A_ALONG_M": 0, "B_ALONG_N": 0, "READS_C": reads_c, "SIGNALS": 0, "TERMS": 0, "PLACES": 8}
    macros |= {"PARTS": 1, "TERM_CAPACITY": 0, "WIDTH": 256, "SPLIT": 1, "TREE": 0, "WAITS": 0, "SYMMETRIC": 1}
    check_registers(compiled(tmp_path / "hopper.cu", hopper_source(), TYPE='"bf16"', **macros))


@needs_nvcc
@pytest.mark.parametrize(("text", "how"), [("relu(x * s + bias) - h", 1)])
def test_epilogues_do_not_spill(text: str, how: int, tmp_path: Path) -> None:
    """With the longest lists, and operands along lines and of the shape of D; the structs are those of Python."""
    macros = {"A_ALONG_M": 0, "B_ALONG_N": 0, "READS_C": 1, "SIGNALS": 1, "TERMS": 7, "PLACES": 8}
    macros |= {"PARTS": 32, "TERM_CAPACITY": 32, "WIDTH": 256, "SPLIT": 1, "TREE": 0, "WAITS": 0, "EPILOGUE": how}
    macros["SYMMETRIC"] = 0
    tree, end = parse(text), "(offsetof(HopperArguments, place_signals) + PLACES * 8 + 63) / 64 * 64"
    dtypes: list[Any] = [None, BFLOAT16, BFLOAT16][: len(operand_names(tree))]
    code = [
        "#include <cstddef>",
        pointwise.functions(BFLOAT16),
        pointwise.printed(tree, dtypes, steps=[pointwise.ANY_STEP, 1, 1][: len(dtypes)]),
        hopper_source(),
        f"static_assert(offsetof(HopperArguments, operands) == {end} && sizeof(Terms) == {TERMS_NBYTES});",
        f"static_assert(sizeof(HopperArguments) <= {MOST_ARGUMENTS_NBYTES});",
    ]
    check_registers(compiled(tmp_path / "hopper.cu", "\n".join(code), TYPE='"bf16"', **macros))


def room_of(file: str, kernel: str, threads: int, path: Path) -> int:
    """Registers of an SM's quarter that stay free beside the Hopper kernel and `threads` threads of another kernel."""
    report = compiled(path, source(file))
    match = re.search(rf"entry function '{kernel}'.*?Used (\d+) registers", report, re.DOTALL)
    assert match is not None
    quarter, warp, per_thread = 65536 // 4, 32, -(-int(match[1]) // 8) * 8
    return quarter - THREADS // warp // 4 * warp * REGISTERS - threads * per_thread


@needs_nvcc
def test_two_waiting_kernels_fit_on_each_multiprocessor(tmp_path: Path) -> None:
    """Even if both warps are on the same quarter of the multiprocessor."""
    assert room_of("signals", "wait", 2 * 32, tmp_path / "signals.cu") >= 0
    assert SHARED_NBYTES + 3 * 1024 <= 228 * 1024  # of each CTA 1 KiB is the system's


@needs_nvcc
def test_a_copy_kernel_fits_on_each_multiprocessor(tmp_path: Path) -> None:
    assert room_of("copy", "copy", COPY_THREADS // 4, tmp_path / "copy.cu") >= 0
    assert "__shared__" not in source("copy")
    assert f"COPYING_THREADS = {COPY_THREADS}," in source("copy")


@pytest.mark.parametrize("status", [None, SimpleNamespace(name="CUDA_ERROR_INVALID_VALUE")])
def test_waiting_kernels_prefer_the_largest_shared_memory(status: Any) -> None:
    asked: list[tuple[Any, ...]] = []

    def ask(*call: Any) -> tuple[Any]:
        asked.append(call)
        return (status,)

    driver = SimpleNamespace(
        CUfunction_attribute=SimpleNamespace(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT=9),
        CUshared_carveout=SimpleNamespace(CU_SHAREDMEM_CARVEOUT_MAX_SHARED=100),
        cuFuncSetAttribute=ask,
    )
    with pytest.raises(BackendError, match="CUDA_ERROR_INVALID_VALUE") if status else nullcontext():
        prefer_shared_memory(driver, "wait")
    assert asked == [("wait", 9, 100)]


def test_the_source_includes_nothing_and_uses_no_nvlink_multicast() -> None:
    text = hopper_source()
    assert f"#define WIDTH {WIDTH} " in text
    assert "#include" not in text
    assert "multimem" not in text


@pytest.mark.parametrize("clusters", [1, 7, 66])
def test_tiles_cover_every_part_once(clusters: int) -> None:
    sizes, eight = (1, 7, 64, 129, 1000, 3584), [(512, 3584)] * 8
    cases: list[tuple[list[tuple[int, int]], list[float]]] = [([size], []) for size in itertools.product(sizes, sizes)]
    cases += [(eight, []), ([(300, 70), (7, 700)], []), (eight, [0.7 * part for part in range(8)])]
    for parts, ready in cases:
        counts = [np.zeros((rows, columns), np.int8) for rows, columns in parts]
        tiles = cover(parts, clusters, ready)
        for i, tile in enumerate(tiles):
            if not tile.width:  # the cluster has nothing more to do
                assert not any(later.width for later in tiles[i::clusters])
                continue
            assert tile.width in COSTS
            columns = tile.width * (CLUSTER if is_side_by_side(parts[tile.part][0] - tile.row) else 1)
            region = counts[tile.part][tile.row : tile.row + ROWS, tile.column : tile.column + columns]
            assert region.size
            region += 1
        assert all((part == 1).all() for part in counts)
        for cluster in range(clusters):  # peers wait for the parts that come first
            taken = [tile.part for tile in tiles[cluster::clusters] if tile.width]
            assert taken == sorted(taken)


@pytest.mark.parametrize("clusters", [1, 7, 66])
@pytest.mark.parametrize("rows", [8, 128, 256, 300, 1000, 4096])
def test_tiles_and_their_mirror_images_cover_a_symmetric_matrix_once(rows: int, clusters: int) -> None:
    """Stripes of `LINE` columns before the block on the diagonal are mirrored."""
    count = np.zeros((rows, rows), np.int8)
    for tiles in tiles_of_ctas([(rows, rows)], clusters, symmetric=True):
        for tile in tiles:
            region = slice(tile.row, tile.row + HEIGHT)
            for column in range(tile.column, tile.column + tile.width, LINE):
                stripe = slice(column, column + LINE)
                count[region, stripe] += 1
                if column < tile.row // ROWS * ROWS:
                    count[stripe, region] += 1
    assert (count == 1).all()


@pytest.mark.parametrize(("rows", "pieces"), [(256, 2), (128, 4), (264, 3), (8, 2)])
@pytest.mark.parametrize("clusters", [7, 33])
def test_tiles_with_terms_are_interleaved_with_another_pieces_tiles(rows: int, pieces: int, clusters: int) -> None:
    """Evenly, and after all tiles that peers need for the same piece."""
    peers, interleaved = 7, [0] * 7
    for _ in range(pieces - 1):
        interleaved += [0] * peers + [peers]
    interleaved.append(0)
    parts = [(rows, 4096)] * len(interleaved)
    tiles = cover(parts, clusters, interleaved=interleaved)
    area = [sum(tile.width for tile in tiles if tile.part == part) for part in range(len(parts))]
    assert area == [
        sum(tile.width for tile in cover(parts, clusters) if tile.part == part) for part in range(len(parts))
    ]
    gaps = set[int]()
    for part, mixed in enumerate(interleaved):
        places = [i for i, tile in enumerate(tiles) if tile.width and tile.part == part]
        needed = [i for i, tile in enumerate(tiles) if tile.width and tile.part < part - mixed]
        for cluster in range(clusters):
            own, before = ([i for i in found if i % clusters == cluster] for found in (places, needed))
            assert not own or not before or max(before) < min(own)
        places = [i for i in places if i < len(tiles) - 3 * clusters]  # the last rounds are narrowed and dealt
        gaps |= {b - a for a, b in itertools.pairwise(places) if mixed}
    assert gaps <= {peers, peers + 1}
    assert gaps or clusters == 33 or rows == 8


@pytest.mark.parametrize("shape", [Shape(128), Shape(64), Shape(256, 2), Shape(128, 2)])
def test_tiles_of_a_shape_cover_every_part_once(shape: Shape) -> None:
    for parts in ([(128, 3584)] * 4, [(1, 7), (129, 300), (1000, 64)], [(512, 1792)] * 8):
        counts = [np.zeros((rows, columns), np.int8) for rows, columns in parts]
        tiles = cover(parts, 56, (), shape)
        assert len(tiles) == shape.tiles(parts)
        for tile in tiles:
            rows = ROWS // shape.split
            columns = tile.width * (
                CLUSTER if shape.split == 1 and is_side_by_side(parts[tile.part][0] - tile.row) else 1
            )
            assert tile.width == shape.width
            counts[tile.part][tile.row : tile.row + rows, tile.column : tile.column + columns] += 1
        assert all((part == 1).all() for part in counts)
        assert [tile.part for tile in tiles] == sorted(tile.part for tile in tiles)


@pytest.mark.parametrize("shape", [Shape(), Shape(128), Shape(256, 2), Shape(64, 2)])
def test_tiles_of_ctas_cover_every_part_once(shape: Shape) -> None:
    """One consumer covers each line; its index in the CTA is its position in the tile."""
    for parts in ([(128, 700)] * 4, [(64, 1792)] * 8, [(1, 8)] * 3, [(256, 300), (200, 300), (8, 300)]):
        counts = [np.zeros((rows, columns), np.int8) for rows, columns in parts]
        for tiles in tiles_of_ctas(parts, 56, (), shape):
            halves = [half for tile in tiles for half in [tile] * CONSUMERS]
            kept = halves[:CONSUMERS] if shape.split > 1 else halves
            assert len(halves) == CLUSTER * CONSUMERS
            assert halves[CONSUMERS:] == kept or shape.split == 1
            for i, (row, column, width, part) in enumerate(kept):
                first = row + i % CONSUMERS * LINE
                counts[part][first : first + LINE, column : column + width] += 1
        assert all((part == 1).all() for part in counts)


def test_a_short_k_is_not_split() -> None:
    for rows, columns, k in itertools.product((8, 128, 512), (200, 1792, 6656), (64, 4096, 16384)):
        shape, us = choose_shape([(rows, columns)] * 4, k, 66)
        assert shape == shape.fitting(k // 64)
        assert us > 0


def end_of(tiles: list[Tile], ready: list[float]) -> float:
    """The time at which the last of 66 clusters ends, in units of the time of a full-width tile."""
    ends = [0.0] * 66
    for i, tile in enumerate(tiles):
        if tile.width:
            ends[i % 66] = max(ends[i % 66], ready[tile.part]) + COSTS[tile.width]
    return max(ends)


@pytest.mark.parametrize(
    ("parts", "ready"),
    [
        ([(1024, 1792)] * 4, [0, 0.62, 1.24, 1.86]),
        ([(512, 3584)] * 4, [0, 0.31, 0.62, 0.93]),
        ([(4096, 1792)] * 3 + [(1024, 1792)] * 4, [0, 2.05, 4.1, 4.66, 5.22, 5.78, 6.3]),
    ],
)
def test_tiles_are_narrower_if_later_parts_are_awaited(parts: list[tuple[int, int]], ready: list[float]) -> None:
    assert end_of(cover(parts, 66, ready), ready) < end_of(cover(parts, 66), ready)


def test_the_last_tiles_are_narrower_if_that_saves_time() -> None:
    """They never take longer than tiles of full width, nor less time than all clusters together."""
    saved = 0
    for rows, columns in itertools.product((8, 256, 4096, 8192, 16384), (256, 1792, 3584, 8192)):
        tiles = -(-rows // ROWS) * -(-columns // WIDTH)
        end = end_of(cover([(rows, columns)], 66), [0.0])
        assert rows * columns / (ROWS * WIDTH * 66) <= end <= -(-tiles // 66)
        saved += end < -(-tiles // 66)
    assert saved > 10

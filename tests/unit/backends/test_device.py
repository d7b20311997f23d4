"""Choice of the GPU, missing requirements and NVSHMEM's settings: functions of plain values, tested without a GPU."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

from pblas import BackendError, WorkspaceError
from pblas.backends.cuda import device
from pblas.backends.cuda.device import choose_device, problem, unfit
from pblas.backends.gpu_info import Gpu, Platform, shared_device_error
from pblas.backends.nvshmem import diagnostics, settings
from pblas.backends.nvshmem.settings import GRANULE, rounded
from tests.harness.run import ROOT

H200 = Gpu(
    index=3,
    name="NVIDIA H200",
    uuid="GPU-12ab34cd-0123-4567-89ab-0123456789ab",
    compute_capability=(9, 0),
    memory_nbytes=150 << 30,
    multiprocessors=132,
    driver=13000,
    runtime=13000,
    stream_memops=True,
    virtual_memory=True,
    rdma_virtual_memory=False,
)
GOOD = Platform("14.2.0", driver=13000, runtime=13000, count=8)


class StandIn(ModuleType):
    """A module of CUDA's libraries, which reports a version or fails to load its library."""

    def __init__(self, version: Any) -> None:
        super().__init__("stand_in")
        self.get_version = self.getVersion = lambda: version or _fail()


def _fail() -> NoReturn:
    raise RuntimeError("libnvrtc.so.13: cannot open shared object file")


@pytest.mark.parametrize("cublaslt", [None, 130100])
@pytest.mark.parametrize("nvrtc", [None, (13, 1)])
def test_cuda_libraries_that_cannot_be_loaded_are_named(
    cublaslt: int | None, nvrtc: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bindings, libs = ModuleType("nvmath.bindings"), ModuleType("cupy_backends.cuda.libs")
    bindings.cublasLt, libs.nvrtc = StandIn(cublaslt), StandIn(nvrtc)  # type: ignore[attr-defined]
    for module in (bindings, libs):
        parts = module.__name__.split(".")
        for i in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:i]), ModuleType(".".join(parts[:i])))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    expected = [name for name, version in (("cuBLASLt", cublaslt), ("NVRTC", nvrtc)) if version is None]
    assert list(diagnostics.lacking()) == expected
    monkeypatch.setitem(sys.modules, "nvmath.bindings", None)
    assert diagnostics.lacking()[:1] == ("cuBLASLt",)


@pytest.mark.parametrize("name", ["cuda.device", "nvshmem.fault", "nvshmem.settings", "cache_file"])
def test_examples(name: str) -> None:
    # Doctests of these folders are not collected: other modules in them need CuPy to be imported.
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testmod(import_module(f"pblas.backends.{name}"), optionflags=flags)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(
    ("platform", "wanted", "cause", "remedy"),
    [
        (Platform(lack="No module named 'cupy'"), None, "No module named 'cupy'", "pip install 'cupy-cuda13x"),
        (Platform("14.2.0", runtime=13000, status=100), None, "no NVIDIA driver", "install one"),
        (replace(GOOD, driver=12080, status=35, count=0), None, "CUDA 12.8, CuPy 14.2.0 needs 13.0", "update the dri"),
        (replace(GOOD, driver=12080), None, "serves CUDA 12.8", "install CuPy for CUDA 12"),
        (replace(GOOD, count=0, status=100), None, "no GPU is visible;", "backend='mpi'"),
        (replace(GOOD, count=0, visible=""), None, "CUDA_VISIBLE_DEVICES=''", "where there is one"),
        (GOOD, 8, "0..7, got 8", "one of the visible GPUs"),
        (GOOD, -1, "0..7, got -1", "one of the visible GPUs"),
        (
            replace(GOOD, lack="No module named 'nvshmem'"),
            None,
            "No module named 'nvshmem'",
            "pip install 'cupy-cuda13x[ctk]' ",
        ),
    ],
)
def test_a_missing_requirement_is_named_with_its_remedy(
    platform: Platform, wanted: int | None, cause: str, remedy: str
) -> None:
    error = problem(platform, wanted)
    assert isinstance(error, BackendError)
    assert cause in str(error)
    assert remedy in str(error)
    with pytest.raises(BackendError) as raised:
        choose_device(0, wanted, platform)
    assert str(raised.value) == str(error)


def test_a_driver_of_the_same_major_version_is_accepted() -> None:
    for runtime in (13000, 13010):  # a runtime may be newer than the driver within a major version
        assert problem(replace(GOOD, runtime=runtime)) is None
    assert problem(GOOD, 7) is None
    assert unfit(H200) is None


def test_a_gpu_without_stream_memory_operations_is_refused() -> None:
    error = unfit(replace(H200, stream_memops=False))
    assert error is not None
    assert "GPU 3 (NVIDIA H200) has no stream memory operations" in str(error)


def test_this_machine_can_be_described_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    platform = device.probe()
    assert platform.cupy == ""
    assert "cupy" in platform.lack
    assert problem(platform) is not None


def test_ranks_on_one_gpu_are_found_wherever_they_are() -> None:
    places = [(rank, f"node{rank // 4}", f"GPU-{rank:08x}-0000") for rank in range(8)]
    assert shared_device_error(places) is None
    for a in range(8):
        for b in range(a + 1, 8):
            changed = [(rank, host, places[a][2] if rank == b else uuid) for rank, host, uuid in places]
            error = shared_device_error(changed)
            assert error is not None
            assert str(error).startswith(f"ranks {a} and {b} both use GPU GPU-{a:08x} of node{b // 4}: ")


def test_ranks_may_share_a_gpu_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PBLAS_SHARE_GPU", raising=False)
    assert not settings.may_share_gpu()
    for text, allowed in (("0", False), ("1", True)):
        monkeypatch.setenv("PBLAS_SHARE_GPU", text)
        assert settings.may_share_gpu() is allowed
    monkeypatch.setenv("PBLAS_SHARE_GPU", "yes")
    with pytest.raises(BackendError, match="PBLAS_SHARE_GPU must be 0 or 1, got 'yes'"):
        settings.may_share_gpu()


def test_peers_are_pairs_that_access_each_other() -> None:
    assert device.peers(4, lambda *_: True) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert device.peers(3, lambda a, b: a < b) == []
    assert device.peers(1, lambda *_: True) == []


# Sizes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("1", 1), ("8k", 8 << 10), ("3.5 M", 7 << 19), ("2G", 2 << 30), ("1T", 1 << 40), ("4GiB", 4 << 30)],
)
def test_a_size_is_parsed_as_nvshmem_parses_its_own(text: str, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PBLAS_SYMMETRIC_SIZE", raising=False)
    assert settings.symmetric_nbytes() == settings.DEFAULT_NBYTES
    monkeypatch.setenv("PBLAS_SYMMETRIC_SIZE", text)
    assert settings.symmetric_nbytes() == nbytes


@pytest.mark.parametrize("text", ["", "much", "-1G", "0", "nan", "inf", "1e400", "G"])
def test_an_invalid_size_is_rejected(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PBLAS_SYMMETRIC_SIZE", text)
    with pytest.raises(BackendError, match="PBLAS_SYMMETRIC_SIZE must be a number of bytes"):
        settings.symmetric_nbytes()


def test_multicast_is_off_and_the_heap_holds_the_slab() -> None:
    for one_node in (False, True):
        for nbytes in (1, 1 << 30, (1 << 30) + 1):
            made = settings.environment(nbytes, one_node=one_node)
            assert made["NVSHMEM_DISABLE_NVLS"] == "1"
            assert int(made["NVSHMEM_SYMMETRIC_SIZE"]) > nbytes
            assert ("NVSHMEM_REMOTE_TRANSPORT" in made) == one_node


def test_an_error_names_the_bytes_that_are_missing() -> None:
    own, free = settings.GRANULARITY_NBYTES, 1 << 30
    assert settings.shortage(free - own, free, H200, 0) is None
    error = settings.shortage(free - own + 1, free, H200, 7)
    assert isinstance(error, WorkspaceError)
    for text in (f"{free + 1} bytes are needed on GPU 3", f"{free} are free", "7 are symmetric", "use more ranks"):
        assert text in str(error)
    assert "PBLAS_SYMMETRIC_SIZE" not in str(error), "it is not what was asked for at the start"
    assert "PBLAS_SYMMETRIC_SIZE" not in str(settings.shortage(1, own, H200, 0)), "nothing fits"


@pytest.mark.parametrize("free", [(514 << 20) - 1, 514 << 20, (600 << 20) + 7, 5_000_000_000])
def test_the_suggested_size_fits(free: int) -> None:
    match = re.search(
        r"PBLAS_SYMMETRIC_SIZE=(\d+) or init_nvshmem\(nbytes=(\d+)\)", str(settings.shortage(free, free, H200, 0))
    )
    if free < settings.GRANULARITY_NBYTES + GRANULE:
        assert match is None
        return
    assert match is not None
    size = int(match[1])
    assert size == int(match[2]) == rounded(size)
    assert settings.shortage(size, free, H200, 0) is None
    assert settings.shortage(size + GRANULE, free, H200, 0) is not None


def test_an_allocation_beyond_the_heap_names_its_bytes() -> None:
    assert settings.limit_error(100 << 30, 27 << 30) is None
    error = settings.limit_error(100 << 30, 28 << 30)
    assert isinstance(error, WorkspaceError)
    assert f"NVSHMEM_MAX_MEMORY_PER_GPU={(128 << 30) + (512 << 20)}," in str(error)
    assert "PBLAS_SYMMETRIC_SIZE=107," in str(settings.heap_error(100, 7, ours=True))
    assert "set NVSHMEM_SYMMETRIC_SIZE=" in str(settings.heap_error(100, 7, ours=False))


# The end


@pytest.mark.parametrize("finalize", ["", "MPI.Finalize()"])
@pytest.mark.parametrize("start", [[], ["-m", "mpi4py"]])
def test_nvshmem_ends_before_mpi_however_the_program_ends(start: list[str], finalize: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"from mpi4py import MPI\n"
        f"from pblas.backends.mpi.world import before_finalize\n"
        f"ended = []\n"
        f"def end():\n"
        f"    assert MPI.COMM_WORLD.allreduce(1) == 1\n"
        f"    ended or print('ended')\n"
        f"    ended.append(1)\n"
        f"before_finalize(end)\n"
        f"{finalize}\n"
    )
    done = subprocess.run(
        [sys.executable, *start, str(script)], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")

"""Free memory and limits, as files of Linux tell them: the narrowest control group around the process counts."""

from math import inf
from pathlib import Path

import pytest

from pblas import config
from pblas.backends.cpu import memory

GIB = 1 << 30


def group(folder: Path, version: int, limit: str, used: int) -> None:
    """A control group whose processes use some memory, of which 20 bytes are pages of files."""
    names = ("memory.max", "memory.current", "") if version == 2 else ("limit_in_bytes", "usage_in_bytes", "total_")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in zip(names[:2], (limit, str(used)), strict=True):
        (folder / (name if version == 2 else f"memory.{name}")).write_text(f"{text}\n")
    stat = f"anon 7\n{names[2]}inactive_file 15\n{names[2]}active_file 5\n"
    (folder / "memory.stat").write_text(stat)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host of 8 GiB, 4 of them free, with the file systems of control groups in a folder."""
    (tmp_path / "meminfo").write_text(
        f"MemTotal: {8 << 20} kB\nMemAvailable: {3 << 20} kB\nSwapFree: {1 << 20} kB\nHugePages_Total: 0\n"
    )
    for name, path in (("_HOST", "meminfo"), ("_OWN_GROUPS", "own"), ("_MOUNTED", "mounted")):
        monkeypatch.setattr(memory, name, tmp_path / path)
    return tmp_path


@pytest.mark.parametrize("version", [1, 2])
def test_the_narrowest_group_around_the_process_counts(host: Path, version: int) -> None:
    (host / "own").write_text(
        "3:cpu:/other\n" + ("0::/slurm/job/step\n" if version == 2 else "4:memory:/slurm/job/step\n")
    )
    mounted = host / "mounted" / ("" if version == 2 else "memory")
    no_limit = "max" if version == 2 else str((1 << 63) - 4096)
    group(mounted / "slurm", version, str(6 * GIB), 5 * GIB)
    group(mounted / "slurm/job", version, str(2 * GIB), GIB)
    group(mounted / "slurm/job/step", version, no_limit, GIB)
    assert memory.limit_nbytes() == 2 * GIB
    assert memory.free_nbytes() == GIB + 20  # of 2 GiB for the job and 6 for all jobs, less what they use
    group(mounted / "slurm", version, str(6 * GIB), 6 * GIB - 100)
    assert memory.free_nbytes() == 120
    assert config.memory() == "120 B free; the control group (container, batch job) may use 2.0 GiB"


@pytest.mark.parametrize("own", [None, "", "0::/\n", "4:memory:/docker/7f\n"])
def test_without_limits_the_host_counts(host: Path, own: str | None) -> None:
    if own is not None:
        (host / "own").write_text(own)
    assert (memory.free_nbytes(), memory.limit_nbytes()) == (4 * GIB, inf)
    assert config.memory() == "4.0 GiB free"


def test_in_a_container_its_group_is_the_mounted_one(host: Path) -> None:
    (host / "own").write_text("4:memory:/docker/7f\n")  # the path outside, which the container does not see
    group(host / "mounted/memory", 1, str(GIB), 20)
    assert (memory.free_nbytes(), memory.limit_nbytes()) == (GIB, GIB)


def test_a_system_that_does_not_say(host: Path) -> None:
    (host / "meminfo").unlink()
    assert (memory.free_nbytes(), memory.limit_nbytes()) == (inf, inf)
    assert config.memory() == "unknown on this system"

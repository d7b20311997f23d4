"""Hardware in TOML files: what is written is read, and wrong files are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from pblas import Context, FileFormatError, Hardware, dry_run, plan_matmul
from pblas.cli import main
from pblas.simulation.hardware import PRESETS
from pblas.simulation.hardware_file import find_hardware, hardware_text


@pytest.mark.parametrize("hardware", PRESETS.values(), ids=str)
def test_a_written_file_describes_the_same_hardware(hardware: Hardware, tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text(hardware_text(hardware))
    assert find_hardware(str(path)) == hardware
    plan = plan_matmul(512, 512, 512, nprocs=4, hardware=str(path)).plan
    assert plan.simulate(str(path)) == plan.simulate(hardware)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("float64", "float65", "the file has unknown fields float65; expected the fields of pblas.Hardware: name, "),
        ("float64 = ", "# ", "the file has no float64"),
        ("[far]", "[fer]", "far is None; expected a table"),
        ("latency", "lag", "near has unknown fields lag; expected the fields of pblas.Link: latency, "),
        ("call = ", "call = -", "the file: Hardware: call is -8e-06; expected a finite number from 0 on"),
        ("latency = 5", "latency = -5", "far: Link: latency is -5e-05; expected a finite number from 0 on"),
        ("float32 = ", "float32 = true # ", "Hardware: float32 is True; expected a finite number above 0"),
        ("float32 = ", f"float32 = 1{400 * '0'} # ", "expected a finite number above 0"),
        ("float64 = ", "float64 = inf # ", "Hardware: float64 is inf; expected a finite number above 0"),
        ("memory_nbytes = ", "memory_nbytes = inf # ", "memory_nbytes is inf; expected a finite number above 0"),
        ("ranks_per_node = ", "ranks_per_node = true # ", "ranks_per_node is True; expected an integer from 1 on"),
        ("shared = true", "shared = 'no'", "Hardware: shared is 'no'; expected True or False"),
        ("gpus = false", "gpus = 'no'", "Hardware: gpus is 'no'; expected True or False"),
        ('name = "laptop"', "name = 5", "Hardware: name is 5; expected a text"),
        ("=", ":", "expected TOML, got: "),
    ],
)
def test_a_wrong_file_is_named(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text(hardware_text(PRESETS["laptop"]).replace(old, new))
    with pytest.raises(FileFormatError, match=rf"^{path}: ") as caught:
        find_hardware(str(path))
    assert message in str(caught.value)


def test_the_memory_may_be_written_with_an_exponent(tmp_path: Path) -> None:
    def program() -> None:
        with Context() as ctx:
            ctx.zeros((1 << 16, 1 << 16))

    path = tmp_path / "my.toml"
    path.write_text(hardware_text(PRESETS["laptop"]).replace("memory_nbytes = ", "memory_nbytes = 2e9 # "))
    run = dry_run(program, ranks=4, hardware=str(path))
    assert run.memory_limit == 2_000_000_000
    assert run.least_ranks == pytest.approx(8 * 2**32 / 2e9, rel=0.1)


def test_a_file_that_is_missing_has_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"cannot be read: No such file or directory; `pblas bench --hardware`"):
        find_hardware(str(tmp_path / "none.toml"))


def test_bench_measures_hardware_for_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my.toml"
    assert main(["bench", "--hardware", str(path), "--ranks", "2"]) == 0
    hardware = find_hardware(str(path))
    assert hardware.ranks_per_node == 2
    assert hardware.float32 > hardware.float64 / 4
    assert main(["plan", "--m", "512", "--n", "512", "--k", "512", "--ranks", "2", "--simulate", str(path)]) == 0
    assert f"on 2 ranks of {hardware.name}" in capsys.readouterr().out


def test_bench_refuses_a_name_that_plan_would_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--hardware", str(tmp_path / "my.txt")]) == 1
    assert "expected a name that ends in .toml" in capsys.readouterr().err

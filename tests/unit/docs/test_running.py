"""The files of the page on starting and running are well-formed, and its table has all environment variables."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.harness.run import ROOT

FOLDER = ROOT / "docs" / "running"
PAGE = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
SCRIPTS = sorted([*FOLDER.glob("*.sbatch"), *FOLDER.glob("*.sh")])
_NO_VARIABLES = {
    *("IMPORT_FROM", "SC_PAGE_SIZE", "SC_PHYS_PAGES", "MAP_NORESERVE", "COMM_NULL", "MPI_COMM_SELF", "DRY_RUN"),
    *("READS_C", "TERM_CAPACITY", "ALL_REDUCE", "ONE_SHOT", "RELU_BIAS", "CAN_USE_64_BIT_STREAM_MEM_OPS"),
    *("GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED", "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"),
}
"""Names in capital letters that are something else: of Python, the system, MPI, CUDA and cuBLASLt."""


def test_the_tables_have_all_environment_variables() -> None:
    """The names in capital letters in the source, and those that `environ` is asked for."""
    named: set[str] = set()
    for folder in ("pblas", "layouts", "backends"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            named |= set(re.findall(r"""["']([A-Z][A-Z0-9]+(?:_[A-Z0-9]+)+|MPIEXEC|RANK)["']""", text))
    section = PAGE.partition("## Environment variables")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", section))
    assert named >= _NO_VARIABLES
    assert listed == named - _NO_VARIABLES


def test_the_page_includes_every_file() -> None:
    included = re.findall(r"\{literalinclude\} running/(\S+)", PAGE)
    assert sorted(included) == sorted(path.name for path in FOLDER.iterdir())


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_well_formed(path: Path) -> None:
    checkers = [["bash", "-n"], *([["shellcheck"]] if shutil.which("shellcheck") else [])]
    for checker in checkers:
        done = subprocess.run([*checker, path], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.sbatch")), ids=lambda path: path.name)
def test_batch_files_start_the_script(path: Path, tmp_path: Path) -> None:
    """With launchers that print their arguments and the variables that they pass on."""
    options = re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(options) == len(dict(options)) >= 6
    for name in ("srun", "mpiexec"):
        launcher = tmp_path / name
        launcher.write_text(
            f"#!{sys.executable}\nimport json, os, sys\n"
            f"print(json.dumps([{name!r}, sys.argv[1:], os.environ.get('OMP_NUM_THREADS')]))\n"
        )
        launcher.chmod(0o755)
    tasks = int(dict(options)["nodes"]) * int(dict(options)["ntasks-per-node"])
    job = {"SLURM_CPUS_PER_TASK": dict(options)["cpus-per-task"], "SLURM_NTASKS": str(tasks)}
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MPI_TYPE": "pmix", **job}
    done = subprocess.run(
        ["bash", path, "a script.py", "-x"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    launcher_name, arguments, threads = json.loads(done.stdout)
    assert arguments[-5:] == ["python", "-m", "mpi4py", "a script.py", "-x"]
    if path.name == "mpiexec.sbatch":
        assert launcher_name == "mpiexec"
        assert arguments[:4] == ["-n", "32", "-bind-to", "core:4"]
    else:
        assert launcher_name == "srun"
        assert {"--mpi=pmix", "--cpu-bind=cores", f"--cpus-per-task={job['SLURM_CPUS_PER_TASK']}"} < set(arguments)
    assert threads == (None if path.name == "gpus.sbatch" else "4")


def test_steps_of_containers() -> None:
    """Their instructions exist, their commands are those of a shell, and both install the same."""
    docker = [
        line.split(maxsplit=1)
        for line in (FOLDER / "Dockerfile").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    ]
    assert [name for name, _ in docker] == ["FROM", "COPY", "RUN", "RUN", "USER", "WORKDIR", "CMD"]
    assert json.loads(docker[-1][1]) == ["python", "-m", "pblas", "info"]
    definition = (FOLDER / "pblas.def").read_text(encoding="utf-8")
    head, *parts = re.split(r"^%(\w+)\n", definition, flags=re.MULTILINE)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    header = dict(line.split(": ") for line in head.splitlines() if line and not line.startswith("#"))
    assert header == {"Bootstrap": "docker", "From": docker[0][1]}
    assert list(sections) == ["files", "post", "runscript", "test"]
    commands = [text for name, text in docker if name == "RUN"] + [sections[x] for x in ("post", "runscript", "test")]
    for command in commands:
        subprocess.run(["bash", "-n", "-c", command], check=True, timeout=60)
    (wanted,) = {x for text in commands for x in re.findall(r"/src\[(\S+)\]", text)}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(wanted.split(",")) <= extras.keys()


def test_the_conda_environment_has_the_dependencies_of_the_recipe() -> None:
    environment = yaml.safe_load((FOLDER / "environment.yml").read_text(encoding="utf-8"))
    recipe = (ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    needed = re.findall(r"^    - (\w+) (>=\S+)$", recipe.partition("  run:")[2].partition("\ntests")[0], re.MULTILINE)
    assert len(needed) >= 7
    listed = [x for x in environment["dependencies"] if isinstance(x, str)]
    for name, version in needed:
        assert f"{name}{version}" in listed or name == "python"

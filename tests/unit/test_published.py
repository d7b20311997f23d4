"""Laws of what a release consists of: one version everywhere, and workflows that run the Makefile's targets only."""

import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

import pblas
from tests.harness.floors import floors
from tests.harness.run import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(path: str | Path) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def jobs() -> list[tuple[str, dict[str, Any]]]:
    return [(f"{path.stem}.{name}", job) for path in WORKFLOWS for name, job in read(path)["jobs"].items()]


def supported() -> set[str]:
    """The minor versions of Python in the classifiers."""
    found = (re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line) for line in PROJECT["classifiers"])
    return {match[1] for match in found if match}


def test_the_version_is_the_same_everywhere() -> None:
    assert read("CITATION.cff")["version"] == pblas.__version__
    assert read("conda/recipe.yaml")["context"]["version"] == pblas.__version__
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[:2] == ["Unreleased", pblas.__version__]


def test_workflows_run_targets_of_the_makefile_only() -> None:
    """A second recipe for the same thing would go its own way."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {name for line in re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE) for name in line.split()}
    commands = [step["run"] for _, job in jobs() for step in job["steps"] if "run" in step]
    assert {"make test", "make docs", "make dist", "make test-floors", "make test-torch"} <= set(commands)
    assert all(match and match[1] in targets for match in (re.fullmatch(r"make (\S+)", text) for text in commands))


@pytest.mark.parametrize(("name", "job"), jobs(), ids=[name for name, _ in jobs()])
def test_every_job_has_a_limit_and_tools_of_a_fixed_version(name: str, job: dict[str, Any]) -> None:
    assert 0 < job["timeout-minutes"] <= 90
    assert all(re.search(r"@(v\d+|release/v\d+)$", step["uses"]) for step in job["steps"] if "uses" in step)


def test_only_the_job_that_publishes_has_a_right_to_write() -> None:
    assert all(read(path)["permissions"] == {"contents": "read"} for path in WORKFLOWS)
    assert [name for name, job in jobs() if "permissions" in job] == ["release.publish"]


def test_every_supported_python_is_tested() -> None:
    job = read(".github/workflows/tests.yml")["jobs"]["tests"]
    assert set(job["strategy"]["matrix"]["python"]) == supported()
    assert PROJECT["requires-python"] == f">={min(supported(), key=lambda text: int(text[2:]))}"
    assert {"Operating System :: POSIX :: Linux", "Operating System :: MacOS"} <= set(PROJECT["classifiers"])


def test_the_conda_recipe_has_the_dependencies_of_the_project() -> None:
    extras = PROJECT["optional-dependencies"]
    expected = {*PROJECT["dependencies"], *extras["cli"], *extras["run"]}
    recipe = read("conda/recipe.yaml")["requirements"]["run"]
    assert {line.replace(" ", "") for line in recipe} == expected | {f"python{PROJECT['requires-python']}"}
    assert f"pblas = {PROJECT['scripts']['pblas']}" in read("conda/recipe.yaml")["build"]["python"]["entry_points"]


def test_floors_are_one_version_of_each_package() -> None:
    assert all(re.fullmatch(r"[\w-]+==\d+(\.\d+)*", line) for line in floors())
    assert len({line.partition("==")[0] for line in floors()}) == len(floors())


@pytest.mark.parametrize("extra", ["cuda12", "cuda13"])
def test_packages_for_gpus_have_both_bounds(extra: str) -> None:
    lines = PROJECT["optional-dependencies"][extra]
    assert all(re.search(r">=[\d.]+,<[\d.]+$", line) for line in lines)
    assert any("[ctk]" in line for line in lines)  # cuBLASLt and NVRTC


def test_the_script_is_a_function() -> None:
    module, name = PROJECT["scripts"]["pblas"].split(":")
    assert callable(getattr(import_module(module), name))

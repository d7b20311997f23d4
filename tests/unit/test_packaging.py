"""Laws of the wheel: one top-level package, which contains the linked folders as real files."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.harness.run import ROOT

LINKED = ("layouts", "backends")
SOURCES = {".py", ".md", ".f90", ".yml", ".yaml"}
BESIDE = (".github", "benchmarks", "conda", "docs", "examples", "tests")


def build(kind: str, tree: Path, target: Path) -> Path:
    """The archive that setuptools builds in `tree`, called as pip calls it."""
    target.mkdir()
    code = f"import setuptools.build_meta as b; b.build_{kind}({str(target)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(done.stderr[-2000:], pytrace=False)
    (archive,) = target.iterdir()
    return archive


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an unpacked sdist."""
    tmp = tmp_path_factory.mktemp("packaging")
    tree = tmp / "tree"
    skip = shutil.ignore_patterns("__pycache__", "_build")
    for name in ("pblas", *LINKED, *BESIDE):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=skip)
    for path in ROOT.iterdir():
        if path.suffix in {".toml", ".md", ".in", ".cff"} or path.name in {"LICENSE", "Makefile"}:
            shutil.copy(path, tree)
    with tarfile.open(build("sdist", tree, tmp / "sdist")) as archive:
        archive.extractall(tmp / "unpacked", filter="data")
    (folder,) = (tmp / "unpacked").iterdir()
    return folder


@pytest.fixture(scope="module")
def wheel(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel made from the sdist, as for a user whose platform has none."""
    return build("wheel", unpacked, tmp_path_factory.mktemp("wheels") / "wheel")


@pytest.fixture(scope="module")
def files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_sdist_has_what_the_readme_names(unpacked: Path) -> None:
    names = {"CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "SECURITY.md"}
    assert names <= {path.name for path in unpacked.iterdir()}
    for folder in BESIDE:
        expected = {p.relative_to(ROOT) for p in (ROOT / folder).rglob("*") if p.suffix in SOURCES}
        expected = {path for path in expected if "_build" not in path.parts}
        assert expected
        assert expected <= {path.relative_to(unpacked) for path in (unpacked / folder).rglob("*")}


def test_only_pblas_is_installed(files: set[str]) -> None:
    assert {name.split("/")[0] for name in files if ".dist-info/" not in name} == {"pblas"}


@pytest.mark.parametrize("folder", LINKED)
def test_wheel_holds_the_linked_folders(files: set[str], folder: str) -> None:
    expected = {f"pblas/{path.relative_to(ROOT)}" for path in (ROOT / folder).rglob("*.py")}
    assert expected
    assert expected <= files


def test_wheel_is_typed_and_licensed(files: set[str]) -> None:
    assert "pblas/py.typed" in files
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in files)


def test_console_script_is_named(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (entry,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "pblas = pblas.__main__:main" in archive.read(entry).decode()


def test_users_own_names_do_not_break_the_import(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "layouts.py").write_text("raise RuntimeError('not this one')")
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends" / "__init__.py").write_text("raise RuntimeError('nor this one')")
    (tmp_path / "script.py").write_text("import pblas.layouts, pblas.backends\nprint(pblas.__file__)")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "site"))

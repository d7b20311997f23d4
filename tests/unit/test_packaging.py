"""Laws of the wheel, which contains the linked folders as real files, and of the editable installation."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from hatch_build import STUB, text
from tests.harness.run import ROOT

LINKED = ("layouts", "backends")
SOURCES = {".py", ".md", ".f90", ".yml", ".yaml"}
MACHINE_CODE = ("pblas/backends/cuda/cubins/index.json", "pblas/backends/cuda/cubins/0.cubin")  # git ignores both
BESIDE = (".github", "benchmarks", "conda", "docs", "examples", "tests")


def build(kind: str, tree: Path, target: Path) -> Path:
    """The archive that hatchling builds in `tree`, called as pip calls it: where NumPy is missing."""
    target.mkdir()
    code = f"import sys; sys.modules['numpy'] = None; import hatchling.build as b; b.build_{kind}({str(target)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(done.stderr[-2000:], pytrace=False)
    (archive,) = target.iterdir()
    return archive


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files of the repository, in a folder of the package's name."""
    tree = tmp_path_factory.mktemp("packaging") / "pblas"
    skip = shutil.ignore_patterns("__pycache__", "_build", STUB.name, "cubins")
    for name in ("pblas", *LINKED, *BESIDE):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=skip)
    for path in ROOT.iterdir():
        if path.suffix in {".toml", ".md", ".cff", ".py"} or path.name in {".gitignore", "LICENSE", "Makefile"}:
            shutil.copy(path, tree)
    for name in MACHINE_CODE:
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text(name)
    return tree


@pytest.fixture(scope="module")
def unpacked(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an unpacked sdist."""
    tmp = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build("sdist", checkout, tmp / "sdist")) as archive:
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


def test_wheel_has_sources_and_machine_code_of_kernels_and_no_other_files(files: set[str]) -> None:
    suffixes = {".py", ".pyi", ".cu", ".cuh", ".typed"}
    folders = [ROOT / "pblas", *(ROOT / folder for folder in LINKED)]
    paths = [path.relative_to(ROOT) for folder in folders for path in folder.rglob("*") if path.suffix in suffixes]
    paths += [STUB.relative_to(ROOT)]  # a checkout may not have it
    expected = {str(Path("pblas") / path) if path.parts[0] in LINKED else str(path) for path in paths}
    assert {name for name in files if ".dist-info/" not in name} == {*expected, *MACHINE_CODE}


def test_wheel_is_typed_and_licensed(wheel: Path, files: set[str]) -> None:
    assert "pblas/py.typed" in files
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("pblas/scalapack/__init__.pyi").decode() == text()
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


def test_a_script_beside_an_editable_checkout_imports_it(checkout: Path, tmp_path: Path) -> None:
    """In the parent folder of a clone, where the folder pblas looks like a package without __init__.py."""
    with zipfile.ZipFile(build("editable", checkout, tmp_path / "wheel")) as archive:
        archive.extractall(tmp_path / "site")
    assert (checkout / STUB.relative_to(ROOT)).read_text(encoding="utf-8") == text()
    (path_file,) = (tmp_path / "site").glob("*.pth")
    assert path_file.read_text().split() == [str(checkout)]  # one path, which pyright reads too, and no code
    script = checkout.parent / "script.py"
    script.write_text(
        "import site, sys\nsite.addsitedir(sys.argv[1])\nimport pblas\nprint(pblas.Grid(1, 1), pblas.__file__)"
    )
    isolated = [sys.executable, "-ES", str(script), str(tmp_path / "site")]
    done = subprocess.run(isolated, cwd=checkout.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == str(checkout / "pblas" / "__init__.py")


def test_messages_name_packages_that_an_index_has() -> None:
    """They are those of the extras, which may not be on an index themselves."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    known = {re.split(r"[>=<\[]", requirement)[0] for requirements in lists for requirement in requirements}
    remedies = [
        remedy
        for folder in ("pblas", *LINKED)
        for path in (ROOT / folder).rglob("*.py")
        for remedy in re.findall(
            r"pip install ((?:'[^']+'|[\w.-]+)(?: (?:'[^']+'|[\w.-]*\d[\w.-]*|nvmath-python|mpich))*)", path.read_text()
        )
    ]
    assert len(remedies) > 5
    for remedy in remedies:
        for name in remedy.replace("{cuda}", "13").replace("'", "").split():
            assert re.split(r"[>=<\[]", name)[0] in (known | {"nvtx", "torch"}) - {"pblas"}, remedy

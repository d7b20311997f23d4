"""Laws of imports: which libraries `import pblas` loads, and which it must not load."""

import subprocess
import sys

import pytest

from tests.harness.run import ROOT


def loaded_by(statement: str) -> set[str]:
    """Modules in a fresh interpreter after `statement`, run at the root of the tree."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("name", ["layouts", "backends"])
def test_root_names_are_refused(name: str) -> None:
    # Otherwise every class of these folders would exist twice.
    with pytest.raises(ImportError, match=f"import pblas.{name}"):
        __import__(name)


GPU_MODULES = [
    f"pblas.backends.{name}" for name in ("cuda.device", "nvshmem.diagnostics", "nvshmem.heap", "nvshmem.startup")
]


@pytest.mark.parametrize(
    "statement",
    [
        "from pblas import *",
        "import pblas.errors",
        "import pblas.scalapack",
        "import pblas; assert pblas.show_config('dicts')",
        f"import pblas.gpu, {', '.join(GPU_MODULES)}",
    ],
)
def test_import_starts_no_mpi_and_no_gpu(statement: str) -> None:
    assert loaded_by(statement).isdisjoint({"mpi4py.MPI", "cupy", "nvshmem", "cuda.core"})


PLANNING = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "pblas").rglob("*.py"))
    if path.stem.endswith("_plan") or path.stem.startswith("choose")
]


def test_planning_loads_integers_only() -> None:
    """All plans and all choices between plans: the file names say which modules these are."""
    assert len(PLANNING) > 20
    loaded = loaded_by(f"import pblas.layouts, {', '.join(PLANNING)}")
    assert loaded.issuperset(PLANNING)
    assert loaded.isdisjoint({"numpy", "scipy", "mpi4py", "cupy", "nvshmem", "rich"})


def test_every_public_name_exists() -> None:
    import pblas

    for name in getattr(pblas, "__all__", []):
        assert getattr(pblas, name) is not None
        assert name in dir(pblas)


@pytest.mark.parametrize("name", ["blas", "errors", "layouts", "linalg", "scalapack", "tp"])
def test_public_modules_are_attributes(name: str) -> None:
    """As in the documentation, they need no import of their own; MPI does not start earlier than with one."""
    assert "mpi4py.MPI" not in loaded_by(f"import pblas\nassert pblas.{name}.__name__ == 'pblas.{name}'")
    assert name in loaded_by("import pblas\nprint(*dir(pblas))")

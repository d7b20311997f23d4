"""Laws of imports: which libraries `import pblas` loads, and which it must not load."""

import ast
import inspect
import subprocess
import sys
from importlib import import_module

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


PURE = ("layouts/**/*.py", "plans/*.py", "simulation/*.py", "epilogues.py", "errors.py", "*/push/schedules/*.py")
PURE_NAMES = ("*_plan.py", "choose*.py")


def test_planning_loads_integers_only() -> None:
    """Modules that plan are named by a pattern; the same integers give the same plan on every rank."""
    package = ROOT / "pblas"
    files = {path for pattern in (*PURE, *(f"*/{name}" for name in PURE_NAMES)) for path in package.glob(pattern)}
    names = sorted(".".join(("pblas", *path.relative_to(package).with_suffix("").parts)) for path in files)
    assert len(names) > 30
    loaded = loaded_by("import " + ", ".join(name.removesuffix(".__init__") for name in names))
    assert loaded.isdisjoint({"numpy", "scipy", "ml_dtypes", "threadpoolctl", "mpi4py", "cupy", "nvshmem", "torch"})


FRONT_ENDS = "pblas", "pblas.blas", "pblas.linalg", "pblas.tp"


@pytest.mark.parametrize("package", FRONT_ENDS)
def test_the_names_of_a_package_are_those_that_type_checkers_see(package: str) -> None:
    """They load no module before their first use."""
    module = import_module(package)
    tree = ast.parse(inspect.getsource(module))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.asname: (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    modules = {name for name, source in typed.items() if source == ("pblas", name)}
    assert set(module.__all__) == set(typed) - modules
    for name, (source, original) in typed.items():
        assert getattr(module, str(name)) is getattr(import_module(source), original)
    assert {name for name in dir(module) if not name.startswith("__")} == set(typed)
    with pytest.raises(AttributeError, match=f"{package}.*'solv'"):
        module.solv  # noqa: B018 - the access raises


MOST_MODULES = {
    "import pblas.blas, pblas.linalg, pblas.tp": 5,
    "from pblas.linalg import solve": 167,
    "from pblas.blas import trsm": 110,
    "from pblas import Context": 124,
    "import pblas; pblas.plan_matmul(64, 64, 64, nprocs=4)": 79,
}
"""Most modules of pblas that a statement may load: fewer are fewer files between a call and its loop."""


@pytest.mark.parametrize("statement", MOST_MODULES)
def test_a_statement_loads_few_modules(statement: str) -> None:
    loaded = {name for name in loaded_by(statement) if name.partition(".")[0] == "pblas"}
    assert len(loaded) <= MOST_MODULES[statement], sorted(loaded)


@pytest.mark.parametrize("name", ["blas", "errors", "layouts", "linalg", "scalapack", "torch", "tp"])
def test_public_modules_are_attributes(name: str) -> None:
    """As in the documentation, they need no import of their own; MPI does not start earlier than with one."""
    loaded = loaded_by(f"import pblas\nassert pblas.{name}.__name__ == 'pblas.{name}'")
    assert loaded.isdisjoint({"mpi4py.MPI", "torch"})
    assert name in loaded_by("import pblas\nprint(*dir(pblas))")

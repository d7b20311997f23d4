"""The Python blocks of all pages run, on any number of ranks, and print what the pages show."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import pblas
from pblas import tp
from tests.common.pages import PAGES, Block, running

pytestmark = pytest.mark.mpi


def run(block: Block, names: dict[str, Any]) -> None:
    """Tracebacks show the line of the page."""
    exec(compile("\n" * (block.line - 1) + block.body, block.page, "exec"), names)


def run_all(page: str) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in running(page, "python"):
        run(block, names)


SCRIPTS = [page for page in ("README.md", *PAGES) if running(page, "python")]
SHOWN = [page for page in SCRIPTS if running(page, "text")]
"""Pages that show what their blocks print."""


def test_there_are_pages_with_examples() -> None:
    """Otherwise a changed folder or fence would leave the test below without a case."""
    assert {"README.md", "docs/tutorial.md", "docs/howto.md", "docs/from_numpy.md"} <= set(SCRIPTS)
    assert "docs/tutorial.md" in SHOWN


@pytest.mark.parametrize("page", SCRIPTS)
def test_python_blocks_run(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of one page share their names."""
    monkeypatch.chdir(folder)
    run_all(page)
    if page == "docs/tensor-parallel.md":
        tp.default_context().close()  # tests of wrong calls need one open context


@pytest.mark.ranks(4, reason="pages show what 4 ranks print")
@pytest.mark.parametrize("page", SHOWN)
def test_pages_show_what_their_blocks_print(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On rank 0."""
    monkeypatch.chdir(folder)
    run_all(page)
    printed, shown = capsys.readouterr().out, running(page, "text")
    for block in shown if MPI.COMM_WORLD.rank == 0 else ():
        assert block.body in printed, f"{block}: the page's script prints something else:\n{printed}"


def test_both_sides_of_a_pair_are_the_same_matrix(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What NumPy calls `a` is equal, to the last line but one, to what pblas calls `A`."""
    monkeypatch.chdir(folder)
    *blocks, _, end = running("docs/from_numpy.md", "python")
    names: dict[str, Any] = {}
    for block in blocks:
        run(block, names)
    twins = {name: names.get(name.upper()) for name in names if name.islower()}
    compared = {name: twin for name, twin in twins.items() if isinstance(twin, pblas.DistMatrix)}
    assert set(compared) >= set("abcdefghilrstuvwxyz")
    for name, twin in compared.items():
        np.testing.assert_allclose(np.asarray(twin.to_global(root=None)), names[name], rtol=1e-14, err_msg=name)
    run(end, names)

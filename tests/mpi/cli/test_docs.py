"""The Python blocks of the pages run, in order, on any number of ranks; those of one page share their names."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.mpi


NAMES = ("tutorial", "howto", "scalapack", "collectives", "traces", "tensor-parallel", "cublasmp", "scaling")
PAGES = ["README.md", *(f"docs/{name}.md" for name in NAMES)]


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert blocks, "a page without an example"
    names = {"__name__": "__main__"}
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], page, "exec"), names)

"""The commands of the pages run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.common.pages import PAGES, ROOT, Block, running

SHELL = [block for page in PAGES for block in running(page, "sh")]


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_shell_blocks_run(block: Block, tmp_path: Path) -> None:
    """In a folder with the examples, and with the page's script under every name that the block calls."""
    script = "".join(part.body for part in running(block.page, "python"))
    for name in re.findall(r"(?<![/\w])\w+\.py\b", block.body):
        (tmp_path / name).write_text(script, encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-e", "-c", block.body],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

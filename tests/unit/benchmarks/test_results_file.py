"""The files of results have the form that their writer gives them."""

import json
from pathlib import Path

import pytest

from benchmarks.results_file import RESULTS, text


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_results_are_written_compactly(path: Path) -> None:
    """A file that a benchmark did not write through `results_file`, or that was edited by hand, shows here."""
    written = path.read_text(encoding="utf-8")
    assert text(json.loads(written)) == written

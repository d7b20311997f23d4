"""Files of results: JSON with one row of a list in a line, numbers with six digits."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def commit() -> str:
    """The measured commit: PBLAS_COMMIT, or that of this tree, with a + if it has changes; empty without git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(RESULTS.parent), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    if named := os.environ.get("PBLAS_COMMIT"):
        return named
    try:
        revision = git("rev-parse", "--short=8", "HEAD")
        return revision + ("+" if revision and git("status", "--porcelain", "--untracked-files=no") else "")
    except OSError:
        return ""


def write(path: Path, results: dict[str, Any]) -> None:
    """Write a file of results in one step; it replaces an existing one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text(results), encoding="utf-8")
    temporary.replace(path)


def text(results: dict[str, Any]) -> str:
    """The JSON text of results.

    >>> print(text({"date": "2026-11-28", "rows": [{"n": 64, "s": 0.123456789}, {"n": 128, "s": 2.0}]}), end="")
    {
     "date": "2026-11-28",
     "rows": [
      {"n": 64, "s": 0.123457},
      {"n": 128, "s": 2.0}
     ]
    }
    """
    return _text(_rounded(results), 0) + "\n"


def _text(value: Any, depth: int) -> str:
    """Objects and lists of objects over several lines at the top, everything else in one line."""
    indent = " " * (depth + 1)
    if depth < 2 and isinstance(value, dict) and any(isinstance(x, dict | list) for x in value.values()):
        items = [f"{json.dumps(key)}: {_text(x, depth + 1)}" for key, x in value.items()]
        return "{\n" + ",\n".join(indent + item for item in items) + f"\n{indent[1:]}}}"
    if depth < 3 and isinstance(value, list) and any(isinstance(x, dict | list) for x in value):
        return "[\n" + ",\n".join(indent + json.dumps(x) for x in value) + f"\n{indent[1:]}]"
    return json.dumps(value)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(x) for key, x in value.items()}
    return [_rounded(x) for x in value] if isinstance(value, list | tuple) else value

"""Checks how much of the public API has types that pyright knows: `pyright --verifytypes`, of the installed wheel.

    python tests/harness/public_types.py .venv-wheel/bin

Prints the share of public symbols with known types, and the first of the others; exits with 1 below 98 %. Then checks
the types of the results in typed_calls.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LEAST = 0.98
SHOWN = 40
CALLS = Path(__file__).with_name("typed_calls.py")


def main(programs: str) -> int:
    """Check the package pblas of an environment, whose programs are in a folder."""
    pyright = str(Path(sys.executable).parent / "pyright")
    command = [pyright, "--ignoreexternal", "--verifytypes", "pblas", "--outputjson"]
    environment = {**os.environ, "PATH": os.pathsep.join((programs, os.environ["PATH"]))}  # pyright asks its python
    with tempfile.TemporaryDirectory() as folder:  # where nothing else is called pblas
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        print(done.stdout, done.stderr)
        return 1
    report = json.loads(done.stdout)["typeCompleteness"]
    score = report["completenessScore"]
    for symbol in [each for each in report["symbols"] if each["isExported"] and not each["isTypeKnown"]][:SHOWN]:
        print(symbol["name"], *(problem["message"] for problem in symbol["diagnostics"]), sep="\n    ")
    print(f"{score:.1%} of the public symbols have known types; at least {LEAST:.0%} are required")
    python = str(Path(programs) / "python")
    calls = subprocess.run([pyright, "--pythonpath", python, CALLS], cwd=programs, env=environment, check=False)
    return 0 if score >= LEAST and calls.returncode == 0 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Checks how much of the public API has types that pyright knows: `pyright --verifytypes`, of the installed wheel.

    python tests/harness/public_types.py .venv-wheel/bin/python build/empty

Prints the share of public symbols with known types, and the first of the others; exits with 1 below 98 %.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LEAST = 0.98
SHOWN = 20


def main(python: str, folder: str) -> int:
    """Check the package pblas of an interpreter's environment, from a folder that has no other one."""
    command = ["pyright", "--pythonpath", python, "--ignoreexternal", "--verifytypes", "pblas", "--outputjson"]
    command[0] = str(Path(sys.executable).parent / command[0])
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if not done.stdout.startswith("{"):
        print(done.stdout, done.stderr)
        return 1
    report = json.loads(done.stdout)["typeCompleteness"]
    score = report["completenessScore"]
    for symbol in [each for each in report["symbols"] if each["isExported"] and not each["isTypeKnown"]][:SHOWN]:
        print(symbol["name"], *(problem["message"] for problem in symbol["diagnostics"]), sep="\n    ")
    print(f"{score:.1%} of the public symbols have known types; at least {LEAST:.0%} are required")
    return 0 if score >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

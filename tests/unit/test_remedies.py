"""The remedies that messages print can be followed: arguments and options have the names that they have."""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pblas
from pblas import blas, linalg, scalapack, tp
from pblas.cli import make_parser
from tests.common.remedies import ELSEWHERE, NOT_RUN, REMEDIES

ROOT = Path(pblas.__file__).parent
PLANS = (pblas.PlannedMatmul, linalg.LuFactor, linalg.CholeskyFactor, linalg.QrFactor, tp.Linear)
CALLABLE = (pblas, linalg, blas, tp, scalapack, pblas.Context, pblas.DistMatrix, pblas.MatrixDescriptor, *PLANS)
"""Where a message's call may come from; a method may be that of any of the classes."""
MAIN = re.compile(r"^(MPI|torch|np|numpy|cupy)\.")


@cache
def texts() -> list[tuple[str, str]]:
    """(place, text) of all texts in the package that are no docstrings; what is filled in is an X."""
    return list(_texts())


def _texts() -> Iterator[tuple[str, str]]:
    folders = [Path(folder) for folder, *_ in os.walk(ROOT, followlinks=True)]
    for path in sorted(path for folder in folders for path in folder.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.JoinedStr):
                yield place, "".join(str(x.value) if isinstance(x, ast.Constant) else "X" for x in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner | statements:
                yield place, node.value


def named(name: str) -> list[Any]:
    """The public functions, classes and methods of a name."""
    values = (getattr(owner, name, None) for owner in CALLABLE)
    return [value for value in values if callable(value)]


def test_calls_in_messages_have_the_arguments_that_they_name() -> None:
    checked = 0
    for place, text in texts():
        for name, keyword in re.findall(r"([A-Za-z_][\w.]*)\((?:[\w, ]*, )?([a-z_]\w*)=", text):
            values = [] if MAIN.match(name) else named(name.rpartition(".")[2])
            taken = [inspect.signature(value).parameters for value in values]
            checked += bool(values)
            assert not values or any(keyword in parameters for parameters in taken), f"{place}: {name}({keyword}=)"
    assert checked > 10


def test_options_in_messages_are_options_of_a_command() -> None:
    options = {"--mpi", "--no-deps", "--version"}

    def collect(parser: argparse.ArgumentParser) -> None:
        for action in parser._actions:
            options.update(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    collect(command)

    collect(make_parser(0))
    for place, text in texts():
        if place.startswith("cli/"):
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text):
                assert option in options, f"{place}: {option}"


CODE = re.compile(
    r"(?<![\w.'])(?:[A-Za-z_][\w.]*\((?:[^()]|\([^()]*\))*\)"  # a call
    r"|[a-z_]+=(?:['\"][^'\"]*['\"]|[\w.]+|\.\.\.)"  # an argument
    r"|pip install \w+|mpiexec)"
)


def printed_code() -> Iterator[tuple[str, str]]:
    """(place, code) of everything in the second and later clauses of messages that reads like code; X is filled in.

    Those of the command line, of tables and of `pblas.torch`, which needs torch, are left out.
    """
    for place, text in texts():
        if len(text) >= 20 and "\n" not in text and not place.startswith(("cli/", "scalapack/routines", "torch/")):
            for clause in text.split("; ")[1:]:
                yield from ((place, code) for code in CODE.findall(clause))


def is_followed(code: str) -> bool:
    """Whether a remedy runs in a test, or cannot."""
    if code in ELSEWHERE or any(re.search(pattern, code) for pattern in NOT_RUN):
        return True
    filled = re.compile(re.escape(code).replace("X", ".+").replace('"', "['\"]"))
    return any(filled.search(remedy.printed) or code in remedy.printed for remedy in REMEDIES)


def test_every_remedy_runs_or_has_a_reason() -> None:
    codes = dict.fromkeys(printed_code())
    assert len(codes) > 60
    assert [entry for entry in codes if not is_followed(entry[1])] == []

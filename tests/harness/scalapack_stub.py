"""Prints the types of `pblas.scalapack` for editors and type checkers, which do not run what makes its routines.

    python tests/harness/scalapack_stub.py >pblas/scalapack/__init__.pyi

Routines of four types are made in loops, so a checker sees neither their names nor their arguments.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pblas import scalapack  # noqa: E402

STUB = ROOT / "pblas/scalapack/__init__.pyi"
_HEAD = """\
# Made by tests/harness/scalapack_stub.py; a test compares them.
# ruff: noqa: A004, E501
# fmt: off

from collections.abc import Sequence
from typing import IO, Any, TypeAlias

from pblas.backends.dtypes import Array, Number, Real
"""
_LETTERS = ("uplo", "trans", "transa", "transb", "side", "diag", "norm", "scope", "top", "rowcol", "direc", "pivroc")


def text() -> str:
    """The stub."""
    tree = ast.parse((STUB.parent / "__init__.py").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    plain, made = [], []
    for node in imports:
        for name in node.names:
            function = getattr(scalapack, name.name)
            if _is_made(function, str(node.module)):
                made.append(_definition(name.name, function))
            else:
                plain.append(f"from {node.module} import {name.name} as {name.name}")
    exported = ["__all__ = [", *(f'    "{name}",' for name in scalapack.__all__), "]"]
    lines = [_HEAD + "\n".join(plain), "", *exported, "", "Desc: TypeAlias = Sequence[int]", "", *made]
    return "\n".join(lines) + "\n"


def _is_made(function: Any, module: str) -> bool:
    """Whether a function is none that stands in its module under its name."""
    path = ROOT / f"{module.replace('.', '/')}.py"
    body = ast.parse(path.read_text(encoding="utf-8")).body
    names = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    return inspect.isfunction(function) and function.__name__ not in names


def _definition(name: str, function: Callable[..., Any]) -> str:
    """The line of a routine."""
    signature = inspect.signature(function)
    arguments = ", ".join(map(_argument, signature.parameters.values()))
    return f"def {name}({arguments}) -> {_returns(name, function, signature)}: ..."


def _argument(parameter: inspect.Parameter) -> str:
    """An argument with its type; ScaLAPACK's names tell it where the function does not."""
    name, has_default = parameter.name, parameter.default is not parameter.empty
    kind = parameter.annotation if isinstance(parameter.annotation, str) else _by_name(name)
    return f"{name}: {kind}{' = ...' * has_default}"


def _by_name(name: str) -> str:
    """The type of an argument of ScaLAPACK.

    >>> [_by_name(name) for name in ("n", "desca", "uplo", "a", "ia", "work")]
    ['int', 'Sequence[int]', 'str', 'Any', 'int', 'Any']
    """
    if name.startswith("desc"):
        return "Sequence[int]"
    if name in _LETTERS:
        return "str"
    is_integer = name in ("m", "n", "k", "nrhs") or (name[0] in "ij" and len(name) <= 2) or name.startswith("inc")
    return "int" if is_integer else "Any"


def _returns(name: str, function: Any, signature: inspect.Signature) -> str:
    """The type of the result: that of the function, or of the body that all types share; real for real routines."""
    annotation = signature.return_annotation
    if not isinstance(annotation, str):
        annotation = inspect.getclosurevars(function).nonlocals["body"].__annotations__["return"]
    return str(annotation).replace("Number", "Real") if name[1] in "sd" else str(annotation)


if __name__ == "__main__":
    print(text(), end="")

"""Writes the types of `pblas.scalapack`, whose routines a table makes, for editors and type checkers that run nothing.

hatchling calls this in each build, also in `pip install -e .`; in a checkout `make check-types` does. Only Python and
hatchling are imported, so that the build needs nothing else.

    python hatch_build.py
"""

from __future__ import annotations

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path(__file__).parent / "pblas/scalapack"
STUB = FOLDER / "__init__.pyi"
_HEAD = """\
# Made by hatch_build.py.
from collections.abc import Sequence
from typing import IO, TypeAlias

from pblas.backends.dtypes import Array, Number, Real
"""


class Hook(BuildHookInterface[Any]):
    """Writes the stub, and adds what git ignores to the wheel and the sdist: the stub, and machine code if any."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        STUB.write_text(text(), encoding="utf-8")
        build_data["artifacts"] += ["pblas/scalapack/__init__.pyi", "pblas/backends/cuda/cubins/*"]


def text() -> str:
    """The stub: what `__init__.py` imports by name, and the routines that the functions of its modules make."""
    imports = [node for node in _body(FOLDER / "__init__.py") if isinstance(node, ast.ImportFrom)]
    named = [(node.module, x.name) for node in imports for x in node.names if not x.asname]
    plain = {name: module for module, name in named if module != "pblas.scalapack"}
    made = dict(_definitions())
    exported = [f'    "{name}",' for name in sorted({*plain, *made} - {"exit"})]  # `import *` leaves it to Python
    lines = [f"from {module} import {name} as {name}" for name, module in plain.items()]
    lines += ["", "Desc: TypeAlias = Sequence[int]", "__all__ = [", *exported, "]", "", *made.values()]
    return _HEAD + "\n".join(lines) + "\n"


def _definitions() -> Iterator[tuple[str, str]]:
    """The routines of `@of_types(routines.SYMM, routines.HEMM)`: names, and lines with their arguments."""
    table = runpy.run_path(str(FOLDER / "routines.py"))
    for path in sorted(FOLDER.glob("*.py")):
        for node in _body(path):
            match node:
                case ast.FunctionDef(decorator_list=[ast.Call(func=ast.Name("of_types"), args=args)]):
                    returns = ast.unparse(node.returns) if node.returns else "None"
                    for routine in (table[argument.attr] for argument in args if isinstance(argument, ast.Attribute)):
                        parameters = routine.signature.parameters.values()
                        shown = (f"{x.name}: {x.annotation}{' = ...' * (x.default is not x.empty)}" for x in parameters)
                        line, kind = f"{routine.name}({', '.join(shown)})", returns
                        for prefix in routine.prefixes:
                            of_type = kind.replace("Number", "Real") if prefix in ("ps", "pd") else kind
                            yield prefix + routine.name, f"def {prefix}{line} -> {of_type}: ..."


def _body(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text(encoding="utf-8")).body


if __name__ == "__main__":
    STUB.write_text(text(), encoding="utf-8")

"""Public names of a package that are imported at their first use (PEP 562), so that the package loads nothing before.

Type checkers see the same names as imports under `if TYPE_CHECKING`; `tests/unit/test_imports.py` compares both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy(
    package: str, names: Mapping[str, str], modules: str = ""
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package.

    Args:
        package: its name.
        names: the public names that each module defines, separated by blanks.
        modules: its public modules, which are no part of `__all__`.
    """
    module_of = {name: module for module, defined in names.items() for name in defined.split()}
    namespace, public = sys.modules[package].__dict__, sorted(module_of)

    def get(name: str) -> object:
        if name in modules.split():
            return import_module(f"{package}.{name}")  # the import makes it an attribute
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = namespace[name] = getattr(import_module(module_of[name]), name)
        return value

    def names_of_all() -> list[str]:
        return sorted({*public, *modules.split(), *(name for name in namespace if name.startswith("__"))})

    return get, names_of_all, public

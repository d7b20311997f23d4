"""Public names of a package that are imported at their first use (PEP 562), so that the package loads nothing before.

Type checkers see the same names as imports under `if TYPE_CHECKING`; `tests/unit/test_imports.py` compares both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from opcode import opmap


def missing(package: str, name: str, names: Iterable[str]) -> AttributeError | ImportError:
    """The error of a name that a package lacks, with the names that are most like it; to be raised in `__getattr__`.

    `from package import name` would replace an AttributeError by an error without them.

    >>> print(missing("pblas.linalg", "cholesky_factor", ["cho_factor", "cholesky", "det"]))
    module 'pblas.linalg' has no attribute 'cholesky_factor'; it has cho_factor, cholesky; dir(pblas.linalg) lists all
    """
    caller, more = sys._getframe(2), ""  # noqa: SLF001 - the code that asks `__getattr__`
    if not name.startswith("_"):  # Python asks for such names
        from difflib import get_close_matches

        near = ", ".join(get_close_matches(name, names, 5))
        more = f"; {f'it has {near}; ' if near else ''}dir({package}) lists all"
    if caller.f_code.co_code[caller.f_lasti] == opmap["IMPORT_FROM"]:
        return ImportError(f"cannot import name {name!r} from {package!r}{more}", name=package)
    return AttributeError(
        f"module {package!r} has no attribute {name!r}{more}", name=name, obj=sys.modules.get(package)
    )


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
            raise missing(package, name, names_of_all())
        value = namespace[name] = getattr(import_module(module_of[name]), name)
        return value

    def names_of_all() -> list[str]:
        return sorted({*public, *modules.split(), *(name for name in namespace if name.startswith("__"))})

    return get, names_of_all, public

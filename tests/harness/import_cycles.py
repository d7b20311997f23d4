"""Proof that imports run one way: python tests/harness/import_cycles.py

Every import statement counts, also under TYPE_CHECKING and inside functions. The graph has one node per module of
`pblas` (with `layouts` and `backends`, which are linked into it) and of `benchmarks`. A name that a package re-exports
is an import of the module that defines it. The program prints one cycle of each strongly connected component and ends
with status 1 if there is any.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pblas", "benchmarks")

LAZY = ("pblas",)
"""Packages whose `__init__` imports its public names at their first use."""

Graph = dict[str, set[str]]


def modules(root: Path) -> dict[str, Path]:
    """The file of each module, by its name."""
    paths = {}
    for package in PACKAGES:
        folders = [root / package]
        while folders:  # not rglob, which does not follow links
            folder = folders.pop()
            for path in sorted(folder.iterdir()):
                if path.is_dir() and path.name != "__pycache__":
                    folders.append(path)
                elif path.suffix == ".py":
                    parts = path.relative_to(root).with_suffix("").parts
                    paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def imports(importer: str, tree: ast.AST, known: Iterable[str]) -> list[tuple[str, str | None]]:
    """(module, name) of each import of a known module, name None where the module itself is imported.

    Programs in one folder of `benchmarks` import each other by their bare names.
    """
    names: list[tuple[str, str | None]] = []
    folder = importer.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                names.append((module, None) if module in known else (node.module, alias.name))
    if importer.startswith("benchmarks."):
        names = [(f"{folder}.{module}" if f"{folder}.{module}" in known else module, name) for module, name in names]
    return [(module, name) for module, name in names if module in known]


def graph(root: Path) -> Graph:
    """The modules that each module imports."""
    files = modules(root)
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in files.items()}
    raw = {name: imports(name, tree, files) for name, tree in trees.items()}
    exported = {
        package: {name: module for module, name in raw[package] if name is not None}
        for package, path in files.items()
        if path.name == "__init__.py"
    }

    def definition(module: str, name: str | None) -> str:
        """The module that defines a name, found through the packages that re-export it."""
        while name is not None and name in exported.get(module, {}):
            module = exported[module][name]
        return module

    links: Graph = {}
    for importer, entries in raw.items():
        targets = {definition(*entry) for entry in entries} - {importer}
        links[importer] = set() if importer in LAZY else targets
    return links


def components(links: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module (Tarjan 1972)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    cycles: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        stack.append(module)
        for target in sorted(links[module]):
            if target not in number:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], number[target])
        if low[module] == number[module]:
            first = stack.index(module)
            if len(stack) - first > 1:
                cycles.append(stack[first:])
            del stack[first:]

    for module in sorted(links):
        if module not in number:
            visit(module)
    return cycles


def cycle(links: Mapping[str, set[str]], component: list[str]) -> list[str]:
    """A shortest cycle through the first module of a component, that module at both ends."""
    start = min(component)
    came: dict[str, str] = {}
    queue = [start]
    for module in queue:
        for target in sorted(links[module] & set(component)):
            if target == start:
                path = [module]
                while path[-1] != start:
                    path.append(came[path[-1]])
                return [*reversed(path), start]
            if target not in came:
                came[target] = module
                queue.append(target)
    raise AssertionError(component)


def main(root: Path = ROOT) -> int:
    """Print the cycles; return 0 if there are none, else 1."""
    links = graph(root)
    cycles = components(links)
    for component in cycles:
        print(f"{len(component)} modules import each other: {', '.join(sorted(component))}")
        print(f"    {' -> '.join(cycle(links, component))}")
    print(f"{len(links)} modules, {sum(map(len, links.values()))} imports, {len(cycles)} cycles")
    return 1 if cycles else 0


if __name__ == "__main__":
    sys.exit(main())

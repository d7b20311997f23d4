"""Described hardware in TOML files: the fields of `Hardware` by their names, the links as tables `near` and `far`."""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from pblas.errors import ArgumentError, FileFormatError
from pblas.simulation.hardware import PRESETS, Hardware, Link

KindT = TypeVar("KindT", Hardware, Link)


def find_hardware(hardware: Hardware | str) -> Hardware:
    """The preset of a name, or what a file NAME.toml describes; a `Hardware` is returned as it is.

    >>> find_hardware("nvlink").ranks_per_node
    8
    """
    if isinstance(hardware, Hardware):
        return hardware
    name: object = hardware  # users may pass any type; a list would raise TypeError in the lookup
    if isinstance(name, str) and name.endswith(".toml"):
        return read_hardware(name)
    if not isinstance(name, str) or name not in PRESETS:
        names = ", ".join(PRESETS)
        raise ArgumentError(f"hardware is {hardware!r}; expected a pblas.Hardware, one of {names}, or a file NAME.toml")
    return PRESETS[name]


def read_hardware(path: str) -> Hardware:
    """The hardware that a TOML file describes.

    Raises:
        FileFormatError: the file cannot be read, is no TOML, or has wrong fields or values.
    """
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror}; `pblas bench --hardware` makes one") from None
    except ValueError as error:
        raise FileFormatError(f"{path}: expected TOML, got: {error}") from None
    links = {name: _made(path, name, Link, values.get(name)) for name in ("near", "far")}
    return _made(path, "the file", Hardware, values | links)


def hardware_text(hardware: Hardware) -> str:
    """The TOML text of described hardware, which `read_hardware` reads.

    >>> from pblas.simulation.hardware import LAPTOP
    >>> print(hardware_text(LAPTOP).partition("float64")[0])
    name = "laptop"
    ranks_per_node = 2
    <BLANKLINE>
    """
    values = asdict(hardware)
    links = {name: values.pop(name) for name in ("near", "far")}
    lines = [*_lines(values), *(line for name, link in links.items() for line in ("", f"[{name}]", *_lines(link)))]
    return "\n".join(lines) + "\n"


def _lines(values: dict[str, Any]) -> list[str]:
    """Lines of TOML; a field that is None is left out."""
    texts = {key: f'"{x}"' if isinstance(x, str) else str(x).lower() for key, x in values.items() if x is not None}
    return [f"{key} = {text}" for key, text in texts.items()]


def _made(path: str, where: str, kind: type[KindT], values: Any) -> KindT:
    """The value that a table describes, which has no unknown field and lacks none."""
    if not isinstance(values, dict):
        raise FileFormatError(
            f"{path}: {where} is {values!r}; expected a table [{where}] with the fields of pblas.Link"
        )
    known = {field.name: field.default is MISSING for field in fields(kind)}
    unknown = sorted(values.keys() - known)
    missing = [name for name, is_needed in known.items() if is_needed and name not in values]
    if unknown or missing:
        text = f"unknown fields {', '.join(unknown)}" if unknown else f"no {', '.join(missing)}"
        raise FileFormatError(
            f"{path}: {where} has {text}; expected the fields of pblas.{kind.__name__}: {', '.join(known)}"
        )
    try:
        return kind(**values)
    except ArgumentError as error:
        raise FileFormatError(f"{path}: {where}: {error}") from None

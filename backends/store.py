"""Files of what was tuned or measured: JSON that several processes read and write, each of them whole or not at all.

A file that cannot be read is no error: what it held is found out again.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

Entry = TypeVar("Entry")


def store_path(*names: str) -> Path | None:
    """$XDG_CACHE_HOME/pblas/NAMES.json, with ~/.cache in place of a variable that is not set; None without a home.

    >>> import pytest
    >>> with pytest.MonkeyPatch.context() as patch:
    ...     patch.setenv("XDG_CACHE_HOME", "/cache")
    ...     print(store_path("gemm", "NVIDIA H200"))
    /cache/pblas/gemm-NVIDIA_H200.json
    """
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # neither $HOME nor the list of users knows one, as in some containers
        return None
    plain = (re.sub(r"[^A-Za-z0-9.]+", "_", name) for name in names)
    return Path(cache, "pblas", f"{'-'.join(plain)}.json")


def load(path: Path | None, what: str, version: int, read: Callable[[Any], Entry]) -> list[Entry]:
    """What the file holds; nothing, with a warning, if it is corrupt.

    Args:
        path: of the file; None holds nothing.
        what: it holds, for the warning.
        version: of its format; a file of another one counts as empty.
        read: makes an entry of its JSON, or raises an exception.
    """
    if path is None:
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return [read(entry) for entry in content["choices"]] if content["format"] == version else []
    except FileNotFoundError:
        return []
    except Exception as error:  # noqa: BLE001 - JSON may hold anything: the wrong types, numbers or depth
        warnings.warn(f"{path}: {what} are ignored, the file is unreadable ({error!r})", stacklevel=3)
        return []


def save(path: Path | None, what: str, version: int, entries: Iterable[Any]) -> None:
    """Replace the file; readers see the old one or the new one. Where it cannot be written, a warning says so.

    Args:
        path: of the file; None to keep nothing.
        what: it holds, for the warning.
        version: of its format.
        entries: as JSON can hold them.
    """
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=path.name, suffix=".part", delete=False
        ) as file:
            try:
                json.dump({"format": version, "choices": list(entries)}, file)
                file.close()
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        warnings.warn(f"{path}: {what} are not kept, the file cannot be written ({error!r})", stacklevel=3)

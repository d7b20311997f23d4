"""Tuned and measured values by key, the same on all ranks, and the JSON files that keep them between programs.

Several processes may read and write a file; each read and write is atomic. An unreadable file is no error: its values
are measured again.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pblas.backends import log
from pblas.errors import PblasWarning

Key = TypeVar("Key")
Value = TypeVar("Value")


class Ranks(Protocol):
    """Ranks that share a cache: a backend."""

    @property
    def rank(self) -> int:
        """This rank's number (local)."""

    def broadcast_object(self, value: object, root: int) -> Any:
        """**Collective.** A small Python value of `root`, on all ranks."""


def store_path(*names: str) -> Path | None:
    """$XDG_CACHE_HOME/pblas/NAMES.json; ~/.cache if the variable is not set; None without a home directory.

    >>> import pytest
    >>> with pytest.MonkeyPatch.context() as patch:
    ...     patch.setenv("XDG_CACHE_HOME", "/cache")
    ...     print(store_path("gemm", "NVIDIA H200"))
    /cache/pblas/gemm-NVIDIA_H200.json
    """
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # no home directory in $HOME or the list of users, as in some containers
        return None
    plain = (re.sub(r"[^A-Za-z0-9.]+", "_", name) for name in names)
    return Path(cache, "pblas", f"{'-'.join(plain)}.json")


class Cache(Generic[Key, Value]):
    """Values by key, and the file that keeps them.

    The name of the file holds all that the values depend on besides the key: the GPU, versions of libraries.

    `read` converts an entry's JSON to a key and its value, or raises an exception; `plain` converts back. A file of
    another `version` counts as empty.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        what: str,
        version: int,
        read: Callable[[Any], tuple[Key, Value]],
        plain: Callable[[Key, Value], dict[str, object]],
    ) -> None:
        self.path: Path | None = store_path(*names)  # the file; None without a home directory (local)
        self.entries: dict[Key, Value] = {}
        self._what, self._version, self._read, self._plain = what, version, read, plain

    def load(self) -> None:
        """Add the file's entries; a corrupt file adds none and costs a warning (local)."""
        self.entries.update(self._stored())

    def save(self) -> None:
        """Merge all entries into the file, which other processes may have changed since it was read (local).

        Readers see the old file or the new one. If the file cannot be written, the method warns.
        """
        if self.path is None:
            return
        entries = [self._plain(key, value) for key, value in (self._stored() | self.entries).items()]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=self.path.parent, prefix=self.path.name, suffix=".part", delete=False
            ) as file:
                try:
                    json.dump({"format": self._version, "choices": entries}, file)
                    file.close()
                    Path(file.name).replace(self.path)
                except BaseException:
                    Path(file.name).unlink(missing_ok=True)
                    raise
        except OSError as error:
            text = f"{self.path}: {self._what} are not kept, the file cannot be written ({error!r})"
            warnings.warn(text, PblasWarning, stacklevel=3)

    def share(self, ranks: Ranks, action: Callable[[], None] | None = None) -> None:
        """**Collective.** Add the entries of rank 0, and so of its file, on all ranks."""
        error: Exception | None = None
        if ranks.rank == 0 and action is not None:
            try:
                action()
                if self.entries:
                    number, action_name = len(self.entries), action.__name__
                    log.write(log.INFO, ranks.rank, "%s %s: %d %s", action_name, self.path, number, self._what)
            except Exception as caught:  # noqa: BLE001 - the other ranks wait, whatever the error
                error = caught
        entries, error = ranks.broadcast_object((self.entries, error) if ranks.rank == 0 else None, 0)
        self.entries.update(entries)
        if error is not None:
            raise error

    def _stored(self) -> dict[Key, Value]:
        """The file's entries; none, with a warning, if it is corrupt (local)."""
        if self.path is None:
            return {}
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            return dict(map(self._read, content["choices"])) if content["format"] == self._version else {}
        except FileNotFoundError:
            return {}
        except Exception as error:  # noqa: BLE001 - JSON may hold anything: the wrong types, numbers or depth
            text = f"{self.path}: {self._what} are ignored, the file is unreadable ({error!r})"
            warnings.warn(text, PblasWarning, stacklevel=3)
            return {}

"""The cache of machine code: hits, replacement of damaged files, and compilation without a cache folder."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import pytest

from pblas import errors
from pblas.backends.nvshmem.hopper import machine_code
from pblas.errors import PblasWarning

MACROS = [("TYPE", "1")]


class Compiler:
    """A stand-in for cuda.core: compiles each source to a number, and keeps files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def modules(self) -> dict[str, ModuleType]:
        core, utils = ModuleType("cuda.core"), ModuleType("cuda.core.utils")
        core.__dict__.update(ProgramOptions=lambda **options: options, Program=self.program)
        utils.__dict__.update(FileStreamProgramCache=lambda: Kept(self.folder), make_program_cache_key=self.key)
        return {"cuda": ModuleType("cuda"), "cuda.core": core, "cuda.core.utils": utils}

    @staticmethod
    def key(*, code: str, code_type: str, options: Any, target_type: str) -> str:
        assert (code_type, target_type, options["arch"]) == ("c++", "cubin", "sm_90a")
        return f"{code}-{options['define_macro']}"

    def program(self, text: str, kind: str, options: Any) -> Any:
        def compile_(target: str, cache: Any = None) -> Any:
            key = self.key(code=text, code_type=kind, options=options, target_type=target)
            if cache is not None and key in cache:
                return SimpleNamespace(code=cache[key])
            if text == "int x":
                raise RuntimeError("line 1: no")
            self.count += 1
            code = f"machine code {self.count}".encode()
            if cache is not None:
                cache[key] = code
            return SimpleNamespace(code=code)

        return SimpleNamespace(compile=compile_)


class Kept(dict[str, bytes]):
    """A cache of one file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._files = folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __contains__(self, key: object) -> bool:
        return (self._files / str(key)).exists()

    def __getitem__(self, key: str) -> bytes:
        return (self._files / key).read_bytes()

    def __setitem__(self, key: str, code: bytes) -> None:
        (self._files / key).write_bytes(code)


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    compiler = Compiler(tmp_path / "cache")
    for name, module in compiler.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return compiler


def test_each_source_and_setting_is_compiled_once(compiler: Compiler) -> None:
    assert machine_code("a", MACROS) == machine_code("a", MACROS) == b"machine code 1"
    assert machine_code("a", [("TYPE", "2")]) == b"machine code 2"


def test_a_damaged_file_is_replaced(compiler: Compiler) -> None:
    machine_code("a", MACROS)
    (path,) = compiler.folder.iterdir()
    path.write_bytes(b"rubbish")
    assert machine_code("a", MACROS) == b"rubbish", "only who loads it sees that"
    assert machine_code("a", MACROS, anew=True) == b"machine code 2"
    assert machine_code("a", MACROS) == b"machine code 2"


def test_without_a_folder_each_call_compiles_and_warns(compiler: Compiler) -> None:
    compiler.folder.write_text("no folder")
    for count in (1, 2):
        with pytest.warns(PblasWarning, match="compiled kernels are not kept.*XDG_CACHE_HOME"):
            assert machine_code("a", MACROS, anew=count == 2) == f"machine code {count}".encode()


@pytest.mark.parametrize(("module", "name"), [("cuda.core", "Program"), ("cuda.core.utils", "FileStreamProgramCache")])
def test_a_compiler_that_is_too_old_is_named_with_the_remedy(compiler: Compiler, module: str, name: str) -> None:
    del sys.modules[module].__dict__[name]
    with pytest.raises(errors.BackendError, match=rf"compiled for sm_90a: .*{name}.* pip install 'cuda-core>="):
        machine_code("a", MACROS)


def test_a_failed_compilation_is_a_backend_error(compiler: Compiler) -> None:
    with pytest.raises(errors.BackendError, match="cannot be compiled for sm_90a: line 1: no"):
        machine_code("int x", MACROS)

"""Laws of pblas.scalapack that need no MPI: positions of arguments, index maps from 1, descriptors."""

import ast
import builtins
import inspect
import itertools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hatch_build
from pblas import PblasArgumentError, scalapack
from pblas.core.checks import overlaps_itself
from pblas.scalapack import routines
from pblas.scalapack.descriptors import Entries, cut
from pblas.scalapack.tools import edited
from tests.conformance.tables import ARGUMENTS, ERROR_EXITS, error_exits


@pytest.mark.parametrize("routine", [getattr(routines, name.upper()) for name in ERROR_EXITS])
def test_positions_are_those_of_pblas(routine: routines.Routine) -> None:
    assert list(routine.arguments) == ARGUMENTS[routine.name].split()
    assert len(error_exits(routine.name)) == ERROR_EXITS[routine.name]
    for operand in routine.operands:
        assert routine.arguments[operand.position + 2] == f"DESC{operand.name}"


NAME = "p(?:sc|dz|cs(?=scal)|zd(?=scal)|[sdcz])(?=.)(?!oord)(.*)"
"""Names of routines: p, the letters of the type, and the name for all types."""


@pytest.mark.parametrize("name", [name for name in dir(scalapack) if re.fullmatch(NAME, name)])
def test_every_call_takes_the_arguments_of_its_routine(name: str) -> None:
    matched = re.fullmatch(NAME, name)
    assert matched is not None
    general = name[2:] if hasattr(routines, name[2:].upper()) else matched[1]
    routine = getattr(routines, general.upper())
    if name[1] in "cz":
        routine = getattr(routines, f"{general.upper()}_COMPLEX", routine)
    call = getattr(scalapack, name)
    expected = [argument.lower() for argument in routine.arguments if argument not in routine.returned]
    assert list(inspect.signature(call).parameters) == expected
    assert call.__name__ == name
    described = re.findall(r"^    (\w+): \w*", call.__doc__.partition("Args:\n")[2].partition("\n\n")[0], re.MULTILINE)
    assert described == expected
    assert "CTXT" in call.__doc__


def test_the_page_lists_every_routine_with_its_types() -> None:
    page = (Path(__file__).parents[2] / "docs/scalapack.md").read_text()
    table = page.partition("| | routines | types |\n")[2].partition("\n\n")[0]
    listed: list[str] = []
    for row in table.splitlines()[1:]:
        _, _, names, types, _ = (cell.strip() for cell in row.split("|"))
        letters = types.partition(";")[0].split(", ")
        listed += [name.replace("?", letter) for name in names.split(", ") for letter in letters]
    assert len(listed) == len(set(listed))
    assert set(listed) == {*scalapack.__all__, "exit"} - {"PblasArgumentError"}


def test_import_star_hides_no_builtin() -> None:
    names: dict[str, object] = {}
    exec("from pblas.scalapack import *", names)
    assert not {*names} & {*dir(builtins)} - {"__builtins__"}
    assert {"pdgemm", "pdgemv", "pscnrm2", "pdlange", "gridinit", "PblasArgumentError"} <= names.keys()


def test_index_maps_count_from_1() -> None:
    for n, nb, nprocs in itertools.product((1, 7, 9), (1, 2, 5), (1, 2, 3)):
        for src in range(nprocs):
            seen = [0] * nprocs
            for g in range(1, n + 1):
                p = scalapack.indxg2p(g, nb, 0, src, nprocs)
                assert p == (src + (g - 1) // nb) % nprocs
                seen[p] += 1
                assert scalapack.indxg2l(g, nb, 0, src, nprocs) == seen[p]
                assert scalapack.indxl2g(seen[p], nb, p, src, nprocs) == g
            assert seen == [scalapack.numroc(n, nb, p, src, nprocs) for p in range(nprocs)]


@pytest.mark.parametrize("inb", [None, 1, 3])
def test_infog2l_says_where_a_submatrix_starts(inb: int | None) -> None:
    nb, nprow, npcol, n = 2, 2, 3, 9
    desc = [1, 0, n, n, nb, nb, 1, 2, n] if inb is None else [2, 0, n, n, inb, inb, nb, nb, 1, 2, n]
    owned = {(p, q): ([0] * (n + 1), [0] * (n + 1)) for p in range(nprow) for q in range(npcol)}
    first = inb or nb
    for g in range(n):
        block = 0 if g < first else 1 + (g - first) // nb
        for (p, q), (rows, columns) in owned.items():
            rows[g + 1] = rows[g] + ((1 + block) % nprow == p)
            columns[g + 1] = columns[g] + ((2 + block) % npcol == q)
    for (p, q), (rows, columns) in owned.items():
        for i, j in ((1, 1), (3, 4), (9, 2)):
            lr, lc, rsrc, csrc = scalapack.infog2l(i, j, desc, nprow, npcol, p, q)
            assert (lr, lc) == (rows[i - 1] + 1, columns[j - 1] + 1)
            assert owned[rsrc, 0][0][i] == owned[rsrc, 0][0][i - 1] + 1
            assert owned[0, csrc][1][j] == owned[0, csrc][1][j - 1] + 1


def test_infog2l_refuses_invalid_descriptors() -> None:
    with pytest.raises(PblasArgumentError, match="must be a descriptor") as caught:
        scalapack.infog2l(1, 1, [3, 0], 1, 1, 0, 0)
    assert caught.value.info == -301


@pytest.mark.parametrize(
    ("info", "call"),
    [
        (-2, lambda: scalapack.descinit("a", 1, 1, 1, 0, 0, 0, 1)),  # type: ignore[arg-type]
        (-2, lambda: scalapack.pnum(0, "a", 0)),  # type: ignore[arg-type]
        (-1, lambda: scalapack.infog2l("a", 1, [1, 0, 5, 8, 2, 3, 0, 0, 4], 1, 1, 0, 0)),  # type: ignore[arg-type]
        (-1, lambda: scalapack.numroc(4.5, 2, 0, 0, 1)),  # type: ignore[arg-type]
        (-1, lambda: scalapack.indxg2l(0, 2, 0, 0, 1)),
        (-1, lambda: scalapack.indxg2p(0, 2, 0, 0, 1)),
        (-1, lambda: scalapack.indxl2g(0, 2, 0, 0, 1)),
    ],
)
def test_what_is_no_integer_has_its_number(info: int, call: Callable[[], object]) -> None:
    with pytest.raises(PblasArgumentError, match=r"must be an integer.*, got ('a'|4\.5|0)$") as caught:
        call()
    assert caught.value.info == info


@pytest.mark.parametrize(
    ("shape", "strides", "folds"),
    [((3, 2), (8, 24), False), ((3, 2), (8, 0), True), ((3, 2), (8, 8), True), ((3, 2), (-16, 8), False),
     ((2, 3), (24, 16), False), ((3, 4), (24, 16), True), ((3, 3), (24, 16), False),
     ((1, 1), (0, 0), False), ((0, 9), (0, 0), False)],
)  # fmt: skip
def test_elements_in_one_place_are_seen(shape: tuple[int, int], strides: tuple[int, int], folds: bool) -> None:
    x = np.lib.stride_tricks.as_strided(np.zeros(99)[50:], shape, strides)
    assert overlaps_itself(x) == folds


@pytest.mark.parametrize(
    "desc", [None, 7, [1, 0, 5], [2, 0, 5, 5, 1, 1, 0, 0, 5], [3] + 10 * [1], [1.0] * 9, "123456789"]
)
def test_what_is_no_descriptor_is_none(desc: object) -> None:
    assert Entries.read(desc) is None


def test_descriptors_are_lists_or_arrays_of_9_or_11() -> None:
    nine, eleven = [1, 0, 5, 8, 2, 3, 0, 1, 4], [2, 0, 5, 8, 1, 2, 2, 3, 0, 1, 4]
    assert Entries.read(nine) == Entries.read(np.array(nine, np.int32)) == Entries((2, 0, 5, 8, 2, 3, 2, 3, 0, 1, 4))
    assert Entries.read(tuple(eleven)) == Entries(tuple(eleven))


def test_local_arrays_are_cut_without_a_copy() -> None:
    x = np.arange(20.0).reshape(4, 5)
    for array, lld in ((x, 99), (np.asfortranarray(x), 99), (x.ravel(), 5)):
        part = cut(array, (3, 4), lld)
        assert part is not None
        assert part.shape == (3, 4)
        assert np.shares_memory(part, array)
    assert cut(x, (5, 5), 5) is None
    assert cut(x.ravel(), (4, 6), 4) is None
    assert cut(np.arange(40.0)[::2], (4, 5), 4) is None
    assert cut(np.array(1.0), (1, 1), 1) is None
    empty = cut(x, (0, 7), 1)
    assert empty is not None
    assert empty.shape == (0, 7)


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (0.0, "0.000000000000000000D+00"),
        (-0.0, "-0.000000000000000000D+00"),
        (-1.5, "-0.150000000000000000D+01"),
        (1e-5, "0.100000000000000008D-04"),
        (1e100, "0.100000000000000002+101"),
        (-1e-100, "-0.100000000000000002D-99"),
        (9.99999999999999999e22, "0.999999999999999916D+23"),
        (1e-99, "0.100000000000000002D-98"),
        (1e99, "0.999999999999999967D+99"),
        (1.7976931348623157e308, "0.179769313486231571+309"),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_numbers_are_edited_as_by_fortran(x: float, text: str) -> None:
    """The texts are the output of GNU Fortran's D30.18."""
    assert edited(x, "D", 30, 18) == text.rjust(30)


def test_editors_see_the_arguments_of_every_routine() -> None:
    stub = ast.parse(hatch_build.text()).body
    defined = {node.name: ast.unparse(node.args) for node in stub if isinstance(node, ast.FunctionDef)}
    imported = {name.asname for node in stub if isinstance(node, ast.ImportFrom) for name in node.names}
    assert {*defined, *filter(None, imported)} == {*scalapack.__all__, "exit"}
    for name, arguments in defined.items():
        parameters = inspect.signature(getattr(scalapack, name)).parameters.values()
        shown = [f"{x.name}: {x.annotation}{'' if x.default is x.empty else '=...'}" for x in parameters]
        assert arguments == ", ".join(shown), name
    scope: dict[str, object] = {}
    exec("from pblas.scalapack import *", scope)
    (exported,) = (node.value for node in stub if isinstance(node, ast.Assign))
    assert ast.literal_eval(exported) == scalapack.__all__ == sorted({*scope} - {"__builtins__"})

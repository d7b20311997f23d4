"""Laws of the documentation: every code block runs or says why not, and pictures and glossary follow the code."""

import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import pblas
from pblas import Grid, MatrixDescriptor, blas, linalg
from tests.common.pages import PAGES, ROOT, RUN, Block, blocks_of, running

PICTURES = [block for page in PAGES for block in blocks_of(page) if block.language == "{layout}"]


def glossary() -> tuple[list[str], str]:
    """The first term of each entry, and the text of all."""
    (block,) = (block for block in blocks_of("docs/glossary.md") if block.language == "{glossary}")
    return [line.split(",")[0] for line in block.body.split("\n") if line[:1] not in {"", " ", ":"}], block.body


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs_or_says_why_not(page: str) -> None:
    """Tests compare the `text` blocks of a page with the output of its script, so a page with such blocks has one."""
    blocks = blocks_of(page)
    silent = [
        str(block) for block in blocks if not (block.language in RUN or block.language[:1] == "{" or block.reason)
    ]
    assert not silent, "blocks that do not run and give no reason: <!-- not run: REASON --> in the line before"
    assert running(page, "python") or not running(page, "text")


@pytest.mark.parametrize("block", PICTURES, ids=str)
def test_layouts_can_be_drawn(block: Block) -> None:
    desc = eval(block.argument, {"Grid": Grid, "MatrixDescriptor": MatrixDescriptor})
    assert desc.picture().startswith(f"{desc.m} x {desc.n} matrix")


def layers() -> list[set[str]]:
    """The packages of each layer of the contract that import-linter checks, without _operators and __main__."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = [
        set(re.findall(r"\b[a-z]\w*", layer)) for layer in project["tool"]["importlinter"]["contracts"][0]["layers"]
    ]
    return [layer for layer in named if layer]


def test_the_picture_of_the_packages_has_all_of_them() -> None:
    """In the rows, and in the order, that import-linter checks."""
    svg = (ROOT / "docs/architecture/packages.svg").read_text(encoding="utf-8")
    drawn: dict[str, set[str]] = {}
    for y, names in re.findall(r'<text class="package" x="\d+" y="(\d+)">([^<]*)</text>', svg):
        drawn.setdefault(y, set()).update(re.findall(r"\w+", names))
    rows = [drawn[y] for y in sorted(drawn, key=int)]
    assert rows == layers()


@pytest.mark.parametrize("page", ["docs/architecture/index.md", "CONTRIBUTING.md"])
def test_the_tables_of_a_page_have_all_packages(page: str) -> None:
    rows = re.findall(r"^\| (.*?) \|", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    named = {name for row in rows for code in re.findall(r"`([^`]*)`", row) for name in re.findall(r"\w+", code)}
    missing = set().union(*layers()) - named
    assert missing <= ({"config", "gpu", "epilogues", "errors"} if page == "CONTRIBUTING.md" else set())


def test_the_glossary_defines_every_row_of_explain() -> None:
    grid, wide = Grid(2, 2), 600
    general = MatrixDescriptor(wide, wide, 32, 32, grid), MatrixDescriptor(wide, wide, 64, 64, grid)
    rows = MatrixDescriptor.row_wise(wide, wide, 4)
    elementwise = pblas.plan_elementwise("x * s + y", x=rows, y=rows.T, s=2.0, dtype="float64").explain()
    texts = [
        pblas.plan_matmul(*general, dtype="float64").explain(),
        pblas.plan_matmul(rows, rows, dtype="float64").explain(),
        pblas.plan_redistribution(rows, rows.T, trans="T", dtype="float64").explain(),
        linalg.plan_lu(rows, dtype="float64").explain(),
        blas.plan_syr2k(rows, rows, dtype="float64").explain(),
        blas.plan_symm(rows, rows, dtype="float64").explain(),
        blas.plan_trmm(rows, rows, dtype="float64").explain(),
        blas.plan_trsm(rows, rows, dtype="float64").explain(),
        "\n".join(line for line in elementwise.splitlines() if line.split()[0] not in ("x", "y", "s")),
    ]
    rows_of_plans = [line for text in texts for line in text.splitlines()[1:] if line[2] != " "]  # else it goes on
    keys = {line.split()[0] for line in rows_of_plans}
    assert {"why", "moves", "received", "misfit", "workspace"} <= keys
    terms, text = glossary()
    missing = [key for key in keys if key not in terms and f"`{key}`" not in text]
    assert not missing


def functions() -> dict[str, Any]:
    """The public functions by name, but those of pblas.scalapack and pblas.torch."""
    found = {}
    for module in (pblas, blas, linalg, pblas.tp, pblas.layouts):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value):
                found[f"{module.__name__}.{name}"] = value
    return found


def test_every_function_has_a_page_with_relatives_and_an_example() -> None:
    names = set(functions())
    text = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    blocks = re.findall(r"\.\. functions::\n\n((?: +\S+\n)+)", text)
    assert names == {name for name in " ".join(blocks).split() if ".torch." not in name}
    related = (ROOT / "docs/related.txt").read_text(encoding="utf-8").splitlines()[1:]
    groups = [{f"pblas.{name.removeprefix('pblas.')}" for name in line.partition(":")[0].split()} for line in related]
    assert set().union(*groups) == names
    assert all((ROOT / f"docs/{line.rpartition(': ')[2]}.md").exists() for line in related)
    assert all(len(group) > 1 for group in groups)
    shown = {
        name for name, function in functions().items() if re.search(">>> |Example::", inspect.getdoc(function) or "")
    }
    assert {name for name in names - shown if ".tp." not in name} == set()


def test_names_that_are_called_missing_are_missing() -> None:
    """The page says for each what to write; a name that pblas gets by and by is no entry of it any more."""
    rows = re.findall(r"^\| (.*?) \|", (ROOT / "docs/other_names.md").read_text(encoding="utf-8"), re.MULTILINE)
    missing = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {"eig", "schur", "sort", "einsum"} <= missing
    assert not {name for name in missing if hasattr(pblas, name) or hasattr(linalg, name) or hasattr(blas, name)}


def test_the_glossary_is_in_alphabetical_order() -> None:
    """That each term is defined once, Sphinx checks."""
    terms, _ = glossary()
    assert len(terms) > 80
    assert terms == sorted(terms, key=str.lower)


def test_the_index_lists_every_page_of_the_sidebar_once() -> None:
    """But for the pages on architecture and on performance after the first one."""
    text = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\* \[[^]]*\]\((.*)\.md\):", text, re.MULTILINE)
    trees = [block.body for block in blocks_of("docs/index.md") if block.language == "{toctree}"]
    sidebar = [line for tree in trees for line in tree.splitlines() if line and line[0] != ":"]
    inner = [page for page in sidebar if "/" in page and page != "architecture/index"]
    assert inner
    assert listed == [page for page in sidebar if page not in inner]


def test_files_that_the_pages_name_exist() -> None:
    """By the end of their path: `matmul/choose.py`, `startup.py`. X stands for the name of an operation."""
    folders = ("pblas", "layouts", "backends", "tests", "benchmarks", "examples", "docs")
    files = [f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*.*")]
    files += [f"/{path.name}" for path in ROOT.glob("*.*")]
    pages = ["CONTRIBUTING.md", *(page for page in PAGES if page.startswith("docs/architecture/"))]
    named = {
        name
        for page in pages
        for name in re.findall(r"`([\w/]+\.(?:py|cu|cuh|md|f90))`", (ROOT / page).read_text(encoding="utf-8"))
    }
    assert len(named) > 100
    missing = [name for name in named if "X" not in name and not any(path.endswith(f"/{name}") for path in files)]
    assert not missing


def test_paths_in_the_commands_of_contributing_exist() -> None:
    """X stands for the name of an operation."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = {path for command in re.findall(r"`([^`]*)`", text) for path in re.findall(r"\btests/[\w./]+", command)}
    assert len(paths) > 40
    assert not [path for path in paths if "X" not in path and not (ROOT / path).exists()]


MARKDOWN = sorted({*PAGES, *(path.name for path in ROOT.glob("*.md")), "tests/gpu/README.md"})


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as MyST and most hosts of repositories make them."""
    headings = re.findall(r"^#+ +(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", MARKDOWN)
def test_links_within_the_project_lead_somewhere(page: str) -> None:
    """To a file, and to a heading of it; Sphinx checks only those from a page of the site to another one."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target

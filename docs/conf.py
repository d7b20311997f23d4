"""Sphinx configuration: Markdown pages and notebooks through MyST, the reference from docstrings."""

import inspect
import os
import re
import sys
from importlib import import_module
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[1]))  # documents this tree, installed or not

from pblas import Grid, MatrixDescriptor, __version__

os.environ["PYTHONPATH"] = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")]).rstrip(":")  # of notebooks

DOCS = Path(__file__).parent
project = "pblas"
author = "The pblas developers"
copyright = "2026, The pblas developers"  # noqa: A001 (Sphinx reads this name)
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon", "sphinx_copybutton"]
if os.environ.get("DOCS_INTERSPHINX"):  # links to other projects' pages; needs a network, which a build may not have
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "scipy": ("https://docs.scipy.org/doc/scipy", None),
        "mpi4py": ("https://mpi4py.readthedocs.io/en/stable", None),
    }
copybutton_exclude = ".linenos, .gp, .go"
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"  # not on what a program prints
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"pblas {__version__}"
html_static_path = ["_static"]
# Read the Docs names the repository, and adds the switch of versions to each page.
repository = os.environ.get("DOCS_REPOSITORY", os.environ.get("READTHEDOCS_GIT_CLONE_URL", "")).removesuffix(".git")
if re.match("https://(github|gitlab|bitbucket)[.]", repository):  # those that the theme makes links to
    html_theme_options = {
        "source_repository": repository,
        "source_branch": os.environ.get("READTHEDOCS_GIT_IDENTIFIER", "main"),
        "source_directory": "docs/",
    }
html_css_files = ["pblas.css"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

nb_execution_mode = "force"  # the library may have changed since the last build
nb_execution_raise_on_error = True
nb_execution_timeout = 120  # seconds of a cell
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_mock_imports = ["torch"]
autodoc_typehints = "description"  # signatures of PBLAS calls are long enough without types
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False


class Layout(Directive):
    """The picture of a descriptor, drawn by the library while the page is built: the code, and what it looks like."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Evaluate the expression and draw it."""
        code = self.arguments[0]
        desc = eval(code, {"Grid": Grid, "MatrixDescriptor": MatrixDescriptor})  # noqa: S307 - of these pages
        return [
            nodes.literal_block(code, code, language="python"),
            nodes.raw("", desc._repr_html_(), format="html"),
        ]


class Functions(Directive):
    """A table of functions: the link to the page of each one, and the first sentence about it."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Make the table."""
        lines = [".. list-table::", "   :widths: 30 70", ""]
        for name in self.content:
            lines += [f"   * - :py:func:`{name}`", f"     - {first_sentence(name)}"]
        table = nodes.container()
        self.state.nested_parse(StringList(lines, "functions"), self.content_offset, table)
        return table.children


def first_sentence(name: str) -> str:
    """The first sentence of a docstring, without the word that stands before all collective calls."""
    module, _, function = name.rpartition(".")
    if module == "pblas.torch":  # which the build does not have
        return "See its page."
    first = (inspect.getdoc(getattr(import_module(module), function)) or "").partition("\n\n")[0]
    return " ".join(first.removeprefix("**Collective.** ").split())


def related() -> dict[str, tuple[list[str], str]]:
    """The functions that are like each function, and the page about it."""
    found: dict[str, tuple[list[str], str]] = {}
    for line in (DOCS / "related.txt").read_text(encoding="utf-8").splitlines()[1:]:
        names, _, page = line.partition(": ")
        group = [name if name.startswith("pblas.") else f"pblas.{name}" for name in names.split()]
        for name in group:
            others, _ = found.setdefault(name, ([], page))
            others += [other for other in group if other not in (name, *others)]
    return found


def write_pages(_: Sphinx) -> None:
    """Write the page of each function that the reference lists."""
    folder, likes = DOCS / "api", related()
    folder.mkdir(exist_ok=True)
    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    names = [name for block in re.findall(r"\.\. functions::\n\n((?: +\S+\n)+)", text) for name in block.split()]
    for name in names:
        others, page = likes.get(name, ([], "torch"))
        links = ", ".join([*(f":py:func:`{other}`" for other in others), f":doc:`/{page}`", ":doc:`/reference`"])
        title = name.rpartition(".")[2]
        content = f":orphan:\n\n{title}\n{'=' * len(title)}\n\n.. autofunction:: {name}\n\n.. seealso:: {links}\n"
        file = folder / f"{name}.rst"
        if not file.exists() or file.read_text(encoding="utf-8") != content:  # Sphinx reads changed files again
            file.write_text(content, encoding="utf-8")
    for file in folder.glob("*.rst"):
        if file.stem not in names:
            file.unlink()


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_directive("layout", Layout)
    app.add_directive("functions", Functions)
    app.connect("builder-inited", write_pages)

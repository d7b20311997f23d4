"""Sphinx configuration: Markdown pages and notebooks through MyST, the reference from docstrings."""

import os
import sys
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[1]))  # documents this tree, installed or not

from pblas import Grid, MatrixDescriptor, __version__

os.environ["PYTHONPATH"] = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")]).rstrip(":")  # of notebooks

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


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_directive("layout", Layout)

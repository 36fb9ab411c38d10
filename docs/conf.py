"""Sphinx: `sphinx-build -W --keep-going docs docs/_build/html`. Nothing is executed or downloaded."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS), str(ROOT)]

import lenmem  # noqa: E402

# Pages that are elsewhere in the repository; git ignores the copies.
for source, copy, patterns in (
    (ROOT / "colab", DOCS / "colab", ("*.ipynb",)),
    (ROOT / "results", DOCS / "results", ("README.md", "*/*.json", "pictures/*.png", "*/*/curve.png")),
    (ROOT / "results/map", DOCS / "results/map", ("README.md", "map.png")),
):
    shutil.rmtree(copy, ignore_errors=True)
    for path in sorted(path for pattern in patterns for path in source.glob(pattern)):
        target = copy / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)

project = "lenmem"
author = "the authors of lenmem"
copyright = f"{author}, Apache-2.0"
version = release = lenmem.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "docstrings", "summary", "solved"]
exclude_patterns = ["_build", "vendor", "static"]

# A link of a page to a module or function of lenmem without documentation is a warning. Docstrings and signatures may
# name internals, and other projects' pages are not linked.
nitpicky = True
nitpick_ignore_regex = [("py:(obj|class)", ".*"), ("py:.*", r"(?!lenmem\.).*")]

myst_enable_extensions = ["dollarmath", "colon_fence"]
nb_execution_mode = "off"

autodoc_default_options = {
    "member-order": "bysource",
    "special-members": "__call__",
    "exclude-members": "param_dtype",  # otherwise shown with the docstring of its value
    "show-inheritance": True,
}
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

# Equations and everything else come from these files; the pages ask nothing from elsewhere.
html_static_path = ["vendor", "static"]
html_css_files = ["pages.css"]
mathjax_path = "mathjax/startup.js"
mathjax3_config = {"loader": {"load": ["core", "input/tex", "output/chtml", "a11y/assistive-mml"]}}

html_theme = "sphinx_book_theme"
html_title = "lenmem"
html_theme_options = {"show_navbar_depth": 1, "show_toc_level": 2, "home_page_in_toc": True, "navbar_persistent": []}
html_context = {"default_mode": "auto"}
# On GitHub, where the name of the repository is known, a notebook has a button that opens it in Colab.
if repository := os.environ.get("GITHUB_REPOSITORY"):
    html_theme_options |= {
        "repository_url": f"https://github.com/{repository}",
        "use_repository_button": True,
        "launch_buttons": {"colab_url": "https://colab.research.google.com"},
    }
html_copy_source = False

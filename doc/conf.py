"""Sphinx: `sphinx-build -W --keep-going -b html doc doc/_build/html` from the root of the clone."""

from __future__ import annotations

import sys
import warnings
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for gallery.py, escapes.py, measured.py, …
sys.path.insert(1, str(Path(__file__).parents[1]))  # for benchmarks

from escapes import escape_initials, without_labels

import benchmarks.page
import benchmarks.papers.page

project = "skgpstoch"
author = "skgpstoch developers"
copyright = author
release = version = installed_version("skgpstoch")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # formulas are set without a network
    "sphinx_design",
    "matplotlib.sphinxext.plot_directive",  # a page's figure is drawn by the code that it shows
    "numpydoc",
    "sphinx_gallery.gen_gallery",
    "method_tables",
    "measured",  # tables from the benchmarks' CSVs
]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]
default_role = "literal"  # `name` in a docstring is code

autosummary_generate = True
# Large packages that few pages need.
autodoc_mock_imports = ["botorch", "dask", "distributed", "gpytorch", "linear_operator"]
autosummary_mock_imports = autodoc_mock_imports
toc_object_entries_show_parents = "hide"  # "On this page" is narrow
autodoc_typehints = "none"  # numpydoc's Parameters say it
numpydoc_show_class_members = False  # the class template lists them
numpydoc_class_members_toctree = False

html_theme = "pydata_sphinx_theme"
html_title = "skgpstoch"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_js_files = ["sort.js", "fit_tables.js"]
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False}
html_show_sourcelink = False
ALONE = "installation which_estimator benchmarks* papers_reproduced add_a_method citing"
html_sidebars = {page: [] for page in ALONE.split()}  # no pages are below them

plot_include_source = True
plot_html_show_source_link = False
plot_html_show_formats = False
plot_formats = [("png", 150)]
plot_rcparams = {"figure.figsize": (7.0, 3.0), "figure.constrained_layout.use": True}
plot_apply_rcparams = True

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "backreferences_dir": "generated/backreferences",
    "doc_module": ("skgpstoch",),
    "reference_url": {"skgpstoch": None},
    "within_subsection_order": "FileNameSortKey",
    "reset_argv": "gallery.quick_arguments",
    "capture_repr": (),  # only what is printed
    "write_computation_times": False,
    "download_all_examples": False,
}


def without_path(message, category, *place, **more):
    return f"{category.__name__}: {message}\n"


def write_pages(app):
    """Write the pages that are made from the benchmarks' CSVs."""
    pages = {"benchmarks": benchmarks.page, "papers_reproduced": benchmarks.papers.page}
    for name, source in pages.items():
        Path(app.srcdir, f"{name}.rst").write_text("\n".join(source.page()) + "\n")


def escape_in_page(app, docname, source):
    source[0] = escape_initials(source[0])


def escape_in_docstring(app, what, name, obj, options, lines):
    if (getattr(obj, "__module__", None) or "").startswith("sklearn."):  # such as score
        lines[:] = [without_labels(line) for line in lines]
    lines[:] = [escape_initials(line) for line in lines]


def setup(app):
    warnings.formatwarning = without_path  # outputs of the gallery name no files of the builder
    app.connect("builder-inited", write_pages)
    app.connect("source-read", escape_in_page)
    app.connect("autodoc-process-docstring", escape_in_docstring, priority=900)  # after numpydoc

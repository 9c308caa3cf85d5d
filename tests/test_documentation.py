"""Links of HTML representations, entries of the reference, and what Sphinx would misread."""

import inspect
import re
import runpy
from email.message import Message
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from pydoc import locate

import pytest
from conftest import PUBLIC, named
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skgpstoch
from skgpstoch import SVGPRegressor, likelihoods
from skgpstoch.methods.automatic.process import ExactProcessRegressor
from skgpstoch.persistence import estimator

LINK = r'href="(https://docs\.example/[^"#]*)'
ROOT = Path(__file__).parents[1]
ESCAPES = runpy.run_path(str(ROOT / "doc" / "escapes.py"))
escape_initials, without_labels = ESCAPES["escape_initials"], ESCAPES["without_labels"]
MODELS = [cls for cls in PUBLIC if hasattr(cls, "fit")]


@pytest.fixture
def published(monkeypatch):
    known = Message()
    known["Project-URL"] = "Source, https://code.example/skgpstoch"
    known["Project-URL"] = "Documentation, https://docs.example/stable/"
    monkeypatch.setattr(estimator, "metadata", lambda name: known)


@pytest.mark.parametrize("cls", MODELS, ids=named)
def test_pages_are_those_of_the_reference(cls, published):
    needed = cls.__new__(cls)  # some have estimators to be told of
    page = f"https://docs.example/stable/generated/skgpstoch.{cls.__name__}.html"
    assert needed._get_doc_link() == page


def test_html_links_to_the_page_of_each_step(published):
    html = make_pipeline(StandardScaler(), SVGPRegressor())._repr_html_()
    page = "https://docs.example/stable/generated/skgpstoch.SVGPRegressor.html"
    assert set(re.findall(LINK, html)) == {page}


def test_what_has_no_page_has_no_link(published):
    assert ExactProcessRegressor()._get_doc_link() == ""
    mine = type("Mine", (SVGPRegressor,), {"__module__": "mine"})
    assert mine()._get_doc_link() == ""


@pytest.mark.parametrize("installed", [True, False])
def test_without_a_published_documentation_there_are_no_links(installed, monkeypatch):
    def metadata(name):
        if not installed:
            raise PackageNotFoundError(name)
        return Message()

    monkeypatch.setattr(estimator, "metadata", metadata)
    assert SVGPRegressor()._get_doc_link() == ""
    assert "skgpstoch.SVGPRegressor.html" not in SVGPRegressor()._repr_html_()
    assert skgpstoch.SVGPRegressor._doc_link_module == "skgpstoch"


@pytest.mark.parametrize("label", ["", ".. [1] ", "   .. [RA1b2-1] "])
def test_first_initial_of_a_reference_is_escaped(label):
    for name in ("E. Snelson, Z. Ghahramani", "J. M. Hernández-Lobato", "M. Álvarez"):
        assert escape_initials(f"Text.\n\n{label}{name}\n") == f"Text.\n\n{label}\\{name}\n"


@pytest.mark.parametrize(
    "text", ["The noise of E. Snelson", ">>> A. x", "E. is energy", "NeurIPS. A"]
)
def test_other_text_is_not_escaped(text):
    assert escape_initials(text) == text


def test_labels_of_the_guide_of_scikit_learn_are_words():
    """`score` of the mixtures and of the drop-ins has its docstring from there."""
    text = "Return :ref:`accuracy <accuracy_score>` of :math:`u < v` and of :func:`~a.b`."
    assert without_labels(text) == "Return accuracy of :math:`u < v` and of :func:`~a.b`."


def test_entries_of_the_reference_exist():
    lines = (ROOT / "doc" / "api.rst").read_text().splitlines()
    module, entries = "", []
    for line in lines:
        if found := re.fullmatch(r"\.\. currentmodule:: (\S+)", line):
            module = found[1]
        elif found := re.fullmatch(r"   ([\w.]+)", line):
            entries.append(f"{module}.{found[1]}")
    assert len(entries) > 70
    there = [name for name in entries if ".botorch." not in name]  # not one of the extra `tests`
    assert not [name for name in there if locate(name) is None]


def test_lines_over_titles_of_examples_are_as_long_as_titles():
    """As Sphinx demands, which takes a title for a paragraph otherwise."""
    for path in (ROOT / "examples").glob("plot_*.py"):
        above, title, below = path.read_text().splitlines()[1:4]
        assert above == below, path.name
        assert len(above) >= len(title), path.name


def test_no_docstring_has_a_lone_letter_for_a_sentence():
    """Sphinx takes a line such as "S." for the number of a list, and shows nothing else."""
    names = [getattr(skgpstoch, name) for name in skgpstoch.__all__]
    names += [getattr(likelihoods, name) for name in likelihoods.__all__]
    classes = [cls for cls in names if inspect.isclass(cls)]
    members = [member for cls in classes for _, member in inspect.getmembers(cls)]
    documented = [x for x in [*names, *members] if "skgpstoch" in str(getattr(x, "__module__", ""))]
    documented += [x for x in members if isinstance(x, property)]
    found = [inspect.getdoc(x) or "" for x in documented]
    assert len(found) > 100
    assert not [doc for doc in found if re.search(r"^\s*[A-Za-z]\.$", doc, re.MULTILINE)]

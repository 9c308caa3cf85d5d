"""Links of HTML representations: to pages that there are, or none."""

import re
from email.message import Message
from importlib.metadata import PackageNotFoundError

import pytest
from conftest import PUBLIC, named
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skgpstoch
from skgpstoch import SVGPRegressor, documentation
from skgpstoch.ensembles.process import ExactProcessRegressor

LINK = r'href="(https://docs\.example/[^"#]*)'
MODELS = [cls for cls in PUBLIC if hasattr(cls, "fit")]


@pytest.fixture
def published(monkeypatch):
    known = Message()
    known["Project-URL"] = "Source, https://code.example/skgpstoch"
    known["Project-URL"] = "Documentation, https://docs.example/stable/"
    monkeypatch.setattr(documentation, "metadata", lambda name: known)


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

    monkeypatch.setattr(documentation, "metadata", metadata)
    assert SVGPRegressor()._get_doc_link() == ""
    assert "skgpstoch.SVGPRegressor.html" not in SVGPRegressor()._repr_html_()
    assert skgpstoch.SVGPRegressor._doc_link_module == "skgpstoch"

"""The code of every page of the documentation runs, without a warning, as printed there."""

import matplotlib
import pytest
from pages import DOC, blocks_of, run_page

ELSEWHERE = (  # run by a test of what they say
    "why_is_my_fit_bad",  # tests/test_diagnose.py
    "larger_than_memory",  # tests/test_stored_fit.py
)
PAGES = sorted(
    page
    for folder in (DOC, DOC / "user_guide", DOC / "methods")
    for page in folder.glob("*.rst")
    if blocks_of(page) and page.stem not in ELSEWHERE
)


# How slow the machine was when a fit with max_time began is not the page's business.
@pytest.mark.filterwarnings("ignore:.*of max_time unused")
@pytest.mark.pages
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_runs_without_a_warning(page, tmp_path, monkeypatch):
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    run_page(page)


@pytest.mark.parametrize("page", sorted((DOC / "user_guide").glob("*.rst")), ids=lambda p: p.stem)
def test_a_page_of_the_guide_has_a_figure_and_code(page):
    if page.stem == "index":
        return
    assert blocks_of(page)
    assert ".. plot::" in page.read_text() or ".. figure::" in page.read_text()

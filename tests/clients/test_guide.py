"""Code of the guide that needs other people's packages, which its blocks are named after."""

from __future__ import annotations

import pytest
from pages import DOC, blocks_of, run_page

PAGE = DOC / "user_guide" / "bayesian_optimisation.rst"
NAMES = [name for name, _ in blocks_of(PAGE) if name]

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]


def test_all_packages_are_there():
    assert NAMES == ["skopt", "bayes_opt", "botorch"]


@pytest.mark.parametrize("name", NAMES)
def test_code_runs(name, monkeypatch):
    module = pytest.importorskip(name)
    if name == "bayes_opt":  # in which the page replaces a name
        inner = module.bayesian_optimization
        monkeypatch.setattr(inner, "GaussianProcessRegressor", inner.GaussianProcessRegressor)
    run_page(PAGE, name)

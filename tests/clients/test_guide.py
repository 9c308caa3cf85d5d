"""Code of the guide that needs other people's packages, which its blocks are named after."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "doc" / "user_guide" / "bayesian_optimisation.rst"
CODE = r"\.\. code-block:: python\n(?: {4}:name: (\w+)\n)?\n((?: {4}.*\n|\n)+)"
BLOCKS = re.findall(CODE, PAGE.read_text())
NAMES = [name for name, _ in BLOCKS if name]

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]


def test_all_packages_are_there():
    assert NAMES == ["skopt", "bayes_opt", "botorch"]


@pytest.mark.parametrize("name", NAMES)
def test_code_runs(name, monkeypatch):
    module = pytest.importorskip(name)
    if name == "bayes_opt":  # in which the page replaces a name
        inner = module.bayesian_optimization
        monkeypatch.setattr(inner, "GaussianProcessRegressor", inner.GaussianProcessRegressor)
    texts = [text for block, text in BLOCKS if block in ("", name)]
    exec(textwrap.dedent("".join(texts)), {})

"""Papers' tables: what a figure is worth, and that the page is what the CSVs say."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from sklearn.gaussian_process.kernels import RBF
from torch.testing import assert_close

pytest.importorskip("benchmarks.papers")

from benchmarks.bench_solvegp_layers import UnwhitenedLayer
from benchmarks.papers.catalogue import PAPERS
from benchmarks.papers.page import authors, counts, page, with_results
from benchmarks.papers.tables import Table
from skgpstoch.kernels import from_sklearn
from skgpstoch.models.features.orthogonal import OrthogonalFeatures
from skgpstoch.models.layers import GPLayer

TABLES = [table for paper in PAPERS.values() for table in paper.tables.values()]
TABLE = Table(
    "scgd",
    "2",
    "",
    {"nlml": "low", "rmse": "high"},
    lambda cell, data, seed: {},
    lacking={"slice": "its data cannot be had"},
)
KEY = {"set": "elevators", "batch_size": "128", "method": "SCGD"}
ROWS = [replace(TABLE, name=name, prints="2") for name in ("not run", "bad", "good")]
FIGURES = [None, {"nlml": "-1"}, {"nlml": "-9"}]
CELL = KEY | {"nlml": "-1.399", "nlml_deviation": "0.022", "rmse": "0.10", "rmse_deviation": ""}


@pytest.mark.parametrize(
    ("measure", "figure", "verdict"),
    [
        ("nlml", "-1.356", "reproduced"),
        ("nlml", "-1.354", "missed"),
        ("nlml", "-9", "reproduced"),
        ("rmse", "0.095", "reproduced"),
        ("rmse", "0.089", "missed"),
        ("rmse", "", "not run"),
        ("rmse", "nan", "missed"),
    ],
)
def test_a_figure_is_reproduced_within_two_deviations_or_better(measure, figure, verdict):
    assert TABLE.verdict(CELL, {measure: figure}, measure) == verdict


@pytest.mark.parametrize(("figure", "verdict"), [("0.49", "reproduced"), ("0.17", "missed")])
def test_an_estimate_is_reproduced_within_two_deviations_of_the_printed_one(figure, verdict):
    table = Table("gpcv", "1", "", {"l": "near"}, lambda cell, data, seed: {})
    assert table.verdict({"l": "0.34", "l_deviation": "0.08"}, {"l": figure}, "l") == verdict


def test_a_figure_that_is_not_printed_is_neither_reproduced_nor_missed():
    assert TABLE.verdict(CELL | {"nlml": ""}, {"nlml": "1.0"}, "nlml") == "not printed"


def test_a_cell_that_is_not_there_is_not_run():
    assert TABLE.verdict(CELL, None, "nlml") == "not run"
    assert TABLE.verdict(CELL | {"set": "slice"}, None, "nlml") == "no data"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.paper}-{table.name}")
def test_cells_are_of_the_published_table_once(table):
    keys = [table.key(cell) for cell in table.published()]
    assert len(set(keys)) == len(keys) > 0
    assert set(table.measured()) <= set(keys)


def test_a_printed_figure_is_counted_once_by_the_first_cell_that_was_run():
    """Three methods of ours, or two solvers, stand beside one printed row."""
    printed = CELL | {"rmse": ""}
    not_run, bad, good = ((t, [(printed, here)]) for t, here in zip(ROWS, FIGURES, strict=True))
    assert counts([not_run, bad, good])["bad"] == {"missed": 1}
    assert counts([not_run, good])["not run"] == {}
    assert counts([not_run])["not run"] == {"not run": 1}


@pytest.mark.parametrize(("paper", "n_printed"), [("gpcv", 54), ("solvegp", 120), ("qsgp", 22)])
def test_the_page_counts_what_is_printed(paper, n_printed):
    found = sum(counts(with_results(PAPERS[paper])).values(), Counter())
    assert found.total() - found["not printed"] == n_printed
    assert f"    * - {authors(PAPERS[paper])}" in "\n".join(page())


def test_layers_that_are_not_white_are_the_same_layers():
    """Of one q: moments, divergence, and the way from q(u) to them that a gradient goes."""
    g = torch.Generator().manual_seed(0)
    X, Z = (torch.randn(n, 2, generator=g, dtype=torch.float64) for n in (20, 9))
    unit = torch.ones(2, dtype=torch.float64)
    args = (from_sklearn(2.0 * RBF(0.8)), torch.nn.Identity(), Z[:4], unit, 2)
    features = OrthogonalFeatures(*args, orthogonal_points=Z[4:], sizes=(3, 2))
    W = torch.eye(2, dtype=torch.float64)
    white = GPLayer(features, W, 1e-3, (False,) * 3)
    with torch.no_grad():
        for parameter in (white.means, *white.roots):
            parameter += 0.2 * torch.randn(parameter.shape, generator=g, dtype=torch.float64).tril()
    other = UnwhitenedLayer.of(white)
    for ours, theirs in zip(other.moments(X), white.moments(X), strict=True):
        assert_close(ours, theirs, rtol=0, atol=1e-9)
    assert_close(other.kl(), white.kl(), rtol=0, atol=1e-9)
    scale = features.kernel.k2.log_length_scale  # w stays as k changes, u does not
    (grad,) = torch.autograd.grad(other.kl(), scale)
    values = []
    for step in (1e-6, -1e-6):
        with torch.no_grad():
            scale += step
            values.append(other.kl())
            scale -= step
    assert_close(grad.sum(), (values[0] - values[1]) / 2e-6, rtol=1e-5, atol=1e-5)

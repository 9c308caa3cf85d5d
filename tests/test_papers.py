"""Papers' tables: what a figure is worth, and that the page is what the CSVs say."""

import pytest

pytest.importorskip("benchmarks.papers")

from benchmarks.papers.catalogue import PAPERS
from benchmarks.papers.page import PAGE, page
from benchmarks.papers.tables import Table

TABLES = [table for paper in PAPERS.values() for table in paper.tables.values()]
TABLE = Table("scgd", "2", "", {"nlml": "low", "rmse": "high"}, lambda cell, data, seed: {})
CELL = {"nlml": "-1.399", "nlml_deviation": "0.022", "rmse": "0.10", "rmse_deviation": ""}


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


def test_a_cell_that_is_not_there_is_not_run():
    assert TABLE.verdict(CELL, None, "nlml") == "not run"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.paper}-{table.name}")
def test_cells_are_of_the_published_table_once(table):
    keys = [table.key(cell) for cell in table.published()]
    assert len(set(keys)) == len(keys) > 0
    assert set(table.measured()) <= set(keys)


def test_the_page_is_what_the_files_say():
    assert PAGE.read_text() == "\n".join(page()) + "\n", "run `python -m benchmarks.papers page`"

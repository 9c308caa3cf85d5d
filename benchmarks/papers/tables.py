"""Tables of papers: their cells, what was measured, and whether that is what was published."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

Cell = dict[str, str]  # a row of a table: column → text
Figures = dict[str, Any]
Verdict = Literal["reproduced", "missed", "not run", "no data", "not printed"]
NO_FIGURE = ("not run", "no data")

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "papers"
DEVIATION = "_deviation"
WITHIN = 2.0  # published deviations, within which a figure is reproduced


@dataclass(frozen=True)
class Table:
    """A table of a paper."""

    paper: str
    name: str
    title: str
    measures: Mapping[str, Literal["low", "high", "near"]]
    """Measure → whether low or high figures are good, or those near the printed one. The first one
    decides of a cell. Not every cell has them all."""
    run: Callable[[Cell, Path, int], Figures]
    """Cell, folder of data, seed → the measures, and the settings that gave them."""
    settings: str = ""
    """How cells are run here, in a sentence or two."""
    lacking: Mapping[str, str] = field(default_factory=dict)
    """Text of a cell → why cells that have it are not run."""
    prints: str = ""
    """The table whose printed figures these are; empty: the one of this name."""
    stands_for: Mapping[str, str] = field(default_factory=dict)
    """Text of a cell → the paper's own, where several cells have one printed row."""
    needs_data: bool = True
    """Whether cells are run on data sets, and not on rows that are drawn."""
    results: Path = RESULTS
    """The folder of what is measured."""

    @property
    def published_path(self) -> Path:
        return HERE / "published" / f"{self.paper}_{self.prints or self.name}.csv"

    @property
    def results_path(self) -> Path:
        return self.results / f"{self.paper}_{self.name}.csv"

    def published(self) -> list[Cell]:
        """What is printed in the paper, a row a cell."""
        return read(self.published_path)

    def measured(self) -> dict[tuple[str, ...], Cell]:
        """What was measured here, by key of the cell."""
        found = read(self.results_path) if self.results_path.exists() else []
        return {self.key(row): row for row in found}

    def key(self, cell: Cell) -> tuple[str, ...]:
        """What a cell is of: the columns that are no measure of the published table."""
        return tuple(cell[column] for column in self.key_columns)

    @cached_property
    def key_columns(self) -> list[str]:
        with self.published_path.open(newline="") as file:
            columns = next(csv.reader(file))
        measured = {m + end for m in self.measures for end in ("", DEVIATION)}
        return [column for column in columns if column not in measured]

    def printed_row(self, cell: Cell) -> tuple[str, ...]:
        """The row of the paper that a cell stands beside."""
        texts = (self.stands_for.get(text, text) for text in self.key(cell))
        return (self.published_path.name, *texts)

    def why_lacking(self, cell: Cell) -> str:
        """Why a cell cannot be run here; empty if it can."""
        texts = (self.lacking.get(text, "") for text in self.key(cell))
        return next(filter(None, texts), "")

    def verdict(self, cell: Cell, measured: Cell | None, measure: str) -> Verdict:
        """Whether a figure is within published deviations of the printed one, or better."""
        if measured is None or not measured.get(measure):
            return "no data" if self.why_lacking(cell) else "not run"
        if not cell[measure]:
            return "not printed"
        more = float(measured[measure]) - float(cell[measure])
        worse = {"low": more, "high": -more, "near": abs(more)}[self.measures[measure]]
        return "reproduced" if worse <= WITHIN * deviation(cell, measure) else "missed"


def deviation(cell: Cell, measure: str) -> float:
    """The published deviation, or half of the last printed digit, if that is more."""
    digits = len(cell[measure].partition(".")[2])
    return max(float(cell[measure + DEVIATION] or 0.0), 0.5 * 10.0**-digits)


def read(path: Path) -> list[Cell]:
    """The rows of a CSV."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))

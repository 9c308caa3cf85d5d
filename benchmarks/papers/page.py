"""The page "The papers, reproduced", from what is published and what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import get_args

from .catalogue import PAPERS, Paper
from .tables import DEVIATION, HERE, Cell, Table, Verdict, read

PAGE = HERE.parents[1] / "doc" / "papers_reproduced.rst"
EXPLANATIONS = HERE / "misses.csv"  # paper, table, where (COLUMN=A,B or nothing), why
VERDICTS = get_args(Verdict)
OPENING = """\
.. This page is written by ``python -m benchmarks.papers page``: change that, not this.

The papers, reproduced
======================

Each cell of a paper's tables that this project can hold is a fit, run by one command and kept in a
CSV beside the printed figure, with commit, versions, seed and seconds:

.. code-block:: bash

    python -m benchmarks.papers scgd --table 2 --data DIR --resume

A cell is *reproduced* if its figure lies within two published deviations of the printed one, or is
better; an estimate of what is known, if it lies within two of the truth. Otherwise it is *missed*.
Where a paper has curves alone, it is *not printed*. Ours are of one split and one seed unless said,
the printed ones means over splits. ``benchmarks/papers/`` has the settings,
``benchmarks/results/papers/`` the CSVs.
"""


def write_page() -> None:
    """Write the page anew."""
    PAGE.write_text("\n".join(page()) + "\n")
    print(f"wrote {PAGE}")


def page() -> Iterator[str]:
    """The lines of the page: a line a paper, then all cells."""
    yield OPENING
    yield from list_table(
        ["paper, table", "measure", "cells", *VERDICTS],
        [line for paper in PAPERS.values() for line in _summary(paper)],
    )
    for paper in PAPERS.values():
        yield from _in_full(paper)


def _summary(paper: Paper) -> Iterator[list[str]]:
    for table in paper.tables.values():
        for measure in table.measures:
            cells = [cell for cell in table.published() if _has(table, cell, measure)]
            verdicts = [_verdict(table, cell, measure) for cell in cells]
            found = Counter(verdicts)
            counts = [str(found[name]) for name in VERDICTS]
            title = f"{paper.citation.split(',')[0]}, {table.title}"
            yield [title, measure, str(len(verdicts)), *counts]


def _has(table: Table, cell: Cell, measure: str) -> bool:
    """Whether a cell has a measure, printed or measured here."""
    return bool(cell[measure] or table.measured().get(table.key(cell), {}).get(measure))


def _in_full(paper: Paper) -> Iterator[str]:
    yield from ("", paper.citation.replace("*", ""), "-" * len(paper.citation))
    for table in paper.tables.values():
        yield from ("", f"**{table.title}.** {table.settings}", "")
        figures = [f"{m}, {whose}" for m in table.measures for whose in ("here", "printed")]
        columns = [*table.key_columns, *figures, "verdict"]
        yield from list_table(columns, [_line(table, cell) for cell in table.published()])
        yield from (f"- {line}" for line in _notes(table))


def _line(table: Table, cell: Cell) -> list[str]:
    measured, figures = table.measured().get(table.key(cell)), []
    for measure in table.measures:
        here = measured.get(measure) if measured else None
        figures.append(f"{float(here):.3f}" if here else "")
        spread = cell[measure + DEVIATION]
        figures.append(cell[measure] + (f" ± {spread}" if spread else ""))
    verdicts = [_verdict(table, cell, measure) for measure in table.measures if cell[measure]]
    return [*table.key(cell), *figures, ", ".join(dict.fromkeys(verdicts))]


def _verdict(table: Table, cell: Cell, measure: str) -> str:
    return table.verdict(cell, table.measured().get(table.key(cell)), measure)


def _notes(table: Table) -> Iterator[str]:
    """Why cells were missed, or not run."""
    for row in read(EXPLANATIONS):
        if (row["paper"], row["table"]) == (table.paper, table.name):
            yield f"{row['where'] or 'All'}: {row['why']}"
    for text, why in table.lacking.items():
        yield f"{text}: not run, {why}"


def list_table(columns: list[str], rows: list[list[str]]) -> Iterator[str]:
    """A table in reStructuredText."""
    yield from ("", ".. list-table::", "    :header-rows: 1", "")
    for row in [columns, *rows]:
        for j, text in enumerate(row):
            yield f"    {'* -' if j == 0 else '  -'} {text}".rstrip()
    yield ""

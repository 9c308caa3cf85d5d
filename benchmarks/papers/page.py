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
Tables = list[tuple[Table, list[tuple[Cell, Cell | None]]]]
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
    papers = [(paper, _read(paper)) for paper in PAPERS.values()]
    yield OPENING
    yield from list_table(
        ["paper, table", "measure", "cells", *VERDICTS],
        [line for paper, tables in papers for line in _summary(paper, tables)],
    )
    for paper, tables in papers:
        yield from _in_full(paper, tables)


def _read(paper: Paper) -> Tables:
    """Each table, and its cells as they are printed, each with what was measured here."""
    found = []
    for table in paper.tables.values():
        measured = table.measured()
        found.append((table, [(c, measured.get(table.key(c))) for c in table.published()]))
    return found


def _summary(paper: Paper, tables: Tables) -> Iterator[list[str]]:
    for table, cells in tables:
        for measure in table.measures:
            verdicts = [
                table.verdict(printed, here, measure)
                for printed, here in cells
                if printed[measure] or (here or {}).get(measure)
            ]
            found = Counter(verdicts)
            counts = [str(found[name]) for name in VERDICTS]
            title = f"{paper.citation.split(',')[0]}, {table.title}"
            yield [title, measure, str(len(verdicts)), *counts]


def _in_full(paper: Paper, tables: Tables) -> Iterator[str]:
    yield from ("", paper.citation.replace("*", ""), "-" * len(paper.citation))
    for table, cells in tables:
        yield from ("", f"**{table.title}.** {table.settings}", "")
        figures = [f"{m}, {whose}" for m in table.measures for whose in ("here", "printed")]
        columns = [*table.key_columns, *figures, "verdict"]
        yield from list_table(columns, [_line(table, *cell) for cell in cells])
        yield from (f"- {line}" for line in _notes(table))


def _line(table: Table, printed: Cell, here: Cell | None) -> list[str]:
    figures = []
    for measure in table.measures:
        figure = (here or {}).get(measure)
        figures.append(f"{float(figure):.3f}" if figure else "")
        spread = printed[measure + DEVIATION]
        figures.append(printed[measure] + (f" ± {spread}" if spread else ""))
    verdicts = [table.verdict(printed, here, m) for m in table.measures if printed[m]]
    return [*table.key(printed), *figures, ", ".join(dict.fromkeys(verdicts))]


def _notes(table: Table) -> Iterator[str]:
    """Why cells were missed, or not run."""
    for row in read(EXPLANATIONS):
        if (row["paper"], row["table"]) == (table.paper, table.name):
            yield f"{row['where'] or 'All'}: {row['why']}".replace("|", r"\|")  # no substitution
    for text, why in table.lacking.items():
        yield f"{text}: not run, {why}"


def list_table(columns: list[str], rows: list[list[str]]) -> Iterator[str]:
    """A table in reStructuredText."""
    yield from ("", ".. list-table::", "    :header-rows: 1", "")
    for row in [columns, *rows]:
        for j, text in enumerate(row):
            yield f"    {'* -' if j == 0 else '  -'} {text}".rstrip()
    yield ""

"""The page "The papers, reproduced", from what is published and what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import get_args

from .catalogue import PAPERS, Paper
from .tables import DEVIATION, HERE, NO_FIGURE, Cell, Table, Verdict, read

EXPLANATIONS = HERE / "misses.csv"  # paper, table, where (COLUMN=A,B or nothing), why
VERDICTS = get_args(Verdict)
Tables = list[tuple[Table, list[tuple[Cell, Cell | None]]]]
SUMMARY = [*VERDICTS[:-1], "ours alone"]  # what is not printed has no verdict
OPENING = """\
.. _papers_reproduced:

======================
The papers, reproduced
======================

This table counts how many of each paper's printed figures we reproduce. A figure is *reproduced* if
ours is better, or within two published standard deviations of it. Errors, NLML and numbers of
vectors are better if smaller, log-likelihoods if larger; estimates of kernels are neither. Where
several fits of ours stand beside one printed figure, the first of the table that we ran decides,
and the figure counts once. *No data* means that we do not have the data set.
*Ours alone* are figures of our own comparisons, and those for which the paper has curves without
numbers, as Wei, Sheth and Khardon do throughout.
"""
HOW = """\
Unless stated otherwise, our figures are from one split and one seed; the printed ones are means
over splits. Each cell is one fit. A CSV in ``benchmarks/results/papers/`` has its figures, commit,
versions, seed and seconds. One command runs a table, or continues it. Of these two, the second
needs no data and takes some minutes:

.. code-block:: bash

    python -m benchmarks.papers scgd --table 2 --data DIR --resume
    python -m benchmarks.papers qsgp --table figure3 --results /tmp/mine

DIR holds a folder ``uci/NAME/`` for each set: ``data.csv.gz`` (inputs, then the target) and
``test_mask.csv.gz``. ``--results`` keeps what you measure apart from ours.

The sections below have the tables of each paper. Open a table to see its cells and their settings,
and why we missed some or did not run them.
"""


def page() -> Iterator[str]:
    """The lines of the page: a line a paper, then all cells."""
    papers = [(paper, with_results(paper)) for paper in PAPERS.values()]
    yield OPENING
    yield from list_table(
        ["paper", *SUMMARY],
        [[authors(paper), *_numbers(counts(tables).values())] for paper, tables in papers],
    )
    yield HOW
    for paper, tables in papers:
        yield from _in_full(paper, tables)


def with_results(paper: Paper) -> Tables:
    """Each table, and its cells as they are printed, each with what was measured here."""
    found = []
    for table in paper.tables.values():
        measured = table.measured()
        found.append((table, [(c, measured.get(table.key(c))) for c in table.published()]))
    return found


def authors(paper: Paper) -> str:
    """Return who wrote a paper."""
    return paper.citation.split(", *")[0]


def counts(tables: Tables) -> dict[str, Counter[Verdict]]:
    """Return each table's figures by verdict; what is printed once counts in one table, once."""
    decided: dict[tuple[str, ...], tuple[str, Verdict]] = {}
    for figure, table, verdict in _verdicts(tables):
        _, known = decided.get(figure, (table, "not run"))
        if figure not in decided or (known in NO_FIGURE and verdict not in NO_FIGURE):
            decided[figure] = table, verdict
    found: dict[str, Counter[Verdict]] = {table.name: Counter() for table, _ in tables}
    for table, verdict in decided.values():
        found[table][verdict] += 1
    return found


def _verdicts(tables: Tables) -> Iterator[tuple[tuple[str, ...], str, Verdict]]:
    """Yield each figure (the printed one, if there is one), table and verdict."""
    for table, cells in tables:
        for printed, here in cells:
            own = (table.name, *table.key(printed))
            for measure in table.measures:
                if printed[measure] or (here or {}).get(measure):
                    row = table.printed_row(printed) if printed[measure] else own
                    yield (*row, measure), table.name, table.verdict(printed, here, measure)


def _numbers(found: Iterable[Counter[Verdict]]) -> list[str]:
    total = sum(found, Counter())
    return [str(total[verdict]) for verdict in VERDICTS]


def _in_full(paper: Paper, tables: Tables) -> Iterator[str]:
    yield from ("", authors(paper), "=" * len(authors(paper)), "", f"{paper.citation}.")
    yield f":ref:`sphx_glr_auto_examples_{paper.picture}.py` draws the results."
    found = counts(tables)
    rows = [[table.title, *_numbers([found[table.name]])] for table, _ in tables]
    yield from list_table(["table", *SUMMARY], rows)
    for table, cells in tables:
        yield from ("", f".. dropdown:: All cells: {table.title}", "")
        yield from (f"    {line}".rstrip() for line in _cells(table, cells))


def _cells(table: Table, cells: list[tuple[Cell, Cell | None]]) -> Iterator[str]:
    """Settings, figures, and why cells were missed."""
    yield from (table.settings, "")
    yield from (f"- {line}" for line in _notes(table))
    figures = [f"{m}, {whose}" for m in table.measures for whose in ("here", "printed")]
    columns = [*table.key_columns, *figures, "verdict"]
    yield from list_table(columns, [_line(table, *cell) for cell in cells])


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

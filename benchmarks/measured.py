"""Tables of the page "Benchmarks in full", from the CSVs: what its directive `measured` shows.

    .. measured:: bench_density_2500
        :where: split == 0
        :row: set (rows) | {set} ({n_train:,})
        :by: model
        :cell: {nlpd:.3f}, {rmse:.4g}

        CatBoost, one variance | CatBoostConstant
        default | auto

A line of it is a column: its heading, and the value of `by` that it has, as means over rows of the
CSV. Without `by`, each row of the CSV is a row, and lines have a heading and a format each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from .page import read

DELIMITER = " | "


def lines(csv: str, options: Mapping[str, str], columns: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a table: headings, then rows."""
    table = read(csv)
    if "where" in options:
        table = table.query(options["where"])
    pairs = [column.split(DELIMITER) for column in columns if column]
    if "by" not in options:
        yield DELIMITER.join(heading for heading, _ in pairs)
        for row in table.to_dict("records"):
            yield DELIMITER.join(form.format(**row) for _, form in pairs)
        return
    first, form = options["row"].split(DELIMITER)
    yield DELIMITER.join([first, *(heading for heading, _ in pairs)])
    named = table.assign(row=[form.format(**row) for row in table.to_dict("records")])
    means = named.groupby(["row", options["by"]], sort=False).mean(numeric_only=True)
    for name in named["row"].unique():
        yield DELIMITER.join([name, *(_cell(means, (name, of), options) for _, of in pairs)])


def _cell(means: pd.DataFrame, key: tuple[str, str], options: Mapping[str, str]) -> str:
    return options["cell"].format(**means.loc[key]) if key in means.index else "–"

"""The page "Benchmarks", from the CSVs, when the documentation is built.

Figures are drawn by doc/figures/ from the same CSVs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import floor, log10
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from .papers.page import list_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
NAMES = {  # in the CSVs → on the page, in its order
    "auto": "ours",
    "recommended default": "ours",
    "CatBoostConstant": "CatBoost",
    "CatBoost": "CatBoost, uncertainty",
    "HistGradientBoosting": "boosted trees",
    "RealMLP": "RealMLP",
    "ExactARD": "exact process",
    "LogisticRegression": "logistic regression",
}
OPENING = """\
.. _benchmarks:

Benchmarks
==========

Every figure and table on this page comes from a CSV in ``benchmarks/results/``, which has each
measurement with date, machine, threads, versions and seed. The top of each script says what it
compares and how to run it. NLPD is the negative log density of held-out rows, in nats per row. All
scores are better if smaller. A rival that predicts only a mean gets a variance from held-out
rows. "Ours" is the recommended default unless the figure names another estimator. GFLOP/s is the
speed of a float32 product of 1,024 by 1,024 matrices on one thread. Click a
heading to sort a table by it.

:ref:`benchmarks_in_full` has all other measurements, misses included. :doc:`papers_reproduced` has
the five papers' tables.
"""


class Section(NamedTuple):
    """A figure, and a table with a number in each cell."""

    title: str
    says: str
    csv: str
    script: str
    figure: str
    alt: str
    table: Callable[[], pd.DataFrame] | None = None
    decimals: int | None = None  # None: three digits of each number


def read(name: str) -> pd.DataFrame:
    """Return the rows of a CSV."""
    return pd.read_csv(RESULTS / f"{name}.csv")


def machine(name: str) -> str:
    """Return where it was measured, in a sentence."""
    table = read(name)
    text = f"{table['machine'].iloc[-1]}, {table['date'].max()[:10]}"
    if "gflops" in table:
        text += f", {table['gflops'].median():.0f} GFLOP/s"
    return f"{text}."


def by_table(score: str) -> pd.DataFrame:
    """Return a score for nineteen tables and the models that were run on all."""
    table = pd.concat([read("bench_density_2500"), read("bench_frames")])
    table = table.query("split == 0 and rows == 2500")
    return table.pivot_table(score, "set", "model").dropna(axis=1)


def coverage() -> pd.DataFrame:
    table = read("coverage_by_group").pivot_table("coverage", "group", "model", sort=False)
    return 100 * table


def few_rows() -> pd.DataFrame:
    """Return medians over ten tables: means are ruled by a few overconfident fits."""
    scores = read("bench_small").pivot_table("nlpd", ["n", "set"], "model")
    return scores.groupby("n").median().drop(columns="CatBoost")


def classes() -> pd.DataFrame:
    return read("bench_probabilities").pivot_table("log_loss", "set", "model")


def drop_in() -> pd.DataFrame:
    seconds = read("bench_drop_in").pivot_table("seconds", ["part", "n"], "peer")
    seconds = seconds[["skgpstoch", "sklearn"]].dropna()
    seconds.index = [f"{part}, {n:,} rows" for part, n in seconds.index]
    return seconds.rename(columns={"skgpstoch": "ours", "sklearn": "scikit-learn"})


def ten_million() -> pd.DataFrame:
    table = read("out_of_core").set_index("task")[["seconds", "peak_mb"]].round(0).astype(int)
    return table.rename(columns={"peak_mb": "peak, MB"})


SECTIONS = [
    Section(
        "Intervals that hold in every group",
        "Percentage of held-out flights inside 90 % intervals, by their delay at departure; mean "
        "of five draws.",
        "coverage_by_group",
        "bench_coverage_by_group.py",
        "coverage_by_group",
        "Our default stays near 90 %; the others fall far below for late flights.",
        coverage,
        decimals=1,
    ),
    Section(
        "Densities",
        "By how much the recommended default has the better NLPD, with at most 2,500 training "
        "rows. On tables whose targets repeat (pol, bike, wine, credit), much of the gain comes "
        "from predicting which values occur.",
        "bench_density_2500",
        "bench_density.py, bench_frames.py",
        "density_by_table",
        "All dots are right of zero.",
        lambda: by_table("nlpd"),
        decimals=2,
    ),
    Section(
        "Errors of the mean",
        "RMSE on the same tables. Left of the line, another model is better.",
        "bench_density_2500",
        "bench_density.py, bench_frames.py",
        "error_by_table",
        "Most dots are right of one; on bike, concrete and energy a rival is clearly left of it.",
        lambda: by_table("rmse"),
    ),
    Section(
        "Seconds of a fit",
        "CPU seconds on one thread, on the same tables.",
        "bench_density_2500",
        "bench_density.py, bench_frames.py",
        "seconds_by_table",
        "Boosted trees take a fraction of a second, our default some seconds.",
        lambda: by_table("cpu_s"),
        decimals=1,
    ),
    Section(
        "Few rows",
        "Median NLPD over ten tables and up to five draws, by the number of training rows.",
        "bench_small",
        "bench_small.py",
        "few_rows",
        "Our default is lowest from 50 to 500 rows.",
        few_rows,
        decimals=2,
    ),
    Section(
        "Probabilities of classes",
        "Log-loss with at most 2,500 training rows, mean of three splits.",
        "bench_probabilities",
        "bench_probabilities.py",
        "classes_by_table",
        "Most dots are right of zero; on breast_cancer and iris a rival is left of it.",
        classes,
        decimals=3,
    ),
    Section(
        "Time to a density",
        "NLPD by seconds of training: 36,000 rows of kin40k, two threads.",
        "bench_time_to_accuracy",
        "bench_time_to_accuracy.py",
        "time_to_density",
        "SCGD is ahead of GPyTorch from the first second on.",
    ),
    Section(
        "Time to a density, sparse processes",
        "NLPD by seconds of training: kin40k, 512 inducing points each, two threads.",
        "bench_svgp_time",
        "bench_svgp_time.py",
        "sparse_time",
        "SVGPRegressor reaches in five seconds what GPyTorch reaches in 33 at best.",
    ),
    Section(
        "Densities by time limit",
        "How far the recommended default with a shorter ``max_time`` is behind the longest fit, in "
        "NLPD; up to 12,000 rows.",
        "bench_anytime",
        "bench_anytime.py",
        "anytime",
        "After ten seconds, most tables gain little.",
    ),
    Section(
        "Beside scikit-learn's Gaussian processes",
        "Seconds on two threads. Below some hundred rows, scikit-learn is faster.",
        "bench_drop_in",
        "bench_drop_in.py",
        "drop_in_seconds",
        "About five times faster from 1,000 rows on; slower below 100.",
        drop_in,
    ),
    Section(
        "Ten million rows from files",
        "Seconds on one thread, and the peak memory of the process.",
        "out_of_core",
        "bench_out_of_core.py",
        "memory_of_ten_million_rows",
        "Fits take at most 300 MB more than reading the files.",
        ten_million,
    ),
    Section(
        "Serving",
        "Seconds of 10,000 predictions in ONNX Runtime and in Python, one thread.",
        "bench_onnx",
        "bench_onnx.py",
        "onnx_seconds",
        "ONNX Runtime takes from half to seven times the seconds, by model.",
    ),
]


def page() -> Iterator[str]:
    """Return the lines of the page."""
    yield OPENING
    for section in SECTIONS:
        scripts = ", ".join(f"``{name}``" for name in section.script.split(", "))
        yield from (section.title, "-" * len(section.title), "")
        yield from (section.says, f"{machine(section.csv)} ({scripts})", "")
        yield f".. plot:: figures/{section.figure}.py"
        yield from ("    :include-source: false", f"    :alt: {section.alt}", "")
        if section.table is not None:
            yield from _numbers(section.table(), section.decimals)


def written(number: float, decimals: int | None) -> str:
    """Return a number with so many decimals, or with three digits; an int as it is."""
    if isinstance(number, int):
        return str(number)
    if decimals is None:
        decimals = max(0, 2 - floor(log10(abs(number))))
    return f"{number:.{decimals}f}"


def _numbers(table: pd.DataFrame, decimals: int | None) -> Iterator[str]:
    """Yield a table with a number a cell; our column first."""
    known = [name for name in NAMES if name in table]
    table = table[known + [name for name in table if name not in known]]
    columns = [NAMES.get(name, name) for name in table]
    rows = [
        [str(name), *(written(number, decimals) for number in row)]
        for name, row in zip(table.index, table.to_numpy().tolist(), strict=True)
    ]
    yield ".. dropdown:: The numbers"
    for line in list_table(["", *columns], rows):
        yield f"    {line}".rstrip()

"""Claim: few rows are enough; the default is ahead of exact processes, trees and networks.

Ten tables, of which n = 50, 100, 200 and 500 rows are drawn five times, and fitted with as many
seeds; the tests are 2,000 other rows of the table, or all that are left. Inputs and target are
standardised with the moments of the whole table, so that scores of all draws have one unit. NLPD
(nats per row), CRPS, RMSE, coverage of the central 95 % and 80 % intervals in per cent, and seconds
of the fit.

The bars: at every n, mean NLPD over the tables ahead of scikit-learn's exact process with a length
scale for each input, HistGradientBoosting, CatBoost and RealMLP; coverage of 95 % within 2.5 points
on average, on no table below 88; CPU seconds of a machine of 45 GFLOP/s below 1.5, 3 and 5 at
n = 50, 100 and 500.

    python benchmarks/bench_small.py --data DIR
    python benchmarks/bench_small.py --data DIR --models auto --csv ours.csv --against rivals.csv
    python benchmarks/bench_small.py --data DIR --summary --csv ours.csv --against rivals.csv
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from _common import Array, read_table
from _contest import (
    Data,
    Task,
    allowed_seconds,
    check_models,
    contest_parser,
    density_score,
    matched,
    print_summary,
    print_table,
    read_rows,
    run,
    scaled_seconds,
)
from _rivals import OUR_REGRESSORS, REGRESSORS
from _tables import LARGE, MADE, SMALL
from bench_counts_robust import read_abalone

TEN = (*LARGE, *SMALL, "abalone")
SETS = (*TEN, *MADE)
SIZES = (50, 100, 200, 500)
N_TEST = 2_000
RIVALS = ("ExactARD", "HistGradientBoosting", "CatBoost", "CatBoostConstant", "RealMLP")
MODELS = ("auto", *RIVALS)


@functools.cache
def whole_table(data: Path, name: str) -> tuple[Array, Array]:
    """All rows in standard units."""
    if name in MADE:
        X, y = MADE[name](max(SIZES) + N_TEST)
    elif name == "abalone":
        X, y = read_abalone(data)
    else:
        table = read_table(data, name)
        X, y = table[:, :-1], table[:, -1]
    scale = X.std(0)
    X = (X - X.mean(0)) / np.where(scale > 0.0, scale, 1.0)
    return X.astype(np.float32), ((y - y.mean()) / y.std()).astype(np.float32)


def draw(data: Path, name: str, n: int, seed: int) -> Data:
    """n rows, which are among the first of every larger draw, and rows that are in no draw."""
    X, y = whole_table(data, name)
    rows = np.random.default_rng(seed).permutation(len(y))
    train, test = rows[:n], rows[max(SIZES) :][:N_TEST]
    return Data(X[train], y[train], X[test], y[test])


def tasks(args: argparse.Namespace) -> Iterator[Task]:
    """Draws of all sizes and sets, seed by seed."""
    for seed in args.seeds:
        for name in args.sets:
            for n in args.sizes:
                read = functools.partial(draw, args.data, name, n, seed)
                yield Task({"set": name, "n": n}, seed, read)


def by_size(rows: pd.DataFrame, ours: str) -> pd.DataFrame:
    """Means over sets and seeds of tasks that ours and all rivals of the bars have, by n and model.

    "spread" is the standard deviation over seeds, a mean over sets.
    """
    keys = ["set", "n", "seed"]
    rows = rows[rows.model.isin([ours, "before", *RIVALS])]
    complete = rows.groupby(keys).model.nunique() == rows.model.nunique()
    rows = rows.set_index(keys)[complete.reindex(rows.set_index(keys).index)].reset_index()
    rows = rows.assign(scaled_s=scaled_seconds)
    means = rows.groupby(["n", "model"])[["nlpd", "crps", "rmse", "coverage_95"]].mean()
    per_set = rows.groupby(["n", "model", "set"])
    means["least coverage"] = per_set.coverage_95.mean().groupby(["n", "model"]).min()
    means["spread"] = per_set.nlpd.std().groupby(["n", "model"]).mean()
    means["median nlpd"] = rows.groupby(["n", "model"]).nlpd.median()
    means["cpu_s at 45"] = rows.groupby(["n", "model"]).scaled_s.median()
    means["tasks"] = rows.groupby(["n", "model"]).size()
    return means


def verdict(means: pd.DataFrame, ours: str) -> None:
    """Print which bars hold at each n."""
    for n, table in means.groupby(level="n"):
        table = table.droplevel("n")
        mine, rivals = table.loc[ours], table.drop(index=[ours, "before"], errors="ignore")
        bars = {
            f"NLPD ahead of all ({mine.nlpd:.3f}, {rivals.nlpd.min():.3f})": mine.nlpd
            < rivals.nlpd.min(),
            f"coverage {mine.coverage_95:.1f}": abs(mine.coverage_95 - 95.0) <= 2.5,
            f"least {mine['least coverage']:.1f}": mine["least coverage"] >= 88.0,
            f"CPU {mine['cpu_s at 45']:.1f} s": mine["cpu_s at 45"] <= allowed_seconds(n),
        }
        text = "; ".join(f"{bar}: {'pass' if holds else 'FAIL'}" for bar, holds in bars.items())
        print(f"n = {n}: {text}")


def main() -> None:
    arguments = contest_parser(__doc__, "bench_small.csv", SETS)
    arguments.add_argument("--data", type=Path, required=True, help="folder that holds uci/NAME/")
    arguments.add_argument("--sizes", nargs="+", type=int, choices=SIZES, default=list(SIZES))
    arguments.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    arguments.set_defaults(sets=list(TEN))
    args = arguments.parse_args()
    args.models = args.models or list(MODELS)
    registry = OUR_REGRESSORS | REGRESSORS
    check_models(arguments, args, registry)
    if not args.summary:
        run(args, tasks(args), registry, density_score)
    rows = matched(read_rows(args), args.ours)
    print_summary(rows, args.ours, ("nlpd", "crps", "rmse"), ("n",))
    means = by_size(rows, args.ours)
    print_table("Means over sets and seeds that all models have", means, index=True)
    verdict(means, args.ours)


if __name__ == "__main__":
    main()

"""Claim: at every budget at which a rival has finished, the default is no worse than it.

Twelve tables, those of bench_density.py and Friedman's; the default with ``max_time`` = 2, 5, 10,
20 and 40 s of the clock, beside rivals that take as long as they take. A budget is kept if the fit
took at most 10 % and 1 s more. NLPD (nats per row), CRPS and RMSE of the standardised target.

Rivals may come from the CSVs of bench_density.py: those that had as many training rows are
compared, so ``--spare`` should be the same. The first fit of a process pays for imports; with
``--cold`` each fit of ours is in a process of its own.

    python benchmarks/bench_anytime.py --data DIR
    python benchmarks/bench_anytime.py --data DIR --models auto --csv a.csv --against b.csv
"""

from __future__ import annotations

import argparse
import functools
import math
import subprocess
import sys
from collections.abc import Iterator

import pandas as pd
from _common import add_data
from _contest import (
    Task,
    check_models,
    contest_parser,
    density_score,
    print_table,
    read_rows,
    run,
)
from _rivals import REGRESSORS, Registry
from _tables import REGRESSION, SEED, Choice
from bench_density import read

import skgpstoch

TWELVE = (*REGRESSION, "friedman1")
BUDGETS = (2, 5, 10, 20, 40)  # seconds of the clock
RIVALS = ("HistGradientBoosting", "CatBoost", "CatBoostConstant", "RealMLP")
MODELS = ("auto", *RIVALS)


def tasks(args: argparse.Namespace, budgets: list[int]) -> Iterator[Task]:
    """All sets, for a rival once (a budget of 0 is none), for ours with every budget."""
    choice = Choice(args.data, 0, args.rows, args.flights, args.spare)
    for budget in budgets:
        for name in args.sets:
            task = {"set": name, "rows": args.rows, "budget": budget}
            yield Task(task, args.seed, functools.partial(read, name, choice))


def within(budget: int) -> Registry:
    """Ours with a budget."""
    make = skgpstoch.AutoGaussianProcessRegressor
    return {"auto": lambda seed: make(max_time=budget, random_state=seed)}


def fit_all(args: argparse.Namespace) -> None:
    """The rivals, and ours with every budget."""
    models, ours = args.models, "auto" in args.models
    args.models = [name for name in models if name != "auto"]
    run(args, tasks(args, [0]), REGRESSORS, density_score)
    args.models = ["auto"] if ours else []
    for budget in args.budgets:
        run(args, tasks(args, [budget]), within(budget), density_score)
    args.models = models


def fit_cold(args: argparse.Namespace) -> None:
    """The same, each set and budget in a process of its own."""
    for name in args.sets:
        for budget in args.budgets:
            command = [sys.executable, *sys.argv, "--sets", name, "--budgets", str(budget)]
            subprocess.run([*command, "--child"], check=True)


def curve(rows: pd.DataFrame, ours: str) -> pd.DataFrame:
    """NLPD of each set and budget, and the least of the rivals that finished within the budget."""
    mine = rows[(rows.model == ours) & (rows.budget > 0)]  # not ours without a budget
    rivals = rows[rows.model != ours]
    found = []
    for row in mine.sort_values(["set", "budget"]).itertuples():
        same = (rivals["set"] == row.set) & (rivals.n_train == row.n_train)
        finished = rivals[same & (rivals.cpu_s <= row.budget)]
        best = finished.loc[finished.nlpd.idxmin()] if len(finished) else None
        found.append(
            {
                **{"set": row.set, "budget": row.budget, "seconds": row.wall_s},
                **{"kept": row.wall_s <= 1.1 * row.budget + 1.0, "nlpd": row.nlpd},
                "best finished": math.nan if best is None else best.nlpd,
                "rival": "" if best is None else best.model,
            }
        )
    table = pd.DataFrame(found)
    table["ahead"] = table["best finished"].isna() | (table.nlpd <= table["best finished"])
    return table


def verdict(table: pd.DataFrame) -> None:
    """Print which bars hold at each budget, and whether more time was ever worse."""
    for budget, rows in table.groupby("budget"):
        behind, late = rows["set"][~rows.ahead], rows["set"][~rows.kept]
        passed = "FAIL" if len(behind) or len(late) else "pass"
        print(
            f"{budget} s: behind on {len(behind)} of {len(rows)} ({', '.join(behind)}), late on "
            f"{len(late)} ({', '.join(late)}): {passed}"
        )
    gains = table.sort_values("budget").groupby("set").nlpd.diff()
    print(f"more time was worse, by more than .02 nats: {(gains > 0.02).sum()} of {gains.count()}")


def main() -> None:
    arguments = contest_parser(__doc__, "bench_anytime.csv", TWELVE)
    add_data(arguments)
    add = arguments.add_argument
    add("--rows", type=int, default=12_000, help="training rows of the large sets; 0: all")
    add("--flights", type=int, default=12_000, help="training rows of flights; 0: all 294,611")
    add("--spare", type=int, default=0, help="rows that are not trained on, to test")
    add("--budgets", nargs="+", type=int, default=list(BUDGETS), help="seconds")
    add("--cold", action="store_true", help="a process for each fit of ours")
    add("--seed", type=int, default=SEED, help="random_state of every method")
    add("--child", action="store_true", help=argparse.SUPPRESS)
    args = arguments.parse_args()
    args.models = args.models or list(MODELS)
    check_models(arguments, args, ("auto", *REGRESSORS))
    if not args.summary:
        (fit_cold if args.cold and not args.child else fit_all)(args)
    if not args.child:
        table = curve(read_rows(args), args.ours)
        print_table("NLPD within a budget, and the best rival that has finished", table)
        verdict(table)


if __name__ == "__main__":
    main()

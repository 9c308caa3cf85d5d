"""Contests: every method on every task, rows added to a CSV, and who won what."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from _common import Array, Clock, Row, append_csv, environment, set_threads
from _densities import density_of, density_scores
from _rivals import Registry

RIVAL_PACKAGES = ("catboost", "ngboost", "pytabkit", "quantile-forest")
Score = Callable[[Any, "Data"], Row]


class Data(NamedTuple):
    """Rows of a task, and the unit that its scores are to be reported in."""

    X_train: Any  # (n, d), an array or a frame
    y_train: Array  # (n,)
    X_test: Any
    y_test: Array
    unit: float = 1.0


class Task(NamedTuple):
    """Rows to fit and to score, read when they are needed."""

    name: Row  # "set", and what else tells it from other tasks
    seed: int  # random_state of every method
    read: Callable[[], Data]


# --- arguments ------------------------------------------------------------------------------------
def contest_parser(docstring: str | None, csv: str, sets: Sequence[str]) -> argparse.ArgumentParser:
    """Argument parser with the options that every contest has."""
    formatter = argparse.RawDescriptionHelpFormatter
    arguments = argparse.ArgumentParser(description=docstring, formatter_class=formatter)
    add = arguments.add_argument
    add("--sets", nargs="+", choices=sets, default=list(sets))
    add("--models", nargs="+", help="default: ours and its rivals in this contest")
    add("--csv", type=Path, default=Path(csv), help="rows are added; tasks done are skipped")
    add("--threads", type=int, default=1, help="threads of torch, BLAS, OpenMP and rivals")
    add("--against", nargs="+", type=Path, default=[], help="other CSVs for the summary")
    add("--before", type=Path, help="a CSV of an earlier version of ours, one more rival")
    add("--ours", default="auto", help="the model that the summary compares with the others")
    add("--summary", action="store_true", help="fit nothing: print the summary")
    return arguments


def check_models(arguments: argparse.ArgumentParser, args: argparse.Namespace, known: Any) -> None:
    """An error of the command line if a model is not known."""
    if not set(args.models) <= set(known):
        arguments.error(f"--models: choose from {', '.join(known)}")


# --- fits -----------------------------------------------------------------------------------------
def density_score(model: Any, data: Data) -> Row:
    """Scores of a regressor's densities."""
    return density_scores(density_of(model, data.X_test), data.y_test, data.unit)


def run(args: argparse.Namespace, tasks: Iterable[Task], registry: Registry, score: Score) -> None:
    """Fit and score every model on every task that the CSV does not hold."""
    set_threads(args.threads)
    warnings.simplefilter("ignore")  # rivals' of convergence, of names, and of deprecations
    done = _done(args.csv)
    for task in tasks:
        data = None
        for model in args.models:
            key = _key({**task.name, "seed": task.seed, "model": model})
            if key not in done:
                data = data or task.read()
                row = {**task.name, "seed": task.seed, "model": model, **_sizes(data)}
                row |= contestant(registry[model], task.seed, data, score)
                show(row)
                append_csv(args.csv, {**row, **environment(*RIVAL_PACKAGES)})


def contestant(make: Callable[[int], Any], seed: int, data: Data, score: Score) -> Row:
    """The scores of one fit, and what it took."""
    with Clock() as clock:
        model = make(seed).fit(data.X_train, data.y_train)
    with Clock() as scoring:
        scores = score(model, data)
    return {**scores, "cpu_s": clock.cpu, "wall_s": clock.wall, "scoring_cpu_s": scoring.cpu}


def _sizes(data: Data) -> Row:
    n, d = data.X_train.shape
    return {"n_train": n, "n_features": d, "n_test": len(data.y_test)}


def _done(path: Path) -> set[frozenset[tuple[str, str]]]:
    """Tasks and models that the CSV holds."""
    if not path.exists():
        return set()
    return {
        _key(row) for row in pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")
    }


TASK_COLUMNS = ("set", "n", "split", "seed", "rows", "budget")


def _key(row: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    names = (*TASK_COLUMNS, "model")
    return frozenset((name, str(row[name])) for name in names if name in row)


def show(row: Row) -> None:
    """Print one line of the table."""
    numbers = {k: v for k, v in row.items() if isinstance(v, float)}
    name = "  ".join(f"{row[k]}" for k in TASK_COLUMNS if k in row)
    print(f"{name:24} {row['model']:21} {row['n_train']:>7}  ", end="")
    print("  ".join(f"{name} {value:.4g}" for name, value in numbers.items()), flush=True)


# --- who won --------------------------------------------------------------------------------------
def read_rows(args: argparse.Namespace) -> pd.DataFrame:
    """All rows of the CSVs; those of ``--before`` as the model "before".

    Without a row of ours there is nothing to compare.
    """
    paths = [path for path in dict.fromkeys((args.csv, *args.against)) if path.exists()]
    rows = pd.concat([pd.read_csv(path) for path in paths], ignore_index=True)
    if args.ours not in set(rows.model):
        raise SystemExit(f"no comparison: no row of {args.ours} in {', '.join(map(str, paths))}")
    if args.before:
        before = pd.read_csv(args.before)
        before = before[before.model == args.ours].assign(model="before")
        rows = pd.concat([rows, before], ignore_index=True)
    keys = [name for name in TASK_COLUMNS if name in rows]
    return rows.drop_duplicates([*keys, "model"], keep="first")


REFERENCE_GFLOPS = 45.0  # of the machine whose seconds the bars are in
SECONDS = {50: 1.5, 100: 3.0, 500: 5.0, 2_000: 10.0, 12_000: 45.0}  # CPU, by rows


def scaled_seconds(rows: pd.DataFrame) -> pd.Series:
    """CPU seconds of the fits, on a machine of 45 GFLOP/s."""
    return rows.cpu_s * rows.gflops / REFERENCE_GFLOPS


def allowed_seconds(n: int) -> float:
    """CPU seconds that n rows may take on that machine, by straight lines between the bars."""
    return float(np.interp(n, list(SECONDS), list(SECONDS.values())))


def matched(rows: pd.DataFrame, ours: str) -> pd.DataFrame:
    """The rows of tasks that ours has a row of, so that means are over the same tasks."""
    keys = [name for name in TASK_COLUMNS if name in rows]
    return rows.merge(rows.loc[rows.model == ours, keys], on=keys)


def rivalry(
    rows: pd.DataFrame, ours: str, measures: Sequence[str], by: Sequence[str] = ()
) -> pd.DataFrame:
    """How ours stands against each rival: a row for each, and for each value of ``by``.

    Scores are first averaged over the splits and seeds that both have, set by set. Wins and losses
    count sets; the differences are of ours less the rival's (of NLPD and log-loss), or the ratios
    of ours to the rival's, medians over sets.
    """
    keys = [name for name in TASK_COLUMNS if name in rows]
    columns = [*measures, "cpu_s"]
    mine = rows[rows.model == ours].set_index(keys)[columns]
    found = []
    for rival, theirs in rows[rows.model != ours].groupby("model"):
        both = mine.join(theirs.set_index(keys)[columns], rsuffix="_rival", how="inner")
        both = both.dropna().groupby(["set", *by]).mean()
        groups = both.groupby(list(by)) if by else [((), both)]
        for values, group in groups:
            row = {"rival": rival, **dict(zip(by, values, strict=True)), "sets": len(group)}
            found.append(row | _standing(group, measures))
    return pd.DataFrame(found)


OTHERS_OF_OURS = ("before", "auto, encoded")  # compared with, but no rivals


def rivals_in(scores: pd.DataFrame, ours: str) -> pd.DataFrame:
    """The columns of others' methods."""
    return scores.drop(columns=[ours, *OTHERS_OF_OURS], errors="ignore")


LOGARITHMIC = ("nlpd", "log_loss")


def _standing(group: pd.DataFrame, measures: Sequence[str]) -> Row:
    row: Row = {}
    for measure in measures:
        a, b = group[measure], group[f"{measure}_rival"]
        row[f"{measure} +/-"] = f"{(a < b).sum()}/{(a > b).sum()}"
        change = a - b if measure in LOGARITHMIC else a / b
        row[f"{measure} {'diff' if measure in LOGARITHMIC else 'ratio'}"] = change.median()
        row[f"{measure} mean diff"] = (a - b).mean()
    row["cpu_s"], row["cpu_s rival"] = group["cpu_s"].median(), group["cpu_s_rival"].median()
    return row


def losses(rows: pd.DataFrame, ours: str, measure: str, by: Sequence[str] = ()) -> pd.DataFrame:
    """Sets on which a rival is ahead of ours, with both scores, the worst first."""
    scores = rows.pivot_table(index=["set", *by], columns="model", values=measure, dropna=False)
    rivals = rivals_in(scores, ours)
    table = pd.DataFrame(
        {ours: scores[ours], "best rival": rivals.min(axis=1), "rival": _best(rivals)}
    ).dropna()
    table["difference"] = table[ours] - table["best rival"]
    return table[table["difference"] > 0].sort_values("difference", ascending=False)


def _best(scores: pd.DataFrame) -> pd.Series:
    filled = scores.fillna(np.inf)
    return filled.idxmin(axis=1).where(scores.notna().any(axis=1))


def print_table(title: str, table: pd.DataFrame, index: bool = False) -> None:
    print(f"\n{title}")
    print(table.to_string(index=index, float_format=lambda v: f"{v:.4g}", na_rep=""), flush=True)


def print_summary(
    rows: pd.DataFrame, ours: str, measures: Sequence[str], by: Sequence[str] = ()
) -> None:
    """The standing against each rival, and the sets that were lost, if there is a rival."""
    models = set(rows.model) - {ours}
    if models:
        standing = rivalry(rows, ours, measures, by)
        print_table(f"{ours} against each rival (wins/losses over sets)", standing)
    if models <= set(OTHERS_OF_OURS):
        print("no rival to compare with: name other CSVs by --against")
        return
    for measure in measures:
        lost = losses(rows, ours, measure, by)
        title = f"{measure}: {len(lost)} behind the best rival"
        print_table(title, lost, index=True) if len(lost) else print(f"\n{title}")

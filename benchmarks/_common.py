"""What the benchmarks share: arguments, data, clocks, scores, and CSV files with provenance."""

from __future__ import annotations

import argparse
import csv
import datetime
import functools
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

Array = NDArray[np.floating]
Row = dict[str, Any]

UCI_SETS = (
    "yacht",
    "housing",
    "energy",
    "concrete",
    "airfoil",
    "wine",
    "elevators",
    "pol",
    "bike",
    "kin40k",
    "protein",
)
Z95 = 1.959963984540054  # the 0.975 quantile of N(0, 1)


# --- arguments ------------------------------------------------------------------------------------
def parser(docstring: str | None, output: str) -> argparse.ArgumentParser:
    """Argument parser with the options that every benchmark has."""
    formatter = argparse.RawDescriptionHelpFormatter
    arguments = argparse.ArgumentParser(description=docstring, formatter_class=formatter)
    arguments.add_argument("--seed", type=int, default=0, help="random_state of every method")
    arguments.add_argument("--threads", type=int, default=1, help="threads of torch, BLAS, OpenMP")
    arguments.add_argument("--output", type=Path, default=Path(output), help="the CSV to write")
    return arguments


def add_data(arguments: argparse.ArgumentParser) -> None:
    """Add ``--data``, the folder that holds ``uci/NAME/data.csv.gz``."""
    arguments.add_argument("--data", type=Path, required=True, help="folder that holds uci/NAME/")


def set_threads(n_threads: int) -> None:
    """Limit torch, and every BLAS and OpenMP library that is already loaded, to ``n_threads``."""
    torch.set_num_threads(n_threads)
    threadpool_limits(n_threads)


# --- data -----------------------------------------------------------------------------------------
class Split(NamedTuple):
    """Training and test rows; the inputs are standardised with the moments of the training rows."""

    X_train: Array  # (n, d)
    y_train: Array  # (n,)
    X_test: Array  # (n_test, d)
    y_test: Array  # (n_test,)


def load_split(
    data: Path,
    name: str,
    split: int = 0,
    standardize_y: bool = True,
    rows: int = 0,
    spare: int = 0,
) -> Split:
    """Read ``data/uci/name`` as float32 and split it by column ``split`` of its test mask.

    Of the training rows, at most ``rows`` are drawn; 0 is all of them. Of those that are not drawn,
    at most ``spare`` are tested as well.
    """
    mask = read_table(data, name, "test_mask")[:, split].astype(bool)
    train, test = np.flatnonzero(~mask), np.flatnonzero(mask)
    if 0 < rows < len(train):
        drawn = train[np.random.default_rng(0).permutation(len(train))]
        train, test = drawn[:rows], np.concatenate([test, drawn[rows:][:spare]])
    return split_table(read_table(data, name), train, test, standardize_y)


def load_random_split(data: Path, name: str, seed: int, train: float, test: float) -> Split:
    """Read ``data/uci/name`` as float32: random shares of its rows, y standardised as well."""
    table = read_table(data, name)
    n = len(table)
    rows = np.random.default_rng(seed).permutation(n)
    return split_table(table, rows[: round(train * n)], rows[n - round(test * n) :])


def split_table(
    table: Array, train: NDArray[Any], test: NDArray[Any], standardize_y: bool = True
) -> Split:
    """Rows ``train`` and ``test`` of a table whose last column is the target, as float32."""
    X = _standardize(table[:, :-1], train)
    y = _standardize(table[:, -1], train) if standardize_y else table[:, -1]
    X, y = X.astype(np.float32), y.astype(np.float32)
    return Split(X[train], y[train], X[test], y[test])


def read_table(data: Path, name: str, file: str = "data") -> Array:
    """``data/uci/name/file.csv.gz``."""
    return np.loadtxt(data / "uci" / name / f"{file}.csv.gz", delimiter=",", ndmin=2)


def _standardize(values: Array, train: NDArray[Any]) -> Array:
    mean, std = values[train].mean(0), values[train].std(0)
    return (values - mean) / np.where(std < 1e-12, 1.0, std)


# --- measures -------------------------------------------------------------------------------------
class Clock:
    """Adds up the wall and the process CPU seconds spent inside its ``with`` blocks."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def __enter__(self) -> Self:
        self._start = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *exception: object) -> None:
        self.wall += time.perf_counter() - self._start[0]
        self.cpu += time.process_time() - self._start[1]


def synchronize(device: torch.device) -> None:
    """Wait until a device has done what it was asked for; the CPU always has."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


class PacedFits:
    """Fits of as many epochs as a wall-clock budget holds, judged by the fits before.

    A fit is timed from call to return, so with its start and its closing pass; two short ones, made
    with the first budget, tell these apart from the epochs.
    """

    SAFETY = 0.96  # share of the budget that is planned for
    PROBES = (1, 4)  # epochs

    def __init__(self, make: Callable[[int], Any], data: Split) -> None:
        self.make = make  # epochs → estimator
        self.data = data
        self.walls: dict[int, float] = {}  # epochs → seconds

    def fit(self, max_iter: int) -> tuple[Any, Clock]:
        """A fit of so many epochs."""
        model = self.make(max_iter)
        with Clock() as clock:
            model.fit(self.data.X_train, self.data.y_train)
        self.walls[max_iter] = clock.wall
        return model, clock

    def epochs_within(self, budget: float) -> int:
        """Epochs of a fit of ``budget`` seconds; 0 if there is no time for one."""
        for max_iter in self.PROBES:
            if max_iter not in self.walls:
                self.fit(max_iter)
        few, many = min(self.walls), max(self.walls)
        epoch = (self.walls[many] - self.walls[few]) / (many - few)
        start = self.walls[few] - few * epoch
        return max(0, int((self.SAFETY * budget - start) / epoch))

    def fit_within(self, budget: float) -> tuple[Any, Clock] | None:
        """The longest fit that ``budget`` seconds hold, or None if they hold no epoch."""
        max_iter = self.epochs_within(budget)
        while max_iter >= 1:
            model, clock = self.fit(max_iter)
            if clock.wall <= budget:
                return model, clock
            max_iter = min(max_iter - 1, self.epochs_within(budget))
        return None


class Scores(NamedTuple):
    """Test scores of Gaussian predictions, in the units of the target."""

    rmse: float
    nlpd: float  # mean negative log predictive density, nats per row
    coverage: float  # share of rows inside the central 95 % interval, per cent


def gaussian_scores(y: Array, mean: Array, std: Array | float) -> Scores:
    """Score the predictive densities N(mean, std²) on the targets ``y``."""
    r = y.astype(np.float64) - mean  # (n,)
    std = np.broadcast_to(np.asarray(std, np.float64), r.shape)
    nlpd = 0.5 * np.log(2 * np.pi * std**2) + 0.5 * (r / std) ** 2  # (n,)
    covered = np.abs(r) <= Z95 * std
    return Scores(float(np.sqrt(np.mean(r**2))), float(nlpd.mean()), float(100 * covered.mean()))


# --- results --------------------------------------------------------------------------------------
def environment(*rivals: str) -> Row:
    """The date, the machine, its speed, the threads and the versions: columns of every row."""
    packages = ("numpy", "scikit-learn", "torch", "gpytorch", "skgpstoch", *rivals)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gflops": gflops(),
        "python": platform.python_version(),
        **{package: _version(package) for package in packages},
    }


@functools.cache
def gflops() -> float:
    """Billions of float32 operations a CPU second: the best of ten products of 1,024³."""
    n_threads, size = torch.get_num_threads(), 1024
    A, clocks = torch.ones(size, size), [Clock() for _ in range(10)]
    torch.set_num_threads(1)
    for clock in clocks:
        with clock:
            A @ A
    torch.set_num_threads(n_threads)
    return round(2e-9 * size**3 / min(clock.cpu for clock in clocks), 1)


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor())


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""  # not installed: this benchmark did without it


def write_csv(path: Path, rows: Iterable[Mapping[str, object]], **common: object) -> None:
    """Write ``rows`` to ``path``, each followed by ``common`` and by the environment."""
    common = {**common, **environment()}
    rows = [{**row, **common} for row in rows]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    print(f"wrote {path} ({len(rows)} rows)")


def append_csv(path: Path, row: Mapping[str, object]) -> None:
    """Add one row to ``path``, which is made if it is not there."""
    columns = list(row)
    if path.exists():
        with path.open(newline="") as file:
            found = next(csv.reader(file), [])
        if found != columns:
            raise SystemExit(f"{path} has other columns than {', '.join(columns)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns)
        if file.tell() == 0:
            writer.writeheader()
        writer.writerow(row)


# --- jobs, each in a process of its own -----------------------------------------------------------
def add_parts(arguments: argparse.ArgumentParser, jobs: Mapping[str, list[Any]]) -> None:
    """Add ``--parts``, and what a child is told to do."""
    arguments.add_argument("--parts", nargs="+", choices=list(jobs), default=list(jobs))
    arguments.add_argument("--child", help=argparse.SUPPRESS)


def run_parts(
    arguments: argparse.ArgumentParser,
    jobs: Mapping[str, list[Any]],
    *parts: Callable[..., list[Row]],
) -> None:
    """Each job of each part, a function, in a child; rows are printed, and written to a CSV."""
    args, functions = arguments.parse_args(), {part.__name__: part for part in parts}
    if args.child:
        _child(args, functions)
        return
    rows: list[Row] = []
    for part in args.parts:
        for job in jobs[part]:
            command = [sys.executable, *sys.argv, "--child", json.dumps([part, job])]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            rows += [{"part": part, **row} for row in found]
            for row in found:
                shown = {k: v if isinstance(v, str) else round(v, 4) for k, v in row.items()}
                print({"part": part, **shown}, flush=True)
    keys = list(dict.fromkeys(key for row in rows for key in row))
    table = [{key: row.get(key, "") for key in keys} for row in rows]
    write_csv(args.output, table, seed=args.seed, threads=args.threads)


def _child(args: argparse.Namespace, functions: Mapping[str, Callable[..., list[Row]]]) -> None:
    """One job, whose results are printed."""
    set_threads(args.threads)
    part, job = json.loads(args.child)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = functions[part](args, *(job if isinstance(job, list) else [job]))
    print(json.dumps(rows, default=float))


def peak() -> float:
    """Megabytes of the largest resident set of this process so far (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)["VmHWM"].split()[0]) / 1024

"""What the benchmarks share: arguments, data, clocks, scores, and CSV files with provenance."""

from __future__ import annotations

import argparse
import csv
import datetime
import importlib.metadata
import os
import platform
import time
from collections.abc import Iterable, Mapping
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


def load_split(data: Path, name: str, split: int = 0, standardize_y: bool = True) -> Split:
    """Read ``data/uci/name`` as float32 and split it by column ``split`` of its test mask."""
    folder = data / "uci" / name
    table = np.loadtxt(folder / "data.csv.gz", delimiter=",", ndmin=2)
    masks = np.loadtxt(folder / "test_mask.csv.gz", delimiter=",", ndmin=2)
    test = masks[:, split].astype(bool)
    X = _standardize(table[:, :-1], ~test)
    y = _standardize(table[:, -1], ~test) if standardize_y else table[:, -1]
    X, y = X.astype(np.float32), y.astype(np.float32)
    return Split(X[~test], y[~test], X[test], y[test])


def _standardize(values: Array, train: NDArray[np.bool_]) -> Array:
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
def environment() -> Row:
    """The date, the machine, the thread count and the versions: columns of every row."""
    packages = ("numpy", "scikit-learn", "torch", "gpytorch", "skgpstoch")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{package: _version(package) for package in packages},
    }


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

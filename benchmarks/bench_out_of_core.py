"""Claim: tables larger than memory are fitted in bounded memory, at the speed of reading them.

Eight Parquet files of 20 columns are made once in `--folder` (10,000,000 rows: 900 MB). Each model
is fitted in a process of its own, on one thread. "Peak" is the most that was resident. The rate of
a bare read is pyarrow's, of all columns in the same batches; that of the first and of the closing
pass are of the same rows. With `--n-rows` the table has another size.

    python benchmarks/bench_out_of_core.py --folder /tmp/rows
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from _common import Row, parser, set_threads, write_csv
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skgpstoch import (
    AutoGaussianProcessRegressor,
    SCGDGaussianProcessRegressor,
    SVGPRegressor,
)
from skgpstoch.data import ParquetRows
from skgpstoch.data.parquet_writer import write_parquet
from skgpstoch.data.scan import scan

N_FILES, N_COLUMNS, GROUP_ROWS, N_NEW, NOISE = 8, 20, 100_000, 20_000, 0.3
TASKS = (
    "pyarrow, bare read",
    "first pass",
    "SVGP, closing pass",
    "SVGP, 512 points",
    "SCGD",
    "default, 120 s",
)


def function(X: np.ndarray) -> np.ndarray:
    """The mean of y: smooth, of the first eight columns."""
    waves = np.sin(X[:, 0]) * np.cos(X[:, 1]) + 0.5 * X[:, 2] * X[:, 3]
    return np.asarray(waves + np.tanh(X[:, 4] + X[:, 5]) + 0.2 * X[:, 6] * np.abs(X[:, 7]))


def make(folder: Path, n_rows: int, seed: int) -> list[Path]:
    """Write the files, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{n_rows}_rows_{k}.parquet" for k in range(N_FILES)]
    for k, path in enumerate(paths):
        if not path.exists():
            names = [*(f"x{j}" for j in range(N_COLUMNS)), "y"]
            write_parquet(path, names, groups(n_rows // N_FILES, seed, k))
    return paths


def groups(n_rows: int, seed: int, k: int) -> Iterator[np.ndarray]:
    """Yield row groups of one file: X and y, (m, 21) in float32."""
    rng = np.random.default_rng([seed, k])
    for start in range(0, n_rows, GROUP_ROWS):
        n = min(GROUP_ROWS, n_rows - start)
        X = rng.uniform(-2.0, 2.0, (n, N_COLUMNS)).astype(np.float32)
        y = function(X) + NOISE * rng.standard_normal(n)
        yield np.column_stack([X, y]).astype(np.float32)


# ---- in a process of its own ---------------------------------------------------------------------


def read_alone(paths: list[Path]) -> None:
    """Read all columns, as the sources do, and do nothing."""
    for path in paths:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                for _ in file.iter_batches(65_536, row_groups=[group]):
                    pass


def closed_model(seed: int) -> SVGPRegressor:
    """Return what a first and a closing pass are all of: 512 points, kernel and noise are given."""
    points = np.random.default_rng(seed).uniform(-2.0, 2.0, (512, N_COLUMNS))
    kernel = ConstantKernel(1.0, "fixed") * RBF(3.0, "fixed") + WhiteKernel(0.1, "fixed")
    return SVGPRegressor(
        kernel,
        inducing_points=points,
        learn_inducing_points=False,
        mean="zero",
        solver="collapsed",
        random_state=seed,
    )


def models(name: str, seed: int) -> Any:
    """Return an estimator."""
    if name == "SVGP, closing pass":
        return closed_model(seed)
    if name == "SVGP, 512 points":
        return SVGPRegressor(n_inducing=512, random_state=seed)
    if name == "SCGD":
        return SCGDGaussianProcessRegressor(random_state=seed)
    return AutoGaussianProcessRegressor(max_time=120, random_state=seed)


def task(name: str, paths: list[Path], seed: int) -> Row:
    """Do one thing, and say how long it took, how much memory, and how well it predicts."""
    began = time.perf_counter()
    found: Row = {}
    if name == "pyarrow, bare read":
        read_alone(paths)
    elif name == "first pass":
        scan(rows_of(paths), 100_000, seed)
    else:
        model = models(name, seed).fit(rows_of(paths))
    found["seconds"] = time.perf_counter() - began
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if name not in ("pyarrow, bare read", "first pass"):
        rng = np.random.default_rng([seed, N_FILES])
        X = rng.uniform(-2.0, 2.0, (N_NEW, N_COLUMNS)).astype(np.float32)
        y = function(X) + NOISE * rng.standard_normal(N_NEW)
        named = pd.DataFrame(X, columns=[f"x{j}" for j in range(N_COLUMNS)])
        found["nlpd"] = -float(model.log_predictive_density(named, y).mean())
        found["rmse"] = float(np.sqrt(np.mean((model.predict(named) - function(X)) ** 2)))
    return found


def rows_of(paths: list[Path]) -> ParquetRows:
    """Return the table."""
    return ParquetRows([str(path) for path in paths], target="y")


# ---- all of them ---------------------------------------------------------------------------------


def main() -> None:
    arguments = parser(__doc__, "benchmarks/results/out_of_core.csv")
    arguments.add_argument("--folder", type=Path, required=True, help="where the table is made")
    arguments.add_argument("--n-rows", type=int, default=10_000_000)
    arguments.add_argument("--only", nargs="*", default=TASKS, help="some of what is measured")
    arguments.add_argument("--task", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    set_threads(given.threads)
    paths = make(given.folder, given.n_rows, given.seed)
    if given.task:
        print(json.dumps(task(given.task, paths, given.seed)))
        return
    rows: list[Row] = []
    for name in given.only:
        command = [sys.executable, __file__, "--folder", str(given.folder), "--task", name]
        command += ["--n-rows", str(given.n_rows), "--seed", str(given.seed)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = json.loads(output.splitlines()[-1])
        found["rows_per_second"] = given.n_rows / found["seconds"]
        rows.append({"task": name, "n_rows": given.n_rows, **found})
        print(rows[-1], flush=True)
    write_csv(given.output, rows, seed=given.seed, threads=given.threads)


if __name__ == "__main__":
    main()

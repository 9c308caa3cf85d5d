"""Claims: counts and outliers have likelihoods that pay.

Part "counts": the rings of abalone (``abalone.csv`` in the data folder), 90 % / 10 % at random:
negative log predictive mass (nats per row) and mean Poisson deviance of
SVGPRegressor(likelihood="poisson"), and of scikit-learn's PoissonRegressor, boosted trees with a
Poisson loss, and the mean of the training rows, each taken as the rate of a Poisson distribution.

Part "robust": one UCI set whose training targets are wrong for 10 % of the rows, by a normal error
of 10 standard deviations; RMSE, NLPD and coverage on test rows that are not, of each likelihood,
and of the Gaussian one without the outliers.

    python benchmarks/bench_counts_robust.py --data DIR
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _common import (
    Array,
    Clock,
    Row,
    Split,
    add_data,
    load_split,
    parser,
    set_threads,
    write_csv,
)
from scipy.stats import poisson
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import mean_poisson_deviance

from skgpstoch import SVGPRegressor

OURS = "SVGPRegressor, poisson"
ABALONE_ROWS = (3_759, 418)  # 90 % and 10 %


# --- counts ---------------------------------------------------------------------------------------
def read_abalone(data: Path) -> tuple[Array, Array]:
    """All rows in their own units, with the sex as three inputs; and the rings."""
    table = np.genfromtxt(data / "abalone.csv", delimiter=",", skip_header=1, dtype=str)
    sex = np.char.strip(table[:, 0], '"')
    X = np.column_stack([sex[:, None] == ["M", "F", "I"], table[:, 1:-1].astype(float)])
    return X, table[:, -1].astype(float)


def load_abalone(data: Path, seed: int, n_train: int, n_test: int) -> Split:
    """Random rows: counts, and standardised inputs."""
    X, y = read_abalone(data)
    rows = np.random.default_rng(seed).permutation(len(y))
    train, test = rows[:n_train], rows[n_train : n_train + n_test]
    X = (X - X[train].mean(0)) / X[train].std(0)
    return Split(X[train], y[train], X[test], y[test])


def counts(args: argparse.Namespace) -> Iterator[Row]:
    """Ours and its rivals."""
    data = load_abalone(args.data, args.seed, *ABALONE_ROWS)
    models: dict[str, Any] = {
        OURS: SVGPRegressor(likelihood="poisson", random_state=args.seed, **budget(args)),
        "PoissonRegressor": PoissonRegressor(alpha=1e-3, max_iter=1000),
        "HistGradientBoosting, poisson": HistGradientBoostingRegressor(
            loss="poisson", early_stopping=True, random_state=args.seed
        ),
        "mean": DummyRegressor(),
    }
    for name, model in models.items():
        with Clock() as clock:
            model.fit(data.X_train, data.y_train)
        mean = model.predict(data.X_test)
        if name == OURS:
            log_mass = model.log_predictive_density(data.X_test, data.y_test)
        else:
            log_mass = poisson.logpmf(data.y_test, mean)
        row = {
            **{"part": "counts", "set": "abalone", "method": name},
            **{"nlpd": float(-log_mass.mean()), "rmse": rmse(data.y_test, mean)},
            **{"deviance": float(mean_poisson_deviance(data.y_test, mean)), "wall_s": clock.wall},
        }
        print(
            f"abalone {name:30} NLPD {row['nlpd']:.4f}  deviance {row['deviance']:.4f}  "
            f"RMSE {row['rmse']:.3f}  {clock.wall:6.2f} s",
            flush=True,
        )
        yield row


def counts_verdict(rows: list[Row]) -> None:
    """Print whether ours beats PoissonRegressor."""
    by_method = {r["method"]: r for r in rows}
    ours, theirs = by_method[OURS], by_method["PoissonRegressor"]
    good = ours["nlpd"] < theirs["nlpd"] and ours["deviance"] < theirs["deviance"]
    print("NLPD and deviance below PoissonRegressor's ->", "pass" if good else "FAIL")


# --- outliers -------------------------------------------------------------------------------------
def robust(args: argparse.Namespace) -> Iterator[Row]:
    """Each likelihood on the spoilt targets, and the Gaussian one on the sound ones."""
    data = load_split(args.data, args.set, args.split)
    rng = np.random.default_rng(args.seed)
    wrong = rng.random(len(data.y_train)) < 0.1
    y = data.y_train + 10.0 * wrong * rng.standard_normal(len(wrong))
    for likelihood, target, on in (
        ("gaussian", data.y_train, "sound targets"),
        *((name, y, "10 % outliers") for name in ("gaussian", "student_t", "laplace")),
    ):
        model = SVGPRegressor(likelihood=likelihood, random_state=args.seed, **budget(args))
        with Clock() as clock:
            model.fit(data.X_train, target)
        low, high = model.predict_interval(data.X_test).T
        row = {
            **{"part": "robust", "set": args.set, "split": args.split, "method": likelihood},
            **{"on": on, "rmse": rmse(data.y_test, model.predict(data.X_test))},
            "nlpd": float(-model.log_predictive_density(data.X_test, data.y_test).mean()),
            "coverage": 100 * float(np.mean((low <= data.y_test) & (data.y_test <= high))),
            "wall_s": clock.wall,
        }
        print(
            f"{args.set} {likelihood:10} {on:14} RMSE {row['rmse']:.4f}  NLPD {row['nlpd']:7.3f}  "
            f"coverage of 95 % {row['coverage']:5.1f}  {clock.wall:6.2f} s",
            flush=True,
        )
        yield row


def robust_verdict(rows: list[Row]) -> None:
    """Print whether Student's t beats the Gaussian under outliers."""
    by_method = {r["method"]: r for r in rows if r["on"] != "sound targets"}
    ours, theirs = by_method["student_t"], by_method["gaussian"]
    good = ours["nlpd"] < theirs["nlpd"] and ours["rmse"] < theirs["rmse"]
    print("student_t's RMSE and NLPD below gaussian's ->", "pass" if good else "FAIL")


def rmse(y: Array, mean: Array) -> float:
    """Root mean square error."""
    return float(np.sqrt(np.mean((y - mean) ** 2)))


def budget(args: argparse.Namespace) -> dict[str, Any]:
    """What the command line asks of ours; the estimator's own choice where it does not."""
    asked = {"max_iter": args.epochs, "n_inducing": args.inducing}
    return {name: value for name, value in asked.items() if value is not None}


def main() -> None:
    arguments = parser(__doc__, "bench_counts_robust.csv")
    add_data(arguments)
    add = arguments.add_argument
    add("--set", default="airfoil", help="of the part on outliers")
    add("--split", type=int, default=0)
    add("--epochs", type=int, help="default: the estimator's own")
    add("--inducing", type=int, help="default: the estimator's own")
    args = arguments.parse_args()
    set_threads(args.threads)
    of_counts, of_outliers = list(counts(args)), list(robust(args))
    counts_verdict(of_counts)
    robust_verdict(of_outliers)
    write_csv(args.output, [*of_counts, *of_outliers], seed=args.seed)


if __name__ == "__main__":
    main()

"""Claim: SCGD reaches GPyTorch SVGP's accuracy of two minutes in a fiftieth of the time.

Test RMSE and NLPD against wall time, all methods in this process on the same threads:

- ours, boosted trees and a perceptron (the latter two with a constant variance): one whole ``fit``
  from scratch at each of a growing number of iterations, timed from call to return;
- GPyTorch's SVGP (M = b, Matérn-3/2, ARD, learned inducing points from k-means) with Adam at three
  learning rates, and with natural gradients: one run each, whose clock stands still while it
  predicts;
- ours with its default constructor, and scikit-learn's exact GP on a random subset: one point.

    python benchmarks/bench_time_to_accuracy.py --data DIR --set kin40k --budget 120

Every method is first run for a moment on 512 rows, unmeasured: PyTorch loads parts of itself at
the first step. Writes a CSV, and a plot beside it; needs gpytorch and matplotlib.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _common import (
    Clock,
    Row,
    Split,
    add_data,
    gaussian_scores,
    load_split,
    parser,
    set_threads,
    write_csv,
)
from _gpytorch import svgp_trace
from _peers import ExactOnSubset, GaussianRegressor, boosted_trees, multilayer_perceptron
from matplotlib.figure import Figure
from sklearn.exceptions import ConvergenceWarning

from skgpstoch import SCGDGaussianProcessRegressor

OURS = "SCGD"
ADAM_RATES = (0.01, 0.03, 0.1)
MAX_ITER = [round(2 ** (k / 2)) for k in range(1, 25)]  # 1, 2, 3, 4, 6, 8, 11, 16, …, 4096


def fits(
    method: str, make: Callable[[int], GaussianRegressor], data: Split, budget: float
) -> Iterator[Row]:
    """One row for each fit of ``make(max_iter)``, until the next would exceed the budget."""
    for max_iter in MAX_ITER:
        model = make(max_iter)
        with Clock() as clock:
            model.fit(data.X_train, data.y_train)
        mean, std = model.predict(data.X_test, return_std=True)
        scores = gaussian_scores(data.y_test, mean, std)
        yield row(method, clock.wall, clock.cpu, model.n_iter_, scores)
        if clock.wall * 1.42 > budget or model.n_iter_ < max_iter:
            return


def svgp(method: str, data: Split, **settings: Any) -> Iterator[Row]:
    """One row for each moment at which GPyTorch's run is looked at."""
    for point in svgp_trace(data, **settings):
        scores = gaussian_scores(data.y_test, point.mean, point.std)
        yield row(method, point.wall, point.cpu, point.n_iter, scores)


def row(method: str, wall: float, cpu: float, n_iter: int, scores: tuple[float, ...]) -> Row:
    names = ("rmse", "nlpd", "coverage")
    values = dict(zip(names, scores, strict=True))
    figures = "  ".join(f"{name} {value:8.4f}" for name, value in values.items())
    print(f"{method:24} {wall:8.2f} s  n_iter {n_iter:6d}  {figures}", flush=True)
    return {"method": method, "wall_s": wall, "cpu_s": cpu, "n_iter": n_iter, **values}


def measure(
    data: Split,
    budget: float,
    fit_budget: float,
    M: int,
    n_points: int,
    subset: int,
    seed: int,
) -> list[Row]:
    """All rows of all methods."""
    settings = {
        "n_inducing": M,
        "batch_size": M,
        "budget": budget,
        "n_points": n_points,
        "seed": seed,
    }
    makers = {
        OURS: lambda k: SCGDGaussianProcessRegressor(max_iter=k, random_state=seed),
        "HistGradientBoosting": lambda k: boosted_trees(seed, k),
        "MLPRegressor": lambda k: multilayer_perceptron(seed, k),
    }
    rows: list[Row] = []
    for method, make in makers.items():
        rows += fits(method, make, data, fit_budget)
    default = SCGDGaussianProcessRegressor(random_state=seed)
    rows += fits(f"{OURS}, defaults", lambda _: default, data, 0)
    if subset:
        rows += fits(f"exact GP, {subset} rows", lambda _: ExactOnSubset(subset, seed), data, 0)
    for rate in ADAM_RATES:
        rows += svgp(f"SVGP Adam {rate}", data, natural=False, learning_rate=rate, **settings)
    rows += svgp("SVGP natural", data, natural=True, learning_rate=0.01, **settings)
    return rows


def warm_up(data: Split, seed: int) -> None:
    """Let every library load what it loads at its first step."""
    few = Split(*(part[:512] for part in data))
    SCGDGaussianProcessRegressor(max_iter=1, random_state=seed).fit(few.X_train, few.y_train)
    settings: dict[str, Any] = {
        "n_inducing": 32,
        "batch_size": 32,
        "budget": 0.5,
        "n_points": 2,
        "seed": seed,
    }
    for natural in (False, True):
        list(svgp_trace(few, natural=natural, learning_rate=0.01, **settings))


def report(rows: list[Row], budget: float) -> None:
    """Print how long ours took to reach what SVGP has when its budget ends."""
    last = {r["method"]: r for r in rows if r["method"].startswith("SVGP Adam")}
    best = min(last.values(), key=lambda r: r["nlpd"])
    target = best["nlpd"]
    ours = [r for r in rows if r["method"].startswith(OURS)]
    reached = [r["wall_s"] for r in ours if r["nlpd"] <= target]
    print(f"{best['method']}: NLPD {target:.3f} at {budget:g} s, the best of {len(last)} rates")
    if reached:
        print(f"{OURS} reached it in {min(reached):.2f} s: {budget / min(reached):.0f} times less")
    else:
        print(f"{OURS} did not reach it within the budget")


def plot(rows: list[Row], title: str, path: Path) -> None:
    """RMSE and NLPD against wall time, one line a method."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    axes = figure.subplots(1, 2)
    for method in dict.fromkeys(r["method"] for r in rows):
        own = [r for r in rows if r["method"] == method]
        style = {"lw": 3, "color": "black", "zorder": 3} if method.startswith(OURS) else {"lw": 1}
        for ax, score in zip(axes, ("rmse", "nlpd"), strict=True):
            ax.plot(
                [r["wall_s"] for r in own], [r[score] for r in own], ".-", label=method, **style
            )
    for ax, label in zip(axes, ("test RMSE", "test NLPD (nats per row)"), strict=True):
        ax.set(xscale="log", xlabel="wall time (s)", ylabel=label)
    axes[0].set_yscale("log")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right")
    figure.suptitle(title)
    figure.savefig(path, dpi=150)
    print(f"wrote {path}")


def main() -> None:
    arguments = parser(__doc__, "bench_time_to_accuracy.csv")
    add_data(arguments)
    arguments.add_argument("--set", default="kin40k")
    arguments.add_argument("--split", type=int, default=0)
    arguments.add_argument("--budget", type=float, default=120, help="seconds for each SVGP run")
    arguments.add_argument("--fit-budget", type=float, default=15, help="seconds for a whole fit")
    arguments.add_argument("--inducing", type=int, default=512, help="SVGP's M, and its batch size")
    arguments.add_argument("--points", type=int, default=16, help="looks at each SVGP run")
    arguments.add_argument("--subset", type=int, default=2000, help="the exact GP's rows; 0: none")
    args = arguments.parse_args()
    set_threads(args.threads)
    warnings.simplefilter("ignore", ConvergenceWarning)  # the perceptron's budget is the point
    data = load_split(args.data, args.set, args.split)
    warm_up(data, args.seed)
    budgets = (args.budget, args.fit_budget)
    rows = measure(data, *budgets, args.inducing, args.points, args.subset, args.seed)
    write_csv(args.output, rows, set=args.set, split=args.split, seed=args.seed)
    plot(rows, f"{args.set}, {args.threads} thread(s)", args.output.with_suffix(".png"))
    report(rows, args.budget)


if __name__ == "__main__":
    main()

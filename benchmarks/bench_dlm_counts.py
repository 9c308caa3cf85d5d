"""Claims: counts are predicted better by direct loss minimisation, with any of its gradients.

The rings of abalone (``abalone.csv`` in the data folder), 2,000 random rows for training and 1,000
for testing, five times; Poisson likelihood, M = 20 and 50 points, default kernel, the same epochs
for all:

- ELBO: SVGPRegressor(likelihood="poisson"), and with the softplus link;
- exact, biased, smoothed, product: DLMRegressor(loss=LogLoss(gradient), likelihood="poisson"), the
  last three with S = 10 draws; β is the one that DLMRegressor chooses for "exact", on a tenth of
  the training rows, and its search is timed by itself (``search_s``);
- fixed: "exact" with the kernel and points of an ELBO fit, which is part of its time, and its own
  choice of β;
- exact, softplus and fixed, softplus: with the softplus link and their own β.

Negative log predictive mass (nats per row; by quadrature for all), mean relative error |y − E[y]| /
max(y, 1), and CPU seconds of a fit with a given β. The verdict, of means over the splits: the NLPD
of "exact" and of "fixed" at most the ELBO's of the same link, and their relative errors at most 5 %
more.

    python benchmarks/bench_dlm_counts.py --data DIR
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np
from _common import Clock, Row, Split, add_data, parser, set_threads, write_csv
from bench_counts_robust import load_abalone

from skgpstoch import DLMRegressor, LogLoss, SVGPRegressor
from skgpstoch.likelihoods import Poisson

N_TRAIN, N_TEST = 2_000, 1_000
BETAS = (5, 1, 0.2, 0.05)
SAMPLED = ("biased", "smoothed", "product")
METHODS = ("ELBO", "exact", "fixed", *SAMPLED)
LINKS = ("exp", "softplus")
MRE_BAR = 1.05  # of the ELBO's


def label(method: str, link: str) -> str:
    """A method and its link, unless that is exp."""
    return method if link == "exp" else f"{method}, {link}"


def fits(args: argparse.Namespace) -> Iterator[Row]:
    """A row for each split, number of points and method."""
    for split in range(args.splits):
        data = load_abalone(args.data, split, N_TRAIN, N_TEST)
        for M in args.inducing:
            for link in LINKS:
                for row in of_link(link, data, args, n_inducing=M):
                    print(
                        f"split {split}  M = {M}  {row['method']:16} NLPD {row['nlpd']:.4f}  "
                        f"MRE {row['mre']:.4f}  RMSE {row['rmse']:.3f}  beta {row['beta']:<5g} "
                        f"{row['cpu_s']:6.2f} s CPU",
                        flush=True,
                    )
                    yield {"set": "abalone", "split": split, "M": M, **row}


def of_link(link: str, data: Split, args: argparse.Namespace, n_inducing: int) -> Iterator[Row]:
    """The ELBO, and direct loss minimisation at the β that suits it."""
    settings: dict[str, Any] = {
        **{"likelihood": Poisson(link), "n_inducing": n_inducing, "random_state": args.seed},
        "max_iter": args.epochs,
    }
    chosen = 1.0
    for method in (m for m in METHODS if m in args.methods):
        search: Row = {}
        if method in SAMPLED:
            if link != "exp":
                continue
            loss = LogLoss(gradient=method, n_samples=args.samples)
            model: Any = DLMRegressor(loss=loss, beta=chosen, **settings)
        elif method == "ELBO":
            model = SVGPRegressor(**settings)
        else:
            how = {"hyperparameters": "joint" if method == "exact" else "fixed", **settings}
            beta, search["search_s"] = choose_beta(how, data)
            chosen = beta if method == "exact" else chosen
            model = DLMRegressor(beta=beta, **how)
        yield {**scored(label(method, link), model, data), **search}


def choose_beta(settings: Row, data: Split) -> tuple[float, float]:
    """β, and the CPU seconds of its search."""
    search = DLMRegressor(beta=list(BETAS), refit=False, **settings)
    with Clock() as clock:
        search.fit(data.X_train, data.y_train)
    return search.beta_, clock.cpu


def scored(method: str, model: Any, data: Split) -> Row:
    """Fit, and the test scores."""
    with Clock() as clock:
        model.fit(data.X_train, data.y_train)
    y, mean = data.y_test, model.predict(data.X_test)
    return {
        **{"method": method, "beta": getattr(model, "beta_", 1.0), "n_iter": model.n_iter_},
        "nlpd": float(-model.log_predictive_density(data.X_test, y).mean()),
        "mre": float(np.mean(np.abs(y - mean) / np.maximum(y, 1.0))),
        "rmse": float(np.sqrt(np.mean((y - mean) ** 2))),
        **{"wall_s": clock.wall, "cpu_s": clock.cpu},
    }


def verdict(rows: list[Row]) -> None:
    """Print the means over the splits, and which bars are met."""
    for M in sorted({r["M"] for r in rows}):
        mean: dict[tuple[str, str], float] = {}
        for method in dict.fromkeys(r["method"] for r in rows):
            its = [r for r in rows if r["M"] == M and r["method"] == method]
            for measure in ("nlpd", "mre"):
                mean[method, measure] = statistics.fmean(r[measure] for r in its)
            print(
                f"M = {M}  {method:16} NLPD {mean[method, 'nlpd']:.4f}  "
                f"MRE {mean[method, 'mre']:.4f}  {statistics.median(r['cpu_s'] for r in its):.2f} s"
            )
        for link, how in itertools.product(LINKS, ("exact", "fixed")):
            ours, elbo = label(how, link), label("ELBO", link)
            if (ours, "nlpd") not in mean or (elbo, "nlpd") not in mean:
                continue
            gain = mean[elbo, "nlpd"] - mean[ours, "nlpd"]
            ratio = mean[ours, "mre"] / mean[elbo, "mre"]
            print(
                f"M = {M}, {ours}: NLPD lower by {gain:.4f} -> {'pass' if gain >= 0 else 'FAIL'}; "
                f"relative error {ratio:.3f} of the ELBO's (bar {MRE_BAR}) -> "
                f"{'pass' if ratio <= MRE_BAR else 'FAIL'}"
            )


def main() -> None:
    arguments = parser(__doc__, "bench_dlm_counts.csv")
    add_data(arguments)
    add = arguments.add_argument
    add("--splits", type=int, default=5)
    add("--methods", nargs="+", choices=METHODS, default=METHODS)
    add("--inducing", nargs="+", type=int, default=[20, 50])
    add("--epochs", type=int, default=125, help="500 steps of 512 rows")
    add("--samples", type=int, default=10, help="S")
    args = arguments.parse_args()
    set_threads(args.threads)
    rows: list[Row] = []
    for row in fits(args):
        rows.append(row)
        write_csv(args.output, rows, seed=args.seed)  # each time: nothing is lost
    verdict(rows)


if __name__ == "__main__":
    main()

"""Claim: SVGPRegressor has in 10 s, and in 60 s, what GPyTorch's SVGP takes many times as long for.

Test RMSE and NLPD against wall time on one set, all methods in this process on the same threads,
with M = b inducing points and rows, learned points from k-means, and Matérn-3/2 with ARD:

- ours (solver="collapsed"): for each of several budgets one whole ``fit`` from scratch, k-means and
  closing pass included, with as many epochs as the budget holds, judged by the fits before;
- GPyTorch's SVGP with Adam at three learning rates, and with natural gradients for q(u) and Adam
  for the rest: one run each, whose clock stands still while it predicts.

    python benchmarks/bench_svgp_time.py --data DIR --threads 2

The verdict on two cores: NLPD at most 0.00 in 10 s, NLPD at most -0.25 and RMSE at most 0.170 in
60 s; and, to the lowest NLPD of its run, GPyTorch took at least 10 times as long as the shortest of
our fits that has it (at least 3 times with natural gradients). Every method is first run for a
moment on 512 rows, unmeasured. Writes a CSV, and a plot beside it; needs gpytorch and matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from _common import (
    PacedFits,
    Row,
    Split,
    add_data,
    gaussian_scores,
    load_split,
    parser,
    set_threads,
    write_csv,
)
from bench_time_to_accuracy import ADAM_RATES, plot, row, svgp

from skgpstoch import SVGPRegressor

OURS = "SVGPRegressor"
ADAM, NATURAL = "SVGP Adam", "SVGP natural"
NATURAL_RATES = (0.01, 0.03)
BARS = {10.0: (0.0, math.inf), 60.0: (-0.25, 0.170)}  # seconds → NLPD, RMSE
RATIOS = {ADAM: 10, NATURAL: 3}  # times as long as ours, at least


def make(M: int, seed: int, max_iter: int) -> SVGPRegressor:
    """Ours, with M inducing points and M rows in a batch."""
    return SVGPRegressor(
        solver="collapsed", n_inducing=M, batch_size=M, max_iter=max_iter, random_state=seed
    )


def ours(data: Split, budgets: Sequence[float], M: int, seed: int) -> Iterator[Row]:
    """One row for each budget that holds an epoch."""
    fits = PacedFits(lambda max_iter: make(M, seed, max_iter), data)
    for budget in sorted(budgets):
        fitted = fits.fit_within(budget)
        if fitted is None:
            print(f"{budget:g} s hold no epoch")
            continue
        model, clock = fitted
        mean, std = model.predict(data.X_test, return_std=True)
        scores = gaussian_scores(data.y_test, mean, std)
        yield {"budget_s": budget, **row(OURS, clock.wall, clock.cpu, model.n_iter_, scores)}


def peers(data: Split, **settings: Any) -> Iterator[Row]:
    """GPyTorch's runs."""
    for rate in ADAM_RATES:
        yield from svgp(f"{ADAM} {rate}", data, natural=False, learning_rate=rate, **settings)
    for rate in NATURAL_RATES:
        yield from svgp(f"{NATURAL} {rate}", data, natural=True, learning_rate=rate, **settings)


def runs(rows: list[Row], kind: str) -> dict[str, list[Row]]:
    """The runs of a kind of peer, by name."""
    names = dict.fromkeys(r["method"] for r in rows if r["method"].startswith(kind))
    return {name: [r for r in rows if r["method"] == name] for name in names}


def seconds_to(run: list[Row], nlpd: float) -> float:
    """When a run first had ``nlpd``, interpolated between two looks at it; inf for never."""
    lowest = np.minimum.accumulate([r["nlpd"] for r in run])
    if lowest[-1] > nlpd:
        return math.inf
    log_wall = np.log([r["wall_s"] for r in run])
    return float(np.exp(np.interp(-nlpd, -lowest, log_wall)))


def report(rows: list[Row]) -> None:
    """Print what the peers needed for the NLPD of each of our fits, and the verdicts."""
    own = [r for r in rows if r["method"] == OURS]
    for kind in RATIOS:
        print(f"\nNLPD of ours, and the shortest time of {kind} (of all its rates) to it")
        for r in own:
            needed = min(seconds_to(run, r["nlpd"]) for run in runs(rows, kind).values())
            ratio = (
                f"{needed / r['wall_s']:6.1f} times" if needed < math.inf else "never in its run"
            )
            print(f"{r['nlpd']:8.3f} in {r['wall_s']:6.2f} s {needed:8.2f} s {ratio}")
    print()
    for r in own:
        if r["budget_s"] in BARS:
            nlpd, rmse = BARS[r["budget_s"]]
            good = r["nlpd"] <= nlpd and r["rmse"] <= rmse
            print(
                f"{r['budget_s']:g} s: {r['wall_s']:.2f} s, NLPD {r['nlpd']:.3f} (bar {nlpd}), "
                f"RMSE {r['rmse']:.4f} (bar {rmse}) -> {'pass' if good else 'FAIL'}"
            )
    for kind, bar in RATIOS.items():
        report_ratio(rows, kind, bar)


def report_ratio(rows: list[Row], kind: str, bar: float) -> None:
    """Print how long ours took to the lowest NLPD of the best run of a kind."""
    lowest = min((r for run in runs(rows, kind).values() for r in run), key=lambda r: r["nlpd"])
    reached = [r for r in rows if r["method"] == OURS and r["nlpd"] <= lowest["nlpd"]]
    print(f"{lowest['method']}: NLPD {lowest['nlpd']:.3f} at {lowest['wall_s']:.1f} s", end="; ")
    if not reached:
        print("ours: not within the budgets -> FAIL")
        return
    first = min(reached, key=lambda r: r["wall_s"])
    ratio = lowest["wall_s"] / first["wall_s"]
    verdict = "pass" if ratio >= bar else "FAIL"
    print(
        f"ours: {first['nlpd']:.3f} at {first['wall_s']:.2f} s, "
        f"{ratio:.1f} times less -> {verdict} (bar {bar})"
    )


def warm_up(data: Split, seed: int) -> None:
    """Let every library load what it loads at its first step."""
    few = Split(*(part[:512] for part in data))
    make(32, seed, 1).fit(few.X_train, few.y_train)
    settings: dict[str, Any] = {"n_inducing": 32, "batch_size": 32, "budget": 0.5, "n_points": 2}
    for natural in (False, True):
        list(svgp("warm-up", few, natural=natural, learning_rate=0.01, seed=seed, **settings))


def main() -> None:
    arguments = parser(__doc__, "bench_svgp_time.csv")
    add_data(arguments)
    arguments.add_argument("--set", default="kin40k")
    arguments.add_argument("--split", type=int, default=0)
    arguments.add_argument("--inducing", type=int, default=512, help="M, and the batch size")
    arguments.add_argument("--budgets", nargs="+", type=float, default=[2, 5, 10, 20, 60])
    arguments.add_argument("--peer-seconds", type=float, default=120, help="of each GPyTorch run")
    arguments.add_argument("--points", type=int, default=24, help="looks at each GPyTorch run")
    args = arguments.parse_args()
    set_threads(args.threads)
    data = load_split(args.data, args.set, args.split)
    M, seed = args.inducing, args.seed
    warm_up(data, seed)
    settings = {"n_inducing": M, "batch_size": M, "n_points": args.points, "seed": seed}
    rows = list(ours(data, args.budgets, M, seed))
    rows += peers(data, budget=args.peer_seconds, **settings)
    common = {"set": args.set, "split": args.split, "n_inducing": M, "seed": seed}
    write_csv(args.output, rows, **common)
    plot(rows, f"{args.set}, {args.threads} thread(s)", args.output.with_suffix(".png"))
    report(rows)


if __name__ == "__main__":
    main()

"""Claims: orthogonal inducing points beat as many ordinary ones in time.

kin40k (split 0, M = b, Matérn-3/2 with ARD, learned points, the same solver for all): SVGP
with M points, SOLVE-GP with M + M and SVGP with 2M, at equal wall time (whole fits, with as many
epochs as the budget holds) and at equal epochs. The verdict: SOLVE-GP has a lower NLPD than SVGP
with M at equal wall time, and at most 0.02 more than SVGP with 2M at equal epochs.

    python benchmarks/bench_solvegp.py --data DIR --threads 2
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import Any

from _common import (
    Clock,
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

from skgpstoch import SolveGPRegressor, SVGPRegressor

METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SVGP": (SVGPRegressor, {}),
    "SOLVE-GP": (SolveGPRegressor, {}),
}
TOLERANCE = 0.02  # nats per row, of SOLVE-GP above SVGP with as many points at equal epochs


def make(method: str, M: int, **settings: Any) -> Any:
    """An estimator with M inducing points, and M orthogonal ones where it has them."""
    estimator, own = METHODS[method]
    if estimator is SolveGPRegressor:
        own = {"n_orthogonal": M, **own}
    return estimator(n_inducing=M, **own, **settings)


def label(method: str, M: int) -> str:
    """A method and its points."""
    return f"{method} {M}" if METHODS[method][0] is SVGPRegressor else f"{method} {M}+{M}"


def scored(model: Any, clock: Clock, data: Split) -> Row:
    """Test scores and times of a fit."""
    mean, std = model.predict(data.X_test, return_std=True)
    scores = gaussian_scores(data.y_test, mean, std)
    return {
        "solver": model.solver_,
        "n_iter": model.n_iter_,
        **scores._asdict(),
        "wall_s": clock.wall,
        "cpu_s": clock.cpu,
    }


# --- equal time and equal epochs ------------------------------------------------------------------
def contest(args: argparse.Namespace) -> Iterator[Row]:
    """SVGP with M, SOLVE-GP with M + M and SVGP with 2M."""
    data = load_split(args.data, "kin40k", 0)
    M = args.inducing
    settings = {"solver": args.solver, "batch_size": M, "random_state": args.seed}
    for method, points in (("SVGP", M), ("SOLVE-GP", M), ("SVGP", 2 * M)):
        name = label(method, points)

        def of_epochs(max_iter: int, method: str = method, points: int = points) -> Any:
            return make(method, points, max_iter=max_iter, **settings)

        few = Split(*(part[: 4 * M] for part in data))
        PacedFits(of_epochs, few).fit(1)  # warm up
        fits = PacedFits(of_epochs, data)
        where = {"set": "kin40k", "method": name}
        row = scored(*fits.fit(args.equal_epochs), data)
        yield show({**where, "at": f"{args.equal_epochs} epochs", **row})
        if (fitted := fits.fit_within(args.seconds)) is None:
            print(f"{name}: {args.seconds:g} s hold no epoch")
        else:
            yield show({**where, "at": f"{args.seconds:g} s", **scored(*fitted, data)})


def contest_verdict(rows: list[Row], args: argparse.Namespace) -> None:
    """Print whether SOLVE-GP is where it should be."""
    M = args.inducing
    nlpd = {(r["method"], r["at"]): r["nlpd"] for r in rows}
    time, epochs = f"{args.seconds:g} s", f"{args.equal_epochs} epochs"
    comparisons = ((f"SVGP {M}", time, 0.0), (f"SVGP {2 * M}", epochs, TOLERANCE))
    for rival, at, tolerance in comparisons:
        ours, theirs = (nlpd.get((m, at), math.nan) for m in (f"SOLVE-GP {M}+{M}", rival))
        good = ours < theirs + tolerance
        print(
            f"SOLVE-GP {M}+{M} against {rival} at {at}: NLPD {ours:.3f} and {theirs:.3f} "
            f"(tolerance {tolerance}) -> {'pass' if good else 'FAIL'}"
        )


def show(row: Row) -> Row:
    """Print one line of the table."""
    line = (
        f"{row['set']:8} {row['method']:19} {row['at']:>11} {row['solver']:10}"
        f"{row['n_iter']:5} epochs {row['wall_s']:8.1f} s  log-lik {-row['nlpd']:7.3f}  "
        f"RMSE {row['rmse']:.4f}  coverage {row['coverage']:.1f}"
    )
    print(line, flush=True)
    return row


def main() -> None:
    arguments = parser(__doc__, "bench_solvegp.csv")
    add_data(arguments)
    add = arguments.add_argument
    add("--solver", default="collapsed", help="of every method")
    add("--inducing", type=int, default=512, help="M")
    add("--seconds", type=float, default=60, help="equal wall time")
    add("--equal-epochs", type=int, default=30)
    args = arguments.parse_args()
    set_threads(args.threads)
    rows = list(contest(args))
    contest_verdict(rows, args)
    write_csv(args.output, rows, seed=args.seed)


if __name__ == "__main__":
    main()

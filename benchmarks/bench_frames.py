"""Claim: tables as they are; frames with categories, missing values and dates need no encoder.

Eight tables that ship inside plotnine and ISLP (only their files are read, so that
``pip install --no-deps plotnine ISLP`` is enough): a random fifth of the rows is for tests, at most
``--rows`` others for training. "auto" is given the frame; "auto, encoded" one column for each level
of a category and medians for gaps. HistGradientBoosting and CatBoost read categories and gaps
themselves; RealMLP reads categories, and gaps are medians beside a column that says where they
were. Dates are days for the rivals. NLPD (nats per row), CRPS and RMSE of the target in its own
units, coverage of the central 95 % and 80 % intervals in per cent, seconds of the fit.

The bars: NLPD and CRPS ahead of every rival on all sets but one; RMSE within 3 % of the best on all
but two (with those of bench_density.py).

    python benchmarks/bench_frames.py
    python benchmarks/bench_frames.py --models auto --csv ours.csv --against rivals.csv
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator

from _contest import (
    Task,
    check_models,
    contest_parser,
    density_score,
    matched,
    print_summary,
    read_rows,
    run,
)
from _frames import FRAME_REGRESSORS, SOURCES, read
from bench_density import MEASURES, verdict


def tasks(args: argparse.Namespace) -> Iterator[Task]:
    """All sets, split by split."""
    for split in args.splits:
        for name in args.sets:
            task = {"set": name, "split": split, "rows": args.rows}
            yield Task(task, args.seed, functools.partial(read, name, split, args.rows))


def main() -> None:
    arguments = contest_parser(__doc__, "bench_frames.csv", tuple(SOURCES))
    add = arguments.add_argument
    add("--splits", nargs="+", type=int, default=[0, 1])
    add("--rows", type=int, default=12_000, help="the most training rows; 0: all")
    add("--seed", type=int, default=0, help="random_state of every method")
    args = arguments.parse_args()
    args.models = args.models or [name for name in FRAME_REGRESSORS if name != "auto, encoded"]
    check_models(arguments, args, FRAME_REGRESSORS)
    if not args.summary:
        run(args, tasks(args), FRAME_REGRESSORS, density_score)
    rows = matched(read_rows(args), args.ours)
    print_summary(rows, args.ours, MEASURES)
    verdict(rows, args.ours)


if __name__ == "__main__":
    main()

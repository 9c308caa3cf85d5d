"""Claim: two processes close a fit 1.7 times as fast as one, and take steps 1.5 times as fast.

SVGPRegressor with 512 inducing points, minibatches of 2,048 and one thread in each process, fitted
to made-up rows of 20 columns: by one process to all of them, and by two processes in a group to a
half each (``skgpstoch.distributed``, gloo on one machine). Times of a step are those between the
ends of two steps, so that they have the choice of rows in them; the closing pass is timed as a
whole. Figures are medians on rank 0, over the steps of all repetitions or over repetitions. One and
two processes take turns.

``seconds`` are those of the clock, as processes wait for one another. ``load`` is the machine's
load average at the start of each launch: where it is not far below the number of cores, other jobs
are measured too, and ``ratio`` means little. ``cpu`` are seconds of the processor: without waiting
for the others and for the network, but with the work that exchanges make, so that ``cpu_ratio`` is
what the ratio would be at most.

    python benchmarks/bench_two_processes.py
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest.mock
from pathlib import Path
from typing import Any

import numpy as np
from _common import Array, Row, append_csv, environment, parser, set_threads

from skgpstoch import SVGPRegressor
from skgpstoch.distributed import process_group
from skgpstoch.estimators.runs import Run
from skgpstoch.training.loop import Trainer

INPUTS, N_INDUCING, BATCH_SIZE = 20, 512, 2_048
FIRST_STEPS = 5  # that are not counted: they import and compile


def made_up(n_rows: int, rank: int, size: int) -> tuple[Array, Array]:
    """Return a rank's rows: a smooth function of five of twenty columns, and noise."""
    rng = np.random.default_rng([0, rank])
    X = rng.standard_normal((n_rows // size, INPUTS))
    f = np.sin(X[:, 0]) * np.cos(X[:, 1]) + 0.5 * np.tanh(X[:, 2:5]).sum(1)
    return X, f + 0.2 * rng.standard_normal(len(X))


def clocks() -> Array:
    """Return the seconds of the clock and of this process's processor."""
    return np.array([time.monotonic(), time.process_time()])


def timed_fit(args: argparse.Namespace) -> None:
    """Fit to this rank's rows, and print seconds of each step and of the closing pass.

    They are pairs, of the clock and of the processor.
    """
    ends, closings = [], []
    train_step, solution = Trainer.train_step, Run.solution

    def step(trainer: Trainer, X: Any, rows: Any) -> Any:
        loss = train_step(trainer, X, rows)
        float(loss)  # waits for its end
        ends.append(clocks())
        return loss

    def close(run: Run) -> Any:
        start = clocks()
        found = solution(run)
        closings.append(clocks() - start)
        return found

    model = SVGPRegressor(
        n_inducing=N_INDUCING,
        batch_size=BATCH_SIZE,
        solver=args.solver,
        max_iter=1,
        random_state=args.seed,
    )
    X, y = made_up(args.rows, args.rank, args.size)
    timed = unittest.mock.patch.multiple(Trainer, train_step=step)
    timed_too = unittest.mock.patch.multiple(Run, solution=close)
    group = process_group(init=f"file://{args.meet}", rank=args.rank, size=args.size)
    with timed, timed_too, group:
        model.fit(X, y)
    steps = np.diff(ends, axis=0)[FIRST_STEPS:]
    print(
        json.dumps(
            {"step": steps.tolist(), "closing pass": closings[-1:]}, default=np.ndarray.tolist
        )
    )


def launch(args: argparse.Namespace, size: int) -> dict[str, Any]:
    """Run as many processes, and return what rank 0 printed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--rows", str(args.rows), "--solver", args.solver]
        command += ["--seed", str(args.seed), "--size", str(size)]
        command += ["--meet", str(Path(folder) / "meet"), "--rank"]
        processes = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True)
            for rank in range(size)
        ]
        outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"A process of {size} has failed; see above.")
    found: dict[str, Any] = json.loads(outputs[0].splitlines()[-1])
    return found


def main(args: argparse.Namespace) -> None:
    """Measure both, in turn, and write their medians and ratios."""
    found: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    loads = []
    for _ in range(args.repetitions):
        for size, of_size in found.items():
            loads.append(os.getloadavg()[0])
            of_size.append(launch(args, size))
    rows: list[Row] = []
    for part in ("step", "closing pass"):
        pairs = {k: np.concatenate([each[part] for each in v]) for k, v in found.items()}
        (seconds_1, cpu_1), (seconds_2, cpu_2) = (np.median(pairs[k], 0).tolist() for k in (1, 2))
        rows.append(
            {
                "part": part,
                "solver": args.solver,
                "n_rows": args.rows,
                "n_inducing": N_INDUCING,
                "batch_size": BATCH_SIZE,
                "seconds_1": seconds_1,
                "seconds_2": seconds_2,
                "ratio": seconds_1 / seconds_2,
                "cpu_1": cpu_1,
                "cpu_2": cpu_2,
                "cpu_ratio": cpu_1 / cpu_2,
                "repetitions": args.repetitions,
                "load": max(loads),
            }
        )
    for row in rows:
        print({name: round(v, 4) if isinstance(v, float) else v for name, v in row.items()})
        append_csv(args.output, {**row, **environment()})


if __name__ == "__main__":
    options = parser(__doc__, "benchmarks/results/two_processes.csv")
    options.add_argument("--rows", type=int, default=200_000)
    options.add_argument("--solver", default="collapsed", help="of SVGPRegressor")
    options.add_argument("--repetitions", type=int, default=3, help="launches of each size")
    options.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options.add_argument("--size", type=int, help=argparse.SUPPRESS)
    options.add_argument("--meet", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    set_threads(arguments.threads)
    (main if arguments.rank is None else timed_fit)(arguments)

"""Claim: `gp_minimize` finds minima as low with our drop-in as with scikit-optimize's own learner.

Branin (2 inputs, 30 calls) and Hartmann6 (6 inputs, 50 calls) are minimised by scikit-optimize with
its default acquisition, "gp_hedge", which asks for gradients of predictions; ten calls are random,
the same for all surrogates of a seed. Surrogates have the same kernel, a variance times Matern-5/2
with a length-scale an input: "own" is what `gp_minimize` makes by itself, with learned noise
that is not predicted; "drop-in" has none, "drop-in, noise" a WhiteKernel, which is. "regret" is the
lowest value that was seen less the minimum; "regret_half" the same after half of the calls. Seconds
are those of the process.

    python benchmarks/bench_bayesian_optimisation.py
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from _common import Row, parser, set_threads, write_csv
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from skopt import gp_minimize
from skopt.benchmarks import branin, hart6
from skopt.utils import cook_estimator

from skgpstoch import GaussianProcessRegressor

N_RANDOM = 10


class Problem(NamedTuple):
    """A function, the box that it is minimised in, its minimum, and how often it is called."""

    function: Callable[[Sequence[float]], float]
    box: list[tuple[float, float]]
    minimum: float
    n_calls: int


PROBLEMS = {
    "branin": Problem(branin, [(-5.0, 10.0), (0.0, 15.0)], 0.39788735772973816, 30),
    "hartmann6": Problem(hart6, [(0.0, 1.0)] * 6, -3.322368011415515, 50),
}


def drop_in(n_inputs: int, *, noise: bool, seed: int) -> GaussianProcessRegressor:
    """Make our surrogate, with the kernel and the restarts of scikit-optimize's."""
    bounds = [(0.01, 100.0)] * n_inputs
    kernel = ConstantKernel(1.0, (0.01, 1000.0)) * Matern(np.ones(n_inputs), bounds, nu=2.5)
    return GaussianProcessRegressor(
        kernel + WhiteKernel() if noise else kernel,
        normalize_y=True,
        n_restarts_optimizer=2,
        random_state=seed,
    )


def own(n_inputs: int, *, seed: int) -> Any:
    """Make scikit-optimize's surrogate, as `gp_minimize` does: that draws its seed from ours."""
    box = [(0.0, 1.0)] * n_inputs
    return cook_estimator("GP", space=box, random_state=seed, noise="gaussian")


SURROGATES: dict[str, Callable[[int, int], Any]] = {
    "own": lambda n_inputs, seed: own(n_inputs, seed=seed),
    "drop-in": lambda n_inputs, seed: drop_in(n_inputs, noise=False, seed=seed),
    "drop-in, noise": lambda n_inputs, seed: drop_in(n_inputs, noise=True, seed=seed),
}


def minimise(name: str, surrogate: str, seed: int) -> Row:
    """One search."""
    function, box, minimum, n_calls = PROBLEMS[name]
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = gp_minimize(
            function,
            box,
            base_estimator=SURROGATES[surrogate](len(box), seed),
            n_calls=n_calls,
            n_initial_points=N_RANDOM,
            random_state=seed,
        )
    regret = np.minimum.accumulate(found.func_vals) - minimum
    return {
        "problem": name,
        "surrogate": surrogate,
        "seed": seed,
        "n_calls": n_calls,
        "regret_half": regret[n_calls // 2 - 1],
        "regret": regret[-1],
        "cpu_s": time.process_time() - began,
    }


def summaries(rows: list[Row]) -> Iterator[str]:
    """A line for each problem and surrogate."""
    for problem in PROBLEMS:
        for surrogate in SURROGATES:
            some = [r for r in rows if (r["problem"], r["surrogate"]) == (problem, surrogate)]
            regret = np.array([row["regret"] for row in some], dtype=float)
            half = np.array([row["regret_half"] for row in some], dtype=float)
            yield (
                f"{problem:10} {surrogate:15} mean {regret.mean():.4f} median "
                f"{np.median(regret):.5f} most {regret.max():.4f}, at half {half.mean():.3f}, "
                f"{np.mean([float(str(row['cpu_s'])) for row in some]):.1f} s"
            )


def main() -> None:
    arguments = parser(__doc__, "bench_bayesian_optimisation.csv")
    arguments.add_argument("--seeds", type=int, default=10, help="searches with each surrogate")
    given = arguments.parse_args()
    set_threads(given.threads)
    rows: list[Row] = []
    for seed in range(given.seed, given.seed + given.seeds):
        for problem in PROBLEMS:
            rows += [minimise(problem, surrogate, seed) for surrogate in SURROGATES]
        print("\n".join(summaries(rows)), flush=True)
    write_csv(given.output, rows)


if __name__ == "__main__":
    main()

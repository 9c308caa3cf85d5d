"""Claims: a step for the log-loss costs what a step for the ELBO does, and sampling has no loops.

Part "step": one training step, 8 inputs, float32, Matérn-3/2 with ARD, learned points, M = b = 256
and 512, LogLoss() beside the ELBO, the two taking turns: a Gaussian likelihood with the default
solvers (natural and collapsed), natural gradients and Adam; the other likelihoods with natural
gradients. The verdict: a ratio of at most 1.3.

Part "gradient": value and gradients of the log-loss of 1,000 rows, q's means N(0, 1) and variances
uniform on (0.05, 1), by "exact", "biased", "smoothed" and "product" with S = 10 draws; and the
share of proposals that "product" accepts, for targets drawn from p(y | f) and for hard ones, whose
q is 6 too low (and, for classes, whose class is the least probable one).

Part "loop": the draws of "product" for 1,000 rows at once, and the same sampler row by row. The
verdict: at least 20 times faster.

    python benchmarks/bench_dlm_step.py
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
from _common import Clock, Row, parser, set_threads, write_csv
from bench_step_cost import make_data, medians
from bench_svgp_step import N, compare, our_step
from torch import Tensor

from skgpstoch import LogLoss, SVGPClassifier, SVGPRegressor
from skgpstoch.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Laplace,
    Likelihood,
    Poisson,
    StudentT,
)
from skgpstoch.maths.gaussian import Marginals

CLASSES = 10
LIKELIHOODS: dict[str, Likelihood] = {
    "gaussian": Gaussian(0.1),
    "student_t": StudentT(0.3),
    "laplace": Laplace(0.3),
    "bernoulli, logit": Bernoulli("logit"),
    "bernoulli, probit": Bernoulli("probit"),
    "softmax": Categorical(CLASSES),
    "poisson, exp": Poisson("exp"),
    "poisson, softplus": Poisson("softplus"),
}
GRADIENTS = ("exact", "biased", "smoothed", "product")
ROWS = 1_000
SHIFT = 6.0  # of hard rows
STEP_BAR, LOOP_BAR = 1.3, 20.0
Targets = tuple[Tensor, Likelihood]
"""y and p(y | f) of rows."""


# --- steps ----------------------------------------------------------------------------------------
def targets_of(likelihood: Likelihood, f: Tensor, seed: int) -> Tensor:
    """A target for each row of the latent functions (n, 1), or of as many as there are classes."""
    n_latents = likelihood.n_latents(1)
    generator = torch.Generator().manual_seed(seed)
    if n_latents > 1:
        f = 3.0 * f * torch.randn(n_latents, generator=generator).to(f)
    return likelihood.for_outputs(1).sample(f, generator).detach()


def estimator(likelihood: Likelihood, **settings: Any) -> SVGPRegressor | SVGPClassifier:
    """Ours; where the points start does not change what a step costs."""
    settings = {"likelihood": likelihood, "inducing_points": "random", **settings}
    if not isinstance(likelihood, Bernoulli | Categorical):
        return SVGPRegressor(**settings)
    model = SVGPClassifier(**settings)
    model.classes_ = torch.arange(max(2, likelihood.n_latents(1))).numpy()  # as fit finds them
    return model


def steps(sizes: list[int], n_steps: int, repeats: int, seed: int) -> Iterator[Row]:
    """The log-loss and the ELBO, for each likelihood and solver."""
    for M in sizes:
        for name, likelihood in LIKELIHOODS.items():
            solvers = [("natural", "natural")]
            if name == "gaussian":
                solvers = [("natural", "collapsed"), *solvers, ("adam", "adam")]
            X, f = make_data(N, seed)
            y = targets_of(likelihood, f, seed).to(X.dtype)
            for ours, theirs in solvers:
                rivals = {"log-loss": ("log", ours), "ELBO": ("elbo", theirs)}
                in_turn = {
                    f"{name}, {rival}, {solver}": our_step(
                        estimator(likelihood, loss=loss, solver=solver, n_inducing=M), X, y, M, seed
                    )
                    for rival, (loss, solver) in rivals.items()
                }
                for row in compare(in_turn, M, n_steps, repeats, seed, STEP_BAR):
                    yield {"part": "step", "likelihood": name, "M": M, **row}


# --- gradients ------------------------------------------------------------------------------------
def rows_and_q(likelihood: Likelihood, hard: bool, seed: int) -> tuple[Targets, Marginals]:
    """Targets, and q(f) of theirs."""
    generator = torch.Generator().manual_seed(seed)
    shape = ROWS, likelihood.n_latents(1)
    mean = torch.randn(shape, generator=generator)
    var = 0.05 + 0.95 * torch.rand(shape, generator=generator)
    f = mean + var.sqrt() * torch.randn(shape, generator=generator)
    likelihood = likelihood.for_outputs(1)
    y = likelihood.sample(f, generator).detach()
    if hard and isinstance(likelihood, Bernoulli):
        mean, y = mean - SHIFT, torch.ones_like(y)
    elif hard and isinstance(likelihood, Categorical):
        mean, y = SHIFT * mean, mean.argmin(1, keepdim=True).to(y)
    elif hard:
        mean = mean - SHIFT
    return (y, likelihood), Marginals(mean[None], var[None])


def time_call(call: Callable[[], object], repeats: int) -> Row:
    """Medians of seconds, the first call left out."""
    times = []
    for _ in range(repeats + 1):
        with Clock() as clock:
            call()
        times.append((clock.wall, clock.cpu))
    return medians(times[1:])


def time_gradient(loss: LogLoss, rows: Targets, q: Marginals, repeats: int, seed: int) -> Row:
    """Seconds of value and gradients."""
    residual, generator = torch.zeros(ROWS), torch.Generator().manual_seed(seed)
    return time_call(lambda: loss.expected_score(*rows, q, residual, generator), repeats)


def gradients(n_samples: int, repeats: int, seed: int) -> Iterator[Row]:
    """Seconds of each gradient, over that of "exact" too, and the acceptance rate of "product"."""
    for name, likelihood in LIKELIHOODS.items():
        for kind in ("drawn", "hard"):
            rows, q = rows_and_q(likelihood, kind == "hard", seed)
            exact = 0.0
            for gradient in GRADIENTS:
                loss = LogLoss(gradient=gradient, n_samples=n_samples)
                times = time_gradient(loss, rows, q, repeats, seed)
                exact = exact or times["cpu_s"]
                row = {
                    **{"part": "gradient", "likelihood": name, "rows": kind, "method": gradient},
                    **{**times, "cpu_ratio": times["cpu_s"] / exact},
                }
                if gradient == "product":
                    row["acceptance"] = draw(rows, q, n_samples, seed).acceptance_rate
                print(
                    f"{name:18} {kind:6} {gradient:9} {1e3 * row['cpu_s']:8.2f} ms CPU  "
                    f"{row['cpu_ratio']:6.2f} of exact's"
                    + (f"  {row['acceptance']:.3f} accepted" if "acceptance" in row else ""),
                    flush=True,
                )
                yield row


# --- loops ----------------------------------------------------------------------------------------
def draw(rows: Targets, q: Marginals, n_samples: int, seed: int) -> Any:
    """Draws from q(f) p(y | f) for all rows."""
    generator = torch.Generator().manual_seed(seed)
    y, likelihood = rows
    with torch.no_grad():
        return likelihood.product_samples(y.double(), q.double(), n_samples, generator)


def draw_in_a_loop(rows: Targets, q: Marginals, n_samples: int, seed: int) -> None:
    """The same, row by row."""
    y, likelihood = rows
    y, mean, var = y.double(), q.mean.double(), q.var.double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for i in range(len(y)):
            one = slice(i, i + 1)
            q_one = Marginals(mean[:, one], var[:, one])
            likelihood.product_samples(y[one], q_one, n_samples, generator)


def time_both(rows: Targets, q: Marginals, n_samples: int, seed: int) -> tuple[Row, Row]:
    """Seconds of all rows at once, and of row by row."""
    at_once = time_call(lambda: draw(rows, q, n_samples, seed), 1)
    return at_once, time_call(lambda: draw_in_a_loop(rows, q, n_samples, seed), 1)


def loops(n_samples: int, repeats: int, seed: int) -> Iterator[Row]:
    """Seconds of both, taking turns, and the median ratio."""
    for name, likelihood in LIKELIHOODS.items():
        rows, q = rows_and_q(likelihood, False, seed)
        turns = [time_both(rows, q, n_samples, seed) for _ in range(repeats)]
        wall, cpu = (
            statistics.median(loop[k] / at_once[k] for at_once, loop in turns)
            for k in ("wall_s", "cpu_s")
        )
        columns = zip(*turns, strict=True)
        both = [medians([(t["wall_s"], t["cpu_s"]) for t in times]) for times in columns]
        for method, times in zip(("all rows at once", "row by row"), both, strict=True):
            yield {
                **{"part": "loop", "likelihood": name, "method": method, **times},
                **{"ratio": wall, "cpu_ratio": cpu},
            }
        print(
            f"{name:18} at once {1e3 * both[0]['cpu_s']:8.2f} ms CPU, row by row "
            f"{1e3 * both[1]['cpu_s']:8.2f} ms: {cpu:.1f} times (bar {LOOP_BAR:g}) -> "
            f"{'pass' if cpu >= LOOP_BAR else 'FAIL'}",
            flush=True,
        )


def main() -> None:
    arguments = parser(__doc__, "bench_dlm_step.csv")
    parts = ("step", "gradient", "loop")
    add = arguments.add_argument
    add("--parts", nargs="+", choices=parts, default=parts)
    add("--inducing", nargs="+", type=int, default=[256, 512], help="M = b")
    add("--steps", type=int, default=10, help="steps in a turn")
    add("--repeats", type=int, default=9, help="turns")
    add("--samples", type=int, default=10, help="S")
    args = arguments.parse_args()
    set_threads(args.threads)
    rows: list[Row] = []
    if "step" in args.parts:
        rows += steps(args.inducing, args.steps, args.repeats, args.seed)
    if "gradient" in args.parts:
        rows += gradients(args.samples, args.repeats, args.seed)
    if "loop" in args.parts:
        rows += loops(args.samples, max(1, args.repeats // 3), args.seed)
    write_csv(args.output, rows, seed=args.seed, turns=args.repeats, steps=args.steps)


if __name__ == "__main__":
    main()

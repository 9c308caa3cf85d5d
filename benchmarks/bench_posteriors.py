"""Claim: exact posteriors are calibrated for functions of the prior; how far are approximate ones?

Simulation-based calibration: functions are drawn from the prior and observed, the model is fitted
with the true hyper-parameters, and f at new inputs is looked up in its posterior (Talts et al.,
"Validating Bayesian inference algorithms with simulation-based calibration", 2018). Of a right
posterior these places are uniform, z = (f - mean)/std has the deviation 1, and intervals hold what
they say. A deviation above 1 is a posterior that is too certain. Points that are fewer than rows
make a posterior less certain than it could be.

    python benchmarks/bench_posteriors.py --draws 400
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from _common import Array, Clock, Row, parser, set_threads, write_csv
from scipy import stats
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, WhiteKernel

from skgpstoch import (
    DeepGPRegressor,
    GaussianProcessClassifier,
    GaussianProcessRegressor,
    SolveGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpstoch.likelihoods import Bernoulli

N_ROWS = 40
ROWS = np.linspace(-1.7, 1.7, N_ROWS)[:, None]  # of about unit variance: deep models standardise
NEW = np.linspace(-2.2, 2.2, 12)[:, None]
NOISE = 0.1
KERNEL = ConstantKernel(1.0, "fixed") * RBF(0.5, "fixed")
HIDDEN = ConstantKernel(0.3, "fixed") * RBF(1.0, "fixed")


# ---- what makes the data -------------------------------------------------------------------------
def draw(kernel: Kernel, X: Array, rng: np.random.Generator) -> Array:
    """A function of the prior at rows of X, (N,)."""
    L = np.linalg.cholesky(kernel(X) + 1e-9 * np.eye(len(X)))
    return L @ rng.standard_normal(len(X))


def shallow(X: Array, rng: np.random.Generator) -> Array:
    return draw(KERNEL, X, rng)


def deep(X: Array, rng: np.random.Generator) -> Array:
    """Of two layers, the first of which is about the identity on standardised rows."""
    H = (X - ROWS.mean()) / ROWS.std()
    return draw(KERNEL, H + draw(HIDDEN, H, rng)[:, None], rng)


def numbers(f: Array, rng: np.random.Generator) -> Array:
    return f + np.sqrt(NOISE) * rng.standard_normal(len(f))


def counts(f: Array, rng: np.random.Generator) -> Array:
    return rng.poisson(np.exp(f)).astype(float)


def classes(f: Array, rng: np.random.Generator) -> Array:
    return (rng.uniform(size=len(f)) < 1.0 / (1.0 + np.exp(-f))).astype(int)


# ---- what is fitted ------------------------------------------------------------------------------
def sparse(cls: Any, n_points: int = N_ROWS, noise: float | None = NOISE, **params: Any) -> Any:
    kernel = KERNEL if noise is None else KERNEL + WhiteKernel(noise, "fixed")
    points = np.linspace(ROWS[0], ROWS[-1], n_points)
    fixed = {"inducing_points": points, "learn_inducing_points": False, "mean": "zero"}
    of_numbers = {"normalize_y": False} if hasattr(cls(), "normalize_y") else {}
    return cls(kernel, random_state=0, **fixed, **of_numbers, **params)


def of_regressor(model: Any, X: Array) -> Array:
    return np.stack(model.predict(X, return_std=True, latent=True))


def of_exact(model: Any, X: Array) -> Array:
    return np.stack(model.predict(X, return_std=True))


def of_laplace(model: Any, X: Array) -> Array:
    mean, var = model.latent_mean_and_variance(X)
    return np.stack([mean, np.sqrt(var)])


def of_classifier(model: Any, X: Array) -> Array:
    rows, posterior = model._query(X)  # there is no public way to f of classes
    q = posterior.marginals(rows)
    return np.stack([q.mean[0, :, 0].numpy(), q.var[0, :, 0].sqrt().numpy()])


class Case(NamedTuple):
    """A model, what it is given, and how it is asked for mean and std of f, (2, N)."""

    make: Callable[[], Any]
    observe: Callable[[Array, np.random.Generator], Array]
    ask: Callable[[Any, Array], Array]
    simulate: Callable[[Array, np.random.Generator], Array] = shallow


CASES = {
    "exact": Case(
        lambda: GaussianProcessRegressor(KERNEL, alpha=NOISE, optimizer=None), numbers, of_exact
    ),
    "SVGP, a point for each row": Case(lambda: sparse(SVGPRegressor), numbers, of_regressor),
    "SVGP, 10 points": Case(lambda: sparse(SVGPRegressor, 10), numbers, of_regressor),
    "SVGP, 6 points": Case(lambda: sparse(SVGPRegressor, 6), numbers, of_regressor),
    "SOLVE, 6 points and 10": Case(
        lambda: sparse(SolveGPRegressor, 6, n_orthogonal=10), numbers, of_regressor
    ),
    "SVGP, counts": Case(
        lambda: sparse(SVGPRegressor, noise=None, likelihood="poisson"), counts, of_regressor
    ),
    "Laplace, classes": Case(
        lambda: GaussianProcessClassifier(KERNEL, optimizer=None), classes, of_laplace
    ),
    "SVGP, classes": Case(
        lambda: sparse(SVGPClassifier, noise=None, likelihood=Bernoulli("logit")),
        classes,
        of_classifier,
    ),
    "deep, two layers": Case(
        lambda: DeepGPRegressor(
            KERNEL + WhiteKernel(NOISE, "fixed"),
            hidden_kernel=HIDDEN,
            n_inducing=20,
            mean="zero",
            normalize_y=False,
            random_state=0,
        ),
        numbers,
        of_regressor,
        deep,
    ),
}


# ---- calibration ---------------------------------------------------------------------------------
def measure(case: Case, n_draws: int, seed: int) -> Row:
    """How places of f in the posterior differ from uniform ones."""
    rng, z = np.random.default_rng(seed), []
    both = np.concatenate([ROWS, NEW])
    with Clock() as clock:
        for _ in range(n_draws):
            f = case.simulate(both, rng)
            model = case.make().fit(ROWS, case.observe(f[:N_ROWS], rng))
            mean, std = case.ask(model, NEW)
            z.append((f[N_ROWS:] - mean) / std)
    place = stats.norm.cdf(z)  # (n_draws, 12)
    at_one = place[:, 5]  # places of one draw depend on each other
    return {
        "z_mean": float(np.mean(z)),
        "z_std": float(np.std(z)),
        **{f"within_{c}": held(place, c / 100) for c in (50, 90, 95)},
        "ks": float(stats.kstest(at_one, "uniform").statistic),
        "p_value": float(stats.kstest(at_one, "uniform").pvalue),
        "draws": n_draws,
        "cpu_s": clock.cpu,
    }


def held(place: Array, coverage: float) -> float:
    """Share of places in the central interval, per cent."""
    return 100 * float(np.mean(np.abs(place - 0.5) < 0.5 * coverage))


def main() -> None:
    arguments = parser(__doc__, "benchmarks/results/bench_posteriors.csv")
    arguments.add_argument("--draws", type=int, default=400)
    arguments.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    args = arguments.parse_args()
    set_threads(args.threads)
    rows = []
    for name in args.cases:
        n_draws = args.draws if not name.startswith("deep") else max(args.draws // 10, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows.append({"model": name, **measure(CASES[name], n_draws, args.seed)})
        print({k: v if isinstance(v, str) else round(v, 3) for k, v in rows[-1].items()})
    write_csv(args.output, rows, seed=args.seed)


if __name__ == "__main__":
    main()

"""Fit the drop-in's model to many rows: which method, where it starts, how it predicts.

Its noise is that of :mod:`skgpstoch.methods.drop_in.noise`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk

from ...data.messages import warn
from ...estimators.base import predictor
from ...estimators.posterior_law import gradients_of
from ...kernels import Kernel, from_sklearn, split_white_noise
from ...kernels.matrices import set_theta, why_object
from ...maths.linalg import NotPositiveDefiniteError
from ...models.posteriors.gradients import MomentGradients
from ...models.posteriors.neighbours import NeighbourPosterior
from ...objectives.lbfgs import gradients_at
from ...objectives.optimal_q import optimal_q
from ...training.exact_search import CUT_SHORT, TrainingSet
from ...training.recipes.feature_builder import USUAL_BATCH
from ..nngp.estimators import NNGPRegressor
from ..scgd import SCGDGaussianProcessRegressor
from ..solvegp import SolveGPClassifier, SolveGPRegressor
from ..svgp import SVGPClassifier, SVGPRegressor
from .locality import (
    MOST_LOST,
    N_INDUCING,
    N_NEIGHBORS,
    has_neighbours,
    loss_by_neighbours,
)
from .noise import Noise, free_noise, noise_level

EXACT_START_ROWS = 1000  # random ones; training starts from their exact optimum
FAR_METHOD = "sgpr"
"""If far rows matter. *Measured*, NLPD and seconds of sgpr, svgp and solve on 3,000 rows: periodic
.529 in 19, .553 in 41, 1.405 in 103; linear + RBF −.775 in 33, −.772 in 29, −.773 in 95; locally
periodic .353 in 16, .354 in 38, .355 in 126."""
MINIBATCH_STEPS = 600  # of training, or one epoch if that is more

SPARSE: dict[str, Callable[..., Any]] = {"svgp": SVGPRegressor, "solve": SolveGPRegressor}
CLASSIFIERS: dict[str, Callable[..., Any]] = {"svgp": SVGPClassifier, "solve": SolveGPClassifier}


def choose(
    method: str, automatic: tuple[str, str], n_rows: int, max_exact: int, kernel: sk.Kernel
) -> tuple[str, str]:
    """Return the method for this number of rows, and why.

    Parameters
    ----------
    method : str
        The user's choice.
    automatic : tuple of str
        The method that puts all rows into one matrix, and the method for more rows.
    n_rows, max_exact : int
        Number of rows, and the largest number for one matrix.
    kernel : sklearn kernel
        Methods for many rows need it to run in torch.

    Raises
    ------
    ValueError
        If the user's method does not support the kernel.
    """
    small, large = automatic
    unknown = why_object(kernel)
    if method != "auto":
        reason = f"{method=}"
    else:
        is_small = n_rows <= max_exact
        method = small if is_small or unknown else large
        more = "not more" if is_small else "more"
        reason = f"method='auto' is {method!r} for {n_rows} rows, {more} than {max_exact=}"
        if unknown and not is_small:
            reason += ", because no other method supports this kernel; all rows form one matrix"
            warn(f"{reason}, {8e-9 * n_rows**2:.2g} GB.")
    if unknown is None:
        return method, reason
    if method != small:
        raise ValueError(
            f"kernel must be supported in torch for method={method!r}, but {unknown}. Use "
            f"method={small!r}, which supports any kernel."
        )
    return method, (
        f"{reason}; the kernel object computes covariances with its own NumPy code: {unknown}"
    )


def settle(noise: Noise, start: sk.Kernel, rows: TrainingSet, rng: Any) -> tuple[str, str]:
    """Return "nngp", or the method for kernels under which far rows matter too, and why."""
    if not has_neighbours(start, rows.X.shape[1]):
        return (
            FAR_METHOD,
            f"; {FAR_METHOD!r} here, because no rows are neighbours under a kernel such as {start}",
        )
    level = np.asarray(noise_level(start) + noise.alpha)
    of_rows = level if noise.alpha_of_rows is None else level + noise.alpha_of_rows
    lost = loss_by_neighbours(start, rows.X, of_rows, rows.device, rng)
    than = f"than all rows do through {N_INDUCING} inducing points"
    if lost <= MOST_LOST:
        return "nngp", (
            f": the {N_NEIGHBORS} nearest neighbours of a row tell at most {MOST_LOST} nats less "
            f"of it {than} ({lost:.3f})"
        )
    return FAR_METHOD, (
        f"; {FAR_METHOD!r} here, because far rows matter: the {N_NEIGHBORS} nearest neighbours of "
        f"a row tell {lost:.3f} nats less of it {than}"
    )


def start_kernel(noise: Noise, rows: TrainingSet, search: tuple) -> sk.Kernel:
    """Return the kernel with the hyper-parameters of an exact fit to some of the rows.

    `search` is the optimiser, the number of restarts and the random state.
    """
    if search[0] is None or noise.kernel.n_dims == 0:
        return noise.kernel
    some = search[2].permutation(len(rows.X))[:EXACT_START_ROWS]
    alpha = rows.noise[some] if rows.noise.ndim else rows.noise
    few = TrainingSet(rows.X[some], rows.Y[some], alpha, rows.device)
    return few.best(noise.kernel, search, CUT_SHORT)


def searched_all(rows: TrainingSet) -> bool:
    """Tell whether the search among some rows has found the optimum of all: of one noise."""
    return len(rows.X) <= EXACT_START_ROWS and rows.Y.shape[1] == 1


def make_regressor(method: str, kernel: sk.Kernel, n_rows: int, **parameters: Any) -> Any:
    """Make an estimator for many rows, of the same model."""
    if method == "nngp":  # up to so many rows, the search has found the optimum already
        parameters |= {"likelihood": "gaussian", "calibrate": False, "dtype": "float64"}
        return NNGPRegressor(kernel, mean="zero", **parameters)
    if method == "scgd":
        return SCGDGaussianProcessRegressor(kernel, hidden_layer_sizes=(), **parameters)
    if method == "sgpr":
        return SVGPRegressor(kernel, mean="zero", solver="lbfgs", **parameters)
    if n_rows > EXACT_START_ROWS:  # up to there, L-BFGS uses all rows at each step
        n_batches = math.ceil(n_rows / USUAL_BATCH)
        n_epochs = math.ceil(MINIBATCH_STEPS / n_batches)
        parameters |= {"batch_size": USUAL_BATCH, "max_iter": n_epochs}
    return SPARSE[method](kernel, mean="zero", **parameters)


class ManyRowsModel(NamedTuple):
    """f* of an estimator for many rows, with white noise of variance (P,) or (1,)."""

    estimator: Any
    white: np.ndarray

    def moments(self, X: Any, with_variance: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance, each (N*, P)."""
        mean, std = self.estimator.predict(X, return_std=True, latent=True)
        mean, std = mean.reshape(len(mean), -1), std.reshape(len(mean), -1)
        return mean, np.square(std) + self.white

    def joint(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return mean (N*, P) and covariance (N*, N*, P)."""
        mean, cov = self.estimator.predict(X, return_cov=True, latent=True)
        cov = cov.reshape(len(X), len(X), -1)
        cov[np.diag_indices(len(X))] += self.white
        return mean.reshape(len(mean), -1), cov

    def gradients(self, X: np.ndarray) -> MomentGradients:
        """Return mean and standard deviation, and their gradients with respect to the inputs."""
        found = gradients_of(self.estimator, X, latent=True)
        std = np.sqrt(np.square(found.std) + self.white)  # the white part has no slope
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(std > 0.0, found.std / std, 0.0)
        return found._replace(std=std, std_gradient=share[..., None] * found.std_gradient)


@np.errstate(over="ignore", invalid="ignore")
def evidence_at(
    estimator: Any, noise: Noise, theta: np.ndarray, X: np.ndarray, y: np.ndarray
) -> tuple[float, np.ndarray]:
    """Return the log marginal likelihood at another θ of the model's kernel, and its gradient.

    Of a sparse posterior it is the bound: inducing points stay where they are, and q(w) is the best
    one at θ. Neighbours are those at θ. If there is no such posterior, the value is −inf and the
    gradient 0, as for an exact posterior whose covariance has no Cholesky factor.
    """
    if not np.isfinite(theta).all():
        return -np.inf, np.zeros(len(theta))
    found, of_kernel, level = free_noise(noise.kernel), theta, noise_level(noise.kernel)
    if found:
        of_kernel, level = np.delete(theta, found[0]), np.exp(theta[found[0]])
    kernel = from_sklearn(split_white_noise(noise.kernel)[0])  # free where the model's is
    set_theta(kernel.parameters(), of_kernel)
    try:
        if isinstance(estimator, NNGPRegressor):
            value, *parts, of_noise = neighbours_at(estimator, kernel, level + noise.alpha)
        else:
            value, *parts, of_noise = bound_at(estimator, noise, kernel, level, X, y)
    except NotPositiveDefiniteError:
        return -np.inf, np.zeros(len(theta))
    gradient = np.concatenate([np.empty(0), *(part.reshape(-1).cpu().numpy() for part in parts)])
    if found:
        gradient = np.insert(gradient, found[0], float(of_noise.sum()) * level)
    if not (np.isfinite(value) and np.isfinite(gradient).all()):
        return -np.inf, np.zeros(len(theta))
    return np.float64(value), gradient


def neighbours_at(estimator: NNGPRegressor, kernel: Kernel, noise: float) -> tuple[Any, ...]:
    """Return the log density of rows given earlier ones, its slopes by θ, and that by σ²."""
    device, found = predictor(estimator)
    posterior = cast(NeighbourPosterior, found)
    kernel = kernel.to(device)
    variance = torch.full_like(posterior.variance, noise).requires_grad_()
    parameters = [*kernel.parameters(), variance]
    value, slopes = posterior.log_joint(kernel, variance, parameters)
    return float(value.sum()), *slopes


def bound_at(
    estimator: Any, noise: Noise, kernel: Kernel, level: float, X: np.ndarray, y: np.ndarray
) -> tuple[Any, ...]:
    """Return the bound of a sparse posterior, its slopes by θ, and that by σ²."""
    y_std = None if noise.alpha_of_rows is None else np.sqrt(noise.alpha_of_rows)
    data = estimator._validate(X, y, False, None, None, y_std)
    X_, rows, posterior = estimator._labelled(data)
    model = posterior.model.for_training(X_)
    model.features.covariances.kernel = kernel.to(X_)
    model.likelihood.log_noise.data.fill_(math.log(level + noise.alpha))
    at_best = optimal_q(model, X_, rows)
    parameters = [*kernel.parameters(), model.likelihood.log_noise]
    *slopes, of_noise = gradients_at(model, X_, rows, at_best, parameters)  # of the loss per row
    of_noise = of_noise / (level + noise.alpha)
    return float(at_best.value), *(-rows.n_effective * slope for slope in (*slopes, of_noise))

"""Choose β of direct loss minimisation on held-out rows, fit, and recalibrate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from ...data.arrays import possibly_ragged, resolve_seed
from ...data.equal_rows import merged, observations
from ...data.messages import warn
from ...data.rows import Data
from ...estimators.callbacks import with_callbacks
from ...estimators.opening import FOUND
from ...estimators.warm_starts import going_on
from ...likelihoods.real import AdditiveNoise
from ...losses import make_loss
from ...maths.linalg import NotPositiveDefiniteError
from ...models.calibration.held_out import Calibration, HeldOut, recalibrated
from ...models.posteriors.blocks import moments_of
from ...objectives.optimal_q import evidence_bound
from ...training.history import History
from ...training.interrupts import keeps_best, tell, was_interrupted
from ...training.recipes.kernel_choice import KernelChoice
from ...training.recipes.plan import Plan, Start
from .recipe import DLMRecipe

LARGE_BETA = 500.0  # above which candidates are further apart
LEAST_BETA = 0.01
MOST_JUDGES = 10_000  # held-out rows that the predictive distribution is recalibrated on
VALIDATED = (*FOUND, "classes_")


def candidates(beta: Any, n_rows: float) -> np.ndarray:
    """Return the β to try.

    Raises
    ------
    ValueError
        If the parameter is not "auto", a positive number, or a list of such.
    """
    if isinstance(beta, str):
        return beta_grid(n_rows)
    path = possibly_ragged([beta] if isinstance(beta, Real) else beta)
    numbers = path.ndim == 1 and len(path) and path.dtype.kind in "fiu"
    if not (numbers and (np.isfinite(path) & (path > 0)).all()):
        raise ValueError(
            f"beta must be 'auto', a positive number or a list of positive numbers, got {beta!r}."
        )
    return path.astype(np.float64)


def beta_grid(n_rows: float) -> np.ndarray:
    """Return the paper's candidates: n/2, divided by 4 above 500 and by 2 below, down to 0.01."""
    betas = [0.5 * n_rows]
    while (last := betas[-1] / (4.0 if betas[-1] > LARGE_BETA else 2.0)) >= LEAST_BETA:
        betas.append(last)
    return np.array(betas)


class Candidate(NamedTuple):
    """A fit with one β."""

    beta: float
    loss: float  # of held-out rows, per row; infinity where the fit failed
    model: Any = None
    error: Exception | None = None
    interrupted: bool = False


def choose_beta(
    fit: Callable[[float], Candidate], path: np.ndarray, n_jobs: int | None
) -> tuple[list[Candidate], bool]:
    """Fit with each β until Ctrl-C; return the fits, and whether Ctrl-C was pressed."""
    fits: list[Candidate] = []
    try:
        jobs: Iterator = (delayed(fit)(float(beta)) for beta in path)
        for candidate in Parallel(n_jobs=n_jobs, return_as="generator")(jobs):
            fits.append(candidate)
            if candidate.interrupted or was_interrupted():
                break
    except KeyboardInterrupt:
        if not (fits and keeps_best()):
            raise
    interrupted = len(fits) < len(path) or was_interrupted() or fits[-1].interrupted
    if interrupted:
        tell(
            f"The search for beta was interrupted after {len(fits)} of {len(path)} fits; "
            "the best of these is kept, without a final fit on all rows."
        )
    return fits, interrupted


class FitCandidate(NamedTuple):
    """Fit a model with a β to some rows, and judge it on others."""

    model: Any  # an unfitted estimator
    elbo: Any  # an estimator fitted with the evidence lower bound, or None
    train: Data
    held_out: Data

    def judged(self, beta: float) -> Candidate:
        """Return the fit with this β."""
        model = unfitted(self.model, beta=beta)  # as checkpoints know it
        try:
            fit = with_callbacks(fit_given_beta)  # which then end, too
            history = fit(model, beta, self.elbo, self.train)
            loss = mean_loss(model, self.held_out)
        except NotPositiveDefiniteError as error:
            warn(f"beta={beta:g} is skipped, because training failed: {error}", ConvergenceWarning)
            return Candidate(beta, math.inf, error=error)
        interrupted = history.status == "interrupted"
        return Candidate(beta, loss if loss == loss else math.inf, model, None, interrupted)


def split_rows(
    data: Data, fraction: float, seed: int, classes: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows to train on, with at least one of each class, and the held-out rows.

    Raises
    ------
    ValueError
        If there are too few.
    """
    n, least = len(data), 2
    order = np.random.default_rng(seed).permutation(n)
    if classes:
        _, first = np.unique(data.y[order, 0], return_index=True)
        order = np.concatenate([np.delete(order, first), order[first]])
        least = len(first)
    n_held_out = max(1, round(fraction * n))
    if n - n_held_out < least:
        raise ValueError(
            f"Choosing beta needs {least} rows to train on, one of each class, and at least "
            f"one held-out row, but validation_fraction={fraction} holds out {n_held_out} "
            f"of n_samples={n} rows. Change validation_fraction, or give a number for beta."
        )
    return order[n_held_out:], order[:n_held_out]


# ---- fits ----------------------------------------------------------------------------------------


def fit_direct_loss(model: Any, recipe: DLMRecipe, data: Data) -> History:
    """Fit with the given β, or with the one that predicts held-out rows best."""
    for name in ("beta_path_", "_stream"):  # which may not be set anew
        vars(model).pop(name, None)
    if not recipe.holds_out:
        return fit_both(model, recipe.beta, data)
    observed, _ = observations(data.counted())
    seed, fraction = resolve_seed(model.random_state), model.validation_fraction
    parts = split_rows(observed, fraction, seed, hasattr(model, "classes_"))
    train, held_out = (observed[rows] for rows in parts)
    path = candidates(recipe.betas, train.n_effective)
    elbo, history = fit_elbo(model, train)
    if history is not None and history.status == "interrupted":
        return take_over(model, elbo, history)
    fit = FitCandidate(unfitted(model), elbo, train, held_out)
    fits, interrupted = choose_beta(fit.judged, path, model.n_jobs)
    best = min(fits, key=lambda fit: fit.loss)
    if best.model is None:
        raise ValueError(f"Training failed with every beta of {path.tolist()}: {best.error}")
    changes = suitable_changes(best.model, held_out)
    if model.refit and not interrupted:
        fitted = data
        history = fit_both(model, best.beta, data, otherwise=best.model)
    else:
        fitted = train
        history = take_over(model, best.model, History(status="chosen"))
    model.beta_path_ = np.array([fit.beta for fit in fits])
    model.validation_scores_ = np.array([fit.loss for fit in fits])
    if changes is not None:
        recalibrate(model, changes, fitted)
    return history


def fit_both(model: Any, beta: float, data: Data, otherwise: Any = None) -> History:
    """Fit with the evidence lower bound, if asked for, and then with this β.

    After Ctrl-C in the first of these fits, it becomes `otherwise`, or that fit if there is none.
    """
    elbo, history = fit_elbo(model, data)
    if history is not None and history.status == "interrupted":
        return take_over(model, otherwise or elbo, history)
    return fit_given_beta(model, beta, elbo, data)


def fit_elbo(model: Any, data: Data) -> tuple[Any, History | None]:
    """Fit kernel, likelihood and points by the bound, unless they are trained for the loss."""
    if model.hyperparameters == "joint":
        return None, None
    joint = {"loss": "elbo", "beta": 1.0, "hyperparameters": "joint", "calibrate": False}
    elbo = unfitted(model, **joint)
    return elbo, with_callbacks(fit_direct_loss)(elbo, elbo._recipe(), data)


def fit_given_beta(model: Any, beta: float, elbo: Any, data: Data) -> History:
    """Fit with this β, from a fit of the evidence lower bound if there is one."""
    recipe = replace(model._recipe(), beta=beta)
    if elbo is None:
        return model._train_recipe(recipe, data, going_on(model, data))
    model._x_scaling, model._x_spread = elbo._x_scaling, elbo._x_spread
    keeps_q = recipe.hyperparameters == "fixed"
    return model._train_recipe(recipe, data, Start(elbo.posterior_, is_fixed=True, keeps_q=keeps_q))


def unfitted(model: Any, **params: Any) -> Any:
    """Return another estimator with other parameters, which have been validated."""
    other = clone(model).set_params(**params)
    vars(other).update({k: v for k, v in vars(model).items() if k in VALIDATED})
    return other


def take_over(model: Any, other: Any, history: History) -> History:
    """Give an estimator the fitted state of another one."""
    fitted = {k: v for k, v in vars(other).items() if k not in model.get_params()}
    vars(model).update(fitted)
    return history


def mean_loss(model: Any, data: Data) -> float:
    """Return the loss of predictions, per row."""
    X, rows, posterior = model._labelled(data)
    loss = make_loss(model.loss)

    def compute(block: slice) -> tuple[Tensor]:
        of_block = rows[block]
        q, likelihood = posterior.predictive(X[block], of_block)
        return (of_block.weighted(loss.of_predictions(of_block.y, likelihood, q)),)

    return float(model._collect(len(X), compute)[0].sum()) / rows.n_effective


# ---- recalibration -------------------------------------------------------------------------------


def suitable_changes(model: Any, data: Data) -> Calibration | None:
    """Return the calibration for these held-out rows; None if nothing can change."""
    X, rows, posterior = model._labelled(data[:MOST_JUDGES])
    is_done = posterior.model.covariance == "prior"
    if is_done or not (model.calibrate and isinstance(posterior.likelihood, AdditiveNoise)):
        return None
    q, likelihood = posterior.predictive(X, rows)
    return HeldOut(rows, q, likelihood, KernelChoice.of(model.kernel).learns_noise).best()


def recalibrate(model: Any, changes: Calibration, data: Data) -> None:
    """Recalibrate the predictive distribution of a model that was fitted to these data."""
    X, rows, posterior = model._labelled(merged(data.counted())[0])
    learns_noise = KernelChoice.of(model.kernel).learns_noise
    posterior = recalibrated(posterior, changes, learns_noise)
    bound = evidence_bound(posterior.model, X, rows, moments_of(posterior.weights))
    posterior.elbo.copy_(bound)
    plan = Plan(model.solver_, "float64", max_iter=1, batch_size=1, beta=model.beta_)
    model._set_posterior(posterior)
    model._set_attributes(model._recipe(), model._fitted(plan, History()))

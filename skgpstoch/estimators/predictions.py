"""Predictions of a fitted regressor, in blocks of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..data.arrays import resolve_seed
from ..data.rows import Data, Rows
from ..distributions.law import Law
from ..distributions.transformed import transformed, transformed_draws
from ..likelihoods.real import AdditiveNoise, Noiseless
from ..posteriors.gradients import MomentGradients, gradients_by_blocks
from .base import BaseGP
from .context import numeric_context, predicting
from .predicted import PredictedLaw
from .validation import (
    KNOWN_AND_TRANSFORMED,
    check_column,
    check_y_std,
    known_noise,
    transformer_of,
    warn_of_overflow,
)


def predicted_by_blocks(
    model: BaseGP,
    X: Any,
    compute: Callable[[PredictedLaw, slice], tuple[np.ndarray, ...]],
    latent: bool,
    exposure: Any,
    y_std: Any,
) -> list[np.ndarray]:
    """Compute something from the distributions of the (transformed) target, or of f, in blocks."""
    if y_std is not None and transformer_of(model) is not None:
        raise ValueError(KNOWN_AND_TRANSFORMED)
    X, posterior = model._query(X)
    rows = known_rows(X, exposure, y_std, model._y_scaling.scale)

    def of_block(block: slice) -> tuple[Tensor, ...]:
        q, likelihood = posterior.predictive(X[block], rows[block])
        law = PredictedLaw(q, Noiseless() if latent else likelihood, model._y_scaling)
        return tuple(map(torch.from_numpy, compute(law, block)))

    return model._collect(len(X), of_block)


def by_blocks(
    model: BaseGP,
    X: Any,
    compute: Callable[[Law, slice], tuple[np.ndarray, ...]],
    latent: bool,
    exposure: Any,
    y_std: Any,
) -> list[np.ndarray]:
    """Compute something from the distributions of y, or of f, in blocks of rows."""
    transformer = None if latent else transformer_of(model)

    def of_block(law: PredictedLaw, block: slice) -> tuple[np.ndarray, ...]:
        return compute(law if transformer is None else transformed(law, transformer), block)

    return predicted_by_blocks(model, X, of_block, latent, exposure, y_std)


def of_targets(model: BaseGP, data: Data, function: Callable[[Any, Any], np.ndarray]) -> np.ndarray:
    """Apply a function to the distributions of y and to the targets, in blocks of rows."""
    X, rows, posterior = model._labelled(data)
    transformer = transformer_of(model)

    def of_block(block: slice) -> tuple[Tensor]:
        law = PredictedLaw(*posterior.predictive(X[block], rows[block]), model._y_scaling)
        if transformer is None:
            return (torch.from_numpy(function(law, rows.y[block])),)
        y = transformer.inverse_transform(data.y[block])
        return (torch.from_numpy(function(transformed(law, transformer), y)),)

    return model._collect(len(X), of_block)[0]


def moments_of(
    model: BaseGP, X: Any, latent: bool, exposure: Any, y_std: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of y, or of f, in the units of y: each (n, P)."""
    mean, std = by_blocks(model, X, lambda law, _: law.moments(), latent, exposure, y_std)
    if not latent and transformer_of(model) is None:
        warn_of_overflow(std / model._y_scaling.scale)
    return mean, std


def mean_of(model: BaseGP, X: Any, latent: bool, exposure: Any, y_std: Any) -> np.ndarray:
    """Return the mean of y, or of f, in the units of y, (n, P)."""
    is_cheap = hasattr(model, "posterior_") and model.posterior_.has_cheap_mean
    if not is_cheap or not (latent or transformer_of(model) is None):
        return moments_of(model, X, latent, exposure, y_std)[0]
    X, posterior = model._query(X)  # noise has no mean, and variances are expensive
    offset, scale = model._y_scaling
    posterior.likelihood.of(known_rows(X, exposure, y_std, scale))
    (mean,) = model._collect(len(X), lambda block: (posterior.mean(X[block]),))
    return mean * scale + offset


def joint_moments_of(
    model: BaseGP, X: Any, latent: bool, y_std: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of y, or of f, (n, P), and its covariance (n, n, P), in the units of y."""
    X, posterior = model._query(X)
    if not latent and not isinstance(posterior.likelihood, AdditiveNoise):
        raise ValueError(
            f"return_cov=True needs latent=True with {posterior.likelihood!r}, because "
            "with this likelihood y is not f plus independent noise."
        )
    if not latent and transformer_of(model) is not None:
        raise ValueError(
            "return_cov=True needs latent=True with target_transform, because only the "
            "transformed target has a covariance."
        )
    np.empty((len(X), len(X)))  # a MemoryError would come later; raise it now
    offset, scale = model._y_scaling
    with predicting():
        q, likelihood = posterior.predictive(X, known_rows(X, None, y_std, scale))
        cov = posterior.covariance(X)
        if not latent:
            noise = cast(AdditiveNoise, likelihood)
            cov = noise.joint_covariance(q, cov, posterior.between(X))
    mean = q.mixture_moments()[0].cpu().numpy() * scale + offset
    return mean, np.moveaxis(cov.cpu().numpy(), 0, -1) * scale**2


def draws_of(
    model: BaseGP,
    X: Any,
    n_samples: int,
    random_state: Any,
    latent: bool,
    exposure: Any,
    y_std: Any,
) -> np.ndarray:
    """Return joint draws of y, or of f, in the units of y: (n, P, n_samples)."""
    X, posterior = model._query(X)
    offset, scale = model._y_scaling
    rows = known_rows(X, exposure, y_std, scale)
    generator = torch.Generator(X.device).manual_seed(resolve_seed(random_state))
    with predicting():  # (n_samples, N, P)
        if latent:
            drawn = posterior.sample(X, n_samples, generator)
        else:
            drawn = posterior.sample_y(X, rows, n_samples, generator)
    draws = np.moveaxis(drawn.cpu().numpy() * scale + offset, 0, -1)
    if not latent and (transformer := transformer_of(model)) is not None:
        draws = transformed_draws(draws, transformer)
    return draws


def gradients_of(model: BaseGP, X: Any, latent: bool) -> MomentGradients:
    """Return mean and standard deviation of y, or f, and their gradients, in the user's units."""
    if not latent and transformer_of(model) is not None:
        raise ValueError(
            "predict_gradient needs latent=True with target_transform, because it has "
            "the gradients of f, the transformed target, but not the gradients of y."
        )
    X, posterior = model._query(X)

    def moments(block: Tensor) -> tuple[Tensor, Tensor]:
        q, likelihood = posterior.predictive(block, Rows(block[:, :1]))
        return (q if latent else likelihood.moments(q)).mixture_moments()

    with numeric_context():
        found = gradients_by_blocks(moments, X, X.device, posterior.block_rows)
    of_y, unit = found.scaled(*model._y_scaling), model._x_scaling.scale
    slopes = (of_y.mean_gradient / unit, of_y.std_gradient / unit)
    return MomentGradients(of_y.mean, of_y.std, *slopes)


def known_rows(X: Tensor, exposure: Any, y_std: Any, scale: np.ndarray) -> Rows:
    """Return per-row inputs other than X and y, for targets in units of `scale` (P,)."""
    e = s = None
    if exposure is not None:
        e = torch.from_numpy(check_column(exposure, len(X), "exposure")).to(X)
    if y_std is not None:
        y_std = check_y_std(y_std, (len(X), len(scale)))
        s = torch.from_numpy(known_noise(y_std, scale)).to(X)
    return Rows(X[:, :1], exposure=e, noise=s)  # nothing reads its y

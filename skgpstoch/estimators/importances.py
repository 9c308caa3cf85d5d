"""How much predictions depend on each input, in units of its spread: `feature_importances_`.

The root mean square derivative of the posterior's mean, of all outputs or classes together,

    I_j ∝ (Σ_p mean_i (s_j ∂μ_p/∂x_j)²(x_i))^½,   s_j the standard deviation of the input,

at normal rows x_i with the mean and the deviations of the training rows, always the same ones.
Importances sum to 1, or are all 0 if f depends on no input.

Inverse length-scales are the root mean square derivatives under the prior (RBF: σ_f/ℓ_j), and say
less: an input with a linear effect has a long length-scale. *Measured* on 64 fits of 60 and 200
rows, where 3 to 5 of 10 inputs matter: 60 to 80 % of these have an importance above the mean by
length-scales, and 69 to 90 % by derivatives; of the others 0 to 11 %, and 0 to 5 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.arrays import Scaling
from ..models.posteriors.base import Posterior

N_ROWS = 128  # over which derivatives are averaged
STEP = 1e-4  # of differences, in standard deviations of an input


class InputSpread(NamedTuple):
    """Means and standard deviations of inputs, each (d,); 0 where a column is constant."""

    offset: np.ndarray
    scale: np.ndarray


def spread_of(X: np.ndarray, weight: np.ndarray | None = None) -> InputSpread:
    """Return means and standard deviations of inputs."""
    mean, std = Scaling.standard(X, weight)
    counts = True if weight is None else weight[:, None] > 0.0
    high = X.max(0, where=counts, initial=-np.inf)
    low = X.min(0, where=counts, initial=np.inf)
    half_range = high / 2.0 - low / 2.0
    return InputSpread(mean, np.minimum(std, half_range))  # which bounds any deviation


def representative_rows(spread: InputSpread) -> np.ndarray:
    """Return rows for derivatives (N_ROWS, d), symmetric about the mean; always the same ones."""
    half = np.random.default_rng(0).standard_normal((N_ROWS // 2, len(spread.scale)))
    return np.asarray(spread.offset + spread.scale * np.concatenate([half, -half]))


def posterior_importances(
    posterior: Posterior, rows: Tensor, scale: np.ndarray, blocks: Iterable[slice]
) -> np.ndarray:
    """Return importances by derivatives of E f.

    Parameters
    ----------
    posterior : Posterior
        Its mean is differentiable.
    rows : Tensor of shape (n, d)
        As the posterior sees them.
    scale : ndarray of shape (d,)
        Standard deviations of the inputs in these units.
    blocks : iterable of slice
        Blocks of rows.
    """
    total = torch.zeros_like(rows[0])
    for block in blocks:
        X = rows[block].detach().requires_grad_()
        mean = posterior.mean(X)  # (n, P)
        for output in mean.unbind(1):
            (slope,) = torch.autograd.grad(output.sum(), X, retain_graph=True, allow_unused=True)
            total += 0.0 if slope is None else slope.square().sum(0)
    return normalised(scale * total.sqrt().cpu().numpy())


def difference_importances(
    mean: Callable[[np.ndarray], np.ndarray], spread: InputSpread
) -> np.ndarray:
    """Return importances by central differences of a mean (n, P), which needs no gradient."""
    rows = representative_rows(spread)
    sizes = np.zeros(len(spread.scale))
    for j, scale in enumerate(spread.scale):
        step = np.zeros_like(spread.scale)
        step[j] = STEP * scale
        sizes[j] = np.sqrt(np.square(mean(rows + step) - mean(rows - step)).sum())
    return normalised(sizes)


def averaged_importances(weights: Iterable[float], models: Iterable[Any]) -> np.ndarray:
    """Return the mean of the models' importances.

    Raises
    ------
    AttributeError
        If one of them has none.
    """
    pairs = zip(weights, models, strict=True)
    return normalised(sum(w * np.asarray(model.feature_importances_) for w, model in pairs))


def normalised(sizes: Any) -> np.ndarray:
    """Return sizes divided by their sum, or zeros."""
    total = sizes.sum()
    return np.asarray(sizes / total) if total > 0.0 else np.zeros(len(sizes))

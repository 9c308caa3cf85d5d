"""Mean and variance of f given its y, if it was N(μ, v) before."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ..maths.gaussian import Marginals
from .counts import COUNT_TRAINING_NODES, Poisson, of_nodes


@functools.singledispatch
def product_moments(likelihood: Any, y: Tensor, q: Marginals) -> tuple[Tensor, Tensor]:
    """Return the mean and variance of the normalised q(f) p(y | f), (N, P), from its derivatives.

    Parameters and shapes are as for :meth:`Likelihood.predictive_gradients`. Rounding may make
    variances negative that are far below those of q.
    """
    mean, var = q.mean[0], q.var[0]
    _, g, h = likelihood.predictive_gradients(y, q)
    return mean + var * g, var - var.square() * (g.square() - 2.0 * h)


@product_moments.register
@torch.no_grad()
def _(likelihood: Poisson, y: Tensor, q: Marginals) -> tuple[Tensor, Tensor]:
    """Return them as sums over nodes, because large counts leave little of q's variance."""
    f, log_weights = likelihood.joint_nodes(y.double(), of_nodes(q), COUNT_TRAINING_NODES)
    weights = log_weights.softmax(0)
    mean = (weights * f).sum(0)
    return mean[0], (weights * (f - mean).square()).sum(0)[0]

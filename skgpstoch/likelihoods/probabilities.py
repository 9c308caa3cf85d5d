"""Uncertainty of class probabilities: moments of p(y = c | f) under q(f)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..data.devices import constants
from ..maths.gaussian import Marginals, normal_nodes, quadrature_nodes, quasi_random_nodes
from .base import Likelihood

BLOCK_FLOATS = 2**22
"""Largest intermediate array, in numbers; above it rows are processed in blocks."""

PREDICTIVE_POINTS = 512
"""Quasi-random points for class probabilities if each class has a latent function."""


def predictive_nodes(n_latents: int) -> np.ndarray:
    """Return these points of the standard normal, (n_latents, points)."""
    return normal_nodes(n_latents, PREDICTIVE_POINTS).numpy()


class ClassLikelihood(Likelihood):
    """Base class of likelihoods for classes; y holds the class codes c = 0, 1, …."""

    for_classes_only = True

    def for_classes(self, n_classes: int) -> ClassLikelihood:
        """Return a likelihood for this many classes, or raise a ValueError."""
        raise NotImplementedError(f"{type(self).__name__} must define for_classes")

    def log_means(self, q: Marginals) -> Tensor:
        """Return log E_q[p(c | f)] of every class c with a latent function, (S, N, P)."""
        raise NotImplementedError(f"{type(self).__name__} must define log_means")

    def log_class_probs(self, f: Tensor) -> Tensor:
        """Return log p(y = c | f) of every class c: f (..., N, P) → (..., N, C).

        C equals P, except that C is 2 if one latent function tells two classes apart.
        """
        codes = [f.new_full((f.shape[-2], 1), c) for c in range(max(2, f.shape[-1]))]
        return torch.cat([self.log_prob(code, f) for code in codes], -1)

    def log_predictives(self, q: Marginals, n_classes: int) -> Tensor:
        """Return log E_q[p(c | f)] of every class c, over all components: (N, C) nats."""
        codes = q.mean.new_tensor(range(n_classes)).expand(q.mean.shape[1], -1)
        columns = [self.log_predictive(column, q) for column in codes.split(1, 1)]
        return torch.stack(columns, 1)

    def class_probabilities(self, q: Marginals) -> Marginals:
        """Return the mean and variance of p(y = c | f) over f ~ q, of every class c: (S, N, C).

        Some likelihoods of two classes return those of the second class alone, (S, N, 1).
        """
        n_latents = q.mean.shape[-1]
        floats = PREDICTIVE_POINTS * max(2, n_latents)
        function = functools.partial(moments_at_nodes, self.log_class_probs)
        return Marginals(*in_blocks(function, q, floats).tensor_split(2, -1))

    def probability_std(self, q: Marginals) -> Tensor:
        """Return the standard deviation of p(y = c | f) over the whole mixture q: (N, C)."""
        _, var = self.class_probabilities(q).mixture_moments()
        std = var.clamp_max(0.25).sqrt()  # rounding
        return std.expand(-1, 2) if std.shape[1] == 1 else std


def in_blocks(
    function: Callable[..., Tensor], q: Marginals, floats: int, y: Tensor | None = None
) -> Tensor:
    """Call function(q) or function(q, y), (S, N, ·), in blocks if a row needs so many numbers."""
    n_rows = max(1, BLOCK_FLOATS // (floats * len(q.mean)))
    parts = [*(a.split(n_rows, 1) for a in q), *([] if y is None else [y.split(n_rows)])]
    whole = q.mean  # small tensors kept from each block would fragment the memory
    for i, (mean, var, *codes) in enumerate(zip(*parts, strict=True)):
        part = function(Marginals(mean, var), *codes)
        if i == 0:
            whole = part.new_empty(len(part), q.mean.shape[1], part.shape[2])
        whole[:, i * n_rows : (i + 1) * n_rows] = part
    return whole


def moments_at_nodes(log_probs: Callable[[Tensor], Tensor], q: Marginals) -> Tensor:
    """Return mean and variance of each class's probability, side by side: (S, N, 2C).

    `log_probs` is f (K, S, N, P) ↦ log p(y = c | f) of every class, (K, S, N, C). With one latent
    function it is a quadrature, else an average over quasi-random points.
    """
    if q.mean.shape[-1] == 1:
        f, log_weights = quadrature_nodes(q)
        weights = log_weights.exp()[:, 0, 0, 0]
    else:
        f = quasi_random_nodes(q, PREDICTIVE_POINTS).movedim(-1, 0)
        weights = f.new_full((len(f),), 1.0 / len(f))
    p = log_probs(f).exp().movedim(0, -1).contiguous()  # (S, N, C, K)
    mean = (weights * p).sum(-1)
    deviation = p - mean[..., None]
    # A probability near 1 has lost the digits of its deviations, which others have.
    top = torch.nn.functional.one_hot(mean.argmax(-1), mean.shape[-1]).bool()[..., None]
    others = deviation.masked_fill(top, 0.0).sum(-2, keepdim=True)
    deviation = torch.where(top, -others, deviation)
    return torch.cat([mean, (weights * deviation.square()).sum(-1)], -1)


def _legendre(n_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(n_nodes)
    return 0.5 * (nodes + 1.0), 0.5 * weights  # on [0, 1]


def probit_variance(q: Marginals, n_nodes: int = 64) -> Tensor:
    """Return Var[Φ(f)], (S, N, P).

    It is the covariance of two indicators, of normal variables of correlation ρ = v/(1 + v) below
    a = μ/√(1 + v). By Plackett's identity that is ∫ exp(−a²/(1 + sin t)) dt/2π from 0 to arcsin ρ,
    of which no part is negative.
    """
    nodes, weights = constants(_legendre, n_nodes, like=q.mean)
    a2 = q.mean.square() / (1.0 + q.var)
    angle = torch.atan2(q.var, (1.0 + 2.0 * q.var).sqrt())  # arcsin ρ
    density = torch.exp(-a2[..., None] / (1.0 + torch.sin(angle[..., None] * nodes)))
    return angle * (weights * density).sum(-1) / (2.0 * math.pi)

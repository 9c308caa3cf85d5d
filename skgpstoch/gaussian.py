"""Gaussian marginals and the operations on them that every method shares."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

LOG_2PI = math.log(2.0 * math.pi)


class Marginals(NamedTuple):
    """q(f), or q(y), at each row: independent Gaussians, or a mixture of them.

    The leading axis S counts mixture components (1 unless the model is deep).
    """

    mean: Tensor  # (S, N, P)
    var: Tensor  # (S, N, P)

    def mixture_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the equally weighted mixture, each (N, P)."""
        mean = self.mean.mean(0)
        var = self.var.mean(0) + (self.mean - mean).square().mean(0)
        return mean, var


def log_density(y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """log N(y | mean, var), elementwise, in nats."""
    return -0.5 * (LOG_2PI + var.log() + (y - mean).square() / var)


@functools.cache
def _hermite(n_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    return nodes, np.log(weights) - 0.5 * LOG_2PI


def quadrature_nodes(q: Marginals, n_nodes: int = 20) -> tuple[Tensor, Tensor]:
    """Gauss-Hermite nodes of q and the logarithms of their weights.

    Returns
    -------
    f : Tensor of shape (n_nodes, S, N, P)
        μ + √v·z for the nodes z of the standard normal.
    log_weights : Tensor of shape (n_nodes, 1, 1, 1)
        E_q[h(f)] ≈ Σ exp(log_weights)·h(f).
    """
    nodes, log_weights = (
        torch.as_tensor(a, dtype=q.mean.dtype, device=q.mean.device)[:, None, None, None]
        for a in _hermite(n_nodes)
    )
    return q.mean + q.var.sqrt() * nodes, log_weights

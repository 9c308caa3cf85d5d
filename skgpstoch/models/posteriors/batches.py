"""Joint moments of f within each of many batches of rows, differentiable by the inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Posterior

MOST_JOINT_ROWS = 256
"""Rows whose joint covariance is computed at once; only the batches' diagonal blocks are used."""


def batched_moments(posterior: Posterior, X: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean (B, q, P) and covariance (B, P, q, q) of f at X (B, q, d), each batch jointly.

    Covariances between different batches are computed and discarded. For few rows this takes less
    time than a loop over the batches.
    """
    q = X.shape[1]
    if q == 1:
        mean, var = posterior.marginals(X[:, 0]).mixture_moments()
        return mean[:, None], var[..., None, None]
    parts = [joint_moments(posterior, part) for part in X.split(max(1, MOST_JOINT_ROWS // q))]
    mean, cov = (torch.cat(part) for part in zip(*parts, strict=True))
    return mean, cov


def joint_moments(posterior: Posterior, X: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same for batches with at most `MOST_JOINT_ROWS` rows in all."""
    B, q, _ = X.shape
    rows = X.flatten(0, 1)
    mean, _ = posterior.marginals(rows).mixture_moments()
    whole = posterior.covariance(rows).unflatten(2, (B, q)).unflatten(1, (B, q))
    return mean.unflatten(0, (B, q)), whole.diagonal(dim1=1, dim2=3).permute(3, 0, 1, 2)

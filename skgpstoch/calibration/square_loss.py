"""The scale of variances for the square loss, which knows none: leave-one-out errors find it."""

from __future__ import annotations

import copy
import math
from typing import cast

import torch
from torch import Tensor

from ..data.reduce import ALONE, Group
from ..data.rows import Rows
from ..features.base import Basis
from ..likelihoods.real import AdditiveNoise
from ..maths.gaussian import Marginals
from ..models.sparse import Solution, SparseModel
from ..posteriors.blocks import WeightMoments
from ..posteriors.sites import optimal_moments

LEAST_SCALE = 1e-12  # of variances that are calibrated


@torch.no_grad()
def calibrated(
    model: SparseModel, X: Tensor, rows: Rows, found: Solution
) -> tuple[SparseModel, Solution]:
    """The conjugate Gaussian model with the mean that is found, whatever its scale.

    With K and σ² both multiplied by c its mean is the same. c is such that leave-one-out errors
    have the variances that they are predicted to have.
    """
    noise, sizes, parts = model.site_noise, model.features.blocks, []
    q = optimal_moments(found.sites, sizes, model.prior_blocks)
    joint = optimal_moments(found.sites, (sum(sizes),), (False,))
    for basis, block in model.bases(X, rows):
        marginals = model.marginals(basis, q, q.products(basis.phi))
        left_out = leave_one_out(basis, block.y, marginals, joint, noise)
        n, ones = len(block) // basis.n_samples, torch.ones_like(block.y)
        parts.append((*left_out, basis.n_samples * block.weighted(ones)[:n]))
    square, var, spread, weight = (torch.cat(part) for part in zip(*parts, strict=True))
    scale = variance_scale(square, var, spread, weight, rows.group)
    scaled = copy.deepcopy(model)
    scaled.features.scale_variance(scale)
    likelihood = cast(AdditiveNoise, scaled.likelihood)
    scaled.likelihood = likelihood.in_units((scale * noise / likelihood.noise_variance).sqrt())
    sites = found.sites._replace(cross=found.sites.cross / scale**0.5)
    return scaled, found._replace(q=optimal_moments(sites, sizes, model.prior_blocks), sites=sites)


def leave_one_out(
    basis: Basis, y: Tensor, q: Marginals, joint: WeightMoments, noise: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Squares of errors with a row left out, and their variances, each (N, P).

    Of S draws of a row with features P_i, H = P_i (I + G)⁻¹P_iᵀ/(Sσ²) is their leverage, S by S:
    all of them go. Errors are (I − H)⁻¹e, of which the mean counts, and f has the variances
    Sσ²(I − H)⁻¹H and what is left.

    Returns
    -------
    square : Tensor
        Of the mean error.
    var : Tensor
        Mean variance of y, which is in proportion to that of all functions and noise.
    spread : Tensor
        Variance of the means, which is not.
    """
    S = basis.n_samples

    def by_row(part: Tensor) -> Tensor:
        """(S·N, P) → (P, N, S)."""
        return part.unflatten(0, (S, -1)).permute(2, 1, 0)

    phi = basis.phi.unflatten(0, (S, -1)).transpose(0, 1)  # (N, S, D)
    products = joint.products(basis.phi).unflatten(1, (S, -1)).transpose(1, 2)  # (1 or P, N, S, D)
    explained = products @ phi.mT  # (1 or P, N, S, S)
    H = explained / (S * noise[:, None, None, None])  # (P, N, S, S)
    rest = torch.eye(S, dtype=H.dtype, device=H.device) - H
    inverse = torch.linalg.inv(rest)
    error = (inverse @ by_row(y - q.mean[0])[..., None])[..., 0]  # (P, N, S)
    of_f = S * noise[:, None, None] * (inverse @ H).diagonal(dim1=-2, dim2=-1)
    unexplained = by_row(q.var[0]) - explained.diagonal(dim1=-2, dim2=-1)
    var = (of_f + unexplained).mean(-1) + noise[:, None]
    return error.mean(-1).square().mT, var.mT, error.var(-1, correction=0).mT


def variance_scale(
    square: Tensor, var: Tensor, spread: Tensor, weight: Tensor, group: Group = ALONE
) -> float:
    """c with which squares have the mean Σ c·var + spread, relative to these; (N, P) each.

    Sums are over the rows of the whole group.
    """

    def total(values: Tensor) -> float:
        found = values.sum()
        group.sum_(found)
        return float(found)

    def excess(c: float) -> float:
        return total(weight * (square / (c * var + spread) - 1.0))

    if not group.flag(bool(spread.any())):
        return max(total(weight * square / var) / total(weight), LEAST_SCALE)
    highest = torch.cat([(square / var).flatten(), var.new_ones(1)]).max()
    group.max_(highest)
    low, high = math.log(LEAST_SCALE), math.log(float(highest))
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(math.exp(middle)) > 0.0 else (low, middle)
    return math.exp(high)

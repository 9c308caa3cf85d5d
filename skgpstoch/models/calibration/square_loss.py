"""Find the variances' scale, which the square loss does not learn, from leave-one-out errors."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor

from ...data.devices import HOST
from ...data.groups import ALONE, Group
from ...data.rows import Rows
from ...likelihoods.real import AdditiveNoise
from ...maths.gaussian import Marginals
from ..features.base import Basis
from ..posteriors.blocks import WeightMoments
from ..posteriors.sites import optimal_moments
from ..sparse import Solution, SparseModel

LEAST_SCALE = 1e-12  # smallest factor of the variances
LEAST_REST = 1e-12
"""Least value of 1 minus a row's leverage, which may round to 0; far above rounding errors and far
below the values of other rows."""


class ErrorsLeftOut(NamedTuple):
    """Errors and variances of leave-one-out predictions, each of shape (N, P).

    Parameters
    ----------
    square : Tensor
        Squared errors of the predicted mean.
    var : Tensor
        Predicted variance of y; proportional to the scale of kernel and noise.
    spread : Tensor
        Variance of the means over draws; it does not depend on that scale.
    weight : Tensor
        Weights of the rows.
    """

    square: Tensor
    var: Tensor
    spread: Tensor
    weight: Tensor


@torch.no_grad()
def calibrated(
    model: SparseModel, X: Tensor, rows: Rows, found: Solution
) -> tuple[SparseModel, Solution]:
    """Return the conjugate Gaussian model with the mean that was found, and a calibrated scale.

    Multiplying K and σ² by the same c does not change the mean. c is chosen so that leave-one-out
    errors have the variances predicted for them.
    """
    noise, sizes = model.site_noise, model.features.blocks
    scale = variance_scale(by_blocks(model, X, rows, found), rows.group)
    scaled = copy.deepcopy(model)
    scaled.features.scale_variance(scale)
    likelihood = cast(AdditiveNoise, scaled.likelihood)
    scaled.likelihood = likelihood.in_units((scale * noise / likelihood.noise_variance).sqrt())
    sites = found.sites._replace(cross=found.sites.cross / scale**0.5)
    return scaled, found._replace(q=optimal_moments(sites, sizes, model.prior_blocks), sites=sites)


def by_blocks(
    model: SparseModel, X: Tensor, rows: Rows, found: Solution
) -> Iterator[ErrorsLeftOut]:
    """Yield leave-one-out errors and variances, block by block."""
    noise, sizes = model.site_noise, model.features.blocks
    q = optimal_moments(found.sites, sizes, model.prior_blocks)
    joint = optimal_moments(found.sites, (sum(sizes),), (False,))
    for basis, block in model.bases(X, rows):
        marginals = model.marginals(basis, q, q.products(basis.phi))
        n, ones = len(block) // basis.n_samples, torch.ones_like(block.y)
        weight = basis.n_samples * block.weighted(ones)[:n]
        yield leave_one_out(basis, block.y, marginals, joint, noise, weight)


def leave_one_out(
    basis: Basis, y: Tensor, q: Marginals, joint: WeightMoments, noise: Tensor, weight: Tensor
) -> ErrorsLeftOut:
    """Return squared leave-one-out errors and their variances.

    A row has S draws with features P_i. Leaving the row out removes all its draws, or one of the w
    rows that it stands for: a = min(w, 1). Its draws' leverage is the S × S matrix aH with
    H = P_i (I + G)⁻¹P_iᵀ/(Sσ²). The errors are (I − aH)⁻¹e, of which the mean over draws counts.
    The variance of f is Sσ²(I − aH)⁻¹H plus the residual.
    """
    S = basis.n_samples

    def by_row(part: Tensor) -> Tensor:
        """(S·N, P) → (P, N, S)."""
        return part.unflatten(0, (S, -1)).permute(2, 1, 0)

    phi = basis.phi.unflatten(0, (S, -1)).transpose(0, 1)  # (N, S, D)
    products = joint.products(basis.phi).unflatten(1, (S, -1)).transpose(1, 2)  # (1 or P, N, S, D)
    explained = products @ phi.mT  # (1 or P, N, S, S)
    H = explained / (S * noise[:, None, None, None])  # (P, N, S, S)
    out = weight.clamp_max(1.0).mT[..., None, None] * H
    rest = torch.eye(S, dtype=H.dtype, device=H.device) - (1.0 - LEAST_REST) * out
    inverse = torch.linalg.inv(rest)
    error = (inverse @ by_row(y - q.mean[0])[..., None])[..., 0]  # (P, N, S)
    of_f = S * noise[:, None, None] * (inverse @ H).diagonal(dim1=-2, dim2=-1)
    unexplained = by_row(q.var[0]) - explained.diagonal(dim1=-2, dim2=-1)
    var = (of_f + unexplained).mean(-1) + noise[:, None]
    return ErrorsLeftOut(error.mean(-1).square().mT, var.mT, error.var(-1, correction=0).mT, weight)


def variance_scale(blocks: Iterable[ErrorsLeftOut], group: Group = ALONE) -> float:
    """Return c such that the squares, relative to c·var + spread, have the weighted mean 1.

    Sums are over the rows of the whole group. Without spread c has a closed form, and blocks need
    not be kept.
    """
    ratio = weight = 0.0
    highest, kept = 1.0, []
    for block in blocks:
        of_rows = block.square / block.var
        highest = max(highest, float(of_rows.amax())) if len(of_rows) else highest
        if block.spread.any():
            kept.append(block)
        else:
            ratio += float((block.weight * of_rows).sum())
            weight += float(block.weight.sum())

    def excess(c: float) -> float:
        total = torch.tensor(ratio / c - weight, dtype=torch.float64, device=HOST)
        for square, var, spread, w in kept:
            total += (w * (square / (c * var + spread) - 1.0)).sum().to(total)
        group.sum_(total)
        return float(total)

    if not group.flag(bool(kept)):
        sums = torch.tensor([ratio, weight], dtype=torch.float64, device=HOST)
        group.sum_(sums)
        return max(float(sums[0] / sums[1]), LEAST_SCALE)
    top = torch.tensor(highest, dtype=torch.float64, device=HOST)
    group.max_(top)
    low, high = math.log(LEAST_SCALE), math.log(float(top))
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(math.exp(middle)) > 0.0 else (low, middle)
    return math.exp(high)

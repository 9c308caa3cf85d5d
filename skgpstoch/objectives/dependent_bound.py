"""The bound on the evidence if q(u) may depend on f⊥.

Shi, Titsias & Mnih, "Sparse orthogonal variational inference for Gaussian processes", AISTATS 2020,
appendix A: with q(u) = p(u | f⊥, y) and q(f⊥) = p(f⊥),

    log N(y | 0, Q + σ²I) − ½ tr[(Q + σ²I)⁻¹(K − Q)],   Q = PPᵀ                                 (14)

which is Titsias' bound (B3) and, with κ = 1/σ² and G = PᵀκP,

    ½ tr[(I + G)⁻¹ PᵀκRκP],   R = K − Q                                                         (15)

for all features P, as if they were one block. R is a matrix over all pairs of rows. It takes O(N²M)
time, and is computed by blocks, so no matrix of N² numbers is kept. The likelihood must be
Gaussian; if y_std is given, κ differs between rows. A row of weight w counts as w rows with the
same f⊥. A shift of the mean makes q(f⊥) = N(shift, R), whose divergence from p(f⊥) is the penalty.
"""

from __future__ import annotations

import copy
from itertools import combinations_with_replacement
from typing import cast

import torch
from torch import Tensor

from ..data.arrays import blocks_of
from ..data.rows import Rows
from ..likelihoods.real import Gaussian
from ..losses import ExpectedLogLikelihood
from ..maths.linalg import cholesky
from ..models.sparse import SparseModel, likelihood_of
from .optimal_q import weighted_sums

PAIRED_ROWS = 2048  # rows in a block; two blocks' covariance is in memory at a time


@torch.no_grad()
def dependent_bound(model: SparseModel, X: Tensor, rows: Rows) -> Tensor:
    """Return the bound (14), () nats, summed over outputs.

    Raises
    ------
    ValueError
        If the likelihood is not Gaussian, or the model has several layers.
    """
    if not isinstance(model.likelihood, Gaussian) or model.has_draws:
        raise ValueError(
            "The bound with dependent u and f needs likelihood='gaussian' and one layer, "
            f"got {model.likelihood!r}{' and several layers' * model.has_draws}."
        )
    model = copy.copy(model)
    model.loss, model.beta = ExpectedLogLikelihood(), 1.0
    gram, cross, square, constant = weighted_sums(model, X, rows)
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    L = cholesky(eye + gram, "I + PᵀP/σ²")  # (P, D, D)
    half = torch.linalg.solve_triangular(L, cross.mT[..., None], upper=False)
    log_det = 2.0 * L.diagonal(dim1=-2, dim2=-1).log().sum()
    titsias = -0.5 * (square.sum() - half.square().sum() + log_det + constant)
    explained = torch.cholesky_solve(residual_gram(model, X, rows), L)
    return titsias + 0.5 * explained.diagonal(dim1=-2, dim2=-1).sum() - model.penalty()


def residual_gram(model: SparseModel, X: Tensor, rows: Rows) -> Tensor:
    """Return PᵀκRκP of each output, (P, D, D), over all pairs of rows."""
    features = model.features
    with features.frozen():
        phi, scaled = scaled_features(model, X, rows)
        total = torch.zeros_like(scaled.mT @ scaled)
        for a, b in combinations_with_replacement(list(blocks_of(len(X), PAIRED_ROWS)), 2):
            both = [a] if a == b else [a, b]
            of_both = (torch.cat([part[c] for c in both]) for part in (X, phi))
            R = cast(Tensor, features.residual_covariance(*of_both))
            n = len(X[a])
            part = scaled[:, a].mT @ R[:n, -len(X[b]) :] @ scaled[:, b]
            total += part if a == b else part + part.mT
    return total


def scaled_features(model: SparseModel, X: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return P (N, D), and κP of each output, (P, N, D), with κ times the weights of rows."""
    phis, scaled = [], []
    for basis, block in model.bases(X, rows):
        kappa, _ = model.loss.conjugate(likelihood_of(model, basis, block), basis.residual())
        kappa = block.weighted(kappa.expand_as(block.y))  # (n, P)
        phis.append(basis.phi)
        scaled.append(kappa.mT[..., None] * basis.phi)
    return torch.cat(phis), torch.cat(scaled, 1)

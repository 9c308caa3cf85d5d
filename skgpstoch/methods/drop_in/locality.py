"""Tell whether a row's neighbours say all that matters about it, or rows far away do too.

At the same hyper-parameters, rows are predicted twice: given their nearest neighbours, with
variance v, and given all other rows through inducing points Z, with variance u (Titsias,
"Variational learning of inducing variables in sparse Gaussian processes", AISTATS 2009):

    A = L_Z⁻¹K_ZX,   B = I + A D⁻¹Aᵀ,   u = k(x, x) − aᵀa + aᵀB⁻¹a,   a = L_Z⁻¹k_Zx.

If the kernel is right, log densities of y given neighbours are lower by ½ log((v + σ²)/(u + σ²)) on
average. (Variances depend on no y, so a few hundred rows tell this more precisely than densities.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from ...data.arrays import row_blocks
from ...data.devices import BLOCK_ROWS
from ...data.rows import Rows
from ...kernels import Kernel, from_sklearn, split_white_noise
from ...kernels.sets import nearness
from ...likelihoods.real import Gaussian
from ...maths.linalg import cholesky, tri_solve
from ...models.posteriors.neighbours import NeighbourPosterior

COMPARED_ROWS = 500
N_NEIGHBORS = 128  # of predictions, as in NNGPRegressor
N_INDUCING = 512
MOST_LOST = 0.012
"""Nats per row. *Measured* on 6,000 rows, the loss, and how much lower the NLPD of SOLVE-GP is:
linear + RBF .018 and .022, locally periodic .008 and .002; a Matérn field −.50 and −.09."""


def has_neighbours(kernel: sk.Kernel, n_inputs: int) -> bool:
    """Tell whether covariance falls with distance; linear and periodic kernels do not."""
    expression = split_white_noise(kernel)[0]
    return bool(nearness(from_sklearn(expression), n_inputs).any())


@torch.no_grad()
def loss_by_neighbours(
    kernel: sk.Kernel, X: np.ndarray, noise: np.ndarray, device: torch.device, rng: Any
) -> float:
    """Return how much lower densities are given neighbours than given inducing points, nats a row.

    `noise`, () or (n,), includes that of the kernel's WhiteKernel.
    """
    order = rng.permutation(len(X))
    given = X[order], np.broadcast_to(noise, len(X))[order, None]
    X_, D = (torch.tensor(a, dtype=torch.float64, device=device) for a in given)
    n = min(COMPARED_ROWS, len(X) // 5)
    k = from_sklearn(split_white_noise(kernel)[0]).to(device)
    v = given_neighbours(k, X_[n:], D[n:], X_[:n])
    u = given_inducing(k, X_[n:], D[n:], X_[:n])
    own = D[:n, 0]
    return float(0.5 * ((v + own) / (u + own)).log().mean())


def given_neighbours(kernel: Kernel, X: Tensor, D: Tensor, X_star: Tensor) -> Tensor:
    """Return the variance of f given y at the nearest rows, (k,)."""
    zero, m = D.new_zeros(1), min(N_NEIGHBORS, len(X))
    likelihood, rows = Gaussian(torch.ones_like(zero)), Rows(torch.zeros_like(D), noise=D)
    posterior = NeighbourPosterior(kernel, nn.Sequential(), likelihood, zero, X, rows, zero, m, m)
    return posterior.marginals(X_star).var[0, :, 0]


def given_inducing(kernel: Kernel, X: Tensor, D: Tensor, X_star: Tensor) -> Tensor:
    """Return the variance of f given y at all rows, through some of them, (k,)."""
    Z = X[:N_INDUCING]
    L = cholesky(kernel(Z), "covariance of inducing points")
    B = torch.eye(len(Z)).to(L)
    for block in row_blocks(len(X), BLOCK_ROWS):
        A = tri_solve(L, kernel(Z, X[block])) / D[block, 0].sqrt()  # (M, b)
        B.addmm_(A, A.mT)
    a = tri_solve(L, kernel(Z, X_star))  # (M, k)
    b = tri_solve(cholesky(B, "precision of inducing points"), a)
    return kernel.diag(X_star) - a.square().sum(0) + b.square().sum(0)

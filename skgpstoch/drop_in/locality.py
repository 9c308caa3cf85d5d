"""Tell whether a row's neighbours say all that matters about it, or rows far away do too.

At the same hyper-parameters, rows that are left out are predicted twice: given their nearest
neighbours, and given all other rows through inducing points Z, with k ≈ q = K·Z K_ZZ⁻¹ K_Z·
(Titsias, "Variational learning of inducing variables in sparse Gaussian processes", AISTATS 2009):

    A = L_Z⁻¹K_ZX,   B = I + A D⁻¹Aᵀ,   μ = aᵀB⁻¹A D⁻¹y,   v = k(x, x) − aᵀa + aᵀB⁻¹a,   a = L_Z⁻¹k_Zx.

Their log densities say which is closer to the exact process there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor, nn

from ..data.arrays import row_blocks
from ..data.devices import BLOCK_ROWS
from ..data.rows import Rows
from ..kernels import Kernel, from_sklearn, split_white_noise
from ..kernels.sets import nearness
from ..likelihoods.real import Gaussian
from ..maths.gaussian import LOG_2PI
from ..maths.linalg import cholesky, tri_solve
from ..posteriors.neighbours import NeighbourPosterior
from ..training.exact_search import TrainingSet

JUDGED_ROWS = 500  # left out
N_NEIGHBORS = 128  # of predictions, as in NNGPRegressor
N_INDUCING = 512
MARGIN = 0.01
"""Nats per row by which inducing points must predict better, to be worth their time."""


class Comparison(NamedTuple):
    """Mean log densities of rows left out, in nats per row."""

    by_neighbours: float
    by_inducing: float

    @property
    def is_local(self) -> bool:
        """Whether neighbours predict about as well, or better."""
        return not self.by_inducing > self.by_neighbours + MARGIN


class Given(NamedTuple):
    """Rows X (n, d) and y (n, P), with the variance of their noise, (n, P)."""

    X: Tensor
    y: Tensor
    D: Tensor

    def at(self, rows: Tensor) -> Given:
        """Select rows."""
        return Given(*(part[rows] for part in self))


def has_neighbours(kernel: sk.Kernel, n_inputs: int) -> bool:
    """Tell whether covariance falls with distance, as that of linear and periodic terms does not."""
    expression = split_white_noise(kernel)[0]
    return bool(nearness(from_sklearn(expression), n_inputs).any())


@torch.no_grad()
def compare(
    kernel: sk.Kernel, training_set: TrainingSet, rng: np.random.RandomState
) -> Comparison:
    """Predict rows left out with both, at the kernel's hyper-parameters.

    The kernel's WhiteKernel is a part of the rows' noise.
    """
    X, Y, noise, device = training_set
    order = torch.from_numpy(rng.permutation(len(X))).to(device)
    D = np.broadcast_to(np.reshape(noise, (-1, 1)), Y.shape)
    rows = Given(*(torch.tensor(a, dtype=torch.float64, device=device) for a in (X, Y, D)))
    n_judged = min(JUDGED_ROWS, len(X) // 5)
    judged, given = rows.at(order[:n_judged]), rows.at(order[n_judged:])
    k = from_sklearn(split_white_noise(kernel)[0]).to(device)
    return Comparison(
        density(judged, *by_neighbours(k, given, judged.X)),
        density(judged, *by_inducing(k, given, judged.X)),
    )


def density(judged: Given, mean: Tensor, var: Tensor) -> float:
    """Return the mean log density of y, over rows and outputs."""
    v = var.clamp_min(0.0) + judged.D
    return float(-0.5 * (LOG_2PI + v.log() + (judged.y - mean).square() / v).mean())


def by_neighbours(kernel: Kernel, given: Given, X: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of f given the nearest rows, each (k, P)."""
    zero = given.y.new_zeros(given.y.shape[1])
    m = min(N_NEIGHBORS, len(given.X))
    rows, no_network = Rows(given.y, noise=given.D), nn.Sequential()
    posterior = NeighbourPosterior(
        kernel, no_network, Gaussian(zero + 1.0), zero, given.X, rows, zero, m, m
    )
    q = posterior.marginals(X)
    return q.mean[0], q.var[0]


def by_inducing(kernel: Kernel, given: Given, X: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of f given all rows through some of them, each (k, P)."""
    Z, D = given.X[:N_INDUCING], given.D[:, :1]
    L = cholesky(kernel(Z), "covariance of inducing points")
    B, Ay = torch.eye(len(Z)).to(L), L.new_zeros(len(Z), given.y.shape[1])
    for block in row_blocks(len(given.X), BLOCK_ROWS):
        A = tri_solve(L, kernel(Z, given.X[block])) / D[block].sqrt().mT  # (M, b)
        B.addmm_(A, A.mT)
        Ay.addmm_(A, given.y[block] / D[block].sqrt())
    a = tri_solve(L, kernel(Z, X))  # (M, k)
    L_B = cholesky(B, "precision of inducing points")
    c = tri_solve(L_B, a)
    mean = c.mT @ tri_solve(L_B, Ay)
    var = kernel.diag(X) - a.square().sum(0) + c.square().sum(0)
    return mean, var[:, None].expand_as(mean)

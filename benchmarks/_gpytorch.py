"""GPyTorch's sparse variational GP as a peer, with the accuracy it has reached at given times."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import gpytorch
import numpy as np
import torch
from _common import Array, Clock, Split
from linear_operator.utils.errors import NanError, NotPSDError
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor


class SVGP(gpytorch.models.ApproximateGP):
    """Sparse variational GP, Matérn-3/2 with ARD, inducing points ``Z`` learned."""

    def __init__(self, Z: Tensor, natural: bool) -> None:
        M, d = Z.shape
        variational = gpytorch.variational
        distribution = (
            variational.NaturalVariationalDistribution(M)
            if natural
            else variational.CholeskyVariationalDistribution(M)
        )
        super().__init__(variational.VariationalStrategy(self, Z, distribution))
        self.mean_module = gpytorch.means.ConstantMean()
        matern = gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=d)
        matern.lengthscale = math.sqrt(d) / 2
        self.covar_module = gpytorch.kernels.ScaleKernel(matern)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Point(NamedTuple):
    """A moment of a training run; the run's clock stands still while it is looked at."""

    wall: float  # seconds
    cpu: float  # seconds
    n_iter: int  # steps
    mean: Array  # (n_test,)
    std: Array  # (n_test,)


def svgp_trace(
    data: Split,
    *,
    natural: bool,
    learning_rate: float,
    n_inducing: int,
    batch_size: int,
    budget: float,
    n_points: int,
    seed: int,
) -> Iterator[Point]:
    """Train GPyTorch's SVGP for ``budget`` seconds, predicting at ``n_points`` times on the way.

    ``natural``: natural gradients (rate 0.1) for q(u), and Adam at ``learning_rate`` for the rest;
    else Adam for all. The clock runs from the k-means for Z to the last step, without predictions.
    """
    X, y, X_test = (torch.from_numpy(a) for a in (data.X_train, data.y_train, data.X_test))
    torch.manual_seed(seed)  # GPyTorch draws the start of q(u) from the global generator
    clock = Clock()
    with clock:
        kmeans = MiniBatchKMeans(
            n_inducing, n_init=1, batch_size=4096, max_iter=20, random_state=seed
        )
        Z = torch.from_numpy(kmeans.fit(data.X_train).cluster_centers_)  # (M, d)
        model, likelihood = SVGP(Z, natural), gpytorch.likelihoods.GaussianLikelihood()
        likelihood.noise = 0.1
        elbo = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
        optimizers = _optimizers(model, likelihood, natural, learning_rate, len(y))
    times = budget * np.geomspace(1 / 60, 1, n_points)  # denser where the curve is steep
    for n_iter, rows in enumerate(_batches(len(y), batch_size), start=1):
        try:
            with clock:
                _step(optimizers, elbo, model, X[rows], y[rows])
        except (NanError, NotPSDError) as error:
            print(f"GPyTorch stopped at step {n_iter}: {error}")
            return
        if clock.wall >= times[0]:
            yield Point(clock.wall, clock.cpu, n_iter, *_predict(model, likelihood, X_test))
            times = times[times > clock.wall]
        if len(times) == 0:
            return


def _batches(n: int, batch_size: int) -> Iterator[Tensor]:
    while True:
        yield from torch.randperm(n).split(batch_size)


def _step(
    optimizers: list[torch.optim.Optimizer],
    elbo: gpytorch.mlls.VariationalELBO,
    model: SVGP,
    X: Tensor,
    y: Tensor,
) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss = -elbo(model(X), y)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()


def _optimizers(
    model: SVGP,
    likelihood: gpytorch.likelihoods.GaussianLikelihood,
    natural: bool,
    learning_rate: float,
    n: int,
) -> list[torch.optim.Optimizer]:
    hyper = [*model.hyperparameters(), *likelihood.parameters()]
    if not natural:
        return [torch.optim.Adam([*model.variational_parameters(), *hyper], lr=learning_rate)]
    ngd = gpytorch.optim.NGD(model.variational_parameters(), num_data=n, lr=0.1)
    return [ngd, torch.optim.Adam(hyper, lr=learning_rate)]


@torch.no_grad()
def _predict(
    model: SVGP, likelihood: gpytorch.likelihoods.GaussianLikelihood, X: Tensor
) -> tuple[Array, Array]:
    for module in (model, likelihood):
        module.eval()
    blocks = [likelihood(model(rows)) for rows in X.split(2048)]
    for module in (model, likelihood):
        module.train()
    mean = torch.cat([q.mean for q in blocks]).double()
    variance = torch.cat([q.variance for q in blocks]).double()
    return mean.numpy(), variance.sqrt().numpy()

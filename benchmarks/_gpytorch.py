"""GPyTorch's sparse variational GP as a peer, with the accuracy it has reached at given times."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import gpytorch
import numpy as np
import torch
from _common import Array, Clock, Split, synchronize
from linear_operator.utils.errors import NanError, NotPSDError
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor

HOST = torch.device("cpu")


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


class Training:
    """A sparse variational GP from inducing points ``Z``, its bound and its optimisers.

    ``natural``: natural gradients (rate 0.1) for q(u), and Adam at ``learning_rate`` for the rest;
    else Adam for all. GPyTorch draws the start of q(u) from the global generator.
    """

    def __init__(self, Z: Tensor, n_rows: int, natural: bool, learning_rate: float) -> None:
        self.model = SVGP(Z, natural).to(Z.device)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood().to(Z.device)
        self.likelihood.noise = 0.1
        self.elbo = gpytorch.mlls.VariationalELBO(self.likelihood, self.model, num_data=n_rows)
        q = list(self.model.variational_parameters())
        hyper = [*self.model.hyperparameters(), *self.likelihood.parameters()]
        adam = torch.optim.Adam(hyper if natural else [*q, *hyper], lr=learning_rate)
        self.optimizers: list[torch.optim.Optimizer] = [adam]
        if natural:
            self.optimizers.insert(0, gpytorch.optim.NGD(q, num_data=n_rows, lr=0.1))

    def step(self, X: Tensor, y: Tensor) -> None:
        """One step on a minibatch, X (b, d) and y (b,)."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = -self.elbo(self.model(X), y)
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()

    @torch.no_grad()
    def predict(self, X: Tensor) -> tuple[Array, Array]:
        """Mean and standard deviation of y at the rows of X."""
        for module in (self.model, self.likelihood):
            module.eval()
        blocks = [self.likelihood(self.model(rows)) for rows in X.split(2048)]
        for module in (self.model, self.likelihood):
            module.train()
        mean = torch.cat([q.mean for q in blocks]).double()
        variance = torch.cat([q.variance for q in blocks]).double()
        return mean.cpu().numpy(), variance.sqrt().cpu().numpy()


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
    device: torch.device = HOST,
) -> Iterator[Point]:
    """Train GPyTorch's SVGP for ``budget`` seconds, predicting at ``n_points`` times on the way.

    See :class:`Training`. The clock runs from the k-means for Z to the last step, without
    predictions, and until the device is done. The data are there before.
    """
    arrays = (data.X_train, data.y_train, data.X_test)
    X, y, X_test = (torch.from_numpy(a).to(device) for a in arrays)
    torch.manual_seed(seed)
    clock = Clock()
    with clock:
        kmeans = MiniBatchKMeans(
            n_inducing, n_init=1, batch_size=4096, max_iter=20, random_state=seed
        )
        Z = torch.from_numpy(kmeans.fit(data.X_train).cluster_centers_).to(device)  # (M, d)
        training = Training(Z, len(y), natural, learning_rate)
    times = budget * np.geomspace(1 / 60, 1, n_points)  # denser where the curve is steep
    for n_iter, rows in enumerate(_batches(len(y), batch_size, device), start=1):
        try:
            with clock:
                training.step(X[rows], y[rows])
        except (NanError, NotPSDError) as error:
            print(f"GPyTorch stopped at step {n_iter}: {error}")
            return
        if clock.wall >= times[0]:
            with clock:
                synchronize(device)
            yield Point(clock.wall, clock.cpu, n_iter, *training.predict(X_test))
            times = times[times > clock.wall]
        if len(times) == 0:
            return


def _batches(n: int, batch_size: int, device: torch.device) -> Iterator[Tensor]:
    while True:
        yield from torch.randperm(n, device=device).split(batch_size)

"""GPyTorch's variational nearest-neighbour process (VNNGP), set up as in its documentation."""

from __future__ import annotations

import gpytorch
import torch
from _common import Array
from torch import Tensor

N_EPOCHS, BATCH_ROWS, RATE = 60, 256, 0.03
START_SCALE, START_NOISE = 0.1, 0.1


class VNNGP(gpytorch.models.ApproximateGP):
    """A Matérn-3/2 kernel; every row of X is an inducing point; float32 loses variances."""

    def __init__(self, X: Tensor, n_neighbors: int) -> None:
        variational = gpytorch.variational
        strategy = variational.nearest_neighbor_variational_strategy.NNVariationalStrategy(
            self,
            X,
            variational.MeanFieldVariationalDistribution(len(X)),
            k=n_neighbors,
            training_batch_size=BATCH_ROWS,
        )
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ConstantMean()
        matern = gpytorch.kernels.MaternKernel(nu=1.5)
        matern.lengthscale = START_SCALE
        self.covar_module = gpytorch.kernels.ScaleKernel(matern)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
        self.likelihood.noise = START_NOISE

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def __call__(self, x: Tensor | None, prior: bool = False, **settings: object) -> object:
        return self.variational_strategy(x=x, prior=prior, **settings)


def trained(X: Array, y: Array, n_neighbors: int, seed: int) -> VNNGP:
    """Maximise the bound by Adam, by minibatches of inducing points."""
    torch.manual_seed(seed)
    inputs, targets = torch.from_numpy(X).double(), torch.from_numpy(y).double()
    model = VNNGP(inputs, n_neighbors).double().train()
    elbo = gpytorch.mlls.VariationalELBO(model.likelihood, model, num_data=len(y))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    n_steps = N_EPOCHS * model.variational_strategy._total_training_batches
    for _ in range(n_steps):
        optimizer.zero_grad()
        found = model(x=None)
        rows = model.variational_strategy.current_training_indices
        loss = -elbo(found, targets[rows])
        loss.backward()
        optimizer.step()
    return model


@torch.no_grad()
def predicted(model: VNNGP, X: Array) -> tuple[Array, Array]:
    """Return mean and standard deviation of y."""
    model.eval()
    blocks = [model.likelihood(model(rows)) for rows in torch.from_numpy(X).double().split(500)]
    mean = torch.cat([q.mean for q in blocks]).double().numpy()
    return mean, torch.cat([q.variance for q in blocks]).double().sqrt().numpy()

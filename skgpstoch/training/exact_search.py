"""The hyper-parameters of an exact Gaussian process on some rows, or on all."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import clone
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ..kernels.matrices import Covariance, covariance_of
from ..posteriors.exact import Evidence
from .hyperparameters import maximise

MIN_ALPHA = 1e-10


class TrainingSet(NamedTuple):
    """X, Y (N, P), and noise () or (N,), and where to compute."""

    X: Any
    Y: np.ndarray
    noise: np.ndarray
    device: torch.device

    def evidence(self, kernel: sk.Kernel) -> Evidence:
        """log p(Y | X) as a function of θ."""
        return Evidence(self.covariance(kernel), *self.tensors())

    def covariance(self, kernel: sk.Kernel) -> Covariance:
        """k of the rows."""
        return covariance_of(kernel, self.X, self.device)

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Y and noise."""
        Y, noise = torch.tensor(self.Y), torch.tensor(self.noise)
        return Y.to(self.device, torch.float64), noise.to(self.device, torch.float64)


def search_evidence(
    kernel: sk.Kernel,
    rows: TrainingSet,
    optimizer: str | Callable | None,
    n_restarts: int,
    random_state: np.random.RandomState,
    then: str = "",
) -> tuple[sk.Kernel, float]:
    """The kernel at the best θ, and the evidence there."""
    kernel = clone(kernel)
    if optimizer is None or kernel.n_dims == 0:
        return kernel, rows.evidence(kernel)(kernel.theta, False)[0]
    start, bounds = kernel.theta, kernel.bounds
    make = functools.partial(rows.evidence, kernel)
    optimum = maximise(make, start, bounds, optimizer, n_restarts, random_state, then)
    kernel.theta = optimum.theta
    return kernel, optimum.value


def best_on(kernel: sk.Kernel, X: Tensor, Y: Tensor) -> sk.Kernel:
    """The kernel at the optimum of the marginal likelihood of a few of the rows, Y (N, P)."""
    rows, targets = (a.cpu().double().numpy() for a in (X, Y))
    some = TrainingSet(rows, targets, np.array(MIN_ALPHA), X.device)
    then = " Training on all rows follows: interrupt again to end it."
    random_state = np.random.RandomState(0)  # without restarts there is nothing to draw
    return search_evidence(kernel, some, "fmin_l_bfgs_b", 0, random_state, then)[0]

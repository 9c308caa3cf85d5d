"""Gaussian-process classification of two classes by Laplace's approximation.

Rasmussen & Williams, *Gaussian Processes for Machine Learning*, MIT Press, 2006, Algorithms 3.1,
3.2 and 5.1; the mathematics is in :mod:`skgpstoch.drop_in.laplace_evidence`. For more classes,
:class:`~skgpstoch.GaussianProcessClassifier` fits one such classifier for each class or each pair.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.gaussian_process import kernels as sk

from ..data.arrays import borrowed, random_numbers
from ..data.devices import map_blocks, prediction_device
from ..estimators.importances import difference_importances, spread_of
from ..kernels.matrices import Covariance, covariance_of
from ..likelihoods import Bernoulli, OneVsRest
from ..maths.gaussian import Marginals
from ..maths.linalg import NotPositiveDefiniteError
from ..persistence.estimator import SavedEstimator
from ..training.exact_search import maximise
from ..training.starts import LATENT_VARIANCE, likely_bounds
from .laplace_evidence import LaplaceEvidence, latent, probability


@dataclass(eq=False, repr=False)
class BinaryLaplaceClassifier(SavedEstimator):
    """A binary classifier, with the attributes of scikit-learn's.

    Parameters
    ----------
    kernel, optimizer, n_restarts_optimizer, max_iter_predict, warm_start, random_state, device
        As in :class:`~skgpstoch.GaussianProcessClassifier`, which validates them.

    Attributes
    ----------
    classes_ : ndarray of shape (2,)
        Class labels.
    X_train_, y_train_, weight_ : ndarrays of shapes (n_samples, n_features) and (n_samples,)
        The training rows, their classes as 0 or 1, and how many rows each row counts for.
    kernel_ : sklearn kernel
        The fitted kernel.
    L_ : ndarray of shape (n_samples, n_samples)
        Cholesky factor of I + W^½ K W^½.
    pi_, W_sr_ : ndarrays of shape (n_samples,)
        Probability of the second class at the mode, and W^½.
    log_marginal_likelihood_value_ : float
        Laplace's approximation of the log marginal likelihood, in nats.
    """

    kernel: sk.Kernel
    optimizer: Any = "fmin_l_bfgs_b"
    n_restarts_optimizer: int = 0
    max_iter_predict: int = 100
    warm_start: bool = False
    random_state: Any = None
    device: str | torch.device | None = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> BinaryLaplaceClassifier:
        """Fit to labels of two classes; weights are positive."""
        self.X_train_ = X
        self.weight_ = np.ones(len(y)) if sample_weight is None else sample_weight
        self.classes_, self.y_train_ = np.unique(y, return_inverse=True)
        kernel, start = clone(self.kernel), self._start()
        if self.optimizer is not None and kernel.n_dims > 0:
            random_state = random_numbers(self.random_state)
            make = functools.partial(self._evidence, kernel, start)
            theta, bounds, n = kernel.theta, kernel.bounds, self.n_restarts_optimizer
            likely = likely_bounds(kernel, X, LATENT_VARIANCE) if n else bounds
            optimum = maximise(make, theta, bounds, likely, self.optimizer, n, random_state)
            kernel.theta = optimum.theta
        self.kernel_ = kernel
        self._set_mode(start)
        return self

    def _start(self) -> np.ndarray:
        """Return the start of Newton's iterations."""
        last = getattr(self, "f_cached", None)
        if self.warm_start and last is not None and last.shape == self.y_train_.shape:
            return last
        return np.zeros(len(self.y_train_))

    def _covariance(self, kernel: sk.Kernel) -> Covariance:
        return covariance_of(kernel, self.X_train_, prediction_device(self.device))

    def _evidence(self, kernel: sk.Kernel, start: np.ndarray) -> LaplaceEvidence:
        """Return log q(y | θ) as a function of θ."""
        k = self._covariance(kernel)
        y, weight, f = (
            torch.tensor(a, dtype=torch.float64, device=k.device)
            for a in (self.y_train_, self.weight_, start)
        )
        return LaplaceEvidence(k, y, weight, self.max_iter_predict, f, bool(self.warm_start))

    def _set_mode(self, start: np.ndarray) -> None:
        mode = self._evidence(self.kernel_, start).mode(self.kernel_.theta)
        if mode is None or not np.isfinite(mode.value):
            raise NotPositiveDefiniteError(
                f"The kernel, {self.kernel_}, gives no posterior, because its covariance of "
                "the training rows is not positive semi-definite, or not finite. Check the "
                "kernel and the scale of X."
            )
        self.f_cached, self.pi_, self.W_sr_, self.L_ = (
            a.cpu().numpy() for a in (mode.f, mode.pi, mode.W_sr, mode.L)
        )
        self.log_marginal_likelihood_value_ = mode.value

    def log_marginal_likelihood(
        self, theta: Any = None, eval_gradient: bool = False, clone_kernel: bool = True
    ) -> Any:
        """Return log q(y | θ) in nats, and if asked its gradient; None is the fitted θ."""
        if theta is None:
            if eval_gradient:
                raise ValueError("Gradient can only be evaluated for theta!=None")
            return self.log_marginal_likelihood_value_
        theta = np.asarray(theta, dtype=np.float64)
        if not clone_kernel:
            self.kernel_.theta = theta
        with torch.inference_mode(False), torch.enable_grad():
            value, gradient = self._evidence(self.kernel_, self._start())(theta, eval_gradient)
        return (value, gradient) if eval_gradient else value

    def predict(self, X: Any) -> np.ndarray:
        """Predict the more probable class of each row."""
        mean, _ = self.latent_mean_and_variance(X)
        return np.where(mean > 0.0, self.classes_[1], self.classes_[0])

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of both classes, (n, 2)."""
        mean, var = (torch.from_numpy(a) for a in self.latent_mean_and_variance(X))
        p = probability(mean, var).numpy()
        return np.stack([1.0 - p, p], 1)

    def predict_std(self, X: Any) -> np.ndarray:
        """Return the standard deviation of both classes' probabilities, (n, 2)."""
        mean, var = (torch.from_numpy(a)[None, :, None] for a in self.latent_mean_and_variance(X))
        return Bernoulli().probability_std(Marginals(mean, var)).numpy()

    @property
    def feature_importances_(self) -> np.ndarray:
        """How much f depends on each input, (d,)."""

        def mean(X: np.ndarray) -> np.ndarray:
            return self.latent_mean_and_variance(X)[0][:, None]

        return difference_importances(
            mean, spread_of(np.asarray(self.X_train_, dtype=np.float64), self.weight_)
        )

    def latent_mean_and_variance(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of the latent function, each (n,), by blocks of rows."""
        k = self._covariance(self.kernel_)
        residual = self.weight_ * (self.y_train_ - self.pi_)
        L, W_sr, residual = (borrowed(a).to(k.device) for a in (self.L_, self.W_sr_, residual))
        mean, var = np.empty(len(X)), np.empty(len(X))

        def compute(block: slice) -> None:
            K_star, prior = k.cross(X[block]), k.diag(X[block])
            of_block = latent(K_star, prior, L, W_sr, residual)
            mean[block], var[block] = (a.cpu().numpy() for a in of_block)

        map_blocks(compute, len(X), k.block_rows)
        return mean, var


def predict_std_one_vs_rest(binary: Sequence[BinaryLaplaceClassifier], X: Any) -> np.ndarray:
    """Return the standard deviation of each class's share of all probabilities, (n, C)."""
    pairs = [classifier.latent_mean_and_variance(X) for classifier in binary]
    mean, var = (torch.from_numpy(np.stack(columns, 1)) for columns in zip(*pairs, strict=True))
    return OneVsRest(len(binary)).probability_std(Marginals(mean[None], var[None])).numpy()

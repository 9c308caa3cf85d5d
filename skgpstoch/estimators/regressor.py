"""Predictions of a regressor: mean, standard deviation, intervals, draws and densities."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ..data.arrays import Scaling, resolve_seed
from ..likelihoods.base import Likelihood
from ..likelihoods.real import AdditiveNoise
from ..posteriors.base import Posterior
from .base import BaseGP, predicting


class GPRegressor(MultiOutputMixin, RegressorMixin, BaseGP):
    """Predictions of a regressor: mean, standard deviation, intervals, draws and densities."""

    def _target_is_scaled(self) -> bool:
        return bool(self.normalize_y)

    def _check_exposed(self, exposure: Any) -> None:
        """Raise a ValueError where targets cannot be judged without the exposure of their rows."""

    def _target_scaling(self, y: np.ndarray) -> Scaling:
        scaled = self._target_is_scaled()
        return Scaling.standard(y) if scaled else Scaling.identity(y.shape[1])

    def _likelihoods(
        self, posterior: Posterior, exposure: Any, rows: Tensor
    ) -> Callable[[slice], Likelihood]:
        """p(y | f) of blocks of rows."""
        if exposure is None:
            return lambda block: posterior.likelihood
        e = torch.as_tensor(check_exposure(exposure, len(rows)), device=rows.device)
        return lambda block: posterior.likelihood.given(e[block])

    def _moments(self, X: Any, latent: bool, exposure: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of y, or of f, in the units of y: each (n, P)."""
        rows, posterior = self._query(X)
        likelihood = self._likelihoods(posterior, exposure, rows)

        def compute(block: slice) -> tuple[Tensor, Tensor]:
            q = posterior.marginals(rows[block])
            if not latent:
                q = likelihood(block).moments(q)
            mean, var = q.mixture_moments()
            return mean, var.sqrt()

        mean, std = self._collect(len(rows), compute)
        offset, scale = self._y_scaling
        return mean * scale + offset, std * scale

    def _shaped(self, a: np.ndarray) -> np.ndarray:
        """(n, P, ...) → the shape of the user's y."""
        return a[:, 0] if self._y_shape == () else a

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        *,
        latent: bool = False,
        exposure: Any = None,
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Mean of y, and if asked its standard deviation or joint covariance.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        return_std : bool, default=False
            Whether to return the standard deviation at each row.
        return_cov : bool, default=False
            Whether to return the covariance of the rows, O(n_samples²) memory.
        latent : bool, default=False
            Whether these are of the latent f, without the noise.
        exposure : float or array-like of shape (n_samples,), default=None
            What the rates of counts are multiplied by, for likelihood="poisson"; None is 1.

        Returns
        -------
        y_mean : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Mean.
        y_std : ndarray of the shape of y_mean
            Only if `return_std`.
        y_cov : ndarray of shape (n_samples, n_samples) or (n_samples, n_samples, n_outputs)
            Only if `return_cov`.
        """
        if return_std and return_cov:
            raise ValueError("return_std and return_cov cannot both be True; ask for one of them.")
        if return_cov:
            return self._mean_and_covariance(X, latent)
        mean, std = self._moments(X, latent, exposure)
        if return_std:
            return self._shaped(mean), self._shaped(std)
        return self._shaped(mean)

    def _mean_and_covariance(self, X: Any, latent: bool) -> tuple[np.ndarray, np.ndarray]:
        rows, posterior = self._query(X)
        if not latent and not isinstance(posterior.likelihood, AdditiveNoise):
            raise ValueError(
                f"return_cov=True needs latent=True with {posterior.likelihood!r}, whose y is not "
                "f and independent noise."
            )
        np.empty((len(rows), len(rows)))  # a MemoryError at once, where there would be one
        with predicting():
            q, cov = posterior.marginals(rows), posterior.covariance(rows)
            if not latent:
                noise = posterior.likelihood.moments(q).var - q.var  # (1, N, P)
                cov.diagonal(dim1=-2, dim2=-1).add_(noise[0].mT)
        offset, scale = self._y_scaling
        mean = q.mean[0].cpu().numpy() * scale + offset
        cov = np.moveaxis(cov.cpu().numpy(), 0, -1) * scale**2  # (N, N, P)
        return self._shaped(mean), cov[..., 0] if self._y_shape == () else cov

    def predict_std(self, X: Any, *, latent: bool = False, exposure: Any = None) -> np.ndarray:
        """Standard deviation of y at each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        latent : bool, default=False
            Whether it is that of the latent f, without the noise.
        exposure : float or array-like of shape (n_samples,), default=None
            What the rates of counts are multiplied by, for likelihood="poisson"; None is 1.

        Returns
        -------
        y_std : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            In the units of y.
        """
        return self._shaped(self._moments(X, latent, exposure)[1])

    def predict_interval(
        self, X: Any, coverage: Any = 0.95, *, latent: bool = False, exposure: Any = None
    ) -> np.ndarray:
        """Central interval that y is in with the given probability.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        coverage : float, default=0.95
            Probability, between 0 and 1.
        latent : bool, default=False
            Whether the interval is that of the latent f, without the noise.
        exposure : float or array-like of shape (n_samples,), default=None
            What the rates of counts are multiplied by, for likelihood="poisson"; None is 1.

        Returns
        -------
        interval : ndarray of shape (n_samples, 2) or (n_samples, 2, n_outputs)
            Lower and upper end, in the units of y.
        """
        if not isinstance(coverage, Real) or not 0.0 < float(coverage) < 1.0:
            raise ValueError(f"coverage must be a number between 0 and 1, got {coverage!r}.")
        rows, posterior = self._query(X)
        likelihood = self._likelihoods(posterior, exposure, rows)
        tail = 0.5 - 0.5 * float(coverage)

        def compute(block: slice) -> tuple[Tensor, Tensor]:
            q = posterior.marginals(rows[block])
            if latent:
                half = -norm.ppf(tail) * q.var[0].sqrt()
                return q.mean[0] - half, q.mean[0] + half
            of_block = likelihood(block)
            return of_block.quantile(q, tail), of_block.quantile(q, 1.0 - tail)

        offset, scale = self._y_scaling
        ends = [end * scale + offset for end in self._collect(len(rows), compute)]
        interval = np.stack(ends, 1)
        return interval[..., 0] if self._y_shape == () else interval

    def sample_y(
        self,
        X: Any,
        n_samples: Any = 1,
        random_state: Any = 0,
        *,
        latent: bool = False,
        exposure: Any = None,
    ) -> np.ndarray:
        """Joint draws of y at the rows of X from the posterior.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
            Inputs.
        n_samples : int, default=1
            Number of draws.
        random_state : int, RandomState instance or None, default=0
            Seed.
        latent : bool, default=False
            Whether the draws are of the latent f, without the noise.
        exposure : float or array-like of shape (n_samples_X,), default=None
            What the rates of counts are multiplied by, for likelihood="poisson"; None is 1.

        Returns
        -------
        y_samples : ndarray of shape (n_samples_X, n_samples) or (n_samples_X, n_outputs, n_samples)
            Draws, in the units of y.
        """
        if not isinstance(n_samples, Integral) or n_samples < 1:
            raise ValueError(f"n_samples must be an integer of at least 1, got {n_samples!r}.")
        rows, posterior = self._query(X)
        likelihood = self._likelihoods(posterior, exposure, rows)(slice(None))
        generator = torch.Generator(rows.device).manual_seed(resolve_seed(random_state))
        with predicting():
            f = posterior.sample(rows, int(n_samples), generator)  # (n_samples, N, P)
            if not latent:
                f = likelihood.sample(f, generator)
        offset, scale = self._y_scaling
        draws = f.cpu().numpy() * scale + offset
        return self._shaped(np.moveaxis(draws, 0, -1))

    def log_predictive_density(self, X: Any, y: Any, *, exposure: Any = None) -> np.ndarray:
        """Log density log p(y | x, data) of each row, summed over outputs.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        exposure : float or array-like of shape (n_samples,), default=None
            What the rates of counts are multiplied by, for likelihood="poisson"; None is 1.

        Returns
        -------
        log_density : ndarray of shape (n_samples,)
            Nats, for y in the units of the user; of counts, the log probability.
        """
        self._check_exposed(exposure)
        rows, targets, posterior = self._labelled(X, y)
        likelihood = self._likelihoods(posterior, exposure, rows)

        def compute(block: slice) -> tuple[Tensor]:
            q = posterior.marginals(rows[block])
            return (likelihood(block).log_predictive(targets[block], q),)

        (density,) = self._collect(len(rows), compute)
        return density - np.log(self._y_scaling.scale).sum()

    def _labelled(self, X: Any, y: Any) -> tuple[Tensor, Tensor, Posterior]:
        """X and y, validated and scaled, as float64 tensors, and the posterior."""
        check_is_fitted(self)
        X, y = self._validate(X, y, reset=False)
        rows, posterior = self._located(X)
        return rows, self._y_scaling.tensor(y, torch.float64, rows.device), posterior

    def log_marginal_likelihood(self, X: Any, y: Any, *, exposure: Any = None) -> float:
        """Log p(y | X) of the data given, or the bound on it, with the fitted hyper-parameters.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.
        exposure : float or array-like of shape (n_samples,), default=None
            What the rates of counts are multiplied by, for likelihood="poisson"; None is 1.

        Returns
        -------
        log_likelihood : float
            Nats, summed over rows and outputs, for y in the units of the user.
        """
        self._check_exposed(exposure)
        rows, targets, posterior = self._labelled(X, y)
        if exposure is not None:
            e = torch.as_tensor(check_exposure(exposure, len(rows)), device=rows.device)
            posterior.likelihood.given(e)
            targets = torch.cat([targets, e, torch.zeros_like(e)], 1)  # as in training, with a fold
        with predicting():
            return self._log_evidence(posterior.refit(rows, targets))

    def _log_evidence(self, posterior: Posterior) -> float:
        """log p(y | X) for y in the units of the user, summed over rows and outputs."""
        jacobian = posterior.n_rows * float(np.log(self._y_scaling.scale).sum())
        return float(posterior.log_evidence().sum()) - jacobian


def check_exposure(exposure: Any, n_rows: int) -> np.ndarray:
    """Exposures of n_rows rows, (n, 1).

    Raises
    ------
    ValueError
        If they are not positive numbers, one for each row.
    """
    try:
        e = np.array(exposure, dtype=np.float64)  # a copy: torch warns of arrays that are read-only
    except (TypeError, ValueError) as error:
        raise ValueError(f"exposure must be numeric, got {exposure!r}.") from error
    if e.ndim == 0:
        e = np.full(n_rows, e)
    if e.shape not in ((n_rows,), (n_rows, 1)):
        raise ValueError(f"exposure must have shape ({n_rows},), one for each row, got {e.shape}.")
    if not (np.isfinite(e) & (e > 0.0)).all():
        raise ValueError("exposure must be positive and finite, got other values.")
    return e.reshape(-1, 1)

"""Predictions of a regressor: mean, standard deviation, intervals, draws and densities."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from ._base import BaseGP
from ._data import resolve_seed
from .linalg import map_blocks


class GPRegressor(MultiOutputMixin, RegressorMixin, BaseGP):
    """Predictions of a regressor: mean, standard deviation, intervals, draws and densities."""

    def _shaped(self, a: np.ndarray) -> np.ndarray:
        """(n, P, ...) → the shape of the user's y."""
        return a[:, 0] if self._y_shape == () else a

    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False, *, latent: bool = False
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
        mean, std = self._marginals(X, latent)
        if return_std:
            return self._shaped(mean), self._shaped(std)
        return self._shaped(mean)

    def _mean_and_covariance(self, X: Any, latent: bool) -> tuple[np.ndarray, np.ndarray]:
        rows, posterior = self._query(X)
        np.empty((len(rows), len(rows)))  # a MemoryError at once, where there would be one
        with torch.no_grad():
            q, cov = posterior.marginals(rows), posterior.covariance(rows)
            if not latent:
                noise = posterior.likelihood.moments(q).var - q.var  # (1, N, P)
                cov.diagonal(dim1=-2, dim2=-1).add_(noise[0].mT)
        offset, scale = self._y_scaling
        mean = q.mean[0].cpu().numpy() * scale + offset
        cov = np.moveaxis(cov.cpu().numpy(), 0, -1) * scale**2  # (N, N, P)
        return self._shaped(mean), cov[..., 0] if self._y_shape == () else cov

    def predict_std(self, X: Any, *, latent: bool = False) -> np.ndarray:
        """Standard deviation of y at each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        latent : bool, default=False
            Whether it is that of the latent f, without the noise.

        Returns
        -------
        y_std : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            In the units of y.
        """
        return self._shaped(self._marginals(X, latent)[1])

    def predict_interval(self, X: Any, coverage: Any = 0.95, *, latent: bool = False) -> np.ndarray:
        """Central interval that y is in with the given probability.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        coverage : float, default=0.95
            Probability, between 0 and 1.
        latent : bool, default=False
            Whether the interval is that of the latent f, without the noise.

        Returns
        -------
        interval : ndarray of shape (n_samples, 2) or (n_samples, 2, n_outputs)
            Lower and upper end, in the units of y.
        """
        if not isinstance(coverage, Real) or not 0.0 < float(coverage) < 1.0:
            raise ValueError(f"coverage must be a number between 0 and 1, got {coverage!r}.")
        mean, std = self._marginals(X, latent)
        half = norm.ppf(0.5 + 0.5 * float(coverage)) * std
        interval = np.stack([mean - half, mean + half], 1)
        return interval[..., 0] if self._y_shape == () else interval

    def sample_y(
        self, X: Any, n_samples: Any = 1, random_state: Any = 0, *, latent: bool = False
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

        Returns
        -------
        y_samples : ndarray of shape (n_samples_X, n_samples) or (n_samples_X, n_outputs, n_samples)
            Draws, in the units of y.
        """
        if not isinstance(n_samples, Integral) or n_samples < 1:
            raise ValueError(f"n_samples must be an integer of at least 1, got {n_samples!r}.")
        rows, posterior = self._query(X)
        generator = torch.Generator(rows.device).manual_seed(resolve_seed(random_state))
        with torch.no_grad():
            f = posterior.sample(rows, int(n_samples), generator)  # (n_samples, N, P)
            if not latent:
                f = posterior.likelihood.sample(f, generator)
        offset, scale = self._y_scaling
        draws = f.cpu().numpy() * scale + offset
        return self._shaped(np.moveaxis(draws, 0, -1))

    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """Log density log p(y | x, data) of each row, summed over outputs.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.

        Returns
        -------
        log_density : ndarray of shape (n_samples,)
            Nats, for y in the units of the user.
        """
        check_is_fitted(self)
        X, y = self._validate(X, y, reset=False)
        rows, posterior = self._located(X)
        targets = self._y_scaling.tensor(y, torch.float64, rows.device)
        density = np.empty(len(rows))

        @torch.no_grad()
        def add(block: slice) -> None:
            q = posterior.marginals(rows[block])
            density[block] = posterior.likelihood.log_predictive(targets[block], q).cpu().numpy()

        map_blocks(add, len(rows))
        return density - np.log(self._y_scaling.scale).sum()

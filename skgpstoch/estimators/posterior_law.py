"""What a fitted regressor predicts of y, from its posterior and its likelihood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..data.arrays import Scaling, random_numbers, resolve_seed
from ..data.devices import map_blocks
from ..data.rows import Rows
from ..likelihoods.real import AdditiveNoise, Noiseless
from ..maths.gaussian import Marginals
from ..models.posteriors.gradients import MomentGradients, gradients_by_blocks
from ..persistence.failures import file_of
from .base import BaseGP
from .context import numeric_context, predicting
from .distributions.law import Law
from .distributions.transformed import transformed, transformed_draws
from .predictions import PredictedRows
from .validation import (
    KNOWN_AND_TRANSFORMED,
    check_column,
    check_y_std,
    known_noise,
    transformer_of,
)

MOST_BELOW = 1e-6  # by which a variance of standardised y may be below 0
LIGHT_SCALE = 1.0 / 3.0  # of exponential tails: exp(2y) then has a mean, with room to spare


@dataclass(frozen=True)
class PredictedLaw(Law):
    """Distributions of y = offset + scale·Y, where a likelihood gives Y for f ~ q.

    Parameters
    ----------
    q : Marginals of shape (S, N, P)
    likelihood : Likelihood
        The likelihood at these rows.
    y_scaling : Scaling
        Units of y, (P,).
    """

    q: Marginals
    likelihood: Any
    y_scaling: Scaling

    @classmethod
    def joined(cls, parts: Sequence[PredictedLaw]) -> PredictedLaw:
        """Return the distributions of blocks of rows as one."""
        first = parts[0]
        if len(parts) == 1:
            return first
        q = Marginals(*(torch.cat(blocks, 1) for blocks in zip(*(p.q for p in parts), strict=True)))
        likelihood = first.likelihood.joined([part.likelihood for part in parts])
        return cls(q, likelihood, first.y_scaling)

    @property
    def shape(self) -> tuple[int, int]:
        return self.q.mean.shape[1], self.q.mean.shape[2]

    @property
    def n_parts(self) -> int:
        return len(self.q.mean)

    @property
    def is_discrete(self) -> bool:
        return self.likelihood.is_discrete

    @property
    def has_light_tails(self) -> Any:
        scale = self.likelihood.tail_scale
        if isinstance(scale, Tensor):
            scale = array(scale.detach().expand(self.q.mean.shape).amax(0))
        return scale * self.y_scaling.scale < LIGHT_SCALE

    def of(self, rows: Any) -> PredictedLaw:
        if not isinstance(rows, slice):
            rows = torch.from_numpy(np.arange(self.shape[0])[rows]).to(self.q.mean.device)
        q = Marginals(*(part[:, rows] for part in self.q))
        return PredictedLaw(q, self.likelihood.at_rows(rows), self.y_scaling)

    @cached_property
    def _around(self) -> Any:
        """The likelihood, with what it computes of q once: searches ask for many probabilities."""
        return self.likelihood.around(self.q)

    @predicting()
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        mean, var = self.likelihood.moments(self.q).mixture_moments()
        offset, scale = self.y_scaling
        return array(mean) * scale + offset, array(var.sqrt()) * scale

    @predicting()
    def log_density(self, y: np.ndarray) -> np.ndarray:
        each = self.likelihood.log_components(self._scaled(y), self.q)
        return array(each.logsumexp(0)) - np.log(len(each)) - np.log(self.y_scaling.scale)

    @predicting()
    def joint_log_density(self, y: np.ndarray | Tensor) -> np.ndarray:
        density = self.likelihood.log_predictive(self._scaled(y), self.q)
        return array(density) - np.log(self.y_scaling.scale).sum()

    @predicting()
    def cdf(self, y: np.ndarray | Tensor) -> np.ndarray:
        return array(self._around.cdf(self._scaled(y), self.q).mean(0))

    @predicting()
    def sf(self, y: np.ndarray) -> np.ndarray:
        return array(self._around.sf(self._scaled(y), self.q).mean(0))

    @predicting()
    def quantile(self, probability: float) -> np.ndarray:
        found = array(self.likelihood.quantile(self.q, probability))
        return found * self.y_scaling.scale + self.y_scaling.offset

    def quantiles(self, probability: np.ndarray) -> np.ndarray:
        if not self.is_discrete:
            return super().quantiles(probability)
        found = np.empty(self.shape)
        for each in np.unique(probability):
            rows = np.flatnonzero((probability == each).any(1))
            of_rows = self.of(rows).quantile(float(each))
            found[rows] = np.where(probability[rows] == each, of_rows, found[rows])
        return found

    @predicting()
    def sample(self, n_samples: int, rng: np.random.RandomState) -> np.ndarray:
        device = self.q.mean.device
        generator = torch.Generator(device).manual_seed(int(rng.randint(2**31 - 1)))
        draws = array(self.likelihood.sample_predictive(self.q, n_samples, generator))
        return draws * self.y_scaling.scale + self.y_scaling.offset

    def crps(self, y: np.ndarray) -> np.ndarray:
        with predicting():
            found = self.likelihood.crps(self._scaled(y), self.q)
        return super().crps(y) if found is None else array(found) * self.y_scaling.scale

    def between_counts(self, k: np.ndarray) -> np.ndarray:
        return np.asarray(self.likelihood.distribution(self.q)(k))

    def _scaled(self, y: np.ndarray | Tensor) -> Tensor:
        """Return y in the units of Y; a tensor has them already."""
        if isinstance(y, Tensor):
            return y
        scaled = (y - self.y_scaling.offset) / self.y_scaling.scale
        return torch.from_numpy(scaled).to(self.q.mean)


def array(values: Tensor) -> np.ndarray:
    """Return a tensor as an array."""
    return np.asarray(values.cpu().numpy())


class PredictedByPosterior(PredictedRows):
    """What a fitted regressor predicts of y, or of f if `latent`, in the user's units."""

    def __init__(self, model: BaseGP, X: Any, latent: bool, exposure: Any, y_std: Any) -> None:
        if y_std is not None and transformer_of(model) is not None:
            raise ValueError(KNOWN_AND_TRANSFORMED)
        self.model, self.given, self.latent = model, (X, exposure, y_std), latent
        self.X, self.posterior = model._query(X)
        self.rows = known_rows(self.X, exposure, y_std, model._y_scaling.scale)
        self.transformer = None if latent else transformer_of(model)
        self.is_transformed = self.transformer is not None
        self.n_rows, self.output_shape = len(self.X), model._y_shape
        self.block_rows = self.posterior.block_rows
        if not latent and self.transformer is None:
            self.unit = model._y_scaling.scale

    def law(self, rows: slice) -> Law:
        law = self._law_of_z(rows)
        return law if self.transformer is None else transformed(law, self.transformer)

    def _law_of_z(self, rows: slice) -> Law:
        X, known, parts = self.X[rows], self.rows[rows], list[PredictedLaw]()

        def add(block: slice) -> None:
            q, likelihood = self.posterior.predictive(X[block], known[block])
            own = Noiseless() if self.latent else likelihood
            parts.append(PredictedLaw(q, own, self.model._y_scaling))

        map_blocks(add, len(X), self.block_rows)
        return PredictedLaw.joined(parts)

    def mean(self) -> np.ndarray:
        if self.transformer is not None:
            return super().mean()  # whether there is a deviation or not
        if not self.posterior.has_cheap_mean:
            return self.moments()[0]
        self.posterior.likelihood.of(self.rows)  # or an error
        offset, scale = self.model._y_scaling  # noise has no mean, and variances are expensive
        (mean,) = self.by_blocks(lambda rows: (array(self.posterior.mean(self.X[rows])),))
        return mean * scale + offset

    def draws(self, n_samples: int, random_state: Any) -> np.ndarray:
        generator = torch.Generator(self.X.device).manual_seed(resolve_seed(random_state))
        with predicting():  # (n_samples, N, P)
            if self.latent:
                drawn = self.posterior.sample(self.X, n_samples, generator)
            else:
                drawn = self.posterior.sample_y(self.X, self.rows, n_samples, generator)
        offset, scale = self.model._y_scaling
        draws = np.moveaxis(array(drawn) * scale + offset, 0, -1)
        if self.transformer is None:
            return draws
        law = transformed(self._law_of_z(slice(0, self.n_rows)), self.transformer)
        return transformed_draws(draws, law, random_numbers(random_state))

    def targets(self, y: Any) -> Any:
        X, exposure, y_std = self.given
        y = cast(Any, self.model)._checked(X, y, None, exposure, y_std).y
        if self.transformer is None:  # blocks of an accelerator wait for no copies
            return self.model._y_scaling.tensor(y, torch.float64, self.X.device)
        return self.transformer.inverse_transform(y)

    def joint_moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean, (n, P), and the covariance, (n, n, P)."""
        posterior = self.posterior
        if not self.latent and not isinstance(posterior.likelihood, AdditiveNoise):
            raise ValueError(
                f"return_cov=True needs latent=True with {posterior.likelihood!r}, because "
                "with this likelihood y is not f plus independent noise."
            )
        if self.transformer is not None:
            raise ValueError(
                "return_cov=True needs latent=True with target_transform, because only the "
                "transformed target has a covariance."
            )
        np.empty((self.n_rows, self.n_rows))  # a MemoryError would come later; raise it now
        with predicting():
            q, likelihood = posterior.predictive(self.X, self.rows)
            cov = posterior.covariance(self.X)
            if not self.latent:
                noise = cast(AdditiveNoise, likelihood)
                cov = noise.joint_covariance(q, cov, posterior.between(self.X))
        check_variances(self.model, cov)
        offset, scale = self.model._y_scaling
        mean = array(q.mixture_moments()[0]) * scale + offset
        return mean, np.moveaxis(array(cov), 0, -1) * scale**2


def check_variances(model: BaseGP, cov: Tensor) -> None:
    """Raise a ValueError if covariances (P, N, N) in units of y have negative variances.

    As with a kernel that is none in so many dimensions, or a factor in a file that is another's.
    """
    least = float(cov.diagonal(dim1=1, dim2=2).min()) if cov.numel() else 0.0
    if least < -MOST_BELOW:
        raise ValueError(
            f"{type(model).__name__}{file_of(model)} predicts a variance of {least:.3g}: its "
            "posterior is not that of its kernel, or the kernel gives no covariances in so many "
            "dimensions. Choose another kernel, and fit the model again."
        )


def gradients_of(model: BaseGP, X: Any, latent: bool) -> MomentGradients:
    """Return mean and standard deviation of y, or f, and their gradients, in the user's units."""
    if not latent and transformer_of(model) is not None:
        raise ValueError(
            "predict_gradient needs latent=True with target_transform, because it has "
            "the gradients of f, the transformed target, but not the gradients of y."
        )
    X, posterior = model._query(X)

    def moments(block: Tensor) -> tuple[Tensor, Tensor]:
        q, likelihood = posterior.predictive(block, Rows(block[:, :1]))
        return (q if latent else likelihood.moments(q)).mixture_moments()

    with numeric_context():
        found = gradients_by_blocks(moments, X, X.device, posterior.gradient_rows)
    of_y, unit = found.scaled(*model._y_scaling), model._x_scaling.scale
    slopes = (of_y.mean_gradient / unit, of_y.std_gradient / unit)
    return MomentGradients(of_y.mean, of_y.std, *slopes)


def known_rows(X: Tensor, exposure: Any, y_std: Any, scale: np.ndarray) -> Rows:
    """Return per-row inputs other than X and y, for targets in units of `scale` (P,)."""
    e = s = None
    if exposure is not None:
        e = torch.from_numpy(check_column(exposure, len(X), "exposure")).to(X)
    if y_std is not None:
        y_std = check_y_std(y_std, (len(X), len(scale)))
        s = torch.from_numpy(known_noise(y_std, scale)).to(X)
    return Rows(X[:, :1], exposure=e, noise=s)  # nothing reads its y

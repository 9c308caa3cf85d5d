"""Predictive distributions of y, from a posterior and a likelihood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.arrays import Scaling
from ..distributions.law import Law
from ..maths.gaussian import Marginals
from .context import predicting

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
    def is_discrete(self) -> bool:  # type: ignore[override]
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

"""The exact posterior of Bayesian linear regression."""

from __future__ import annotations

import torch
from torch import Tensor

from ...data.devices import map_blocks
from ...data.rows import Rows
from ...likelihoods.real import Gaussian
from ...maths.gaussian import Marginals, standard_normal
from ...maths.linear_regression import Spectrum, exact_statistics, negative_log_evidence, spectrum
from ..features.base import FeatureMap
from .base import Posterior, Weights
from .functions import Functions


class ConjugateWeights(Weights):
    """The exact posterior of Bayesian linear regression, w | y ~ N(ŵ, σ²(ZᵀZ + λI)⁻¹).

    It is stored in the eigenbasis of ZᵀZ = U diag(l) Uᵀ, which all outputs share.

    Parameters
    ----------
    spectrum : Spectrum
        Spectrum of the features and targets of all rows, for a single member (K = 1).
    noise_variance, ridge : Tensors of shape (P,)
        Noise variances σ² and ridges λ.
    """

    noise_variance: Tensor
    ridge: Tensor
    mean: Tensor

    def __init__(self, spectrum: Spectrum, noise_variance: Tensor, ridge: Tensor) -> None:
        super().__init__()
        for name, value in spectrum._asdict().items():
            self.register_buffer(name, value)
        self.register_buffer("noise_variance", noise_variance)
        self.register_buffer("ridge", ridge)
        shrunk = spectrum.cross[0] / (spectrum.values[0][:, None] + ridge)
        self.register_buffer("mean", spectrum.vectors[0] @ shrunk)  # ŵ, (D, P)

    @property
    def spectrum(self) -> Spectrum:
        """The data's spectrum, all that the posterior keeps of them."""
        return Spectrum(*(getattr(self, name) for name in Spectrum._fields))

    @property
    def variances(self) -> Tensor:
        """Variances σ²/(l + λ) of Uᵀw, (D, P)."""
        return self.noise_variance / (self.spectrum.values[0][:, None] + self.ridge)

    def log_evidence(self) -> Tensor:
        """Return log p(y | X), (P,) nats."""
        return -negative_log_evidence(self.spectrum, self.noise_variance, self.ridge)[0]

    def marginals(self, phi: Tensor, residual: Tensor) -> Marginals:
        basis = self.spectrum.vectors[0]
        var = (phi @ basis).square() @ self.variances + residual[:, None]  # (N, P)
        return Marginals((phi @ self.mean)[None], var[None])

    def covariance(self, phi: Tensor) -> Tensor:
        half = (phi @ self.spectrum.vectors[0]) * self.variances.sqrt().mT[:, None]  # (P, N, D)
        return half @ half.mT

    def sample(self, n_samples: int, generator: torch.Generator) -> Tensor:
        noise = standard_normal((n_samples, *self.mean.shape), self.mean, generator)
        return self.mean + self.spectrum.vectors[0] @ (self.variances.sqrt() * noise)


class ConjugatePosterior(Posterior):
    """The exact posterior of f(x) = φ(x)ᵀw with a Gaussian likelihood: φ and p(w | y)."""

    features: FeatureMap
    weights: ConjugateWeights
    likelihood: Gaussian

    def __init__(self, features: FeatureMap, weights: ConjugateWeights) -> None:
        super().__init__()
        self.features = features
        self.weights = weights
        self.likelihood = Gaussian(weights.noise_variance)
        self._n_rows = float(weights.spectrum.n_rows)

    def log_evidence(self) -> Tensor:
        return self.weights.log_evidence()

    def refit(self, X: Tensor, rows: Rows) -> ConjugatePosterior:
        """Return the posterior given other data, with the same hyper-parameters."""
        weight = None if rows.weight is None else rows.weight[None]
        s = spectrum(exact_statistics(lambda X: self.features(X)[None], X, rows.y, weight))
        weights = ConjugateWeights(s, self.weights.noise_variance, self.weights.ridge)
        return ConjugatePosterior(self.features, weights)

    def marginals(self, X: Tensor) -> Marginals:
        basis = self.features.basis(X)
        return self.weights.marginals(basis.phi, basis.residual())

    def covariance(self, X: Tensor) -> Tensor:
        return self.weights.covariance(self.features(X))

    def functions(self, n_samples: int, generator: torch.Generator) -> Functions:
        w = self.weights.sample(n_samples, generator)  # (n_samples, D, P)
        return lambda X: self.features(X) @ w

    def sample(self, X: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        w = self.weights.sample(n_samples, generator)  # (n_samples, D, P)
        f = w.new_empty(n_samples, len(X), w.shape[2])

        def draw(block: slice) -> None:
            f[:, block] = self.features(X[block]) @ w

        map_blocks(draw, len(X))
        return f

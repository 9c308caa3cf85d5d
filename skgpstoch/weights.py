"""Posteriors q(w) over the weights of f(x) = φ(x)ᵀw + r(x), and over f."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ._objective import Posterior
from .evidence import Spectrum, exact_statistics, negative_log_evidence, spectrum
from .features import FeatureMap
from .gaussian import Marginals
from .likelihoods import Gaussian
from .linalg import map_blocks


class Weights(nn.Module):
    """q(w): what the features' weights are believed to be, one set for each of P outputs."""

    def marginals(self, phi: Tensor, residual: Tensor) -> Marginals:
        """q(f) at each row: phi (N, D), residual (N,) → mean and var (1, N, P)."""
        raise NotImplementedError

    def covariance(self, phi: Tensor) -> Tensor:
        """Joint covariance of φᵀw at the rows of phi: (P, N, N)."""
        raise NotImplementedError

    def sample(self, n_samples: int, generator: torch.Generator) -> Tensor:
        """Draws of w: (n_samples, D, P)."""
        raise NotImplementedError


class ConjugateWeights(Weights):
    """The exact posterior of Bayesian linear regression, w | y ~ N(ŵ, σ²(ZᵀZ + λI)⁻¹).

    Kept in the eigenbasis of ZᵀZ = U diag(l) Uᵀ, which all outputs share.

    Parameters
    ----------
    spectrum : Spectrum
        Of the features and targets of all rows, a single member (K = 1).
    noise_variance, ridge : Tensors of shape (P,)
        σ² and λ.
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
        """The data, as the posterior remembers them."""
        return Spectrum(*(getattr(self, name) for name in Spectrum._fields))

    @property
    def variances(self) -> Tensor:
        """σ²/(l + λ): variances of Uᵀw, (D, P)."""
        return self.noise_variance / (self.spectrum.values[0][:, None] + self.ridge)

    def log_evidence(self) -> Tensor:
        """log p(y | X), (P,) nats."""
        return -negative_log_evidence(self.spectrum, self.noise_variance, self.ridge)[0]

    def marginals(self, phi: Tensor, residual: Tensor) -> Marginals:
        basis = self.spectrum.vectors[0]
        var = (phi @ basis).square() @ self.variances + residual[:, None]  # (N, P)
        return Marginals((phi @ self.mean)[None], var[None])

    def covariance(self, phi: Tensor) -> Tensor:
        half = (phi @ self.spectrum.vectors[0]) * self.variances.sqrt().mT[:, None]  # (P, N, D)
        return half @ half.mT

    def sample(self, n_samples: int, generator: torch.Generator) -> Tensor:
        noise = torch.randn(
            (n_samples, *self.mean.shape),
            generator=generator,
            dtype=self.mean.dtype,
            device=self.mean.device,
        )
        return self.mean + self.spectrum.vectors[0] @ (self.variances.sqrt() * noise)


class ConjugatePosterior(Posterior):
    """f(x) = φ(x)ᵀw with a Gaussian likelihood: exact.

    Parameters
    ----------
    features : FeatureMap
        φ.
    weights : ConjugateWeights
        p(w | y).
    """

    features: FeatureMap
    weights: ConjugateWeights
    likelihood: Gaussian

    def __init__(self, features: FeatureMap, weights: ConjugateWeights) -> None:
        super().__init__()
        self.features = features
        self.weights = weights
        self.likelihood = Gaussian(weights.noise_variance)

    @property
    def n_rows(self) -> int:
        return int(self.weights.spectrum.n_rows)

    def log_evidence(self) -> Tensor:
        return self.weights.log_evidence()

    def refit(self, X: Tensor, y: Tensor) -> ConjugatePosterior:
        s = spectrum(exact_statistics(lambda X: self.features(X)[None], X, y))
        weights = ConjugateWeights(s, self.weights.noise_variance, self.weights.ridge)
        return ConjugatePosterior(self.features, weights)

    def marginals(self, X: Tensor) -> Marginals:
        phi = self.features(X)  # (N, D)
        return self.weights.marginals(phi, self.features.residual(X, phi))

    def covariance(self, X: Tensor) -> Tensor:
        return self.weights.covariance(self.features(X))

    def sample(self, X: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        w = self.weights.sample(n_samples, generator)  # (n_samples, D, P)
        f = w.new_empty(n_samples, len(X), w.shape[2])

        def draw(block: slice) -> None:
            f[:, block] = self.features(X[block]) @ w

        map_blocks(draw, len(X))
        return f


class VariationalWeights(Weights):
    """q(w) = N(m, S) with S block-diagonal, and N(0, I) as the prior.

    One block is the full covariance of SVGP, two are those of SOLVE-GP, and a block without a root
    keeps the prior's covariance, as in ODVGP.

    Parameters
    ----------
    mean : Tensor of shape (D, P)
        m.
    roots : sequence of (Tensor of shape (P, D_b, D_b) or None)
        R_b of every block, S_b = R_b R_bᵀ, triangular. None: S_b = I.
    sizes : sequence of int
        D_b of every block.
    """

    mean: Tensor

    def __init__(self, mean: Tensor, roots: Sequence[Tensor | None], sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.register_buffer("mean", mean)
        for b, root in enumerate(roots):
            self.register_buffer(f"root_{b}", root)

    @property
    def roots(self) -> list[Tensor | None]:
        """R_b."""
        return [getattr(self, f"root_{b}") for b in range(len(self.sizes))]

    def rooted(self, phi: Tensor) -> list[Tensor]:
        """φ_b R_b of every block: (P, N, D_b), or (1, N, D_b) of a prior's."""
        parts = zip(phi.split(self.sizes, -1), self.roots, strict=True)
        return [part[None] if root is None else part @ root for part, root in parts]

    def marginals(self, phi: Tensor, residual: Tensor) -> Marginals:
        mean = phi @ self.mean  # (N, P)
        var = residual + sum(half.square().sum(-1) for half in self.rooted(phi))  # (P, N)
        return Marginals(mean[None], var.mT.expand_as(mean)[None])

    def covariance(self, phi: Tensor) -> Tensor:
        half = torch.cat([h.expand(self.mean.shape[1], -1, -1) for h in self.rooted(phi)], 2)
        return half @ half.mT  # (P, N, N)

    def sample(self, n_samples: int, generator: torch.Generator) -> Tensor:
        D, P = self.mean.shape
        z = self.mean.new_empty(P, D, n_samples).normal_(generator=generator)
        blocks = zip(z.split(self.sizes, 1), self.roots, strict=True)
        w = torch.cat([part if root is None else root @ part for part, root in blocks], 1)
        return self.mean + w.permute(2, 1, 0)

    def kl(self) -> Tensor:
        """KL[q(w) ‖ N(0, I)] of each output, (P,) nats: ½ Σ_b (tr S_b − D_b − log|S_b|) + ½‖m‖²."""
        kl = 0.5 * self.mean.square().sum(0)
        for size, root in zip(self.sizes, self.roots, strict=True):
            if root is not None:
                log_det = 2.0 * root.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
                kl = kl + 0.5 * (root.square().sum((-2, -1)) - size - log_det)
        return kl

"""The variational model on features, and the posterior of a fitted one.

With features P (n, D) in blocks D = Σ_b D_b, and q(w) = N(m, S), S = blockdiag(S_b),

    μ = Pm + mean,   v = diag(P S Pᵀ) + diag(K − PPᵀ)                                           (B1)

The features are those of inducing points (:mod:`skgpstoch.models.features.inducing`,
:mod:`skgpstoch.models.features.orthogonal`), or any finite ones, whose residual is 0.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..data.arrays import blocks_of
from ..data.devices import block_rows
from ..data.rows import Rows
from ..likelihoods.base import Likelihood
from ..likelihoods.by_row import ScaledByRow
from ..likelihoods.real import Gaussian
from ..losses import ExpectedLogLikelihood, Loss
from ..maths.gaussian import Marginals, standard_normal
from ..maths.linalg import cholesky
from ..maths.modules import Module
from .features.base import Basis, FeatureMap
from .features.inducing import ConditionedFeatures, InducingFeatures
from .hyper_prior import HyperPrior
from .posteriors.base import Posterior
from .posteriors.blocks import VariationalWeights, WeightMoments
from .posteriors.functions import Functions, prior_functions
from .posteriors.sites import (
    InverseFactor,
    Sites,
    careful_inverse_factor,
    optimal_mean,
    optimal_moments,
)

LEAST_RATIO = 1e-4  # smallest factor of a row's noise scale
UNIT = math.log(math.expm1(1.0 - LEAST_RATIO))


class Solution(NamedTuple):
    """The result of a pass over all rows."""

    q: WeightMoments
    sites: Sites
    value: Tensor  # −Σ loss − β KL, summed over rows and outputs, ()


class ConstantMean(Module):
    """The prior mean of each output, (P,), which starts at a value."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(value)


class RowScale(Module):
    """The factor of each row's noise scale, which is a second function of the features.

        ρ(x) = ε + softplus(φ(x)ᵀa + softplus⁻¹(1 − ε)),   a ~ N(0, I), ε = 10⁻⁴,

    with a point estimate of a. This ρ is no residual variance.

    Parameters
    ----------
    weights : Tensor of shape (..., D, P)
        Weights a; zeros mean that the noise is the same everywhere.
    """

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights)

    def forward(self, phi: Tensor) -> Tensor:
        """Return ρ, (..., N, P), for features (..., N, D)."""
        return self.of(phi @ self.weights.to(phi))

    @staticmethod
    def of(latent: Tensor) -> Tensor:
        """Return ρ, given the value of the second function."""
        return LEAST_RATIO + nn.functional.softplus(latent + UNIT)

    def neg_log_prior(self) -> Tensor:
        """Return −log p(a) without its constant, ()."""
        return 0.5 * self.weights.square().sum()


class SparseModel(Module):
    """A variational model: features, likelihood and prior mean, and the loss that trains them.

    Parameters
    ----------
    features : FeatureMap
        The map that gives the features P; an ensemble of maps must be joined.
    likelihood : Likelihood
        p(y | f).
    mean : ConstantMean
        Prior mean of f.
    prior_blocks : tuple of bool or None, default=None
        Whether each block's S_b stays the prior's; None: no block's does.
    loss : Loss or None, default=None
        Loss of a row; None: the loss of the evidence lower bound.
    beta : float, default=1.0
        Weight of KL[q(w) ‖ p(w)].
    scale : RowScale or None, default=None
        Factors of the rows' noise scales; None: all rows have the same noise.
    """

    has_draws: bool = False
    """Whether a row's features are drawn anew each time."""

    trained_noise: tuple[Likelihood, RowScale | None] | None = None
    """Likelihood and row scale as trained, if those for predictions differ from them."""

    hyper_prior: HyperPrior | None = None
    """Prior on the default kernel's hyper-parameters and noise, used in training."""

    def __init__(
        self,
        features: FeatureMap,
        likelihood: Likelihood,
        mean: ConstantMean,
        prior_blocks: tuple[bool, ...] | None = None,
        loss: Loss | None = None,
        beta: float = 1.0,
        scale: RowScale | None = None,
    ) -> None:
        super().__init__()
        self.scale = scale
        self.features = features
        self.likelihood = likelihood
        self.mean = mean
        self.prior_blocks = prior_blocks or (False,) * len(features.blocks)
        self.loss = ExpectedLogLikelihood() if loss is None else loss
        self.beta = beta

    # ---- what follows from the loss ----------------------------------------------------------

    @property
    def is_conjugate(self) -> bool:
        """Whether the sites do not depend on q."""
        return self.loss.is_conjugate(self.likelihood)

    @property
    def is_bound(self) -> bool:
        """Whether training maximises the evidence or a lower bound on it."""
        return self.loss.bounds_evidence and self.beta == 1.0

    @property
    def covariance(self) -> str:
        """Where S comes from: "sites", "gradient" or "prior"."""
        return self.loss.covariance(self.likelihood)

    @property
    def has_prior_covariance(self) -> tuple[bool, ...]:
        """Whether S_b is the prior's."""
        if self.covariance == "prior":
            return (True,) * len(self.prior_blocks)
        return self.prior_blocks

    @property
    def site_noise(self) -> Tensor:
        """β times the loss's site noise, (P,): the noise variance that goes with G and c."""
        noise = cast(Tensor, self.loss.site_noise(self.likelihood))
        return self.beta * noise.detach()

    # ---- q(w) and q(f) -----------------------------------------------------------------------

    @property
    def drawless_features(self) -> FeatureMap:
        """The feature map, if a row's features are not drawn anew each time."""
        return self.features

    @property
    def dtype(self) -> torch.dtype:
        """Type of the features and of their gradients."""
        return self.mean.value.dtype

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.mean.value.device

    def zero_sites(self) -> Sites:
        """Return the sites without data, for which q(w) is the prior."""
        D, P = sum(self.features.blocks), len(self.mean.value)
        zeros = torch.zeros(P, D, D, dtype=torch.float64, device=self.device)
        return Sites(zeros, zeros[0, :, :1].repeat(1, P))

    def prior(self) -> tuple[Sites, WeightMoments]:
        """Return the sites without data, and the prior as q(w)."""
        mean, sizes, sites = self.mean.value.detach(), self.features.blocks, self.zero_sites()
        eye = functools.partial(torch.eye, dtype=mean.dtype, device=mean.device)
        blocks = zip(sizes, self.has_prior_covariance, strict=True)
        S = [None if is_prior else eye(size).repeat(len(mean), 1, 1) for size, is_prior in blocks]
        kl = sites.cross.new_zeros(())
        return sites, WeightMoments(mean.new_zeros(sum(sizes), len(mean)), tuple(S), sizes, kl)

    def moments(
        self,
        sites: Sites,
        like: WeightMoments | None = None,
        inverse_factor: InverseFactor = careful_inverse_factor,
        dtype: torch.dtype = torch.float64,
    ) -> WeightMoments:
        """Return the best q(w) given sites; or, with `like`, the best mean with its covariances."""
        if like is None:
            fixed = self.has_prior_covariance
            return optimal_moments(sites, self.features.blocks, fixed, inverse_factor, dtype)
        mean, _ = optimal_mean(sites, self.features.blocks)
        kl = like.kl + 0.5 * (mean.square().sum() - like.mean.square().sum())
        return like._replace(mean=mean, kl=kl)

    def offset(self, basis: Basis) -> Tensor:
        """Return the part of the mean of f besides Pm: (P,) or (N, P)."""
        value = self.mean.value.to(basis.phi)
        return value if basis.shift is None else value + basis.shift

    def marginals(self, basis: Basis, q: WeightMoments, products: Tensor) -> Marginals:
        """Return q(f) (B1), given PS (B, N, D)."""
        phi = basis.phi
        mean = phi @ q.mean + self.offset(basis)
        var = (products * phi).sum(-1).clamp_min(0.0) + basis.residual()  # (B, N)
        return Marginals(mean[None], var.mT.expand_as(mean)[None])

    def basis(self, X: Tensor, rows: Rows, generator: torch.Generator) -> tuple[Basis, Rows]:
        """Return the features of a minibatch, in training."""
        return self.features.basis(X), rows

    def bases(
        self, X: Tensor, rows: Rows, dtype: torch.dtype = torch.float64
    ) -> Iterator[tuple[Basis, Rows]]:
        """Yield the features of all rows, block by block."""
        size = block_rows(X.device, self.features.n_features)
        with self.features.frozen():
            for block in blocks_of(len(X), size):
                yield self.features.basis(X[block].to(dtype)), rows[block].to(dtype)

    def predictions(
        self, X: Tensor, rows: Rows, q: WeightMoments
    ) -> Iterator[tuple[Marginals, Rows, Likelihood]]:
        """Yield q(f) and p(y | f) of all rows, block by block, in the dtype of X."""
        for basis, block in self.bases(X, rows, X.dtype):
            q_of_f = self.marginals(basis, q, q.products(basis.phi))
            yield q_of_f, block, likelihood_of(self, basis, block)

    def posterior(
        self, found: Solution, elbo: Tensor, n_rows: float, error: Tensor | None = None
    ) -> SparsePosterior:
        """Return the posterior of a fit with this solution; `error` is the bound's error."""
        return SparsePosterior(self, found, elbo, n_rows)

    def penalty(self) -> float | Tensor:
        """Return the features' penalty plus −log p of the parameters with point estimates."""
        of_shift = self.features.penalty()
        total = 0.0 if of_shift is None else self.beta * of_shift
        of_prior = self.neg_log_prior()
        return total if of_prior is None else total + of_prior.detach()

    def neg_log_prior(self) -> Tensor | None:
        """Return β times −log p of point estimates, (): of the rows' noise scale, or of others."""
        if self.scale is not None:
            return self.beta * self.scale.neg_log_prior()
        if self.hyper_prior is None:
            return None
        noise: Any = self.likelihood
        kernel: Any = self.features.kernel  # the default, a constant times what has ℓ
        of_prior = self.hyper_prior.neg_log(noise.log_noise, kernel.k2.log_length_scale)
        return min(self.beta, 1.0) * of_prior  # a large β must not make a weak prior a strong one

    def clamp_(self, log_noise_bounds: tuple[float, float]) -> None:
        """Bring hyper-parameters back within their bounds."""
        self.features.clamp_()
        if isinstance(self.likelihood, Gaussian):
            self.likelihood.log_noise.data.clamp_(*log_noise_bounds)

    # ---- copies ------------------------------------------------------------------------------

    def for_evidence(self) -> SparseModel:
        """Return the model with the loss of the evidence lower bound, or of FITC's evidence."""
        if self.is_bound:
            return self
        other = copy.copy(self)  # parameters are shared, nothing of this one changes
        other.loss, other.beta = ExpectedLogLikelihood(), 1.0
        return other

    def for_predictions(self) -> SparseModel:
        """Return a float64 copy that raises errors at once and has no hyper-parameter prior."""
        model = copy.deepcopy(self).double().eval()
        model.hyper_prior = None
        model.features.close()
        return model

    def for_training(self, like: Tensor | None = None) -> SparseModel:
        """Return a copy that continues from here, with a tensor's dtype and device; or a new start.

        A copy that continues keeps q(w), the noise and the kernel as they are now. A new start
        (without `like`) has the kernel and the noise as trained, before calibration scaled them.
        """
        model = copy.deepcopy(self)
        model = model if like is None else model.to(like)
        if like is None and model.trained_noise is not None:
            (model.likelihood, model.scale), model.trained_noise = model.trained_noise, None
        model.features.reopen(keep_variance=like is not None)
        return model.requires_grad_(True)


def likelihood_of(model: SparseModel, basis: Basis, rows: Rows) -> Likelihood:
    """Return p(y | f) of rows with these features."""
    likelihood = model.likelihood.of(rows)
    if model.scale is None:
        return likelihood
    return cast(ScaledByRow, likelihood).scaled(model.scale(basis.phi))


UNLIMITED = 1e-12  # least variance of f, or distance from its centre, that is limited


def share_within(limits: Tensor, q: Marginals) -> Tensor:
    """Return the largest r ≤ 1 with which c + r·(f − c) keeps limits (3, P), (S, N, 1)."""
    centre, most_std, highest = limits
    above = (highest - centre) / (q.mean - centre).clamp_min(UNLIMITED)
    r = torch.minimum(most_std / q.var.clamp_min(UNLIMITED).sqrt(), above)
    return r.clamp_max(1.0).amin(-1, keepdim=True)


def check_same_likelihood(posterior: Posterior, *parts: Any) -> None:
    """Raise a ValueError if parts of a posterior have another likelihood, as in edited files."""
    own = type(posterior.likelihood)
    others = {type(part.likelihood).__name__ for part in parts if type(part.likelihood) is not own}
    if others:
        raise ValueError(
            f"a {type(posterior).__name__} has the likelihood {own.__name__}, but a part of it "
            f"{min(others)}"
        )


class SparsePosterior(Posterior):
    """q(f) of a sparse model.

    Parameters
    ----------
    model : SparseModel
        The model in float64; its features are frozen here.
    solution : Solution
        q(w), and the sites that determine it.
    elbo : Tensor of shape ()
        The evidence lower bound, in nats.
    n_rows : float
        Sum of the weights of the training rows.
    """

    model: SparseModel
    weights: VariationalWeights
    limits: Tensor | None
    """Centre c, largest deviation and highest mean of f at any row, (3, P); None: no limits."""

    precision: Tensor
    elbo: Tensor

    def __init__(self, model: SparseModel, solution: Solution, elbo: Tensor, n_rows: float) -> None:
        super().__init__()
        self.model = model
        self.weights = solution.q.weights()
        self.likelihood = model.likelihood
        self.register_buffer("precision", solution.sites.precision)
        self.register_buffer("elbo", elbo)
        self._n_rows = n_rows
        self.register_buffer("limits", None)
        model.features.freeze()

    @property
    def sites(self) -> Sites:
        """G and c, from which `partial_fit` continues."""
        m = self.weights.mean  # (I + G)m = c
        return Sites(self.precision, m + torch.einsum("bij,jb->ib", self.precision, m))

    def check_parts(self) -> None:
        """Raise a ValueError if blocks do not make up the weights, or features are not frozen.

        Their sizes, not the weights, say how much memory predictions and training take, and a file
        from a stranger has as many points as it likes unless it has their covariance, too.
        """
        features = self.model.features
        sizes = features.width, sum(features.blocks), sum(self.weights.sizes)
        if sizes != (len(self.weights.mean),) * 3:
            raise ValueError(f"blocks of {sizes} features have {len(self.weights.mean)} weights")
        parts = (p for p in self.model.modules() if isinstance(p, ConditionedFeatures))
        if thawed := [p for p in parts if not p.n_frozen]:
            raise ValueError(f"the {type(thawed[0]).__name__} of a fitted model are not frozen")
        check_same_likelihood(self, self.model)

    def log_evidence(self) -> Tensor:
        """Return the evidence lower bound, summed over outputs: (1,) nats."""
        return self.elbo[None]

    def basis(self, X: Tensor) -> Basis:
        """Return the features of rows, such that f keeps its limits if it has some.

        f becomes c + r(x)·(f − c), where r ≤ 1 is the largest factor with which the deviation of f
        and the mean of f keep their limits. Most rows have r = 1.
        """
        basis = self.model.features.basis(X)
        if getattr(self, "limits", None) is None:  # absent in older files
            return basis
        limits = cast(Tensor, self.limits)
        r, centre = share_within(limits, self._marginals(basis))[0], limits[0]
        phi, value = r * basis.phi, self.model.mean.value.to(r)
        return Basis(phi, phi.square().sum(1), (1.0 - r) * (centre - value))

    def marginals(self, X: Tensor) -> Marginals:
        return self._marginals(self.basis(X))

    def _marginals(self, basis: Basis) -> Marginals:
        q = self.weights.marginals(basis.phi, basis.residual())
        offset = self.model.offset(basis)
        if offset.shape[-1] != q.mean.shape[-1]:  # in an edited file
            raise ValueError(
                f"weights of {q.mean.shape[-1]} outputs have means of {offset.shape[-1]}."
            )
        return Marginals(q.mean + offset, q.var)

    def told(self, X: Tensor, curvature: Tensor | None) -> Tensor | None:
        """Return diag P(I + G)⁻¹Pᵀ of all blocks together, (N, P), if sites say what rows tell."""
        if not self.model.is_bound:
            return None
        phi = self.basis(X).phi
        joint = optimal_moments(self.sites, (phi.shape[1],), (False,))
        return (joint.products(phi) * phi).sum(-1).mT

    def predictive(self, X: Tensor, rows: Rows) -> tuple[Marginals, Likelihood]:
        if self.model.scale is None:
            return super().predictive(X, rows)
        basis = self.basis(X)
        return self._marginals(basis), likelihood_of(self.model, basis, rows)

    def sample_y(self, X: Tensor, rows: Rows, n_samples: int, generator: torch.Generator) -> Tensor:
        f = self.sample(X, n_samples, generator)
        q, likelihood = self.predictive(X, rows)
        if isinstance(likelihood, ScaledByRow):
            return likelihood.sample_around(f, Marginals(q.mean[0], q.var[0]), generator)
        return likelihood.sample(f, generator)

    def covariance(self, X: Tensor) -> Tensor:
        phi = self.basis(X).phi
        explained = self.weights.covariance(phi)
        R = self.model.features.residual_covariance(X, phi)
        return explained if R is None else explained + R

    @torch.no_grad()
    def functions(self, n_samples: int, generator: torch.Generator) -> Functions:
        """Draw f as functions; finite features give φᵀw.

        Inducing points need a residual process besides. It is a draw g of the prior minus the part
        of g that the points explain, φᵀu, with u the coordinates of g at the points.
        """
        features, w = self.model.features, self.weights.sample(n_samples, generator)
        if not isinstance(features, ConditionedFeatures):
            return lambda X: self._of_weights(self.basis(X), w)
        if not (isinstance(features, InducingFeatures) and features.covariances.has_inputs):
            return super().functions(n_samples, generator)
        points = torch.cat(features.embedded_points()).double()
        P = self.weights.mean.shape[1]
        g = prior_functions(features.kernel, points.shape[1], n_samples, P, generator)
        w = w - features.coordinates_of(g(points), *features.kept())

        def values(X: Tensor) -> Tensor:
            return self._of_weights(features.basis(X), w) + g(features.embed(X)[0])

        return values

    def _of_weights(self, basis: Basis, w: Tensor) -> Tensor:
        """Return φᵀw plus the mean, (S, N, P), given w (S, D, P)."""
        return basis.phi @ w + self.model.offset(basis)

    def sample(self, X: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        """Draw f jointly; the residual process takes O(N²) memory and O(N³) time."""
        basis = self.basis(X)
        f = basis.phi @ self.weights.sample(n_samples, generator) + self.model.offset(basis)
        R = self.model.features.residual_covariance(X, basis.phi)
        if R is None:
            return f
        z = standard_normal(f.shape, f, generator)
        return f + cholesky(R, "covariance of the residual process", basis.prior.mean()) @ z

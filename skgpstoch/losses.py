"""Losses for training a sparse model. Training minimises Σᵢ loss(yᵢ, q(fᵢ)) + β KL[q(w) ‖ p(w)].

Wei, Sheth & Khardon, "Direct loss minimization for sparse Gaussian processes", AISTATS 2021. With
q(fᵢ) = N(μᵢ, vᵢ),

    log-loss:            −log E_q(fᵢ)[p(yᵢ|fᵢ)]                                                 (C1)
    square loss:         (yᵢ − E[yᵢ])²,  E[y] = μ for additive noise                            (C2)
    expected loss:       −E_q(fᵢ)[log p(yᵢ|fᵢ)], which with β = 1 is the evidence lower bound's

Training uses a loss's value and three of its derivatives: α = −∂/∂μ, δ = −∂/∂v and the curvature
κ ≈ ∂²/∂μ², from which Newton's steps for the mean are computed. Every expectation under N(μ, v)
satisfies ∂/∂v = ½ ∂²/∂μ². Therefore κ = −2δ for the expected loss and κ = α² − 2δ for the log-loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import ClassVar, NamedTuple, cast

import torch
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions, validate_parameter_constraints
from torch import Tensor

from .data.rows import Rows
from .likelihoods.base import Likelihood, differentiate, is_learned
from .likelihoods.real import AdditiveNoise, Gaussian
from .likelihoods.sampled import monte_carlo_gradients, product_gradients
from .maths.gaussian import LOG_2PI, Marginals

__all__ = ["ExpectedLogLikelihood", "LogLoss", "Loss", "SquareLoss", "make_loss"]

LEAST_ERROR = 1e-12  # smallest squared error by which a curvature is divided


class ExpectedScore(NamedTuple):
    """The score of each row, which is minus its loss, and the score's derivatives.

    Parameters
    ----------
    value : Tensor of shape (N,)
        Score of each row; differentiable with respect to the likelihood's own parameters.
    mean : Tensor of shape (N, P)
        α = ∂/∂μ.
    explained : Tensor of shape (N, P)
        δ = ∂/∂ diag(PSPᵀ).
    residual : Tensor of shape (N, P)
        ∂/∂ diag(K − PPᵀ); equal to δ unless the loss treats the two variances differently.
    curvature : Tensor of shape (N, P)
        κ ≈ −∂²/∂μ².
    """

    value: Tensor
    mean: Tensor
    explained: Tensor
    residual: Tensor
    curvature: Tensor

    def weighted(self, rows: Rows) -> ExpectedScore:
        """Multiply each row's score and derivatives by the row's weight."""
        return ExpectedScore(*map(rows.weighted, self))


class Loss(BaseEstimator):
    """Base class of the losses that estimators take as their parameter `loss`.

    A loss has parameters, as estimators do, but no fitted state. To write a loss of your own,
    define :meth:`expected_score`.
    """

    _parameter_constraints: ClassVar[dict[str, list]] = {}

    bounds_evidence: ClassVar[bool] = False
    """Whether training with this loss and β = 1 maximises the evidence or a lower bound on it."""

    def expected_score(
        self,
        y: Tensor,
        likelihood: Likelihood,
        q: Marginals,
        residual: Tensor,
        generator: torch.Generator | None = None,
    ) -> ExpectedScore:
        """Return minus the loss of each row, and its derivatives.

        Parameters
        ----------
        y : Tensor of shape (N, P)
            Targets.
        likelihood : Likelihood
            The likelihood of these rows, with their exposures if they have any.
        q : Marginals of shape (1, N, P)
            Means and variances of q(f).
        residual : Tensor of shape (N,)
            The part of each row's prior variance that the features leave unexplained.
        generator : torch.Generator or None, default=None
            Source of random draws during training. None: compute the exact value, without draws.

        Returns
        -------
        score : ExpectedScore
            Scores of the rows in nats, or in squared units of y for the square loss.
        """
        raise NotImplementedError(f"{type(self).__name__} must define expected_score")

    def of_samples(self, term: ExpectedScore, n_samples: int) -> ExpectedScore:
        """Return the score of rows whose q(f) is represented by S draws.

        By default a row's score is the mean over its draws.

        Parameters
        ----------
        term : ExpectedScore
            Scores of S·N rows: all N rows, S times over, each with 1/S of its weight.
        n_samples : int
            Number S of draws.
        """
        return term

    def covariance(self, likelihood: Likelihood) -> str:
        """Say how q's covariance is found: "gradient", "sites" if κ = −2δ, "prior" if δ = 0."""
        return "gradient"

    def is_conjugate(self, likelihood: Likelihood) -> bool:
        """Whether the loss is a quadratic function of f, the same whatever q is."""
        return False

    def site_noise(self, likelihood: Likelihood) -> Tensor | None:
        """Return 1/κ, shape (P,), if it is the same for every row; otherwise None."""
        return None

    def is_noisy(self) -> bool:
        """Whether the derivatives are estimated from random draws."""
        return False

    def conjugate(self, likelihood: Likelihood, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return κ and a constant, for a loss that is a quadratic function of f.

        Twice the loss is κ((y − μ)² + explained variance) plus the constant, which has shape
        (N, P) or (N, 1). κ has shape (P,) if it is the same for all rows, otherwise (N, P).
        """
        raise NotImplementedError(f"{type(self).__name__} has no closed form")

    def of_predictions(self, y: Tensor, likelihood: Likelihood, q: Marginals) -> Tensor:
        """Return the validation loss of held-out rows, (N,): by default −log p(y), in nats."""
        return -likelihood.log_predictive(y, q)

    def check(self, likelihood: Likelihood) -> None:
        """Raise a ValueError if a parameter is invalid or the loss cannot use this likelihood."""
        validate_parameter_constraints(
            self._parameter_constraints, self.get_params(deep=False), type(self).__name__
        )


class ExpectedLogLikelihood(Loss):
    """Negative expected log-likelihood −E_q[log p(y | f)], in nats per row.

    Training with it maximises the evidence lower bound (ELBO) if β = 1, and the β-ELBO otherwise.

    Examples
    --------
    >>> from skgpstoch import ExpectedLogLikelihood, SVGPRegressor
    >>> SVGPRegressor(loss=ExpectedLogLikelihood(), beta=0.5)
    SVGPRegressor(beta=0.5, loss=ExpectedLogLikelihood())
    """

    bounds_evidence = True

    def expected_score(
        self,
        y: Tensor,
        likelihood: Likelihood,
        q: Marginals,
        residual: Tensor,
        generator: torch.Generator | None = None,
    ) -> ExpectedScore:
        with torch.no_grad():
            value, mean, var = likelihood.expected_gradients(y, q)
        if is_learned(likelihood) or y.dtype != torch.float64:
            value = likelihood.expected_log_prob(y, q)
        return ExpectedScore(value, mean, var, var, -2.0 * var)

    def covariance(self, likelihood: Likelihood) -> str:
        return "sites"

    def is_conjugate(self, likelihood: Likelihood) -> bool:
        return isinstance(likelihood, Gaussian)

    def site_noise(self, likelihood: Likelihood) -> Tensor | None:
        return likelihood.noise_variance if isinstance(likelihood, Gaussian) else None

    def conjugate(self, likelihood: Likelihood, residual: Tensor) -> tuple[Tensor, Tensor]:
        noise = cast(Gaussian, likelihood).noise_variance
        constant = LOG_2PI + noise.log() + self.unexplained(residual[:, None] / noise)
        return noise.reciprocal(), constant

    def unexplained(self, ratio: Tensor) -> Tensor:
        """Return twice the loss due to the residual variance, given its ratio to σ²."""
        return ratio


class Log1pBound(ExpectedLogLikelihood):
    """−E_q[log p(y | f)] with the term r/σ² of the residual variance r replaced by log(1 + r/σ²).

    For a Gaussian likelihood and weights of at least 1 this is still a bound on the evidence, and a
    tighter one. It takes q(f | u) = N(Pw, R^½ V R^½) with R = K − PPᵀ and the best diagonal V.
    Since KL[q(f | u) ‖ p(f | u)] is ½ Σ (vᵢ − 1 − log vᵢ), the best is vᵢ = 1/(1 + rᵢ/σ²).

    References
    ----------
    .. [1] M. Titsias, "New bounds for sparse variational Gaussian processes", 2025.
    .. [2] T. Bui, M. Ashman, R. Turner, "Tighter sparse variational Gaussian processes", TMLR 2025.
    """

    def expected_score(
        self,
        y: Tensor,
        likelihood: Likelihood,
        q: Marginals,
        residual: Tensor,
        generator: torch.Generator | None = None,
    ) -> ExpectedScore:
        r = residual[:, None]
        term = super().expected_score(y, likelihood, Marginals(q.mean, q.var - r), residual)
        noise = cast(Gaussian, likelihood).noise_variance
        value = term.value - 0.5 * self.unexplained(r / noise).sum(1)
        return term._replace(value=value, residual=-0.5 / (noise.detach() + r))

    def unexplained(self, ratio: Tensor) -> Tensor:
        return ratio.log1p()

    def check(self, likelihood: Likelihood) -> None:
        if not isinstance(likelihood, Gaussian):
            raise ValueError(f"loss='log1p' needs likelihood='gaussian', got {likelihood!r}.")


class FullyIndependent(Loss):
    """−E_q[log N(y | Pw, σ² + r)] with residual variance r; at the best q, it is FITC's evidence.

    Snelson & Ghahramani, "Sparse Gaussian processes using pseudo-inputs", NeurIPS 2006: the
    covariance of y is PPᵀ + diag(K − PPᵀ) + σ²I, as if the residuals were independent.
    """

    bounds_evidence = True

    def expected_score(
        self,
        y: Tensor,
        likelihood: Likelihood,
        q: Marginals,
        residual: Tensor,
        generator: torch.Generator | None = None,
    ) -> ExpectedScore:
        r = residual[:, None]
        noise = cast(Gaussian, likelihood).noise_variance + r  # Λ, (N, P)
        error = y - q.mean[0]
        square = error.square() + q.var[0] - r
        value = -0.5 * (LOG_2PI + noise.log() + square / noise).sum(1)
        with torch.no_grad():
            kappa = noise.reciprocal()
            by_noise = 0.5 * kappa * (square * kappa - 1.0)
            return ExpectedScore(value, kappa * error, -0.5 * kappa, by_noise, kappa)

    def covariance(self, likelihood: Likelihood) -> str:
        return "sites"

    def is_conjugate(self, likelihood: Likelihood) -> bool:
        return True

    def conjugate(self, likelihood: Likelihood, residual: Tensor) -> tuple[Tensor, Tensor]:
        noise = cast(Gaussian, likelihood).noise_variance + residual[:, None]
        return noise.reciprocal(), LOG_2PI + noise.log()


class LogLoss(Loss):
    """Negative log predictive density −log E_q[p(y | f)] in nats per row, minimised directly.

    Parameters
    ----------
    gradient : {"exact", "biased", "smoothed", "product"}, default="exact"
        How to differentiate the loss. "exact": in closed form or by quadrature. It has no sampling
        noise and costs little compared with the linear algebra. The other three are the paper's
        estimators. "biased": differentiate log (1/S) Σ_s p(y | f_s) with draws f_s from q (bMC).
        "smoothed": the same with `jitter` added inside the logarithm (smooth-bMC). "product": an
        unbiased estimator from draws of q(f) p(y | f) (uPS).
    n_samples : int, default=10
        Number S of draws for each row and step.
    jitter : float, default=1e-4
        Number that "smoothed" adds inside the logarithm.
    proposal : {"envelope", "normal"}, default="envelope"
        Proposal distribution of the rejection sampler behind "product". "envelope": an upper bound
        fitted closely to q(f) p(y | f). "normal": as in the paper, normal distributions up to ten
        times as wide as q(f).

    References
    ----------
    .. [1] Y. Wei, R. Sheth, R. Khardon, "Direct loss minimization for sparse Gaussian processes",
       AISTATS 2021.

    Examples
    --------
    >>> from skgpstoch import LogLoss, SVGPRegressor
    >>> SVGPRegressor(loss=LogLoss(gradient="biased")).get_params()["loss__gradient"]
    'biased'
    """

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "gradient": [StrOptions({"exact", "biased", "smoothed", "product"})],
        "n_samples": [Interval(Integral, 1, None, closed="left")],
        "jitter": [Interval(Real, 0, None, closed="neither")],
        "proposal": [StrOptions({"envelope", "normal"})],
    }

    def __init__(
        self,
        gradient: str = "exact",
        n_samples: int = 10,
        jitter: float = 1e-4,
        proposal: str = "envelope",
    ) -> None:
        self.gradient = gradient
        self.n_samples = n_samples
        self.jitter = jitter
        self.proposal = proposal

    def expected_score(
        self,
        y: Tensor,
        likelihood: Likelihood,
        q: Marginals,
        residual: Tensor,
        generator: torch.Generator | None = None,
    ) -> ExpectedScore:
        if generator is None or self.gradient == "exact":
            value, mean, var = likelihood.predictive_gradients(y, q)
        elif self.gradient == "product":
            value, mean, var = product_gradients(
                y, likelihood, q, self.n_samples, generator, self.proposal
            )
        else:
            jitter = self.jitter if self.gradient == "smoothed" else 0.0
            value, mean, var = monte_carlo_gradients(
                y, likelihood, q, self.n_samples, jitter, generator
            )
        return ExpectedScore(value, mean, var, var, (mean.square() - 2.0 * var).clamp_min(0.0))

    def of_samples(self, term: ExpectedScore, n_samples: int) -> ExpectedScore:
        """Return the logarithm of each row's mean density over its draws (F7).

        Each draw's derivative is multiplied by its share π, the softmax of the row's S log
        densities. The mean of the logarithms would be smaller than the log density of predictions.
        """
        if n_samples == 1:
            return term
        logs = term.value.unflatten(0, (n_samples, -1))  # (S, N)
        value = logs.logsumexp(0) - math.log(n_samples)
        pi = n_samples * logs.detach().softmax(0).flatten()[:, None]
        return ExpectedScore(value.repeat(n_samples), *(pi * part for part in term[1:]))

    def is_noisy(self) -> bool:
        return self.gradient != "exact"

    def check(self, likelihood: Likelihood) -> None:
        super().check(likelihood)
        if self.is_noisy() and not likelihood.differentiable:
            raise ValueError(
                f"gradient={self.gradient!r} needs a likelihood that is differentiable by "
                f"f, which {likelihood!r} is not. Use gradient='exact'."
            )
        draws_normal = self.gradient == "product" and self.proposal == "normal"
        if draws_normal and (likelihood.n_latents(1) > 1 or not likelihood.log_concave):
            raise ValueError(
                "proposal='normal' needs a log-concave likelihood of one function, which "
                f"{likelihood!r} is not. Use proposal='envelope'."
            )


class SquareLoss(Loss):
    """Square loss (y − E[y])², in squared units of y; for classes, the Brier score.

    The Brier score is Σ_c (1(c = y) − P(c))². With two classes and the "bernoulli" likelihood the
    loss is (y − P(1))², which is half of that sum.

    For additive noise the loss depends only on the mean of q. The best covariance is then S = I,
    and the mean m has a closed form: that of a Gaussian likelihood with noise variance β/2. The
    loss says nothing about variances, so predictions take them from this conjugate model. Scaling
    the kernel and the noise together does not change the model's mean; the scale is chosen so that
    the leave-one-out errors have the variances predicted for them. On small data, where kernel and
    inducing points fit the rows too well, these variances are too small.

    References
    ----------
    .. [1] Y. Wei, R. Sheth, R. Khardon, "Direct loss minimization for sparse Gaussian processes",
       AISTATS 2021.

    Examples
    --------
    >>> from skgpstoch import SquareLoss, SVGPRegressor
    >>> SVGPRegressor(loss=SquareLoss())
    SVGPRegressor(loss=SquareLoss())
    """

    def expected_score(
        self,
        y: Tensor,
        likelihood: Likelihood,
        q: Marginals,
        residual: Tensor,
        generator: torch.Generator | None = None,
    ) -> ExpectedScore:
        if isinstance(likelihood, AdditiveNoise):
            error = y - q.mean[0]
            none = torch.zeros_like(error)
            return ExpectedScore(
                -error.square().sum(1), 2.0 * error, none, none, torch.full_like(error, 2.0)
            )
        error, mean, var = differentiate(likelihood, likelihood.squared_error, y, q)
        # The Gauss-Newton curvature 2(∂E[y]/∂μ)², from ∂/∂μ (y − E[y])² = −2(y − E[y]) ∂E[y]/∂μ.
        # For several classes kappa is that at most.
        kappa = 0.5 * mean.square() / (error.detach()[:, None] + LEAST_ERROR)
        return ExpectedScore(-error, -mean, -var, -var, kappa)

    def covariance(self, likelihood: Likelihood) -> str:
        return "prior" if isinstance(likelihood, AdditiveNoise) else "gradient"

    def is_conjugate(self, likelihood: Likelihood) -> bool:
        return isinstance(likelihood, AdditiveNoise)

    def site_noise(self, likelihood: Likelihood) -> Tensor | None:
        if not isinstance(likelihood, AdditiveNoise):
            return None
        return torch.full_like(likelihood.noise_variance, 0.5)

    def conjugate(self, likelihood: Likelihood, residual: Tensor) -> tuple[Tensor, Tensor]:
        noise = cast(AdditiveNoise, likelihood).noise_variance
        return torch.full_like(noise, 2.0), residual.new_zeros(len(residual), 1)

    def of_predictions(self, y: Tensor, likelihood: Likelihood, q: Marginals) -> Tensor:
        """Return the squared errors, (N,)."""
        return likelihood.squared_error(y, q)


_NAMES: dict[str, Callable[[], Loss]] = {
    "elbo": ExpectedLogLikelihood,
    "log1p": Log1pBound,
    "log": LogLoss,
    "square": SquareLoss,
}


def make_loss(loss: str | Loss) -> Loss:
    """Make a loss from its name, or return the one given.

    Parameters
    ----------
    loss : {"elbo", "log1p", "log", "square"} or Loss
        :class:`ExpectedLogLikelihood`, a tighter bound for Gaussian noise, :class:`LogLoss` or
        :class:`SquareLoss`; or an instance.

    Returns
    -------
    loss : Loss
        The loss; it has no state.

    Raises
    ------
    ValueError
        If there is no loss of that name.
    TypeError
        If it is neither a name nor an instance.

    Examples
    --------
    >>> from skgpstoch.losses import make_loss
    >>> make_loss("log")
    LogLoss()
    """
    if isinstance(loss, Loss):
        return loss
    wanted = f"loss must be a Loss or one of {sorted(_NAMES)}, got {loss!r}."
    if not isinstance(loss, str):
        raise TypeError(wanted)
    if loss not in _NAMES:
        raise ValueError(wanted)
    return _NAMES[loss]()

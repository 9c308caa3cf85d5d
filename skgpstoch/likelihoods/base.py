"""The base class of likelihoods p(y | f).

A subclass must define :meth:`Likelihood.log_prob` and :meth:`Likelihood.moments`. Expectations
under q(f) are computed by Gauss-Hermite quadrature, in log space, unless the subclass overrides
them with a closed form.

Shapes: N rows, P outputs, S mixture components of q.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from ..data.rows import Data, Rows
from ..maths.gaussian import Marginals, log_density, quadrature_nodes, standard_normal
from ..maths.modules import Module
from .rejection import Draws, Envelope, accept_reject

Gradients = tuple[Tensor, Tensor, Tensor]
"""A function of q at each row, (N,), and its derivatives by q's mean and variance, (N, P)."""

REACH = 12.0  # standard deviations of q from the mode, beyond which q·p is negligible


class Likelihood(Module):
    """Base class of likelihoods p(y | f), independent over the N rows and over the P outputs.

    Pass an instance, or its name, as the parameter `likelihood` of an estimator. To write one of
    your own, define :meth:`log_prob` and :meth:`moments`.
    """

    log_concave: bool = True
    """Whether log p(y | f) is concave in f; its expectation then never grows with q's variance."""

    has_bound: bool = True
    """Whether the evidence has a lower bound: False if predictions are not E_q[p(y | f)]."""

    differentiable: bool = True
    """Whether p(y | f) has useful derivatives by f, which Monte-Carlo gradients need."""

    for_classes_only: bool = False
    """Whether y holds class codes."""

    most_prior_variance: float = 1e5
    """Upper bound on the variance that the default kernel learns."""

    is_discrete: bool = False
    """Whether y are counts, which have probabilities instead of densities."""

    tail_scale: Any = 0.0
    """The s of tails exp(−|y|/s), in units of y; 0 for lighter tails, infinite for power laws."""

    learns_dispersion: ClassVar[bool] = False
    """Whether it learns how much more counts vary than Poisson counts; it then has `dispersed`."""

    links: ClassVar[tuple[str, ...]] = ()
    """Names of the functions that `link` may be, if there is a choice."""

    row_attributes: ClassVar[tuple[str, ...]] = ()
    """Names of attributes that hold a value per row: None or tensors of shape (…, N, ·)."""

    def n_latents(self, n_outputs: int) -> int:
        """Return the number of latent functions for P outputs."""
        return n_outputs

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Return log p(y | f) in nats, elementwise; y has shape (N, P), f shape (..., N, P)."""
        raise NotImplementedError(f"{type(self).__name__} must define log_prob")

    def moments(self, q: Marginals) -> Marginals:
        """Return the mean and variance of y if f ~ q, as Marginals of shape (S, N, P)."""
        raise NotImplementedError(f"{type(self).__name__} must define moments")

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draw one y for each f; the draws have the shape of f."""
        raise NotImplementedError(f"{type(self).__name__} must define sample")

    def quantile(self, q: Marginals, probability: float) -> Tensor:
        """Return the least y with P(Y ≤ y) ≥ probability under the mixture over f ~ q, (N, P)."""
        raise NotImplementedError(f"{type(self).__name__} must define quantile")

    def around(self, q: Marginals) -> Self:
        """Return the likelihood for many calls with this q, which then cost less."""
        return self

    def cdf(self, y: Tensor, q: Marginals) -> Tensor:
        """Return P(Y ≤ y) for each component of q, (S, N, P)."""
        raise NotImplementedError(f"{type(self).__name__} must define cdf")

    def sf(self, y: Tensor, q: Marginals) -> Tensor:
        """Return P(Y > y), (S, N, P); small values are accurate if the tails are symmetric."""
        return 1.0 - self.cdf(y, q)

    def crps(self, y: Tensor, q: Marginals) -> Tensor | None:
        """Return the CRPS ∫ (P(Y ≤ t) − 1[t ≥ y])² dt, (N, P); None if it has no closed form."""
        return None

    def sample_predictive(self, q: Marginals, n_samples: int, generator: torch.Generator) -> Tensor:
        """Draw y with f ~ q, independently for each row: (n_samples, N, P)."""
        f, _, which = component_draws(q, n_samples, generator)
        return self.of_components(which).sample(f, generator)

    def of_components(self, which: Tensor) -> Self:
        """Return the likelihood of draws that come from these components of q, (n_samples, N)."""
        return self

    def expected_log_prob(self, y: Tensor, q: Marginals) -> Tensor:
        """Return E_q[log p(y | f)] for each row, averaged over mixture components: (N,) nats."""
        f, log_weights = quadrature_nodes(q)
        return (log_weights.exp() * self.log_prob(y, f)).sum(0).mean(0).sum(-1)

    def expected_gradients(self, y: Tensor, q: Marginals) -> Gradients:
        """Return E_q[log p(y | f)] of each row, and its derivatives by q's mean and variance.

        The results are detached from the autograd graph. Differentiation is in float64 because the
        derivative by a small variance is a difference of nearly equal numbers.

        Parameters
        ----------
        y : Tensor of shape (N, P)
            Targets.
        q : Marginals of shape (1, N, P)
            One mixture component.

        Returns
        -------
        value : Tensor of shape (N,)
            Expected log-likelihoods, in nats.
        d_mean, d_var : Tensors of shape (N, P)
            Derivatives; d_var ≤ 0 for a log-concave likelihood.
        """
        value, d_mean, d_var = differentiate(self, self.expected_log_prob, y, q)
        if self.log_concave:
            d_var = d_var.clamp_max(0.0)  # rounding
        return value.detach(), d_mean, d_var

    def log_components(self, y: Tensor, q: Marginals) -> Tensor:
        """Return log E_q[p(y | f)] of each component of q and each output: (S, N, P) nats."""
        f, log_weights = quadrature_nodes(q)
        return torch.logsumexp(log_weights + self.log_prob(y, f), 0)

    def log_predictive(self, y: Tensor, q: Marginals) -> Tensor:
        """Return log E_q[p(y | f)] for each row, over all components and outputs: (N,) nats."""
        return mixture_log_mean(self.log_components(y, q).sum(-1))

    def predictive_gradients(self, y: Tensor, q: Marginals) -> Gradients:
        """Return log E_q[p(y | f)] of each row, and its derivatives by q's mean and variance.

        Parameters and shapes are as for :meth:`expected_gradients`. The value is differentiable
        with respect to the likelihood's own parameters; the derivatives are detached. d_var may
        have either sign.
        """
        return differentiate(self, self.log_predictive, y, q)

    def squared_error(self, y: Tensor, q: Marginals) -> Tensor:
        """Return (y − E_q[E[y | f]])² of each row, summed over outputs: (N,)."""
        return (y - self.moments(q).mixture_moments()[0]).square().sum(-1)

    def product_samples(
        self, y: Tensor, q: Marginals, n_samples: int, generator: torch.Generator
    ) -> Draws:
        """Draw f exactly from the normalised q(f) p(y | f), `n_samples` times for each row.

        y and q are as for :meth:`expected_gradients`, in float64.

        Raises
        ------
        ValueError
            If the likelihood is not log-concave.
        """
        envelope = self.product_envelope(y, q)
        mean, var = (a[0] for a in q.resolved())

        def propose(rows: Tensor) -> tuple[Tensor, Tensor]:
            f, log_height = envelope.draw(rows, generator)
            log_prior = log_density(f, mean[rows], var[rows])
            return f, self.at_rows(rows).log_prob(y[rows], f) + log_prior - log_height

        return accept_reject(propose, n_samples, mean, generator)

    def product_envelope(self, y: Tensor, q: Marginals) -> Envelope:
        """Return an upper bound of q(f) p(y | f), from which draws can be made."""
        if not self.log_concave:
            raise ValueError(
                f"gradient='product' needs a log-concave likelihood, which {self!r} is not. "
                "Use gradient='exact'."
            )
        mean, var = (a[0] for a in q.resolved())
        interval = self.product_interval(y, q)
        return Envelope(lambda f: self.log_prob(y, f) + log_density(f, mean, var), *interval)

    def product_interval(self, y: Tensor, q: Marginals) -> tuple[Tensor, Tensor]:
        """Return both ends, (N, P) each, of the interval outside which q(f) p(y | f) is negligible.

        Because log p is concave, the mode of q·p is between μ and μ + v·(slope of log p at μ).
        """
        with torch.enable_grad():
            mean, var = (a[0] for a in q.resolved())
            f = mean.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.log_prob(y, f).sum(), f)
        shift, reach = var * slope, REACH * var.sqrt()
        low = mean + shift.clamp_max(0.0) - reach
        return low, mean + shift.clamp_min(0.0) + reach

    def at_rows(self, rows: Any) -> Likelihood:
        """Return the likelihood of the selected rows."""
        known = self._known_of_rows()
        return self._knowing(**{k: a[..., rows, :] for k, a in known.items()}) if known else self

    def joined(self, others: Sequence[Any]) -> Likelihood:
        """Return the likelihood of all rows from this block's and the following blocks'."""
        known = [other._known_of_rows() for other in others]
        return self._knowing(**{k: torch.cat([a[k] for a in known], -2) for k in known[0]})

    def _known_of_rows(self) -> dict[str, Tensor]:
        """Return the attributes that hold a value for each row, (…, N, ·)."""
        found = {name: getattr(self, name) for name in self.row_attributes}
        return {name: a for name, a in found.items() if isinstance(a, Tensor)}

    def given(self, exposure: Tensor | None = None, noise: Tensor | None = None) -> Likelihood:
        """Return the likelihood of rows with exposures, or with known measurement errors.

        The returned likelihood shares its parameters with this one.

        Parameters
        ----------
        exposure : Tensor of shape (N, 1) or None, default=None
            Factors of the rates of counts.
        noise : Tensor of shape (N, P) or None, default=None
            Variances of known measurement errors, which add to the learned noise.

        Raises
        ------
        ValueError
            If this kind of likelihood has no exposures, or no known errors.
        """
        if exposure is not None:
            raise ValueError(f"exposure must be None with {self!r}, because only counts have one.")
        if noise is not None:
            raise ValueError(
                f"y_std must be None with {type(self).__name__}, because known errors can only be "
                "added to Gaussian noise. If y is real, set likelihood='gaussian'."
            )
        return self

    def _knowing(self, **attributes: Tensor | None) -> Self:
        """Return a copy with these per-row attributes, which shares its parameters."""
        other = copy.copy(self)
        vars(other).update(attributes)
        return other

    def of(self, rows: Rows) -> Likelihood:
        """Return the likelihood of rows, given their exposures and known errors.

        The returned likelihood shares its parameters with this one.
        """
        if rows.exposure is None and rows.noise is None:
            return self
        return self.given(rows.exposure, rows.noise)

    def for_outputs(self, n_outputs: int) -> Likelihood:
        """Return a deep copy whose parameters have shape (n_outputs,).

        Raises
        ------
        ValueError
            If a parameter is neither one number nor one number per output.
        """
        other = copy.deepcopy(self)
        for name, parameter in other.named_parameters(recurse=False):
            if parameter.ndim > 1 or parameter.numel() not in (1, n_outputs):
                raise ValueError(
                    f"{name} of {self!r} must be one number or one for each of the "
                    f"{n_outputs} outputs of y, got shape {tuple(parameter.shape)}."
                )
            parameter.data = parameter.data.expand(n_outputs).clone()
        return other

    def initial_mean(self, rows: Rows) -> Tensor:
        """Return the constant latent means, (n_latents,), that fit the targets best as a start."""
        return rows.mean(rows.y)

    def initialise(self, rows: Rows) -> None:
        """Set starting values of the parameters, in place, from the targets (default: nothing)."""

    def check_targets(self, y: np.ndarray) -> None:
        """Raise a ValueError if targets y (n, P) are impossible; by default accept all."""


def check_rows(likelihood: Likelihood, data: Data) -> None:
    """Raise a ValueError if targets, exposures or known errors of rows are impossible."""
    likelihood.check_targets(data.y)
    if data.exposure is None and data.y_std is None:
        return
    one = torch.ones(1, 1, dtype=torch.float64, device="cpu")
    exposure, noise = (None if c is None else one for c in (data.exposure, data.y_std))
    likelihood.given(exposure, noise)


def differentiate(
    likelihood: Likelihood, function: Callable[[Tensor, Marginals], Tensor], y: Tensor, q: Marginals
) -> Gradients:
    """Return a function of (y, q), (N,), and its derivatives by q, from autograd in float64.

    If the likelihood's parameters are learned, the value is differentiable with respect to them.
    """
    learned = is_learned(likelihood)
    with torch.enable_grad():
        mean, var = (a.detach().double().requires_grad_() for a in q)
        value = function(y.double(), Marginals(mean, var))
        gradients = torch.autograd.grad(
            value.sum(), (mean, var), retain_graph=learned, materialize_grads=True
        )
    d_mean, d_var = (g[0] for g in gradients)
    return in_type_of(q, value if learned else value.detach(), d_mean, d_var)


def in_type_of(q: Marginals, value: Tensor, d_mean: Tensor, d_var: Tensor) -> Gradients:
    """Convert results to the dtype of q, which may differ from the parameters' dtype."""
    dtype = q.mean.dtype
    return value.to(dtype), d_mean.to(dtype), d_var.to(dtype)


def is_learned(likelihood: Likelihood) -> bool:
    """Whether gradients are needed for the parameters, or for the noise scales of rows."""
    ratio = getattr(likelihood, "ratio", None)
    learned = any(p.requires_grad for p in likelihood.parameters())
    return torch.is_grad_enabled() and (learned or (ratio is not None and ratio.requires_grad))


def largest(dtype: torch.dtype) -> float:
    """Return the number that replaces infinite moments; the sum of two is still finite."""
    return torch.finfo(dtype).max / math.e


def mixture_log_mean(log_p: Tensor) -> Tensor:
    """Return the log of the mean over the leading axis: (S, N) → (N,)."""
    return torch.logsumexp(log_p, 0) - math.log(len(log_p))


def component_draws(
    q: Marginals, n_samples: int, generator: torch.Generator
) -> tuple[Tensor, Marginals, Tensor]:
    """Draw f; return draws, their components' q(f), (n_samples, N, ·), and component numbers."""
    S, N, _ = q.mean.shape
    which = torch.randint(S, (n_samples, N), generator=generator, device=q.mean.device)
    mean, var = (a[which, torch.arange(N, device=a.device)] for a in q)
    f = mean + var.sqrt() * standard_normal(mean.shape, mean, generator)
    return f, Marginals(mean, var), which


def check_link(link: Any, links: tuple[str, ...]) -> str:
    """Return the link, or raise a ValueError that lists the available ones."""
    if link not in links:
        raise ValueError(f"link must be one of {links}, got {link!r}.")
    return link


def check_probability(probability: float) -> float:
    """Return the probability, or raise a ValueError if it is not inside (0, 1)."""
    if not 0.0 < probability < 1.0:
        raise ValueError(f"probability must be inside (0, 1), got {probability!r}.")
    return float(probability)


NAMED: dict[str, Callable[[], Likelihood]] = {}
"""Likelihoods by name; :func:`named` adds to it."""

FOR_CLASSES = ("bernoulli", "softmax", "robustmax")


def named(name: str, **arguments: Any) -> Callable[[Any], Any]:
    """Give a likelihood's class, with these arguments of its constructor, a name for users."""

    def register(cls: Any) -> Any:
        NAMED[name] = functools.partial(cls, **arguments)
        return cls

    return register


def make_likelihood(likelihood: str | Likelihood, among: Sequence[str] | None = None) -> Likelihood:
    """Make a likelihood from its name, or a deep copy of the one given.

    Parameters
    ----------
    likelihood : str or Likelihood
        "gaussian", "student_t", "shared_student_t", "laplace", "poisson" and
        "negative_binomial" (rate exp(f)),
        "bernoulli" (probability 1/(1 + exp(−f))), "softmax" or "robustmax"; or an instance.
    among : sequence of str or None, default=None
        Allowed names; None: all of these.

    Returns
    -------
    likelihood : Likelihood
        A new likelihood.

    Raises
    ------
    ValueError
        If there is no likelihood of that name.
    TypeError
        If it is neither a name nor an instance.

    Examples
    --------
    >>> from skgpstoch.likelihoods import make_likelihood
    >>> make_likelihood("poisson")
    Poisson(link='exp')
    """
    if isinstance(likelihood, Likelihood):
        return copy.deepcopy(likelihood)
    among = sorted(NAMED) if among is None else list(among)
    wanted = f"likelihood must be a Likelihood or one of {among}, got {likelihood!r}."
    if not isinstance(likelihood, str):
        raise TypeError(wanted)
    if likelihood not in among:
        meant = [f" Did you mean {name!r}?" for name in get_close_matches(likelihood, among, 1)]
        raise ValueError(wanted + "".join(meant))
    return NAMED[likelihood]()


def regression_likelihood(likelihood: str | Likelihood) -> Likelihood:
    """Return the likelihood of a regressor; "auto" is "gaussian".

    It raises the errors of :func:`make_likelihood`, and a ValueError if the likelihood is only for
    classes.
    """
    among = sorted(NAMED.keys() - set(FOR_CLASSES))
    found = make_likelihood("gaussian" if likelihood == "auto" else likelihood, among)
    if found.for_classes_only:
        raise ValueError(
            f"likelihood={likelihood!r} is for classes. Use a classifier instead of a regressor."
        )
    return found


def class_likelihood(likelihood: str | Likelihood, n_classes: int) -> Likelihood:
    """Return the likelihood of a classifier; "auto" is "bernoulli" or "softmax".

    It raises the errors of :func:`make_likelihood`, and a ValueError if the likelihood is not for
    this number of classes.
    """
    name = likelihood
    if likelihood == "auto":
        name = "bernoulli" if n_classes == 2 else "softmax"
    found: Any = make_likelihood(name, FOR_CLASSES)
    if not found.for_classes_only:
        raise ValueError(
            "likelihood of a classifier must be 'bernoulli', 'softmax' or 'robustmax', got "
            f"{likelihood!r}."
        )
    return found.for_classes(n_classes)

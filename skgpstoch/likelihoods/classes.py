"""Likelihoods for classes; import them from :mod:`skgpstoch.likelihoods`."""

from __future__ import annotations

import functools
import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ..data.rows import Rows
from ..maths.gaussian import Marginals, log_root, quadrature_nodes, quasi_random_nodes
from .base import Gradients, check_link, differentiate, mixture_log_mean, named
from .probabilities import PREDICTIVE_POINTS, ClassLikelihood, in_blocks
from .rejection import Draws, accept_reject

TRAINING_POINTS = 128
"""Quasi-random points for softmax's expected log-probabilities and gradients."""

MODE_STEPS = 14
"""Bisection steps towards softmax's mode of q(f) p(y | f), which is needed only roughly."""

TRAINING_NODES = 32
"""Quadrature nodes for robustmax's expected log-probabilities and gradients."""

PREDICTIVE_NODES = 64
"""Quadrature nodes for robustmax's probabilities."""


@named("robustmax", link="robustmax")
@named("softmax")
class Categorical(ClassLikelihood):
    """Likelihood for C classes with one latent function for each class.

    The targets y hold the codes 0, …, C−1 as floats, in shape (N, 1).

    Parameters
    ----------
    n_classes : int, default=None
        Number C of classes; estimators set it, by :meth:`for_classes`.
    link : {"softmax", "robustmax"}, default="softmax"
        "softmax": p(y | f) = exp(f_y)/Σ exp(f_c). Its expectations are averages over a fixed
        quasi-random sequence, the same for every row. "robustmax": p(y | f) is 1 − ε if f_y is the
        greatest of all f_c, and ε/(C − 1) otherwise. Its expectations are one-dimensional
        quadratures.
    epsilon : float, default=0.001
        The ε of "robustmax", the probability that the label is wrong.

    References
    ----------
    D. Hernández-Lobato, J. M. Hernández-Lobato and P. Dupont, "Robust Multi-Class Gaussian Process
    Classification", NeurIPS 2011: robustmax.

    Examples
    --------
    >>> from skgpstoch.likelihoods import Categorical
    >>> Categorical(3)
    Categorical(n_classes=3, link='softmax')
    """

    links: ClassVar[tuple[str, ...]] = ("softmax", "robustmax")

    def __init__(
        self, n_classes: int | None = None, link: str = "softmax", epsilon: float = 1e-3
    ) -> None:
        super().__init__()
        if not 0.0 < epsilon < 1.0:
            raise ValueError(f"epsilon must be inside (0, 1), got {epsilon!r}.")
        if n_classes is not None and n_classes < 2:
            raise ValueError(f"n_classes must be at least 2, or None, got {n_classes!r}.")
        self.n_classes = n_classes
        self.link = check_link(link, self.links)
        self.epsilon = epsilon
        self.log_concave = self.differentiable = link == "softmax"

    def extra_repr(self) -> str:
        epsilon = f", epsilon={self.epsilon:g}" if self.link == "robustmax" else ""
        return f"n_classes={self.n_classes}, link={self.link!r}{epsilon}"

    def for_classes(self, n_classes: int) -> Categorical:
        return Categorical(n_classes, self.link, self.epsilon)

    def n_latents(self, n_outputs: int) -> int:
        """Return the number C of classes."""
        if self.n_classes is None:
            raise ValueError(f"{self!r} does not know n_classes yet. Call for_classes first.")
        return self.n_classes

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        """Return log p(y | f) in nats: y (N, 1), f (..., N, C) → (..., N, 1)."""
        if self.link == "softmax":
            return _of_class(y, torch.log_softmax(f, -1))
        return self._log_share((f.argmax(-1, keepdim=True) == y).to(f.dtype), f.shape[-1])

    def _log_share(self, win: Tensor, n_classes: int) -> Tensor:
        """Return log p(y) of robustmax; ``win`` is the probability that f_y is the greatest."""
        other = self.epsilon / (n_classes - 1)
        return torch.log(other + (1.0 - self.epsilon - other) * win)

    def log_means(self, q: Marginals) -> Tensor:
        """Return log E_q[p(c | f)] of every class, (S, N, C)."""
        n_classes = q.mean.shape[-1]
        if self.link == "robustmax":
            function = functools.partial(_log_win, n_nodes=PREDICTIVE_NODES)
            log_win = in_blocks(function, q, PREDICTIVE_NODES * n_classes**2)
            return self._log_share(log_win.softmax(-1), n_classes)
        return in_blocks(_log_mean_softmax, q, PREDICTIVE_POINTS * n_classes)

    def moments(self, q: Marginals) -> Marginals:
        """Return p = P(y = c) of every class, and the variance p(1 − p), each (S, N, C)."""
        p = self.log_means(q).exp()
        return Marginals(p, p * (1.0 - p))

    def log_class_probs(self, f: Tensor) -> Tensor:
        if self.link == "softmax":
            return torch.log_softmax(f, -1)
        return super().log_class_probs(f)

    def class_probabilities(self, q: Marginals) -> Marginals:
        """Return the mean and variance of p(c | f) of every class, each (S, N, C).

        Softmax uses the quasi-random points of :meth:`moments`. With robustmax p(c | f) has two
        values, the greater one with probability w = P(f_c is the greatest), which is a quadrature.
        """
        if self.link == "softmax":
            return super().class_probabilities(q)
        n_classes = q.mean.shape[-1]
        function = functools.partial(_log_win, n_nodes=PREDICTIVE_NODES)
        win = in_blocks(function, q, PREDICTIVE_NODES * n_classes**2).softmax(-1)
        itself = torch.eye(n_classes, dtype=torch.bool, device=win.device)
        lose = win[..., None, :].masked_fill(itself, 0.0).sum(-1)  # 1 − w, with all its digits
        contrast = 1.0 - self.epsilon - self.epsilon / (n_classes - 1)
        return Marginals(self._log_share(win, n_classes).exp(), contrast**2 * (win * lose))

    def sample(self, f: Tensor, generator: torch.Generator) -> Tensor:
        """Draw codes, (..., N, 1); for softmax, the class whose f plus Gumbel noise is greatest."""
        if self.link == "robustmax":
            win = F.one_hot(f.argmax(-1), f.shape[-1]).to(f.dtype)
            f = self._log_share(win, f.shape[-1])
        e = torch.empty_like(f).exponential_(generator=generator)
        return (f - e.log()).argmax(-1, keepdim=True).to(f.dtype)

    def expected_log_prob(self, y: Tensor, q: Marginals) -> Tensor:
        """Return E_q[log p(y | f)] for each row, (N,) nats.

        Softmax: μ_y − E_q[log Σ exp f_c]. Robustmax: log(1 − ε)·w + log(ε/(C − 1))·(1 − w), where
        w = P(f_y is the greatest).
        """
        n_classes = q.mean.shape[-1]
        if self.link == "softmax":
            expected = in_blocks(_softmax_means, q, TRAINING_POINTS * n_classes)[..., :1]
            return (_of_class(y, q.mean) - expected).mean(0)[:, 0]
        win = _log_win(q, TRAINING_NODES, y).exp()  # (S, N, 1)
        lose, gain = (self._log_share(torch.full_like(win, w), n_classes) for w in (0.0, 1.0))
        return (lose + (gain - lose) * win).mean(0)[:, 0]

    def expected_gradients(self, y: Tensor, q: Marginals) -> Gradients:
        """Return E_q[log p(y | f)] and its derivatives by q's mean and variance.

        For softmax, Bonnet's and Price's theorems give 1(c = y) − E[p_c] and −½E[p_c(1 − p_c)].
        Averages of these over the points are nearer to the integrals than the derivatives of
        :meth:`expected_log_prob` at its points are, and the second is never positive. Measured for
        3 to 10 classes: averages are within .015 of the integrals for v = .3 to 3, and within
        .035 for v = 20; those of the second within .006.
        """
        if self.link == "robustmax":
            return super().expected_gradients(y, q)
        n_classes = q.mean.shape[-1]
        with torch.no_grad():
            means = in_blocks(_softmax_means, q, TRAINING_POINTS * n_classes)[0]
            log_sum, p, spread = means.split([1, n_classes, n_classes], -1)
            value = _of_class(y, q.mean[0]) - log_sum
            target = F.one_hot(y[:, 0].long(), n_classes).to(p.dtype)
        return value[:, 0], target - p, -0.5 * spread

    def log_predictive(self, y: Tensor, q: Marginals) -> Tensor:
        """Return log E_q[p(y | f)], the logarithm of the mean that :meth:`moments` returns."""
        return _of_class(y, self.log_predictives(q, q.mean.shape[-1]))[:, 0]

    def log_predictives(self, q: Marginals, n_classes: int) -> Tensor:
        return mixture_log_mean(self.log_means(q))

    def predictive_gradients(self, y: Tensor, q: Marginals) -> Gradients:
        """Return log E_q[p(y | f)] and its derivatives, at the points and nodes of training.

        For softmax the derivatives are E[e] and ½E[e² − p_c(1 − p_c)] under q(f) p(y | f), where
        e = 1(c = y) − p_c.
        """
        n_classes = q.mean.shape[-1]
        if self.link == "robustmax":

            def log_share(y: Tensor, q: Marginals) -> Tensor:
                return self._log_share(_log_win(q, TRAINING_NODES, y).exp(), n_classes)[0, :, 0]

            return differentiate(self, log_share, y, q)
        with torch.no_grad():
            means = in_blocks(_softmax_product_means, q, TRAINING_POINTS * n_classes, y)[0]
            value, first, second = means.split([1, n_classes, n_classes], -1)
        return value[:, 0], first, 0.5 * second

    def product_samples(
        self, y: Tensor, q: Marginals, n_samples: int, generator: torch.Generator
    ) -> Draws:
        """Draw f from the normalised q(f) p(y | f), by rejection.

        Proposals are N(μ + v∘∇, v), where ∇ is the slope of log softmax near the mode of q·p. Log
        softmax is concave, so it lies below its tangents, whose products with q are Gaussian.
        """
        if self.link == "robustmax":
            return super().product_samples(y, q, n_samples, generator)  # which says why not
        mean, var = (a[0] for a in q.double().resolved())
        mode = _softmax_mode(y, mean, var)  # (N, C)
        slope = F.one_hot(y[:, 0].long(), mean.shape[-1]) - mode.softmax(-1)
        centre, height = mean + var * slope, self.log_prob(y, mode)

        def propose(rows: Tensor) -> tuple[Tensor, Tensor]:
            z = torch.empty_like(mean[rows]).normal_(generator=generator)
            f = centre[rows] + var[rows].sqrt() * z
            rise = (slope[rows] * (f - mode[rows])).sum(-1, keepdim=True)
            return f, self.log_prob(y[rows], f) - height[rows] - rise

        return accept_reject(propose, n_samples, mean, generator)

    def squared_error(self, y: Tensor, q: Marginals) -> Tensor:
        """Return the Brier score Σ_c (1(c = y) − p_c)² of each row, (N,)."""
        target = F.one_hot(y[:, 0].long(), q.mean.shape[-1])
        return (target - self.moments(q).mixture_moments()[0]).square().sum(-1)

    def initial_mean(self, rows: Rows) -> Tensor:
        """Return the centred logarithms of the classes' shares, with half a row added to each."""
        codes = F.one_hot(rows.y[:, 0].long(), self.n_latents(1)).to(rows.y.dtype)
        (counts,) = rows.total(rows.weighted(codes).sum(0))
        log_counts = (counts + 0.5).log()
        return log_counts - log_counts.mean()


def _of_class(y: Tensor, values: Tensor) -> Tensor:
    """Return each row's entry of values (..., N, C) for its class y (N, 1): (..., N, 1)."""
    return values.gather(-1, y.long().expand(*values.shape[:-1], 1))


def _log_mean_softmax(q: Marginals) -> Tensor:
    """Return log E_q[softmax(f)], (S, N, C)."""
    log_p = torch.log_softmax(quasi_random_nodes(q, PREDICTIVE_POINTS), -2)
    return torch.logsumexp(log_p, -1) - math.log(PREDICTIVE_POINTS)


def _softmax_means(q: Marginals) -> Tensor:
    """Return E_q of log Σ exp f_c, of p = softmax(f), and of p(1 − p): (S, N, 1 + 2C)."""
    f = quasi_random_nodes(q, TRAINING_POINTS)
    log_sum = torch.logsumexp(f, -2, keepdim=True)
    p = (f - log_sum).exp()
    return torch.cat([log_sum, p, p * (1.0 - p)], -2).mean(-1)


def _softmax_mode(y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """Return the mode of q(f) p(y | f); the last axis has the classes.

    The mode satisfies f + v·exp(f − L) = μ + v·1(c = y) with L = log Σ exp f. Given L, this is one
    equation for each class. Σ exp(f − L) falls as L rises, so L is found by bisection.
    """
    target = F.one_hot(y[:, 0].long(), mean.shape[-1])
    b = mean + var * target + var.log()  # x + exp(x) = b − L, x = f − L + log v
    low = torch.logsumexp(mean + var * (target - 1), -1, keepdim=True)
    high = torch.logsumexp(mean + var * target, -1, keepdim=True)
    for _ in range(MODE_STEPS):
        L = 0.5 * (low + high)
        f = log_root(b - L) - var.log()  # f − L
        is_low = torch.logsumexp(f, -1, keepdim=True) > 0.0
        low, high = torch.where(is_low, L, low), torch.where(is_low, high, L)
    return f + L


def _softmax_product_means(q: Marginals, y: Tensor) -> Tensor:
    """Return log E_q[p_y], and E[e] and E[e² − p(1 − p)] under q·p_y: (S, N, 1 + 2C).

    Here e = 1(c = y) − p. The points are those of N(μ + v∘∇, v), where ∇ is the slope of log p_y at
    the mode of q·p_y. The ratio of q·p_y to that density varies little, however improbable y is.
    """
    q = q.resolved()
    target = F.one_hot(y[:, 0].long(), q.mean.shape[-1])[..., None]  # (N, C, 1)
    slope = target - _softmax_mode(y, *q).softmax(-1)[..., None]  # (S, N, C, 1)
    shift = q.var[..., None] * slope
    log_p = torch.log_softmax(quasi_random_nodes(q, TRAINING_POINTS) + shift, -2)
    z = quasi_random_nodes(Marginals(torch.zeros_like(q.mean), q.var), TRAINING_POINTS)
    log_ratio = (log_p * target - slope * z - 0.5 * slope * shift).sum(-2, keepdim=True)
    log_sum = torch.logsumexp(log_ratio, -1)
    weights = (log_ratio - log_sum[..., None]).exp()
    p = log_p.exp()
    e = target - p
    first, second = (weights * e).sum(-1), (weights * (e.square() - p * (1.0 - p))).sum(-1)
    return torch.cat([log_sum - math.log(TRAINING_POINTS), first, second], -1)


def _log_win(q: Marginals, n_nodes: int, y: Tensor | None = None) -> Tensor:
    """Return log P(f_c is the greatest) of every class, (S, N, C), or of class y alone, (S, N, 1).

    The probability is the expectation over f_c of Π_{j ≠ c} Φ((f_c − μ_j)/√v_j).
    """
    n_classes, q = q.mean.shape[-1], q.resolved()
    own = Marginals(*(a if y is None else _of_class(y, a) for a in q))
    f, log_weights = quadrature_nodes(own, n_nodes)  # (K, S, N, C or 1)
    z = (f[..., None] - q.mean[..., None, :]) / q.var.sqrt()[..., None, :]  # (..., C or 1, C)
    code = torch.arange(n_classes, device=f.device)[:, None] if y is None else y.long()[..., None]
    itself = code == torch.arange(n_classes, device=f.device)
    # Below −10⁴ the weight is zero, and torch's derivative is wrong.
    log_phi = torch.special.log_ndtr(z.clamp_min(-1e4)).masked_fill(itself, 0.0)
    return torch.logsumexp((log_weights + log_phi.sum(-1)).movedim(0, -1).contiguous(), -1)
